"""What one row's runs say by themselves: medians, throughput, phases, and what makes them doubtful."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from common.describe import training_seconds
from common.results import PhaseTimes, RunResult
from comparison.quantiles import CONFIDENCE, look_confidence
from comparison.record import Report, Row
from comparison.statistics import EQUAL_WITHIN, Ratio, mean_interval, ratios

UNSTEADY = 0.06  # standard deviation of a row's runs, as a share, from which on it is warned of
MOST_HELD_DOWN = 0.1  # of the time may heat or a limit of the power hold a GPU's clocks down, before that is warned of


@dataclass(frozen=True)
class Memory:
    """Bytes of the device that had the most. peak: median over the runs; lowest, highest: of all runs.

    parts: what is in it, where that is known.
    """

    peak: float
    lowest: int
    highest: int
    parts: dict[str, int]

    @property
    def rest(self) -> float:
        """What is in none of the parts."""
        return self.peak - sum(self.parts.values())


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured.

    Times are geometric means over the runs, as ratios of rows are; for the time per epoch, each run counts with its
    median over the epochs without the warm-up. fastest and slowest are over all those epochs. accuracies: of the runs'
    last epochs, 0..1; none for a method that trains something else on purpose. phases: milliseconds per step, mean
    over the timed epochs of all runs. Startup is the time before the first step, and what the first epoch takes longer.
    """

    runs: int = 0
    epoch_seconds: float | None = None
    epoch_interval: tuple[float, float] | None = None  # of 95 %, around epoch_seconds
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracies: tuple[float, ...] = ()
    total_seconds: float | None = None  # from start to exit of the command
    training_seconds: float | None = None  # of all epochs
    training_interval: tuple[float, float] | None = None  # of 95 %, around training_seconds
    startup_seconds: float | None = None  # median over the runs
    phases: PhaseTimes | None = None
    memory: Memory | None = None
    images_per_joule: float | None = None  # of the energy of its GPUs alone, in the timed epochs

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
        return self.phases.data / self.step_milliseconds


def epoch_seconds(result: RunResult) -> float:
    """Return a run's median seconds per epoch."""
    return statistics.median(epoch.train_seconds for epoch in result.timed_epochs)


def run_seconds(row: Row) -> list[float]:
    """Return the median seconds per epoch of each run that ended well."""
    return [epoch_seconds(result) for result in row.results]


def summarize(row: Row) -> Summary:
    """Return the numbers of one row."""
    seconds = run_seconds(row)
    if not seconds:
        return Summary()
    epochs = [epoch for result in row.results for epoch in result.timed_epochs]
    mean = statistics.geometric_mean(seconds)
    return Summary(
        runs=len(seconds),
        epoch_seconds=mean,
        epoch_interval=mean_interval(seconds),
        fastest_epoch=min(epoch.train_seconds for epoch in epochs),
        slowest_epoch=max(epoch.train_seconds for epoch in epochs),
        images_per_second=epochs[-1].samples / mean,
        accuracies=() if row.times_only else tuple(result.epochs[-1].test_accuracy for result in row.results),
        total_seconds=statistics.geometric_mean(
            outcome.wall_seconds for outcome in row.outcomes if outcome.status == "ok"),
        training_seconds=statistics.geometric_mean(map(training_seconds, row.results)),
        training_interval=mean_interval([training_seconds(result) for result in row.results]),
        startup_seconds=statistics.median(
            result.startup_seconds + max(0.0, result.epochs[0].train_seconds - own)
            for result, own in zip(row.results, seconds, strict=True)),
        phases=PhaseTimes(**{name: statistics.mean(getattr(epoch.phases, name) for epoch in epochs)
                             for name in epochs[0].phases.known}),
        memory=_memory(row.results),
        images_per_joule=_images_per_joule(row),
    )


def _images_per_joule(row):
    """None unless the energy of every GPU of every run is known."""
    runs = [(outcome.result.timed_epochs[-1].samples, [card.joules for card in outcome.cards])
            for outcome in row.outcomes if outcome.status == "ok"]
    if not all(joules and all(joules) for _, joules in runs):
        return None
    return statistics.geometric_mean(samples / sum(joules) for samples, joules in runs)


