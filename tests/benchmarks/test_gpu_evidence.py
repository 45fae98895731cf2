"""Everything that is to be seen on a GPU, step by step, on a machine that pretends to have one."""

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
    """evidence("--step", "last"): run the program with steps that only print; gives the exit code and the directory."""
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    environment = {"gpus": ["NVIDIA Pretended 1"], "torch": "2.11"}
    monkeypatch.setattr(gpu_evidence, "describe", lambda _: {"checks": [], "environment": environment})
    monkeypatch.setattr(gpu_evidence, "CLEANUP_SECONDS", 0.0)
    steps = {"tests": "print('3 passed')", "sleeper": "import time; time.sleep(60)", "last": "print('done')"}
    monkeypatch.setattr(gpu_evidence, "STEPS", {name: Step(0.01, code) for name, code in steps.items()})
    monkeypatch.setattr(gpu_evidence, "command_of", lambda name, *_: ("-c", gpu_evidence.STEPS[name].command))
    monkeypatch.chdir(tmp_path)  # which main() changes

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["gpu_evidence.py", *flags])
        code = 0
        try:
            gpu_evidence.main()
        except SuiteError as error:
            code = error.exit_code
        return code, tmp_path / "figures" / "gpu-nvidia-pretended-1"

    return run


def begun(capsys):
    """The steps that were run since this was last asked, and those that were left out."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split(":")[0] for line in lines if "what it prints" in line or "left out" in line]


def test_what_was_stopped_is_tried_again_after_what_was_not_tried(evidence, monkeypatch, capsys):
    code, directory = evidence()
    steps = json.loads((directory / "steps.json").read_text())
    assert code == FAILED and [step["exit_code"] for step in steps.values()] == [0, 124, 0]
    assert 1 < steps["sleeper"]["seconds"] < 20  # twice the 0.01 minutes that it was expected to take
    assert (directory / "tests.log").read_text() == "3 passed\n"
    report = (directory / "report.md").read_text()
    assert report.startswith("# What was seen on NVIDIA Pretended 1") and "[log](sleeper.log)" in report
    monkeypatch.setitem(gpu_evidence.STEPS, "sleeper", Step(1, "print('awake')"))
    monkeypatch.setitem(gpu_evidence.STEPS, "new", Step(1, "print('new')"))
    assert begun(capsys) == ["tests", "sleeper", "last"]
    assert evidence()[0] == 0 and begun(capsys) == ["new", "sleeper"]
    assert evidence("--step", "last")[0] == 0 and begun(capsys) == ["last"]  # although it was done


def test_only_steps_that_fit_are_run_and_none_lasts_longer(evidence, monkeypatch, capsys):
    steps = {
        "long": Step(5, "print('too long')"),
        "without": Step(0.01, "print('no data')", "cifar10"),
        "sleeper": Step(0.04, "import time; time.sleep(60)"),
    }
    monkeypatch.setattr(gpu_evidence, "STEPS", steps)
    code, directory = evidence("--minutes", "0.05")
    assert code == FAILED and begun(capsys) == ["without", "sleeper"]
    (sleeper,) = json.loads((directory / "steps.json").read_text()).values()
    assert sleeper["exit_code"] == 124 and sleeper["seconds"] < 0.04 * 120 - 0.5  # the call's end comes first


def test_a_machine_without_a_gpu(evidence, monkeypatch):
    for environment in ({"gpus": []}, None):
        monkeypatch.setattr(gpu_evidence, "describe", lambda _, found=environment: {"environment": found})
        assert evidence()[0] == MACHINE


def test_what_was_stopped_leaves_its_table_and_all_is_packed(evidence, monkeypatch, tmp_path):
    """Also when the program itself is stopped."""
    source = PROJECT / "figures" / "cifar10-resnet8" / "results.json"
    monkeypatch.setattr(gpu_evidence, "PACK_BYTES", gpu_evidence.INDEX_BYTES + 100_000)
    directory = tmp_path / "figures" / "gpu-nvidia-pretended-1"
    (directory / "sleeper").mkdir(parents=True)
    shutil.copy(source, directory / "sleeper" / "results.json")
    (directory / "roofline.json").write_text("{")
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
        "check.json more report.md roofline.json sleeper/results.json some steps.json tests.log".split()
    )
    assert len(packs) <= 3 and all(file.stat().st_size < 100_000 for file in (tmp_path / "packs").iterdir())
    steps = json.loads(packs[0].read("figures/gpu-nvidia-pretended-1/steps.json"))
    assert {name: step["exit_code"] for name, step in steps.items()} == {"tests": 0, "sleeper": 124}
    assert "| one device" in packs[0].read("figures/gpu-nvidia-pretended-1/report.md").decode()


def test_a_table_that_cannot_be_made_does_not_end_the_report(evidence, monkeypatch):
    monkeypatch.setattr(gpu_evidence, "STEPS", {"roofline": Step(1, "open('figures/x', 'w')"), "last": Step(1, "")})
    directory = evidence("--step", "last")[1]
    (directory / "roofline.json").write_text("{")
    assert evidence()[0] == 0 and "It cannot be shown: JSONDecodeError" in (directory / "report.md").read_text()


def test_commands_and_where_they_leave_what(tmp_path, monkeypatch):
    assert gpu_evidence.directory_of(["Tesla T4", "Tesla T4"]).name == "gpu-2x-tesla-t4"
    monkeypatch.setattr(gpu_evidence, "PROJECT", tmp_path)
    directory = tmp_path / "x"

    def typed(name, resume=True):
        return " ".join(gpu_evidence.command_of(name, directory, "d", resume))

    assert typed("tests") == "-m pytest -m gpu"
    assert typed("roofline") == "benchmarks/roofline.py --minutes 2 --data-root d --output x/roofline.json"
    assert typed("methods").endswith("--timeline --data-root d --output-dir x/methods")
    for file in ("methods/results.json", "roofline.json"):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    assert [name for name in gpu_evidence.STEPS if typed(name).endswith(" --resume")] == ["methods"]
    assert not typed("methods", resume=False).endswith(" --resume")
    for name, step in gpu_evidence.STEPS.items():
        if step.command.startswith(gpu_evidence.COMPARE):
            monkeypatch.setattr(sys, "argv", step.command.split())
            assert compare_parallel.parse(), name


def test_no_step_repeats_the_rows_of_another(planned):
    rows = {}
    for name, step in gpu_evidence.STEPS.items():
        command, _, flags = step.command.partition(" ")
        if command == gpu_evidence.COMPARE:
            for row in planned(flags, gpus=1).plan:
                assert rows.setdefault(row.command, name) == name
    assert {"methods", "one-device", "time-to-99-mnist", "time-to-94-cifar10"} == {*rows.values()}


def test_images_come_back_from_a_bundle_as_they_were(tmp_path):
    """CIFAR-10 once all of its parts are there, MNIST at once."""
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
        patch.setattr(offline, "load_image_set", lambda config: None)  # which decodes
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
