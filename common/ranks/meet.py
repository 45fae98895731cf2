"""How a rank finds the others, and which device is its own."""

import os
import socket
import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from common.data.fitting import default_loader, with_loader
from common.errors import FAILED, MACHINE, USAGE, SuiteError
from common.machine.cores import usable_cores
from common.machine.environment import available_devices
from common.machine.memory import free_memory
from common.ranks.agree import tell_all
from common.ranks.group import Rank
from common.ranks.lost import plain_cause
from common.settings.config import RunConfig
from common.words import count

# what init_process_group's env:// needs, with an example of each
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def rank_device(kind: str, local_rank: int, local_world_size: int, all_visible: bool = False) -> torch.device:
    """Return the device of one rank: the GPU of that number, or the CPU that all ranks of this machine share.

    Where a launcher shows each rank one GPU alone (srun --gpus-per-task=1), it is that one, unless all_visible. Raises
    SuiteError (MACHINE) for fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu" or (len(devices) == 1 and not all_visible):
        return devices[0]
    if local_world_size > len(devices):
        found = f"{local_world_size} ranks, {count(len(devices), 'GPU')}"
        raise SuiteError("every rank needs a GPU of its own", found, "start fewer ranks, or type --device cpu", MACHINE)
    return devices[local_rank]


def find_ranks(config: RunConfig, options, init_method: str = "env://") -> tuple[Rank, tuple[int, int]]:
    """Find the other ranks; return this one, and which of the ranks that may use its CPU cores it is, of how many.

    These are all ranks of a machine, unless a launcher has given each cores of its own, as srun can. Where it sets no
    local numbers, the ranks count themselves by the names of their hosts. Raises SuiteError (USAGE) if a variable is
    missing or no number, or names a place where ranks cannot meet; (FAILED) if not all of them come.
    """
    rank, world_size = _told("RANK"), _told("WORLD_SIZE")
    if rank >= world_size:
        found = f"RANK={rank}, WORLD_SIZE={world_size}"
        raise SuiteError("RANK must be below WORLD_SIZE", found, "number the ranks from 0", USAGE)
    place = f"{_told('MASTER_ADDR')}:{_told('MASTER_PORT')}" if init_method == "env://" else init_method
    timeout = timedelta(seconds=options.dist_timeout)
    try:
        store, _, _ = next(rendezvous(init_method, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)  # a file's store has not been told
        store = of_attempt(store, rank, world_size)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, dist.DistStoreError):
            advice = "start the missing ones, or give them more time with --dist-timeout"
            raise SuiteError(f"not all ranks came to {place}", plain_cause(error), advice, FAILED) from error
        advice = "set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there"
        raise SuiteError(f"rank {rank} cannot meet the others at {place}", plain_cause(error), advice, USAGE) from error
    places = tell_all(store, "place", [socket.gethostname(), [*usable_cores()]], rank, world_size)
    here = [other for other, (host, _) in enumerate(places) if host == places[rank][0]]
    sharing = [other for other in here if {*places[other][1]} & {*places[rank][1]}]
    local = here.index(rank), len(here)
    if os.environ.get("LOCAL_RANK") and os.environ.get("LOCAL_WORLD_SIZE"):
        local = _told("LOCAL_RANK"), _told("LOCAL_WORLD_SIZE")
    os.environ.update(LOCAL_RANK=str(local[0]), LOCAL_WORLD_SIZE=str(local[1]))
    device = rank_device(config.device, *local)
    if config.loader is None:  # what is free may differ
        own = default_loader(config, len(here) if device.type == "cpu" else 1, free_memory(device))
        fits = {*tell_all(store, "loader", own, rank, world_size)} == {"resident"}
        config = with_loader(config, "resident" if fits else "workers")
    return Rank(rank, world_size, device, store, config, options), (sharing.index(rank), len(sharing))


def _told(name):
    """What the environment says, a number but for MASTER_ADDR."""
    text = os.environ.get(name)
    advice = f"start the ranks with torchrun, or type e.g. {name}={ENVIRONMENT.get(name, 0)} before the command"
    if not text:
        raise SuiteError(f"a rank needs {', '.join(ENVIRONMENT)}", f"{name} is not set", advice, USAGE)
    if name != "MASTER_ADDR" and not text.isdecimal():
        raise SuiteError(f"{name} must be a whole number", f"found {text!r}", advice, USAGE)
    return text if name == "MASTER_ADDR" else int(text)


def of_attempt(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """Return the part of a store that is this attempt's own, once all of its ranks have come.

    After a restart by torchrun, it still holds what those put there which are gone, and each agent counts its failures
    alone (github.com/pytorch/pytorch/issues/135712). So rank 0 names the part, and answers every rank under a name that
    only this attempt's rank knows. Raises DistStoreError where a rank does not come within the store's timeout.
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
