"""Which rank is lost: the one that says nothing is named, and killed if it hangs, as a launcher would wait for it.

Gloo's collectives fail in Python where a rank does not take part. A rank that waits in one of NCCL's is aborted by its
watchdog, and its launcher blames it. So every rank on a GPU tells the others once a second how far it has come; one
that stays behind for --dist-timeout is named by the others, before that watchdog.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import torch.distributed as dist

from common.errors import FAILED, SuiteError
from common.machine.entry import tell, told
from common.machine.lifetime import has_launcher

EVERY = 1.0  # seconds
GRACE_SECONDS = 5  # for a rank to end after SIGTERM, and for ranks that lost contact to say so


@contextlib.contextmanager
def name_lost_ranks(dist_timeout: float) -> Iterator[None]:
    """Let a collective that fails in the `with` name the ranks that did not take part.

    Those which wait for a rank that hangs give up after dist_timeout, in seconds, and tell one another. If one died,
    its launcher stops all others meanwhile, and they say nothing.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        cause = f"{type(error).__name__}: {plain_cause(error)}"
        missing = _missing_ranks(dist_timeout) if dist.is_initialized() else []
        if told():  # so was the other rank, or its launcher has noticed what became of it
            sys.exit(128 + told())
        if missing:
            atexit.register(kill_ranks, group_store(), missing)  # after the line about it
            cause = f"rank {', '.join(map(str, missing))} did not answer in time; {cause}"
        lost = _lost_contact(cause)
        for note in getattr(error, "__notes__", ()):
            lost.add_note(note)
        raise lost from error


def _missing_ranks(dist_timeout):
    """The ranks that have not lost contact too. One alone is the one; of several, some may still be waiting for it."""
    start = time.monotonic()
    try:
        store = group_store()
        store.set(f"lost-{dist.get_rank()}", "")
        while True:
            missing = [rank for rank in range(dist.get_world_size()) if not store.check([f"lost-{rank}"])]
            waiting = GRACE_SECONDS + (dist_timeout if len(missing) > 1 else 0)
            if not missing or told() or time.monotonic() > start + waiting:
                return missing
            time.sleep(0.1)
    except RuntimeError:  # the store was in the process of the rank that is gone
        return []


class Heartbeat:
    """Of one rank; beat() after each batch, and before it waits for all others, for the store's timeout at most."""

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self.store, self.rank, self.beats = store, rank, 0
        self.keys = [f"beats-{other}" for other in range(world_size)]
        self.moved = dict.fromkeys(range(world_size), (0, time.monotonic()))  # rank → beats, since when

    def start(self) -> None:
        self.store.set(self.keys[self.rank], "0")
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self) -> None:
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
        late = [rank for rank, (_, since) in self.moved.items() if now - since > patience]
        return [rank for rank in late if beats[rank] == min(beats) < max(beats)]

    def _watch(self):
        with contextlib.suppress(RuntimeError):  # the store is gone, with the process that had it
            while True:
                time.sleep(EVERY)
                lost = self.lost_ranks(time.monotonic())
                if lost and self.rank not in lost:
                    self._end(lost)

    def _end(self, lost):
        """Also this process: its main thread waits for a GPU."""
        if not told():
            where = ", ".join(f"rank {rank} did not answer in time" for rank in lost)
            tell(_lost_contact(where), as_rank=True)
        kill_ranks(self.store, lost)
        os._exit(128 + told() if told() else FAILED)


def say_where(store: dist.Store, rank: int) -> None:
    """Tell the other ranks which process this one is."""
    process = psutil.Process()
    store.set(f"process-{rank}", json.dumps([socket.gethostname(), process.pid, process.create_time()]))


def kill_ranks(store: dist.Store, ranks: list[int]) -> None:
    """Kill ranks of this machine that hang: one that was stopped would not even end by its launcher's SIGTERM."""
    for rank in ranks if has_launcher() else ():
        with contextlib.suppress(RuntimeError, ValueError, psutil.Error, OSError):  # the store or the process is gone
            if store.check([f"process-{rank}"]):
                host, pid, start = json.loads(store.get(f"process-{rank}"))
                if host == socket.gethostname() and abs(psutil.Process(pid).create_time() - start) < 2:
                    os.kill(pid, signal.SIGKILL)


def group_store() -> dist.Store:
    """Return the store of the process group that this rank has joined."""
    return dist.distributed_c10d._get_default_store()  # there is no public way to it


def plain_cause(error: Exception) -> str:
    """Return what an error of torch's says, without the C++ frames that may follow."""
    return str(error).partition("Exception raised from")[0].strip()


def _lost_contact(found):
    advice = "see the log of that rank, or give it more time with --dist-timeout"
    return SuiteError("lost contact with another rank", found, advice, FAILED)
