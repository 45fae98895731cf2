"""Critical values, ratios in randomised blocks and their intervals. See benchmarks/false_alarms.py for coverage."""

import math
from itertools import product

import numpy as np
import pytest

from comparison.judge.blocks import Table, adjusted_means, block_dependence, ratios, residual_deviation, two_modes
from comparison.judge.statistics import (
    DISTURBED,
    EQUAL,
    FASTER,
    SLOWER,
    TOO_FEW,
    UNDECIDED,
    Excess,
    Ratio,
    any_reference,
    dunnett_quantile,
    look_confidence,
    resolution,
    t_quantile,
)

stats = pytest.importorskip("scipy.stats")


def test_t_quantile_matches_scipy():
    for freedom, confidence in product((1, 2, 2.5, 4, 30, 1000), (0.6, 0.95, 0.9999)):
        assert t_quantile(freedom, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-5)


@pytest.mark.parametrize("freedom, confidence", [(1, 0.9999), (2, 0.9999), (3, 0.9999), (5, 0.95), (2000, 0.95)])
def test_dunnetts_quantile_of_one_comparison_is_students(freedom, confidence):
    expected = stats.t.ppf((1 + confidence) / 2, freedom)
    assert dunnett_quantile(1, freedom, confidence) == pytest.approx(expected, rel=1e-4 if confidence > 0.99 else 1e-5)


@pytest.mark.parametrize("confidence, freedom", [(0.9, 2), (0.95, 7), (0.999, 30)])
def test_dunnetts_quantile_is_that_of_correlated_students(confidence, freedom):
    for correlation in (0.0, 0.3, 0.5):
        critical = dunnett_quantile(4, freedom, confidence, correlation)
        shape = np.full((4, 4), correlation) + (1 - correlation) * np.eye(4)
        inside = stats.multivariate_t(shape=shape, df=freedom, seed=1).cdf(
            [critical] * 4, lower_limit=[-critical] * 4, maxpts=200_000
        )
        assert inside == pytest.approx(confidence, abs=2e-4)


# ---- rows in blocks


def table(blocks=4, columns=5, seed=0, noise=0.05):
    """Seconds of equally fast rows in blocks that are not equally fast."""
    random = np.random.default_rng(seed)
    logs = random.normal(0, noise, (blocks, columns)) + random.normal(0, 0.2, (blocks, 1))
    return 10 * np.exp(logs)


def bounds(ratio):
    return [math.log(value) for value in (ratio.value, ratio.low, ratio.high)]


def judged_independently(times, reference, others, confidence=0.95):
    """Return [(logarithm of the ratio, half width of its interval)], from quadratic forms of the observations."""
    logs, columns_of = np.log(times), range(times.shape[1])
    block, column = np.nonzero(np.isfinite(logs))
    design = np.column_stack([block == one for one in range(len(times))] + [column == one for one in columns_of])
    estimate, seen = np.linalg.pinv(design.astype(float)), logs[block, column]
    rest, of = np.eye(len(seen)) - design @ estimate, [np.diag(1.0 * (column == one)) for one in columns_of]
    freedom, counts = round(np.trace(rest)), np.array([part.sum() for part in of])
    shared = min(0.5, (freedom + 1 - counts.max()) / 4)
    pooled = shared * (seen @ rest @ seen) / freedom
    expected = [[np.trace(rest @ one @ rest @ two) for two in of] for one in of] + shared * np.eye(len(of))
    found = np.linalg.solve(expected, [seen @ rest @ one @ rest @ seen + pooled for one in of])
    variances = np.maximum(found, pooled / (counts - 1 + shared))
    noise = rest @ sum(own * part for own, part in zip(variances, of, strict=True)) @ rest
    squared = [[np.trace(one @ noise @ two @ noise) for two in of] for one in of] + shared * np.diag(variances**2)
    errors = np.linalg.inv(expected) @ (2 * np.array(squared)) @ np.linalg.inv(expected)
    weights = [estimate[len(times) + reference] - estimate[len(times) + other] for other in others]
    covariance = np.array(weights) @ np.transpose(weights) / np.outer(*2 * [np.linalg.norm(weights, axis=1)])
    correlation = min(0.5, round(covariance.min(), 3)) if len(others) > 1 else 0.5
    results = []
    for own in weights:
        shares = np.array([(own[column == one] ** 2).sum() for one in columns_of])
        variance = shares @ variances
        freedom = max(1.0, 2 * variance**2 / (shares @ errors @ shares))  # Satterthwaite's
        whole = math.floor(freedom)
        ends = [math.log(dunnett_quantile(len(others), whole + more, confidence, correlation)) for more in (0, 1)]
        critical = np.interp(-1 / freedom, [-1 / whole, -1 / (whole + 1)], ends)
        results.append((own @ seen, math.exp(critical) * math.sqrt(variance)))
    return results


