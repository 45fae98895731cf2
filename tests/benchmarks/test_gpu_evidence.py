"""Everything that is to be seen on a GPU, step by step, on a machine that pretends to have one."""

import json
import sys

import gpu_evidence
import pytest

import compare_parallel
from common.errors import FAILED, MACHINE, USAGE, SuiteError


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """evidence("--step", "2"): run the program with steps that only print; gives the exit code and the directory."""
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    monkeypatch.setattr(gpu_evidence, "describe_environment", lambda: {"gpus": ["NVIDIA Pretended 1"], "torch": "2.11"})
    steps = {"tests": "print('3 passed')", "sleeper": "import time; time.sleep(60)", "last": "print('done')"}
    monkeypatch.setattr(gpu_evidence, "STEPS", steps)
    monkeypatch.setattr(gpu_evidence, "command_of", lambda name, *_: ("-c", gpu_evidence.STEPS[name]))

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["gpu_evidence.py", "--limit", "1", *flags])
        code = 0
        try:
            gpu_evidence.main()
        except SuiteError as error:
            code = error.exit_code
        return code, tmp_path / "figures" / "gpu-nvidia-pretended-1"

    return run


def test_every_step_runs_once_and_what_was_stopped_is_tried_again(evidence, monkeypatch, capsys):
    code, directory = evidence()
    steps = json.loads((directory / "steps.json").read_text())
    assert code == FAILED and [step["exit_code"] for step in steps.values()] == [0, 124, 0]
    assert (directory / "tests.log").read_text() == "3 passed\n"
    report = (directory / "report.md").read_text()
    assert report.startswith("# What was seen on NVIDIA Pretended 1") and "[log](sleeper.log)" in report
    monkeypatch.setitem(gpu_evidence.STEPS, "sleeper", "print('awake')")
    capsys.readouterr()
    assert evidence()[0] == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["2", "sleeper:"]] * 2
    assert evidence("--step", "3")[0] == 0 and "3 last: fine" in capsys.readouterr().out  # although it was done


@pytest.mark.parametrize("flags, gpus, code", [(("--step", "4"), ["one"], USAGE), ((), [], MACHINE)])
def test_a_step_that_is_not_there_and_a_machine_without_a_gpu(flags, gpus, code, evidence, monkeypatch):
    monkeypatch.setattr(gpu_evidence, "describe_environment", lambda: {"gpus": gpus})
    assert evidence(*flags)[0] == code


def test_commands_and_where_they_leave_what(tmp_path, monkeypatch):
    assert gpu_evidence.directory_of(["Tesla T4", "Tesla T4"]).name == "gpu-2x-tesla-t4"
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    words = {
        "tests": "-m pytest -m gpu -q",
        "roofline": "benchmarks/roofline.py --data-root d --output x/roofline.json",
        "mnist": "compare_parallel.py --dataset mnist --loader resident --epochs 3 --check-maths --data-root d "
        "--output-dir x/mnist",
    }
    for name, typed in words.items():
        assert " ".join(gpu_evidence.command_of(name, tmp_path / "x", "d")) == typed
    for file in ("x/mnist/results.json", "x/options.json", "x/roofline.json"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    resumed = [name for name in gpu_evidence.STEPS if "--resume" in gpu_evidence.command_of(name, tmp_path / "x", "d")]
    assert resumed == ["mnist", "options"]
    for name, command in gpu_evidence.STEPS.items():
        if command.startswith(gpu_evidence.COMPARE):
            monkeypatch.setattr(sys, "argv", command.split())
            assert compare_parallel.parse(), name
