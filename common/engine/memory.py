"""What a training has in memory: at most, in which parts, and held to a limit."""

import itertools

import torch
from torch import nn

from common.machine.memory import hold_to, peak_resident_bytes
from common.models.sharded import own_share


def held_to(limit: int, train_step):
    """Return the same step, but after the first, second, fourth, eighth … the process may have had no more memory."""
    steps = itertools.count(1)

    def held(images, labels, mark):
        loss, step = train_step(images, labels, mark), next(steps)
        if step & (step - 1) == 0:
            hold_to(limit)
        return loss

    return held


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Return bytes, for RunResult's peak_memory_bytes and reserved_memory_bytes, which are 0 on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes(), 0


def memory_parts(model: nn.Module, optimizer, device: torch.device) -> dict[str, int]:
    """Return bytes on `device` of parameters, their gradients in a step, and optimizer state; of shares, its own."""
    parameters = [parameter for parameter in model.parameters() if parameter.device == device]
    optimizer = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer has this rank's own inside
    values = [value for values in optimizer.state.values() for value in values.values()]
    state = [value for value in values if isinstance(value, torch.Tensor) and value.device == device]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(parameter for parameter in parameters if parameter.requires_grad),
        "optimizer state": _bytes(state),
    }


def _bytes(tensors):
    return sum(own_share(tensor).numel() * tensor.element_size() for tensor in tensors)
