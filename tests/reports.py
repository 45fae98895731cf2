"""Made-up comparisons for tests, with the measurements that a test plants."""

import copy
import math
import random
import re
from dataclasses import replace
from itertools import product

from msgspec import convert

from common.files.probe import Probe
from common.files.results import EpochRecord, PhaseTimes, RankTimes, RunResult, Span, Waits
from comparison.outcomes import Outcome
from comparison.record import Equivalence, Report
from comparison.rows import Configuration, Planned
from comparison.show.report import write_markdown

UNTOUCHED = (
    "link_gbps max_steps train_size timeout link_ms target_accuracy budget margin equal_within accuracy_margin predict"
)
SETTINGS = {
    **dict.fromkeys(UNTOUCHED.split()),
    **dict.fromkeys("allow_unequal check_maths fit_batch prove timeline".split(), False),
    "dataset": "synthetic-mnist",
    "batch_size": [100],
    "epochs": 3,
    "scaling": "strong",
    "repeats": 3,
    "seed": 42,
    "baseline": "single",
    "project": [],
    "loader": "workers",
}
ENVIRONMENT = {
    **dict.fromkeys(("torchvision", "numpy", "cuda", "cudnn", "nccl", "driver")),
    "python": "3.11.7",
    "torch": "2.11.0",
    "system": "Linux x86_64",
    "cpu": "a CPU",
    "cores": 1,
    "gpus": [],
    "links": [],
}
PROBE = {
    "train_images": 1000,
    "test_images": 200,
    "startup_seconds": 2.0,
    "resident_images_per_second": None,
    "wall_seconds": None,
    **{name: [] for name in ("steps", "models", "loaders", "memory", "blocks")},
}
CONFIG = {"dataset": "synthetic-mnist", "model": "lenet", "optimizer": "adam", "lr": 0.001, "loader": "workers"}
PHASES = PhaseTimes(1.0, 0.5, 20.0, 40.0, update=3.0)


def make_result(method="single", seconds=(3.0, 2.0, 2.2), devices=("cpu",), phases=PHASES, **values) -> RunResult:
    """Return a RunResult with one epoch for each of `seconds`."""
    epochs = tuple(
        EpochRecord(number, value, 0.5, 1000, 10, 1.0 / number, 1.1 / number, 0.5 + number / 10, phases)
        for number, value in enumerate(seconds, start=1)
    )
    defaults = {
        "status": "ok",
        "reason": "",
        "simulated": False,
        "command": "python x.py",
        "config": {**CONFIG, "epochs": len(seconds)},
        "environment": copy.deepcopy(ENVIRONMENT),
        "world_size": 1,
        "data_ranks": values.get("world_size", 1),
        "parameters": 5,
        "global_batch_size": 100,
        "per_device_batch_size": 100,
        "workers_per_process": 0,
        "threads_per_process": 1,
        "class_accuracy": {"0": 0.5, "1": 0.75},
        "peak_memory_bytes": (1,) * len(devices),
    }
    return RunResult(method=method, devices=devices, epochs=epochs, **{**defaults, **values})


def configuration(method="single", name=None, values=(), skip="", command=(), **planned) -> Configuration:
    """Return a row with these values of swept settings. planned: what else is planned for it."""
    values = dict(values)
    equal = {"model": "lenet", "batch_size": 100, "num_workers": 0, "device": "cpu", "threads": 1}
    equal |= {"per_device_batch_size": 100, **values, **planned}
    planned = Planned(**{name: value for name, value in equal.items() if name in Planned.__dataclass_fields__})
    name = name or "-".join([method, *(f"{key}={value}" for key, value in values.items())])
    return Configuration(name, method, method.upper(), values, planned, command or ("python", f"{method}.py"), skip)


def runs(
    method="single", seconds=(2.0, 2.02, 1.98), epochs=3, first=None, phases=(1.0, 0.5, 20.0, 40.0, 3.0), **values
):
    """Return one RunResult for each of `seconds`, the length of its epochs. first: that of the first epoch.

    phases: data, transfer, forward, backward, update.
    """
    *before, update = phases
    devices = ("cpu",) * values.pop("count", 1)
    times = PhaseTimes(*before, update=update)
    return [
        make_result(method, (first or value, *[value] * (epochs - 1)), devices, times, **values) for value in seconds
    ]


