"""Loaders deal out every image once; files are checked before they are used; a download happens once."""

from types import SimpleNamespace

import numpy as np
import pytest
from torchvision import datasets

from common.data import image_set as data
from common.data.image_set import load_image_set
from common.data.loaders import EVALUATION_BATCH
from common.errors import DATA, USAGE, SuiteError
from common.settings.config import LOADERS
from tests.fixtures import CPU, make_config, make_image_set, make_loaders


def batches(image_set, config, rank, world_size, epoch):
    train_loader, _ = make_loaders(image_set, config, CPU, rank, world_size, epoch)
    return [(images[:, 0, 0, 0] * 255).round().int().tolist() for images, _ in train_loader]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shards_are_disjoint_cover_the_set_and_change_with_the_epoch(world_size, loader):
    config = make_config(batch_size=12, augment=False, loader=loader)
    epochs = []
    for epoch in (1, 2):
        shards = [sum(batches(make_image_set(60), config, rank, world_size, epoch), []) for rank in range(world_size)]
        assert sorted(sum(shards, [])) == list(range(60))
        epochs.append(shards)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_batch_k_of_all_ranks_together_is_batch_k_of_one_device(world_size, loader):
    config = make_config(batch_size=12, augment=False, loader=loader)
    alone = batches(make_image_set(60), config, 0, 1, epoch=1)
    ranks = [batches(make_image_set(60), config, rank, world_size, epoch=1) for rank in range(world_size)]
    assert [sorted(sum(parts, ())) for parts in zip(*[map(tuple, rank) for rank in ranks], strict=True)] == [
        sorted(batch) for batch in alone
    ]


def test_images_that_were_just_decoded_lie_in_memory_as_those_that_were_kept(monkeypatch, tmp_path):
    channels_first = np.arange(2 * 3 * 32 * 32, dtype=np.uint8).reshape(2, 3, 32, 32)
    split = SimpleNamespace(data=channels_first.transpose(0, 2, 3, 1), targets=[3, 4], classes=["cat", "dog"])
    monkeypatch.setattr("torchvision.datasets.CIFAR10", lambda root, train: split)
    images, labels, *_ = data._decode("cifar10", tmp_path, {})
    assert images.flags.c_contiguous and (images == split.data).all() and labels.tolist() == [3, 4]


def test_workers_load_nothing_that_an_epoch_of_max_steps_does_not_ask_for():
    image_set, config = make_image_set(60), make_config(batch_size=12, augment=False, loader="workers")
    short = make_config(batch_size=12, augment=False, loader="workers", max_steps=2)
    assert batches(image_set, short, 0, 2, epoch=1) == batches(image_set, config, 0, 2, epoch=1)[:2]
    assert len(make_loaders(image_set, short, CPU)[0]) == 2


@pytest.mark.parametrize("loader", LOADERS)
def test_a_set_that_does_not_divide_gives_every_rank_as_many_images_and_none_twice(loader):
    config = make_config(batch_size=12, augment=False, loader=loader)
    shards = [sum(batches(make_image_set(59), config, rank, 3, 1), []) for rank in range(3)]
    assert [len(shard) for shard in shards] == [19, 19, 19]
    assert len(set(sum(shards, []))) == 57


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_test_image_is_evaluated_once(world_size):
    seen = []
    for rank in range(world_size):
        _, test_loader = make_loaders(make_image_set(59), make_config(batch_size=12), CPU, rank, world_size)
        seen += [int(value) for images, _ in test_loader for value in (images[:, 0, 0, 0] * 255).round()]
    assert sorted(seen) == list(range(59))


@pytest.mark.parametrize("images, ranks", [(1001, 2), (1500, 2), (2000, 3)])
def test_all_ranks_evaluate_as_many_batches(images, ranks):
    # 501 and 500 images would be two batches and one: ranks that exchange something in each would wait for ever
    loaders = [
        make_loaders(make_image_set(images), make_config(batch_size=12), CPU, rank, ranks)[1] for rank in range(ranks)
    ]
    sizes = [[len(labels) for _, labels in loader] for loader in loaders]
    assert len({len(rank) for rank in sizes}) == 1 and sum(map(sum, sizes)) == images
    assert max(map(max, sizes)) <= EVALUATION_BATCH


@pytest.mark.parametrize("flag", ["batch_size", "num_workers"])
def test_totals_that_do_not_divide_are_errors(flag):
    config = make_config(**{"batch_size": 12, "num_workers": 2, flag: 5})
    with pytest.raises(SuiteError, match=f"--{flag.replace('_', '-')} .*found 5 for 2 processes") as caught:
        make_loaders(make_image_set(), config, CPU, 0, 2)
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("loader", LOADERS)
def test_an_image_is_augmented_alike_in_every_place_and_differently_in_every_epoch_and_for_every_seed(loader, channels):
    image_set = make_image_set(24, channels)
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)

    def images(epoch, rank=0, world_size=1, workers=0, seed=1):
        config = make_config(batch_size=12, num_workers=workers, seed=seed, loader=loader)
        train_loader, _ = make_loaders(image_set, config, CPU, rank, world_size, epoch)
        return {image.numpy().tobytes() for batch, _ in train_loader for image in batch}

    assert images(1) == images(1, workers=0 if loader == "resident" else 2) == images(1, 0, 2) | images(1, 1, 2)
    assert len(images(1)) == 24
    for others in (images(2), images(1, seed=2)):  # now and then one of 162 crops and mirror images is drawn twice
        assert len(images(1) & others) < 4


def test_train_size_cuts_the_training_images_only(data_root):
    config = make_config(dataset="synthetic-mnist", data_root=str(data_root), train_size=100)
    image_set = load_image_set(config)
    assert len(image_set.train_images) == len(image_set.train_labels) == 100
    assert len(image_set.test_images) == 2000
    with pytest.raises(SuiteError, match="10000 training images") as caught:
        load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root), train_size=10**6))
    assert caught.value.exit_code == DATA


def test_a_synthetic_set_is_cached_and_a_damaged_cache_is_made_anew(data_root, monkeypatch):
    config = make_config(dataset="synthetic-mnist", data_root=str(data_root))
    first = load_image_set(config)
    calls = []
    generate, classes = data.SYNTHETIC["synthetic-mnist"]
    monkeypatch.setitem(data.SYNTHETIC, "synthetic-mnist", (lambda: calls.append(1) or generate(), classes))
    assert np.array_equal(load_image_set(config).train_images, first.train_images)
    assert not calls
    (cache,) = (data_root / "synthetic").glob("synthetic-mnist-*.npz")
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 1
    cache.write_bytes(content)
    assert np.array_equal(load_image_set(config).train_images, first.train_images)
    assert calls


def test_what_is_known_of_the_real_data_sets_is_true(real_data):
    known = {
        "cifar10": datasets.CIFAR10(real_data).classes,
        "mnist": datasets.MNIST.classes,
        "fashion-mnist": datasets.FashionMNIST.classes,
    }
    assert {name: tuple(classes) for name, classes in known.items()} == data.CLASSES
    for name, (mean, std) in data.STATISTICS.items():
        images = load_image_set(make_config(dataset=name, data_root=str(real_data))).train_images
        grey, pixels = np.arange(256) / 255, images.reshape(-1, len(mean))
        for channel in range(len(mean)):
            share = np.bincount(pixels[:, channel], minlength=256) / len(pixels)
            assert (share * grey).sum() == pytest.approx(mean[channel], abs=1e-4)
            assert (share * (grey - mean[channel]) ** 2).sum() ** 0.5 == pytest.approx(std[channel], abs=1e-4)
