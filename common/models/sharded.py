"""Tensors of which every rank holds a share (DTensors): as bytes here, made whole, and cut again."""

import torch


def is_cut(value) -> bool:
    """Return whether a value is a tensor of which every rank holds a share."""
    return hasattr(value, "full_tensor")  # a DTensor; to import its class takes a second


def own_share(tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor: its share, or all of one that is not cut."""
    return tensor.to_local() if is_cut(tensor) else tensor


def put_together(tensor) -> torch.Tensor:
    """Return a whole tensor where it is; all ranks call it for one that is cut."""
    return tensor.full_tensor() if is_cut(tensor) else tensor


def whole(value, keep: bool = True):
    """Return a state_dict in which every tensor is on the CPU, and one that was cut is whole.

    All ranks call it, for they put one tensor after the other together. keep: whether this rank wants the result; if
    not, it holds no more than one whole tensor at a time, and None stands in their places.
    """
    if isinstance(value, dict):
        return {name: whole(part, keep) for name, part in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    tensor = put_together(value)
    return tensor.cpu() if keep else None


def cut_like(tensor: torch.Tensor, own) -> torch.Tensor:
    """Return this rank's share of a whole tensor, cut as `own` is; the tensor itself if that is not cut.

    All ranks have the whole tensor, so that none sends anything.
    """
    if not is_cut(own) or tensor.shape != own.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # is there by now

    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
