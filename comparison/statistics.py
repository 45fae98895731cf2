"""Ratios of times and how sure they are: pure mathematics, which knows no rows of a report."""

import functools
import math
import statistics
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
EQUAL_WITHIN = 0.03  # times that differ by no more are the same in practice
LEAST_ERROR = 1e-6  # that a look may take, however early it is
SHARED_FREEDOM = 2  # how much the noise of the other columns counts beside a pair's own: see _difference
FASTER, SLOWER, EQUAL, UNDECIDED = "faster", "slower", "practically equal", "undecided"
DISTURBED, TOO_FEW = "disturbed", "no interval: too few runs"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast (or, of times, as long): the ratio of geometric means, and its interval if known.

    disturbed: other programs used the machine meanwhile, so that it claims nothing. equal_within: by what share two
    times may differ and be the same in practice.
    """

    value: float
    low: float | None = None
    high: float | None = None
    disturbed: bool = False
    equal_within: float = EQUAL_WITHIN

    @property
    def words(self) -> str:
        """Faster, slower, practically equal, undecided; or why it claims nothing."""
        if self.disturbed:
            return DISTURBED
        if self.low is None:
            return TOO_FEW
        if 1 / (1 + self.equal_within) <= self.low and self.high <= 1 + self.equal_within:
            return EQUAL
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else UNDECIDED

    @property
    def decided(self) -> bool:
        """Whether the interval says that it is faster, slower or practically equal."""
        return self.words in (FASTER, SLOWER, EQUAL)

    def times(self, factor: float) -> "Ratio":
        """Return the ratio, with its interval, times a positive number that is known exactly."""
        low, high = (bound and bound * factor for bound in (self.low, self.high))
        return replace(self, value=self.value * factor, low=low, high=high)

    @property
    def inverse(self) -> "Ratio":
        """The ratio the other way round."""
        low, high = (bound and 1 / bound for bound in (self.high, self.low))
        return replace(self, value=1 / self.value, low=low, high=high)

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


def mean_interval(values: list[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of the geometric mean of positive numbers, Student's on the logarithms; None below three."""
    if len(values) < 3:
        return None
    logs = [math.log(value) for value in values]
    margin = t_quantile(len(logs) - 1, confidence) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.mean(logs) - margin), math.exp(statistics.mean(logs) + margin)


def ratios(
    times: np.ndarray, reference: int, others: list[int], confidence: float = CONFIDENCE,
    noise_blocks: int | None = None
) -> list[Ratio]:
    """Return how many times as long the column `reference` takes as each of the columns `others`.

    times: (blocks, columns), seconds, nan where nothing was measured. noise_blocks: how many of them, from the first,
    tell the noise (all). All intervals together hold the truth with the given confidence, whatever the number of
    `others`.

    Randomised blocks on the logarithms: time = column x block x noise, by least squares, so that blocks may have holes;
    the noise is told by a pair's own differences and, for a part, by the other columns (see `_difference`), and the
    interval is C. W. Dunnett's (Journal of the American Statistical Association 50, 1955). It is None with less than
    two degrees of freedom, or less than two blocks that have both columns.
    """
    logs = np.log(times)
    fit, noise = _fit(logs), _noise(logs, noise_blocks)
    correlation = _least_correlation(fit, reference, others)
    results = []
    for other in others:
        centre, error, freedom = _difference(logs, fit, noise, reference, other)
        if freedom < 2:
            results.append(Ratio(math.exp(centre)))
            continue
        margin = dunnett_quantile(len(others), freedom, confidence, correlation) * error
        results.append(Ratio(math.exp(centre), math.exp(centre - margin), math.exp(centre + margin)))
    return results


def not_told_apart(
    times: np.ndarray, columns: list[int], confidence: float = CONFIDENCE, noise_blocks: int | None = None
) -> list[int]:
    """Return which of `columns` may be the fastest, first the one that was measured to be, in two blocks or more.

    With the given confidence the truly fastest is among them: multiple comparisons with the best (J. C. Hsu, Annals of
    Statistics 9, 1981), on the same model as `ratios`. Where that gives no interval, a column may be faster.
    """
    logs = np.log(times)
    fit, noise = _fit(logs), _noise(logs, noise_blocks)
    several = [column for column in columns if np.isfinite(logs[:, column]).sum() > 1]
    best = min(several or columns, key=lambda column: fit.effects[column])
    kept = [best]
    for column in columns:
        if column == best:
            continue
        slower, error, freedom = _difference(logs, fit, noise, column, best)
        if freedom < 2 or slower <= dunnett_quantile(len(columns) - 1, freedom, confidence, sides=1) * error:
            kept.append(column)
    return kept


