"""The loaders, the cache of decoded data sets, and the records of the real data sets."""

import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torchvision import datasets, transforms

from common.data import fitting
from common.data import image_set as data
from common.data.augment import batch_transform, image_transform, peak_bytes
from common.data.fitting import default_loader
from common.data.image_set import PARTS, load_image_set
from common.data.loaders import EVALUATION_BATCH, FEWEST
from common.errors import MACHINE, USAGE, SuiteError
from common.settings.config import LOADERS
from common.settings.datasets import DATASETS
from tests.fixtures import make_config
from tests.pretended_gpus import pretended_gpus
from tests.trainings import CPU, make_image_set, make_loaders

LOADER = pytest.mark.parametrize("loader", LOADERS)
CHANNELS = pytest.mark.parametrize("channels", [1, 3])
AUGMENTED = pytest.mark.parametrize("channels, crop_padding", [(1, "zeros"), (3, "zeros"), (3, "reflect")])
AUGMENT = pytest.mark.parametrize("augment", [True, False])
PLAIN = {"batch_size": 12, "augment": False}
NORMS = {1: {"mean": (0.1,), "std": (0.5,)}, 3: {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}}


def indices(loader):
    """The indices of the images (modulo 256) in each batch."""
    return [(images[:, 0, 0, 0] * 255).round().int().tolist() for images, _ in loader]


def batches(size, rank=0, world_size=1, epoch=1, **values):
    config = make_config(**{**PLAIN, **values})
    return indices(make_loaders(make_image_set(size), config, CPU, rank, world_size, epoch)[0])


@LOADER
@pytest.mark.parametrize("size, world_size", [(60, 2), (60, 3), (59, 3)])
def test_ranks_split_the_batches_of_one_device(size, world_size, loader):
    epochs = []
    for epoch in (1, 2):
        ranks = [batches(size, rank, world_size, epoch, loader=loader) for rank in range(world_size)]
        together = [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)]
        alone = batches(size, epoch=epoch, loader=loader)
        assert together[:-1] == [sorted(batch) for batch in alone[: len(together) - 1]]
        assert {len(sum(rank, [])) for rank in ranks} == {size // world_size}
        assert len(set(sum(together, []))) == size // world_size * world_size
        epochs.append(ranks)
    assert epochs[0] != epochs[1]


def test_workers_load_no_images_beyond_max_steps():
    workers = partial(batches, 60, 0, 2, loader="workers")
    assert workers(max_steps=2) == workers()[:2]
    config = make_config(**PLAIN, loader="workers", max_steps=2)
    assert len(make_loaders(make_image_set(60), config, CPU)[0]) == 2


@pytest.mark.parametrize("images, ranks", [(59, 1), (59, 3), (1001, 2), (2000, 3), (145, 2)])
def test_every_test_image_is_evaluated_once_in_equally_many_batches_on_every_rank(images, ranks):
    # With 73 and 72 images in batches of 8, ranks would have ten and nine; those that communicate in each would hang.
    image_set, config = make_image_set(images), make_config(batch_size=12)
    seen = [indices(make_loaders(image_set, config, CPU, rank, ranks)[1]) for rank in range(ranks)]
    assert len({len(rank) for rank in seen}) == 1
    largest = max(len(batch) for rank in seen for batch in rank)
    assert 0 <= largest - max(24 // ranks, FEWEST) <= 2
    assert sorted(sum(sum(seen, []), [])) == sorted(number % 256 for number in range(images))


def test_an_evaluation_takes_no_more_memory_of_a_cpu_than_a_step():
    def largest(**values):
        _, test_loader = make_loaders(make_image_set(1300), make_config(**{"batch_size": 96, **values}))
        return max(len(images) for images, _ in test_loader)

    assert (largest(), largest(accumulate=4), largest(accumulate=96)) == (192, 48, FEWEST)
    assert (largest(batch_size=400), largest(batch_size=640)) == (EVALUATION_BATCH, 640)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"batch_size": 5}, "--batch-size .*found 5 for 2 processes"),
        ({"num_workers": 5}, "--num-workers .*found 5 for 2 processes"),
        ({"crop_padding": "reflect"}, "--crop-padding is for colour images, .*; these are grey; leave"),
    ],
)
def test_settings_that_do_not_fit_the_ranks_or_the_images_are_refused(values, words):
    with pytest.raises(SuiteError, match=words) as caught:
        make_loaders(make_image_set(), make_config(**{"batch_size": 12, **values}), CPU, 0, 2)
    assert caught.value.exit_code == USAGE


@CHANNELS
@LOADER
def test_augmentation_depends_on_epoch_and_seed_but_not_on_ranks_and_workers(loader, channels):
    image_set = make_image_set(24, channels, random=True)

    def images(epoch, rank=0, world_size=1, workers=0, seed=1):
        config = make_config(batch_size=12, num_workers=workers, seed=seed, loader=loader)
        train_loader, _ = make_loaders(image_set, config, CPU, rank, world_size, epoch)
        return {image.numpy().tobytes() for batch, _ in train_loader for image in batch}

    assert images(1) == images(1, workers=0 if loader == "resident" else 2) == images(1, 0, 2) | images(1, 1, 2)
    assert len(images(1)) == 24
    for others in (images(2), images(1, seed=2)):  # one of the 162 crops and mirror images may occur twice
        assert len(images(1) & others) < 4


