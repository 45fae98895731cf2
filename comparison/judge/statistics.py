"""Ratios of times and how sure they are: pure mathematics, which knows no rows of a report."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from comparison.judge.quantiles import CONFIDENCE, dunnett_quantile, t_quantile

EQUAL_WITHIN = 0.03  # times that differ by no more are the same in practice
SHARED_FREEDOM = 2  # how much the noise of the other columns counts beside a pair's own: see _difference
ROUNDING = 1e-9  # singular values below this are zeros
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


def mean_interval(values: list[float], mean: float) -> tuple[float, float] | None:
    """Return the 95 % interval around the geometric mean of positive numbers, Student's on the logarithms; None below
    three."""
    if len(values) < 3:
        return None
    logs = [math.log(value) for value in values]
    factor = math.exp(t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)))
    return mean / factor, mean * factor


def adjusted_means(times: np.ndarray) -> np.ndarray:
    """Return the geometric mean of each column, adjusted to all blocks: the quotients of these are `ratios`' values.

    times: as for `ratios`. Without holes it is the plain mean; nan for a column without a time.
    """
    return np.exp(_fit(np.log(times)).effects)


def mean_difference(values: np.ndarray, first: int, second: int, confidence: float) -> tuple[float, float, float]:
    """Return by how much the mean of one column is above another's, and its interval: infinite where no noise is told.

    values: (blocks, columns), nan where nothing was measured. Randomised blocks: value = column + block + noise, which
    all columns have in common, with Student's interval.
    """
    fit = _fit(values)
    difference = float(fit.effects[first] - fit.effects[second])
    if not fit.freedom:
        return difference, -math.inf, math.inf
    error = math.sqrt(_spread(fit, first, second) * fit.squares / fit.freedom)
    margin = t_quantile(fit.freedom, confidence) * error
    return difference, difference - margin, difference + margin


def ratios(
    times: np.ndarray,
    reference: int,
    others: list[int],
    confidence: float = CONFIDENCE,
    noise_blocks: int | None = None,
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
    """The columns' means, adjusted to all blocks, with the covariance ÷ variance of that; the residuals' squares."""

    effects: np.ndarray
    covariance: np.ndarray
    squares: float
    freedom: int


def _fit(values):
    """By least squares; the blocks' effects add up to 0, also among columns that share no block with the others."""
    blocks, columns = np.nonzero(np.isfinite(values))
    observed = values[blocks, columns]
    in_block, in_column = np.eye(len(values))[blocks], np.eye(values.shape[1])[columns]
    to_means = np.linalg.pinv(in_column)
    within = in_block - in_column @ to_means @ in_block
    to_effects = np.linalg.pinv(within, rcond=ROUNDING)
    to_means = to_means @ (np.eye(len(observed)) - in_block @ to_effects)
    residuals = observed - in_block @ to_effects @ observed - in_column @ to_means @ observed
    means = np.where(in_column.any(axis=0), to_means @ observed, np.nan)
    freedom = len(observed) - len(set(columns)) - int(np.linalg.matrix_rank(within, tol=ROUNDING))
    return _Fit(means, to_means @ to_means.T, float((residuals**2).sum()), freedom)


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
    estimate = float(fit.effects[first] - fit.effects[second])
    if len(pairs) < 2:
        return _Difference(estimate, math.nan, 0)
    own_freedom, own_squares = len(pairs) - 1, ((pairs - pairs.mean()) ** 2).sum() / 2
    rest_freedom = noise.fit.freedom - own_freedom
    shared = min(SHARED_FREEDOM, rest_freedom)
    squares = own_squares + (shared * max(0.0, noise.fit.squares - own_squares) / rest_freedom if shared else 0.0)
    freedom = own_freedom + shared
    return _Difference(estimate, math.sqrt(_spread(fit, first, second) * squares / freedom), freedom)


def _spread(fit, first, second):
    """The variance of the difference of two columns' means ÷ that of the noise."""
    return fit.covariance[first, first] + fit.covariance[second, second] - 2 * fit.covariance[first, second]


def _least_correlation(fit, reference, others):
    """The least correlation of two differences from the reference: 1/2 without holes; less is on the safe side."""
    if len(others) < 2:
        return 0.5
    contrasts = np.eye(len(fit.effects))[reference] - np.eye(len(fit.effects))[others]
    covariance = contrasts @ fit.covariance @ contrasts.T
    errors = np.sqrt(np.diag(covariance))
    return float(np.clip(np.round((covariance / np.outer(errors, errors)).min(), 3), 0.0, 0.5))
