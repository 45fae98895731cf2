"""The few things that ranks do together besides averaging gradients: they agree, join, gather, end, and part."""

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
from common.ranks.agree import refuse_different_ranks
from common.ranks.lost import GRACE_SECONDS, Heartbeat, say_where
from common.settings.config import RunConfig


class Rank(Place):
    """One rank of several, on a device of its own; store: through which they talk besides their group."""

    def __init__(self, rank: int, ranks: int, device: torch.device, store: dist.Store, config: RunConfig, options):
        super().__init__([device])
        self.rank, self.ranks, self.launched = rank, ranks, has_launcher()
        self.store, self.config, self.options = store, config, options
        self.ends = False

    def agree(self, image_set: ImageSet) -> None:
        if self.ranks > 1:
            refuse_different_ranks(self, image_set)

    def join(self) -> None:
        """Join the process group: NCCL between GPUs, whose watchdog comes after the Heartbeat, gloo between CPUs."""
        timeout, on_gpu = timedelta(seconds=self.options.dist_timeout), self.device.type == "cuda"
        if on_gpu:
            timeout += timedelta(seconds=2 * GRACE_SECONDS)
        with short_slices(self.config.bind and not on_gpu):
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.ranks,
                timeout=timeout,
                device_id=self.device if on_gpu else None,
            )
        say_where(self.store, self.rank)
        if on_gpu and self.ranks > 1:  # it runs ahead of its GPU
            heartbeat = Heartbeat(self.store, self.rank, self.ranks)
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

    def all_end_after(self, step: int) -> bool:
        """Each rank puts into the store after which step it was told; all end after the step that follows the last.

        No rank is beyond it then, as no step is over before all ranks have begun it, and the last to be told had said
        so when it began that step. Who is told too late for this epoch learns so from the others at its end.
        """
        synchronize([self.device])  # the host runs ahead of a GPU
        keys = [f"told-{other}" for other in range(self.ranks)]
        if not self.ends:
            self.ends = True
            self.store.set(keys[self.rank], str(step))
        return self.store.check(keys) and step > max(map(int, self.store.multi_get(keys)))

    def leave(self) -> None:
        self.after_batch()
        shutdown()


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
