"""What the engine is told of a method: where its processes train, and what it does to the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from common.data.image_set import ImageSet
from common.engine.checkpoint import States
from common.engine.timing import SampledTimers


class Place:
    """A process that trains alone; one rank of several is a common.ranks.group.Rank.

    devices: all that it uses; device: the first, which gets the batches. launched: whether its parent is a launcher.
    """

    rank, ranks, launched = 0, 1, False

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.device = tuple(dict.fromkeys(devices)), devices[0]

    def agree(self, image_set: ImageSet) -> None:
        """Refuse to train with ranks that have other flags, data or code."""

    def join(self) -> None:
        """Join the process group, through which the ranks exchange tensors."""

    def gather(self, value) -> list:
        """Return the values of all ranks, in their order, on every rank."""
        return [value]

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks rank 0's buffers."""

    def after_batch(self) -> None:
        """To be called after each batch of a training or an evaluation, by the host, which may be ahead of its GPU."""

    def all_end_after(self, step: int) -> bool:
        """Whether all ranks end after this step of an epoch; asked after each step by one that was told to end."""
        return True

    def leave(self) -> None:
        """Do the last thing that the ranks do together."""


@dataclass(frozen=True)
class ParallelContext:
    """What the engine is told of a method; it never asks which one it is."""

    method: str  # what results call it
    place: Place
    sampler: DistributedSampler  # which share of every batch this process sees, of how many
    network: nn.Module  # the plain one, whose weights --save writes
    model: nn.Module  # what train_step trains: images (B, C, H, W) to logits (B, classes), or to None (see loop.py)
    evaluation_model: nn.Module | None = None  # evaluated in the place of `model`
    replicas: int = 1  # into how many parts this process's share of a batch is cut, one for each device
    states: States | None = None  # where no rank has the whole network: how its parts are put together
    timers: SampledTimers | None = None  # of what no other method does in a step: RunResult.method_milliseconds
    simulated: bool = False  # stands for devices that are not there
    note: str = ""  # what a reader must know: RunResult.reason
    uncompilable: str = ""  # why torch.compile may not rewrite the network, if so
