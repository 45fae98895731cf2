"""Several runs that take turns: each waits before every epoch, without using a core, until it is its turn.

Who starts a run keeps a Gate, which the environment names to the run's ranks. Into one FIFO rank 0 puts a byte for each
rank when all are idle; out of the other each rank takes one, in a read that costs nothing.
"""

import os
import select
import time
from pathlib import Path

TURNS = "PARALLEL_TRAINING_TURNS"  # environment variable: the directory with both FIFOs
OBSERVE = "PARALLEL_TRAINING_OBSERVE"  # environment variable: see common/observer
IDLE, START, FREE = "idle", "start", "free"
MOST_RANKS = 4096  # PIPE_BUF of Linux: so many bytes are written and read at once


class Turns:
    """The turns of one rank; a run that nobody gives any never waits. waited_seconds: in all calls of wait()."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.waited_seconds = 0.0

    def wait(self, free: int | None = None) -> bool:
        """Wait until it is this run's turn; return whether anybody gives turns. To be called by all ranks, after
        something in which all took part.

        free: bytes of the GPU of rank 0, if it has one; told to whoever gives the turns.
        """
        idle, turn = (Path(os.environ.get(TURNS, os.devnull), name) for name in (IDLE, START))
        if OBSERVE in os.environ or not turn.is_fifo():  # the observer takes them; or a variable is left over
            return False
        start = time.perf_counter()
        if self.rank == 0:
            if free is not None:
                idle.with_name(FREE).write_text(str(free))
            with open(idle, "wb", buffering=0) as told:
                told.write(bytes(self.world_size))
        with open(turn, "rb", buffering=0) as given:
            given.read(1)
        self.waited_seconds += time.perf_counter() - start
        return True


class Gate:
    """The other side: it lets one run go on, and sees when it waits again. directory: an empty one, for the FIFOs.

    free: bytes of the run's first GPU, as they were when it began to wait; None on a CPU, or where it does not tell.
    """

    free: int | None = None

    def __init__(self, directory: str):
        self.environment, self._free = {TURNS: directory}, Path(directory, FREE)
        self._idle, self._start = (_open_fifo(Path(directory, name)) for name in (IDLE, START))
        self._ranks = b""

    def start_turn(self) -> None:
        """Let all ranks of a run that waits go on."""
        os.write(self._start, self._ranks)

    def is_idle(self, seconds: float) -> bool:
        """Return whether all ranks wait for their turn; look out for that for so long."""
        if not select.select([self._idle], [], [], seconds)[0]:
            return False
        self._ranks = os.read(self._idle, MOST_RANKS)
        if self._free.exists():
            self.free = int(self._free.read_text())
        return True

    def close(self) -> None:
        """Close the FIFOs."""
        for fifo in (self._idle, self._start):
            os.close(fifo)


def _open_fifo(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # for both, so that neither side waits for the other to open it, or sees it closed