@pytest.mark.parametrize(
    "shape, holes", [((6, 5), []), ((6, 5), [(0, 1), (3, 0), (3, 4)]), ((6, 5), [(1, 2), (2, 2), (5, 3)]), ((2, 3), [])]
)
def test_intervals_are_those_of_an_independent_calculation(shape, holes):
    columns = shape[1]
    times = table(*shape) * np.exp(np.random.default_rng(5).normal(0, 0.01, shape) * [9, 1, 3, 1, 6][:columns])
    for place in holes:
        times[place] = np.nan
    found = [bounds(ratio) for ratio in ratios(times, 0, range(1, columns), 0.9)]
    expected = judged_independently(times, 0, range(1, columns), 0.9)
    assert np.array(found) == pytest.approx(np.array([(own, own - margin, own + margin) for own, margin in expected]))


def test_two_columns_are_compared_by_a_paired_t_test():
    times = table(columns=2)
    (found,) = ratios(times, 0, [1])
    assert bounds(found)[1:] == pytest.approx(stats.ttest_rel(*np.log(times).T).confidence_interval())


def test_two_steady_columns_beside_a_very_noisy_one_are_compared_by_a_paired_t_test():
    random = np.random.default_rng(1)
    logs = random.normal(0, 0.2, (4, 1)) + random.normal(0, 1, (4, 3)) * [0.01, 0.01, 1.0]
    found, _ = ratios(np.exp(logs), 0, [1, 2])
    alone = stats.ttest_rel(logs[:, 0], logs[:, 1]).confidence_interval(1 - 0.05 * 0.05 / 2)
    assert bounds(found)[1:] == pytest.approx(alone)
    assert math.log(found.high / found.low) < 0.2


def test_an_empty_column_does_not_change_the_others():
    times = table()
    with_failed = np.column_stack([times, np.full(4, np.nan)])
    for found, expected in zip(ratios(with_failed, 0, [1, 2]), ratios(times, 0, [1, 2]), strict=True):
        assert bounds(found) == pytest.approx(bounds(expected))
    assert residual_deviation(with_failed) == pytest.approx(residual_deviation(times))


def test_columns_with_fewer_than_two_common_blocks_have_no_interval():
    times = table(columns=3, noise=0.01) * [1.0, 1.0, 1.5]
    times[:3, 1] = np.nan
    alone, other = ratios(times, 0, [1, 2])
    # The third column shows the effects of the blocks.
    assert alone == Ratio(pytest.approx(times[3, 0] / times[3, 1], rel=0.02))
    assert other.words == SLOWER and other.value == pytest.approx(stats.gmean(times[:, 0] / times[:, 2]))


def test_means_are_adjusted_for_missing_slow_blocks():
    times = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, np.nan]]) * [1.0, 0.9]
    means = adjusted_means(times)
    assert means == pytest.approx([2.0, 1.8]) and means[0] / means[1] == pytest.approx(ratios(times, 0, [1])[0].value)
    assert adjusted_means(table()) == pytest.approx(stats.gmean(table()))
    apart = np.array([[1.0, np.nan], [np.nan, 3.0]])
    assert adjusted_means(apart) == pytest.approx([1.0, 3.0])
    assert ratios(apart, 0, [1]) == [Ratio(pytest.approx(1 / 3))]
    assert np.isnan(adjusted_means(np.full((0, 2), np.nan))).all()


