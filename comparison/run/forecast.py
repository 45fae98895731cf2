"""Before the first run: what the probe is to measure for these rows, what it says of them, and how long they take."""

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
from comparison.plan.plan import type_flags, with_cut
from comparison.record import Report
from comparison.rows import Configuration, Outcome
from comparison.run.launch import ask
from comparison.run.machine import by_hand, describe

LONG, SHORT = 1800.0, 600.0  # seconds: a shorter command is named where more is expected, and takes so few if it can
SHORTER = (100, 50, 20)  # training steps of an epoch


def run_probe(report: Report, shared_flags: list[str]) -> Probe:
    """Measure what one device, the loader and the link can do alone, as far as these rows need it."""
    settings: Mapping[str, Any] = report.settings
    first, able = report.first, [row for row in report.plan if not row.skip]
    planned = [row.planned for row in able]
    sizes = {size for row in planned for size in (row.batch_size, row.per_device_batch_size)}
    if settings["project"]:
        batch = first.batch_size
        sizes |= {batch // devices for devices in settings["project"]}
        sizes |= {batch >> halvings for halvings in range(batch.bit_length()) if not batch % (1 << halvings)}
    lists = {name: list(dict.fromkeys(getattr(row, name) for row in planned)) for name in ("model", "num_workers")}
    flags = [*shared_flags, *type_flags({**first.flags, **lists}), "--sizes", *map(str, sorted(sizes))]
    if any(row.stages > 1 for row in able):
        flags += ["--cut", str(-(-first.batch_size // settings["micro_batches"][0]))]
    if settings["project"] or (first.device == "gpu" and settings["loader"] == "workers"):
        flags.append("--ceiling")
    if settings["project"] or (first.device == "gpu" and len(report.environment["gpus"]) > 1):
        flags.append("--link")
    start = time.perf_counter()
    probe = as_record(json.loads(ask("common.programs.probe", *flags)), Probe)
    return replace(probe, wall_seconds=time.perf_counter() - start)


def tell_cuts(plan: Iterable[Configuration], probe: Probe) -> None:
    """Print where networks are cut into stages, and by which times."""
    cut = [row for row in plan if row.stages > 1 and not row.skip]
    places = {(row.planned.model, row.stages): with_cut(row, probe).command[1 - row.stages :] for row in cut}
    for (model, stages), blocks in places.items():
        times = [f"{block.block} {block.milliseconds:.1f}" for block in probe.blocks if block.model == model]
        if times:
            print(
                f"{model} in {stages} stages is cut before {', '.join(blocks)}: its blocks take {', '.join(times)} ms"
            )


def starved(report: Report, probe: Probe) -> list[str]:
    """Return for which models the workers deliver fewer images than a row's GPUs train, each as fast as one alone."""
    delivered = {loader.num_workers: loader.images_per_second for loader in probe.loaders}
    sentences = []
    for planned in (row.configuration.planned for row in report.rows if row.configuration.planned.device == "gpu"):
        milliseconds = probe.step_milliseconds(planned.model).get(planned.per_device_batch_size, math.inf)
        trained, speed = 1000 * planned.batch_size / milliseconds, delivered.get(planned.num_workers, math.inf)
        if speed < trained:
            train = "one GPU trains" if planned.shares == 1 else f"{planned.shares} GPUs train"
            sentences.append(
                f"{count(planned.num_workers, 'loader worker')} deliver {speed:,.0f} images/s, of which {train} "
                f"{trained:,.0f} ({planned.model}): these rows would compare loaders; type --loader resident, or more "
                "--num-workers"
            )
    return list(dict.fromkeys(sentences))


def guess_seconds(configuration: Configuration, settings: Mapping[str, Any], probe: Probe) -> float:
    """Return a guess of how long one run may take: start-up, and an epoch's steps as one device alone makes them.

    A test batch counts a third of a step, its forward pass; loader, other devices and the method itself are left out.
    """
    batch = configuration.planned.batch_size
    times = probe.step_milliseconds(configuration.planned.model)
    if not times:
        return probe.startup_seconds
    nearest = min(times, key=lambda size: abs(size - batch))
    seconds_per_image = times[nearest] / nearest / 1000
    trained = min(probe.train_images, (settings["max_steps"] or probe.train_images) * batch)
    return probe.startup_seconds + settings["epochs"] * seconds_per_image * (trained + probe.test_images / 3)


def guesses_of(report: Report, **settings: int) -> dict[str, float]:
    """Return how long one run of every row may take, by its name; settings: of the comparison, that are others now."""
    assert report.probe
    changed = {**report.settings, **settings}
    return {row.name: guess_seconds(row, changed, report.probe) for row in report.plan}


def seconds_left(left: Iterable[tuple[int, str]], outcomes: tuple[Outcome, ...], guesses: dict[str, float]) -> float:
    """Return how long the runs that are left, (block, name) pairs, may take, after the given outcomes.

    A configuration that has run takes as long as before; the others their guess times the mean error of the guesses.
    """
    seen: dict[str, list[float]] = {}
    for outcome in outcomes:
        seen.setdefault(outcome.configuration, []).append(outcome.wall_seconds)
    took = sum(outcome.wall_seconds for outcome in outcomes)
    error = took / sum(guesses[outcome.configuration] for outcome in outcomes) if outcomes else 1.0
    return sum(statistics.mean(seen[name]) if name in seen else error * guesses[name] for _, name in left)


def shorter_command(report: Report) -> str | None:
    """Return, as a sentence, the command that answers the same question in fewer epochs and steps.

    None where the comparison is not long, goes on with what was measured, or is about whole trainings.
    """
    whole_trainings = report.settings.get("target_accuracy") is not None or report.settings.get("fit_batch")
    if whole_trainings or report.outcomes or (expected := _seconds_in_all(report)) <= LONG:
        return None
    epochs = min(2, report.settings["epochs"])
    times = {steps: _seconds_in_all(report, epochs=epochs, max_steps=steps) for steps in SHORTER}
    steps = next((steps for steps, seconds in times.items() if seconds <= SHORT), SHORTER[-1])
    if times[steps] > expected / 2:
        return None
    typed = [word for word in shlex.split(report.command) if word not in ("--dry-run", "--resume")]
    command = shlex.join([*typed, "--epochs", str(epochs), "--max-steps", str(steps)])
    return f"Which row is fastest, this tells in about {duration(times[steps])}:\n{command}"


def _seconds_in_all(report, **settings):
    guesses = guesses_of(report, **settings)
    return sum(guesses[name] for _, name in report.order)


def how_long(report: Report) -> list[str]:
    """Return sentences about the time from here on; where it is long, one with a shorter command."""
    until = (
        f"for the {count(len(report.left), 'run')} planned so far" if report.settings.get("budget") else "from here on"
    )
    seconds = seconds_left(report.left, report.outcomes, guesses_of(report))
    about = f"About {duration(seconds)} {until} (a guess from the time of a training step; every run corrects it)"
    return list(filter(None, (about, shorter_command(report))))


def print_commands(report: Report) -> None:
    """Print the command of every row, in the order of the table, and run none."""
    for row in report.plan:
        skipped = f" (skipped: {row.skip})" if row.skip else ""
        print(f"# {row.label}{skipped}", shlex.join(row.launched), sep="\n")
        if row.nodes > 1:
            print("# the same without SLURM, to be typed on each host", by_hand(row), sep="\n")


def print_estimate(report: Report, shared_flags: list[str]) -> None:
    """Print how long the comparison would take, from a step that is measured now; each line is a shell's comment.

    Nothing is downloaded for that, and of other nodes nothing is told.
    """
    settings: Mapping[str, Any] = report.settings
    dataset, root = settings["dataset"], settings["data_root"]
    if max(settings["nodes"]) > 1:
        return
    found = {check["name"]: check["status"] for check in describe(root)["checks"]}
    if found.get(f"data: {dataset}", "ok") != "ok":
        print(f"# How long it takes is told once {dataset} is in {root}, whole")
        return
    for sentence in how_long(replace(report, probe=run_probe(report, shared_flags))):
        print("#", sentence.replace("\n", "\n# "))
