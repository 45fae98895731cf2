"""Which trainings and comparisons of this suite compute on this machine at the same time (known on Linux alone).

Each holds an abstract socket (unix(7)), whose name is in /proc/net/unix for as long as it is open: nothing is left of a
process that was killed. Nobody listens to it.
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


@dataclass(frozen=True)
class Program:
    """One that computes: what it is, and its process."""

    kind: str
    pid: int

    def __str__(self) -> str:
        return f"a {self.kind} (process {self.pid})"


@contextlib.contextmanager
def computing(kind: str) -> Iterator[None]:
    """Let others see in the `with` that this process computes, unless the comparison that started it or the first rank
    of this machine is seen."""
    seen = TAG in os.environ or os.environ.get("LOCAL_RANK", "0") != "0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        if sys.platform == "linux" and not seen:
            with contextlib.suppress(OSError):  # it is seen already
                held.bind(f"\0{NAME[1:]}{kind}/{os.getpid()}")
        yield


def programs() -> list[Program]:
    """Return all that compute, with this one."""
    found = []
    with contextlib.suppress(OSError):  # no Linux
        for line in SOCKETS.read_text(errors="replace").splitlines():
            name = line.partition(NAME)[2]
            with contextlib.suppress(ValueError):  # somebody else's
                kind, pid = name.split("/")
                found.append(Program(kind, int(pid)))
    return found


def wait_for_others(seconds: float) -> list[Program]:
    """Wait until no other program computes, for so long at most; return those that still do, having named them."""
    end, said = time.monotonic() + seconds, ""
    while others := programs():
        named = " and ".join(map(str, others))
        if time.monotonic() >= end:
            break
        if named != said:
            left = end - time.monotonic()
            print(f"Waiting for {named}, for at most {left:.0f} s more (--wait 0: do not wait)", flush=True)
        said = named
        time.sleep(0.5)
    return others
