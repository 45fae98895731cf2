"""Ratios of times and how sure they are: pure mathematics, which knows no rows of a report.

The critical values of Student, Dunnett and O'Brien and Fleming are by quadrature: scipy is no requirement.
"""

import functools
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comparison.record import EQUAL_WITHIN
from comparison.words import say

Array = NDArray[np.float64]

CONFIDENCE = 0.95
LEAST_ERROR = 1e-6  # that a look may take, however early it is
SHARED_FREEDOM = 0.5  # how much the mean noise of all columns counts beside a column's own: see _Fit
WIDEST = math.log(1000)  # half of an interval, of logarithms, that is as good as none
ROUNDING = 1e-9  # singular values below this are zeros
RESAMPLES = 999  # of a self-test
FASTER, SLOWER, EQUAL, UNDECIDED = say("faster"), say("slower"), say("practically equal"), say("undecided")
DISTURBED, TOO_FEW = say("disturbed"), say("no interval: too few runs")


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
def dunnett_quantile(comparisons: int, freedom: int, confidence: float = CONFIDENCE, correlation: float = 0.5) -> float:
    """Return the d with P(all |T| < d) = confidence, for `comparisons` of one reference.

    Each T is a normal variable, any two with the given correlation (1/2 where all have as many runs), divided by one
    estimate of the standard deviation with `freedom` degrees (C. W. Dunnett, Biometrics 20, 1964). By Gauss-Legendre
    quadrature over that estimate and over what the normal variables have in common.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    top = math.sqrt(1 + 12 / math.sqrt(freedom) + 40 / freedom)  # beyond it lies less than 1e-9 of the chi distribution
    roots = (nodes + 1) / 2
    deviations = top * roots**3  # close together near 0, where T is large
    exponents = (freedom - 1) * np.log(deviations) - freedom * deviations**2 / 2
    density = weights * roots**2 * np.exp(exponents - exponents.max())
    density /= density.sum()
    nodes, weights = (part[30:] for part in np.polynomial.legendre.leggauss(60))  # what is below 0 is alike
    common = 8 * nodes
    shares = weights * np.exp(-(common**2) / 2)
    shares /= shares.sum()
    loading, rest = math.sqrt(correlation), math.sqrt(1 - correlation)

    def probability(critical: float) -> float:
        reach = critical * deviations[:, None]
        lower, upper = ((loading * common + edge) / rest for edge in (-reach, reach))
        inside = _normal_probability(upper) - _normal_probability(lower)
        return float(density @ inside**comparisons @ shares)

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
            outside = _normal_probability((places - bound) / step) + _normal_probability((-places - bound) / step)
            low, high = (bound, high) if outside @ masses > error - earlier else (low, bound)
        inside = bound * nodes
        density = np.exp(-(((inside[:, None] - places) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        places, masses, before = inside, bound * weights * (density @ masses), count
    return 2 * normal.cdf(bound / math.sqrt(before)) - 1


@functools.cache
def _normal_table() -> tuple[Array, Array]:
    points = np.linspace(-9, 9, 20_001)
    return points, np.array([math.erfc(-point / math.sqrt(2)) / 2 for point in points])


def _normal_probability(values: Array) -> Array:
    return np.interp(values, *_normal_table())


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
        if self.low is None or self.high is None:
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
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def margin(self) -> float | None:
        """Half of its interval, which is symmetric."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def least(self, size: float) -> bool:
        """Whether all of its interval is at least so large."""
        return self.low is not None and self.low >= size

    def times(self, factor: float) -> "Excess":
        """Return it, with its interval, times a number that is known exactly."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Excess(self.name, self.value * factor, low, high)

    def __str__(self) -> str:
        decimals = 1 if abs(self.value) >= 1 else 2
        return f"{abs(self.value):.{decimals}f}" + ("" if self.low is None else f" ± {self.margin:.{decimals}f}")


def mean_excess(name: str, values: Sequence[float], claims: int = 1) -> Excess:
    """Return the mean of the blocks' values with Student's interval, which holds as one of so many with 95%."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return Excess(name, mean)
    confidence = 1 - (1 - CONFIDENCE) / claims
    margin = t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Excess(name, mean, mean - margin, mean + margin)


