"""Least squares in randomised blocks: the means of a table's columns, how they differ, and the noise that is left."""

import functools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from comparison.judge.statistics import CONFIDENCE, EQUAL_WITHIN, Array, Ratio, dunnett_quantile, t_quantile

SHARED_FREEDOM = 0.5  # observations that the mean variance counts as: see _Fit.variances
PAIRED_SHARE = 0.05  # of the error, for the interval from the differences of two columns alone
WIDEST = math.log(1000)  # an interval's half width, in logarithms, that is as good as none
ROUNDING = 1e-9  # smaller singular values count as zero
RESAMPLES, NORMAL_SAMPLES = 999, 9999  # of a self-test
CHANCE = 0.01  # p-value of a self-test below which it warns


@dataclass(frozen=True, eq=False)
class _Fit:
    """The columns' means, adjusted to all blocks, and the noise of the N observations.

    to_means: (columns, N), the weight of each observation in each mean. of_column: (N, columns), 1 for the column of
    each observation. to_residuals: (N, N). squares: the sum of squared residuals of each column.
    """

    values: Array
    means: Array
    to_means: Array
    of_column: Array
    to_residuals: Array
    squares: Array
    freedom: int

    @functools.cached_property
    def variances(self) -> tuple[Array, Array]:
        """The variance of each column's noise, and the covariance of these estimates.

        The expected sums of squares are linear in the variances and are solved for them (C. R. Rao's MINQUE, Journal of
        Multivariate Analysis 1, 1971; without holes, F. E. Grubbs's estimates). As a few blocks tell little about one
        column, the mean variance counts as SHARED_FREEDOM observations of each (as in G. K. Smyth, Statistical
        Applications in Genetics and Molecular Biology 3, 2004). This weight is fixed, not estimated from the data: if a
        noisy column looks quiet by chance, the columns also look alike. Two columns cannot be told apart,
        so they share their variance.
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

    def variance(self, weights: Array) -> tuple[float, float]:
        """Return the variance of a difference, and its degrees of freedom: F. E. Satterthwaite's, at least 1.

        weights: of each column's variance. Source: Biometrics Bulletin 2, 1946.
        """
        variances, errors = self.variances
        variance, error = float(weights @ variances), float(weights @ errors @ weights)
        return variance, max(1.0, 2 * variance**2 / error) if error else self.freedom


def _fit(values: Array) -> _Fit:
    """Fit columns and blocks by least squares. The blocks' effects add up to 0, also among columns without a common
    block."""
    return _cached_fit(values.astype(float).tobytes(), values.shape)


@functools.lru_cache(maxsize=8)  # many differences are computed from the same table
def _cached_fit(values_as_bytes: bytes, shape: tuple[int, ...]) -> _Fit:
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
    """Return the geometric mean of each column, adjusted to all blocks. Their quotients are the values of `ratios`.

    times: as for `ratios`. Without holes this is the plain mean; nan for an empty column.
    """
    return np.exp(_fit(np.log(times)).means)


def ratios(
    times: Array, reference: int, others: Sequence[int], confidence: float = CONFIDENCE, noise_blocks: int | None = None
) -> list[Ratio]:
    """Return how many times as long the column `reference` takes as each of the columns `others`.

    times: (blocks, columns), seconds, nan where nothing was measured. noise_blocks: the number of blocks, from the
    first, from which the noise is estimated (default: all). The intervals are simultaneous over all `others`, at the
    given confidence.

    Randomised blocks of logarithms: time = column x block x noise, by least squares, so blocks may have holes. Each
    column has its own noise (see `_Fit.variances`), and the interval is C. W. Dunnett's (Journal of the American
    Statistical Association 50, 1955), or a paired one (see _narrower). It is None with fewer than two degrees of
    freedom, or fewer than two blocks with both columns. benchmarks/false_alarms.py measures the coverage.
    """
    logs = np.log(times)
    fit, results = _fit(logs), []
    noise = fit if noise_blocks is None else _fit(logs[:noise_blocks])
    contrasts = fit.to_means[reference] - fit.to_means[list(others)]  # (others, N), weights of the observations
    correlation = _least_correlation(contrasts)
    for other, weights in zip(others, contrasts**2 @ fit.of_column, strict=True):
        centre, low, high = float(fit.means[reference] - fit.means[other]), None, None
        common_blocks = np.isfinite(noise.values[:, [reference, other]]).all(axis=1).sum()
        if noise.freedom >= 2 and common_blocks >= 2:
            variance, freedom = noise.variance(weights)
            margin = min(WIDEST, _critical_value(len(others), freedom, confidence, correlation) * math.sqrt(variance))
            bounds = centre - margin, centre + margin
            if noise_blocks is None:
                bounds = _narrower(centre, margin, logs[:, reference] - logs[:, other], confidence, len(others))
            low, high = map(math.exp, bounds)
        results.append(Ratio(math.exp(centre), low, high))
    return results


def _narrower(
    centre: float, margin: float, differences: Array, confidence: float, comparisons: int
) -> tuple[float, float]:
    """Return the interval, or Student's of the blocks' differences if that is narrower, as beside a very noisy row.

    That one needs three blocks, and errs with PAIRED_SHARE of the probability (Bonferroni), so that both together err
    hardly more often than one.
    """
    common = differences[np.isfinite(differences)]
    if len(common) >= 3:
        error = PAIRED_SHARE * (1 - confidence) / comparisons
        mean, deviation = float(common.mean()), float(common.std(ddof=1))
        own = t_quantile(len(common) - 1, 1 - error) * deviation / math.sqrt(len(common))
        if 0 < own < margin:
            return min(centre, mean - own), max(centre, mean + own)
    return centre - margin, centre + margin


def _critical_value(comparisons: int, freedom: float, confidence: float, correlation: float) -> float:
    """Return Dunnett's quantile for fractional degrees of freedom (at least 1), interpolated in their inverse."""
    whole = math.floor(freedom)
    low, high = (dunnett_quantile(comparisons, some, confidence, correlation) for some in (whole, whole + 1))
    return low * math.pow(high / low, (freedom - whole) * (whole + 1) / freedom)


