"""Tensors that are sharded over ranks (DTensors), as FSDP makes them."""

import torch


def is_cut(value) -> bool:
    """Return whether a value is a DTensor."""
    return hasattr(value, "full_tensor")  # importing the class takes a second


def own_share(tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor; other tensors as they are."""
    return tensor.to_local() if is_cut(tensor) else tensor


def put_together(tensor) -> torch.Tensor:
    """Return the full tensor of a DTensor, for which all ranks must call this; other tensors as they are."""
    return tensor.full_tensor() if is_cut(tensor) else tensor


def whole(value, keep: bool = True):
    """Return a copy of a state_dict with full tensors on the CPU.

    All ranks must call it, because they gather one tensor after the other. keep: whether this rank needs the result. If
    not, its tensors are None, and the rank holds at most one full tensor at a time.
    """
    if isinstance(value, dict):
        return {name: whole(part, keep) for name, part in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    tensor = put_together(value)
    return tensor.cpu() if keep else None


def cut_like(tensor: torch.Tensor, own) -> torch.Tensor:
    """Return this rank's DTensor of a full tensor, sharded like `own`; the tensor itself if `own` is not sharded.

    No communication is needed, because every rank has the full tensor.
    """
    if not is_cut(own) or tensor.shape != own.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # already imported by now

    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
