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

TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 ddp_train.py".split()
SPAWN = "ddp_train.py --spawn 2".split()
TRAINING = "--dataset synthetic-mnist --batch-size 48 --num-workers 2 --epochs 1000 --train-size 480".split()
PARENT = (
    "import signal, sys; from pathlib import Path; from comparison.run.launch import run_child; "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "sys.exit(run_child(tuple(sys.argv[2:]), Path(sys.argv[1])))"
)
USE = "from common.machine.lifetime import temporary_directory\nwith temporary_directory() as directory: pass"


@pytest.fixture
def marked():
    """marked(*command, **variables): Python, started with a mark that all that it starts has; marked.alive(): these."""
    mark = f"TEST_MARKER={uuid.uuid4().hex}"

    def start(*command, cwd=PROJECT, pipes=(), **variables):
        environment = {**child_environment(), **dict([mark.split("=")]), **variables}
        options = dict.fromkeys(pipes, subprocess.PIPE)
        return subprocess.Popen([sys.executable, *map(str, command)], cwd=cwd, env=environment, text=True, **options)

    start.alive = lambda: alive(mark)
    yield start
    for process in alive(mark):
        os.kill(process, signal.SIGKILL)


def wait_until(true, seconds=60, process=None):
    """Wait until it is true, as long as a process runs; return that, and when it was."""
    deadline = time.time() + seconds
    while not (found := true()):
        assert time.time() < deadline and (process is None or process.poll() is None)
        time.sleep(0.02)
    return found, time.perf_counter()


def text_of(file):
    return file.read_text() if file.exists() else ""


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
def test_no_process_is_left(launcher, victim, number, code, data_root, tmp_path, marked, keep):
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
        os.kill(next(child for child, command in running.items() if "lifetime.py" in command), signal.SIGKILL)
    start = time.perf_counter()
    os.kill(pid, number)
    assert parent.wait(40) % 256 == code % 256
    _, end = wait_until(lambda: not marked.alive(), 2)
    launched = "torchrun" if launcher is TORCHRUN else "spawn"
    keep(f"{number.name} to the {victim} of {launched}", code, "", end - start)
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


def test_a_rank_whose_launcher_is_killed_while_it_imports_torch(tmp_path, marked, keep):
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    reached = tmp_path / "reached"
    launcher = marked(*TORCHRUN, PYTHONPATH=str(tmp_path), REACHED=str(reached))
    _, start = wait_until(reached.exists, process=launcher)
    launcher.kill()
    code = launcher.wait()
    _, end = wait_until(lambda: not marked.alive(), 10)
    keep("SIGKILL to torchrun while its ranks import torch", code, "", end - start)


def test_a_directory_is_swept_when_its_process_is_gone(tmp_path, monkeypatch, marked, keep):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    others = [tmp_path / f"parallel-training-{rest}" for rest in ("notes", "4711-abcdefgh")]
    for other in others:
        other.mkdir()
    hold = USE.replace("pass", "print(directory, flush=True); input()")
    holders = [marked("-c", hold, pipes=("stdin", "stdout")) for _ in range(2)]
    dead, living = (Path(holder.stdout.readline().strip()) for holder in holders)
    (dead / "file").touch()
    start = time.perf_counter()
    holders[0].kill()
    holders[0].communicate()
    with temporary_directory() as own:
        assert {*tmp_path.iterdir()} == {Path(own), living, *others}
    keep("SIGKILL to a process that has a temporary directory", -9, "", time.perf_counter() - start)
    holders[1].communicate("\n")
    assert not living.exists() and not Path(own).exists()


@pytest.fixture
def container():
    """What to put in front of a command that gets PIDs of its own, the shell's being 1."""
    command = "unshare --user --map-root-user --pid --fork --mount-proc".split()
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
        command = [*container, sys.executable, "-c", PARENT, tmp_path / name, sys.executable, "-c", code]
        environment = {**child_environment(), "TMPDIR": str(temporary), "PYTHONPATH": str(PROJECT)}
        return subprocess.Popen(command, cwd=tmp_path, env=environment)

    first = compare("first", look)
    _, start = wait_until(lambda: text_of(tmp_path / "first"), process=first)
    assert compare("second", "import os; assert os.getpid()").wait(60) == 0
    (tmp_path / "go").touch()
    code = first.wait(60)
    keep("another comparison of the same PID ends in another container", code, "", time.perf_counter() - start)
    assert code == 0 and not [*temporary.glob("parallel-training-*")]
    shutil.rmtree(temporary)


@pytest.mark.slow
@pytest.mark.parametrize("script, rank, ranks", [("data_parallel_train.py", 3, 8), ("ddp_train.py", 0, 1)])
def test_what_a_shell_with_a_rank_started_outlives_the_shell(
    script, rank, ranks, data_root, tmp_path, marked, keep, free_port
):
    log = tmp_path / "log"
    cluster = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    code = "import subprocess, sys; subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'w'))"
    training = (script, *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path)
    shell = marked("-c", code, log, sys.executable, *training, **cluster)

    def epochs():
        return text_of(log).count("Epoch [")

    _, start = wait_until(lambda: epochs() >= 2, process=shell)
    shell.kill()
    shell.wait()
    known = epochs()
    wait_until(lambda: epochs() >= known + 2)
    assert marked.alive()
    keep(f"SIGKILL to the shell that started {script} with RANK={rank}", -9, "", time.perf_counter() - start)


def test_a_helper_ends_with_the_comparison(marked, keep):
    parent = marked("-c", "from comparison.run.launch import ask; ask('common.programs.check')")
    started = "-m common.programs.check"
    _, start = wait_until(lambda: any(started in command for command in marked.alive().values()), 30)
    parent.kill()
    parent.wait()
    _, end = wait_until(lambda: not marked.alive(), 2)
    keep("SIGKILL to the comparison while it looks at the machine", -9, "", end - start)


def test_a_helper_that_is_killed_is_named(tmp_path, marked, keep):
    flags = ("compare_parallel.py", "--dry-run", "--output-dir", tmp_path)
    process = marked(*flags, pipes=("stdout", "stderr"))
    helpers, start = wait_until(
        lambda: [pid for pid, command in marked.alive().items() if "common.programs.check" in command], process=process
    )
    os.kill(helpers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    keep("SIGKILL to what looks at the machine for a comparison", process.returncode, err, time.perf_counter() - start)
    assert (process.returncode, out) == (1, "")
    ended = "common.programs.check ended without a word; signal 9 (SIGKILL), probably out of memory"
    assert err == f"error: {ended}; try it again, or with a smaller --batch-size\n"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting", "training"])
def test_ranks_started_by_hand_end_with_their_launcher(when, data_root, tmp_path, marked, keep):
    launcher = marked(*SPAWN, *TRAINING, "--data-root", data_root, "--figure-dir", tmp_path, pipes=("stdout",))
    if when == "starting":
        ranks = "spawn_main"
        _, start = wait_until(lambda: sum(ranks in command for command in marked.alive().values()) >= 2)
    else:
        assert any("Epoch [2/" in line for line in launcher.stdout)
        start = time.perf_counter()
    launcher.kill()
    launcher.wait()
    _, end = wait_until(lambda: not marked.alive(), 20)  # a rank that is importing torch ends after that
    keep(f"SIGKILL to a launcher started by hand, its ranks {when}", -9, "", end - start)
