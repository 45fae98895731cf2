"""The resident loader gives the batches that the workers give: the same images, augmented alike in distribution."""

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional

from common.data import image_set as data
from common.data import loaders
from common.data.augment import Affine, CropAndMirror, batch_transform, image_transform, peak_bytes, uniform
from common.data.image_set import load_image_set
from common.errors import MACHINE, USAGE, SuiteError
from tests.fixtures import CPU, make_config, make_image_set, make_loaders
from tests.pretended_gpus import pretended_gpus


def random_images(count, channels, seed=0):
    size = 32 if channels == 3 else 28
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8))


def as_pil(image):
    return Image.fromarray(image.squeeze(2).numpy())


@pytest.mark.parametrize("crop_padding, pixels, mode", [("zeros", 4, "constant"), ("reflect", 2, "reflect")])
def test_crop_and_mirror_are_torchvisions_pixel_for_pixel(crop_padding, pixels, mode):
    images = random_images(50, 3)
    augmentation = CropAndMirror(images, crop_padding)
    index = torch.randperm(50)
    mirrored, top, left = augmentation.draw(1, index)
    for place, image in enumerate(augmentation.take(index, mirrored, top, left)):
        edges = int(top[place]), int(left[place])
        padded = functional.pad(as_pil(images[index[place]]), pixels, padding_mode=mode)
        expected = functional.crop(padded, *edges, 32, 32)
        assert np.array_equal(image, functional.hflip(expected) if mirrored[place] else expected)


def test_affine_is_torchvisions_pixel_for_pixel():
    images = random_images(200, 1)
    augmentation = Affine(images)
    # the corners of what can be drawn, and points between them; at exactly 0 degrees Pillow computes another way
    planted = [-10, -3.3, 0.1, 10], [-3, 0, 2, 3], [-3, 0, 3], [0.9, 1, 1.1]
    angle, x, y, scale = (
        torch.from_numpy(np.random.default_rng(seed).choice(values, 200)).double()
        for seed, values in enumerate(planted)
    )
    index = torch.arange(200)
    augmented = augmentation.take(index, augmentation.matrix(angle * math.pi / 180, x, y, scale))
    for of in index:
        shift = [int(x[of]), int(y[of])]
        expected = functional.affine(as_pil(images[of]), angle[of].item(), shift, scale[of].item(), [0.0, 0.0])
        assert np.array_equal(augmented[of].squeeze(2), expected)


def test_what_is_drawn_has_torchvisions_distribution(monkeypatch):
    count = 4000
    index = torch.arange(count)
    mirrored, top, left = CropAndMirror(random_images(count, 3)).draw(1, index)
    assert mirrored.double().mean().item() == pytest.approx(0.5, abs=0.05)
    assert len(CropAndMirror(random_images(count, 3), "reflect").draw(1, index)[1].bincount()) == 5
    crop = transforms.RandomCrop(32, padding=4)
    for drawn, place in ((top, 0), (left, 1)):
        theirs = torch.tensor([crop.get_params(torch.empty(3, 40, 40), (32, 32))[place] for _ in range(count)])
        assert (drawn.bincount(minlength=9) - theirs.bincount(minlength=9)).abs().max() < 0.04 * count
        assert len(drawn.bincount()) == 9
    affine = Affine(random_images(count, 1))
    ours = {}
    monkeypatch.setattr(affine, "matrix", lambda *drawn: ours.update(zip("axys", drawn, strict=True)))
    affine.draw(1, index)
    ours["a"] = ours["a"].rad2deg()
    random = image_transform((1, 28, 28), True)
    theirs = [random.get_params(random.degrees, random.translate, random.scale, None, [28, 28]) for _ in range(count)]
    theirs = {
        "a": [angle for angle, *_ in theirs],
        "x": [shift[0] for _, shift, *_ in theirs],
        "y": [shift[1] for _, shift, *_ in theirs],
        "s": [scale for _, _, scale, _ in theirs],
    }
    for name, values in theirs.items():
        values = torch.tensor(values, dtype=torch.float64)
        for share in (0.0, 0.1, 0.5, 0.9, 1.0):  # quantiles
            assert ours[name].quantile(share).item() == pytest.approx(
                values.quantile(share).item(), abs=0.05 * (values.max() - values.min()).item()
            )


