"""Nothing of a run outlives what started it, however that ended: no rank, no loader worker, no temporary directory."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from common.machine.lifetime import temporary_directory
from tests.fixtures import PROJECT, alive, child_environment

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "ddp_train.py")
SPAWN = ("ddp_train.py", "--spawn", "2")
TRAINING = (
    "--dataset",
    "synthetic-mnist",
    "--batch-size",
    "48",
    "--num-workers",
    "2",
    "--epochs",
    "1000",
    "--train-size",
    "480",
)
PARENT = (
    "import signal, sys; from pathlib import Path; from comparison.run.launch import run_child; "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "sys.exit(run_child(tuple(sys.argv[2:]), Path(sys.argv[1])))"
)
USE = "from common.machine.lifetime import temporary_directory\nwith temporary_directory() as directory: pass"


@pytest.mark.parametrize(
    "launcher, victim, number, code",
    [
        (TORCHRUN, "parent", signal.SIGKILL, -9),
        (TORCHRUN, "launcher", signal.SIGKILL, 247),  # -9 as an exit code
        (SPAWN, "parent", signal.SIGKILL, -9),
        (SPAWN, "launcher", signal.SIGKILL, 247),
        (SPAWN, "parent", signal.SIGTERM, 143),
        (SPAWN, "launcher", signal.SIGTERM, 143),
        (TORCHRUN, "guard and parent", signal.SIGKILL, -9),
        (SPAWN, "guard and parent", signal.SIGKILL, -9),
    ],
)
@pytest.mark.slow
def test_no_process_is_left(launcher, victim, number, code, data_root, tmp_path, keep):
    marker, temporary = f"TEST_MARKER={uuid.uuid4().hex}", Path(tempfile.mkdtemp())  # a short path, for sockets
    environment = {**child_environment(), **dict([marker.split("=")]), "TMPDIR": str(temporary)}
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PARENT,
            log,
            sys.executable,
            *launcher,
            *TRAINING,
            "--data-root",
            data_root,
            "--figure-dir",
            tmp_path,
        ],
        cwd=PROJECT,
        env=environment,
    )
    deadline = time.time() + 60
    while not (log.exists() and "Epoch [2/" in log.read_text()):  # two ranks with a worker each are at work
        assert parent.poll() is None and time.time() < deadline, log.read_text()
        time.sleep(0.1)
    running = alive(marker)
    assert len(running) >= 6, running  # parent, launcher, 2 ranks, 2 workers
    pid = parent.pid
    if victim == "launcher":
        pid = next(
            child
            for child, command in running.items()
            if child != pid
            and "ddp_train.py" in command
            and Path(f"/proc/{child}/stat").read_text().split()[3] == str(pid)
        )
    if victim == "guard and parent":
        os.kill(next(child for child, command in running.items() if "lifetime.py" in command), signal.SIGKILL)
    start = time.perf_counter()
    os.kill(pid, number)
    assert parent.wait(40) % 256 == code % 256
    deadline = time.time() + 2
    while left := alive(marker):
        assert time.time() < deadline, left
        time.sleep(0.05)
    keep(
        f"{number.name} to the {victim} of {'torchrun' if launcher is TORCHRUN else 'spawn'}",
        code,
        "",
        time.perf_counter() - start,
    )
    if victim == "guard and parent":
        assert list(temporary.glob("parallel-training-*"))
        subprocess.run([sys.executable, "-c", USE], cwd=PROJECT, env=environment, check=True)
    while left := list(temporary.glob("parallel-training-*")):  # torchrun leaves a directory of its own
        assert time.time() < deadline, left
    shutil.rmtree(temporary)


SLOW_IMPORT = """
import os, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C" and "RANK" in os.environ:
            open(os.environ["REACHED"], "w").close()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
"""


def test_a_rank_whose_launcher_is_killed_while_it_imports_torch(tmp_path, keep):
    marker, reached = uuid.uuid4().hex, tmp_path / "reached"
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    environment = {**child_environment(), "TEST_MARKER": marker, "PYTHONPATH": str(tmp_path), "REACHED": str(reached)}
    launcher = subprocess.Popen([sys.executable, *TORCHRUN], cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.time() + 60
    while not reached.exists():
        assert launcher.poll() is None and time.time() < deadline
        time.sleep(0.05)
    start = time.perf_counter()
    launcher.kill()
    deadline = time.time() + 10
    while left := alive(f"TEST_MARKER={marker}"):
        assert launcher.wait() and time.time() < deadline, left
        time.sleep(0.05)
    keep("SIGKILL to torchrun while its ranks import torch", launcher.wait(), "", time.perf_counter() - start)


def test_a_directory_is_swept_when_its_process_is_gone(tmp_path, monkeypatch, keep):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "parallel-training-notes").mkdir()
    (tmp_path / "parallel-training-4711-abcdefgh").mkdir()
    hold = USE.replace("pass", "print(directory, flush=True); input()")
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", hold], cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    dead, living = (Path(holder.stdout.readline().strip()) for holder in holders)
    (dead / "file").touch()
    start = time.perf_counter()
    holders[0].kill()
    holders[0].communicate()
    with temporary_directory() as own:
        assert {*map(str, tmp_path.iterdir())} == {
            own,
            str(living),
            *(str(tmp_path / f"parallel-training-{rest}") for rest in ("notes", "4711-abcdefgh")),
        }
    keep("SIGKILL to a process that has a temporary directory", -9, "", time.perf_counter() - start)
    holders[1].communicate("\n")
    assert not living.exists() and not Path(own).exists()


@pytest.fixture
def container():
    """What to put in front of a command that gets PIDs of its own, the shell's being 1."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a namespace for PIDs (unshare)")
    return [*command, "sh", "-c", '"$@"; code=$?; sleep 1; exit $code', "sh"]  # so long, the guard has time to clean up


