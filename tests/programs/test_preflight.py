"""The pre-flight check: it passes on this machine, and names each planted fault."""

import os
import re
import subprocess
import sys
import tempfile
import uuid
from unittest import mock

import pytest

from common.machine.lifetime import TAG
from common.machine.sharing import TRAINING, register_program
from common.programs import check as preflight
from common.programs import model
from common.programs.check import BAD, NOTE, OK, check_all
from tests.fixtures import child_environment, give_up_root


def named(name, *directories):
    return next(check for check in check_all(*directories)[0] if check.name == name)


def test_this_machine_is_ready(project, tmp_path):
    flags = ("--data-root", tmp_path / "data", "--output-dir", tmp_path)
    done = project("-m common.programs.check", *flags, tiny=False)
    assert done.returncode == 0 and not done.stderr
    assert [line[:4] for line in done.stdout.splitlines()[:2]] == ["ok  ", "ok  "]
    assert "note  data: mnist: not in" in done.stdout
    assert not (tmp_path / "data").exists()


def test_an_unsuitable_torchvision_is_bad(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr("common.machine.environment._version", {"torch": "9.9.9+cpu", "torchvision": "1"}.get)
    check = named("torch", tmp_path, tmp_path)
    assert check.status == BAD and "pip install -r requirements.txt" in check.advice
    assert check.found.startswith("torchvision cannot be imported; torch 9.9.9+cpu, torchvision 1: ")


def test_damaged_data_is_bad_and_intact_data_is_ok(real_data, tmp_path):
    source, target = real_data / "MNIST" / "raw", tmp_path / "MNIST" / "raw"
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    assert named("data: mnist", tmp_path, tmp_path).status == OK
    labels = target / "train-labels-idx1-ubyte"
    labels.unlink()
    labels.write_bytes(bytes(100))
    check = named("data: mnist", tmp_path, tmp_path)
    assert check.status == BAD and "have the md5" in check.found and "delete it" in check.advice


def test_a_read_only_output_directory_is_bad_and_a_read_only_data_root_is_a_note(monkeypatch, tmp_path):
    error = PermissionError(13, "Permission denied")
    monkeypatch.setattr(tempfile, "TemporaryFile", mock.Mock(side_effect=error))
    data_root, output_dir = tmp_path / "data", tmp_path / "new"
    for directory, status in ((output_dir, BAD), (data_root, NOTE)):
        check = named(f"write to {directory}", data_root, output_dir)
        assert (check.status, check.found, check.advice) == (status, "Permission denied", "name another directory")
    assert not output_dir.exists()


@pytest.mark.parametrize("limit, name", [("SHARED_MEMORY_BYTES", "/dev/shm"), ("FREE_DISK_BYTES", "write to {}")])
def test_too_little_space_is_bad(limit, name, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, limit, 10**18)
    assert named(name.format(tmp_path), tmp_path, tmp_path).status == BAD


@pytest.mark.parametrize("parent, status", [(2**22 + 1, BAD), (1, NOTE)], ids=["orphan", "running"])
def test_orphans_are_bad_and_running_comparisons_are_a_note(parent, status, tmp_path):
    environment = {**child_environment(), TAG: f"name-{parent}-{uuid.uuid4().hex}"}
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        process.stdout.read(1)
        check = named("other runs", tmp_path, tmp_path)
        orphans = re.findall(r"\d+", check.advice.partition("kill -9")[2])  # other tests may have left some as well
        assert (str(process.pid) in orphans) == (status == BAD)
        assert orphans or (check.status == NOTE and re.search(r"process (\d+, )*1\b", check.found))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_comparison_warns_about_bad_checks(project, tmp_path):
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "MNIST" / "raw" / f"{name}-ubyte").touch()
    done = project("compare_parallel.py", "--dry-run", "--dataset", "mnist", "--data-root", tmp_path, tiny=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"# For an estimate of the time, put mnist into {tmp_path} first"
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    assert done.stderr.startswith(f"warning: data: mnist: {file} is damaged; ")


def test_a_running_training_is_a_note(monkeypatch):
    monkeypatch.setattr(preflight, "tags", dict)
    for name in (TAG, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with register_program(TRAINING):
        check = preflight._running()
    assert check.status == NOTE and f"a training (process {os.getpid()})" in check.found


def test_directories_that_may_not_be_read_are_named(project, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    flags = ("--data-root", closed / "data", "--output-dir", closed / "out", "--dataset", "MNIST")
    done = project("-m common.programs.check", *flags, tiny=False, preexec_fn=give_up_root)
    assert done.returncode == 3 and not done.stderr
    assert re.search(rf"^bad   data: mnist: Permission denied: {closed}/data/.*; change its rights", done.stdout, re.M)
    assert f"bad   write to {closed}/out: Permission denied; name another directory\n" in done.stdout
    assert "cifar10" not in done.stdout


def test_a_rank_examines_the_data_sets_that_were_typed(type_in, tmp_path):
    type_in("check", "--dataset", "CIFAR-10", "--device", "cuda", "--data-root", tmp_path, "--output-dir", tmp_path)
    typed = preflight.parse()
    assert (typed.datasets, typed.device) == (["cifar10"], "gpu")
    typed.device = "cpu"
    names = [check["name"] for check in preflight._as_rank(typed)["checks"] if check["name"].startswith("data: ")]
    assert names == ["data: cifar10"]


def test_the_network_of_a_recipe_is_checked_without_its_data(type_in, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(model, "load_image_set", lambda _: pytest.fail("it loads the data"))
    for flags, line in (
        ("--dataset mnist --recipe fast", r"strided: .*, images \(1, 28, 28\), 10 classes; it can be cut"),
        ("--dataset synthetic-cifar10 --image-size 64 --model lenet", r"lenet: .*, images \(3, 64, 64\), 10 classes; "),
    ):
        type_in("model", *flags.split(), "--data-root", tmp_path)
        model.main(model.parse())
        assert re.match(line, capsys.readouterr().out)


BUSY = [(8, 0.3, OK, ""), (1.5, 0.3, NOTE, ""), (8, 12.0, NOTE, "type top")]


@pytest.mark.parametrize("cores, load, status, advice", BUSY)
def test_cores_that_are_missing_or_busy_are_a_note(cores, load, status, advice):
    check = preflight._cores(cores, 8, load)
    assert check.found == f"{cores} of 8 may be used; load average of the last minute: {load}"
    assert check.status == status and check.advice.startswith(advice) and bool(check.advice) == bool(advice)