def test_numbers_depend_on_key_and_image_alone_and_look_independent():
    index = torch.arange(20_000)
    numbers = uniform(-(2**63), index, 4)
    assert numbers.min() >= 0 and numbers.max() < 1
    some = torch.tensor([19_999, 3, 70])
    assert torch.equal(uniform(-(2**63), some, 4), numbers[:, some])
    others = uniform(2**63 - 1, index, 4)
    series = torch.cat([numbers, others, numbers.roll(1, 1)])  # beside each other, another key, the next image
    assert (torch.corrcoef(series) - torch.eye(12)).abs().max() < 5 / 20_000**0.5
    assert (numbers.mean(1) - 0.5).abs().max() < 5 * (1 / 12 / 20_000) ** 0.5
    assert len(numbers.unique()) == 80_000


@pytest.mark.parametrize("channels", [1, 3])
def test_a_rank_draws_for_its_own_images_alone_on_its_device_what_one_rank_would(channels):
    image_set, config = make_image_set(60, channels), make_config(batch_size=12, loader="resident")
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)

    def batches(device, rank=0, world_size=1):
        loader, _ = make_loaders(image_set, config, device, rank, world_size, epoch=3)
        copies.clear()
        return [images.cpu() for images, _ in loader]

    copies = []
    alone = batches(CPU)
    with pretended_gpus("first") as gpus:
        copies = gpus.copies
        for rank in (0, 1):
            for images, expected in zip(batches(torch.device("cuda", 0), rank, 2), alone, strict=True):
                torch.testing.assert_close(images, expected[rank::2])
            assert [copy.bytes for copy in copies if copy.target == "cuda:0"] == [30 * 8]  # which images


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_the_workers_batches_image_by_image(channels):
    image_set = make_image_set(60, channels)
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)
    batches = []
    for loader in ("workers", "resident"):
        config = make_config(batch_size=16, augment=False, loader=loader)
        train_loader, _ = make_loaders(image_set, config, CPU, 1, 2, epoch=3)
        assert len(train_loader) == 4
        batches.append(list(train_loader))
    for (images, labels), (other, other_labels) in zip(*batches, strict=True):
        torch.testing.assert_close(images, other)
        assert torch.equal(labels, other_labels)
        assert other.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
def test_test_images_are_normalised_as_torchvision_does_it(channels):
    mean, std = (0.1, 0.2, 0.3)[:channels], (0.5, 0.6, 0.7)[:channels]
    image_set = data.replace(make_image_set(channels=channels), mean=mean, std=std)
    image_set.test_images[:] = np.random.default_rng(0).integers(0, 256, image_set.test_images.shape)
    _, test_loader = make_loaders(image_set, make_config(batch_size=12), CPU)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    expected = torch.stack([transform(Image.fromarray(image)) for image in image_set.test_images])
    torch.testing.assert_close(torch.cat([images for images, _ in test_loader]), expected)


@pytest.mark.parametrize("nice", [10, 0])
def test_workers_give_way_to_the_training(nice):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loader, _ = make_loaders(make_image_set(60), make_config(num_workers=2, batch_size=12, worker_nice=nice), CPU)
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    assert [os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in iterator._workers] == [min(19, own + nice)] * 2