def test_comparisons_in_containers_that_share_a_directory(container, tmp_path, keep):
    temporary = Path(tempfile.mkdtemp())
    look = (
        "import os, sys, time\nprint(os.environ['TMPDIR'], flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\nsys.exit(not os.path.isdir(os.environ['TMPDIR']))"
    )

    def compare(name, code):
        return subprocess.Popen(
            [*container, sys.executable, "-c", PARENT, tmp_path / name, sys.executable, "-c", code],
            cwd=tmp_path,
            env={**child_environment(), "TMPDIR": str(temporary), "PYTHONPATH": str(PROJECT)},
        )

    first = compare("first", look)
    deadline = time.time() + 60
    while not ((tmp_path / "first").exists() and (tmp_path / "first").read_text()):
        assert first.poll() is None and time.time() < deadline
        time.sleep(0.05)
    start = time.perf_counter()
    assert compare("second", "import os; assert os.getpid()").wait(60) == 0
    (tmp_path / "go").touch()
    code = first.wait(60)
    keep("another comparison of the same PID ends in another container", code, "", time.perf_counter() - start)
    assert code == 0
    assert not [*temporary.glob("parallel-training-*")]
    shutil.rmtree(temporary)


@pytest.mark.slow
@pytest.mark.parametrize("script, rank, ranks", [("data_parallel_train.py", 3, 8), ("ddp_train.py", 0, 1)])
def test_what_a_shell_with_a_rank_started_outlives_the_shell(script, rank, ranks, data_root, tmp_path, keep, free_port):
    marker, log = f"TEST_MARKER={uuid.uuid4().hex}", tmp_path / "log"
    cluster = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    code = "import subprocess, sys; subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'w'))"
    shell = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            log,
            sys.executable,
            script,
            *TRAINING,
            "--data-root",
            data_root,
            "--figure-dir",
            tmp_path,
        ],
        cwd=PROJECT,
        env={**child_environment(), **cluster, **dict([marker.split("=")])},
    )
    deadline = time.time() + 60

    def epochs():
        assert time.time() < deadline
        time.sleep(0.1)
        return log.read_text().count("Epoch [") if log.exists() else 0

    try:
        while epochs() < 2:
            assert shell.poll() is None
        start = time.perf_counter()
        shell.kill()
        shell.wait()
        known = epochs()
        while epochs() < known + 2:
            assert alive(marker)
        keep(f"SIGKILL to the shell that started {script} with RANK={rank}", -9, "", time.perf_counter() - start)
    finally:
        for process in alive(marker):
            os.kill(process, signal.SIGKILL)


def test_a_helper_ends_with_the_comparison(keep):
    marker = f"TEST_MARKER={uuid.uuid4().hex}"
    parent = subprocess.Popen(
        [sys.executable, "-c", "from comparison.run.launch import ask; ask('common.programs.check')"],
        cwd=PROJECT,
        env={**child_environment(), **dict([marker.split("=")])},
    )
    deadline = time.time() + 30
    while not any("common.programs.check" in command and "-m" in command for command in alive(marker).values()):
        assert time.time() < deadline
        time.sleep(0.01)
    start = time.perf_counter()
    parent.kill()
    parent.wait()
    while alive(marker):
        assert time.perf_counter() - start < 2
    keep("SIGKILL to the comparison while it looks at the machine", -9, "", time.perf_counter() - start)


def test_a_helper_that_is_killed_is_named(tmp_path, keep):
    marker = f"TEST_MARKER={uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "compare_parallel.py", "--dry-run", "--output-dir", tmp_path],
        cwd=PROJECT,
        env={**child_environment(), **dict([marker.split("=")])},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not (helpers := [pid for pid, command in alive(marker).items() if "common.programs.check" in command]):
        assert process.poll() is None
        time.sleep(0.01)
    start = time.perf_counter()
    os.kill(helpers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    keep("SIGKILL to what looks at the machine for a comparison", process.returncode, err, time.perf_counter() - start)
    assert (process.returncode, out) == (1, "")
    assert err == (
        "error: common.programs.check ended without a word; signal 9 (SIGKILL), probably out of memory; try "
        "it again, or with a smaller --batch-size\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting", "training"])
def test_ranks_started_by_hand_end_with_their_launcher(when, data_root, tmp_path, keep):
    marker = f"TEST_MARKER={uuid.uuid4().hex}"
    log = open(tmp_path / "log", "w")  # noqa: SIM115 - for the process
    launcher = subprocess.Popen(
        [sys.executable, *SPAWN, *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path],
        cwd=PROJECT,
        env={**child_environment(), **dict([marker.split("=")])},
        stdout=log,
    )
    deadline = time.time() + 60
    while (
        sum("spawn_main" in command for command in alive(marker).values()) < 2
        if when == "starting"
        else "Epoch [2/" not in (tmp_path / "log").read_text()
    ):
        assert time.time() < deadline
        time.sleep(0.05)
    start = time.perf_counter()
    launcher.kill()
    launcher.wait()
    while left := alive(marker):  # a rank that is importing torch ends after that
        assert time.perf_counter() - start < 20, left
        time.sleep(0.05)
    keep(f"SIGKILL to a launcher started by hand, its ranks {when}", -9, "", time.perf_counter() - start)