def mean_interval(values: Iterable[float], mean: float) -> tuple[float, float] | None:
    """Return the 95% interval around the geometric mean of positive numbers (but nan), Student's on the logarithms;
    None below three."""
    logs = [math.log(value) for value in values if math.isfinite(value)]
    if len(logs) < 3:
        return None
    factor = math.exp(t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)))
    return mean / factor, mean * factor


@dataclass(frozen=True, eq=False)
class _Fit:
    """The columns' means, adjusted to all blocks, and what the observations (N) say of the noise.

    to_means: (columns, N), what of each observation is in a mean. of_column: (N, columns), 1 where it is of that one.
    to_residuals: (N, N). squares: the sum of those of each column's residuals.
    """

    values: Array
    effects: Array
    to_means: Array
    of_column: Array
    to_residuals: Array
    squares: Array
    freedom: int

    def contrasts(self, reference: int, others: Sequence[int]) -> Array:
        """What of each observation is in the differences of the columns' means from the reference's, (others, N)."""
        differences: Array = self.to_means[reference] - self.to_means[list(others)]
        return differences

    @functools.cached_property
    def variances(self) -> tuple[Array, Array]:
        """Return the variance of the noise of each column, and the covariance of these estimates.

        The expected squares of each column's residuals are linear in all variances: solved for these (C. R. Rao's
        MINQUE, Journal of Multivariate Analysis 1, 1971; without holes, F. E. Grubbs's estimates). As a few blocks tell
        little of one column, the mean variance counts as SHARED_FREEDOM observations of each (as in G. K. Smyth,
        Statistical Applications in Genetics and Molecular Biology 3, 2004). Its weight is not estimated: where one
        column is noisier and looks quiet by chance, so do the columns look equal. Two columns cannot be told apart, and
        share theirs.
        """
        counts, maker, of_column = self.of_column.sum(axis=0), self.to_residuals, self.of_column
        mean = float(self.squares.sum()) / max(1, self.freedom)
        shared = min(SHARED_FREEDOM, max(0.0, self.freedom + 1 - float(counts.max(initial=1))) / 4)
        solve = np.linalg.pinv(of_column.T @ maker**2 @ of_column + shared * np.eye(len(counts)), rcond=ROUNDING)
        least = shared * mean / (np.maximum(counts, 1) - 1 + shared) if shared else 0.0
        variances = np.maximum(solve @ (self.squares + shared * mean), least)
        spread = (maker * (of_column @ variances)) @ maker
        covariance = 2 * of_column.T @ spread**2 @ of_column + 2 * shared * np.diag(variances**2)
        return variances, solve @ covariance @ solve


def _fit(values: Array) -> _Fit:
    """By least squares; the blocks' effects add up to 0, also among columns that share no block with the others."""
    return _fit_of(values.astype(float).tobytes(), values.shape)


@functools.lru_cache(maxsize=8)  # one table is asked for many differences
def _fit_of(values_as_bytes: bytes, shape: tuple[int, ...]) -> _Fit:
    values = np.frombuffer(values_as_bytes).reshape(shape)
    blocks, columns = np.nonzero(np.isfinite(values))
    observed = values[blocks, columns]
    in_block, in_column = np.eye(len(values))[blocks], np.eye(values.shape[1])[columns]
    to_means = in_column.T / np.maximum(in_column.sum(axis=0), 1)[:, None]
    within = in_block - in_column @ to_means @ in_block
    to_effects = np.linalg.pinv(within, rcond=ROUNDING)
    to_means = to_means @ (np.eye(len(observed)) - in_block @ to_effects)
    to_residuals = np.eye(len(observed)) - in_block @ to_effects - in_column @ to_means
    means = np.where(in_column.any(axis=0), to_means @ observed, np.nan)
    freedom = len(observed) - len(set(columns)) - int(np.linalg.matrix_rank(within, tol=ROUNDING))
    squares = (to_residuals @ observed) ** 2 @ in_column
    return _Fit(values, means, to_means, in_column, to_residuals, squares, freedom)


def adjusted_means(times: Array) -> Array:
    """Return the geometric mean of each column, adjusted to all blocks: the quotients of these are `ratios`' values.

    times: as for `ratios`. Without holes it is the plain mean; nan for a column without a time.
    """
    return np.exp(_fit(np.log(times)).effects)