def residual_deviation(times: np.ndarray) -> tuple[float, int] | None:
    """Return the standard deviation of the noise that is left without columns and blocks, and its degrees of freedom.

    times: as for `ratios`; the deviation is of logarithms: 0.04 is 4 %. None where nothing tells it.
    """
    fit = _fit(np.log(times))
    return (math.sqrt(fit.squares / fit.freedom), fit.freedom) if fit.freedom else None


def resolution(deviation: float, blocks: int, columns: int, comparisons: int, confidence: float = CONFIDENCE) -> float:
    """Return the difference, as a share, that so many blocks find in four of five comparisons.

    deviation: of the noise, of logarithms. The critical value plus that of a chance of 80 %, in standard errors: the
    usual approximation to the noncentral t (e.g. S. C. Chow et al., Sample Size Calculations, 2008, section 3.2).
    """
    freedom = blocks - 1 + min(SHARED_FREEDOM, (blocks - 1) * (columns - 2))
    if freedom < 2:
        return math.inf
    errors = dunnett_quantile(comparisons, freedom, confidence) + t_quantile(freedom, 0.60)
    return math.expm1(errors * deviation * math.sqrt(2 / blocks))


class _Fit(NamedTuple):
    """What the columns add to the logarithms, with the covariance ÷ variance of that; the residuals' squares."""

    effects: np.ndarray
    covariance: np.ndarray
    squares: float
    freedom: int


def _fit(logs):
    blocks, columns = np.nonzero(np.isfinite(logs))
    cells = np.arange(len(blocks))
    design = np.zeros((len(cells), sum(logs.shape)))
    design[cells, blocks] = design[cells, len(logs) + columns] = 1
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    observed = logs[blocks, columns]
    estimates = inverse @ design.T @ observed
    projection = inverse @ design.T @ design
    own = slice(len(logs), None)
    return _Fit(estimates[own], inverse[own, own], float(((observed - design @ estimates) ** 2).sum()),
                len(cells) - round(np.trace(projection)))


class _Difference(NamedTuple):
    """Of two columns' logarithms, with its standard error and the degrees of freedom of that."""

    estimate: float
    error: float
    freedom: int


class _Noise(NamedTuple):
    """The logarithms of the blocks that tell the noise, with their fit."""

    logs: np.ndarray
    fit: _Fit


def _noise(logs, blocks):
    return _Noise(logs[:blocks], _fit(logs[:blocks]))


def _difference(logs, fit, noise, first, second):
    """The difference of two columns, without degrees of freedom where fewer than two blocks have both.

    The residual squares split into those of the pair's own differences and the rest. Columns are not equally noisy:
    the rest counts as SHARED_FREEDOM more degrees of freedom of the pair's variance, as if variances varied between
    pairs like an inverse chi squared (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3,
    2004). Two of them stand for standard deviations that vary by a factor of about two; benchmarks/false_alarms.py
    says what comes of it.
    """
    pairs = noise.logs[:, first] - noise.logs[:, second]
    pairs = pairs[np.isfinite(pairs)]
    if len(pairs) < 2:
        means = [np.mean(column[np.isfinite(column)]) for column in (logs[:, first], logs[:, second])]
        return _Difference(float(means[0] - means[1]), math.nan, 0)
    own_freedom, own_squares = len(pairs) - 1, ((pairs - pairs.mean()) ** 2).sum() / 2
    rest_freedom = noise.fit.freedom - own_freedom
    shared = min(SHARED_FREEDOM, rest_freedom)
    squares = own_squares + (shared * max(0.0, noise.fit.squares - own_squares) / rest_freedom if shared else 0.0)
    spread = fit.covariance[first, first] + fit.covariance[second, second] - 2 * fit.covariance[first, second]
    freedom = own_freedom + shared
    return _Difference(float(fit.effects[first] - fit.effects[second]), math.sqrt(spread * squares / freedom), freedom)


