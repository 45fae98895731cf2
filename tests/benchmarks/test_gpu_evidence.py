"""Tests of benchmarks/gpu_evidence.py and offline.py with a pretended GPU and stub steps."""

import json
import os
import shutil
import sys
import zipfile

import gpu_evidence
import numpy as np
import offline
import pytest
from gpu_evidence import Step

import compare_parallel
from common.errors import FAILED, MACHINE, SuiteError
from tests.fixtures import PROJECT


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """evidence("--step", "last") runs the program with stub steps. Returns its exit code and output directory."""
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    environment = {"gpus": ["NVIDIA Pretended 1"], "torch": "2.11"}
    monkeypatch.setattr(gpu_evidence, "describe", lambda _: {"checks": [], "environment": environment})
    monkeypatch.setattr(gpu_evidence, "CLEANUP_SECONDS", 0.0)
    steps = {"tests": "print('3 passed')", "sleeper": "import time; time.sleep(60)", "last": "print('done')"}
    monkeypatch.setattr(gpu_evidence, "STEPS", {name: Step(0.01, code) for name, code in steps.items()})
    monkeypatch.setattr(gpu_evidence, "command_of", lambda name, *_: ("-c", gpu_evidence.STEPS[name].command))
    monkeypatch.chdir(tmp_path)  # main() changes the directory

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["gpu_evidence.py", *flags])
        code = 0
        try:
            gpu_evidence.main()
        except SuiteError as error:
            code = error.exit_code
        return code, tmp_path / "figures" / "gpu-nvidia-pretended-1"

    return run


