"""What the runs of each row say by themselves: times, throughput, phases, costs, and what makes them doubtful."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter

import numpy as np

from common.files.describe import training_seconds
from common.files.results import EpochRecord, PhaseTimes, RunResult
from comparison.judge.peaks import utilisation
from comparison.judge.statistics import (
    CONFIDENCE,
    EQUAL_WITHIN,
    Array,
    Ratio,
    Table,
    adjusted_means,
    block_dependence,
    look_confidence,
    mean_interval,
    residual_deviation,
    residuals,
    resolution,
    two_modes,
)
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import Outcome, Row

UNSTEADY = 0.06  # standard deviation of a row's runs, as a share, from which on it is warned of
STALLED = 0.05  # by which a run's mean epoch and its median one differ, from which on it is warned of
LONG_FIRST = 1.5  # times as long as the others does a first epoch take that is warned of
PER_EPOCH, WHOLE_RUN, TO_TARGET, PER_SAMPLES = "epoch", "run", "target", "samples"
A_THOUSAND = 1000  # samples, by whose time scripts are compared: they have no epochs in common
CHANCE = 0.01  # below which what the noise looks like is no chance
MOST_HELD_DOWN = 0.1  # of the time may heat or a limit of the power hold a GPU's clocks down, before that is warned of


@dataclass(frozen=True)
class Finding:
    """Something that measurements show. values: what stands in its sentence (comparison.show.sentences has the words).

    of: "step" or "run" where it is a part of the account of one, and its sentence only a clause; "machine" where it is
    what the machine withholds. told: which sentence
    tells it, where its kind has several.
    """

    kind: str
    values: Mapping[str, object] = field(default_factory=dict)
    of: str = ""
    told: str = ""


@dataclass(frozen=True)
class Memory:
    """Bytes of the device that had the most. peak: median over the runs.

    together: the sum of all devices' peaks, median over the runs. parts: what is in it, where that is known.
    """

    peak: float
    together: float
    parts: dict[str, int]

    @property
    def rest(self) -> float:
        """What is in none of the parts."""
        return self.peak - sum(self.parts.values())


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured.

    Times are geometric means over the runs, adjusted to all blocks where some runs failed, so that the quotient of two
    rows' is their ratio; for the time per epoch, each run counts with its mean over the epochs without the warm-up.
    fastest and slowest are over all those epochs. asked_seconds: what rows are judged by (see Measures).
    accuracies: of the runs' last epochs, 0..1; none for a method that trains something else on purpose. phases:
    milliseconds per step, mean over the timed epochs of all runs.
    """

    runs: int = 0
    asked_seconds: float | None = None
    epoch_seconds: float | None = None
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracies: tuple[float, ...] = ()
    total_seconds: float | None = None  # from start to exit of the command
    training_seconds: float | None = None  # of all epochs
    training_interval: tuple[float, float] | None = None  # of 95%, around training_seconds
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    memory: Memory | None = None
    images_per_joule: float | None = None  # of the energy of its GPUs alone, in the timed epochs
    mfu: float | None = None  # model FLOPs utilisation, 0..1: see utilisation()
    warnings: tuple[Finding, ...] = ()  # what makes its times doubtful

    @property
    def accuracy(self) -> float | None:
        """The mean over the runs."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def step_milliseconds(self) -> float:
        """All phases of a step together; needs a result."""
        return sum(self.phases.known.values())

    @property
    def waiting_share(self) -> float:
        """Which part of a step waits for data, 0..1; needs a result."""
        return self.phases.known.get("data", 0.0) / self.step_milliseconds


@dataclass(frozen=True)
class Resolution:
    """How small a difference the comparison can find, in four of five cases, as a share.

    deviation: the standard deviation of the times of runs, without what blocks and rows have in common, as a share.
    differences: by number of blocks. dependence: the correlation of a block's noise with the next one's, where that is
    no chance: then the blocks tell less than as many independent ones.
    """

    deviation: float
    differences: dict[int, float]
    dependence: float | None = None


@dataclass(frozen=True)
class WallTime:
    """The wall time to what is wanted, in seconds, of every row. kind: PER_EPOCH, with the evaluation; WHOLE_RUN, from
    the command to its end; TO_TARGET, the same where the target accuracy ends it; or PER_SAMPLES, of A_THOUSAND.

    means: by configuration's name, geometric, adjusted to all blocks.
    """

    kind: str
    times: Table
    means: dict[str, float]


@dataclass(frozen=True)
class Measures:
    """What all runs of a report say. asked: what its rows are judged by, the seconds of an image or, with a target
    accuracy, of all training; images: the seconds of an image; accuracies: in percent, of the rows that learn.

    wall_time: what decides; per_epoch: the same of an epoch. summaries: by configuration's name. resolution: None where
    there are too few runs to tell.
    """

    asked: Table
    images: Table
    accuracies: Table
    wall_time: WallTime
    per_epoch: WallTime
    summaries: dict[str, Summary]
    resolution: Resolution | None


def run_seconds(row: Row) -> list[float]:
    """Return the mean seconds per epoch of each run that ended well."""
    return [statistics.fmean(epoch.train_seconds for epoch in result.timed_epochs) for result in row.results]


def steady_seconds(row: Row, epochs: Sequence[EpochRecord]) -> list[float]:
    """Return the seconds that epochs of a row would take if they were equal: of a script's slices, of A_THOUSAND."""
    if not row.configuration.is_script:
        return [epoch.train_seconds for epoch in epochs]
    return [A_THOUSAND * epoch.train_seconds / epoch.samples for epoch in epochs]


