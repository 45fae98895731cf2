"""What runs show: means, warnings, and the utilisation of GPUs."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from comparison.judge.analysis import analyse
from comparison.judge.measures import _epoch_seconds, _fixed_share, confidence_of, measure
from comparison.judge.summaries import unsteadiness
from comparison.plan.counterparts import TWIN, counterpart
from comparison.show.report import write_csv
from comparison.show.sentences import finding_sentence
from comparison.show.tables import main_table
from tests.reports import SINGLE, configuration, make_result, report_of, runs

stats = pytest.importorskip("scipy.stats")


def row_of(*results):
    return report_of((configuration(), results)).rows[0]


def summary_of(*results, method="single"):
    return measure(report_of((configuration(method), results))).summaries[method]


def test_means_exclude_the_warm_up_epoch_and_runs_that_did_not_end_well():
    seconds = (9.0, 1.0, 4.0, 4.0), (9.0, 3.0, 5.0, 4.0), (9.0, 8.0, 6.0, 7.0), (9.0, 9.0)
    report = report_of((configuration(), [*(make_result(seconds=own) for own in seconds), "failed"]))
    *well, last, failed = report.outcomes
    diverged = replace(last, status="diverged")
    report = replace(report, outcomes=(*well, diverged, failed))
    numbers, mean = measure(report).summaries["single"], (3.0 * 4.0 * 7.0) ** (1 / 3)
    assert report.rows[0].troubles == [diverged, failed]
    assert numbers.epoch_seconds == pytest.approx(mean) and numbers.images_per_second == pytest.approx(1000 / mean)
    assert (numbers.fastest_epoch, numbers.slowest_epoch, numbers.runs) == (1.0, 8.0, 3)
    assert numbers.accuracy == pytest.approx(0.9)
    assert summary_of(make_result(seconds=(5.0,))).epoch_seconds == pytest.approx(5.0)
    assert summary_of(make_result(seconds=(5.0, 4.0), timed_from=1)).epoch_seconds == pytest.approx(4.5)
    assert summary_of("failed").epoch_seconds is None


def test_a_warmed_run_has_no_long_first_epoch_but_its_first_evaluation_is_cold():
    cold = make_result(seconds=(3.0, 1.0), startup_seconds=0.0, timed_from=2)
    warmed = replace(cold, timed_from=1)
    lengths = [sum(e.train_seconds + e.evaluate_seconds for e in cold.epochs)] * 2
    assert [_fixed_share(run) * length for run, length in zip((cold, warmed), lengths, strict=True)] == [2.0, 0.0]
    first, second = warmed.epochs
    run = replace(warmed, epochs=(replace(first, evaluate_seconds=9.0), second))
    assert _epoch_seconds(0, None, run) == second.evaluate_seconds


@pytest.mark.parametrize(
    "results, words",
    [
        (runs(seconds=(2.0, 2.3, 2.1)), ["standard deviation of 7%", "2.00 to 2.30 s"]),
        ([make_result(seconds=(3.0, 1.0, 1.0, 1.0, 1.0), timed_from=1)], ["epoch 1 took 3.00 s"]),
        (runs(first=8.0, epochs=2), ["4.0 times", "--epochs"]),
        ([make_result(seconds=(1.0, 1.0, 3.0, 1.0, 3.0, 1.0))], ["epochs 3, 5 took 3.00, 3.00 s (median 1.00 s)"]),
        ([make_result(seconds=(1.0, 1.0, 1.0, 1.0, 0.5, 1.0))], ["epoch 5 took 0.50 s"]),
        (runs(seconds=(0.002, 0.003, 0.002)), ["(0.0020 to 0.0030 s per epoch)"]),
        ([make_result(seconds=(*4 * (0.002,), 0.003))], ["epoch 5 took 0.0030 s (median 0.0020 s)"]),
    ],
)
def test_warnings_of_unsteady_rows(results, words):
    reasons = list(map(finding_sentence, unsteadiness(row_of(*results))))
    assert len(reasons) == 1 and all(word in reasons[0] for word in words)


def test_a_training_time_has_an_interval_from_three_runs():
    seconds = [8.0, 9.0, 11.0]
    logs = np.log(seconds)
    expected = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert np.log(summary_of(*runs(seconds=seconds, epochs=1)).training_interval) == pytest.approx(expected)
    assert summary_of(*runs(seconds=seconds[:2], epochs=1)).training_interval is None


@pytest.mark.parametrize(
    "spread, first, last, kinds",
    [
        (0.059, 1.49, 1.14, []),
        (0.061, 1.49, 1.14, ["spread"]),
        (0.059, 1.51, 1.14, ["long first epoch"]),
        (0.059, 1.49, 1.16, ["stalled"] * 3),
        (0.059, 1.49, 0.84, ["stalled"] * 3),
    ],
)
def test_times_are_doubted_from_a_threshold_on(spread, first, last, kinds):
    """spread: standard deviation of the runs' logarithms. first, last: epochs, relative to the median one. One run of
    three starts even slower."""
    mean = (2 + last) / 3
    made = (-spread, first), (0.0, 3 * first), (spread, first)
    seconds = [[math.exp(own) * part for part in (start * mean, 1.0, last, 1.0)] for own, start in made]
    found = unsteadiness(row_of(*(make_result(seconds=own) for own in seconds)))
    assert [one.kind for one in found] == kinds
    for odd in (one.values["epochs"] for one in found if one.kind == "stalled"):
        assert odd.kind == "odd epoch" and odd.values["n"] == (3,)
        assert odd.values["s"][0] / odd.values["median"] == pytest.approx(last)


def test_warnings_of_dependent_blocks_and_two_modes():
    random = np.random.default_rng(1)
    slow = np.cumsum(random.normal(0, 0.05, (30, 2)), axis=0)  # drifts from block to block
    modes = np.column_stack([random.normal(0, 0.01, 30), 0.2 * (np.arange(30) % 3 == 0) + random.normal(0, 0.01, 30)])

    def warned(noise):
        made = zip(("single", "ddp"), np.exp(noise).T, strict=True)
        analysis = analyse(report_of(*((configuration(method), runs(method, own)) for method, own in made)))
        kinds = [found.kind for entry in analysis.rows for found in entry.warnings]
        return analysis.resolution.dependence, kinds.count("two modes")

    assert warned(slow)[0] > 0.5 and warned(random.normal(0, 0.05, (30, 2)))[1] == 0
    assert {warned(random.normal(0, 0.05, (30, 2)))[0] for _ in range(4)} == {None}
    assert warned(modes) == warned(modes[:, ::-1]) == (None, 2)  # the times of two rows do not tell which has the modes


def test_only_the_row_with_two_modes_is_warned_of_even_among_many():
    random, times = np.random.default_rng(1), np.ones((12, 12))
    times[:, 7] += 0.3 * (np.arange(12) % 2)
    times *= np.exp(random.normal(0, 0.01, times.shape))
    names = [f"single-{column}" for column in range(12)]
    rows = [(configuration(name=name), runs(seconds=own)) for name, own in zip(names, times.T, strict=True)]
    summaries = measure(report_of(*rows)).summaries
    warned = [name for name in names if "two modes" in {found.kind for found in summaries[name].warnings}]
    assert warned == ["single-7"]


def test_a_row_and_its_counterpart_detect_as_much_as_two_rows():
    (own, _), other = SINGLE, (2.1, 2.0, 1.9)
    twin = counterpart(own, TWIN, "again", ())
    alone, both = (analyse(report_of(SINGLE, (row, runs(seconds=other)))) for row in (twin, configuration("ddp")))
    assert alone.resolution.differences == both.resolution.differences
    looked = replace(alone.report, looks=((3, 0.3), (5, 0.6)))
    skipped = configuration("fsdp", skip="no GPU")
    assert confidence_of(replace(looked, plan=(*looked.plan, skipped))) == confidence_of(looked)


# ---- utilisation of GPUs


H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"


def compared(*cards, precision="float32", flop=1e9, **values):
    """A row on a CPU and one on cards, with 1000 images per second."""
    named = tuple(f"cuda:{number} ({card})" for number, card in enumerate(cards))
    own = [replace(run, devices=named, precision=precision, **values) for run in runs("ddp", (1.0, 1.0, 1.0), count=2)]
    models = [{"model": "lenet", "gradient_bytes": 1000, "link_gbps": None, "flop": flop}]
    return report_of((configuration(), runs()), (configuration("ddp"), own), probe={"models": models})


@pytest.mark.parametrize(
    "report, mfu",
    [
        (compared(H100), 1e12 / 67e12),
        (compared(H100, precision="bfloat16 autocast"), 1e12 / 989.5e12),
        (compared(H100, precision="float32 as TF32"), 1e12 / 494.5e12),
        (compared(H100, T4), 1e12 / 75.1e12),
        (compared(T4, precision="bfloat16 autocast"), None),  # not supported
        (compared(H100, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), None),
        (compared(H100, flop=None), None),
        (compared(H100, simulated=True), None),
    ],
)
def test_utilisation_is_the_share_of_all_cards_peak_at_the_precision(report, mfu, tmp_path):
    single, ddp = measure(report).summaries.values()
    assert single.mfu is None and ddp.mfu == (mfu and pytest.approx(mfu))
    analysis = analyse(report)
    assert ("MFU (%)" in main_table(analysis, "simple")) == (mfu is not None)
    assert mfu is None or f" {100 * mfu:#.2g} " in main_table(analysis, "simple")
    write_csv(analysis, tmp_path / "results.csv")
    single, ddp = csv.DictReader((tmp_path / "results.csv").open())
    assert not single.get("mfu") and ddp.get("mfu") == (mfu and str(measure(report).summaries["ddp"].mfu))
