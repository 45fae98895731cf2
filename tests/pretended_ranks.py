"""A single rank of several on pretended GPUs. Its own values stand for those of the other ranks.

Collectives use torch's fake process group, which sends nothing, and take time on the virtual clock. Calls to torch are
recorded by the pretended GPUs. DDP and fully_shard() are replaced, as their C++ code needs CUDA.
"""

import contextlib
import threading
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from common.ranks.group import Rank
from tests import pretended_gpus

init_process_group, gather_objects = dist.init_process_group, dist.all_gather_object


class StandIn(nn.Module):
    """DistributedDataParallel with one bucket, all-reduced on its own stream after the last gradient."""

    def __init__(self, module, **options):
        super().__init__()
        gpus, parameters = pretended_gpus.gpus, [weight for weight in module.parameters() if weight.requires_grad]
        gpus.call("DistributedDataParallel", options)
        self.module, self.count, self.synchronizes = module, len(parameters), True
        self.device = parameters[0].device
        self.broadcast_buffers = options.get("broadcast_buffers", True)
        self.copies = not options.get("gradient_as_bucket_view")
        self.clock, self.stream = gpus.clock, gpus.clock.new_stream(self.device)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def forward(self, *inputs):
        if self.training and self.broadcast_buffers:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        self.missing = self.count
        return self.module(*inputs)

    def _arrived(self, parameter):
        if self.copies:
            self.clock.compute(self.device, "copy to the bucket")
        self.missing -= 1
        if self.missing or not self.synchronizes:
            return
        current = self.clock.used[self.device]
        self.stream.wait_stream(current)
        with self.clock.using(self.stream):
            dist.all_reduce(parameter.grad)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: current.wait_stream(self.stream))

    @contextlib.contextmanager
    def no_sync(self):
        self.synchronizes = False
        yield
        self.synchronizes = True


class FakeHeartbeat:
    def __init__(self, store, rank, ranks):
        self.call, self.left = pretended_gpus.gpus.call, threading.Event()

    def start(self):
        self.call("heartbeat")

    def beat(self):
        self.call("beat")


def fully_shard(module, mesh):
    """Record the number of weights to shard and their devices."""
    pretended_gpus.gpus.call(
        "fully_shard", len([*module.parameters()]), {str(one.device) for one in module.parameters()}
    )
    return mock.Mock()


def all_gather_object(values, own):
    """Return this rank's value for all ranks, with their own data_rank."""
    gather_objects(values, own)
    values[:] = [as_if_of_rank(rank, value) for rank, value in enumerate(values)]


def as_if_of_rank(rank, value):
    if isinstance(value, tuple):
        return tuple(as_if_of_rank(rank, part) for part in value)
    return replace(value, data_rank=rank) if hasattr(value, "data_rank") else value


def join(backend, *_, rank, world_size, device_id=None, **__):
    """Replace init_process_group()."""
    pretended_gpus.gpus.call("init_process_group", backend, device_id)
    init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def current_gpu(group=None):
    """Return the device for gathering objects, as with NCCL."""
    return torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def pretended_rank(rank: int, ranks: int):
    """Let a script train as this rank, on the GPU of the same number. Use it inside pretended_gpus()."""

    def find_ranks(config, options, init_method):
        place = Rank(rank, ranks, torch.device("cuda", rank), dist.HashStore(), config, options)
        place.check_same_settings = lambda image_set: None
        return place, (0, 1)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict("os.environ", RANK=str(rank), WORLD_SIZE=str(ranks)))
        for name, value in {
            "torch.distributed.init_process_group": join,
            "torch.distributed.all_gather_object": all_gather_object,
            "torch.distributed.fsdp.fully_shard": fully_shard,
            "torch.distributed.device_mesh.init_device_mesh": partial(pretended_gpus.gpus.call, "init_device_mesh"),
            "torch.nn.parallel.DistributedDataParallel": StandIn,
            "common.ranks.start.find_ranks": find_ranks,
            "common.ranks.group.Heartbeat": FakeHeartbeat,
        }.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(mock.patch.object(distributed_c10d, "_get_object_coll_device", current_gpu))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
