"""Roll calls of the ranks, through the store on rank 0 and without a process group. Each has a time limit."""

import contextlib
import json
import os
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from common.errors import MACHINE, SuiteError
from common.ranks.lost import rank_0_holds_store, torch_message
from common.ranks.meet import from_environment

ANSWER_SECONDS = 4.0  # for a rank to do the next step


class Roll:
    """The ranks that have answered every call so far. lost: rank → the step that it did not do in time.

    limit: seconds in which all calls end. Rank 0 decides who is late, so the others wait for it that long.
    """

    def __init__(self, rank: int, ranks: int, limit: float) -> None:
        self.rank, self.members, self.step = rank, [*range(ranks)], "come"
        self._end = time.monotonic() + limit
        self.lost: dict[int, str] = {}
        self._calls = 0

    def connect(self, seconds: float) -> None:
        """Connect to the store within `seconds`, without waiting for other ranks. Raises SuiteError (MACHINE)."""
        self._store = _connect(self.rank, len(self.members), seconds)

    def call(self, step: str, value: Any = None, seconds: float = ANSWER_SECONDS) -> dict[int, Any]:
        """Return the `value` (JSON) of every rank that calls within `seconds`; the others are members no longer.

        step: what each rank has done when it calls. Raises SuiteError (MACHINE) if this rank or rank 0 was too late.
        """
        self._calls, self.step = self._calls + 1, step
        self._store.set(f"{self._calls}-{self.rank}", json.dumps(value))
        if self.rank == 0:
            self._publish(seconds)
        values = self._published(max(ANSWER_SECONDS, self._end - time.monotonic()))
        self.lost |= {rank: step for rank in self.members if rank not in values}
        self.members = [*values]
        if self.rank not in values:
            raise _left_out(self.rank, f"it was too late to {step}")
        return values

    def _publish(self, seconds):
        keys = {rank: f"{self._calls}-{rank}" for rank in self.members}
        try:
            self._store.wait([*keys.values()], timedelta(seconds=seconds))
            there = [*keys]
        except dist.DistStoreError:  # some do not come
            there = [rank for rank, key in keys.items() if self._store.check([key])]
        texts = self._store.multi_get([keys[rank] for rank in there])
        found = [[rank, json.loads(text)] for rank, text in zip(there, texts, strict=True)]
        self._store.set(str(self._calls), json.dumps(found))

    def _published(self, seconds):
        try:
            self._store.wait([str(self._calls)], timedelta(seconds=seconds))
            return dict(json.loads(self._store.get(str(self._calls))))
        except RuntimeError as error:  # too late, or its process has ended
            raise _left_out(self.rank, f"rank 0 did not answer: {torch_message(error)}") from error

    def leave(self) -> None:
        """End with the others: rank 0, whose process may hold the store, ends last."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"left-{self.rank}", "")
            if self.rank == 0:
                self._store.wait([f"left-{other}" for other in self.members], timedelta(seconds=ANSWER_SECONDS))

    def join_group(self, backend: str, seconds: float, device_id) -> None:
        """Form a process group of the members."""
        store = dist.PrefixStore("group", self._store)
        limit, number, size = timedelta(seconds=seconds), self.members.index(self.rank), len(self.members)
        dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=limit, device_id=device_id)


def _connect(rank, ranks, seconds):
    host, port = from_environment("MASTER_ADDR"), from_environment("MASTER_PORT")
    holds, limit = rank == 0 and rank_0_holds_store(), timedelta(seconds=seconds)
    try:
        socket.getaddrinfo(host, port)  # TCPStore would try again and again
        store = dist.TCPStore(host, port, ranks, holds, limit, wait_for_workers=False, multi_tenant=True)
    except (RuntimeError, ValueError, OSError) as error:
        what = f"rank {rank} on {socket.gethostname()} cannot reach rank 0 at {host}:{port}"
        advice = "set MASTER_ADDR to an address of rank 0 that this host reaches, and MASTER_PORT to a port open there"
        raise SuiteError(what, torch_message(error), advice, MACHINE) from error
    return dist.PrefixStore(f"roll-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _left_out(rank, found):
    return SuiteError(f"rank {rank} on {socket.gethostname()} was left out", found, "see what rank 0 prints", MACHINE)
