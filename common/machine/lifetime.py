"""Cleanup of child processes and temporary directories, however their parent ends (after SIGKILL, only on Linux).

    python common/machine/lifetime.py NAME

is started by guard(). When its parent ends, its standard input is closed; it then kills all processes of the parent's
runs and deletes their temporary directories. If the guard is killed as well, the kernel ends the runs, and the next
temporary_directory() deletes the directories left behind.
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

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
TAG = "PARALLEL_TRAINING_RUN"  # environment variable of all processes of a run: see own_tag()
PREFIX = "parallel-training-{}-"  # of a process's temporary directories, with its own_name()


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Not for processes started by a shell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def adopt_orphans() -> Iterator[None]:
    """Let descendants whose parent ends during the `with` become children of this process. Only on Linux."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def has_launcher() -> bool:
    """Return whether torchrun, accelerate launch or spawn_ranks() started this rank."""
    return "TORCHELASTIC_RUN_ID" in os.environ or "TORCHELASTIC_ERROR_FILE" in os.environ


@functools.cache
def own_name() -> str:
    """Return a unique name for this process. A PID is not unique across containers."""
    return uuid.uuid4().hex[:12]


def own_tag(run: str = "") -> str:
    """Return the TAG of a run of this process: own_name(), the PID, and the name of the run."""
    return f"{own_name()}-{os.getpid()}-{run}"


@functools.cache
def guard() -> subprocess.Popen:
    """Start the process that cleans up after this one, once. Call this before starting any process with a TAG."""
    command = [sys.executable, "-P", __file__, own_name()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # out of reach of Ctrl-C


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """Make a directory, locked by this process, and delete it at the end of the `with`.

    If this process is killed, the next call in any process deletes the directory.
    """
    for left in Path(tempfile.gettempdir()).glob(PREFIX.format("[0-9a-f]" * 12) + "[a-z0-9_]" * 8):
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):  # fails if still in use
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        directory = ""
        while not os.path.exists(directory):  # another process may delete it before it is locked
            directory = tempfile.mkdtemp(prefix=PREFIX.format(own_name()))
            with contextlib.suppress(OSError):  # a file system may not support locks
                stack.enter_context(_locked(directory, fcntl.LOCK_EX))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        yield directory


@contextlib.contextmanager
def _locked(directory, how):
    """Hold a directory's lock; raise FileNotFoundError if the directory is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how)
        os.stat(directory)
        yield
    finally:
        os.close(descriptor)


def tags() -> dict[int, str]:
    """Return the TAG of every process that has one, by PID. Zombies have none."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # the process has ended, or belongs to another user
            if tag := process.environ().get(TAG):
                found[process.pid] = tag
    return found


def kill_tagged(tag: str) -> None:
    """Kill the processes whose TAG begins with `tag` until none is left, as they may start others meanwhile."""
    deadline = time.monotonic() + 5
    while (left := [pid for pid, own in tags().items() if own.startswith(tag)]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """Wait for the end of the parent, then clean up. Signals to the whole process group are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_tagged(f"{sys.argv[1]}-")
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX.format(sys.argv[1])}*"):
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
