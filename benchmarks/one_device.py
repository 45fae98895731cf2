"""A training on one device, as data_parallel_train.py puts it together, for the benchmarks."""

import measure  # noqa: F401 - finds the project
from torch.utils.data import DistributedSampler

from common.engine.loop import ParallelContext
from common.engine.step import build_loss, to_device
from common.settings.config import RunConfig


def one_device(model, config: RunConfig, device, sampler=None):
    """Return (context, train_step) of a training on one device, as data_parallel_train.py has them."""
    loss_function = build_loss(config)

    def train_step(images, labels, mark):
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(model(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    shuffle = {"before_epoch": sampler.set_epoch} if sampler else {}
    return ParallelContext("single", model, (device,), device, device, **shuffle), train_step


def sampler_of(image_set, config: RunConfig, rank: int = 0, world_size: int = 1) -> DistributedSampler:
    """Return the sampler of one rank, as the training scripts make it."""
    return DistributedSampler(image_set.train_labels, world_size, rank, seed=config.seed, drop_last=True)
