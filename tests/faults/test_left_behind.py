"""No rank, loader worker or temporary directory outlives the process that started it, however that process ends."""

import os
import signal
import subprocess
import sys
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
    """marked(*command, **variables): start Python with a mark that its children inherit. marked.alive(): all marked."""
    mark = uuid.uuid4().hex

    def start(*command, cwd=PROJECT, before=(), pipes=(), **variables):
        environment = {**child_environment(), "TEST_MARKER": mark, "PYTHONPATH": str(PROJECT), **variables}
        options = dict.fromkeys(pipes, subprocess.PIPE)
        words = [*before, sys.executable, *map(str, command)]
        return subprocess.Popen(words, cwd=cwd, env=environment, text=True, **options)

    start.alive = lambda part="": {pid: command for pid, command in alive(mark).items() if part in command}
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
def test_no_process_is_left_after_a_signal(
    launcher, victim, number, code, data_root, tmp_path, short_directory, marked
):
    log = tmp_path / "log"
    training = (*launcher, *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path)
    parent = marked("-c", PARENT, log, sys.executable, *training, TMPDIR=str(short_directory))
    wait_until(lambda: "Epoch [2/" in text_of(log), process=parent)  # both ranks and their workers are running
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
        assert list(short_directory.glob("parallel-training-*"))
        assert marked("-c", USE, TMPDIR=str(short_directory)).wait() == 0
    wait_until(lambda: not list(short_directory.glob("parallel-training-*")), 2)  # torchrun leaves its own directory


@pytest.mark.parametrize("script", [["data_parallel_train.py"], SPAWN])
def test_a_training_with_workers_leaves_no_temporary_file(script, data_root, tmp_path, short_directory, marked):
    words = *script, *TRAINING, "--epochs", 1, "--quiet", "--data-root", data_root, "--figure-dir", tmp_path
    assert marked(*words, TMPDIR=str(short_directory)).wait(100) == 0
    assert not [*short_directory.iterdir()]


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


def test_the_directory_of_a_dead_process_is_removed(tmp_path, monkeypatch, marked):
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


def test_containers_that_share_a_temporary_directory(tmp_path, short_directory, unshare, marked):
    """Both containers use the same PIDs. PID 1, a shell, stays for a second so that the guard can clean up."""
    namespaces = unshare("--map-root-user", "--pid", "--fork", "--mount-proc")
    container = [*namespaces, "sh", "-c", '"$@"; code=$?; sleep 1; exit $code', "sh"]

    def compare(name, code):
        command = ("-c", PARENT, tmp_path / name, sys.executable, "-c", code)
        return marked(*command, cwd=tmp_path, before=container, TMPDIR=str(short_directory))

    first = compare("first", LOOK)
    wait_until(lambda: text_of(tmp_path / "first"), process=first)
    assert compare("second", "import os; assert os.getpid()").wait(60) == 0
    (tmp_path / "go").touch()
    assert first.wait(60) == 0 and not [*short_directory.glob("parallel-training-*")]


@pytest.mark.slow
def test_a_training_without_ranks_outlives_a_shell_that_has_a_rank(data_root, tmp_path, marked):
    cluster = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    log = tmp_path / "log"
    code = "import subprocess, sys; subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'w'))"
    training = ("data_parallel_train.py", *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path)
    shell = marked("-c", code, log, sys.executable, *training, **cluster)
    wait_until(lambda: text_of(log).count("Epoch [") >= 2, process=shell)
    kill(shell)
    before = text_of(log).count("Epoch [")
    wait_until(lambda: text_of(log).count("Epoch [") >= before + 2)


def test_a_helper_process_ends_with_the_comparison(marked):
    parent = marked("-c", f"from comparison.run.launch import ask; ask('{HELPER}')")
    wait_until(lambda: marked.alive(f"-m {HELPER}"))
    kill(parent)
    wait_until(lambda: not marked.alive(), 2)
