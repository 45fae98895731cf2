"""Helpers shared by the tests: images, models and their training on one device."""

import gzip
from argparse import Namespace
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from common.data import loaders
from common.data.archives import md5_of
from common.data.image_set import ImageSet, _image_set
from common.engine.checkpoint import Checkpoints
from common.engine.loop import fit
from common.engine.place import ParallelContext, Place
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import Network, build_model
from common.settings.datasets import DATASETS, Archive, DataSet
from common.settings.schedules import build_schedule

CPU = torch.device("cpu")
PAIR = """from torch import nn


class Pair(nn.Flatten):
    def forward(self, images):
        return super().forward(images), 1


class Scaled(nn.Linear):
    def forward(self, pair):
        return super().forward(pair[0]) * pair[1]
"""  # a file's two parts between which a tuple passes, not a tensor


def make_image_set(size=60, channels=1, random=False, **values) -> ImageSet:
    """Return images whose pixels equal their index, to recognise them in batches, or random ones."""
    shape = (size, 28, 28) if channels == 1 else (size, 32, 32, 3)
    images = np.arange(size, dtype=np.uint8).reshape(size, *[1] * (len(shape) - 1)) * np.ones(shape, np.uint8)
    if random:
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    labels, norm = np.arange(size) % 10, {"mean": (0.0,) * channels, "std": (1.0,) * channels, **values}
    return ImageSet("test", images, labels, images, labels, tuple("0123456789"), **norm)


def idx(array) -> bytes:
    """Encode an array as IDX (Y. LeCun): two zero bytes, type (8: unsigned byte), dimensions, their sizes, data."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def small_record(name, arrays, archives, places=()) -> DataSet:
    """Return the record of a data set with other images and archives."""
    sha256 = _image_set(name, arrays, DATASETS[name].classes).sha256
    return replace(DATASETS[name], places=places, archives=tuple(archives), sha256=sha256)


def small_mnist(train, test, places=()) -> tuple[DataSet, dict[str, bytes]]:
    """Return the record of an MNIST with as many images, and the contents of its archives."""
    archives, contents, arrays, random = [], {}, [], np.random.default_rng(0)
    for split, size in (("train", train), ("t10k", test)):
        images, labels = random.integers(0, 256, (size, 28, 28), np.uint8), np.arange(size) % 10
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            packed = contents[f"{name}.gz"] = gzip.compress(idx(array))
            archives.append(Archive(f"{name}.gz", md5_of(packed), {f"MNIST/raw/{name}": md5_of(idx(array))}))
            arrays.append(array)
    return small_record("mnist", arrays, archives, places), contents


def make_context(model, devices=(CPU,), sampler=None, **values) -> ParallelContext:
    """Return a ParallelContext. values: its fields, or attributes of its place."""
    place, fields = Place(devices), ParallelContext.__dataclass_fields__
    for name in values.keys() - fields.keys():
        setattr(place, name, values.pop(name))
    sampler, model.scaler = sampler or DistributedSampler(range(1), 1, 0), getattr(model, "scaler", Network.scaler)
    defaults = {"method": "single", "place": place, "sampler": sampler, "network": model, "model": model}
    return ParallelContext(**{**defaults, **values})


def make_step(model, config):
    loss_function = build_loss(config, model)

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


def fitted(config, model=None, image_set=None, earlier=(), after_epoch=lambda _: None):
    """Train on one device and return the value of fit(). The default model is linear."""
    model, image_set = model or nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), image_set or make_image_set()
    sampler, optimizer = make_sampler(image_set, config), build_optimizer(model.parameters(), config)
    both = loaders.make_loaders(image_set, config, CPU, sampler)
    schedule = build_schedule(optimizer, config, len(both[0]))
    context, train_step = make_context(model, sampler=sampler), make_step(model, config)
    return fit(context, train_step, optimizer, schedule, both, config, earlier, after_epoch)


def assert_same(value, other):
    """Check that two checkpoints are equal, except for their records, which hold times."""
    assert type(value) is type(other)
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        for name in value.keys() - {"records"}:
            assert_same(value[name], other[name])
    elif isinstance(value, (list, tuple)):
        assert len(value) == len(other)
        for left, right in zip(value, other, strict=True):
            assert_same(left, right)
    elif torch.is_tensor(value):
        assert torch.equal(value, other)
    else:
        assert value == other


def make_checkpoints(config, steps_per_epoch=1, content=()):
    """Return the Checkpoints of a training of an mlp."""
    model = build_model(replace(config, model="mlp"), make_image_set())
    optimizer = build_optimizer(model.parameters(), config)
    schedule = build_schedule(optimizer, config, steps_per_epoch)
    return Checkpoints(make_context(model), optimizer, schedule, config, Namespace(), dict(content))
