"""Helpers shared by the benchmarks: a training on one device, child processes, simulated runs, ratios and tables."""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import torch.nn.functional as F  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402

from common.data.image_set import load_image_set  # noqa: E402
from common.data.loaders import make_loaders  # noqa: E402
from common.engine.loop import fit  # noqa: E402
from common.engine.place import ParallelContext, Place  # noqa: E402
from common.engine.step import build_loss, build_optimizer, to_device  # noqa: E402
from common.engine.timing import CALLS, Stopwatch  # noqa: E402
from common.errors import FAILED, SuiteError  # noqa: E402
from common.files.results import EpochRecord, RunResult  # noqa: E402
from common.models.build import build_model  # noqa: E402
from common.settings.config import RunConfig, script_parser  # noqa: E402
from common.settings.schedules import build_schedule  # noqa: E402
from compare_parallel import output_to  # noqa: E402
from comparison.judge.analysis import Analysis, analyse  # noqa: E402
from comparison.judge.blocks import ratios  # noqa: E402
from comparison.judge.statistics import Ratio  # noqa: E402
from comparison.record import Report  # noqa: E402
from comparison.rows import Configuration, Planned  # noqa: E402
from comparison.run.lock import DirectoryLock  # noqa: E402
from comparison.run.session import run_comparison  # noqa: E402
from comparison.run.turns import Run  # noqa: E402
from comparison.show.tables import lay_out  # noqa: E402

# The arguments of make_plan() for benchmarks that plan their own rows.
PLANNED = {
    **vars(RunConfig()),
    "model": ["lenet"],
    "batch_size": [128],
    "num_workers": [0],
    "nproc": [2],
    "nodes": [1],
    "micro_batches": [1],
    "bucket_mb": [None],
    "threads_per_device": 1,
    "scaling": "strong",
    "methods": [("single", {})],
}

# The settings of a Report for benchmarks that call analyse() themselves.
SETTINGS = {
    **dict.fromkeys(("allow_unequal", "check_maths", "fit_batch", "prove", "timeline"), False),
    **dict.fromkeys(("train_size", "max_steps", "link_gbps", "link_ms", "repeats", "budget", "margin", "timeout")),
    **dict.fromkeys(("equal_within", "accuracy_margin", "target_accuracy", "predict")),
    "dataset": "synthetic-mnist",
    "seed": 1,
    "loader": "resident",
    "baseline": "single",
    "scaling": "strong",
    "project": [],
    "batch_size": [128],
}

# The machine of simulated runs.
ENVIRONMENT = {
    **dict.fromkeys(("torchvision", "numpy", "cuda", "cudnn", "nccl", "driver")),
    **{"python": "3.12", "torch": "2.11", "system": "Linux", "cpu": "a CPU", "cores": 2, "gpus": [], "links": []},
}


def simulated_run(
    method: str, batch: int, epochs: tuple[EpochRecord, ...], start: float = 1.0, workers: int = 0, **values: Any
) -> RunResult:
    """Return a made-up result on CPUs, of one device or two ranks. start: seconds of start-up."""
    ranks = 1 if method.startswith("single") else 2
    fixed = {"parameters": 1, "threads_per_process": 1, "config": {"loader": "resident"}, "environment": ENVIRONMENT}
    return RunResult(
        method=method,
        status="ok",
        reason="",
        simulated=False,
        command="simulated",
        world_size=ranks,
        devices=("cpu",) * ranks,
        global_batch_size=batch,
        per_device_batch_size=batch // ranks,
        workers_per_process=workers // ranks,
        startup_seconds=start,
        total_seconds=start + sum(epoch.train_seconds + epoch.evaluate_seconds for epoch in epochs),
        epochs=epochs,
        data_ranks=ranks,
        **{**fixed, **values},
    )


def config_of(**values) -> RunConfig:
    """Return the default RunConfig of a training script, of lenet on MNIST without workers, with `values` replaced."""
    defaults = vars(script_parser("").parse_args([]))
    fixed = {"dataset": "mnist", "model": "lenet", "lr_milestones": (), "num_workers": 0}
    return RunConfig(**{**defaults, **fixed, **values})


def call(*command: str) -> subprocess.CompletedProcess:
    """Run Python with these arguments in the project. Raises SuiteError (FAILED) with its last error line."""
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise SuiteError(f"{' '.join(command)} failed", said, "try it alone", FAILED)
    return done


