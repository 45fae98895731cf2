"""How a rank finds the other ranks and its device."""

import os
import socket
import sys
import time
import uuid
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from common.data.fitting import default_loader, with_loader
from common.engine.checkpoint import resumed_loader
from common.engine.setup import lacks_cores
from common.errors import FAILED, MACHINE, USAGE, SuiteError
from common.machine.cores import usable_cores
from common.machine.environment import available_devices
from common.machine.memory import free_memory
from common.ranks.agree import all_gather_json
from common.ranks.group import Rank
from common.ranks.lost import torch_message
from common.settings.config import RunConfig
from common.words import count

# variables that init_process_group's env:// needs, with example values
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def rank_device(kind: str, local_rank: int, local_world_size: int, all_visible: bool = False) -> torch.device:
    """Return a rank's device: the GPU with the number local_rank, or the CPU, which all ranks of this machine share.

    A launcher may show each rank a single GPU (srun --gpus-per-task=1), which is then its device. all_visible: no
    launcher hides GPUs. Raises SuiteError (MACHINE) if there are fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu" or (len(devices) == 1 and not all_visible):
        return devices[0]
    if local_world_size > len(devices):
        found = f"{local_world_size} ranks, {count(len(devices), 'GPU')}"
        raise SuiteError("each rank needs its own GPU", found, "start fewer ranks, or type --device cpu", MACHINE)
    return devices[local_rank]


def find_ranks(config: RunConfig, options, init_method: str = "env://") -> tuple[Rank, tuple[int, int]]:
    """Find the other ranks; return this rank, and its index among the ranks that share its CPU cores and their number.

    All ranks of a machine share its cores, unless a launcher such as srun gives each its own. If the launcher sets no
    LOCAL_RANK, ranks are numbered per host name. Raises SuiteError (USAGE) if a variable is missing or invalid, or the
    ranks cannot meet at the address; SuiteError (FAILED) if some rank does not come.
    """
    rank, world_size = rank_from_environment()
    address = init_method
    if init_method == "env://":
        address = f"{from_environment('MASTER_ADDR')}:{from_environment('MASTER_PORT')}"
    timeout = timedelta(seconds=options.dist_timeout)
    try:
        store, _, _ = next(rendezvous(init_method, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)  # rendezvous() does not pass it to a FileStore
        if init_method == "env://":  # otherwise it is a new file
            if sys.platform == "linux":
                limit_silence(from_environment("MASTER_PORT"), options.dist_timeout)
            store = of_attempt(store, rank, world_size)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, dist.DistStoreError):
            advice = "start the missing ones, or give them more time with --dist-timeout"
            raise SuiteError(f"not all ranks came to {address}", torch_message(error), advice, FAILED) from error
        advice = "set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there"
        what = f"rank {rank} cannot meet the others at {address}"
        raise SuiteError(what, torch_message(error), advice, USAGE) from error
    hosts = all_gather_json(store, "host", [socket.gethostname(), [*usable_cores()]], rank, world_size)
    name, cores = hosts[rank]
    here = [other for other, (other_name, _) in enumerate(hosts) if other_name == name]
    sharing = [other for other in here if {*hosts[other][1]} & {*cores}]
    local_rank, local_world_size = here.index(rank), len(here)
    if os.environ.get("LOCAL_RANK") and os.environ.get("LOCAL_WORLD_SIZE"):
        local_rank, local_world_size = from_environment("LOCAL_RANK"), from_environment("LOCAL_WORLD_SIZE")
    os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(local_world_size))
    device = rank_device(config.device, local_rank, local_world_size)
    processes = len(here) if device.type == "cpu" else 1
    fitting = config.loader or resumed_loader(config) or default_loader(config, processes, free_memory(device))
    own = [fitting, lacks_cores(device, len(sharing))]  # which may differ between the machines
    loaders, lacking = zip(*all_gather_json(store, "loader", own, rank, world_size), strict=True)
    config = with_loader(config, config.loader or max(loaders), any(lacking))  # "workers" if it is any rank's
    return Rank(rank, world_size, device, store, config, options), (sharing.index(rank), len(sharing))


def limit_silence(port: int, seconds: float) -> None:
    """Let this process's connections to a port fail after so many seconds without an answer from its host.

    Torch's store waits for an answer without limit, so a host that lost power would let the other ranks wait for TCP's
    own limit, which is 16 minutes.
    """
    probe = min(max(1, round(seconds / 4)), 8000)  # the kernel allows 9 hours
    options = {socket.TCP_KEEPIDLE: probe, socket.TCP_KEEPINTVL: probe, socket.TCP_KEEPCNT: 3}
    for known in psutil.Process().net_connections("tcp"):
        if known.raddr and known.raddr.port == port:
            connection = socket.socket(fileno=known.fd)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in {**options, socket.TCP_USER_TIMEOUT: 4000 * probe}.items():  # milliseconds
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            connection.detach()  # the store closes it


def rank_from_environment() -> tuple[int, int]:
    """Return RANK and WORLD_SIZE. Raises SuiteError (USAGE) if one is missing or invalid."""
    rank, world_size = from_environment("RANK"), from_environment("WORLD_SIZE")
    if rank >= world_size:
        found = f"RANK={rank}, WORLD_SIZE={world_size}"
        raise SuiteError("RANK must be below WORLD_SIZE", found, "number the ranks from 0", USAGE)
    return rank, world_size


def from_environment(name: str):
    """Return the value of a variable: a string for MASTER_ADDR, else an integer."""
    text = os.environ.get(name)
    advice = f"start the ranks with torchrun, or type e.g. {name}={ENVIRONMENT.get(name, 0)} before the command"
    if not text:
        raise SuiteError(f"a rank needs {', '.join(ENVIRONMENT)}", f"{name} is not set", advice, USAGE)
    if name != "MASTER_ADDR" and not text.isdecimal():
        raise SuiteError(f"{name} must be a whole number", f"found {text!r}", advice, USAGE)
    return text if name == "MASTER_ADDR" else int(text)


def of_attempt(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """Return a PrefixStore that only the ranks of this attempt share, once all of them have come.

    After a restart by torchrun, the store still holds the values of the previous ranks, and the agents do not agree on
    a restart count (github.com/pytorch/pytorch/issues/135712). So rank 0 chooses the prefix, and each rank asks for it
    under a random key. Raises DistStoreError if a rank does not come within the store's timeout.
    """
    own = uuid.uuid4().hex
    deadline = time.monotonic() + store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch's stub lacks it
    if rank:
        store.set(f"asks-{rank}", own)
        part = dist.PrefixStore(store.get(own).decode(), store)
        part.set(f"here-{rank}", "")
        return part
    part, missing = dist.PrefixStore(own, store), [*range(1, world_size)]
    while missing := [other for other in missing if not part.check([f"here-{other}"])]:
        for other in missing:
            if store.check([f"asks-{other}"]):  # the key may be a previous rank's; an answer to it is harmless
                store.set(store.get(f"asks-{other}").decode(), own)
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"rank {', '.join(map(str, missing))} did not come in time")
        time.sleep(0.01)
    return part
