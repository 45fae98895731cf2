"""Medians, ratios and their intervals; what is warned of. The intervals' coverage: benchmarks/false_alarms.py."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from comparison.judge.analysis import analyse
from comparison.judge.blocks import Table, adjusted_means, block_dependence, ratios, residual_deviation, two_modes
from comparison.judge.measures import measure
from comparison.judge.statistics import (
    DISTURBED,
    EQUAL,
    FASTER,
    SLOWER,
    TOO_FEW,
    UNDECIDED,
    Ratio,
    dunnett_quantile,
    look_confidence,
    mean_interval,
    resolution,
    t_quantile,
)
from comparison.judge.summaries import run_seconds, unsteadiness
from comparison.show.sentences import tell
from tests.reports import configuration, make_result, report_of, runs

stats = pytest.importorskip("scipy.stats")


def test_t_quantile():
    for freedom, confidence in product((1, 2, 2.5, 4, 30, 1000), (0.6, 0.95, 0.9999)):
        assert t_quantile(freedom, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-5)


# C. W. Dunnett, Biometrics 20, 1964, table II
@pytest.mark.parametrize(
    "freedom, row",
    [(5, (2.57, 3.03, 3.29, 3.48, 3.62)), (10, (2.23, 2.57, 2.76, 2.89, 2.99)), (20, (2.09, 2.38, 2.54, 2.65, 2.73))],
)
def test_dunnetts_quantile(freedom, row):
    found = [dunnett_quantile(count, freedom) for count in range(1, len(row) + 1)]
    assert found == pytest.approx(row, abs=0.0051)
    assert found[0] == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3])
def test_dunnetts_quantile_of_an_early_look_with_few_blocks(freedom):
    assert dunnett_quantile(1, freedom, 0.9999) == pytest.approx(stats.t.ppf(0.99995, freedom), rel=1e-4)


@pytest.mark.parametrize("confidence, freedom", [(0.9, 2), (0.95, 7), (0.999, 30)])
def test_dunnetts_quantile_for_other_correlations(confidence, freedom):
    for correlation in (0.0, 0.3):
        critical = dunnett_quantile(3, freedom, confidence, correlation)
        shape = np.full((3, 3), correlation) + (1 - correlation) * np.eye(3)
        inside = stats.multivariate_t(shape=shape, df=freedom, seed=1).cdf(
            [critical] * 3, lower_limit=[-critical] * 3, maxpts=200_000
        )
        assert inside == pytest.approx(confidence, abs=2e-4)


# ---- rows in blocks


def table(blocks=4, columns=5, seed=0, noise=0.05):
    """Seconds of rows that are equally fast, in blocks that are not."""
    random = np.random.default_rng(seed)
    logs = random.normal(0, noise, (blocks, columns)) + random.normal(0, 0.2, (blocks, 1))
    return 10 * np.exp(logs)


def bounds(ratio):
    return [math.log(value) for value in (ratio.value, ratio.low, ratio.high)]


def test_each_row_has_a_noise_of_its_own_and_a_share_of_the_mean_one():
    logs = np.log(times := table())
    residuals = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    squares, mean = (residuals**2).sum(0), (residuals**2).sum() / 12  # (4 - 1)(5 - 1) degrees of freedom
    assert residual_deviation(times) == pytest.approx(math.sqrt(mean))
    # three degrees of each row, of which 1 - 2/5 tell of itself and the rest of all; half a one of the mean
    own = np.maximum(mean + (squares - squares.mean()) / (3 * (1 - 2 / 5) + 0.5), 0.5 * mean / 3.5)
    for found, other in zip(ratios(times, 0, [1, 2, 3, 4]), range(1, 5), strict=True):
        difference, error = (logs[:, 0] - logs[:, other]).mean(), math.sqrt((own[0] + own[other]) / 4)
        centre, low, high = bounds(found)
        assert (centre, (low + high) / 2) == pytest.approx((difference, difference))
        assert dunnett_quantile(4, 8) < (high - low) / 2 / error < dunnett_quantile(4, 3)


def test_noise_is_told_apart_without_bias_also_where_blocks_have_holes():
    random, deviations = np.random.default_rng(0), np.array([0.08, 0.02, 0.02, 0.04])
    logs = random.normal(0, 1, (400, 4)) * deviations + random.normal(0, 0.5, (400, 1))
    logs[random.random(logs.shape) < 0.2] = np.nan
    for ratio, other in zip(ratios(np.exp(logs), 0, [1, 2, 3]), range(1, 4), strict=True):
        blocks = np.isfinite(logs).sum(0)[[0, other]]
        least = math.sqrt((deviations[[0, other]] ** 2 / blocks).sum())
        assert 0.95 < math.log(ratio.high / ratio.low) / 2 / dunnett_quantile(3, 400) / least < 1.1


def test_two_rows_are_paired():
    times = table(columns=2)
    (found,) = ratios(times, 0, [1])
    assert bounds(found)[1:] == pytest.approx(stats.ttest_rel(*np.log(times).T).confidence_interval())


def test_blocks_with_holes_are_judged_by_least_squares():
    times = table(noise=0.01)
    times[0, 1] = times[3, 0] = times[3, 4] = np.nan
    blocks, columns = np.nonzero(np.isfinite(times))
    # another parametrisation: the first block's first row, and how the others differ from it
    others = [blocks == block for block in range(1, 4)] + [columns == column for column in range(1, 5)]
    design = np.column_stack([np.ones(len(blocks)), *others])
    estimates, *_ = np.linalg.lstsq(design, np.log(times[blocks, columns]))
    found, several = ratios(times, 0, [1])[0], ratios(times, 0, [1, 2, 3, 4])[0]
    assert math.log(found.value) == pytest.approx(-estimates[4]) and several.value == found.value
    # with holes the differences correlate less, and the critical value is a little larger
    larger = math.log(several.high / several.low) / math.log(found.high / found.low)
    least, most = (dunnett_quantile(4, 3, correlation=correlation) / t_quantile(3) for correlation in (0.5, 0.0))
    assert 0.9 * least < larger < 1.1 * most


def test_a_failed_row_changes_nothing_for_the_others():
    times = table()
    with_failed = np.column_stack([times, np.full(4, np.nan)])
    for found, expected in zip(ratios(with_failed, 0, [1, 2]), ratios(times, 0, [1, 2]), strict=True):
        assert bounds(found) == pytest.approx(bounds(expected))
    assert residual_deviation(with_failed) == pytest.approx(residual_deviation(times))


def test_rows_with_less_than_two_blocks_in_common_have_no_interval():
    times = table(columns=3, noise=0.01) * [1.0, 1.0, 1.5]
    times[:3, 1] = np.nan
    alone, other = ratios(times, 0, [1, 2])
    assert alone == Ratio(pytest.approx(times[3, 0] / times[3, 1], rel=0.02))  # the third column tells of the blocks
    assert other.words == SLOWER and other.value == pytest.approx(stats.gmean(times[:, 0] / times[:, 2]))


def test_a_column_without_its_slow_blocks_is_no_faster_for_that():
    times = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, np.nan]]) * [1.0, 0.9]
    means = adjusted_means(times)
    assert means == pytest.approx([2.0, 1.8]) and means[0] / means[1] == pytest.approx(ratios(times, 0, [1])[0].value)
    assert adjusted_means(table()) == pytest.approx(stats.gmean(table()))
    apart = np.array([[1.0, np.nan], [np.nan, 3.0]])
    assert adjusted_means(apart) == pytest.approx([1.0, 3.0])
    assert ratios(apart, 0, [1]) == [Ratio(pytest.approx(1 / 3))]
    assert np.isnan(adjusted_means(np.full((0, 2), np.nan))).all()


def test_a_difference_of_means_is_that_of_a_two_way_analysis_of_variance():
    values = np.array([[70.0, 70.5, 69.0], [60.0, 60.1, 59.5], [65.0, 65.2, 64.0]])
    residuals = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    margin = stats.t.ppf(0.95, 4) * math.sqrt((residuals**2).sum() / 4 * 2 / 3)
    difference = values[:, 2].mean() - values[:, 0].mean()
    expected = pytest.approx((difference, difference - margin, difference + margin))
    assert Table(tuple("abc"), values).difference("c", "a", 0.9) == expected
    assert Table(tuple("abc"), values[:1]).difference("c", "a", 0.9) == (pytest.approx(-1.0), -math.inf, math.inf)


@pytest.mark.parametrize("blocks, columns, known", [(1, 5, False), (2, 2, False), (2, 3, True), (3, 2, True)])
def test_an_interval_needs_two_degrees_of_freedom(blocks, columns, known):
    (found,) = ratios(table(blocks, columns), 0, [1])
    assert (found.low is not None, found.words != TOO_FEW) == (known, known)
    assert found.value == pytest.approx(stats.gmean(table(blocks, columns)[:, 0] / table(blocks, columns)[:, 1]))


def test_equal_times_have_a_narrow_interval():
    for found, value in zip(ratios(np.array([[2.0, 1.0, 4.0]] * 3), 0, [1, 2]), (2.0, 0.5), strict=True):
        assert bounds(found) == pytest.approx(3 * [math.log(value)])


def test_the_confidence_of_several_looks():
    # O'Brien and Fleming's spending function for five equally spaced looks, as in the package ldbounds
    published = (4.8769, 3.3570, 2.6803, 2.2898, 2.0310)
    for looks, edge in enumerate(published, start=1):
        blocks = tuple(range(1, looks + 1))
        found = look_confidence(blocks, tuple(block / 5 for block in blocks))
        assert stats.norm.ppf((1 + found) / 2) == pytest.approx(edge, abs=1e-4)
    assert look_confidence((10,), (1.0,)) == pytest.approx(0.95)
    assert look_confidence((3, 4), (0.3, 1.2)) == look_confidence((3, 4), (0.3, 1.0))


def test_several_looks_together_keep_the_confidence():
    walks = np.random.default_rng(0).normal(size=(100_000, 6)).cumsum(axis=1)
    claimed = np.zeros(len(walks), bool)
    for last in range(3, 7):
        looks = tuple(range(3, last + 1))
        edge = stats.norm.ppf((1 + look_confidence(looks, tuple(look / 6 for look in looks))) / 2)
        claimed |= np.abs(walks[:, last - 1]) > edge * math.sqrt(last)
    assert claimed.mean() == pytest.approx(0.05, abs=0.002)


def test_the_resolution_is_found_in_four_of_five():
    assert resolution(0.05, 1, 6, 5) == resolution(0.05, 2, 2, 1) == math.inf
    found = [resolution(0.05, blocks, 4, 3) for blocks in (3, 5, 10)]
    assert found == sorted(found, reverse=True) and found[0] > 0.15 and found[-1] < 0.09
    told = 0
    for seed in range(300):
        times = table(5, 4, seed) * [found[1] + 1, 1, 1, 1]
        told += ratios(times, 0, [1, 2, 3])[0].words == FASTER
    assert 0.74 < told / 300 < 0.86


def test_blocks_that_depend_on_each_other_are_told():
    random, found = np.random.default_rng(1), {0.0: 0, 0.9: 0}
    for kept in found:
        for _ in range(40):
            states = [random.normal(size=6)]
            for _ in range(9):
                states.append(kept * states[-1] + math.sqrt(1 - kept**2) * random.normal(size=6))
            found[kept] += block_dependence(np.exp(0.04 * np.array(states)))[1] <= 0.01
    assert found[0.0] <= 3 and found[0.9] >= 34  # 1 and 96%
    assert block_dependence(table(blocks=4)) is None and block_dependence(np.full((5, 2), 1.0)) is None


def test_two_modes_are_told():
    random = np.random.default_rng(2)
    samples = [random.normal(size=20) for _ in range(40)]
    told = [[two_modes(values + gap * (np.arange(20) < 8))[1] <= 0.01 for values in samples] for gap in (0, 6)]
    assert sum(told[0]) <= 3 and sum(told[1]) >= 36  # 1 and 97%
    part, _ = two_modes([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert part == pytest.approx(1.0) and two_modes([1.0, 2.0, 3.0, 4.0, 5.0]) is None and two_modes([1.0] * 9) is None


INTERVALS = {
    FASTER: [(1.01, 1.2)],
    SLOWER: [(0.9, 0.99)],
    UNDECIDED: [(0.9, 1.1), (1.0, 1.1), (0.98, 1.04), (0.99, 1.01, False, 0.005)],
    EQUAL: [(0.98, 1.02), (1.01, 1.02), (1.02, 1.04, False, 0.05)],
    TOO_FEW: [(None, None)],
    DISTURBED: [(1.01, 1.2, True), (None, None, True)],
}


@pytest.mark.parametrize("words, intervals", INTERVALS.items())
def test_what_an_interval_says(words, intervals):
    for interval in intervals:
        ratio = Ratio(1.0, *interval)
        assert (ratio.words, ratio.decided) == (words, words in (FASTER, SLOWER, EQUAL))


def row_of(*results, **values):
    return report_of((configuration(), results), **values).rows[0]


def summary_of(*results, method="single", **values):
    return measure(report_of((configuration(method), results), **values)).summaries[method]


def test_the_mean_leaves_out_the_warm_up_epoch_and_what_failed():
    seconds = (9.0, 1.0, 4.0, 4.0), (9.0, 3.0, 5.0, 4.0), (9.0, 8.0, 6.0, 7.0)
    results = [*(make_result(seconds=own) for own in seconds), "failed"]
    numbers, mean = summary_of(*results), (3.0 * 4.0 * 7.0) ** (1 / 3)
    assert run_seconds(row_of(*results)) == [3.0, 4.0, 7.0]
    assert numbers.epoch_seconds == pytest.approx(mean) and numbers.images_per_second == pytest.approx(1000 / mean)
    assert (numbers.fastest_epoch, numbers.slowest_epoch, numbers.runs) == (1.0, 8.0, 3)
    assert numbers.accuracy == pytest.approx(0.9)
    assert summary_of(make_result(seconds=(5.0,))).epoch_seconds == pytest.approx(5.0)
    assert summary_of("failed").epoch_seconds is None


def test_a_run_that_diverged_is_not_counted_though_it_left_a_result():
    report = report_of((configuration(), [make_result(seconds=(9.0, 2.0)), make_result(seconds=(9.0, 1.0))]))
    diverged = replace(report.outcomes[1], status="diverged")
    (row,) = replace(report, outcomes=(report.outcomes[0], diverged)).rows
    assert run_seconds(row) == [2.0] and row.troubles == [diverged]


def test_what_trains_something_else_on_purpose_has_no_accuracy():
    numbers = summary_of(*runs("ddp"), method="ddp-no-sync")
    assert numbers.accuracy is None and numbers.epoch_seconds == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    "results, words",
    [
        (runs(), []),
        (runs(seconds=(2.0, 2.3, 2.1)), ["standard deviation of 7%", "2.00 to 2.30 s"]),
        (runs(first=8.0), ["4.0 times", "--epochs"]),
        ([make_result(seconds=(1.0, 1.0, 3.0, 1.0, 3.0, 1.0))], ["epochs 3, 5 took 3.00, 3.00 s (median 1.00 s)"]),
        ([make_result(seconds=(1.0, 1.0, 1.0, 1.2, 1.0, 1.0))], []),
        ([make_result(seconds=(1.0, 1.0, 1.0, 1.0, 0.5, 1.0))], ["epoch 5 took 0.50 s"]),
    ],
)
def test_unsteady_rows_are_warned_of_with_cause_and_remedy(results, words):
    reasons = list(map(tell, unsteadiness(row_of(*results))))
    assert len(reasons) == bool(words) and all(word in reason for reason in reasons for word in words)


def test_what_stalls_counts_and_other_programs_do_on_few_cores():
    seconds = (9.0, 1.0, 3.0, 1.0, 3.0, 1.0)
    assert run_seconds(row_of(make_result(seconds=seconds))) == pytest.approx([sum(seconds[1:]) / 5])
    large = {"torch": "2.11.0", "cores": 8, "gpus": []}
    for environment, disturbed in (({}, True), ({"environment": large}, False)):
        assert row_of(*runs(**environment), foreign_cores={"single": 0.5}).disturbed == disturbed


def test_the_time_of_a_target_has_an_interval_from_three_runs_on():
    seconds = [8.0, 9.0, 11.0]
    logs = np.log(seconds)
    expected = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert np.log(mean_interval(seconds, math.exp(logs.mean()))) == pytest.approx(expected)
    assert mean_interval(seconds[:2], 8.5) is None
    assert np.log(summary_of(*runs(seconds=seconds, epochs=1)).training_interval) == pytest.approx(expected)


def test_blocks_that_depend_on_one_another_and_rows_of_two_modes_are_warned_of():
    random = np.random.default_rng(1)
    slow = np.cumsum(random.normal(0, 0.05, (30, 2)), axis=0)  # of each row, from block to block
    modes = np.column_stack([random.normal(0, 0.01, 30), 0.2 * (np.arange(30) % 3 == 0) + random.normal(0, 0.01, 30)])

    def warned(noise):
        times = np.exp(noise)
        rows = (configuration(), runs(seconds=times[:, 0])), (configuration("ddp"), runs("ddp", times[:, 1]))
        analysis = analyse(report_of(*rows))
        return analysis.resolution.dependence, {found.kind for entry in analysis.rows for found in entry.warnings}

    dependence, _ = warned(slow)
    assert dependence > 0.5
    independent, kinds = warned(modes)
    assert independent is None and "two modes" in kinds
    assert "two modes" not in warned(random.normal(0, 0.05, (30, 2)))[1]
