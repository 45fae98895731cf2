"""The trainings and comparisons of this suite running on this machine (Linux only).

Each binds an abstract socket (unix(7)), whose name is listed in /proc/net/unix until the process ends, even if it is
killed. Nothing is sent over the socket.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.machine.lifetime import TAG

SOCKETS = Path("/proc/net/unix")
NAME = "@parallel-training/"
COMPARISON, TRAINING = "comparison", "training"
SECONDS_PER_LINE = 60.0  # while a comparison waits


@dataclass(frozen=True)
class Program:
    """A training or comparison running on this machine."""

    kind: str
    pid: int

    def __str__(self) -> str:
        return f"a {self.kind} (process {self.pid})"


@contextlib.contextmanager
def register_program(kind: str) -> Iterator[None]:
    """Register this process during the `with`. A comparison covers its runs, and a machine's first rank the others."""
    covered = TAG in os.environ or os.environ.get("LOCAL_RANK", "0") != "0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as registration:
        if sys.platform == "linux" and not covered:
            with contextlib.suppress(OSError):  # already registered
                registration.bind(f"\0{NAME[1:]}{kind}/{os.getpid()}")
        yield


def programs() -> list[Program]:
    """Return all running trainings and comparisons, including this one."""
    found = []
    with contextlib.suppress(OSError):  # not Linux
        for line in SOCKETS.read_text(errors="replace").splitlines():
            name = line.partition(NAME)[2]
            with contextlib.suppress(ValueError):  # another program's socket
                kind, pid = name.split("/")
                found.append(Program(kind, int(pid)))
    return found


def wait_for_others(seconds: float) -> list[Program]:
    """Wait up to `seconds` for other programs to finish. Return those still running."""
    deadline, next_line = time.monotonic() + seconds, 0.0
    while (others := programs()) and (left := deadline - time.monotonic()) > 0:
        if time.monotonic() >= next_line:
            names = " and ".join(map(str, others))
            print(f"Waiting for {names}, for at most {left:.0f} s more (--wait 0: do not wait)", flush=True)
            next_line = time.monotonic() + SECONDS_PER_LINE
        time.sleep(0.5)
    return others
