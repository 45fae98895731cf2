"""What can be derived from raw times: medians, throughput, speed-ups and how sure they are."""

import math
import statistics
from dataclasses import dataclass, replace

import numpy as np

from common.results import EpochRecord, RunResult

CONFIDENCE = 0.95
NO_DIFFERENCE, DISTURBED = "no significant difference", "disturbed"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast (or, of times, as long): the ratio of geometric means, and its 95 % interval if known.

    disturbed: other programs used the machine meanwhile, so that it claims nothing.
    """

    value: float
    low: float | None
    high: float | None
    disturbed: bool = False

    @property
    def words(self) -> str:
        """Faster, slower, neither, disturbed, or not known."""
        if self.disturbed:
            return DISTURBED
        if self.low is None:
            return "no interval: 1 run"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else NO_DIFFERENCE

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured.

    The median is over the runs, each of which counts with its own median over the epochs without the warm-up; fastest
    and slowest are over all those epochs. accuracy: of the last epoch, 0..1, mean over the runs; None for a method that
    trains something else on purpose.
    """

    runs: int = 0
    epoch_seconds: float | None = None
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracy: float | None = None
    total_seconds: float | None = None  # median over the runs, from start to exit of the command


def timed_epochs(result: RunResult) -> list[EpochRecord]:
    """Return the epochs that count for times: all but the first, which warms up, unless it is the only one."""
    return list(result.epochs[1:] or result.epochs)


def run_seconds(row) -> list[float]:
    """Return, for each run of a record.Row that ended well, its median seconds per epoch."""
    return [statistics.median(epoch.train_seconds for epoch in timed_epochs(result)) for result in row.results]


def summarize(row) -> Summary:
    """Return the numbers of one record.Row."""
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
    )


def ratio(numerator: list[float], denominator: list[float]) -> Ratio:
    """Return the ratio of the geometric means of two independent samples of positive numbers.

    Its interval is Welch's on the logarithms (B. L. Welch, Biometrika 34, 1947), with the degrees of freedom after
    Welch and Satterthwaite; None where a sample has less than two values.
    """
    first, second = ([math.log(value) for value in sample] for sample in (numerator, denominator))
    centre = statistics.mean(first) - statistics.mean(second)
    if min(len(first), len(second)) < 2:
        return Ratio(math.exp(centre), None, None)
    parts = [statistics.variance(sample) / len(sample) for sample in (first, second)]
    if not sum(parts):
        return Ratio(math.exp(centre), math.exp(centre), math.exp(centre))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(sample) - 1)
                                    for part, sample in zip(parts, (first, second), strict=True))
    margin = t_quantile(freedom) * math.sqrt(sum(parts))
    return Ratio(math.exp(centre), math.exp(centre - margin), math.exp(centre + margin))


def ratio_of(numerator, denominator) -> Ratio:
    """Return the ratio of the seconds per epoch of two record.Rows."""
    disturbed = numerator.disturbed or denominator.disturbed
    return replace(ratio(run_seconds(numerator), run_seconds(denominator)), disturbed=disturbed)


def t_quantile(freedom: float) -> float:
    """Return the t with P(-t < T < t) = CONFIDENCE for Student's T with `freedom` >= 1 degrees of freedom.

    With T = sqrt(freedom) · tan(angle), the angle has a density proportional to cos(angle)^(freedom - 1): a bounded
    integral, here by the trapezoidal rule to about 1e-6.
    """
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(freedom) * math.tan(np.interp(CONFIDENCE * area[-1], area, angles))


def phase_milliseconds(row) -> dict[str, float]:
    """Return milliseconds per step of every phase: the mean over the timed epochs of all runs of a record.Row."""
    epochs = [epoch.phases for result in row.results for epoch in timed_epochs(result)]
    return {name: statistics.mean(getattr(phases, name) for phases in epochs) for name in vars(epochs[0])}


def unsteadiness(row) -> list[str]:
    """Return what makes a record.Row's times doubtful, each with its number, its cause and a remedy."""
    found, seconds = [], run_seconds(row)
    if not seconds:
        return found
    spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
    if spread > 0.10:
        found.append(f"its runs differ by {spread:.0%} ({min(seconds):.2f} to {max(seconds):.2f} s per epoch): "
                     "something else used the machine, or it changed its speed; close other programs, or give more "
                     "--repeats")
    first = [result.epochs[0].train_seconds / median for result, median in zip(row.results, seconds, strict=True)
             if len(result.epochs) > 1]
    if first and statistics.median(first) > 1.5:
        found.append(f"its first epoch takes {statistics.median(first):.1f} times as long as the others: warm-up, "
                     "which is left out of the times; give more --epochs, so that more of them count")
    if row.disturbed:
        found.append(f"other programs kept {row.foreign_cores:.1f} of {row.cores} cores busy during a run; close them "
                     "and run again")
    return found
