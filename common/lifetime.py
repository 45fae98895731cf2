"""Processes that end when the process that started them is gone, however it ended (on Linux; elsewhere, nothing)."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAG = "PARALLEL_TRAINING_RUN"  # environment variable of all processes of a run: its comparison's process, its own name


def end_with_parent(*_) -> None:
    """Ask the kernel to kill this process as soon as its parent, strictly the thread that started it, has ended.

    Not even SIGKILL to the parent then leaves it behind. Takes any arguments, to serve as a DataLoader's
    worker_init_fn. Not for what a shell starts: a training under nohup outlives its shell on purpose.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
