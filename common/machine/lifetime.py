"""Nothing outlives what started it, however that ended (on Linux; elsewhere, only what is stopped in an orderly way).

    python common/machine/lifetime.py NAME

is started by guard(). When its standard input is closed, by the end of whoever started it, it kills all processes of
that one's runs and deletes their temporary directories. Should it be killed too, the kernel ends the runs, and the next
temporary_directory() deletes those that nobody holds any more.
"""

import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAG = "PARALLEL_TRAINING_RUN"  # environment variable of all processes of a run: see own_tag()
TEMPORARY = "parallel-training-{}-"  # how the temporary directories of a process begin, with its own_name()


def end_with_parent() -> None:
    """Ask the kernel to kill this process as soon as the thread that started it has ended; not for a shell's child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_worker(_: int) -> None:
    """Let a DataLoader's worker (worker_init_fn) end with its parent, not when a terminal signals their group."""
    end_with_parent()
    os.setpgid(0, 0)


def has_launcher() -> bool:
    """Return whether torchrun, accelerate launch or spawn_ranks() started this rank, not a shell or a container."""
    return "TORCHELASTIC_RUN_ID" in os.environ or "TORCHELASTIC_ERROR_FILE" in os.environ


@functools.cache
def own_name() -> str:
    """Return what tells this process from all others, also from those in containers, where PIDs begin at 1 again."""
    return uuid.uuid4().hex[:12]


def own_tag(run: str = "") -> str:
    """Return the TAG of a run of this process: its name, its PID, what the run is called."""
    return f"{own_name()}-{os.getpid()}-{run}"


@functools.cache
def guard() -> subprocess.Popen:
    """Start, once, the process that cleans up after this one; call it before any process that carries a TAG."""
    command = [sys.executable, "-P", __file__, own_name()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # no Ctrl-C reaches it there


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """Make a directory that is deleted at the end of the `with`, or after this process, whatever ends it, by the next
    who comes here: this process holds its lock."""
    for left in Path(tempfile.gettempdir()).glob(TEMPORARY.format("[0-9a-f]" * 12) + "[a-z0-9_]" * 8):
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):  # or it is somebody's
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        directory = ""
        while not os.path.exists(directory):  # another process may take a new one for one that nobody holds
            directory = tempfile.mkdtemp(prefix=TEMPORARY.format(own_name()))
            with contextlib.suppress(OSError):  # a file system may have no locks
                stack.enter_context(_locked(directory, fcntl.LOCK_EX))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        yield directory


@contextlib.contextmanager
def _locked(directory, how):
    """Hold a directory's lock; raise FileNotFoundError if it is not there any more."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how)
        os.stat(directory)
        yield
    finally:
        os.close(descriptor)


def tags() -> dict[int, str]:
    """Return the TAG of every process that has one; a zombie, which only waits to be asked for, has none."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone meanwhile, or somebody else's
            found[process.pid] = process.environ().get(TAG, "")
    return {pid: tag for pid, tag in found.items() if tag}


def kill_tagged(tag: str) -> None:
    """Kill the processes whose TAG begins with `tag`, again until none is left: one may start another meanwhile."""
    deadline = time.monotonic() + 5
    while (left := [pid for pid, own in tags().items() if own.startswith(tag)]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """Wait for the end of a comparison, and clean up; a signal that all processes get is not for this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_tagged(f"{sys.argv[1]}-")
    for directory in Path(tempfile.gettempdir()).glob(f"{TEMPORARY.format(sys.argv[1])}*"):
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
