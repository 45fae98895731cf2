"""What does the suite's own loop cost, beside a loop that is written by hand?

    python benchmarks/overhead.py

Twice: end to end, by the same training with `fit` and with the loop below, in turn; and directly, by both loops around
a model that does nothing, so that only the loops are left: that shows microseconds where the first drowns in noise.
"""

import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from measure import Witness, arguments_of, config_of, interleave, paired, write
from one_device import one_device, sampler_of

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine import loop as engine
from common.engine.loop import ParallelContext, fit, train_one_epoch
from common.engine.setup import prepare_process
from common.engine.step import build_loss, build_optimizer, to_device
from common.engine.timing import PhaseTimer, synchronize
from common.files.results import PHASES
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_model
from common.settings.schedules import build_schedule

STEPS = {128: 100, 32: 200}  # batch → steps of a block, about a second each


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
    correct = torch.zeros((), device=device)
    count = 0
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


def end_to_end(batch: int, device, image_set, blocks: int) -> dict:
    """Return the blocks' seconds of both loops, training and evaluation, and of `fit` without phase timing."""
    config = config_of(
        dataset="mnist", model="lenet", loader="resident", batch_size=batch, epochs=1, train_size=batch * STEPS[batch]
    )
    sampler = sampler_of(image_set, config)
    loaders = make_loaders(image_set, config, device, sampler)

    def prepared():
        model = build_model("lenet", image_set.image_shape, 0).to(device)
        return model, build_optimizer(model.parameters(), config)

    model, optimizer = prepared()
    other, other_optimizer = prepared()
    context, train_step = one_device(model, config, device, sampler)
    training = []  # seconds of the loop by hand without its evaluation, the warm-up included

    def ours(timer=PhaseTimer):
        engine.PhaseTimer = timer
        schedule = build_schedule(optimizer, config, STEPS[batch])
        return seconds(lambda: fit(context, train_step, optimizer, schedule, loaders, config, [], lambda _: None))

    def by_hand():
        def both():
            sampler.set_epoch(1)
            start = time.perf_counter()
            train_by_hand(other, other_optimizer, loaders[0], device)
            synchronize([device])
            training.append(time.perf_counter() - start)
            evaluate_by_hand(other, loaders[1], device)

        return seconds(both)

    def seconds(work):
        synchronize([device])
        start = time.perf_counter()
        work()
        synchronize([device])
        return time.perf_counter() - start

    timings = interleave({"fit": ours, "by hand": by_hand, "fit, no phases": lambda: ours(NoTimer)}, blocks)
    return {**timings, "by hand, training alone": training[1:]}


def direct(device, blocks: int, steps: int = 2000) -> dict:
    """Return the blocks' microseconds per step of both loops, and of ours without phases, around nothing."""
    logits = torch.zeros(1, 10, device=device)
    batch = torch.zeros(1, 1, 28, 28, device=device), torch.zeros(1, dtype=torch.int64, device=device)

    class Nothing(torch.nn.Module):
        def forward(self, images):
            return logits

    nothing, optimizer = Nothing(), SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
    loader = [batch] * steps
    real = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    config = config_of(dataset="mnist", model="lenet")
    schedule = build_schedule(real, config, steps)
    real.step()  # or the schedule warns that it is stepped first
    context = ParallelContext("single", nothing, (device,), device, device)
    loss_function = build_loss(config)

    def train_step(images, labels, mark):
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(nothing(images), labels)
        mark("forward")
        mark("backward")
        return loss

    def ours(timer=PhaseTimer):
        engine.PhaseTimer = timer
        start = time.perf_counter()
        train_one_epoch(context, train_step, optimizer, schedule, loader, config)
        synchronize([device])
        return 1e6 * (time.perf_counter() - start) / steps

    def by_hand():
        start = time.perf_counter()
        nothing.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            F.cross_entropy(nothing(images), labels)
            optimizer.step()
            optimizer.zero_grad()
        synchronize([device])
        return 1e6 * (time.perf_counter() - start) / steps

    return interleave({"fit": ours, "by hand": by_hand, "fit, no phases": lambda: ours(NoTimer)}, blocks)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=15)
    device = available_devices("auto")[0]
    prepare_process(config_of(dataset="mnist", model="lenet"), device)
    measured = {"threads": torch.get_num_threads(), "end_to_end_seconds": {}}
    with Witness() as witness:
        for batch in STEPS:
            config = config_of(
                dataset="mnist",
                model="lenet",
                data_root=arguments.data_root,
                loader="resident",
                train_size=batch * STEPS[batch],
            )
            measured["end_to_end_seconds"][str(batch)] = end_to_end(
                batch, device, load_image_set(config), arguments.blocks
            )
        measured["direct_microseconds_per_step"] = direct(device, arguments.blocks)
    write(arguments.output, {"steps": {str(batch): steps for batch, steps in STEPS.items()}, **measured}, witness)
    for batch, seconds in measured["end_to_end_seconds"].items():
        print(
            f"batch {batch}: fit ÷ by hand {paired(seconds['fit'], seconds['by hand'])}, with ÷ without phases "
            f"{paired(seconds['fit'], seconds['fit, no phases'])}"
        )
    print(
        "direct, µs per step:",
        {name: round(min(values), 1) for name, values in measured["direct_microseconds_per_step"].items()},
    )


if __name__ == "__main__":
    run_script(main)
