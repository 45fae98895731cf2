"""Find lost ranks, name them in the error, and kill those that hang, as a launcher would wait for them.

A gloo collective raises an error if a rank does not take part. With NCCL, the watchdog aborts the ranks that wait, and
the launcher blames them. So every rank on a GPU publishes its progress once a second, and the others name a rank that
stays behind for --dist-timeout, before the watchdog acts.
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
from common.machine.entry import pending_signal, print_error
from common.machine.lifetime import has_launcher

HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 5  # for a rank to end after SIGTERM, and for ranks that lost contact to report it


@contextlib.contextmanager
def name_lost_ranks(dist_timeout: float) -> Iterator[None]:
    """If a collective fails in the `with`, raise SuiteError with the ranks that did not take part.

    The ranks that wait for a hanging rank give up after dist_timeout seconds and tell one another. If a rank died, its
    launcher stops the others in the meantime, so that they print nothing, unless torchrun runs on several nodes.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        cause = f"{type(error).__name__}: {torch_message(error)}"
        missing = _missing_ranks(dist_timeout) if dist.is_initialized() else []
        if pending_signal() and not (_on_several_nodes() and len(missing or ()) == 1):
            sys.exit(128 + pending_signal())  # the other rank got the signal too, or the launcher noticed its end
        if missing is None:
            cause = f"{silent_host()}; {cause}"
        elif missing:
            atexit.register(kill_ranks, group_store(), missing)  # runs after the error line is printed
            cause = f"rank {', '.join(map(str, missing))} did not answer in time; {cause}"
        lost = _lost_contact(cause)
        for note in getattr(error, "__notes__", ()):
            lost.add_note(note)
        raise lost from error


def _missing_ranks(dist_timeout):
    """Return the ranks that have not reported lost contact. Of several, some may still be waiting for the lost one.

    If the store does not answer at all, rank 0 is lost, which held it; None if torchrun holds it.
    """
    start, missing = time.monotonic(), [0] if rank_0_holds_store() else None
    try:
        store = group_store()
        store.set(f"lost-{dist.get_rank()}", "")
        while True:
            missing = [rank for rank in range(dist.get_world_size()) if not store.check([f"lost-{rank}"])]
            waiting = GRACE_SECONDS + (dist_timeout if len(missing) > 1 else 0)
            if not missing or pending_signal() or time.monotonic() > start + waiting:
                return missing
            time.sleep(0.1)
    except RuntimeError:  # the process that held the store has ended, or its host is silent
        return missing


def _on_several_nodes():
    """Return whether torchrun runs on several nodes. If a lost one comes back, it stops the other ranks silently."""
    return int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1


def rank_0_holds_store() -> bool:
    """Return whether rank 0 holds the store, and not torchrun."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def silent_host() -> str:
    """Return what to say if torchrun, which holds the store, does not answer."""
    return f"{os.environ['MASTER_ADDR']}, where the ranks meet, did not answer"


class Heartbeat:
    """A rank's progress, as calls of beat(): after each batch, and before it waits for all other ranks."""

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self.store, self.rank, self.beats = store, rank, 0
        self.keys = [f"beats-{other}" for other in range(world_size)]
        self.left = threading.Event()  # set when this rank needs the others no more
        self.behind: dict[int, tuple[int, float]] = {}  # rank furthest behind → its beats, and for how many seconds

    def start(self) -> None:
        self.store.set(self.keys[self.rank], "0")
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self) -> None:
        self.beats += 1

    def lost_ranks(self, seconds: float) -> list[int]:
        """Publish this rank's progress; return the ranks furthest behind, without progress for the store's timeout.

        seconds: since the last call. Hosts run ahead of their GPUs by different numbers of batches, but a rank is never
        behind one it waits for.
        """
        self.store.set(self.keys[self.rank], str(self.beats))
        beats = [int(text) for text in self.store.multi_get(self.keys)]
        behind = [(rank, number) for rank, number in enumerate(beats) if number == min(beats) < max(beats)]
        before = {rank: spent + seconds for rank, (number, spent) in self.behind.items() if (rank, number) in behind}
        self.behind = {rank: (number, before.get(rank, 0.0)) for rank, number in behind}
        patience = self.store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch's stub lacks it
        return [rank for rank, (_, spent) in self.behind.items() if spent > patience]

    def _watch(self):
        before = time.monotonic()
        try:
            while not self.left.wait(HEARTBEAT_SECONDS):
                before, passed = time.monotonic(), time.monotonic() - before
                lost = self.lost_ranks(min(passed, 2 * HEARTBEAT_SECONDS))  # a suspended job does not count
                if lost and self.rank not in lost:
                    self._end(lost, ", ".join(f"rank {rank} did not answer in time" for rank in lost))
        except RuntimeError:  # the process that held the store has ended; its launcher may end this one
            if not self.left.wait(GRACE_SECONDS):
                self._end([], "rank 0 did not answer in time" if rank_0_holds_store() else silent_host())

    def _end(self, lost, found):
        """Name and kill the lost ranks, and end this process, whose main thread waits for a GPU."""
        if not pending_signal():
            print_error(_lost_contact(found), as_rank=True)
        kill_ranks(self.store, lost)
        os._exit(128 + pending_signal() if pending_signal() else FAILED)


def publish_process(store: dist.Store, rank: int) -> None:
    """Store this rank's host, PID and start time, for kill_ranks()."""
    process = psutil.Process()
    store.set(f"process-{rank}", json.dumps([socket.gethostname(), process.pid, process.create_time()]))


def kill_ranks(store: dist.Store, ranks: list[int]) -> None:
    """Kill hanging ranks of this machine: a stopped process (SIGSTOP) ignores its launcher's SIGTERM."""
    for rank in ranks if has_launcher() else ():
        with contextlib.suppress(RuntimeError, ValueError, psutil.Error, OSError):  # the store or the process has ended
            if store.check([f"process-{rank}"]):
                host, pid, start = json.loads(store.get(f"process-{rank}"))
                if host == socket.gethostname() and abs(psutil.Process(pid).create_time() - start) < 2:
                    os.kill(pid, signal.SIGKILL)


def group_store() -> dist.Store:
    """Return the store of this rank's process group."""
    return dist.distributed_c10d._get_default_store()  # there is no public API


def torch_message(error: Exception) -> str:
    """Return the message of an error from torch without its C++ stack trace."""
    return str(error).partition("Exception raised from")[0].strip()


def _lost_contact(found):
    advice = "see the log of that rank, or give it more time with --dist-timeout"
    return SuiteError("lost contact with another rank", found, advice, FAILED)
