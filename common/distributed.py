"""Starting ranks, and the few things that ranks do together besides averaging gradients."""

import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from common.agreement import tell_all
from common.checkpoint import content_of, read_checkpoint
from common.config import RunConfig
from common.data.image_set import load_image_set
from common.entry import run_script
from common.errors import FAILED, MACHINE, READER_GONE, USAGE, SuiteError, describe_exit
from common.machine.ending import end_after_step, told
from common.machine.environment import available_cores, available_devices, free_memory, require_torchvision
from common.machine.lifetime import end_with_parent, has_launcher, temporary_directory
from common.machine.setup import check_precision
from common.timing import synchronize
from common.totals import per_process, total_workers
from common.words import count

# what init_process_group's env:// needs, with an example of each
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ENDED = (READER_GONE, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)))
GRACE_SECONDS = 5  # for a rank to end after SIGTERM, and for ranks that lost contact to say so


def refuse_without_ranks(options) -> None:
    """Raise SuiteError (USAGE) where neither a launcher nor --spawn, one of the script's `options`, makes ranks."""
    if not options.spawn and "RANK" not in os.environ:
        script = Path(sys.argv[0]).name
        raise SuiteError(f"{script} runs one process per device", "found neither torchrun nor --spawn",
                         f"type torchrun --standalone --nproc_per_node=2 {script}, or python {script} --spawn 2", USAGE)


def rank_device(kind: str, local_rank: int, local_world_size: int) -> torch.device:
    """Return the device of one rank: the GPU of that number, or the CPU that all ranks of this machine share.

    Raises SuiteError (MACHINE) if this machine has fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu":
        return devices[0]
    if local_world_size > len(devices):
        raise SuiteError("every rank needs a GPU of its own", f"{local_world_size} ranks, {count(len(devices), 'GPU')}",
                         "start fewer ranks, or type --device cpu", MACHINE)
    return devices[local_rank]


def spawn_ranks(world_size: int, train: Callable, config: RunConfig, options, data_ranks: int | None = None) -> None:
    """Call `train(config, options, init_method)` in `world_size` new processes, with torchrun's environment variables.

    data_ranks: among how many of them each batch is divided, all by default.
    What all ranks would complain about, and a download, comes first and only once. Exits with the code of the first
    rank that fails; its siblings are stopped then.
    """
    os.environ.pop("RANK", None)  # a cluster's: this process is no rank
    device = rank_device(config.device, 0, world_size)
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
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the failing rank's line is enough
    with temporary_directory() as directory:  # the ranks meet in a file: no port that could be taken
        ranks = spawn(_start_rank, (train, config, options, directory, os.getpid()), world_size, join=False)

        def pass_on(number):
            for process in ranks.processes:
                if process.is_alive():
                    os.kill(process.pid, number)

        try:
            with end_after_step(pass_on):
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
            raise SuiteError(f"rank {error.error_index} ended without a word", describe_exit(error.exit_code), advice,
                             FAILED) from None
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
        raise SuiteError(f"{ranks} ranks do not fit into memory", f"each takes at least {own / 2**20:,.0f} MiB, "
                         f"{free / 2**20:,.0f} MiB are free", "start fewer ranks", MACHINE)


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks, and the store through which they talk until there is a group."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
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
        raise SuiteError("RANK must be below WORLD_SIZE", f"RANK={rank}, WORLD_SIZE={world_size}",
                         "number the ranks from 0", USAGE)
    if init_method == "env://":
        _variable("MASTER_ADDR")
        _whole_number("MASTER_PORT")
    try:
        store, _, _ = next(rendezvous(init_method, rank, world_size, timeout=timeout))
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if isinstance(error, dist.DistStoreError):
            raise SuiteError(f"not all ranks came to {place}", _plain(error), "start the missing ones, or give them "
                             "more time with --dist-timeout", FAILED) from error
        raise SuiteError(f"rank {rank} cannot meet the others at {place}", _plain(error), "let MASTER_ADDR be the host "
                         "of rank 0, and MASTER_PORT a port of it that is free", USAGE) from error
    store.set_timeout(timeout)  # a file's store has not been told
    store = _of_attempt(store)
    hosts = tell_all(store, "host", socket.gethostname(), rank, world_size)
    if os.environ.get("LOCAL_RANK") and os.environ.get("LOCAL_WORLD_SIZE"):
        return Place(rank, world_size, _whole_number("LOCAL_RANK"), _whole_number("LOCAL_WORLD_SIZE"), store, timeout)
    host = hosts[rank]
    return Place(rank, world_size, hosts[:rank].count(host), hosts.count(host), store, timeout)


def _plain(error):
    """What an error of torch's says, without the C++ frames that may follow."""
    return str(error).partition("Exception raised from")[0].strip()


