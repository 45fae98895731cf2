"""Who is to blame where ranks lose contact: the one that says nothing is named, and killed if it hangs."""

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator

import torch.distributed as dist

from common.errors import FAILED, SuiteError
from common.machine.ending import told
from common.ranks.group import GRACE_SECONDS, group_store
from common.ranks.heartbeat import kill_ranks
from common.ranks.meet import plain_cause


@contextlib.contextmanager
def name_lost_ranks(dist_timeout: float) -> Iterator[None]:
    """Let a collective that fails in the `with` name the ranks that did not take part.

    Those which wait for a rank that hangs give up after dist_timeout, in seconds, and tell one another; who says
    nothing is the one, and is killed, as a launcher would wait for it. If a rank died instead, its launcher stops all
    others meanwhile, and they say nothing.
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
        advice = "see the log of that rank, or give it more time with --dist-timeout"
        lost = SuiteError("lost contact with another rank", cause, advice, FAILED)
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
