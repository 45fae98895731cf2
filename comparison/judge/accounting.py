"""By how much times differ from what was expected of them, and in which parts: pure mathematics that knows no rows."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.judge.quantiles import CONFIDENCE, t_quantile

OUTSIDE = "outside"


@dataclass(frozen=True)
class Excess:
    """By how much a time is longer than expected (shorter, if negative): the mean over the blocks, and its interval.

    low, high: None with one block.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def proved(self) -> bool:
        """Whether its interval lies on one side of 0."""
        return self.low is not None and (self.low > 0 or self.high < 0)

    @property
    def margin(self) -> float | None:
        """Half of its interval, which is symmetric."""
        return None if self.low is None else (self.high - self.low) / 2

    def times(self, factor: float) -> "Excess":
        """Return it, with its interval, times a number that is known exactly."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Excess(self.name, self.value * factor, low, high)

    def __str__(self) -> str:
        return f"{abs(self.value):.{self._decimals}f}" + (
            "" if self.low is None else f" ± {self.margin:.{self._decimals}f}"
        )

    @property
    def _decimals(self):
        return 1 if abs(self.value) >= 1 else 2


@dataclass(frozen=True)
class Account:
    """How a time differs from what was expected, and the parts of that difference; all in one unit.

    value, expected: means over the blocks in which both were measured; total: value - expected, with its own interval.
    parts: add up to total.value, in the order of a step or run; their intervals hold together.
    """

    value: float
    expected: float
    total: Excess
    parts: tuple[Excess, ...]

    @property
    def proved(self) -> list[Excess]:
        """The parts whose interval lies on one side of 0, the largest first."""
        return sorted((part for part in self.parts if part.proved), key=lambda part: -abs(part.value))


@dataclass(frozen=True)
class Time:
    """One measured time, and the parts of it that are known: together at most as long."""

    whole: float
    parts: dict[str, float]


def make_account(pairs: Sequence[tuple[Time, Time]], share: float) -> Account:
    """Return how the first times of all pairs differ from `share` x the second ones, on average.

    A pair is one block: the row's time and the baseline's. A part that is not known of all times is in "outside", with
    all else that is in no part. Intervals are Student's, on the blocks' differences: of the total with 95 %
    confidence; of each of k parts with 1 - 5 %/k, so that all of them together have 95 % (Bonferroni's inequality).
    """
    known = set.intersection(*({*time.parts} for pair in pairs for time in pair))
    names = [name for name in pairs[0][0].parts if name in known]
    differences = {
        **{name: [own.parts[name] - share * other.parts[name] for own, other in pairs] for name in names},
        OUTSIDE: [_outside(own, names) - share * _outside(other, names) for own, other in pairs],
    }
    whole = [own.whole for own, _ in pairs]
    expected = [share * other.whole for _, other in pairs]
    total = mean_excess("total", [own - other for own, other in zip(whole, expected, strict=True)])
    parts = (mean_excess(name, values, len(differences)) for name, values in differences.items())
    return Account(statistics.mean(whole), statistics.mean(expected), total, tuple(parts))


def _outside(time, names):
    return time.whole - math.fsum(time.parts[name] for name in names)


def mean_excess(name: str, values: Sequence[float], claims: int = 1) -> Excess:
    """Return the mean of the blocks' values with Student's interval, which holds as one of so many with 95 %."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return Excess(name, mean)
    confidence = 1 - (1 - CONFIDENCE) / claims
    margin = t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Excess(name, mean, mean - margin, mean + margin)