def report_of(*rows, probe=(), equivalence=None, foreign_cores=(), **settings) -> Report:
    """Return a Report of (configuration, results) pairs. For a failed run, a result is the Outcome's status.

    probe: changes to PROBE, as printed by common.programs.probe. foreign_cores: by configuration's name, the cores that
    other programs used.
    """
    outcomes = []
    for row, results in rows:
        foreign = dict(foreign_cores).get(row.name, 0.0)
        for block, result in enumerate(results, start=1):
            command, log = f"python {row.method}.py", f"{row.name}-{block}.log"
            failed = isinstance(result, str)
            status, reason = (result, "signal 9") if failed else ("ok", "")
            ended = int(failed), 9.0, foreign, None if failed else result
            outcomes.append(Outcome(row.name, block, status, reason, command, log, *ended))
    plan = tuple(row for row, _ in rows)
    order = tuple((outcome.block, outcome.configuration) for outcome in outcomes)
    return Report(
        "python compare_parallel.py",
        {**SETTINGS, **settings},
        copy.deepcopy(ENVIRONMENT),
        convert({**PROBE, **dict(probe)}, Probe),
        plan,
        order,
        tuple(outcomes),
        equivalence or {},
    )


def each_epoch(result: RunResult, **values) -> RunResult:
    """Return the result with these values in every epoch."""
    return replace(result, epochs=tuple(replace(epoch, **values) for epoch in result.epochs))


def each_outcome(report: Report, **values) -> Report:
    """Return the report with these values in every outcome."""
    return replace(report, outcomes=tuple(replace(outcome, **values) for outcome in report.outcomes))


def markdown_of(analysis, directory) -> str:
    """Return the text of report.md."""
    write_markdown(analysis, directory / "report.md", [])
    return (directory / "report.md").read_text()


def as_long_as_its_parts(report: Report) -> Report:
    """Return the report with wall times that are the sums of start-up, epochs and evaluations."""

    def timed(outcome):
        epochs = outcome.result.epochs if outcome.result else ()
        seconds = sum(epoch.train_seconds + epoch.evaluate_seconds for epoch in epochs)
        return replace(outcome, wall_seconds=outcome.result.startup_seconds + seconds) if epochs else outcome

    return replace(report, outcomes=tuple(map(timed, report.outcomes)))


FAST, SLOW = (1.0, 1.01, 0.99), (3.0, 3.03, 2.97)


def halved(method="ddp", seconds=FAST, name=None, **values):
    """Return a row of two devices, each with half of the batch. values: of its results."""
    planned = configuration(method, name, per_device_batch_size=50)
    return planned, runs(method, seconds, count=2, world_size=2, per_device_batch_size=50, **values)


SINGLE = (configuration(), runs())
DDP = (configuration("ddp", per_device_batch_size=50), runs("ddp", (1.0, 1.01, 0.99), count=2, world_size=2))
LINK = {
    "steps": [
        {"model": "lenet", "batch": batch, "milliseconds": ms} for batch, ms in ((100, 40.0), (50, 24.0), (25, 15.0))
    ],
    "models": [{"model": "lenet", "gradient_bytes": 10_000_000, "link_gbps": 8.0}],  # 10 ms for two devices
    "loaders": [{"num_workers": 2, "images_per_second": 5000.0, "cpu_seconds_per_image": 3e-4}],
}  # 20, 30 ms


def row_of(method, count=1, workers=2, seconds=0.4):
    return (
        configuration(method, num_workers=workers),
        runs(method, 3 * (seconds,), count=count, workers_per_process=workers // count, world_size=count),
    )


def full_report():
    simulated = runs("dp", simulated=True, reason="2 replicas", workers_per_process=2)
    return report_of(
        row_of("single"),
        row_of("ddp", 2),
        (configuration("dp", num_workers=2), simulated),
        (configuration("mp"), ["failed"]),
        project=["2", "4"],
        probe=LINK,
        check_maths=True,
        equivalence={"ddp": Equivalence(1e-8, "ok", "")},
    )


def swept(*methods, **values):
    """Return a row for each combination of the values of some settings, with each method."""
    each = [dict(zip(values, own, strict=True)) for own in product(*values.values())]
    return [
        (configuration(method, values=own), runs(method, global_batch_size=own.get("batch_size", 100)))
        for own in each
        for method in methods
    ]


def two_sweeps(methods=("single",)):
    return report_of(*swept(*methods, model=("lenet", "mlp"), batch_size=(64, 128)))


def cells(table):
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[2:]]


