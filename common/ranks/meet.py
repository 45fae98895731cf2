"""How a rank finds the others, and which device is its own."""

import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from common.errors import FAILED, MACHINE, USAGE, SuiteError
from common.machine.cores import usable_cores
from common.machine.environment import available_devices
from common.ranks.agree import tell_all
from common.words import count

# what init_process_group's env:// needs, with an example of each
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def rank_device(kind: str, local_rank: int, local_world_size: int, all_visible: bool = False) -> torch.device:
    """Return the device of one rank: the GPU of that number, or the CPU that all ranks of this machine share.

    Where a launcher shows each rank one GPU alone (srun --gpus-per-task=1), it is that one; whether it is another for
    each, refuse_different_ranks() finds out. all_visible: each rank sees all of them. Raises SuiteError (MACHINE) for
    fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu" or (len(devices) == 1 and not all_visible):
        return devices[0]
    if local_world_size > len(devices):
        found = f"{local_world_size} ranks, {count(len(devices), 'GPU')}"
        raise SuiteError("every rank needs a GPU of its own", found, "start fewer ranks, or type --device cpu", MACHINE)
    return devices[local_rank]


@dataclass(frozen=True)
class Meeting:
    """Where this process stands among the ranks, and the store through which they talk until there is a group.

    sharing: see sharing_cores().
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    sharing: tuple[int, int]
    store: dist.Store
    timeout: timedelta


def find_ranks(init_method: str, timeout_seconds: float) -> Meeting:
    """Find the other ranks; return where this one stands among them.

    The store is what init_process_group takes. The numbers come from the environment; a launcher that sets no local
    ones, among the ranks of this machine, is fine: then the ranks count themselves by the names of their hosts. Raises
    SuiteError (USAGE) if a variable is missing or no number, or names a place where ranks cannot meet; (FAILED) if not
    all of them come.
    """
    rank, world_size, timeout = _whole_number("RANK"), _whole_number("WORLD_SIZE"), timedelta(seconds=timeout_seconds)
    if rank >= world_size:
        raise SuiteError(
            "RANK must be below WORLD_SIZE", f"RANK={rank}, WORLD_SIZE={world_size}", "number the ranks from 0", USAGE
        )
    if init_method == "env://":
        _variable("MASTER_ADDR")
        _whole_number("MASTER_PORT")
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}" if init_method == "env://" else init_method
    try:
        store, _, _ = next(rendezvous(init_method, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)  # a file's store has not been told
        store = of_attempt(store, rank, world_size)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, dist.DistStoreError):
            advice = "start the missing ones, or give them more time with --dist-timeout"
            raise SuiteError(f"not all ranks came to {place}", plain_cause(error), advice, FAILED) from error
        advice = "let MASTER_ADDR be the host of rank 0, and MASTER_PORT a port of it that is free"
        raise SuiteError(f"rank {rank} cannot meet the others at {place}", plain_cause(error), advice, USAGE) from error
    hosts = tell_all(store, "host", socket.gethostname(), rank, world_size)
    local = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
    if os.environ.get("LOCAL_RANK") and os.environ.get("LOCAL_WORLD_SIZE"):
        local = _whole_number("LOCAL_RANK"), _whole_number("LOCAL_WORLD_SIZE")
    return Meeting(rank, world_size, *local, sharing_cores(store, rank, world_size), store, timeout)


def sharing_cores(store: dist.Store, rank: int, world_size: int) -> tuple[int, int]:
    """Return which of the ranks that may use this one's CPU cores it is, and how many they are.

    All ranks of a machine, unless a launcher has given each cores of its own, as srun can: then (0, 1).
    """
    own_host, own_cores = socket.gethostname(), usable_cores()
    told = tell_all(store, "cores", json.dumps([own_host, [*own_cores]]), rank, world_size)
    sharing = [
        other
        for other, (host, cores) in enumerate(map(json.loads, told))
        if host == own_host and not own_cores.isdisjoint(cores)
    ]
    return sharing.index(rank), len(sharing)


def plain_cause(error: Exception) -> str:
    """Return what an error of torch's says, without the C++ frames that may follow."""
    return str(error).partition("Exception raised from")[0].strip()


def _variable(name):
    if not os.environ.get(name):
        raise SuiteError(f"a rank needs {', '.join(ENVIRONMENT)}", f"{name} is not set", _setting(name), USAGE)
    return os.environ[name]


def _whole_number(name):
    if not _variable(name).isdecimal():
        raise SuiteError(f"{name} must be a whole number", f"found {os.environ[name]!r}", _setting(name), USAGE)
    return int(os.environ[name])


def _setting(name):
    return f"start the ranks with torchrun, or type e.g. {name}={ENVIRONMENT.get(name, 0)} before the command"


def of_attempt(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """Return the part of a store that is this attempt's own, once all of its ranks have come.

    After a restart by torchrun, a store still holds what the ranks put there which are gone
    (github.com/pytorch/pytorch/issues/135712), and no number tells the attempts apart: each agent counts its own
    failures alone. So rank 0 names the part, and answers every rank under a name that only this attempt's rank knows.
    Raises DistStoreError where a rank does not come within the store's timeout.
    """
    own = uuid.uuid4().hex
    end = time.monotonic() + store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch's stub lacks it
    if rank:
        store.set(f"asks-{rank}", own)
        part = dist.PrefixStore(store.get(own).decode(), store)
        part.set(f"here-{rank}", "")
        return part
    part, missing = dist.PrefixStore(own, store), [*range(1, world_size)]
    while missing := [other for other in missing if not part.check([f"here-{other}"])]:
        for other in missing:
            if store.check([f"asks-{other}"]):  # one that is gone may have asked: the answer hurts nobody
                store.set(store.get(f"asks-{other}").decode(), own)
        if time.monotonic() > end:
            raise dist.DistStoreError(f"rank {', '.join(map(str, missing))} did not come in time")
        time.sleep(0.01)
    return part
