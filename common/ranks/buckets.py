"""The buckets in which DistributedDataParallel exchanges the gradients of a model."""

import statistics
from collections.abc import Callable

import torch
from torch import nn

from common.engine.timing import PhaseTimer, synchronize
from common.files.probe import Bucket

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # default sizes in bytes (torch, nn/parallel/distributed.py)


def gradient_buckets(model: nn.Module, step: Callable[[], None], device: torch.device) -> tuple[Bucket, ...]:
    """Return the buckets in which DistributedDataParallel would exchange a model's gradients. `step` trains it once.

    DistributedDataParallel adds gradients to a bucket in the order of the backward pass until the bucket is full.
    """
    names = {parameter: str(number) for number, parameter in enumerate(model.parameters()) if parameter.requires_grad}
    timer = PhaseTimer([device])  # replaced in every pass
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: timer.mark(names[parameter]))
        for parameter in names
    ]
    passes = []
    for _ in range(7):
        timer = PhaseTimer([device])
        timer.start()
        step()
        timer.mark("update")
        synchronize([device])
        passes.append({name: end for name, _, end in timer.spans()})
    for hook in hooks:
        hook.remove()
    sizes = {name: parameter.nbytes for parameter, name in names.items() if name in passes[-1]}
    *_, last = order = sorted(sizes, key=lambda name: passes[-1][name])
    buckets: list[Bucket] = []
    size = 0
    for name in order:
        size += sizes[name]
        if name == last or size >= (BUCKET if buckets else FIRST_BUCKET):
            left = statistics.median((ends[last] - ends[name]) / ends["update"] for ends in passes[2:])
            buckets.append(Bucket(size, left))
            size = 0
    return tuple(buckets)
