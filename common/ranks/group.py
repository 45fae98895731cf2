"""The few things that ranks do together besides averaging gradients: they join, gather, end, and part."""

import functools
import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import nn

from common.engine.timing import synchronize
from common.machine.cores import short_slices
from common.machine.lifetime import has_launcher
from common.ranks.heartbeat import Heartbeat, process_key
from common.ranks.start import GRACE_SECONDS, Place, of_attempt


def join_group(place: Place, device: torch.device, bound: bool) -> None:
    """Join the process group: NCCL between GPUs, gloo between CPU processes; bound: see short_slices()."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # collectives of objects use the current device
    with short_slices(bound and not on_gpu):
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=place.store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=group_timeout(place.timeout, on_gpu),
            device_id=device if on_gpu else None,
        )
    group_store()  # now, while all ranks are here


def group_timeout(timeout: timedelta, on_gpu: bool) -> timedelta:
    """Return for how long a collective may wait where a rank may stay behind for `timeout`.

    NCCL's watchdog would blame the rank that it ends, which waits: a Heartbeat comes before it.
    """
    return timeout + timedelta(seconds=2 * GRACE_SECONDS if on_gpu else 0)


def rank_traits(model: nn.Module, rank: int, world_size: int) -> dict:
    """Return what a ParallelContext says of ranks that each train on a share of every batch.

    They evaluate the plain `model`, after rank 0's buffers went to all.
    """
    return {
        **group_traits(rank, world_size, next(model.parameters()).device),
        "data_rank": rank,
        "data_ranks": world_size,
        "data_parallel_size": world_size,
        "evaluation_model": model,
        "before_evaluation": lambda: broadcast_buffers(model),
    }


def group_traits(rank: int, world_size: int, device: torch.device) -> dict:
    """Return what a ParallelContext says of ranks, whatever each does with a batch; tell the others where this runs."""
    process, beat = psutil.Process(), lambda: None
    group_store().set(process_key(rank), json.dumps([socket.gethostname(), process.pid, process.create_time()]))
    if device.type == "cuda" and world_size > 1:
        heartbeat = Heartbeat(group_store(), rank, world_size)
        heartbeat.start()
        beat = heartbeat.beat

    def beat_and_gather(value):
        beat()
        return gather(value)

    def beat_and_shut_down():
        beat()
        shutdown()

    return {
        "rank": rank,
        "world_size": world_size,
        "launched": has_launcher(),
        "gather": beat_and_gather,
        "shutdown": beat_and_shut_down,
        "all_end_after": end_together(rank, world_size, device),
        "after_batch": beat,
    }


def group_store() -> dist.Store:
    """Return the store of the process group that this rank has joined; the first call waits for all ranks."""
    return _own_part(dist.distributed_c10d._get_default_store())  # there is no public way to it


@functools.cache
def _own_part(store):
    return of_attempt(store, dist.get_rank(), dist.get_world_size())


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
