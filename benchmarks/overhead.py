"""What does the suite's own loop cost, beside a loop that is written by hand?

    python benchmarks/overhead.py

Twice: end to end, by the same training with `fit` and with the loop below, in turn; and directly, by both loops around
a model that does nothing, so that only the loops are left: that shows microseconds where the first drowns in noise.
"""

import statistics
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from measure import Witness, arguments_of, as_table, config_of, interleave, one_device, paired, sampler_of, write

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine import loop as engine
from common.engine.loop import fit, train_one_epoch
from common.engine.setup import prepare_process
from common.engine.step import build_loss, build_optimizer, to_device
from common.engine.timing import PhaseTimer, Stopwatch
from common.files.results import PHASES
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_model
from common.settings.schedules import build_schedule

STEPS = {128: 100, 32: 200}  # batch → steps of a block, about a second each
EMPTY_STEPS = 2000
COMPARED = {"`fit` ÷ loop by hand": "by hand", "phase timing on ÷ off": "fit, no phases"}


def train_by_hand(model, optimizer, loader, device) -> None:
    """The loop that one would write oneself."""
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluate_by_hand(model, loader, device) -> float:
    """Accuracy on the test images."""
    model.eval()
    correct, count = torch.zeros((), device=device), 0
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
        count += len(labels)
    return correct.item() / count


class NoTimer(PhaseTimer):
    """Phase timing switched off."""

    def mark(self, name: str, join: bool = False) -> None:
        pass

    def milliseconds(self) -> dict[str, float]:
        return dict.fromkeys(PHASES, 0.0)


def seconds_of(work, device) -> float:
    with Stopwatch([device]) as watch:
        work()
    return watch.seconds


def rivals_of(ours, by_hand, device) -> dict:
    """Return name → a callable that returns the seconds of both loops, and of ours without phase timing."""

    def with_timer(timer):
        engine.PhaseTimer = timer
        return seconds_of(ours, device)

    return {
        "fit": lambda: with_timer(PhaseTimer),
        "by hand": lambda: seconds_of(by_hand, device),
        "fit, no phases": lambda: with_timer(NoTimer),
    }


def end_to_end(batch: int, device, data_root: str, blocks: int) -> dict:
    """Return the blocks' seconds of training and evaluation."""
    size = batch * STEPS[batch]
    config = config_of(loader="resident", batch_size=batch, epochs=1, train_size=size, data_root=data_root)
    image_set, training = load_image_set(config), []  # seconds of the loop by hand without its evaluation
    sampler = sampler_of(image_set, config)
    loaders = make_loaders(image_set, config, device, sampler)
    model, other = (build_model(config, image_set).to(device) for _ in range(2))
    optimizer, other_optimizer = (build_optimizer(net.parameters(), config) for net in (model, other))
    context, train_step = one_device(model, config, device, sampler)

    def ours():
        schedule = build_schedule(optimizer, config, STEPS[batch])
        fit(context, train_step, optimizer, schedule, loaders, config, [], lambda _: None)

    def by_hand():
        sampler.set_epoch(1)
        training.append(seconds_of(lambda: train_by_hand(other, other_optimizer, loaders[0], device), device))
        evaluate_by_hand(other, loaders[1], device)

    timings = interleave(rivals_of(ours, by_hand, device), blocks)
    return {**timings, "by hand, training alone": training[1:]}


def direct(device, blocks: int) -> dict:
    """Return the blocks' microseconds per step of the loops around nothing."""
    logits = torch.zeros(1, 10, device=device)

    class Nothing(torch.nn.Module):
        def forward(self, images):
            return logits

    nothing, optimizer = Nothing(), SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
    loader = [(torch.zeros(1, 1, 28, 28, device=device), torch.zeros(1, dtype=torch.int64, device=device))]
    loader, config = loader * EMPTY_STEPS, config_of()
    real = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    schedule = build_schedule(real, config, EMPTY_STEPS)
    real.step()  # or the schedule warns that it is stepped first
    (context, _), loss_function = one_device(nothing, config, device), build_loss(config)

    def train_step(images, labels, mark):
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(nothing(images), labels)
        mark("forward")
        mark("backward")
        return loss

    def by_hand():
        nothing.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            F.cross_entropy(nothing(images), labels)
            optimizer.step()
            optimizer.zero_grad()

    def ours():
        train_one_epoch(context, train_step, optimizer, schedule, loader, config)

    rivals = rivals_of(ours, by_hand, device)
    return interleave({name: lambda run=run: 1e6 * run() / EMPTY_STEPS for name, run in rivals.items()}, blocks)


def table(results: dict) -> str:
    rows, direct = [], {name: min(values) for name, values in results["direct_microseconds_per_step"].items()}
    for batch, seconds in results["end_to_end_seconds"].items():
        step = 1e6 * statistics.median(seconds["by hand, training alone"]) / results["steps"][batch]
        for label, other in COMPARED.items():
            cost, ratio = direct["fit"] - direct[other], paired(seconds["fit"], seconds[other])
            rows.append((label, batch, f"{cost:.1f}", f"{cost / step:+.2%}", ratio, len(seconds["fit"])))
    header = (
        "lenet on MNIST | Batch | Direct cost (µs per step) | of a step | End to end, ratio of seconds [95 %] | Blocks"
    )
    return as_table(header, rows)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=15)
    device = available_devices("auto")[0]
    prepare_process(config_of(), device)
    with Witness() as witness:
        measured = {
            "steps": {str(batch): steps for batch, steps in STEPS.items()},
            "threads": torch.get_num_threads(),
            "end_to_end_seconds": {
                str(batch): end_to_end(batch, device, arguments.data_root, arguments.blocks) for batch in STEPS
            },
            "direct_microseconds_per_step": direct(device, arguments.blocks),
        }
    write(arguments.output, measured, witness)
    print(table(measured))


if __name__ == "__main__":
    run_script(main)