@CHANNELS
def test_a_rank_augments_only_its_own_images_on_its_device(channels):
    image_set, config = make_image_set(60, channels, random=True), make_config(batch_size=12, loader="resident")

    def images(device, rank=0, world_size=1):
        loader, _ = make_loaders(image_set, config, device, rank, world_size, epoch=3)
        copies.clear()
        return [batch.cpu() for batch, _ in loader]

    copies = []
    alone = images(CPU)
    with pretended_gpus("first") as gpus:
        copies = gpus.copies
        for rank in (0, 1):
            for batch, expected in zip(images(torch.device("cuda", 0), rank, 2), alone, strict=True):
                torch.testing.assert_close(batch, expected[rank::2])
            assert [size for _, target, size in copies if target == "cuda:0"] == [30 * 8]  # the indices


@CHANNELS
def test_both_loaders_give_the_same_batches(channels):
    found = []
    for loader in ("workers", "resident"):
        config = make_config(batch_size=16, augment=False, loader=loader)
        image_set = make_image_set(60, channels, random=True, **NORMS[channels])
        train_loader, _ = make_loaders(image_set, config, CPU, 1, 2, epoch=3)
        assert len(train_loader) == 4
        found.append(list(train_loader))
    for (images, labels), (other, other_labels) in zip(*found, strict=True):
        torch.testing.assert_close(images, other)
        assert torch.equal(labels, other_labels) and other.is_contiguous(memory_format=torch.channels_last)


@AUGMENTED
@AUGMENT
def test_batches_of_workers_equal_torchvisions_transforms_bit_for_bit(channels, crop_padding, augment):
    size, image_set = 60, make_image_set(60, channels, random=True, **NORMS[channels])
    config = make_config(augment=augment, crop_padding=crop_padding, loader="workers", batch_size=12, seed=5)
    augmentation = image_transform(image_set.image_shape, augment, crop_padding)
    normalize = transforms.Normalize(image_set.mean, image_set.std)
    transform = transforms.Compose([augmentation, transforms.ToTensor(), normalize])
    expected, keys = [], [3, 59, 3 * size + 3]  # two of the first epoch, one of the fourth
    for key in keys:
        torch.manual_seed(hash((5, key)) % 2**32)
        expected.append(transform(Image.fromarray(image_set.train_images[key % size])))
    images, labels = make_loaders(image_set, config, CPU)[0].dataset.__getitems__(keys)
    assert torch.equal(images, torch.stack(expected)) and images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == image_set.train_labels[[3, 59, 3]].tolist() and labels.dtype == torch.int64
    assert torch.equal(images[0], images[2]) != augment


def test_workers_are_nice_and_out_of_reach_of_a_terminals_signals():
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loader, _ = make_loaders(make_image_set(60), make_config(loader="workers", num_workers=2, batch_size=12), CPU)
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    assert [os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in iterator._workers] == [min(19, own + 10)] * 2
    assert all(os.getpgid(worker.pid) == worker.pid for worker in iterator._workers)


@AUGMENT
@AUGMENTED
def test_a_data_set_larger_than_the_free_memory_is_refused(channels, crop_padding, augment, monkeypatch):
    image_set = make_image_set(60, channels)
    config = make_config(loader="resident", augment=augment, crop_padding=crop_padding)
    images = torch.from_numpy(image_set.train_images).view(60, *image_set.image_shape[1:], channels)
    needed = peak_bytes(images.shape, augment, crop_padding)
    held = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in vars(batch_transform(images, augment, crop_padding)).values()
        if isinstance(value, torch.Tensor) and value.dtype == torch.uint8
    }
    temporary = (channels == 3) + 1 if augment else 0  # the original images, and the mirrored ones
    assert needed == sum(held.values()) + temporary * images.nbytes
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed))
    make_loaders(image_set, config, CPU)
    needed -= 1
    with pytest.raises(SuiteError, match=r"^the training images .* MiB needed, .* MiB free; type --loader w") as caught:
        make_loaders(image_set, config, CPU)
    assert caught.value.exit_code == MACHINE


def test_test_images_larger_than_the_free_memory_are_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1))
    with pytest.raises(SuiteError, match="^the test images do not fit .* MiB free; give a smaller --image-size"):
        make_loaders(make_image_set(60), make_config(loader="workers"), CPU)


# ---- the cache; tests/faults/test_bad_data.py tests damaged files