def done(row: Row) -> list[tuple[Outcome, RunResult]]:
    """Return the runs that ended well, with their results."""
    return [(run, run.result) for run in row.outcomes if run.result and run.status == "ok"]


def image_seconds(outcome: Outcome, result: RunResult) -> float:
    """Return a run's mean seconds per image: epochs of rows with other batches or ranks may hold other images."""
    epochs = result.timed_epochs
    return sum(epoch.train_seconds for epoch in epochs) / sum(epoch.samples for epoch in epochs)


def block_times(rows: Sequence[Row], measure: Callable[[Outcome, RunResult], float] = image_seconds) -> Array:
    """Return what is measured of every run that ended well, (blocks, rows), nan where there is none."""
    cells = {(run.block, column): measure(run, result) for column, row in enumerate(rows) for run, result in done(row)}
    blocks = sorted({block for block, _ in cells})
    values = [[cells.get((block, column), math.nan) for column in range(len(rows))] for block in blocks]
    return np.array(values).reshape(len(blocks), len(rows))


def confidence_of(report: Report) -> float:
    """Return with which confidence to judge, so that all looks at the data while they were measured have 95%."""
    return look_confidence(*zip(*report.looks, strict=True)) if report.looks else CONFIDENCE


def measure(report: Report) -> Measures:
    """Return what all runs of a report say.

    All rows tell the noise, also those that stand in for devices that are not there: they train on the same machine, in
    the same blocks. With --margin the blocks tell it that said how many there had to be: so the intervals are true,
    although the number of blocks depends on the noise (C. Stein, Annals of Mathematical Statistics 16, 1945).
    """
    rows, settings = report.all_rows, report.settings
    judged = (
        confidence_of(report),
        report.wanted_blocks if settings.get("margin") else None,
        settings["equal_within"] or EQUAL_WITHIN,
        frozenset(row.configuration.name for row in rows if row.disturbed),
    )

    def table(rows: Sequence[Row], measure: Callable[[Outcome, RunResult], float]) -> Table:
        return Table(tuple(row.configuration.name for row in rows), block_times(rows, measure), *judged)

    images, training = table(rows, image_seconds), table(rows, lambda _, result: training_seconds(result))
    total = table(rows, lambda outcome, _: outcome.wall_seconds)
    asked = images if settings.get("target_accuracy") is None else training
    learning = [row for row in report.rows if row.learns]
    accuracies = table(learning, lambda _, result: 100 * result.epochs[-1].test_accuracy)
    means = zip(*(adjusted_means(some.values) for some in (asked, images, training, total)), strict=True)
    columns = zip(rows, training.values.T, means, strict=True)
    summaries = {row.configuration.name: _summary(row, own, *map(float, numbers)) for row, own, numbers in columns}
    flop = {model.model: model.flop for model in report.probe.models} if report.probe else {}
    for row in rows:
        own = summaries[row.configuration.name]
        mfu = utilisation(row, own.images_per_second or 0.0, flop.get(row.configuration.planned.model))
        summaries[row.configuration.name] = replace(own, mfu=mfu)
    for name, noise in zip(images.columns, residuals(images.values).T, strict=True):
        found = _modes(noise[np.isfinite(noise)], CHANCE / len(rows))
        summaries[name] = replace(summaries[name], warnings=(*summaries[name].warnings, *found))
    per_epoch = _wall_time(PER_EPOCH, table(rows, partial(_epoch_seconds, _images_of_epoch(report))))
    kind = _what_decides(report)
    wall_time = _wall_time(kind, per_epoch.times if kind in (PER_EPOCH, PER_SAMPLES) else total)
    resolved = _resolution(asked, len(report.rows) - 1)
    return Measures(asked, images, accuracies, wall_time, per_epoch, summaries, resolved)


