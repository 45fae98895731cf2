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

from common.engine.place import Place
from common.engine.timing import synchronize
from common.machine.cores import short_slices
from common.machine.lifetime import has_launcher
from common.ranks.agree import refuse_different_ranks
from common.ranks.heartbeat import Heartbeat, process_key
from common.ranks.meet import of_attempt

GRACE_SECONDS = 5  # for a rank to end after SIGTERM, and for ranks that lost contact to say so


class Rank(Place):
    """One rank of several, on a device of its own.

    store: through which the ranks talk until there is a group. config: what this process is to do; options: the
    script's own flags.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, store: dist.Store, config, options):
        super().__init__([device])
        self.rank, self.ranks, self.launched = rank, ranks, has_launcher()
        self.store, self.config, self.options = store, config, options
        self.all_end_after = end_together(rank, ranks, device)  # type: ignore[method-assign, assignment]

    def agree(self, image_set) -> None:
        """Refuse ranks that have other flags, data or code than this one: see refuse_different_ranks()."""
        refuse_different_ranks(self.store, self.rank, self.ranks, self.device, self.config, self.options, image_set)

    def join(self) -> None:
        """Join the process group, through which the ranks exchange tensors."""
        timeout = timedelta(seconds=self.options.dist_timeout)
        join_group(self.store, self.rank, self.ranks, self.device, timeout, self.config.bind)
        self.tell()

    def tell(self) -> None:
        """Tell the others where this rank runs, and, where they run ahead of their GPUs, how far it has come."""
        process = psutil.Process()
        where = [socket.gethostname(), process.pid, process.create_time()]
        group_store().set(process_key(self.rank), json.dumps(where))
        if self.device.type == "cuda" and self.ranks > 1:
            heartbeat = Heartbeat(group_store(), self.rank, self.ranks)
            heartbeat.start()
            self.after_batch = heartbeat.beat  # type: ignore[method-assign]

    def gather(self, value) -> list:
        self.after_batch()
        return gather(value)

    def share_buffers(self, model: nn.Module) -> None:
        """DistributedDataParallel would do it in every training step, where nothing reads them, but not after the last:
        the scripts switch that off (its argument has another name since torch 2.13, its attribute has not).
        """
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def leave(self) -> None:
        self.after_batch()
        shutdown()


def join_group(
    store: dist.Store, rank: int, ranks: int, device: torch.device, timeout: timedelta, bound: bool = False
) -> None:
    """Join the process group: NCCL between GPUs, gloo between CPU processes; bound: see short_slices()."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # collectives of objects use the current device
    with short_slices(bound and not on_gpu):
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=group_timeout(timeout, on_gpu),
            device_id=device if on_gpu else None,
        )
    group_store()  # now, while all ranks are here


def group_timeout(timeout: timedelta, on_gpu: bool) -> timedelta:
    """Return for how long a collective may wait where a rank may stay behind for `timeout`.

    NCCL's watchdog would blame the rank that it ends, which waits: a Heartbeat comes before it.
    """
    return timeout + timedelta(seconds=2 * GRACE_SECONDS if on_gpu else 0)


def group_store() -> dist.Store:
    """Return the store of the process group that this rank has joined; the first call waits for all ranks."""
    return _own_part(dist.distributed_c10d._get_default_store())  # there is no public way to it


@functools.cache
def _own_part(store):
    return of_attempt(store, dist.get_rank(), dist.get_world_size())


def end_together(rank: int, world_size: int, device: torch.device) -> Callable[[int], bool]:
    """Return what tells a rank that was told to end whether all ranks end after this step: see Place.

    Each rank puts into the store after which step it was told; all end after the step that follows the last of those.
    No rank is beyond it then, as no step is over before all ranks have begun it, nor comes to its end without knowing,
    as the last to be told had said so when it began that step. Those who are told when it is too late for this epoch
    learn from one another at its end.
    """
    keys = [f"told-{other}" for other in range(world_size)]
    own: list[int] = []

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