def test_train_size_limits_only_the_training_images(data_root):
    config = {"dataset": "synthetic-mnist", "data_root": str(data_root)}
    image_set = load_image_set(make_config(**config, train_size=100))
    assert len(image_set.train_images) == len(image_set.train_labels) == 100 and len(image_set.test_images) == 2000
    with pytest.raises(SuiteError, match="10000 training images"):
        load_image_set(make_config(**config, train_size=10**6))


@pytest.mark.parametrize("size", [30, 64])
def test_synthetic_images_are_enlarged_by_nearest_neighbours(size, data_root):
    config = {"dataset": "synthetic-cifar10", "data_root": str(data_root), "train_size": 10}
    own, larger = load_image_set(make_config(**config)), load_image_set(make_config(**config, image_size=size))
    nearest = [32 * row // size for row in range(size)]
    assert larger.image_shape == (3, size, size) and np.array_equal(larger.train_labels, own.train_labels)
    assert np.array_equal(larger.train_images[3], own.train_images[3][nearest][:, nearest])
    assert np.array_equal(larger.test_images[7], own.test_images[7][nearest][:, nearest])


@pytest.mark.parametrize("name", ["synthetic-mnist", "mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_decoded_data_sets_are_cached(name, request, tmp_path, monkeypatch):
    layout, made = DATASETS[name].layout, []
    makers = data.synthetic.DRAWN if name == "synthetic-mnist" else data.LAYOUTS
    make = makers[layout]
    monkeypatch.setitem(makers, layout, lambda *contents: made.append(1) or make(*contents))
    for directory in ("MNIST", "cifar-10-batches-py") if makers is data.LAYOUTS else ():
        (tmp_path / directory).symlink_to(request.getfixturevalue("real_data") / directory)
    config = make_config(dataset=name, data_root=str(tmp_path), loader="resident")
    first, second = load_image_set(config), load_image_set(config)
    assert len(made) == 1 and second.classes == first.classes == DATASETS[name].classes
    assert (*first.train_images.shape, 1)[:4] == DATASETS[name].shape
    for part in PARTS:
        array, cached = getattr(first, part), getattr(second, part)
        assert np.array_equal(array, cached) and array.dtype == cached.dtype
        assert array.flags.c_contiguous and cached.flags.writeable


MIB = 2**20


@pytest.mark.parametrize(
    "values, processes, least",  # MiB: 8 times the decoded images for each process
    [
        ({"dataset": "mnist"}, 1, 8 * 60_000 * 28 * 28 / MIB),
        ({"dataset": "cifar10"}, 3, 3 * 8 * 50_000 * 3072 / MIB),
        ({"dataset": "cifar10", "train_size": 1024}, 2, 48),
        ({"dataset": "synthetic-cifar10", "train_size": 10**6}, 1, 8 * 10_000 * 3072 / MIB),
        ({"dataset": "synthetic-cifar10", "image_size": 64}, 2, 2 * 8 * 10_000 * 3 * 64 * 64 / MIB),
        ({"dataset": "folder:images", "image_size": 128}, 1, 3 * 8 * 3 * 128 * 128 / MIB),
    ],
)
def test_the_default_loader_is_resident_if_the_images_fit(values, processes, least, monkeypatch):
    monkeypatch.setattr(fitting, "count_training_images", lambda root: 3)
    config = make_config(**values)
    found = [default_loader(config, processes, free * MIB) for free in (least, 0.99 * least)]
    assert found == ["resident", "workers"]
    limits = (replace(config, memory_limit=int(free * MIB / processes) + 1) for free in (least, 0.99 * least))
    assert [default_loader(limited, processes, 1e12) for limited in limits] == found


MNISTS = {"mnist": datasets.MNIST, "fashion-mnist": datasets.FashionMNIST}


@pytest.mark.parametrize("name", ["cifar10", *MNISTS])
def test_records_of_real_data_sets_match_torchvisions_and_the_data(name, real_data):
    known, places = DATASETS[name], [f"{place}/" for place in DATASETS[name].places]
    archives, members = [(archive.name, archive.md5) for archive in known.archives], known.files.items()
    if theirs := MNISTS.get(name):
        assert (archives, places, known.classes) == (theirs.resources, theirs.mirrors, tuple(theirs.classes))
    else:
        theirs = datasets.CIFAR10(real_data, train=False)
        assert (archives, known.classes) == ([(theirs.filename, theirs.tgz_md5)], tuple(theirs.classes))
        assert {file.split("/")[1]: md5 for file, md5 in members} == dict(theirs.train_list + theirs.test_list)
        assert places[0] + theirs.filename == theirs.url
    image_set = load_image_set(make_config(dataset=name, data_root=str(real_data)))
    mean, std = data._statistics(image_set.train_images)
    assert image_set.mean == pytest.approx(mean, abs=1e-4) and image_set.std == pytest.approx(std, abs=1e-4)
    mean, std = data._statistics(image_set.test_images[:100])
    pixels = image_set.test_images[:100].reshape(-1, len(mean)) / 255
    assert mean == pytest.approx(pixels.mean(0)) and std == pytest.approx(pixels.std(0))