def test_a_difference_of_two_columns_has_the_paired_interval_of_student():
    values = np.array([[70.0, 69.0], [60.0, 59.5], [65.0, 64.0]])
    found = stats.ttest_rel(values[:, 1], values[:, 0])
    expected = (values[:, 1].mean() - values[:, 0].mean(), *found.confidence_interval(0.9))
    assert Table(tuple("ab"), values).difference("b", "a", 0.9) == pytest.approx(expected, rel=1e-4)
    assert Table(tuple("ab"), values[:, [0, 0]]).difference("b", "a", 0.9) == (0.0, 0.0, 0.0)
    assert Table(tuple("ab"), values[:1]).difference("b", "a", 0.9) == (-1.0, -math.inf, math.inf)


def test_a_noisy_column_has_wide_differences():
    """With the mean noise of all columns, a fifth of these intervals would lie below 0 instead of 5%."""
    noise, random = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 1.2]), np.random.default_rng(1)
    tables = [Table(tuple("abcdef"), random.normal(0, noise, (3, 6))) for _ in range(400)]
    below = [table.difference("f", "a", 0.9)[2] < 0 for table in tables]
    assert np.mean(below) < 0.08


def test_the_error_is_shared_by_all_rows_that_the_times_may_choose():
    assert any_reference(0.95, 2) == pytest.approx(0.95) and any_reference(0.95, 4, 5) == pytest.approx(0.995)


@pytest.mark.parametrize("blocks, columns, known", [(1, 5, False), (2, 2, False), (2, 3, True), (3, 2, True)])
def test_an_interval_needs_two_degrees_of_freedom(blocks, columns, known):
    (found,) = ratios(table(blocks, columns), 0, [1])
    assert (found.low is not None, found.words != TOO_FEW) == (known, known)
    assert found.value == pytest.approx(stats.gmean(table(blocks, columns)[:, 0] / table(blocks, columns)[:, 1]))


def test_equal_times_have_a_narrow_interval():
    for found, value in zip(ratios(np.array([[2.0, 1.0, 4.0]] * 3), 0, [1, 2]), (2.0, 0.5), strict=True):
        assert bounds(found) == pytest.approx(3 * [math.log(value)])


def test_with_many_blocks_every_look_spends_its_share_of_the_error():
    shares = np.arange(1, 6) / 5  # the means of five equally spaced looks have the correlation √(earlier ÷ later)
    correlation = np.sqrt(np.minimum.outer(shares, shares) / np.maximum.outer(shares, shares))
    edges = []
    for looks in range(1, 6):
        found = look_confidence(tuple(range(1000, 1000 * looks + 1, 1000)), tuple(shares[:looks]), 2)
        edges.append(stats.norm.ppf((1 + found) / 2))
        distribution = stats.multivariate_normal(cov=correlation[:looks, :looks], seed=1)
        inside = distribution.cdf(edges, lower_limit=[-edge for edge in edges])
        assert 1 - inside == pytest.approx(0.05 * shares[looks - 1] ** 1.5, rel=0.08)
    assert look_confidence((10,), (1.0,), 2) == pytest.approx(0.95, abs=1e-3)
    assert look_confidence((3, 4), (0.3, 1.2), 2) == look_confidence((3, 4), (0.3, 1.0), 2)


@pytest.mark.parametrize("columns", [2, 3])
def test_several_looks_together_have_95_percent_confidence(columns):
    times = np.random.default_rng(1).normal(size=(100_000, 6, columns))
    residuals = times - times.mean(axis=2, keepdims=True)
    claimed = np.zeros(len(times), bool)
    for last in range(3, 7):
        looks = tuple(range(3, last + 1))
        confidence = look_confidence(looks, tuple(look / 6 for look in looks), columns)
        so_far = residuals[:, :last] - residuals[:, :last].mean(axis=1, keepdims=True)
        freedom = (columns - 1) * (last - 1)
        error = np.sqrt((so_far**2).sum(axis=(1, 2)) / freedom * 2 / last)
        difference = times[:, :last, 0].mean(axis=1) - times[:, :last, 1].mean(axis=1)
        claimed |= np.abs(difference) > stats.t.ppf((1 + confidence) / 2, freedom) * error
    assert claimed.mean() == pytest.approx(0.05, abs=0.002)


