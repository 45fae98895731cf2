"""Before the first run: run the probe, warn of what it shows, and estimate how long the comparison takes."""

import json
import math
import shlex
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from common.files.probe import Probe
from common.files.reading import as_record
from common.words import count, duration
from comparison.cluster import Cluster
from comparison.judge.projection import device_batch
from comparison.outcomes import Outcome
from comparison.plan.plan import type_flags
from comparison.record import Report
from comparison.run.equivalence import STEPS as CHECK_STEPS
from comparison.run.forked import can_be_forked, seconds_saved
from comparison.run.launch import ask
from comparison.run.machine import describe, manual_commands

LONG = 1800.0  # seconds; for a longer comparison, or over its budget, suggest one with STEPS steps per epoch
STEPS = 100
LEAST_PACE = 0.2  # of forks, if the start of a template takes most of a guess
SCRIPT_SECONDS = 10.0  # guess of a script's run time, until one has ended
CHECK_SHARE = 0.1  # largest share of the comparison's time for a check of the maths that was not asked for


def run_probe(report: Report, shared_flags: list[str]) -> Probe:
    """Measure one device, the loader and the link on their own, as far as the rows need it."""
    settings: Mapping[str, Any] = report.settings
    first, projects = report.first, settings["project"]
    able = [row for row in report.plan if not (row.skip or row.is_script)]
    sizes = {size for row in able for size in (row.planned.batch_size, row.planned.per_device_batch_size)}
    if projects:
        batch = device_batch(report, 1)
        sizes |= {batch, *(device_batch(report, Cluster.parse(cluster).total) for cluster in projects)}
    if projects and settings["scaling"] == "strong":
        sizes |= {batch >> halvings for halvings in range(batch.bit_length()) if not batch % (1 << halvings)}
    swept = {name: list(dict.fromkeys(getattr(row.planned, name) for row in able)) for name in ("model", "num_workers")}
    flags = [*shared_flags, *type_flags({**first.flags, **swept}), "--sizes", *map(str, sorted(sizes))]
    if any(row.stages > 1 for row in able):
        flags += ["--cut", str(-(-first.batch_size // settings["micro_batches"][0]))]
    if projects or (first.device == "gpu" and settings["loader"] == "workers"):
        flags.append("--ceiling")
    if projects or (first.device == "gpu" and len(report.environment["gpus"]) > 1):
        flags.append("--link")
    start = time.perf_counter()
    probe = as_record(json.loads(ask("common.programs.probe", *flags)), Probe)
    return replace(probe, wall_seconds=time.perf_counter() - start)


def loader_warnings(report: Report) -> list[str]:
    """Return a warning for each model whose loader workers are slower than a row's GPUs can train."""
    assert report.probe
    delivered = {loader.num_workers: loader.images_per_second for loader in report.probe.loaders}
    sentences = []
    for planned in (row.planned for row in report.plan if row.planned.device == "gpu"):
        milliseconds = report.probe.step_milliseconds(planned.model).get(planned.per_device_batch_size, math.inf)
        trained, speed = 1000 * planned.batch_size / milliseconds, delivered.get(planned.num_workers, math.inf)
        if not planned.num_workers:
            speed *= planned.shares  # every process loads its own part
        if speed < trained:
            sentences.append(
                f"{count(planned.num_workers, 'loader worker')} deliver {speed:,.0f} images/s, and "
                f"{count(planned.shares, 'GPU')} can train {trained:,.0f} ({planned.model}): these rows would compare "
                "loaders; type --loader resident, or more --num-workers"
            )
    return list(dict.fromkeys(sentences))


def guesses_of(report: Report, **changed: int) -> dict[str, float]:
    """Return a guess of each row's run time in seconds, by name: start-up plus steps as fast as one device's.

    A test batch counts as a third of a step, its forward pass. changed: settings to use instead of the comparison's.
    """
    probe, settings = report.probe, {**report.settings, **changed}

    def guess(row):
        if row.is_script:
            return SCRIPT_SECONDS
        if row.skip:
            return 0.0
        assert probe
        planned = row.planned
        times = probe.step_milliseconds(planned.model)
        if not times:
            return probe.startup_seconds
        nearest = min(times, key=lambda size: abs(size - planned.batch_size))
        trained = min(probe.train_images, (settings["max_steps"] or probe.train_images) * planned.batch_size)
        images = settings["epochs"] * (trained + probe.test_images / 3)
        return probe.startup_seconds + images * times[nearest] / nearest / 1000

    return {row.name: guess(row) for row in report.plan}


def checks_maths(report: Report) -> bool:
    """Return whether to compare the rows' weights with one device's.

    By default that is so if the check takes little of the comparison's time and a row divides the batch or network.
    """
    asked, budget, able = report.settings["check_maths"], report.settings["budget"], report.able
    if asked is not None or not able:
        return bool(asked and able)
    guesses, steps = guesses_of(report), guesses_of(report, epochs=1, max_steps=CHECK_STEPS)
    seconds = 2 * sum(steps[row.name] for row in able)  # twice, for the reference and the slower start of several ranks
    whole = budget or sum(guesses[name] for _, name in report.order)
    return seconds < CHECK_SHARE * whole and any(row.planned.shares > 1 or row.stages > 1 for row in able)


def seconds_left(left: Iterable[tuple[int, str]], outcomes: tuple[Outcome, ...], guesses: dict[str, float]) -> float:
    """Return the seconds that the runs left, (block, name) pairs, may take: a row's mean, or its corrected guess."""
    seen: dict[str, list[float]] = {}
    for outcome in outcomes:
        seen.setdefault(outcome.configuration, []).append(outcome.wall_seconds)
    took = sum(outcome.wall_seconds for outcome in outcomes)
    correction = took / sum(guesses[outcome.configuration] for outcome in outcomes) if outcomes else 1.0
    return sum(statistics.mean(seen[name]) if name in seen else correction * guesses[name] for _, name in left)


def forks_rows(report: Report) -> bool:
    """Return whether rows are forked: all or none, as forks train slower (benchmarks/startup.py)."""
    return all(can_be_forked(row.launched) for row in report.plan if not row.skip)


def pace_of_forks(report: Report, guesses: dict[str, float]) -> float:
    """Return how long the runs left take, relative to the guesses, which count the start of a template in each."""
    guessed = sum(guesses[name] for _, name in report.left)
    forked = guessed and forks_rows(report)
    return max(LEAST_PACE, 1 - seconds_saved() * len(report.left) / guessed) if forked else 1.0


def describe_time_left(report: Report) -> list[str]:
    """Return sentences about the time left, and a faster command if that is long."""
    runs = f"for the {count(len(report.left), 'run')} planned so far"
    until = runs if report.settings["budget"] else "from here on"
    guesses = guesses_of(report)
    seconds = pace_of_forks(report, guesses) * seconds_left(report.left, report.outcomes, guesses)
    guess = "a guess" if report.only_scripts else "a guess from the time of a training step"
    about = f"About {duration(seconds)} {until} ({guess}; every run corrects it)"
    return [about, *_shorter(report)]


def _shorter(report):
    """Return a sentence with a faster command if a long comparison is about to start."""

    def seconds(**changed):
        guesses = guesses_of(report, **changed)
        return sum(guesses[name] for _, name in report.order)

    whole_trainings = report.settings["target_accuracy"] is not None or report.fitted
    expected, few = seconds(), {"epochs": min(2, report.settings["epochs"]), "max_steps": STEPS}
    limit = report.settings["budget"] or LONG
    if whole_trainings or report.outcomes or expected <= limit or seconds(**few) > expected / 2:
        return []
    typed = [word for word in shlex.split(report.command) if word.replace("_", "-") not in ("--dry-run", "--resume")]
    command = shlex.join([*typed, *type_flags(few)])
    return [f"This finds the fastest row in about {duration(seconds(**few))}:\n{command}"]


def print_commands(report: Report) -> None:
    """Print the command of every row, in the order of the table."""
    for row in report.plan:
        skipped = f" (skipped: {row.skip})" if row.skip else ""
        print(f"# {row.label}{skipped}", shlex.join(row.launched), sep="\n")
        if row.nodes > 1:
            print("# the same without SLURM, to be typed on each host", manual_commands(row), sep="\n")


def print_estimate(report: Report, shared_flags: list[str]) -> None:
    """Measure a step and print how long the comparison would take, as shell comments. Needs the data set on disk."""
    settings: Mapping[str, Any] = report.settings
    dataset, root = settings["dataset"], settings["data_root"]
    if max(settings["nodes"]) > 1 or not report.able:
        return
    checks = {check["name"]: check["status"] for check in describe(root, "--dataset", dataset)["checks"]}
    if checks.get(f"data: {dataset}", "ok") != "ok":
        print(f"# For an estimate of the time, put {dataset} into {root} first")
        return
    for sentence in describe_time_left(replace(report, probe=run_probe(report, shared_flags))):
        print("#", sentence.replace("\n", "\n# "))
