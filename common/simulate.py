"""What nn.DataParallel does in one step, carried out on one device, so that it can be watched anywhere."""

import copy

import torch
from torch import nn

from common.timing import PhaseTimer


class SimulatedDataParallel(nn.Module):
    """Scatter, replicate, N forward passes, gather: one after the other on `device`. Says nothing about speed.

    Replicas share the module's weights, so that one backward pass adds up their gradients. Each has BatchNorm
    statistics of its own, and only the first one's are kept, as nn.DataParallel does it.
    """

    def __init__(self, module: nn.Module, replicas: int, device: torch.device):
        super().__init__()
        self.module, self.replicas = module, replicas
        self._timer, self._batches = PhaseTimer([device]), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) to logits (B, 10); each replica sees about B ÷ N images."""
        timer = self._timer if self.training else PhaseTimer([])  # only training batches count
        self._batches += self.training
        timer.start()
        parts = [part.clone() for part in images.chunk(self.replicas)]  # N x (B/N, C, H, W)
        timer.mark("scatter")
        weights = {id(weight): weight for weight in self.module.parameters()}
        replicas = [self.module, *(copy.deepcopy(self.module, dict(weights)) for _ in parts[1:])]
        timer.mark("replicate")
        outputs = [replica(part) for replica, part in zip(replicas, parts, strict=True)]  # N x (B/N, 10)
        timer.mark("compute")
        logits = torch.cat(outputs)  # (B, 10)
        timer.mark("gather")
        return logits

    def milliseconds(self) -> dict[str, float]:
        """Return the mean time per training batch, in milliseconds, of each step but the computation itself."""
        return {name: total / self._batches for name, total in self._timer.milliseconds().items() if name != "compute"}
