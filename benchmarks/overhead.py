"""How much slower is the suite's training loop than a loop written by hand?

    python benchmarks/overhead.py

Measured end to end, with the same training by `fit` and by the loop below, in turns; and directly, with both loops
around a model that does nothing, which resolves microseconds. Also measures the observer of --script, in microseconds
per step of a script that computes almost nothing.
"""

import json
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from measure import as_table, config_of, one_device, paired, training_of
from runs import Runs, benchmark, benchmark_parser

from common.engine import loop as engine
from common.engine.loop import train_one_epoch
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer
from common.engine.timing import PhaseTimer, Stopwatch
from common.files.results import PHASES
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.machine.lifetime import temporary_directory
from common.models.build import Network, build_model
from common.settings.schedules import build_schedule
from comparison.run.scripts import OBSERVE, OBSERVER

STEPS = {128: 100, 32: 200}  # batch size → steps per block, about a second each
EMPTY_STEPS = 2000
EMPTY_SCRIPT = f"""
import time, torch
from torch.utils.data import DataLoader, TensorDataset
network = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(network.parameters(), 0.0)
for epoch in range(2):
    start = time.perf_counter()
    for (inputs,) in DataLoader(TensorDataset(torch.zeros({EMPTY_STEPS}, 1))):
        network(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print(1e6 * (time.perf_counter() - start) / {EMPTY_STEPS})
"""
COMPARED = {"`fit` ÷ loop by hand": "by hand", "phase timing on ÷ off": "fit, no phases"}


def train_by_hand(model, optimizer, loader, device) -> None:
    """A minimal training loop."""
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluate_by_hand(model, loader, device) -> float:
    """Return the accuracy on the test images."""
    model.eval()
    correct, count = torch.zeros((), device=device), 0
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
        count += len(labels)
    return correct.item() / count


class NoTimer(PhaseTimer):
    """A timer that measures nothing."""

    def mark(self, name: str) -> None:
        pass

    def phases(self):
        return [(phase, 0.0) for phase in PHASES]


def seconds_of(work, device) -> float:
    with Stopwatch([device]) as watch:
        work()
    return watch.seconds


def with_and_without_phases(ours, device) -> dict:
    """Return callables that return the seconds of the suite's loop with and without phase timing."""

    def with_timer(timer):  # shared by all epochs, as in a run, where the first creates GPU events
        engine.PhaseTimer = lambda devices: timer
        return seconds_of(ours, device)

    return {"fit": partial(with_timer, PhaseTimer([device])), "fit, no phases": partial(with_timer, NoTimer([device]))}


def end_to_end(batch: int, device, runs: Runs) -> dict:
    """Return the seconds of training and evaluation of each loop, one for each block."""
    size = batch * STEPS[batch]
    given = {"batch_size": batch, "epochs": 1, "train_size": size, "data_root": runs.arguments.data_root}
    config = config_of(loader="resident", **given)
    ours, image_set, sampler, loaders = training_of(config, device)
    model = build_model(config, image_set).to(device)
    optimizer = build_optimizer(model.parameters(), config)

    def by_hand():
        sampler.set_epoch(1)
        training = seconds_of(partial(train_by_hand, model, optimizer, loaders[0], device), device)
        return training, training + seconds_of(partial(evaluate_by_hand, model, loaders[1], device), device)

    timings = runs.interleave({**with_and_without_phases(ours, device), "by hand": by_hand}, f"batch {batch}, ")
    training, both = zip(*timings["by hand"], strict=True)
    return {**timings, "by hand": both, "by hand, training alone": training}


def direct(device, runs: Runs) -> dict:
    """Return the microseconds per step of each loop around the loss of constant logits, one for each block."""
    logits = torch.zeros(1, 10, device=device, requires_grad=True)

    class Nothing(torch.nn.Module):
        scaler = Network.scaler

        def forward(self, images):
            return logits

    nothing, config = Nothing(), config_of()
    optimizer = SimpleNamespace(step=int, zero_grad=int)  # int() does almost nothing
    batch = torch.zeros(1, 1, 28, 28, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    loader = [batch] * EMPTY_STEPS
    real = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    schedule = build_schedule(real, config, EMPTY_STEPS)
    real.step()  # otherwise the schedule warns that it steps first
    context, train_step = one_device(nothing, config, device)
    ours = partial(train_one_epoch, context, train_step, optimizer, schedule, loader, config)
    by_hand = partial(train_by_hand, nothing, optimizer, loader, device)
    rivals = {**with_and_without_phases(ours, device), "by hand": partial(seconds_of, by_hand, device)}
    seconds = runs.interleave(rivals, "nothing but the loop, ")
    return {name: [1e6 * value / EMPTY_STEPS for value in values] for name, values in seconds.items()}


def observed(runs: Runs) -> dict:
    """Return the microseconds per step of a script that computes almost nothing, observed and alone."""

    def run(**variables):
        done = subprocess.run([sys.executable, "-c", EMPTY_SCRIPT], env={**os.environ, **variables}, stdout=PIPE)
        return float(done.stdout)

    with temporary_directory() as directory:
        Path(directory, "plan.json").write_text(json.dumps({"steps": 1 << 30, "alone": 0.0}), encoding="utf-8")
        watched = {"PYTHONPATH": str(OBSERVER), OBSERVE: directory}
        return runs.interleave({"observed": partial(run, **watched), "alone": run}, "a script, ", warm_up=False)


def table(results: dict) -> str:
    rows, direct = [], {name: min(values) for name, values in results["direct_microseconds_per_step"].items()}
    for batch, seconds in results["end_to_end_seconds"].items():
        step = 1e6 * statistics.median(seconds["by hand, training alone"]) / results["steps"][batch]
        for label, other in COMPARED.items():
            cost, ratio = direct["fit"] - direct[other], paired(seconds["fit"], seconds[other])
            rows.append((label, batch, f"{cost:.1f}", f"{cost / step:+.2%}", ratio, len(seconds["fit"])))
    scripts = results["observed_microseconds_per_step"]
    cost = statistics.median(scripts["observed"]) - statistics.median(scripts["alone"])
    rows.append(("a script observed ÷ alone", "5 ms", f"{cost:.1f}", f"{cost / 5000:+.2%}", "–", len(scripts["alone"])))
    header = "lenet on MNIST | Batch | Direct cost (µs per step) | of a step | End to end, ratio of seconds [95%]"
    return as_table(f"{header} | Blocks", rows)


def measured(runs: Runs) -> dict:
    device = available_devices("auto")[0]
    prepare_process(config_of(), device)
    return {
        "steps": {str(batch): steps for batch, steps in STEPS.items()},
        "threads": torch.get_num_threads(),
        "end_to_end_seconds": {str(batch): end_to_end(batch, device, runs) for batch in STEPS},
        "direct_microseconds_per_step": direct(device, runs),
        "observed_microseconds_per_step": observed(runs),
    }


def main() -> None:
    benchmark(benchmark_parser(__doc__, blocks=15).parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