def test_the_resolution_is_the_sum_of_the_critical_value_and_the_80_percent_quantile():
    assert resolution(0.05, 1, 6, 5) == resolution(0.05, 2, 2, 1) == math.inf
    for blocks, columns, freedom in ((3, 4, 3), (5, 3, 5), (10, 2, 9)):  # one more than a paired test has
        errors = dunnett_quantile(columns - 1, freedom, 0.9) + stats.t.ppf(0.8, freedom)
        share = resolution(0.05, blocks, columns, columns - 1, 0.9)
        assert math.log1p(share) == pytest.approx(errors * 0.05 * math.sqrt(2 / blocks), rel=1e-5)


def test_self_tests_need_noise_and_enough_values():
    assert block_dependence(np.exp(np.outer(np.arange(30.0), [0.1, 0.0])))[1] == 0.001  # no resample is as extreme
    assert block_dependence(table(blocks=5)) and block_dependence(table(blocks=4)) is None
    assert block_dependence(np.full((5, 2), 1.0)) is None
    assert two_modes([0.0] * 9 + [1.0] * 9) == (pytest.approx(1.0), 0.0001)
    assert two_modes([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])[0] == pytest.approx(1.0)
    assert two_modes([1.0, 2.0, 3.0, 4.0, 5.0]) is None and two_modes([1.0] * 9) is None


def as_chance(found, others, samples=1000):
    """Assert that a statistic has the p-value that is its rank among others. samples: that it had, with itself."""
    value, chance = found
    assert chance * samples == pytest.approx(round(chance * samples), abs=1e-9)
    assert chance == pytest.approx(np.mean(np.array(others) >= value), abs=0.05)


def test_the_chances_of_self_tests_are_those_of_an_independent_calculation():
    random, times = np.random.default_rng(3), table(blocks=7, columns=4, seed=2)
    logs = np.log(times)
    rest = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()

    def dependence(order):
        return np.mean([(own[1:] * own[:-1]).sum() / (own**2).sum() for own in rest[order].T])

    found = block_dependence(times)
    assert found[0] == pytest.approx(dependence(range(7))) and 0.1 < found[1] < 0.9
    as_chance(found, [dependence(random.permutation(7)) for _ in range(999)])

    def between(values):
        whole = sorted(values)
        parts = [(whole[:cut], whole[cut:]) for cut in range(2, len(whole) - 1)]
        return max(1 - sum(len(own) * np.var(own) for own in part) / (len(whole) * np.var(whole)) for part in parts)

    values = [3.0, -6.0, 9.2, 2.2, 8.1, 2.9, 9.0]
    found = two_modes(values)
    assert found[0] == pytest.approx(between(values)) and 0.05 < found[1] < 0.9
    assert two_modes([-value for value in values])[0] == pytest.approx(found[0])
    as_chance(found, [between(random.normal(size=7)) for _ in range(999)], samples=10_000)


def test_a_difference_keeps_its_interval_in_another_unit():
    assert Excess("data", 2.0, 1.0, 3.5).times(4) == Excess("data", 8.0, 4.0, 14.0)
    assert Excess("data", 2.0).times(4) == Excess("data", 8.0)


INTERVALS = {
    FASTER: [(1.01, 1.2)],
    SLOWER: [(0.9, 0.99)],
    UNDECIDED: [(0.9, 1.1), (1.0, 1.1), (0.98, 1.04), (0.99, 1.01, False, 0.005)],
    EQUAL: [(0.98, 1.02), (1.01, 1.02), (1.02, 1.04, False, 0.05)],
    TOO_FEW: [(None, None)],
    DISTURBED: [(1.01, 1.2, True), (None, None, True)],
}


@pytest.mark.parametrize("words, intervals", INTERVALS.items())
def test_the_words_of_an_interval(words, intervals):
    for interval in intervals:
        ratio = Ratio(1.0, *interval)
        assert (ratio.words, ratio.decided) == (words, words in (FASTER, SLOWER, EQUAL))
