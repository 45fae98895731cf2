"""What the engine is told of a method: where its processes train, and what it does to the network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from common.data.image_set import ImageSet
from common.engine.timing import SampledTimers
from common.models.build import Network
from common.models.sharded import cut_like, whole


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


class States:
    """What a checkpoint holds of a network, of which ranks may have shares of tensors, and its optimizer.

    Of a part of a network: before, how many parameters precede it; gather(value): returns those of all, in their order.
    """

    def __init__(self, model: nn.Module, optimizer, before: int = 0, gather: Callable[[Any], list] | None = None):
        self.model, self.optimizer, self.before, self.gather = model, optimizer, before, gather

    def whole(self, keep: bool = True) -> dict[str, dict]:
        """Return the state_dicts of the whole "model" and "optimizer", on the CPU; all ranks call it (see whole())."""
        own = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        model: dict = {}
        state: dict = {}
        parameters = 0
        for part in self.gather(whole(own)) if self.gather else [whole(own, keep)]:
            (group,) = part["optimizer"]["param_groups"]
            model |= part["model"]
            state |= {parameters + number: values for number, values in part["optimizer"]["state"].items()}
            parameters += len(group["params"])
        groups = [{**group, "params": [*range(parameters)]}]
        return {"model": model, "optimizer": {"state": state, "param_groups": groups}}

    def load(self, states: dict[str, dict]) -> None:
        """Put them back: each rank takes its part of them, and its share."""
        model = {name: cut_like(states["model"][name], own) for name, own in self.model.state_dict().items()}
        self.model.load_state_dict(model)
        parameters, saved, state = [*self.model.parameters()], states["optimizer"]["state"], {}
        for number, own in enumerate(parameters):
            if values := saved.get(self.before + number):
                state[number] = {name: cut_like(value, own) for name, value in values.items()}
        (group,) = states["optimizer"]["param_groups"]
        groups = [{**group, "params": [*range(len(parameters))]}]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True)
class ParallelContext:
    """What the engine is told of a method; it never asks which one it is."""

    method: str  # what results call it
    place: Place
    sampler: DistributedSampler  # which share of every batch this process sees, of how many
    network: Network  # the plain one, whose weights --save writes
    model: nn.Module  # what train_step trains: images (B, C, H, W) to logits (B, classes), or to None (see loop.py)
    evaluation_model: nn.Module | None = None  # evaluated in the place of `model`
    replicas: int = 1  # into how many parts this process's share of a batch is cut, one for each device
    states: States | None = None  # where no rank has the whole network: how its parts are put together
    timers: SampledTimers | None = None  # of what no other method does in a step: RunResult.method_milliseconds
    simulated: bool = False  # stands for devices that are not there
    note: str = ""  # what a reader must know: RunResult.reason
    uncompilable: str = ""  # why torch.compile may not rewrite the network, if so
