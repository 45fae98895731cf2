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
from tests.reports import as_long_as_its_parts, configuration, make_result, report_of, runs
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


def test_a_run_that_missed_its_target_keeps_its_epochs(tmp_path):
    write_result(make_result(status="not reached", reason="the best was 80.00%"), tmp_path / "made.json")
    move = f"os.rename({str(tmp_path / 'made.json')!r}, {str(tmp_path / 'runs' / 'single-1.json')!r})"
    outcome = run_once(child(f"import os, sys; {move}; sys.exit(1)"), 1, 42, tmp_path / "runs")
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("not reached", "the best was 80.00%", 1)
    assert len(outcome.result.epochs) == 3


def to_target(*firsts):
    """Return three epochs of one device, 2 s each, and of DDP, 1 s each; firsts: seconds of the first epochs."""
    rows = zip(("single", "ddp"), (2.0, 1.0), firsts, strict=True)
    some = [
        (configuration(method), runs(method, (seconds, 1.01 * seconds, 0.99 * seconds), first=first))
        for method, seconds, first in rows
    ]
    return as_long_as_its_parts(report_of(*some, target_accuracy=0.985))


def test_speed_up_is_the_ratio_of_times_to_the_target():
    report = to_target(1.0, 9.0)  # 5 and 11 s in all
    speed_up = analyse(report).rows[1].standing.speed_up
    assert speed_up.value == pytest.approx(5 / 11, rel=1e-3) and speed_up.words == "slower"
    (advice,) = recommendations(analyse(report))
    assert advice.startswith("Recommendation: use “SINGLE”, 1.92 times as fast as “DDP” ")
    assert "11.00 s of training to 98.5%, 1.00 s per epoch" in verdict(analyse(report))[1]
    table = main_table(analyse(report), "simple")
    assert "Training to 98.5% (s)" in table and "Speed-up to 98.5% [95%]" in table
    assert any(
        text.startswith("Speed-up: the training time to 98.5% of the single row") for text in definitions(report)
    )
    (advice,) = recommendations(analyse(replace(report, settings={**report.settings, "target_accuracy": None})))
    assert "6.50 s instead of 12.5 s to reach 98.5% accuracy" in recommendations(analyse(report))[0]
    assert " From 10 epochs on, “DDP” is faster. " in advice  # the first takes 6 s more, each other 1 s less


def test_a_row_that_missed_the_target_has_no_speed_up():
    report = to_target(1.0, 1.0)
    assert recommendations(analyse(report))[0].startswith("Recommendation: use “DDP”, ")
    missed = replace(report, outcomes=(*report.outcomes[:-1], replace(report.outcomes[-1], status="not reached")))
    standing = analyse(missed).rows[1].standing
    assert standing.speed_up is None and standing.reason == "“DDP” missed the target accuracy in 1 of 3 runs"
    assert analyse(missed).decisions[0].ineligible == {"ddp": "1 of 3 runs not reached"}
