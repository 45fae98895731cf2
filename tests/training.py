"""One device's part of a training script, for tests that train in their own process."""

import torch
from torch.utils.data import DistributedSampler

from common.data import loaders
from common.engine.loop import ParallelContext, build_loss, to_device

CPU = torch.device("cpu")


def make_context(model, **values) -> ParallelContext:
    return ParallelContext(
        **{"method": "single", "model": model, "devices": (CPU,), "input_device": CPU, "output_device": CPU, **values}
    )


def make_step(model, config):
    loss_function = build_loss(config)

    def train_step(images, labels, mark):
        images, labels = to_device(images, CPU), labels.to(CPU)
        mark("transfer")
        loss = loss_function(model(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    return train_step


def make_sampler(image_set, config, rank=0, world_size=1, epoch=0) -> DistributedSampler:
    sampler = DistributedSampler(image_set.train_labels, world_size, rank, seed=config.seed, drop_last=True)
    sampler.set_epoch(epoch)
    return sampler


def make_loaders(image_set, config, device=CPU, rank=0, world_size=1, epoch=0, labels_only=False):
    sampler = make_sampler(image_set, config, rank, world_size, epoch)
    return loaders.make_loaders(image_set, config, device, sampler, labels_only)
