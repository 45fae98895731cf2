"""Whichever call of a program fails, it does without it, or ends with one line that says what to do."""

import pytest

from tests.failing_calls import go_through
from tests.failing_programs import SCRIPTS, compare_first, make_images, train_first_epoch


@pytest.fixture(params=[20, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "each call"])
def go_on(request, tmp_path, record_fault):
    """go_on(fault, start, *arguments): let calls of a program fail. start() returns the program and its check."""

    def go_on(fault, start, *arguments):
        make_images(tmp_path / "images")
        for name in ("out", "tmp", "data"):
            (tmp_path / name).mkdir()
        attempts, wrong = go_through(*start(*arguments, tmp_path), tmp_path, step=request.param)
        record_fault(f"one call of {fault} fails", 0, f"{attempts} calls, {attempts - len(wrong)} handled", None)
        assert attempts and not wrong, "\n".join(wrong)

    return go_on


@pytest.mark.parametrize("name", SCRIPTS)
def test_any_call_of_a_training_fails(name, go_on):
    go_on(SCRIPTS[name].split()[0], train_first_epoch, SCRIPTS[name])


def test_any_call_of_a_comparison_fails(go_on):
    go_on("compare_parallel.py", compare_first)
