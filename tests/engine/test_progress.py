"""Progress lines of long epochs."""

import pytest

from common.engine import progress
from common.engine.progress import Progress


@pytest.mark.parametrize(
    "seconds, first, done, planned, said",
    [
        (1.0, 1.0, 0, 80, [f"step {step} of 80, about {80 - step} s left" for step in (10, 30, 70)]),
        (0.2, 20.0, 0, 51, ["step 1 of 51"]),  # nothing is extrapolated from a slow first step
        (1.0, 5.0, 0, 51, ["step 6 of 51, about 45 s left", "step 26 of 51, about 25 s left"]),
        (1.0, 1.0, 30, 80, ["step 40 of 80, about 40 s left", "step 60 of 80, about 20 s left"]),  # resumed
        (0.1, 0.1, 0, 99, []),
        (1.0, 1.0, 0, 10, []),  # the epoch's own line follows
    ],
)
def test_a_long_epoch_reports_its_progress_with_growing_pauses(seconds, first, done, planned, said, monkeypatch):
    """In each epoch, an earlier run has done some steps; then the first one takes `first` seconds."""
    now, lines = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    watched = Progress(3, planned, lines.append)
    for epoch in (1, 2):
        watched.begin(epoch, done)
        for step in range(done, planned):
            now[0] += first if step == done else seconds
            watched.after_step()
    assert lines == [f"Epoch [{epoch}/3], {line}" for epoch in (1, 2) for line in said]


def test_a_script_prints_its_progress(monkeypatch, train_here):
    monkeypatch.setattr(progress, "FIRST", 0.0)
    _, _, printed = train_here("data_parallel_train.py --model mlp --epochs 2")
    assert "\nEpoch [1/2], step 1 of 10\n" in printed and "\nEpoch [2/2], step 2 of 10, about " in printed
    assert "\x1b" not in printed and "\r" not in printed