def run_of(label: str, number: int, command: tuple[str, ...], directory: Path) -> Run:
    """Return a run, in turns, of a training script's command that is not part of a plan."""
    planned = Planned("", 1, 0, "cpu", 1, 1)
    return Run(Configuration(f"row-{number}", "single", label, {}, planned, command), 1, 1, directory)


def quiet_comparison(report: Report, directory: Path) -> Analysis | None:
    """Run and judge a planned comparison without its output. None if another program disturbed it."""
    with DirectoryLock(directory) as lock, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        analysis = analyse(run_comparison(report, [], output_to(lock)))
    return None if any(row.disturbed for row in analysis.report.all_rows) else analysis


def printed_by(*command: str):
    """Run Python with these arguments and return the last line it prints, parsed as JSON."""
    return json.loads(call(*command).stdout.splitlines()[-1])


def paired(numerator: list[float], denominator: list[float]) -> Ratio:
    """Return the geometric mean of the blocks' ratios, with a 95% t-interval computed on their logarithms."""
    return ratios(np.column_stack([numerator, denominator]), 0, [1])[0]


def median(values: list[float], pattern: str) -> str:
    """Return the median and, in brackets, the range."""
    return f"{statistics.median(values):{pattern}} ({min(values):{pattern}}–{max(values):{pattern}})"


def cost_range(costs: list[float]) -> tuple[float, float]:
    """Return the least and the largest, rounded outwards to one digit after the point."""
    return math.floor(10 * min(costs)) / 10, math.ceil(10 * max(costs)) / 10


def share_held(costs: Iterable[tuple[str, float]]) -> float:
    """Return the share of a group's costs within the range of the other groups' costs, on average over the groups.

    costs: (group, cost).
    """
    groups = defaultdict(list)
    for group, cost in costs:
        groups[group].append(cost)
    shares = []
    for group, own in groups.items():
        low, high = cost_range([cost for other in groups if other != group for cost in groups[other]])
        shares.append(statistics.mean(low <= cost <= high for cost in own))
    return statistics.mean(shares)


def as_table(header: str, rows: Iterable[tuple], left: tuple[int, ...] = (0,)) -> str:
    """Return a Markdown table. header: column names separated by " | ". left: indices of the text columns."""
    return lay_out(list(rows), header.split(" | "), "github", left=left)


def one_device(model, config: RunConfig, device, sampler=None) -> tuple[ParallelContext, Callable]:
    """Return (context, train_step) for training on one device, as in data_parallel_train.py."""
    network = getattr(model, "module", model)
    loss_function = build_loss(config, network)

    def train_step(images, labels, mark):
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(model(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    sampler = sampler or DistributedSampler(range(1), 1, 0)
    return ParallelContext("single", Place([device]), sampler, network, model), train_step


def training_step(model, optimizer, images, labels) -> Callable[[], None]:
    """Return a callable that trains one step, always on the same images."""

    def step():
        F.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def repeated_seconds(work: Callable, device, repeats: int) -> list[float]:
    """Return the seconds of work(), measured `repeats` times, each over as many calls as the device needs."""
    seconds, calls = [], CALLS[device.type]
    for _ in range(repeats):
        with Stopwatch([device]) as watch:
            for _ in range(calls):
                work()
        seconds.append(watch.seconds / calls)
    return seconds


def sampler_of(image_set, config: RunConfig, rank: int = 0, world_size: int = 1) -> DistributedSampler:
    """Return the sampler of one rank, as in the training scripts."""
    return DistributedSampler(image_set.train_labels, world_size, rank, seed=config.seed, drop_last=True)


def training_of(config: RunConfig, device) -> tuple:
    """Return (train, image_set, sampler, loaders); train() trains on one device and returns its epoch records."""
    image_set = load_image_set(config)
    sampler = sampler_of(image_set, config)
    loaders = make_loaders(image_set, config, device, sampler)
    model = build_model(config, image_set).to(device)
    optimizer = build_optimizer(model.parameters(), config)
    context, train_step = one_device(model, config, device, sampler)

    def train():
        schedule = build_schedule(optimizer, config, len(loaders[0]))
        return fit(context, train_step, optimizer, schedule, loaders, config, [], lambda _: None)[0]

    return train, image_set, sampler, loaders