STEP_MS = {"data": 1.0, "transfer": 1.0, "forward": 10.0, "backward": 20.0, "exchange": 0.0, "update": 8.0}  # 40 ms
STEPS = 10
JITTER = (0.999, 1.003, 0.998)  # of three blocks: the median is not the mean


def rank(phases, cpu=0.95, queued=0.01, waits=None):
    """Return one rank's epoch. cpu, queued: shares of it."""
    seconds = STEPS * sum(phases.values()) / 1000
    queued = None if queued is None else queued * seconds
    return RankTimes(seconds, PhaseTimes(**phases), cpu * seconds, queued, waits)


def run(*ranks, factors=(1.0, 1.0, 1.0), **values):
    """Return a run with these ranks in each epoch. factors: relative lengths of the epochs."""

    def scaled(own, factor):
        times = {name: getattr(own, name) for name in ("train_seconds", "cpu_seconds", "queue_seconds")}
        times = {name: seconds and factor * seconds for name, seconds in times.items()}
        phases = PhaseTimes(**{name: factor * value for name, value in own.phases.known.items()})
        return replace(own, phases=phases, **times)

    def epoch(number, factor):
        all_ranks = tuple(scaled(own, factor) for own in ranks)
        slowest = max(all_ranks, key=lambda own: own.train_seconds)
        values = {"train_seconds": slowest.train_seconds, "phases": slowest.phases, "ranks": all_ranks}
        return replace(result.epochs[0], epoch=number, **values)

    settings = {
        "world_size": len(ranks),
        "devices": ("cpu",) * len(ranks),
        "threads_per_process": 1,
        "startup_seconds": 4.0,
        "environment": {**ENVIRONMENT, "cores": 2},
        **values,
    }
    result = make_result("single" if len(ranks) == 1 else "ddp", **settings)
    epochs = tuple(epoch(number, factor) for number, factor in enumerate(factors, start=1))
    spent = sum(each.train_seconds + each.evaluate_seconds for each in epochs)
    return replace(result, epochs=epochs, total_seconds=result.startup_seconds + spent + 0.1)


def each_run(*ranks, factors=(1.0, 1.0, 1.0), jitter=JITTER, **values):
    """Return a run with these ranks in each block. jitter: relative lengths of the blocks."""
    return [run(*ranks, factors=[block * factor for factor in factors], **values) for block in jitter]


def row(method, runs, **values):
    return configuration(method, **values), runs


def single(epochs=3, **values):
    return row("single", each_run(rank(STEP_MS), factors=(1.0,) * epochs, **values))


def halves(**changed):
    """Return half the time of every phase, as for two ranks, except for the changed phases."""
    return {**{name: value / 2 for name, value in STEP_MS.items()}, **changed}


def ddp(*ranks, **values):
    return row("ddp", each_run(*ranks, **values))