def _wall_time(kind: str, times: Table) -> WallTime:
    return WallTime(kind, times, dict(zip(times.columns, map(float, adjusted_means(times.values)), strict=True)))


def _images_of_epoch(report: Report) -> int:
    """How many images a whole epoch has, also where --max-steps cut the ones that were run; of scripts, A_THOUSAND."""
    if report.only_scripts:
        return A_THOUSAND
    trained = (result.epochs[-1].samples for row in report.all_rows for result in row.results)
    return report.probe.train_images if report.probe else max(trained, default=0)


def _epoch_seconds(images: int, outcome: Outcome, result: RunResult) -> float:
    known = [epoch.evaluate_seconds for epoch in result.epochs if not math.isnan(epoch.evaluate_seconds)]
    return images * image_seconds(outcome, result) + (statistics.fmean(known) if known else 0.0)


def _what_decides(report: Report) -> str:
    """Whole runs, but where their epochs were cut, as a sample of a longer training, or are so many that the rest of
    the run takes no longer than times may differ and be practically equal."""
    if report.only_scripts:
        return PER_SAMPLES
    if report.settings.get("target_accuracy") is not None:
        return TO_TARGET
    rows = [row for row in report.rows if not (row.simulated or row.configuration.is_script)]
    fixed = [_fixed_share(result) for row in rows for result in row.results]
    short = max(fixed, default=0.0) > (report.settings["equal_within"] or EQUAL_WITHIN)
    return WHOLE_RUN if short and not report.settings["max_steps"] else PER_EPOCH


def _fixed_share(result: RunResult) -> float:
    """Which part of a run its start-up is, and what the first epoch takes longer than the others."""
    epochs = result.epochs
    mean = statistics.fmean(epoch.train_seconds for epoch in result.timed_epochs)
    fixed = result.startup_seconds + max(0.0, epochs[0].train_seconds - mean)
    return fixed / (result.startup_seconds + sum(epoch.train_seconds + epoch.evaluate_seconds for epoch in epochs))


def _resolution(asked: Table, comparisons: int) -> Resolution | None:
    times = asked.values[:, np.isfinite(asked.values).any(axis=0)]
    noise = residual_deviation(times) if times.size else None
    if noise is None:
        return None
    deviation, (measured, columns) = noise[0], times.shape
    numbers = sorted({measured, 10})
    shares = [resolution(deviation, blocks, columns, comparisons, asked.confidence) for blocks in numbers]
    found = {blocks: share for blocks, share in zip(numbers, shares, strict=True) if share < math.inf}
    dependence, chance = block_dependence(times) or (0.0, 1.0)
    return Resolution(deviation, found, dependence if chance < CHANCE and dependence > 0 else None)


def _summary(row: Row, trainings: Array, asked: float, per_image: float, training: float, total: float) -> Summary:
    """The numbers of one row, given the seconds of its trainings, and the mean seconds for what was asked, an image,
    the training and the command."""
    seconds = run_seconds(row)
    if not seconds:
        return Summary()
    epochs = [epoch for result in row.results for epoch in result.timed_epochs]
    mean = per_image * statistics.fmean(epoch.samples for epoch in epochs)
    phases = {name: statistics.mean(epoch.phases.known[name] for epoch in epochs) for name in epochs[0].phases.known}
    return Summary(
        runs=len(seconds),
        asked_seconds=asked,
        epoch_seconds=mean,
        fastest_epoch=min(epoch.train_seconds for epoch in epochs),
        slowest_epoch=max(epoch.train_seconds for epoch in epochs),
        images_per_second=1 / per_image,
        accuracies=() if not row.learns else tuple(result.epochs[-1].test_accuracy for result in row.results),
        total_seconds=total,
        training_seconds=training,
        training_interval=mean_interval(trainings, training),
        phases=PhaseTimes(**phases),
        memory=_memory(row.results),
        images_per_joule=_images_per_joule(row),
        warnings=tuple(unsteadiness(row)),
    )