def mean_difference(values: Array, first: int, second: int, confidence: float) -> tuple[float, float, float]:
    """Return by how much the mean of one column is above another's, and its interval: infinite where no noise is told.

    values: (blocks, columns), nan where nothing was measured. Randomised blocks: value = column + block + noise, which
    all columns have in common, with Student's interval.
    """
    fit = _fit(values)
    difference, margin = float(fit.effects[first] - fit.effects[second]), math.inf
    if fit.freedom:
        spread = float((fit.contrasts(first, [second]) ** 2).sum())
        margin = t_quantile(fit.freedom, confidence) * math.sqrt(spread * fit.squares.sum() / fit.freedom)
    return difference, difference - margin, difference + margin


def ratios(
    times: Array, reference: int, others: Sequence[int], confidence: float = CONFIDENCE, noise_blocks: int | None = None
) -> list[Ratio]:
    """Return how many times as long the column `reference` takes as each of the columns `others`.

    times: (blocks, columns), seconds, nan where nothing was measured. noise_blocks: how many of them, from the first,
    tell the noise (all). The intervals are simultaneous over all `others`, at the given confidence.

    Randomised blocks on the logarithms: time = column x block x noise, by least squares, so that blocks may have holes.
    Each column has a noise of its own (see `_Fit.variances`); the degrees of freedom of a difference's variance are
    F. E. Satterthwaite's (Biometrics Bulletin 2, 1946), and the interval is C. W. Dunnett's (Journal of the American
    Statistical Association 50, 1955). It is None with less than two degrees of freedom, or less than two blocks that
    have both columns. What comes of it: benchmarks/false_alarms.py.
    """
    logs = np.log(times)
    fit, results = _fit(logs), []
    noise = fit if noise_blocks is None else _fit(logs[:noise_blocks])
    contrasts, (variances, errors) = fit.contrasts(reference, others), noise.variances
    correlation = _least_correlation(contrasts)
    for other, weights in zip(others, contrasts**2 @ fit.of_column, strict=True):
        centre, low, high = float(fit.effects[reference] - fit.effects[other]), None, None
        together = np.isfinite(noise.values[:, [reference, other]]).all(axis=1).sum()
        if noise.freedom >= 2 and together >= 2:
            variance, error = float(weights @ variances), float(weights @ errors @ weights)
            freedom = max(1.0, 2 * variance**2 / error) if error else noise.freedom
            margin = min(WIDEST, _critical(len(others), freedom, confidence, correlation) * math.sqrt(variance))
            low, high = math.exp(centre - margin), math.exp(centre + margin)
        results.append(Ratio(math.exp(centre), low, high))
    return results


def _critical(comparisons: int, freedom: float, confidence: float, correlation: float) -> float:
    """Return Dunnett's value for any degrees of freedom, at least 1: between whole ones, by their inverse."""
    whole = math.floor(freedom)
    low, high = (dunnett_quantile(comparisons, some, confidence, correlation) for some in (whole, whole + 1))
    return low * math.pow(high / low, (freedom - whole) * (whole + 1) / freedom)


def _least_correlation(contrasts: Array) -> float:
    """The least correlation of two differences from the reference: 1/2 without holes; less is on the safe side."""
    if len(contrasts) < 2:
        return 0.5
    covariance = contrasts @ contrasts.T
    errors = np.sqrt(np.diag(covariance))
    return float(np.clip(np.round((covariance / np.outer(errors, errors)).min(), 3), 0.0, 0.5))


@dataclass(frozen=True, eq=False)
class Table:
    """What was measured in blocks, and how to judge it. values: (blocks, columns), nan where nothing was measured.

    columns: their names; disturbed: those beside which other programs used the machine. confidence, noise_blocks: as
    for `ratios`; equal_within: as in Ratio.
    """

    columns: tuple[str, ...]
    values: Array
    confidence: float = CONFIDENCE
    noise_blocks: int | None = None
    equal_within: float = EQUAL_WITHIN
    disturbed: frozenset[str] = frozenset()

    def ratios(self, numerator: str, denominators: Sequence[str], confidence: float | None = None) -> list[Ratio]:
        """Return the ratios of the times of one column and each of several; all columns tell the noise."""
        reference, *others = map(self.columns.index, (numerator, *denominators))
        found = ratios(self.values, reference, others, confidence or self.confidence, self.noise_blocks)
        return [
            replace(ratio, disturbed=not self.disturbed.isdisjoint((numerator, name)), equal_within=self.equal_within)
            for ratio, name in zip(found, denominators, strict=True)
        ]

    def difference(self, first: str, second: str, confidence: float) -> tuple[float, float, float]:
        """Return by how much the mean of one column is above another's, and its interval: see mean_difference."""
        return mean_difference(self.values, self.columns.index(first), self.columns.index(second), confidence)


