"""Which rank holds up the others, where these run ahead of their GPUs and cannot say it themselves.

A rank that waits in one of NCCL's collectives is aborted by its watchdog, without a word of Python's, and its launcher
blames the first rank that was: one that waited. So every rank tells the others once a second how far it has come: how
many batches it has gone through, and how often it has waited for all others besides. One that stays behind for
--dist-timeout is named by the others, and NCCL's watchdog comes later.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time

import psutil
import torch.distributed as dist

from common.errors import FAILED, SuiteError
from common.machine.ending import told
from common.machine.entry import tell
from common.machine.lifetime import has_launcher

EVERY = 1.0  # seconds


class Heartbeat:
    """Of one rank; beat() after each batch, and before this rank waits for all others.

    store: the group's; its timeout is how long a rank may stay behind.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self.store, self.rank, self.beats = store, rank, 0
        self.keys = [f"beats-{other}" for other in range(world_size)]
        self.moved = dict.fromkeys(range(world_size), (0, time.monotonic()))  # rank → beats, since when

    def start(self) -> None:
        """Begin to tell and to watch, in a thread that ends with the process, or with the store."""
        self.store.set(self.keys[self.rank], "0")
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self) -> None:
        """Come further by one: the host is done with what came before, the GPU perhaps not."""
        self.beats += 1

    def lost_ranks(self, now: float) -> list[int]:
        """Tell the others how far this rank is; return who is furthest behind and has not moved for too long.

        Hosts run ahead of their GPUs by different numbers of batches, but none that waits for another is behind it.
        """
        self.store.set(self.keys[self.rank], str(self.beats))
        for rank, text in enumerate(self.store.multi_get(self.keys)):
            if int(text) != self.moved[rank][0]:
                self.moved[rank] = int(text), now
        beats = [beats for beats, _ in self.moved.values()]
        patience = self.store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch's stub lacks it
        return [
            rank
            for rank, (come, since) in self.moved.items()
            if come == min(beats) < max(beats) and now - since > patience
        ]

    def _watch(self):
        with contextlib.suppress(RuntimeError):  # the store is gone, with the process that had it
            while True:
                time.sleep(EVERY)
                lost = self.lost_ranks(time.monotonic())
                if lost and self.rank not in lost:
                    self.end(lost)

    def end(self, lost: list[int]) -> None:
        """Name the ranks that are lost, end those that hang, and this process: its main thread waits for a GPU."""
        if not told():
            where = ", ".join(f"rank {rank} did not answer in time" for rank in lost)
            tell(
                SuiteError(
                    "lost contact with another rank",
                    where,
                    "see the log of that rank, or give it more time with --dist-timeout",
                    FAILED,
                ),
                as_rank=True,
            )
        kill_ranks(self.store, lost)
        os._exit(128 + told() if told() else FAILED)


def process_key(rank: int) -> str:
    """Return under which key of the group's store a rank says where it runs."""
    return f"process-{rank}"


def kill_ranks(store: dist.Store, ranks: list[int]) -> None:
    """Kill ranks of this machine that hang: one that was stopped would not even end by its launcher's SIGTERM."""
    for rank in ranks if has_launcher() else ():
        with contextlib.suppress(RuntimeError, ValueError, psutil.Error, OSError):  # the store or the process is gone
            if store.check([process_key(rank)]):
                host, pid, start = json.loads(store.get(process_key(rank)))
                if host == socket.gethostname() and abs(psutil.Process(pid).create_time() - start) < 2:
                    os.kill(pid, signal.SIGKILL)