def _images_per_joule(row: Row) -> float | None:
    """None unless the energy of every GPU of every run is known."""
    runs = [(result.timed_epochs[-1].samples, [card.joules or 0.0 for card in run.cards]) for run, result in done(row)]
    if not all(joules and all(joules) for _, joules in runs):
        return None
    return statistics.geometric_mean(samples / sum(joules) for samples, joules in runs)


def _memory(results: Sequence[RunResult]) -> Memory | None:
    devices = [result.peak_memory_bytes for result in results if result.peak_memory_bytes]
    if not devices:
        return None
    peak, together = (statistics.median(map(combine, devices)) for combine in (max, sum))
    parts = results[0].memory_parts or {}
    known = parts if any(parts.values()) else {}  # no network has no parameters
    return Memory(peak, together, known)


@dataclass(frozen=True)
class Costs:
    """What a method's parts (see comparison.methods.Parts) tell apart, as ratios of times; None if not measured.

    wrapper: one rank ÷ without the method. contention: all ranks without exchange ÷ one rank. exchange: with it ÷
    without it.
    """

    wrapper: Ratio | None = None
    contention: Ratio | None = None
    exchange: Ratio | None = None


def find_costs(report: Report, row: Row, images: Table) -> Costs:
    """Return the costs of a row whose method has parts, from the rows of those that are equal to it otherwise."""
    parts = method_of(row.configuration.method).parts
    if not parts or not row.results:
        return Costs()
    batch = "per_device_batch_size" if report.settings["scaling"] == "weak" else "batch_size"
    settings = attrgetter("model", batch, "num_workers", "threads")
    rows = [report.partner(row, method) for method in (parts.without, parts.one_rank, parts.no_exchange)] + [row]
    names = [
        other.configuration.name
        if other and other.results and settings(other.configuration.planned) == settings(row.configuration.planned)
        else ""
        for other in rows
    ]
    costs = (images.ratios(more, [less])[0] if less and more else None for less, more in pairwise(names))
    return Costs(*costs)


def unsteadiness(row: Row) -> list[Finding]:
    """Return what makes a row's times doubtful."""
    seconds = [statistics.fmean(steady_seconds(row, result.timed_epochs)) for result in row.results]
    if not seconds:
        return []
    reasons = []
    spread = statistics.stdev(map(math.log, seconds)) if len(seconds) > 1 else 0.0
    if spread > UNSTEADY:
        told = "spread of slices" if row.configuration.is_script else ""
        reasons.append(Finding("spread", {"n": spread, "low": min(seconds), "high": max(seconds)}, told=told))
    for outcome, result in done(row):
        called, times = "slice" if row.configuration.is_script else "epoch", steady_seconds(row, result.timed_epochs)
        if odd := _odd_epochs(result.timed_epochs, times, called):
            reasons.append(Finding("stalled", {"n": outcome.block, "epochs": odd}))
    runs = zip(row.results, seconds, strict=True)
    first = [result.epochs[0].train_seconds / mean for result, mean in runs if len(result.epochs) > 1]
    if first and statistics.median(first) > LONG_FIRST and not row.configuration.is_script:
        reasons.append(Finding("long first epoch", {"x": statistics.median(first)}))
    held = max((card.held_down or 0.0 for outcome in row.outcomes for card in outcome.cards), default=0.0)
    if held > MOST_HELD_DOWN:
        reasons.append(Finding("held down", {"n": held}))
    return reasons


def _modes(noise: Array, chance: float) -> list[Finding]:
    """That a row's times are of two kinds, where normal noise looks so with less than this chance."""
    told = two_modes(list(noise))
    return [Finding("two modes", {"n": told[0]})] if told and told[1] < chance else []


def _odd_epochs(epochs: Sequence[EpochRecord], seconds: Sequence[float], called: str) -> Finding | None:
    """Which epochs, or slices, took so much longer (or shorter) that a run's mean is not its median, if any."""
    mean, median = statistics.fmean(seconds), statistics.median(seconds)
    if abs(mean / median - 1) <= STALLED:
        return None
    sign = 1 if mean > median else -1
    odd = [(epoch, own) for epoch, own in zip(epochs, seconds, strict=True) if sign * (own / median - 1) > STALLED]
    numbers, times = tuple(epoch.epoch for epoch, _ in odd), tuple(own for _, own in odd)
    return Finding(f"odd {called}" if len(odd) == 1 else f"odd {called}s", {"n": numbers, "s": times, "m": median})
