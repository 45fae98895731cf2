"""nn.DataParallel with its own work timed, and the same steps carried out on one device, to be watched anywhere."""

import copy

import torch
from torch import nn

from common.timing import SampledTimers


class TimedDataParallel(nn.DataParallel):
    """nn.DataParallel that measures what it does besides the replicas' forward passes, on training batches.

    That is scatter, replicate and gather. What the backward pass adds, summing the replicas' gradients on the first
    device, is part of the phase "backward".
    """

    def __init__(self, module: nn.Module, devices: list[torch.device]):
        super().__init__(module, devices)
        self.timers = SampledTimers(devices)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) on the first device to logits (B, 10) on it."""
        (self._timer,) = self.timers.of_batch(self.training)
        return super().forward(images)

    def scatter(self, *arguments):
        return self._timed("scatter", super().scatter, *arguments)

    def replicate(self, *arguments):
        return self._timed("replicate", super().replicate, *arguments)

    def gather(self, *arguments):
        return self._timed("gather", super().gather, *arguments)

    def _timed(self, name, step, *arguments):
        self._timer.mark("", join=True)  # not before the replicas on all devices are done: gather would wait for them
        value = step(*arguments)
        self._timer.mark(name, join=True)
        return value


class SimulatedDataParallel(nn.Module):
    """Scatter, replicate, N forward passes, gather: one after the other on `device`. Says nothing about speed.

    Replicas share the module's weights, so that one backward pass adds up their gradients. Each has BatchNorm
    statistics of its own, and only the first one's are kept, as nn.DataParallel does it.
    """

    def __init__(self, module: nn.Module, replicas: int, device: torch.device):
        super().__init__()
        self.module, self.replicas = module, replicas
        self.timers = SampledTimers([device])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) to logits (B, 10); each replica sees about B ÷ N images."""
        (timer,) = self.timers.of_batch(self.training)
        timer.start()
        parts = [part.clone() for part in images.chunk(self.replicas)]  # N x (B/N, C, H, W)
        timer.mark("scatter")
        weights = {id(weight): weight for weight in self.module.parameters()}
        replicas = [self.module, *(copy.deepcopy(self.module, dict(weights)) for _ in parts[1:])]
        timer.mark("replicate")
        outputs = [replica(part) for replica, part in zip(replicas, parts, strict=True)]  # N x (B/N, 10)
        timer.start()  # the computation is no overhead
        logits = torch.cat(outputs)  # (B, 10)
        timer.mark("gather")
        return logits