def _memory(results):
    peaks = [max(result.peak_memory_bytes) for result in results if result.peak_memory_bytes]
    if not peaks:
        return None
    return Memory(statistics.median(peaks), min(peaks), max(peaks), results[0].memory_parts or {})


def block_times(rows: tuple[Row, ...], seconds: Callable[[RunResult], float] = epoch_seconds) -> np.ndarray:
    """Return the seconds of every run that ended well, (blocks, rows), nan where there is none.

    seconds: what of a run is meant.
    """
    cells = {(outcome.block, column): seconds(outcome.result) for column, row in enumerate(rows)
             for outcome in row.outcomes if outcome.status == "ok"}
    blocks = sorted({block for block, _ in cells})
    return np.array([[cells.get((block, column), math.nan) for column in range(len(rows))] for block in blocks])


def asked_seconds(report: Report) -> Callable[[RunResult], float]:
    """Return what of a run the rows are judged by: all training to a target accuracy if one was set, or an epoch."""
    return epoch_seconds if report.settings.get("target_accuracy") is None else training_seconds


def confidence_of(report: Report) -> float:
    """Return with which confidence to judge, so that all looks at the data while they were measured have 95 %."""
    return look_confidence(*zip(*report.looks, strict=True)) if report.looks else CONFIDENCE


def noise_blocks_of(report: Report) -> int | None:
    """Return how many blocks, from the first, tell the noise: with --margin those that said how many there had to be.

    That keeps the intervals true, although the number of blocks depends on the noise (C. Stein, Annals of Mathematical
    Statistics 16, 1945). None for all.
    """
    return report.wanted_blocks if report.settings.get("margin") else None


def ratios_of(
    report: Report, numerator: Row, denominators: list[Row], seconds: Callable[[RunResult], float] = epoch_seconds,
    confidence: float | None = None
) -> list[Ratio]:
    """Return the ratios of the times of one row and each of several; all their intervals together have `confidence`.

    seconds: what of a run is meant; confidence: the report's, unless given. All rows of the report tell the noise, also
    those that stand in for devices that are not there: they train on the same machine, in the same blocks.
    """
    columns = {row.configuration.name: column for column, row in enumerate(report.all_rows)}
    reference, *others = (columns[row.configuration.name] for row in (numerator, *denominators))
    within = report.settings.get("equal_within", EQUAL_WITHIN)
    confidence = confidence or confidence_of(report)
    results = ratios(block_times(report.all_rows, seconds), reference, others, confidence, noise_blocks_of(report))
    return [replace(ratio, disturbed=numerator.disturbed or row.disturbed, equal_within=within)
            for row, ratio in zip(denominators, results, strict=True)]


def ratio_of(
    report: Report, numerator: Row, denominator: Row, seconds: Callable[[RunResult], float] = epoch_seconds
) -> Ratio:
    """Return the ratio of the times of two rows."""
    return ratios_of(report, numerator, [denominator], seconds)[0]


def unsteadiness(row: Row) -> list[str]:
    """Return what makes a row's times doubtful, each with its number, its cause and a remedy."""
    reasons, seconds = [], run_seconds(row)
    if not seconds:
        return reasons
    spread = statistics.stdev(map(math.log, seconds)) if len(seconds) > 1 else 0.0
    if spread > UNSTEADY:
        reasons.append(f"its runs have a standard deviation of {spread:.0%} ({min(seconds):.2f} to {max(seconds):.2f} "
                       "s per epoch): something else used the machine, or it changed its speed; close other programs, "
                       "or give more --repeats or a longer --budget")
    first = [result.epochs[0].train_seconds / median for result, median in zip(row.results, seconds, strict=True)
             if len(result.epochs) > 1]
    if first and statistics.median(first) > 1.5:
        reasons.append(f"its first epoch takes {statistics.median(first):.1f} times as long as the others: warm-up, "
                       "which is left out of the times; give more --epochs, so that more of them count")
    held = max((card.held_down or 0.0 for outcome in row.outcomes for card in outcome.cards), default=0.0)
    if held > MOST_HELD_DOWN:
        reasons.append(f"heat or a limit of the power held a GPU's clocks down for {held:.0%} of the time, so that its "
                       "times say as much about that; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER says which")
    if row.disturbed:
        reasons.append(f"other programs {row.foreign} during a run; close them and run again")
    return reasons
