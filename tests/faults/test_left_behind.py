"""Nothing of a run outlives what started it, however that ended: no rank, no loader worker, no temporary directory."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from common.machine.lifetime import temporary_directory
from tests.fixtures import PROJECT, alive, child_environment, wait_until

TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py".split()
SPAWN = "ddp_train.py --spawn 2".split()
TRAINING = "--dataset synthetic-mnist --batch-size 48 --num-workers 2 --epochs 1000 --train-size 480".split()
PARENT = (
    "import signal, sys; from pathlib import Path; from comparison.run.launch import run_child; "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "sys.exit(run_child(tuple(sys.argv[2:]), Path(sys.argv[1])))"
)
USE = "from common.machine.lifetime import temporary_directory\nwith temporary_directory() as directory: pass"
HELPER = "common.programs.check"


@pytest.fixture
def marked():
    """marked(*command, **variables): Python, started with a mark that all that it starts has; marked.alive(): these."""
    mark = f"TEST_MARKER={uuid.uuid4().hex}"

    def start(*command, cwd=PROJECT, before=(), pipes=(), **variables):
        environment = {**child_environment(), **dict([mark.split("=")]), "PYTHONPATH": str(PROJECT), **variables}
        options = dict.fromkeys(pipes, subprocess.PIPE)
        words = [*before, sys.executable, *map(str, command)]
        return subprocess.Popen(words, cwd=cwd, env=environment, text=True, **options)

    start.alive = lambda named="": {pid: command for pid, command in alive(mark).items() if named in command}
    yield start
    for process in alive(mark):
        os.kill(process, signal.SIGKILL)


def kill(process):
    process.kill()
    process.wait()


def text_of(file):
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    "launcher, victim, number, code",
    [
        (TORCHRUN, "parent", signal.SIGKILL, -9),
        (TORCHRUN, "launcher", signal.SIGKILL, 247),  # -9 as an exit code
        (SPAWN, "launcher", signal.SIGKILL, 247),
        (SPAWN, "parent", signal.SIGTERM, 143),
        (SPAWN, "guard and parent", signal.SIGKILL, -9),
    ],
)
@pytest.mark.slow
def test_no_process_is_left(launcher, victim, number, code, data_root, tmp_path, marked):
    temporary, log = Path(tempfile.mkdtemp()), tmp_path / "log"  # a short path, for sockets
    training = (*launcher, *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path)
    parent = marked("-c", PARENT, log, sys.executable, *training, TMPDIR=str(temporary))
    wait_until(lambda: "Epoch [2/" in text_of(log), process=parent)  # two ranks with a worker each are at work
    running, pid = marked.alive(), parent.pid
    assert len(running) >= 6, running  # parent, launcher, 2 ranks, 2 workers
    if victim == "launcher":
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = next(int(child) for child in children if "ddp_train.py" in running.get(int(child), ""))
    if victim == "guard and parent":
        os.kill(next(iter(marked.alive("lifetime.py"))), signal.SIGKILL)
    os.kill(pid, number)
    assert parent.wait(40) % 256 == code % 256
    wait_until(lambda: not marked.alive(), 2)
    if victim == "guard and parent":
        assert list(temporary.glob("parallel-training-*"))
        assert marked("-c", USE, TMPDIR=str(temporary)).wait() == 0
    wait_until(lambda: not list(temporary.glob("parallel-training-*")), 2)  # torchrun leaves a directory of its own
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


def test_a_rank_whose_launcher_is_killed_while_it_imports_torch(tmp_path, marked):
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    launcher = marked(*TORCHRUN, PYTHONPATH=str(tmp_path), REACHED=str(tmp_path / "reached"))
    wait_until((tmp_path / "reached").exists, process=launcher)
    kill(launcher)
    wait_until(lambda: not marked.alive(), 10)


def test_a_directory_is_swept_when_its_process_is_gone(tmp_path, monkeypatch, marked):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    others = [tmp_path / f"parallel-training-{rest}" for rest in ("notes", "4711-abcdefgh")]
    for other in others:
        other.mkdir()
    hold = USE.replace("pass", "print(directory, flush=True); input()")
    holders = [marked("-c", hold, pipes=("stdin", "stdout")) for _ in range(2)]
    dead, living = (Path(holder.stdout.readline().strip()) for holder in holders)
    (dead / "file").touch()
    kill(holders[0])
    with temporary_directory() as own:
        assert {*tmp_path.iterdir()} == {Path(own), living, *others}
    holders[1].communicate("\n")
    assert not living.exists() and not Path(own).exists()


LOOK = """import os, sys, time
print(os.environ['TMPDIR'], flush=True)
while not os.path.exists('go'):
    time.sleep(0.05)
sys.exit(not os.path.isdir(os.environ['TMPDIR']))
"""


def test_comparisons_in_containers_that_share_a_directory(tmp_path, marked):
    """Each has PIDs of its own, 1 being the shell's, which stays for a second: the guard has time to clean up."""
    unshare = "unshare --user --map-root-user --pid --fork --mount-proc".split()
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a namespace for PIDs (unshare)")
    temporary, container = Path(tempfile.mkdtemp()), [*unshare, "sh", "-c", '"$@"; code=$?; sleep 1; exit $code', "sh"]

    def compare(name, code):
        command = ("-c", PARENT, tmp_path / name, sys.executable, "-c", code)
        return marked(*command, cwd=tmp_path, before=container, TMPDIR=str(temporary))

    first = compare("first", LOOK)
    wait_until(lambda: text_of(tmp_path / "first"), process=first)
    assert compare("second", "import os; assert os.getpid()").wait(60) == 0
    (tmp_path / "go").touch()
    assert first.wait(60) == 0 and not [*temporary.glob("parallel-training-*")]
    shutil.rmtree(temporary)


@pytest.mark.slow
def test_what_a_shell_with_a_rank_started_outlives_the_shell(data_root, tmp_path, marked):
    cluster = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    log = tmp_path / "log"
    code = "import subprocess, sys; subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'w'))"
    training = ("data_parallel_train.py", *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path)
    shell = marked("-c", code, log, sys.executable, *training, **cluster)
    wait_until(lambda: text_of(log).count("Epoch [") >= 2, process=shell)
    kill(shell)
    known = text_of(log).count("Epoch [")
    wait_until(lambda: text_of(log).count("Epoch [") >= known + 2)


def test_a_helper_ends_with_the_comparison(marked):
    parent = marked("-c", f"from comparison.run.launch import ask; ask('{HELPER}')")
    wait_until(lambda: marked.alive(f"-m {HELPER}"))
    kill(parent)
    wait_until(lambda: not marked.alive(), 2)


def test_a_helper_that_is_killed_is_named(tmp_path, marked):
    flags = ("compare_parallel.py", "--dry-run", "--output-dir", tmp_path)
    process = marked(*flags, pipes=("stdout", "stderr"))
    os.kill(next(iter(wait_until(lambda: marked.alive(f"-m {HELPER}"), process=process))), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith(f"error: {HELPER} ended without a word; signal 9 (SIGKILL), probably out of memory; try it ")
