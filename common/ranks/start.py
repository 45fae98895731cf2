"""Starting ranks, one process for each device, and how each finds the others."""

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from common.data.image_set import load_image_set
from common.engine.checkpoint import content_of, read_checkpoint
from common.engine.setup import check_memory_limit, check_precision
from common.errors import FAILED, MACHINE, READER_GONE, USAGE, SuiteError, describe_exit
from common.machine.ending import end_after_step, told
from common.machine.entry import run_script
from common.machine.environment import available_cores, available_devices, free_memory, usable_cores
from common.machine.lifetime import end_with_parent, temporary_directory
from common.ranks.agree import tell_all
from common.ranks.slurm import become_rank
from common.settings.config import RunConfig
from common.settings.totals import per_process, total_workers
from common.words import count

# what init_process_group's env:// needs, with an example of each
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ENDED = (READER_GONE, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)))
GRACE_SECONDS = 5  # for a rank to end after SIGTERM, and for ranks that lost contact to say so


def refuse_without_ranks(options) -> None:
    """Raise SuiteError (USAGE) where neither a launcher nor --spawn, one of the script's `options`, makes ranks.

    One whose ranks know no more than srun tells them is fine.
    """
    if options.spawn:
        return
    become_rank()
    if "RANK" not in os.environ:
        script = Path(sys.argv[0]).name
        raise SuiteError(
            f"{script} runs one process per device",
            "found neither torchrun, nor srun, nor --spawn",
            f"type torchrun --standalone --nproc_per_node=2 {script}, or python {script} --spawn 2",
            USAGE,
        )


def rank_device(kind: str, local_rank: int, local_world_size: int, all_visible: bool = False) -> torch.device:
    """Return the device of one rank: the GPU of that number, or the CPU that all ranks of this machine share.

    Where a launcher shows each rank one GPU alone (srun --gpus-per-task=1), it is that one; whether it is another for
    each, refuse_different_ranks() finds out. all_visible: each rank sees all of them. Raises SuiteError (MACHINE) if
    this machine has fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu" or (len(devices) == 1 and not all_visible):
        return devices[0]
    if local_world_size > len(devices):
        raise SuiteError(
            "every rank needs a GPU of its own",
            f"{local_world_size} ranks, {count(len(devices), 'GPU')}",
            "start fewer ranks, or type --device cpu",
            MACHINE,
        )
    return devices[local_rank]


def spawn_ranks(world_size: int, train: Callable, config: RunConfig, options, data_ranks: int | None = None) -> None:
    """Call `train(config, options, init_method)` in `world_size` new processes, with torchrun's environment variables.

    data_ranks: among how many of them each batch is divided, all by default.
    What all ranks would complain about, and a download, comes first and only once. Exits with the code of the first
    rank that fails; its siblings are stopped then.
    """
    os.environ.pop("RANK", None)  # a cluster's: this process is no rank
    if not config.compile:  # then torch, as soon as torchvision is imported, makes no directory for its compiler
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    device = rank_device(config.device, 0, world_size, all_visible=True)
    check_memory_limit(config, device)
    if device.type == "cpu":  # this process shall hold no memory of a GPU
        check_precision(config, device)
    data_ranks = data_ranks or world_size
    per_process("--batch-size", config.batch_size, data_ranks)
    per_process("--num-workers", total_workers(config.num_workers, data_ranks), data_ranks)
    image_set = load_image_set(config)
    if config.resume:
        read_checkpoint(config, options, content_of(config, image_set), world_size)
    _refuse_too_many(world_size)
    if world_size > available_cores() and device.type == "cpu" and not config.quiet:
        print(f"warning: {world_size} ranks share {count(available_cores(), 'core')}", file=sys.stderr, flush=True)
    os.environ.update(WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
    if sys.platform == "linux":  # gloo would listen where other machines can reach it; all ranks are here
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the failing rank's line is enough
    with temporary_directory() as directory:  # the ranks meet in a file: no port that could be taken
        ranks = spawn(_start_rank, (train, config, options, directory, os.getpid()), world_size, join=False)

        def pass_on(number):
            for process in ranks.processes:
                if process.is_alive():
                    os.kill(process.pid, number)

        try:
            with end_after_step(pass_on, ctrl_c=config.checkpoint is not None):
                while not ranks.join():
                    pass
        except ProcessExitedException as error:
            spoken = any(_error_file(directory, rank).exists() for rank in range(world_size))
            if error.exit_code in ENDED:
                sys.exit(FAILED if spoken else error.exit_code)
            if spoken:
                sys.exit(max(error.exit_code, FAILED))  # one that has said why may still crash on its way out
            if told():  # before its training, a rank ends by the signal itself
                sys.exit(128 + told())
            killed = error.exit_code == -signal.SIGKILL
            advice = "try a smaller --batch-size, or fewer --num-workers" if killed else "see its last lines"
            raise SuiteError(
                f"rank {error.error_index} ended without a word", describe_exit(error.exit_code), advice, FAILED
            ) from None
        finally:
            for process in ranks.processes:
                process.terminate()
            for process in ranks.processes:
                process.join(GRACE_SECONDS)
                process.kill()  # does nothing to one that has ended
                process.join()


def _refuse_too_many(ranks):
    """Raise SuiteError (MACHINE) unless as many processes fit into memory that each take what this one has by now."""
    own, free = psutil.Process().memory_full_info().uss, free_memory(torch.device("cpu"))
    if ranks * own > free:
        raise SuiteError(
            f"{ranks} ranks do not fit into memory",
            f"each takes at least {own / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free",
            "start fewer ranks",
            MACHINE,
        )


def _start_rank(rank, train, config, options, directory, parent):
    end_with_parent()
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(FAILED)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_ERROR_FILE=str(_error_file(directory, rank)))
    run_script(lambda: train(config, options, f"file://{directory}/rendezvous"), as_rank=True)


def _error_file(directory, rank):
    return Path(directory, f"rank-{rank}.json")


@dataclass(frozen=True)
class Place:
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


def find_ranks(init_method: str, timeout_seconds: float) -> Place:
    """Find the other ranks; return this one's Place among them.

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
    return Place(rank, world_size, *local, sharing_cores(store, rank, world_size), store, timeout)


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
    own, end = uuid.uuid4().hex, time.monotonic() + store.timeout.total_seconds()
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
