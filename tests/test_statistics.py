"""Medians, ratios and their intervals; what is warned of. The intervals' coverage: benchmarks/false_alarms.py."""

import math
import random
import statistics
from dataclasses import replace

import pytest

from common.words import count
from comparison.measures import run_seconds, summarize, unsteadiness
from comparison.statistics import Ratio, ratio, t_quantile
from reports import configuration, report_of, runs
from test_results import make_result


def test_a_noun_follows_its_number():
    assert [count(number, "run") for number in (0, 1, 3)] == ["0 runs", "1 run", "3 runs"]
    assert [count(number, "batch", "es") for number in (1, 2)] == ["1 batch", "2 batches"]


def row_of(*results, **values):
    return report_of((configuration(), results), **values).rows[0]


@pytest.mark.parametrize("freedom, expected", [  # R: qt(0.975, freedom)
    (1, 12.70620), (2, 4.302653), (2.5, 3.574655), (4, 2.776445), (30, 2.042272), (1000, 1.962339)])
def test_t_quantile(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, abs=2e-5)


def test_ratio_is_welchs_interval_on_logarithms():
    result = ratio([10.0, 11.0, 12.0], [5.0, 5.2, 4.9, 5.1])
    first, second = ([math.log(value) for value in values] for values in ([10, 11, 12], [5, 5.2, 4.9, 5.1]))
    error = statistics.variance(first) / 3, statistics.variance(second) / 4
    freedom = sum(error) ** 2 / (error[0] ** 2 / 2 + error[1] ** 2 / 3)
    margin = t_quantile(freedom) * math.sqrt(sum(error))
    assert math.log(result.value) == pytest.approx(statistics.mean(first) - statistics.mean(second))
    assert math.log(result.high / result.low) == pytest.approx(2 * margin)
    assert 2 < freedom < 3 and result.words == "faster"


@pytest.mark.parametrize("low, high, words", [
    (1.01, 1.2, "faster"), (0.9, 0.99, "slower"), (0.9, 1.1, "no significant difference"),
    (1.0, 1.1, "no significant difference"), (None, None, "no interval: 1 run")])
def test_words(low, high, words):
    assert Ratio(1.0, low, high).words == words


def test_one_run_has_no_interval_and_equal_times_a_narrow_one():
    assert ratio([2.0], [1.0, 1.1]) == Ratio(pytest.approx(2 / math.sqrt(1.1)), None, None)
    assert ratio([2.0, 2.0], [1.0, 1.0]) == Ratio(2.0, 2.0, 2.0)


def test_an_interval_of_noise_holds_the_truth():
    generator = random.Random(1)
    held = 0
    for _ in range(300):
        samples = [[10 * (1 + generator.expovariate(20)) for _ in range(3)] for _ in range(2)]
        result = ratio(*samples)
        held += result.low <= 1 <= result.high
    assert 0.94 <= held / 300 < 1


def test_the_median_leaves_out_the_warm_up_epoch():
    row = row_of(make_result(seconds=(9.0, 2.0, 4.0, 3.0)), make_result(seconds=(9.0, 3.0, 5.0, 4.0)),
                 make_result(seconds=(9.0, 8.0, 6.0, 7.0)))
    numbers = summarize(row)
    assert run_seconds(row) == [3.0, 4.0, 7.0]
    assert (numbers.epoch_seconds, numbers.fastest_epoch, numbers.slowest_epoch, numbers.runs) == (4.0, 2.0, 8.0, 3)
    assert numbers.images_per_second == 250 and numbers.accuracy == pytest.approx(0.9)
    assert summarize(row_of(make_result(seconds=(5.0,)))).epoch_seconds == 5.0
    assert summarize(row_of("failed")).epoch_seconds is None


def test_a_failed_run_is_not_counted():
    row = row_of(make_result(seconds=(9.0, 2.0)), "failed", make_result(seconds=(9.0, 4.0)))
    assert run_seconds(row) == [2.0, 4.0] and summarize(row).runs == 2


def test_a_run_that_diverged_is_not_counted_though_it_left_a_result():
    report = report_of((configuration(), [make_result(seconds=(9.0, 2.0)), make_result(seconds=(9.0, 1.0))]))
    diverged = replace(report.outcomes[1], status="diverged")
    (row,) = replace(report, outcomes=(report.outcomes[0], diverged)).rows
    assert run_seconds(row) == [2.0] and row.troubles == [diverged]


def test_what_trains_something_else_on_purpose_has_no_accuracy():
    row = report_of((configuration("ddp-no-sync"), runs("ddp"))).rows[0]
    assert summarize(row).accuracy is None and summarize(row).epoch_seconds == 2.0


def test_unsteady_rows_are_warned_of_with_cause_and_remedy():
    assert unsteadiness(row_of(*runs())) == []
    (spread,) = unsteadiness(row_of(*runs(seconds=(2.0, 2.3, 2.1))))
    assert "14%" in spread and "2.00 to 2.30 s" in spread and "--repeats" in spread
    (first,) = unsteadiness(row_of(*runs(first=8.0)))
    assert "4.0 times" in first and "--epochs" in first
    (foreign,) = unsteadiness(row_of(*runs(), foreign_cores={"single": 0.5}))
    assert "kept 0.5 of 1 cores busy" in foreign
    assert unsteadiness(row_of(*runs(environment={"torch": "2.11.0", "cores": 8}), foreign_cores={"single": 0.5})) == []
