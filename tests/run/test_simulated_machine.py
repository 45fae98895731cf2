"""Whole comparisons on a simulated machine, with faults drawn from seeds: see tests/simulate.py."""

import subprocess
import sys

import pytest

from tests.fixtures import PROJECT

pytestmark = pytest.mark.process

COUNTED = (
    *("ok", "failed", "timed out", "out of memory", "skipped", "set aside", "paused", "disk full", "taken"),
    *("second", "second resumes", "shown", "moved", "deleted"),
    *("helper killed", "SIGINT", "SIGTERM", "SIGHUP", *(f"exit code {code}" for code in (0, 1, 129, 130, 143))),
)


def simulate(*flags):
    """Return what tests/simulate.py prints. It runs in a process of its own, as pytest's has imported torch."""
    command = [sys.executable, "tests/simulate.py", *flags]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_schedules():
    counted = simulate("--schedules", "80").splitlines()[-2]
    assert not [name for name in COUNTED if f"{name}: " not in counted], counted


def test_a_seed_replays_exactly():
    first, again = (simulate("--seed", "7", "--schedules", "1").splitlines() for _ in range(2))
    assert first[:-1] == again[:-1]  # the last one has the real time
