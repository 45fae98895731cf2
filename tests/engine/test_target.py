"""--target-accuracy: when training ends, and how a comparison judges it."""

from dataclasses import replace

import pytest

from common.engine import loop as engine
from common.engine.shares import Evaluation
from common.files.results import write_result
from comparison.judge.analysis import analyse
from comparison.run.turns import run_once
from comparison.show.advice import recommendations
from comparison.show.remarks import definitions
from comparison.show.tables import main_table
from comparison.show.verdict import verdict
from tests.fixtures import child, make_config
from tests.reports import SINGLE, as_long_as_its_parts, cells, configuration, make_result, report_of, runs
from tests.trainings import fitted


@pytest.mark.parametrize("target, epochs", [(None, 4), (0.05, 1), (0.5, 2), (0.51, 3), (0.95, 4)])
def test_training_ends_after_the_epoch_that_reaches_the_target(target, epochs, monkeypatch):
    planted = iter([10, 50, 90, 70])  # of 100
    monkeypatch.setattr(engine, "evaluate", lambda *_: Evaluation(0, 0.1, 1.0, [next(planted)], [100]))
    records, evaluations = fitted(make_config(epochs=4, target_accuracy=target, batch_size=20, augment=False))
    assert [record.test_accuracy for record in records] == [0.1, 0.5, 0.9, 0.7][:epochs]
    assert evaluations[0].correct == [100 * records[-1].test_accuracy]


def test_a_checkpoint_that_reached_the_target_needs_no_more_epochs():
    earlier = [*make_result(seconds=(3.0,)).epochs]  # 60%
    assert fitted(make_config(epochs=4, target_accuracy=0.5, batch_size=20), earlier=earlier)[0] == earlier


@pytest.mark.slow
def test_ranks_end_after_the_epoch_that_reaches_the_target(train):
    result, _, printed = train("ddp_train.py --spawn 2 --target-accuracy 0.05 --epochs 3 --model mlp")
    assert (result["status"], len(result["epochs"]), result["config"]["epochs"]) == ("ok", 1, 3)
    seconds = result["epochs"][0]["train_seconds"]
    assert f"Training took {seconds:.2f} s to a test accuracy of 5.00%; " in printed


def test_a_run_that_missed_its_target_keeps_its_epochs(tmp_path):
    write_result(make_result(status="not reached", reason="the best was 80.00%"), tmp_path / "made.json")
    move = f"os.rename({str(tmp_path / 'made.json')!r}, {str(tmp_path / 'runs' / 'single-1.json')!r})"
    outcome = run_once(child(f"import os, sys; {move}; sys.exit(1)"), 1, 42, tmp_path / "runs")
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("not reached", "the best was 80.00%", 1)
    assert len(outcome.result.epochs) == 3


def test_the_table_shows_the_time_to_the_target():
    rows = [
        (configuration(), runs(seconds=(2.0, 4.0, 2.5), epochs=3, first=3.0)),  # 7, 11 and 8 s in all
        (configuration("ddp"), runs("ddp", status="not reached", reason="the best was 80.00%")),
        (configuration("mp", skip="needs 2 GPUs, found 1"), []),
        (configuration("accelerate"), ["failed"] * 3),
    ]
    report = report_of(*rows, target_accuracy=0.99)
    outcomes = tuple(
        replace(outcome, status=outcome.result.status, exit_code=1) if outcome.configuration == "ddp" else outcome
        for outcome in report.outcomes
    )
    report = replace(report, outcomes=outcomes)
    table = main_table(analyse(report), "simple")
    assert "Accuracy (%)    Training to 99% (s)    Time per epoch (s)" in table.splitlines()[0]
    single, ddp, mp, accelerate = cells(table)
    assert (single[4], ddp[4], mp[4], accelerate[4]) == ("8.51 [4.78, 15.15]", "not reached", "–", "–")
    assert ddp[-1] == "3 of 3 runs not reached" and ddp[6] == "–" and ddp[7] == "0"
    assert report.failed
    first, second, third = (outcome for outcome in report.outcomes if outcome.configuration == "single")
    partly = replace(report, outcomes=(first, second, replace(third, status="not reached"), *report.outcomes[3:]))
    assert cells(main_table(analyse(partly), "simple"))[0][4] == "8.77 (not reached by 1 of 3 runs)"
    assert "Training to 98.5% (s)" in main_table(analyse(report_of(SINGLE, target_accuracy=0.985)), "simple")
    assert "Training to" not in main_table(analyse(report_of(SINGLE)), "simple")


def to_target(*firsts):
    """Return three epochs of one device, 2 s each, and of DDP, 1 s each; firsts: seconds of the first epochs."""
    rows = zip(("single", "ddp"), (2.0, 1.0), firsts, strict=True)
    some = [
        (configuration(method), runs(method, (seconds, 1.01 * seconds, 0.99 * seconds), first=first))
        for method, seconds, first in rows
    ]
    return as_long_as_its_parts(report_of(*some, target_accuracy=0.99))


def test_speed_up_is_the_ratio_of_times_to_the_target():
    report = to_target(1.0, 9.0)  # 5 and 11 s in all
    speed_up = analyse(report).rows[1].standing.speed_up
    assert speed_up.value == pytest.approx(5 / 11, rel=1e-3) and speed_up.words == "slower"
    (advice,) = recommendations(analyse(report))
    assert advice.startswith("Recommendation: use “SINGLE”, 1.92 times as fast as “DDP” ")
    assert "11.00 s of training to 99%, 1.00 s per epoch" in verdict(analyse(report))[1]
    assert "Speed-up to 99% [95%]" in main_table(analyse(report), "simple")
    assert any(text.startswith("Speed-up: the training time to 99% of the single row") for text in definitions(report))
    (advice,) = recommendations(analyse(replace(report, settings={**report.settings, "target_accuracy": None})))
    assert "6.50 s instead of 12.5 s to reach 99%" in recommendations(analyse(report))[0]
    assert " From 10 epochs on, “DDP” is faster. " in advice  # the first takes 6 s more, each other 1 s less


def test_a_row_that_missed_the_target_has_no_speed_up():
    report = to_target(1.0, 1.0)
    assert recommendations(analyse(report))[0].startswith("Recommendation: use “DDP”, ")
    missed = replace(report, outcomes=(*report.outcomes[:-1], replace(report.outcomes[-1], status="not reached")))
    standing = analyse(missed).rows[1].standing
    assert standing.speed_up is None and standing.reason == "“DDP” missed the target accuracy in 1 of 3 runs"
    assert analyse(missed).decisions[0].ineligible == {"ddp": "1 of 3 runs not reached"}
