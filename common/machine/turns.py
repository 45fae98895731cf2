"""Runs that take turns: each blocks before every epoch, without using a core, until its turn.

The parent of a run holds a Gate, whose directory it passes in the environment. When all ranks are idle, rank 0 writes
one byte per rank into the "idle" FIFO; to start a turn, the parent writes one byte per rank into the "start" FIFO.
"""

import os
import select
import time
from pathlib import Path

TURNS = "PARALLEL_TRAINING_TURNS"  # environment variable: the directory with both FIFOs
OBSERVE = "PARALLEL_TRAINING_OBSERVE"  # environment variable: see common/observer
IDLE, START, FREE, WARMED = "idle", "start", "free", "warmed"
MOST_RANKS = 4096  # Linux's PIPE_BUF: the number of bytes that are written atomically


class Turns:
    """The turns of one rank. waited_seconds: the total of all calls of wait()."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.waited_seconds = self.warmed = 0.0

    def wait(self, free: int | None = None) -> bool:
        """Wait for this run's turn. Return False, without waiting, if the run takes no turns.

        All ranks call this after a collective. free: the free bytes of rank 0's GPU, if any, for the Gate.
        """
        idle, turn = (Path(os.environ.get(TURNS, os.devnull), name) for name in (IDLE, START))
        if OBSERVE in os.environ or not turn.is_fifo():  # the observer takes the turns; or TURNS is stale
            return False
        start = time.perf_counter()
        if self.rank == 0:
            if free is not None:
                idle.with_name(FREE).write_text(str(free))
            with open(idle, "wb", buffering=0) as fifo:
                fifo.write(bytes(self.world_size))
        with open(turn, "rb", buffering=0) as fifo:
            fifo.read(1)
        self.waited_seconds += time.perf_counter() - start
        return True

    def add(self, seconds: float) -> None:
        """Count time as waited that a turn began with, to warm up a GPU; the Gate knows the sum."""
        self.waited_seconds += seconds
        self.warmed += seconds
        if self.rank == 0:
            Path(os.environ[TURNS], WARMED).write_text(str(self.warmed))


class Gate:
    """The parent's side: start a run's turn, and wait until the run is idle again.

    directory: an empty directory for the FIFOs. free: the free bytes of the run's first GPU when it became idle; None
    on a CPU, or if the run does not report them.
    """

    free: int | None = None

    def __init__(self, directory: str):
        self.environment = {TURNS: directory}
        self._free, self._warmed = Path(directory, FREE), Path(directory, WARMED)
        self._idle, self._start = (_open_fifo(Path(directory, name)) for name in (IDLE, START))
        self._ranks = b""

    def start_turn(self) -> None:
        """Let all ranks of the idle run go on."""
        os.write(self._start, self._ranks)

    def warmed(self) -> float:
        """Return the seconds that Turns.add() has counted."""
        return float(self._warmed.read_text()) if self._warmed.exists() else 0.0

    def is_idle(self, seconds: float) -> bool:
        """Wait up to `seconds` until all ranks are idle. Return whether they are."""
        if not select.select([self._idle], [], [], seconds)[0]:
            return False
        self._ranks = os.read(self._idle, MOST_RANKS)
        if self._free.exists():
            self.free = int(self._free.read_text())
        return True

    def close(self) -> None:
        for fifo in (self._idle, self._start):
            os.close(fifo)


def _open_fifo(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # both, so that neither opening nor reading depends on the other side