def started_steps(capsys):
    """Return the steps run or left out since the last call."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split(":")[0] for line in lines if "what it prints" in line or "left out" in line]


def test_stopped_steps_are_retried_after_untried_ones(evidence, monkeypatch, capsys):
    code, directory = evidence()
    steps = json.loads((directory / "steps.json").read_text())
    assert code == FAILED and [step["exit_code"] for step in steps.values()] == [0, 124, 0]
    assert 1 < steps["sleeper"]["seconds"] < 20  # stopped after twice the expected 0.01 minutes
    assert (directory / "tests.log").read_text() == "3 passed\n"
    report = (directory / "evidence.md").read_text()
    assert report.startswith("# What was seen on NVIDIA Pretended 1") and "[log](sleeper.log)" in report
    monkeypatch.setitem(gpu_evidence.STEPS, "sleeper", Step(1, "print('awake')"))
    monkeypatch.setitem(gpu_evidence.STEPS, "new", Step(1, "print('new')"))
    assert started_steps(capsys) == ["tests", "sleeper", "last"]
    assert evidence()[0] == 0 and started_steps(capsys) == ["new", "sleeper"]
    assert evidence("--step", "last")[0] == 0 and started_steps(capsys) == ["last"]  # --step repeats it


def test_only_steps_that_fit_are_run_and_end_in_time(evidence, monkeypatch, capsys):
    steps = {
        "long": Step(5, "print('too long')"),
        "without": Step(0.01, "print('no data')", "cifar10"),
        "sleeper": Step(0.02, "import time; time.sleep(60)"),
    }
    monkeypatch.setattr(gpu_evidence, "STEPS", steps)
    code, directory = evidence("--minutes", "0.03")
    assert code == FAILED and started_steps(capsys) == ["without", "sleeper"]
    (sleeper,) = json.loads((directory / "steps.json").read_text()).values()
    assert sleeper["exit_code"] == 124 and sleeper["seconds"] < 0.02 * 120 - 0.3  # --minutes end first


def test_a_machine_without_a_gpu_is_refused(evidence, monkeypatch):
    for environment in ({"gpus": []}, None):
        monkeypatch.setattr(gpu_evidence, "describe", lambda _, found=environment: {"environment": found})
        assert evidence()[0] == MACHINE


def test_a_stopped_program_leaves_a_report_and_packs(evidence, monkeypatch, tmp_path):
    source = PROJECT / "figures" / "cifar10-resnet8" / "results.json"
    monkeypatch.setattr(gpu_evidence, "PACK_BYTES", gpu_evidence.INDEX_BYTES + 100_000)
    directory = tmp_path / "figures" / "gpu-nvidia-pretended-1"
    (directory / "sleeper").mkdir(parents=True)
    shutil.copy(source, directory / "sleeper" / "results.json")
    (directory / "tests.json").write_text("{")
    (directory / "some").write_bytes(os.urandom(60_000))
    (directory / "more").write_bytes(os.urandom(70_000))
    (directory / "too large").write_bytes(os.urandom(200_000))

    def stopped(command, log, timeout):
        if "sleep" in command[2]:
            raise SystemExit(143)
        log.touch()
        return 0

    monkeypatch.setattr(gpu_evidence, "run_child", stopped)
    with pytest.raises(SystemExit):
        evidence("--pack", "packs")
    packs = [zipfile.ZipFile(file) for file in sorted((tmp_path / "packs").iterdir())]
    names = [name.removeprefix("figures/gpu-nvidia-pretended-1/") for pack in packs for name in pack.namelist()]
    assert sorted(names) == sorted(
        "check.json evidence.md more sleeper/results.json some steps.json tests.json tests.log".split()
    )
    assert len(packs) <= 3 and all(file.stat().st_size < 100_000 for file in (tmp_path / "packs").iterdir())
    steps = json.loads(packs[0].read("figures/gpu-nvidia-pretended-1/steps.json"))
    assert {name: step["exit_code"] for name, step in steps.items()} == {"tests": 0, "sleeper": 124}
    report = packs[0].read("figures/gpu-nvidia-pretended-1/evidence.md").decode()
    assert "It cannot be shown: JSONDecodeError" in report and "| one device" in report


def test_commands_of_steps_and_their_output(tmp_path, monkeypatch):
    assert gpu_evidence.directory_of(["Tesla T4", "Tesla T4"]).name == "gpu-2x-tesla-t4"
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    directory = tmp_path / "x"

    def command(name, resume=True, minutes=float("inf")):
        return " ".join(gpu_evidence.command_of(name, directory, "d", resume, minutes))

    assert command("tests").startswith("-m pytest -m gpu ")
    for minutes, limit in ((4.1, 2), (1.5, 0.75)):  # the rest is for runs in progress
        words = f"benchmarks/roofline.py --data-root d --minutes {limit} --output x/roofline.json"
        assert command("roofline", minutes=minutes) == words
    assert command("methods").endswith("--timeline --data-root d --output-dir x/methods")
    for file in ("methods/results.json", "roofline.json"):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    assert [name for name in gpu_evidence.STEPS if command(name).endswith(" --resume")] == ["methods"]
    assert not command("methods", resume=False).endswith(" --resume")
    for name, step in gpu_evidence.STEPS.items():
        if step.command.startswith(gpu_evidence.COMPARE):
            monkeypatch.setattr(sys, "argv", step.command.split())
            assert compare_parallel.parse(), name


def test_no_two_steps_run_the_same_row(planned):
    rows = {}
    for name, step in gpu_evidence.STEPS.items():
        command, _, flags = step.command.partition(" ")
        if command == gpu_evidence.COMPARE:
            for row in planned(flags, gpus=1).plan:
                assert rows.setdefault(row.command, name) == name
    assert {"methods", "one-device", "time-to-99-mnist", "time-to-94-cifar10"} == {*rows.values()}


def test_data_sets_are_restored_from_a_bundle(tmp_path):
    """MNIST at once, CIFAR-10 once all parts are present."""
    here, there, bundle = (tmp_path / name for name in ("here", "there", "bundle"))
    decoded = here / "decoded"
    decoded.mkdir(parents=True)
    draw = np.random.default_rng(0).integers
    arrays = {"train_images": draw(0, 256, (50, 32, 32, 3), np.uint8), "test_labels": draw(0, 10, 20), "about": ["a"]}
    for name, array in arrays.items():
        np.save(decoded / f"cifar10-{name}.npy", array)
    for file in offline.DATASETS["mnist"].files:
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).write_text(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "load_image_set", lambda config: None)  # the decoded arrays exist already
        offline.write_bundle(bundle, [], "3.12", here)
    assert len([*bundle.iterdir()]) == 4
    last = (bundle / "cifar10-3.npz").rename(tmp_path / "later")
    offline.read_bundle(bundle, there)
    assert offline.has("mnist", there) and not offline.has("cifar10", there)
    assert all((there / file).read_text() == file for file in offline.DATASETS["mnist"].files)
    last.rename(bundle / "cifar10-3.npz")
    offline.read_bundle(bundle, there)
    assert offline.has("cifar10", there)
    for name, array in arrays.items():
        assert np.array_equal(np.load(there / "decoded" / f"cifar10-{name}.npy"), array)
