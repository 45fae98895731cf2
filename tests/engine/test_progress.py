"""Progress lines of long epochs."""

import pytest

from common.engine import progress
from common.engine.progress import Progress


@pytest.fixture
def steps(monkeypatch):
    """steps(seconds, planned): return the lines of two epochs of `planned` steps of `seconds`, the first of `first`.

    done: steps of each epoch that an earlier run has done.
    """

    def run(seconds, planned, first=None, done=0):
        now, said = [100.0], []
        monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
        watched = Progress(3, planned, said.append)
        for epoch in (1, 2):
            watched.begin(epoch, done)
            for step in range(planned - done):
                now[0] += seconds if step or first is None else first
                watched.after_step()
        return said

    return run


def test_a_long_epoch_reports_its_progress_with_growing_pauses(steps):
    said = steps(1.0, 80)
    assert said[:4] == [
        "Epoch [1/3], step 10 of 80, about 70 s left",
        "Epoch [1/3], step 30 of 80, about 50 s left",
        "Epoch [1/3], step 70 of 80, about 10 s left",
        "Epoch [2/3], step 10 of 80, about 70 s left",
    ]
    assert len(said) == 6


def test_nothing_is_extrapolated_from_a_slow_first_step(steps):
    assert steps(0.2, 51, first=20.0)[0] == "Epoch [1/3], step 1 of 51"
    assert steps(1.0, 51, first=5.0)[0] == "Epoch [1/3], step 6 of 51, about 45 s left"


def test_a_resumed_epoch_goes_on_where_it_was(steps):
    assert steps(1.0, 80, done=30)[:2] == [f"Epoch [1/3], step {n} of 80, about {80 - n} s left" for n in (40, 60)]


def test_a_short_epoch_reports_nothing(steps):
    assert steps(0.1, 99) == []
    assert steps(1.0, 10) == []  # the epoch's own line follows


def test_a_script_prints_its_progress(monkeypatch, train_here, capsys):
    monkeypatch.setattr(progress, "FIRST", 0.0)
    train_here("run", "data_parallel_train.py --model mlp --epochs 2")
    printed = capsys.readouterr().out
    assert "\nEpoch [1/2], step 1 of 10\n" in printed and "\nEpoch [2/2], step 2 of 10, about " in printed
    assert "\x1b" not in printed and "\r" not in printed
