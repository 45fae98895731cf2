"""The pre-flight check: green on this machine, red with the cause where something is planted."""

import json
import re
import subprocess
import sys
import uuid

import pytest

from common.machine.lifetime import TAG
from common.programs import check as preflight
from common.programs.check import BAD, NOTE, OK, Check, check_all
from tests.fixtures import child_environment, give_up_root

CHECK = "-m common.programs.check"


def named(checks, name):
    return next(check for check in checks if check.name == name)


def test_a_machine_that_is_ready(project, tmp_path):
    done = project(CHECK, "--data-root", tmp_path / "data", "--output-dir", tmp_path, tiny=False)
    assert done.returncode == 0 and not done.stderr
    assert [line[:4] for line in done.stdout.splitlines()[:2]] == ["ok  ", "ok  "]
    assert "note  data: mnist: not in" in done.stdout and "\033" not in done.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_json(project, tmp_path):
    done = project(CHECK, "--json", "--data-root", tmp_path, "--output-dir", tmp_path, tiny=False)
    report = json.loads(done.stdout)
    assert report["environment"]["cores"] >= 1
    assert {"name", "status", "found", "advice"} == set(report["checks"][0])


def test_a_mixed_pair_of_packages(project, tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    metadata = tmp_path / "torch-9.9.9+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9+cpu\n")
    done = project(CHECK, tiny=False, environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 3
    line = next(line for line in done.stdout.splitlines() if line.startswith("bad "))
    assert "torch 9.9.9+cpu" in line and "only torch is built for the CPU alone" in line
    assert "operator torchvision::nms does not exist" in line and "pip install -r requirements.txt" in line


def test_damaged_data_and_data_that_is_whole(real_data, tmp_path):
    source, target = real_data / "MNIST" / "raw", tmp_path / "MNIST" / "raw"
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    assert named(check_all(tmp_path, tmp_path)[0], "data: mnist").status == OK
    labels = target / "train-labels-idx1-ubyte"
    content = labels.read_bytes()
    labels.unlink()
    labels.write_bytes(content[:100])
    check = named(check_all(tmp_path, tmp_path)[0], "data: mnist")
    assert check.status == BAD and "have the md5" in check.found and "delete it" in check.advice


@pytest.mark.slow
def test_a_directory_that_may_only_be_read(project, tmp_path):
    tmp_path.chmod(0o555)
    done = project(CHECK, "--output-dir", tmp_path / "below", tiny=False, preexec_fn=give_up_root)
    assert done.returncode == 3
    assert f"bad   write to {tmp_path / 'below'}: Permission denied; name another" in done.stdout
    done = project(CHECK, "--data-root", tmp_path, tiny=False, preexec_fn=give_up_root)
    assert done.returncode == 0 and f"note  write to {tmp_path}: Permission denied" in done.stdout


@pytest.mark.parametrize("limit, name", [("SHARED_MEMORY_BYTES", "/dev/shm"), ("FREE_DISK_BYTES", "write to {}")])
def test_little_room(limit, name, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, limit, 10**18)
    assert named(check_all(tmp_path, tmp_path)[0], name.format(tmp_path)).status == BAD


@pytest.mark.parametrize("parent, status", [(2**22 + 1, BAD), (1, NOTE)], ids=["gone", "at work"])
def test_processes_of_other_runs(parent, status, tmp_path):
    tag = f"name-{parent}-{uuid.uuid4().hex}"
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        env={**child_environment(), TAG: tag},
    )
    try:
        left.stdout.read(1)
        check = named(check_all(tmp_path, tmp_path)[0], "other runs")
        killed = re.findall(r"\d+", check.advice.partition("kill -9")[2])  # other tests may have left some too
        assert (str(left.pid) in killed) == (status == BAD)
        assert killed or (check.status == NOTE and re.search(r"process (\d+, )*1\b", check.found))
    finally:
        left.kill()
        left.communicate()


@pytest.mark.slow
def test_a_comparison_warns_of_what_is_bad(project, tmp_path):
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "MNIST" / "raw" / f"{name}-ubyte").touch()
    done = project("compare_parallel.py", "--dry-run", "--dataset", "mnist", "--data-root", tmp_path, tiny=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"# How long it takes is told once mnist is in {tmp_path}, whole"
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    assert done.stderr.startswith(f"warning: data: mnist: {file} is damaged; it is empty, with the md5 ")


@pytest.mark.parametrize("terminal, no_color, coloured", [(True, "", True), (True, "1", False), (False, "", False)])
def test_colours_are_for_terminals_whose_user_wants_them(terminal, no_color, coloured, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "check_all", lambda *_: ([Check("Python", OK, "3.11")], {}))
    monkeypatch.setattr("sys.argv", ["check"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    preflight.main()
    assert ("\033[32m" in capsys.readouterr().out) == coloured
