"""Ratios and differences with confidence intervals, and the critical values behind the intervals.

The critical values are computed here, so scipy is not required.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from comparison.record import EQUAL_WITHIN
from comparison.words import say

Array = NDArray[np.float64]

CONFIDENCE = 0.95
SPENDING = 1.5  # see look_confidence()
LEAST_ERROR = 1e-6  # the error that even the earliest look may spend
PATHS, RARE = 200_000, 50  # see look_confidence()
FASTER, SLOWER, EQUAL, UNDECIDED = say("faster"), say("slower"), say("practically equal"), say("undecided")
DISTURBED, TOO_FEW = say("disturbed"), say("no interval: too few runs")
_gauss_legendre = functools.cache(np.polynomial.legendre.leggauss)  # takes 10 ms, a quarter of an analysis


@functools.lru_cache(maxsize=8)
def _student(freedom: float) -> tuple[Array, Array]:
    """Return angles, and the probability that |T| < sqrt(freedom) · tan(angle) for each.

    T is Student's with `freedom` >= 1 degrees of freedom. With T = sqrt(freedom) · tan(angle), the angle has a density
    proportional to cos(angle)^(freedom - 1). The integral is bounded, and is computed by the trapezoidal rule.
    """
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return angles, area / area[-1]


@functools.cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the t with P(-t < T < t) = confidence for Student's T with `freedom` >= 1 degrees of freedom."""
    angles, probabilities = _student(freedom)
    return math.sqrt(freedom) * math.tan(np.interp(confidence, probabilities, angles))


@functools.cache
def dunnett_quantile(comparisons: int, freedom: int, confidence: float = CONFIDENCE, correlation: float = 0.5) -> float:
    """Return the d with P(all |T| < d) = confidence for `comparisons` comparisons with one reference.

    Each T is a normal variable divided by a common estimate of the standard deviation with `freedom` degrees of
    freedom. Any two of the normal variables have the given correlation, which is 1/2 with equally many runs of each
    row (C. W. Dunnett, Biometrics 20, 1964). Gauss-Legendre quadrature over the estimate of the standard deviation and
    over the common part of the normal variables.
    """
    nodes, weights = _gauss_legendre(100)
    top = math.sqrt(1 + 12 / math.sqrt(freedom) + 40 / freedom)  # less than 1e-9 of the chi distribution is above
    roots = (nodes + 1) / 2
    deviations = top * roots**3  # dense near 0, where T is large
    exponents = (freedom - 1) * np.log(deviations) - freedom * deviations**2 / 2
    density = weights * roots**2 * np.exp(exponents - exponents.max())
    density /= density.sum()
    nodes, weights = (part[30:] for part in _gauss_legendre(60))  # the integrand is symmetric
    common = 8 * nodes
    shares = weights * np.exp(-(common**2) / 2)
    shares /= shares.sum()
    loading, rest = math.sqrt(correlation), math.sqrt(1 - correlation)

    def probability(critical: float) -> float:
        reach = critical * deviations[:, None]
        lower, upper = ((loading * common + edge) / rest for edge in (-reach, reach))
        inside = np.interp(upper, *_normal_table()) - np.interp(lower, *_normal_table())
        return float(density @ inside**comparisons @ shares)

    low, high = 0.0, 1.0
    while probability(high) < confidence:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < confidence else (low, middle)
    return high


def any_reference(confidence: float, rows: int, families: int = 1) -> float:
    """Return the confidence for the ratios of `rows` rows to one that their times choose, e.g. the fastest.

    With it, the ratios to each possible reference hold simultaneously, in several families together. A ratio of two
    rows is one to either of them, so errors add up to at most half of those of all references (Boole's inequality).
    """
    return 1 - 2 * (1 - confidence) / (rows * families)


@functools.cache
def look_confidence(blocks: tuple[int, ...], spent: tuple[float, ...], columns: int) -> float:
    """Return the confidence to use at the last of several looks at the data, so that all looks together have 95%.

    blocks: the number of blocks at each look, increasing. spent: the share of the whole time used by each look, up to
    1. Its power SPENDING is the share of the error that may be spent by then (K. Kim and D. L. DeMets, Biometrika 74,
    1987). A higher power, or O'Brien and Fleming's function, takes up to twice as many blocks to decide, as Student's
    quantiles for a small error are very large after a few blocks; a lower one finds fewer small differences.
    columns: rows that the noise is estimated from. Student's t of a growing sample crosses boundaries more often than
    the Brownian motion of textbooks, so the boundaries come from PATHS simulated ones; where fewer than RARE of them
    would cross, the look spends its error as if it were the only one.
    """
    random, errors = np.random.default_rng(0), [0.0]
    sums, squares, before, confidence = np.zeros(PATHS), np.zeros(PATHS), 0, CONFIDENCE
    for share in spent:
        errors.append(max(errors[-1] + LEAST_ERROR, (1 - CONFIDENCE) * min(1.0, share) ** SPENDING))
    for count, (earlier, error) in zip(blocks, pairwise(errors), strict=True):
        more, freedom = count - before, (columns - 1) * count - 1
        steps = math.sqrt(more) * random.standard_normal(len(sums))
        residuals = 2 * random.standard_gamma(((columns - 1) * more - 1) / 2, len(sums))  # a chi-squared variable
        sums, squares, before = sums + steps, squares + steps**2 / more + residuals, count
        student = np.abs(sums) / np.sqrt((count * squares - sums**2) / freedom)
        confidence, crossing = 1 - (error - earlier), round(PATHS * (error - earlier))
        if crossing >= RARE:
            bound = np.partition(student, -crossing)[-crossing]
            angles, probabilities = _student(freedom)
            confidence = float(np.interp(math.atan(bound / math.sqrt(freedom)), angles, probabilities))
            sums, squares = sums[student < bound], squares[student < bound]
    return confidence


