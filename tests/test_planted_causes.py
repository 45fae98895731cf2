"""What the benchmark of planted causes plants does slow a training down, where it says and by what it says."""

import sys

import pytest

from comparison.steps import cores_computing, find_straggler, growth, queued_share, run_time, step_time
from processes import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))

import planted_causes
from planted_causes import PLANTS, Trial


def run_once(name, tmp_path, planted=True):
    """The outcome of one run of one of a plant's two rows."""
    return planted_causes.run_planted(PLANTS[name], PLANTS[name].rows[planted], 1, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name, phase", [
    ("slow loader", "data"), ("slow transfer", "transfer"), ("slow update", "update"), ("slow all-reduce", "exchange")])
def test_a_slow_phase_takes_what_was_planted(name, phase, tmp_path):
    assert step_time(run_once(name, tmp_path).result).parts[phase] > PLANTS[name].size


@pytest.mark.slow
def test_a_straggler_has_more_to_do(tmp_path):
    straggler = find_straggler([run_once("straggler", tmp_path).result])
    assert (straggler.rank, straggler.phase) == (1, "forward")
    assert straggler.longer.value > 0.5 * PLANTS["straggler"].size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ranks on one core", "too many workers"])
def test_threads_wait_for_a_core(name, tmp_path):
    assert queued_share([run_once(name, tmp_path).result]).value > 0.25


@pytest.mark.slow
def test_threads_are_limited_from_outside(tmp_path):
    limited = run_once("too few threads", tmp_path).result
    assert limited.threads_per_process == 2 and cores_computing([limited]).value < 1.2


@pytest.mark.slow
def test_another_program_is_at_work(tmp_path):
    assert run_once("foreign load", tmp_path).foreign_cores > 0.4


@pytest.mark.slow
def test_start_and_evaluation_take_what_was_planted(tmp_path):
    assert run_once("slow start", tmp_path).result.startup_seconds > PLANTS["slow start"].size
    assert run_time(run_once("slow evaluation", tmp_path).result).parts["evaluation"] > PLANTS["slow evaluation"].size


@pytest.mark.slow
def test_epochs_get_longer(tmp_path):
    result = run_once("growing slowness", tmp_path).result
    mean = sum(epoch.train_seconds for epoch in result.epochs[1:]) / 4
    assert growth([result]).value * mean > 0.7 * PLANTS["growing slowness"].size


@pytest.mark.slow
def test_the_plain_row_has_none_of_it(tmp_path):
    result = run_once("slow loader", tmp_path, planted=False).result
    assert step_time(result).parts["data"] < PLANTS["slow loader"].size


def trial(plant, *named, planted=None, interval=(None, None)):
    return Trial(plant, 1, named, planted, None, *interval)


def test_scores_count_what_was_planted_and_what_was_named():
    trials = [trial("nothing"), trial("nothing, two ranks", "forward"), trial("slow loader"),
              trial("straggler", "forward", "straggler", "update", planted=6.0, interval=(5.0, 7.0)),
              trial("slow update", "update", planted=4.0, interval=(4.1, 5.0))]
    assert planted_causes.scores(trials) == {
        "trials": 5, "planted": 3, "planted_named": 2, "named": 5, "named_rightly": 3, "sizes": 2,
        "sizes_in_interval": 1}
    assert [each.right for each in trials] == [True, False, False, True, True]


def test_the_matrix_that_is_shown_is_that_of_the_trials_that_were_run(tmp_path):
    path = planted_causes.draw([trial("nothing"), trial("straggler", "forward", "update")], tmp_path / "matrix.png")
    assert path.stat().st_size > 10_000