def join_group(place: Place, device: torch.device) -> None:
    """Join the process group: NCCL between GPUs, gloo between CPU processes."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # collectives of objects use the current device
    # A torchvision imported later would keep gloo's threads alive to the end (torch 2.15), where they can abort the
    # interpreter (github.com/pytorch/pytorch/pull/179291).
    require_torchvision()
    dist.init_process_group("nccl" if on_gpu else "gloo", store=place.store, rank=place.rank,
                            world_size=place.world_size, timeout=place.timeout, device_id=device if on_gpu else None)


def rank_traits(model: nn.Module, rank: int, world_size: int) -> dict:
    """Return what a ParallelContext says of ranks that each train on a share of every batch.

    They evaluate the plain `model`, after rank 0's buffers went to all.
    """
    return {**group_traits(rank, world_size, next(model.parameters()).device), "data_rank": rank,
            "data_ranks": world_size, "data_parallel_size": world_size, "evaluation_model": model,
            "before_evaluation": lambda: broadcast_buffers(model)}


def group_traits(rank: int, world_size: int, device: torch.device) -> dict:
    """Return what a ParallelContext says of ranks, whatever each does with a batch; tell the others where this runs."""
    process = psutil.Process()
    group_store().set(_process_key(rank), json.dumps([socket.gethostname(), process.pid, process.create_time()]))
    return {"rank": rank, "world_size": world_size, "launched": has_launcher(), "gather": gather, "shutdown": shutdown,
            "all_end_after": end_together(rank, world_size, device)}


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


def group_store() -> dist.Store:
    """Return the store of the process group that this rank has joined."""
    return _of_attempt(dist.distributed_c10d._get_default_store())  # there is no public way to it


def _of_attempt(store):
    """The part of a store that is this attempt's own.

    After a restart by torchrun, a store still holds what the ranks put there which are gone
    (github.com/pytorch/pytorch/issues/135712).
    """
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


def _start_rank(rank, train, config, options, directory, parent):
    end_with_parent()
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(FAILED)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_ERROR_FILE=str(_error_file(directory, rank)))
    run_script(lambda: train(config, options, f"file://{directory}/rendezvous"), as_rank=True)


def _error_file(directory, rank):
    return Path(directory, f"rank-{rank}.json")


def name_lost_ranks(train: Callable) -> Callable:
    """Decorate a function so that a collective which fails in it names the ranks that did not take part.

    train(config, options, …): options has dist_timeout. Those which wait for a rank that hangs give up after
    --dist-timeout, and tell one another; who says nothing is the one, and is killed, as a launcher would wait for it.
    If a rank died instead, its launcher stops all others meanwhile, and they say nothing.
    """

    @functools.wraps(train)
    def wrapped(*arguments):
        try:
            train(*arguments)
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            cause = f"{type(error).__name__}: {_plain(error)}"
            missing = _missing_ranks(arguments[1].dist_timeout) if dist.is_initialized() else []
            if told():  # so was the other rank, or its launcher has noticed what became of it
                sys.exit(128 + told())
            if missing:
                atexit.register(_kill, missing)  # after the line about it
                cause = f"rank {', '.join(map(str, missing))} did not answer in time; {cause}"
            lost = SuiteError("lost contact with another rank", cause,
                              "see the log of that rank, or give it more time with --dist-timeout", FAILED)
            for note in getattr(error, "__notes__", ()):
                lost.add_note(note)
            raise lost from error

    return wrapped


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


def _kill(ranks):
    """Kill ranks of this machine that hang: one that was stopped would not even end by its launcher's SIGTERM."""
    for rank in ranks if has_launcher() else ():
        with contextlib.suppress(RuntimeError, ValueError, psutil.Error, OSError):  # the store or the process is gone
            store = group_store()
            if store.check([_process_key(rank)]):
                host, pid, start = json.loads(store.get(_process_key(rank)))
                if host == socket.gethostname() and abs(psutil.Process(pid).create_time() - start) < 2:
                    os.kill(pid, signal.SIGKILL)


def _process_key(rank):
    return f"process-{rank}"


def end_together(rank: int, world_size: int, device: torch.device) -> Callable[[int], bool]:
    """Return what tells a rank that was told to end whether all ranks end after this step: see ParallelContext.

    Each rank puts into the store after which step it was told; all end after the step that follows the last of those.
    No rank is beyond it then, as no step is over before all ranks have begun it, nor comes to its end without knowing,
    as the last to be told had said so when it began that step. Those who are told when it is too late for this epoch
    learn from one another at its end.
    """
    keys = [f"told-{other}" for other in range(world_size)]
    own = []

    def all_end_after(step):
        synchronize([device])  # the host runs ahead of a GPU
        store = group_store()
        if not own:
            own.append(step)
            store.set(keys[rank], str(step))
        return store.check(keys) and step > max(map(int, store.multi_get(keys)))

    return all_end_after


def gather(value) -> list:
    """Return every rank's `value` (anything that can be pickled), in the order of the ranks, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def shutdown() -> None:
    """Wait until every rank is done, then take the process group down.

    Gloo's threads need the interpreter's lock to drop the tensors of the last collectives, which a thread that takes
    the group down holds: without the pause, a rank now and then hung there (torch 2.11), or aborted at the
    interpreter's end (torch 2.15, github.com/pytorch/pytorch/pull/179291). All measuring is over by now.
    """
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


def broadcast_buffers(model: nn.Module) -> None:
    """Give all ranks rank 0's buffers: BatchNorm's statistics differ by rank, and all must test one and the same model.

    DistributedDataParallel would do it in every training step, where nothing reads them, but not after the last: the
    scripts switch that off (its argument has another name since torch 2.13, its attribute has not).
    """
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
