"""The memory of a training: its limit, its peak, and its parts."""

import itertools

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
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes(), 0


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
