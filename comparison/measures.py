"""What one row's runs say by themselves: medians, throughput, phases, and what makes them doubtful."""

import statistics
from dataclasses import dataclass, replace

from common.describe import training_seconds
from common.results import EpochRecord, PhaseTimes, RunResult
from comparison.record import Row
from comparison.statistics import Ratio, ratio


@dataclass(frozen=True)
class Memory:
    """Bytes of the device that had the most. peak: median over the runs. parts: what is in it, where that is known."""

    peak: float
    parts: dict[str, int]

    @property
    def rest(self) -> float:
        """What is in none of the parts."""
        return self.peak - sum(self.parts.values())


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured.

    The median is over the runs, each of which counts with its own median over the epochs without the warm-up; fastest
    and slowest are over all those epochs. accuracy: of the last epoch, 0..1, mean over the runs; None for a method that
    trains something else on purpose. phases: milliseconds per step, mean over the timed epochs of all runs. Startup
    is the time before the first step, and what the first epoch takes longer.
    """

    runs: int = 0
    epoch_seconds: float | None = None
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracy: float | None = None
    total_seconds: float | None = None  # median over the runs, from start to exit of the command
    training_seconds: float | None = None  # median over the runs, of all epochs
    startup_seconds: float | None = None  # median over the runs
    phases: PhaseTimes | None = None
    memory: Memory | None = None

    @property
    def step_milliseconds(self) -> float:
        """All phases of a step together; needs a result."""
        return sum(self.phases.known.values())

    @property
    def waiting_share(self) -> float:
        """Which part of a step waits for data, 0..1; needs a result."""
        return self.phases.data / self.step_milliseconds


def timed_epochs(result: RunResult) -> list[EpochRecord]:
    """Return the epochs that count for times: all but the first, which warms up, unless it is the only one."""
    return list(result.epochs[1:] or result.epochs)


def run_seconds(row: Row) -> list[float]:
    """Return, for each run that ended well, its median seconds per epoch."""
    return [statistics.median(epoch.train_seconds for epoch in timed_epochs(result)) for result in row.results]


def summarize(row: Row) -> Summary:
    """Return the numbers of one row."""
    seconds = run_seconds(row)
    if not seconds:
        return Summary()
    epochs = [epoch for result in row.results for epoch in timed_epochs(result)]
    median = statistics.median(seconds)
    return Summary(
        runs=len(seconds),
        epoch_seconds=median,
        fastest_epoch=min(epoch.train_seconds for epoch in epochs),
        slowest_epoch=max(epoch.train_seconds for epoch in epochs),
        images_per_second=epochs[-1].samples / median,
        accuracy=None if row.times_only else statistics.mean(
            result.epochs[-1].test_accuracy for result in row.results),
        total_seconds=statistics.median(outcome.wall_seconds for outcome in row.outcomes if outcome.status == "ok"),
        training_seconds=statistics.median(training_seconds(result) for result in row.results),
        startup_seconds=statistics.median(
            result.startup_seconds + max(0.0, result.epochs[0].train_seconds - own)
            for result, own in zip(row.results, seconds, strict=True)),
        phases=PhaseTimes(**{name: statistics.mean(getattr(epoch.phases, name) for epoch in epochs)
                             for name in epochs[0].phases.known}),
        memory=_memory(row.results),
    )


def _memory(results):
    peaks = [max(result.peak_memory_bytes) for result in results if result.peak_memory_bytes]
    return Memory(statistics.median(peaks), results[0].memory_parts or {}) if peaks else None


def ratio_of(numerator: Row, denominator: Row) -> Ratio:
    """Return the ratio of the seconds per epoch of two rows."""
    disturbed = numerator.disturbed or denominator.disturbed
    return replace(ratio(run_seconds(numerator), run_seconds(denominator)), disturbed=disturbed)


def unsteadiness(row: Row) -> list[str]:
    """Return what makes a row's times doubtful, each with its number, its cause and a remedy."""
    reasons, seconds = [], run_seconds(row)
    if not seconds:
        return reasons
    spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
    if spread > 0.10:
        reasons.append(f"its runs differ by {spread:.0%} ({min(seconds):.2f} to {max(seconds):.2f} s per epoch): "
                       "something else used the machine, or it changed its speed; close other programs, or give more "
                       "--repeats")
    first = [result.epochs[0].train_seconds / median for result, median in zip(row.results, seconds, strict=True)
             if len(result.epochs) > 1]
    if first and statistics.median(first) > 1.5:
        reasons.append(f"its first epoch takes {statistics.median(first):.1f} times as long as the others: warm-up, "
                       "which is left out of the times; give more --epochs, so that more of them count")
    if row.disturbed:
        reasons.append(f"other programs kept {row.foreign_cores:.1f} of {row.cores} cores busy during a run; close "
                       "them and run again")
    return reasons
