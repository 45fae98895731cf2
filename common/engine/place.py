"""What a method tells the engine: which devices and ranks train, and how the network is distributed."""

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
    """A process that trains alone. common.ranks.group.Rank is one rank of several.

    devices: all devices of this process; device: the first one, which receives the batches. launched: whether the
    parent process is a launcher such as torchrun.
    """

    rank, ranks, launched = 0, 1, False

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.device = tuple(dict.fromkeys(devices)), devices[0]

    def check_same_settings(self, image_set: ImageSet) -> None:
        """Raise SuiteError if the ranks have different flags, data or code."""

    def join(self) -> None:
        """Join the process group, through which the ranks exchange tensors."""

    def gather(self, value) -> list:
        """Return the values of all ranks, in rank order, on every rank."""
        return [value]

    def share_buffers(self, model: nn.Module) -> None:
        """Copy rank 0's buffers to all ranks."""

    def after_batch(self) -> None:
        """Called by the host, which may be ahead of its GPU, after each training or evaluation batch."""

    def others_end(self) -> bool:
        """Return whether another rank was asked to end, which happened a second ago at most."""
        return False

    def all_stop_after(self, step: int) -> bool:
        """Return whether all ranks end after this step of an epoch. A rank that knows of a signal asks every step."""
        return True

    def leave(self) -> None:
        """Leave the process group. Nothing is exchanged afterwards."""


class States:
    """The model and optimizer state in a checkpoint, whole even if each rank holds shards or a part of the network.

    If it holds a part: before: the number of parameters in the preceding parts; gather(value): returns the values of
    all parts, in their order.
    """

    def __init__(self, model: nn.Module, optimizer, before: int = 0, gather: Callable[[Any], list] | None = None):
        self.model, self.optimizer, self.before, self.gather = model, optimizer, before, gather

    def whole(self, keep: bool = True) -> dict[str, dict]:
        """Return the whole "model" and "optimizer" state_dicts on the CPU. All ranks call it (see sharded.whole())."""
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
        """Load what whole() returned. Each rank takes its part of the network and its shards."""
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
    """What the engine knows about a method. It never asks which method it is."""

    method: str  # its name in results
    place: Place
    sampler: DistributedSampler  # this process's share of the training images, and of how many
    network: Network  # the plain network, whose weights --save writes
    model: nn.Module  # what train_step trains: images (B, C, H, W) → logits (B, classes), or None (see loop.py)
    evaluation_model: nn.Module | None = None  # evaluated instead of `model`
    replicas: int = 1  # parts into which this process splits its share of a batch, one per device
    states: States | None = None  # how to put the parts together if no rank has the whole network
    timers: SampledTimers | None = None  # of work that only this method does: RunResult.method_milliseconds
    simulated: bool = False  # one device stands in for devices that the machine lacks
    note: str = ""  # for the reader of the results: RunResult.reason
    uncompilable: str = ""  # why torch.compile must not rewrite the network, if so
