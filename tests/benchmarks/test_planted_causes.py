"""Tests of benchmarks/planted_causes.py."""

from dataclasses import replace

import planted_causes
import pytest
from planted_causes import PLANTS, Trial

from comparison.judge.statistics import Excess
from comparison.judge.steps import step_time
from comparison.judge.summaries import Finding
from comparison.run.turns import take_turns


def run_once(name, row, tmp_path):
    """Run the planted row (1) or the plain row (0) of a plant once."""
    (outcome,) = take_turns([planted_causes.run_of(PLANTS[name], PLANTS[name].rows[row], 1, tmp_path)], 1)
    return outcome


@pytest.mark.slow
def test_a_slow_row_and_a_foreign_program_are_measured(tmp_path):
    """The benchmark itself tries the other plants."""
    plain, slow = (step_time(run_once("slow loader", row, tmp_path).result).parts["data"] for row in (0, 1))
    assert plain < PLANTS["slow loader"].size < slow
    assert run_once("foreign program", 1, tmp_path).foreign_cores > 0.4


def trial(plant, *named, planted=None, found=None):
    return Trial(plant, 1, named, planted, found, found, found)


def test_scores():
    trials = [
        trial("nothing"),
        trial("nothing, two ranks", "forward"),
        trial("slow loader", planted=4.0),
        trial("straggler", "forward of rank 1", "late ranks, some steps", "update", planted=6.0, found=6.8),
        trial("slow update", "data", "update", planted=4.0, found=4.7),
        trial("slow transfer", "transfer", planted=4.0, found=3.5),
    ]
    assert [each.right for each in trials] == [True, False, False, True, False, True]
    assert [each.wrong for each in trials] == [[], ["forward"], [], ["update"], ["data"], []]
    counted = {"trials": 6, "planted": 4, "first": 2, "named": 7, "wrong": 3}
    assert planted_causes.scores(trials) == {**counted, "sizes": 4, "sizes_right": 2}


def test_names_of_causes():
    more = Excess("forward", 6.0, 5.0, 7.0)
    forward, steps = Finding("forward"), {"share": 0.5, "milliseconds": 6.0, "period": 2}
    regular, some = (Finding(kind, {"place": forward, **steps}) for kind in ("regular steps", "some steps"))
    late = Finding("late ranks", {"ranks": (Finding("late rank", {"n": 0, "place": regular, "x": 3.0}),)})
    for kind, place, name in (
        ("forward", forward, "forward"),
        ("forward", regular, "forward, 1 step of 2"),
        ("straggler", Finding("of a rank", {"n": 1, "place": some}), "forward of rank 1, some steps"),
        ("late ranks", late, "late ranks, 1 step of 2"),
    ):
        assert planted_causes.named(Finding(kind, {"x": more, "place": place}, "step")) == name
        less = {"x": replace(more, value=-6.0), "place": place}
        assert planted_causes.named(Finding(kind, less, "step")) == ""
    assert planted_causes.named(Finding("straggler", {"x": more, "place": forward, "n": 1})) == "forward of rank 1"
    assert planted_causes.named(Finding("noise")) == "" and planted_causes.named(Finding("throttled")) == "throttled"
