"""A rank, and what ranks do together except averaging gradients."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from common.data.image_set import ImageSet
from common.engine.place import Place
from common.engine.timing import synchronize
from common.machine.cores import short_slices
from common.machine.lifetime import has_launcher
from common.ranks.agree import all_gather_json, refuse_different_ranks
from common.ranks.lost import GRACE_SECONDS, Heartbeat, publish_process
from common.settings.config import RunConfig

ASKED, LOOK_EVERY = "asked", 1.0  # the key that says that a rank was asked to end; seconds between looks at it


class Rank(Place):
    """One of several ranks, with its own device. store: a store shared by all ranks, usable without a process group."""

    def __init__(self, rank: int, ranks: int, device: torch.device, store: dist.Store, config: RunConfig, options):
        super().__init__([device])
        self.rank, self.ranks, self.launched = rank, ranks, has_launcher()
        self.store, self.config, self.options = store, config, options
        self.heartbeat: Heartbeat | None = None
        self.end_announced = self.others_asked = False
        self.looked = 0.0

    def check_same_settings(self, image_set: ImageSet) -> None:
        if self.ranks > 1:
            refuse_different_ranks(self, image_set)

    def join(self) -> None:
        """Join the process group: NCCL on GPUs, gloo on CPUs."""
        timeout, on_gpu = timedelta(seconds=self.options.dist_timeout), self.device.type == "cuda"
        if on_gpu:
            timeout += timedelta(seconds=2 * GRACE_SECONDS)  # the Heartbeat must act before NCCL's watchdog
        with short_slices(self.config.bind and not on_gpu):
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.ranks,
                timeout=timeout,
                device_id=self.device if on_gpu else None,
            )
        publish_process(self.store, self.rank)
        if on_gpu and self.ranks > 1:
            self.heartbeat = heartbeat = Heartbeat(self.store, self.rank, self.ranks)
            heartbeat.start()
            self.after_batch = heartbeat.beat  # type: ignore[method-assign]

    def gather(self, value) -> list:
        self.after_batch()
        return gather(value)

    def gather_in_turn(self, value) -> list:
        """Do what gather() does for large values: a GPU, through which NCCL sends them, holds only one at a time."""
        values = []
        for source in range(self.ranks):
            self.after_batch()
            one = [value if source == self.rank else None]
            dist.broadcast_object_list(one, source)
            values += one
        return values

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast rank 0's buffers. DistributedDataParallel would do so in every training step, where nothing reads
        them, but not after the last; the scripts disable that by an attribute, as torch 2.13 renamed the argument.
        """
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def others_end(self) -> bool:
        """Return whether a rank was asked to end. Looks once a second, and only if there will be a checkpoint."""
        if self.config.checkpoint and not self.others_asked and time.monotonic() > self.looked + LOOK_EVERY:
            self.looked, self.others_asked = time.monotonic(), self.store.check([ASKED])
        return self.others_asked

    def all_stop_after(self, step: int) -> bool:
        """Return whether this step follows the one at which the last rank was asked to end: then all ranks end.

        Each rank stores the step at which it was asked. No rank is past the common last step, as no step finishes
        before all ranks have begun it, and the last rank stored its step before that. A rank that is asked too late in
        an epoch learns of the others' requests at its end.
        """
        synchronize([self.device])  # the host runs ahead of the GPU
        keys = [f"end-{other}" for other in range(self.ranks)]
        if not self.end_announced:
            self.end_announced = True
            self.store.set(keys[self.rank], str(step))
            self.store.set(ASKED, "")
        return self.store.check(keys) and step > max(map(int, self.store.multi_get(keys)))

    def leave(self) -> None:
        """Wait for all ranks, without the pause of shutdown(), which would count as time of a short training."""
        self.after_batch()
        dist.barrier()
        if self.device.type == "cpu":
            # The process ends by skip_teardown(), with its group. No connection may break before all ranks have
            # returned from the barrier.
            all_gather_json(self.store, "left", None, self.rank, self.ranks)
        else:
            dist.destroy_process_group()
        if self.heartbeat:
            self.heartbeat.left.set()


def gather(value) -> list:
    """Return every rank's picklable `value`, in rank order, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def shutdown() -> None:
    """Wait for all ranks, then destroy the process group, which may be gloo's.

    Gloo's threads need the GIL to release the tensors of the last collectives, but destroy_process_group() holds it.
    Without the pause, a rank sometimes hung (torch 2.11) or aborted at exit (torch 2.15,
    github.com/pytorch/pytorch/pull/179291).
    """
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()