def _least_correlation(fit, reference, others):
    """The least correlation of two differences from the reference: 1/2 without holes; less is on the safe side."""
    if len(others) < 2:
        return 0.5
    contrasts = np.eye(len(fit.effects))[reference] - np.eye(len(fit.effects))[others]
    covariance = contrasts @ fit.covariance @ contrasts.T
    errors = np.sqrt(np.diag(covariance))
    return float(np.clip(np.round((covariance / np.outer(errors, errors)).min(), 3), 0.0, 0.5))


@functools.cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the t with P(-t < T < t) = confidence for Student's T with `freedom` >= 1 degrees of freedom.

    With T = sqrt(freedom) · tan(angle), the angle has a density proportional to cos(angle)^(freedom - 1): a bounded
    integral, here by the trapezoidal rule.
    """
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(freedom) * math.tan(np.interp(confidence * area[-1], area, angles))


@functools.cache
def dunnett_quantile(
    comparisons: int, freedom: int, confidence: float = CONFIDENCE, correlation: float = 0.5, sides: int = 2
) -> float:
    """Return the d with P(all |T| < d) = confidence, with one side P(all T < d), for `comparisons` of one reference.

    Each T is a normal variable, any two with the given correlation (1/2 where all have as many runs), divided by one
    estimate of the standard deviation with `freedom` degrees (C. W. Dunnett, Biometrics 20, 1964). By Gauss-Legendre
    quadrature over that estimate and over what the normal variables have in common.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    top = math.sqrt(1 + 12 / math.sqrt(freedom) + 40 / freedom)  # beyond it lies less than 1e-9 of the chi distribution
    deviations = (nodes + 1) * top / 2
    exponents = (freedom - 1) * np.log(deviations) - freedom * deviations**2 / 2
    density = weights * np.exp(exponents - exponents.max())
    density /= density.sum()
    common = 8 * nodes
    shares = weights * np.exp(-(common**2) / 2)
    shares /= shares.sum()
    loading, rest = math.sqrt(correlation), math.sqrt(1 - correlation)

    def probability(critical):
        reach = critical * deviations[:, None]
        inside = _normal_probability((reach + loading * common) / rest)
        if sides == 2:
            inside = inside - _normal_probability((loading * common - reach) / rest)
        return density @ inside**comparisons @ shares

    low, high = 0.0, 1.0
    while probability(high) < confidence:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < confidence else (low, middle)
    return high


@functools.cache
def look_confidence(blocks: tuple[int, ...], spent: tuple[float, ...], confidence: float = CONFIDENCE) -> float:
    """Return with which confidence to judge at the last of several looks, so that all looks together have `confidence`.

    blocks: how many there were at each look, increasing. spent: which share of the whole time was used then, up to 1;
    it decides how much of the error each look may take: little at first, after P. C. O'Brien and T. R. Fleming
    (Biometrics 35, 1979), for looks at any time (K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983). The boundaries
    are those of a Brownian motion, by the recursion of P. Armitage, C. K. McPherson and B. C. Rowe (Journal of the
    Royal Statistical Society A 132, 1969).
    """
    normal, errors = statistics.NormalDist(), [0.0]
    edge = normal.inv_cdf((3 + confidence) / 4)
    for share in spent:  # for each side 2 - 2 Φ(edge ÷ √share), at the end half the error
        errors.append(max(errors[-1] + LEAST_ERROR, 4 - 4 * normal.cdf(edge / math.sqrt(min(1.0, share)))))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    places, masses, bound, before = np.zeros(1), np.ones(1), 0.0, 0
    for count, earlier, error in zip(blocks, errors, errors[1:], strict=False):
        step = math.sqrt(count - before)
        low, high = 0.0, 40 * math.sqrt(count)
        while high - low > 1e-9 * high:
            bound = (low + high) / 2
            outside = (_normal_probability((places - bound) / step) + _normal_probability((-places - bound) / step))
            low, high = (bound, high) if outside @ masses > error - earlier else (low, bound)
        inside = bound * nodes
        density = np.exp(-(((inside[:, None] - places) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        places, masses, before = inside, bound * weights * (density @ masses), count
    return 2 * normal.cdf(bound / math.sqrt(before)) - 1


@functools.cache
def _normal_table():
    points = np.linspace(-9, 9, 100_001)
    return points, np.array([math.erfc(-point / math.sqrt(2)) / 2 for point in points])


def _normal_probability(values):
    return np.interp(values, *_normal_table())
