"""The memory of a training: its limit, its peak, and its parts."""

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from common.machine.memory import hold_to, peak_resident_bytes
from common.models.sharded import own_share


def with_memory_limit(train_step, limit: int):
    """Return a train_step that checks --memory-limit after the first, second, fourth, eighth … step."""
    steps = itertools.count(1)

    def step_and_check(images, labels, mark):
        loss, step = train_step(images, labels, mark), next(steps)
        if step & (step - 1) == 0:
            hold_to(limit)
        return loss

    return step_and_check


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Return (peak, reserved) bytes for RunResult; nothing is reserved on a CPU."""
    if device.type == "cuda":
        allocated = torch.cuda.max_memory_allocated(device) + _of_graphs(device)
        return allocated, torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes(), 0


def _of_graphs(device):
    """Return the bytes that CUDA graphs keep for their replays, which torch counts as free (pytorch issue 121932)."""
    pools = [part for part in torch.cuda.memory_snapshot() if part["segment_pool_id"] != (0, 0)]
    return sum(part["total_size"] - part["allocated_size"] for part in pools if part["device"] == device.index)


class PeakMemory:
    """The peak memory of each device of this process, as RunResult defines it: on GPUs, without evaluations."""

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.gpus = devices, [device for device in devices if device.type == "cuda"]
        self.epochs: list[list[tuple[int, int]]] = []  # of each GPU, its peak_memory() in training

    def reset(self) -> None:
        """Begin the training of an epoch."""
        for device in self.gpus:
            torch.cuda.reset_peak_memory_stats(device)

    def keep(self) -> None:
        """End the training of an epoch."""
        self.epochs.append([peak_memory(device) for device in self.gpus])

    def largest(self) -> list[tuple[int, int]]:
        """Return each device's peak_memory(): the largest of all epochs but the first, if there are others.

        In the first epoch, cuDNN tries algorithms with larger workspaces. A CPU has one peak, of all that it did.
        """
        if not (self.gpus and self.epochs):
            return [peak_memory(device) for device in self.devices]
        of_devices = zip(*(self.epochs[1:] or self.epochs), strict=True)
        return [(max(peaks), max(reserved)) for peaks, reserved in (zip(*each, strict=True) for each in of_devices)]


def memory_parts(model: nn.Module, optimizer, device: torch.device) -> dict[str, int]:
    """Return the bytes on `device` of parameters, gradients and optimizer state; of sharded tensors, this rank's."""
    parameters = [parameter for parameter in model.parameters() if parameter.device == device]
    optimizer = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer wraps this rank's optimizer
    values = [value for values in optimizer.state.values() for value in values.values()]
    state = [value for value in values if isinstance(value, torch.Tensor) and value.device == device]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(parameter for parameter in parameters if parameter.requires_grad),
        "optimizer state": _bytes(state),
    }


def _bytes(tensors):
    return sum(own_share(tensor).numel() * tensor.element_size() for tensor in tensors)