def unlike(**settings) -> Report:
    """Return a comparison on four cores with a different number for each row, run, epoch, rank, device and class.

    The accuracy is best before the last epoch; the first epoch takes 1.5 times as long; the second rank is slower and
    the second device has more memory. One row is simulated, and one has failed.
    """
    rng = random.Random(4)

    def about(value, part=0.03):
        return value * rng.uniform(1 - part, 1 + part)

    def epoch(number, slow, ranks):
        def of_rank(busy):
            times = {name: about(busy * slow * (value or 2.0 * (ranks > 1))) for name, value in STEP_MS.items()}
            seconds = 1.02 * STEPS * sum(times.values()) / 1000
            waits = Waits(about(0.5), {name: about(0.1) for name in times}) if ranks > 1 else None
            return RankTimes(seconds, PhaseTimes(**times), about(0.9 * seconds), about(0.02 * seconds, 0.5), waits)

        warm_up = 1.5 if number == 1 else 1.0
        kept = tuple(of_rank(busy * warm_up) for busy in (1.0, 1.1)[:ranks])
        losses = about(2.0 / number), about(1.0 / number)
        accuracy = about((0.5, 0.95, 0.8)[number - 1], 0.003 if number == 3 else 0.03)
        times = kept[-1].train_seconds, about(0.1)
        return EpochRecord(number, *times, 1000, STEPS, *losses, accuracy, kept[-1].phases, kept)

    def row(method, slow, ranks=1, threads=2, **values):
        results = [
            make_result(
                method,
                (),
                ("cpu",) * ranks,
                world_size=ranks,
                threads_per_process=threads,
                environment={**ENVIRONMENT, "cores": 4},
                startup_seconds=about(2.0 * slow),
                total_seconds=about(9.0 * slow),
                class_accuracy={name: about(0.5, 0.9) for name in ("cat", "dog", "emu")},
                peak_memory_bytes=tuple(round(about(size * 2**20 / slow)) for size in (300, 500)[:ranks]),
                memory_parts={"parameters": round(about(20e6 * slow)), "gradients": round(about(45e6 * slow))},
                **values,
            )
            for _ in range(3)
        ]
        epochs = [tuple(epoch(number, about(slow), ranks) for number in (1, 2, 3)) for _ in results]
        planned = {"threads": threads, "per_device_batch_size": 100 // ranks}
        made = [replace(result, epochs=own) for result, own in zip(results, epochs, strict=True)]
        return configuration(method, **planned), made

    report = report_of(
        row("single", 2.0),
        row("single-all-cores", 1.5, threads=4),
        row("ddp", 1.2, ranks=2),
        row("fsdp", 2.6, ranks=2),
        row("dp", 0.5, simulated=True, reason="2 replicas"),
        (configuration("mp", threads=2), ["failed"]),
        **settings,
    )
    outcomes = tuple(
        replace(one, wall_seconds=about(9.5 * one.result.epochs[0].train_seconds)) if one.result else one
        for one in report.outcomes
    )
    spans = {
        name: tuple(
            Span(rank, "step", phase, about(10.0 * at), about(10.0 * at + 8.0))
            for rank in range(ranks)
            for at, phase in enumerate(phases)
        )
        for name, ranks, phases in (
            ("single", 1, ("data", "forward")),
            ("ddp", 2, ("forward", "exchange", "update")),
            ("fsdp", 2, ("exchange", "forward", "exchange")),
        )
    }
    return replace(report, outcomes=outcomes, timelines=spans, environment={**report.environment, "cores": 4})


def pipeline(*stages):
    configured, results = row("pipeline", each_run(*stages))
    for result in results:
        result.config["micro_batches"] = 4
    return configured, results


COMPARISONS = ("compare-synthetic", "ladder-mnist", "worker-study", "micro-batches")
ON_CIFAR10 = ("cifar10-vgg", "cifar10-resnet8")  # in English alone


OWN = {"loader": "its own", "optimizer": "SGD", "optimizers": 1, "epochs": 3}
OWN_PHASES = PhaseTimes(data=1.0, forward=20.0, backward=40.0, update=3.0, rest=2.0)


def script(name, milliseconds, samples=100, blocks=(1.0, 1.01, 0.99), slices=(1.0,) * 4, **values):
    """A row with this step time, in slices of 10, 20, 30, … steps. blocks, slices: relative lengths of their steps."""
    values = {"global_batch_size": samples, **values, "config": {**OWN, **values.get("config", {})}}
    result = make_result("script", (1.0,), phases=OWN_PHASES, class_accuracy=None, **values)
    unseen = dict.fromkeys(("train_loss", "test_loss", "test_accuracy", "evaluate_seconds"), math.nan)

    def slice_of(number, factor):
        steps = 10 * number
        counts = {"epoch": number, "steps": steps, "samples": steps * samples}
        return replace(result.epochs[0], train_seconds=factor * steps * milliseconds / 1000, **counts, **unseen)

    def run(block):
        epochs = tuple(slice_of(number, block * factor) for number, factor in enumerate(slices, start=1))
        return replace(result, epochs=epochs)

    return replace(configuration("script", f"script-{name}"), label=name), [run(block) for block in blocks]