def residual_deviation(times: Array) -> tuple[float, int] | None:
    """Return the standard deviation of the noise that is left without columns and blocks, and its degrees of freedom.

    times: as for `ratios`; the deviation is of logarithms: 0.04 is 4%. None where nothing tells it.
    """
    fit = _fit(np.log(times))
    return (math.sqrt(fit.squares.sum() / fit.freedom), fit.freedom) if fit.freedom else None


def resolution(deviation: float, blocks: int, columns: int, comparisons: int, confidence: float = CONFIDENCE) -> float:
    """Return the difference, as a share, that so many blocks find in four of five comparisons.

    deviation: of the noise, of logarithms. The critical value plus that of a chance of 80%, in standard errors: the
    usual approximation to the noncentral t (e.g. S. C. Chow et al., Sample Size Calculations, 2008, section 3.2). More
    than two columns add about one degree of freedom to the usual estimate of `_Fit.variances`.
    """
    freedom = blocks - 1 + (columns > 2)
    if freedom < 2:
        return math.inf
    errors = dunnett_quantile(comparisons, freedom, confidence) + t_quantile(freedom, 0.60)
    return math.expm1(errors * deviation * math.sqrt(2 / blocks))


def residuals(times: Array) -> Array:
    """Return the logarithms without what rows and blocks have in common, (blocks, columns) as `times`."""
    fit, found = _fit(np.log(times)), np.full(times.shape, np.nan)
    measured = np.nonzero(np.isfinite(fit.values))
    found[measured] = fit.to_residuals @ fit.values[measured]
    return found


def block_dependence(times: Array) -> tuple[float, float] | None:
    """Return the lag-1 autocorrelation of the rows' residuals over the blocks, and how often chance gives as much.

    times: as for `ratios`, in the order of measurement. Blocks are shuffled RESAMPLES times, all rows together: if they
    are independent, the chance is below 1% in 1% of comparisons. None below five blocks, or without noise.
    """
    rows = np.nan_to_num(residuals(times))
    squares = (rows**2).sum(axis=0)
    if len(times) < 5 or not squares.sum():
        return None
    rows /= np.sqrt(np.maximum(squares, sys.float_info.min))
    random, own = np.random.default_rng(0), (rows[1:] * rows[:-1]).sum()
    shuffled = [rows[random.permutation(len(rows))] for _ in range(RESAMPLES)]
    above = sum((other[1:] * other[:-1]).sum() >= own for other in shuffled)
    return float(own / (squares > 0).sum()), (1 + above) / (1 + RESAMPLES)


def two_modes(values: Sequence[float]) -> tuple[float, float] | None:
    """Return which part of the variance lies between two groups of numbers, and how often normal noise gives as much.

    The groups are those that share the values best, of two or more each. None below six values, or without noise.
    """
    if len(values) < 6 or min(values) == max(values):
        return None
    normal = np.random.default_rng(0).normal(size=(RESAMPLES, len(values)))
    own, *others = _between(np.vstack([(np.array(values) - statistics.fmean(values)), normal]))
    return float(own), (1 + sum(other >= own for other in others)) / (1 + RESAMPLES)


def _between(samples: Array) -> Array:
    """The largest part of the variance of each sample, (samples, values), that two of its groups leave between them."""
    ordered = np.sort(samples - samples.mean(axis=1, keepdims=True), axis=1)
    first = np.arange(2, samples.shape[1] - 1)
    sums = ordered.cumsum(axis=1)[:, first - 1]
    between = sums**2 * samples.shape[1] / first / (samples.shape[1] - first)
    parts: Array = between.max(axis=1) / (ordered**2).sum(axis=1)
    return parts