@pytest.mark.parametrize("channels, crop_padding", [(1, "zeros"), (3, "zeros"), (3, "reflect")])
@pytest.mark.parametrize("augment", [True, False])
def test_a_workers_batch_is_torchvisions_image_by_image_bit_for_bit(channels, crop_padding, augment):
    mean, std, size = (0.1, 0.2, 0.3)[:channels], (0.5, 0.6, 0.7)[:channels], 60
    image_set = data.replace(make_image_set(size, channels), mean=mean, std=std)
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)
    config = make_config(augment=augment, crop_padding=crop_padding, num_workers=0, batch_size=12, seed=5)
    loader, _ = make_loaders(image_set, config, CPU)
    augmentation = image_transform(image_set.image_shape, augment, crop_padding)
    transform = transforms.Compose([augmentation, transforms.ToTensor(), transforms.Normalize(mean, std)])
    expected, keys = [], [3, 59, 3 * size + 3]  # of the first epoch, and of the fourth
    for key in keys:
        torch.manual_seed(hash((5, key)) % 2**32)
        expected.append(transform(Image.fromarray(image_set.train_images[key % size])))
    images, labels = loader.dataset.__getitems__(keys)
    assert torch.equal(images, torch.stack(expected)) and images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == image_set.train_labels[[3, 59, 3]].tolist() and labels.dtype == torch.int64
    assert torch.equal(images[0], images[2]) != augment


@pytest.mark.parametrize("loader", ["workers", "resident"])
def test_grey_images_are_not_cropped(loader):
    with pytest.raises(SuiteError, match="--crop-padding is for colour images, .*; these are grey; leave") as caught:
        make_loaders(make_image_set(60), make_config(loader=loader, crop_padding="reflect"), CPU)
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize("channels, crop_padding", [(1, "zeros"), (3, "zeros"), (3, "reflect")])
@pytest.mark.parametrize("augment", [True, False])
def test_a_set_that_is_larger_than_the_free_memory_is_refused_with_both_sizes(
    channels, crop_padding, augment, monkeypatch
):
    image_set = make_image_set(60, channels)
    config = make_config(loader="resident", augment=augment, crop_padding=crop_padding)
    needed = peak_bytes((60, *image_set.image_shape[1:], channels), augment, crop_padding)
    transform = batch_transform(random_images(60, channels), augment, crop_padding)
    held = {
        id(value.untyped_storage()): value.untyped_storage().nbytes()
        for value in vars(transform).values()
        if isinstance(value, torch.Tensor) and value.dtype == torch.uint8
    }
    on_the_way = (channels == 3) + 1 if augment else 0  # the images as they came, and the mirrored ones
    assert needed == sum(held.values()) + on_the_way * random_images(60, channels).nbytes
    monkeypatch.setattr(loaders, "free_memory", lambda device: needed)
    make_loaders(image_set, config, CPU)
    monkeypatch.setattr(loaders, "free_memory", lambda device: needed - 1)
    with pytest.raises(SuiteError, match=r"memory of cpu; .* MiB needed, .* MiB free; type --loader workers") as caught:
        make_loaders(image_set, config, CPU)
    assert caught.value.exit_code == MACHINE


@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_a_decoded_set_is_found_again_and_made_anew_when_it_is_damaged(name, real_data, tmp_path, monkeypatch):
    for directory in ("MNIST", "cifar-10-batches-py"):
        (tmp_path / directory).symlink_to(real_data / directory)
    config = make_config(dataset=name, data_root=str(tmp_path), loader="resident")
    first = load_image_set(config)
    slow = data._decode
    decoded = []
    monkeypatch.setattr(data, "_decode", lambda *arguments: decoded.append(1) or slow(*arguments))
    second = load_image_set(config)
    assert not decoded
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        array, kept_array = getattr(first, part), getattr(second, part)
        assert np.array_equal(array, kept_array) and array.dtype == kept_array.dtype
    assert second.classes == first.classes
    kept = tmp_path / "decoded" / f"{name}-test_images.npy"
    kept.write_bytes(kept.read_bytes()[:-1])
    assert np.array_equal(load_image_set(config).test_images, first.test_images) and len(decoded) == 1
    labels = tmp_path / "decoded" / f"{name}-train_labels.npy"
    np.save(labels, np.r_[np.zeros(1000, int), first.train_labels[1000:]])
    assert np.array_equal(load_image_set(config).train_labels, first.train_labels) and len(decoded) == 2