def _least_correlation(contrasts: Array) -> float:
    """Return the least correlation of two differences from the reference: 1/2 without holes. Less is conservative."""
    if len(contrasts) < 2:
        return 0.5
    covariance = contrasts @ contrasts.T
    errors = np.sqrt(np.diag(covariance))
    return float(np.clip(np.round((covariance / np.outer(errors, errors)).min(), 3), 0.0, 0.5))


@dataclass(frozen=True, eq=False)
class Table:
    """Measurements in blocks, and how to judge them. values: (blocks, columns), nan where nothing was measured.

    columns: their names. disturbed: the columns measured while other programs used the machine. confidence,
    noise_blocks: as for `ratios`. equal_within: as in Ratio. kind: of a wall time, see comparison.judge.measures.
    """

    columns: tuple[str, ...]
    values: Array
    confidence: float = CONFIDENCE
    noise_blocks: int | None = None
    equal_within: float = EQUAL_WITHIN
    disturbed: frozenset[str] = frozenset()
    kind: str = ""

    @functools.cached_property
    def means(self) -> dict[str, float]:
        """The geometric mean of each column, adjusted to all blocks, by name."""
        return dict(zip(self.columns, map(float, adjusted_means(self.values)), strict=True))

    def ratios(self, numerator: str, denominators: Sequence[str], confidence: float | None = None) -> list[Ratio]:
        """Return the ratios of one column's times to several others'. The noise is estimated from all columns."""
        reference, *others = map(self.columns.index, (numerator, *denominators))
        found = ratios(self.values, reference, others, confidence or self.confidence, self.noise_blocks)
        return [
            replace(ratio, disturbed=not self.disturbed.isdisjoint((numerator, name)), equal_within=self.equal_within)
            for ratio, name in zip(found, denominators, strict=True)
        ]

    def difference(self, first: str, second: str, confidence: float) -> tuple[float, float, float]:
        """Return how far the mean of one column is above another's, and the bounds of Student's interval.

        Randomised blocks: value = column + block + noise, with the noise and the degrees of freedom of `ratios`, or
        the blocks' differences (see _narrower). The bounds are infinite if there is no estimate of the noise.
        """
        fit, one, other = _fit(self.values), self.columns.index(first), self.columns.index(second)
        difference, margin = float(fit.means[one] - fit.means[other]), math.inf
        if fit.freedom:
            variance, freedom = fit.variance((fit.to_means[one] - fit.to_means[other]) ** 2 @ fit.of_column)
            margin = t_quantile(freedom, confidence) * math.sqrt(variance)
        pairs = self.values[:, one] - self.values[:, other]
        if np.isfinite(pairs).sum() >= 3 and not np.nansum(pairs**2):  # every block shows the same value
            difference = margin = 0.0
        return difference, *_narrower(difference, margin, pairs, confidence, 1)

    def of(self, columns: Sequence[str]) -> "Table":
        """Return the table of some columns, in their order here."""
        kept = [index for index, name in enumerate(self.columns) if name in columns]
        values = self.values[:, kept]
        return replace(
            self, columns=tuple(self.columns[index] for index in kept), values=values[np.isfinite(values).any(axis=1)]
        )


def residual_deviation(times: Array) -> float | None:
    """Return the standard deviation of the noise that columns and blocks leave, of logarithms: 0.04 is 4%.

    times: as for `ratios`. None without degrees of freedom.
    """
    fit = _fit(np.log(times))
    return math.sqrt(fit.squares.sum() / fit.freedom) if fit.freedom else None


def residuals(times: Array) -> Array:
    """Return the residuals of the logarithms, without columns and blocks, in the shape of `times`."""
    fit, found = _fit(np.log(times)), np.full(times.shape, np.nan)
    measured = np.nonzero(np.isfinite(fit.values))
    found[measured] = fit.to_residuals @ fit.values[measured]
    return found


# ---- self-tests


def block_dependence(times: Array) -> tuple[float, float] | None:
    """Return the lag-1 autocorrelation of the residuals over the blocks, and its p-value.

    times: as for `ratios`, in the order of measurement. The blocks are shuffled RESAMPLES times, all columns together:
    if they are independent, the p-value is below 1% in 1% of comparisons. None below five blocks, or without noise.
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
    """Return the largest share of the variance between two groups of numbers, and its p-value under normal noise.

    The groups are the best split into two or more values each. None below six values, or without noise.
    """
    if len(values) < 6 or min(values) == max(values):
        return None
    normal = np.random.default_rng(0).normal(size=(NORMAL_SAMPLES, len(values)))
    own, *others = _variance_between(np.vstack([(np.array(values) - statistics.fmean(values)), normal]))
    return float(own), (1 + sum(other >= own for other in others)) / (1 + NORMAL_SAMPLES)


def _variance_between(samples: Array) -> Array:
    """Return the largest share of each sample's variance that lies between two groups. samples: (samples, values)."""
    ordered = np.sort(samples - samples.mean(axis=1, keepdims=True), axis=1)
    first = np.arange(2, samples.shape[1] - 1)
    sums = ordered.cumsum(axis=1)[:, first - 1]
    between = sums**2 * samples.shape[1] / first / (samples.shape[1] - first)
    shares: Array = between.max(axis=1) / (ordered**2).sum(axis=1)
    return shares