@functools.cache
def _normal_table() -> tuple[Array, Array]:
    points = np.linspace(-9, 9, 20_001)
    return points, np.array([math.erfc(-point / math.sqrt(2)) / 2 for point in points])


@dataclass(frozen=True)
class Ratio:
    """A ratio of geometric means (how many times as fast or, for times, as long), with its interval if known.

    disturbed: other programs used the machine meanwhile, so the ratio supports no claim. equal_within: the share by
    which two times may differ and still be equal in practice.
    """

    value: float
    low: float | None = None
    high: float | None = None
    disturbed: bool = False
    equal_within: float = EQUAL_WITHIN

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval to show: none if it is unknown, or covers a disturbance."""
        return None if self.low is None or self.high is None or self.disturbed else (self.low, self.high)

    @property
    def words(self) -> str:
        """Faster, slower, practically equal or undecided; or why the ratio supports no claim."""
        if not self.interval:
            return DISTURBED if self.disturbed else TOO_FEW
        low, high = self.interval
        if 1 / (1 + self.equal_within) <= low and high <= 1 + self.equal_within:
            return EQUAL
        return FASTER if low > 1 else SLOWER if high < 1 else UNDECIDED

    @property
    def decided(self) -> bool:
        """Whether the interval shows faster, slower or practically equal."""
        return self.words in (FASTER, SLOWER, EQUAL)

    def times(self, factor: float) -> "Ratio":
        """Return the ratio and its interval, multiplied by an exactly known positive number."""
        low, high = (bound and bound * factor for bound in (self.low, self.high))
        return replace(self, value=self.value * factor, low=low, high=high)

    @property
    def inverse(self) -> "Ratio":
        """The reciprocal ratio."""
        low, high = (bound and 1 / bound for bound in (self.high, self.low))
        return replace(self, value=1 / self.value, low=low, high=high)

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.interval else "")


@dataclass(frozen=True)
class Excess:
    """How much longer a time is than expected (shorter if negative): the mean over the blocks, and its interval.

    low, high: None with one block.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def proved(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def margin(self) -> float | None:
        """Half the width of the interval, which is symmetric."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def at_least(self, size: float) -> bool:
        """Return whether the whole interval is `size` or more."""
        return self.low is not None and self.low >= size

    def times(self, factor: float) -> "Excess":
        """Return the excess and its interval, multiplied by an exactly known number."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Excess(self.name, self.value * factor, low, high)

    def __str__(self) -> str:
        places = decimals(self.value)
        return f"{abs(self.value):.{places}f}" + ("" if self.low is None else f" ± {self.margin:.{places}f}")


def decimals(value: float) -> int:
    """Return the number of decimals to show of a time."""
    return 1 if abs(value) >= 1 else 2


def mean_excess(name: str, values: Sequence[float], claims: int = 1) -> Excess:
    """Return the mean of the blocks' values with Student's interval.

    claims: the number of intervals that hold together with 95% confidence (Bonferroni's inequality).
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return Excess(name, mean)
    confidence = 1 - (1 - CONFIDENCE) / claims
    margin = t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Excess(name, mean, mean - margin, mean + margin)


def mean_interval(values: Iterable[float], mean: float) -> tuple[float, float] | None:
    """Return the 95% interval around the geometric mean of positive numbers: Student's, of their logarithms.

    Values that are nan are ignored. None with fewer than three values.
    """
    logs = [math.log(value) for value in values if math.isfinite(value)]
    if len(logs) < 3:
        return None
    factor = math.exp(t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)))
    return mean / factor, mean * factor


def resolution(deviation: float, blocks: int, columns: int, comparisons: int, confidence: float = CONFIDENCE) -> float:
    """Return the difference, as a share, that this number of blocks detects with a probability of 80%.

    deviation: the standard deviation of the noise of logarithms. The result is the sum of the critical value and the
    80% quantile, in standard errors: the usual approximation to the noncentral t (e.g. S. C. Chow et al., Sample Size
    Calculations, 2008, section 3.2). More than two columns add about one degree of freedom to the usual estimate of the
    variances (see comparison.judge.blocks).
    """
    freedom = blocks - 1 + (columns > 2)
    if freedom < 2:
        return math.inf
    errors = dunnett_quantile(comparisons, freedom, confidence) + t_quantile(freedom, 0.60)
    return math.expm1(errors * deviation * math.sqrt(2 / blocks))
