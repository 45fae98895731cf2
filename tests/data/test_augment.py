"""Augmentation of batches equals torchvision's of single images: pixel for pixel, and in its random distribution."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from common.data.augment import Affine, CropAndMirror, image_transform, uniform


def random_images(count, channels, size=None):
    size = size or (32 if channels == 3 else 28)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, size, size, channels), np.uint8))


def as_pil(image):
    return Image.fromarray(image.squeeze(2).numpy())


@pytest.mark.parametrize("size", [1, 2, 3, 32])
@pytest.mark.parametrize("crop_padding, pixels, mode", [("zeros", 4, "constant"), ("reflect", 2, "reflect")])
def test_crop_and_mirror_equal_torchvisions(crop_padding, pixels, mode, size):
    images, index = random_images(50, 3, size), torch.randperm(50)
    augmentation = CropAndMirror(images, crop_padding)
    mirrored, top, left = augmentation.draw(1, index)
    for i, image in enumerate(augmentation.take(index, mirrored, top, left)):
        padded = functional.pad(as_pil(images[index[i]]), pixels, padding_mode=mode)
        expected = functional.crop(padded, int(top[i]), int(left[i]), size, size)
        assert np.array_equal(image, functional.hflip(expected) if mirrored[i] else expected)


def test_affine_equals_torchvisions():
    images, index = random_images(200, 1), torch.arange(200)
    augmentation = Affine(images)
    # extreme values and some between them; Pillow treats exactly 0 degrees differently
    choices = enumerate(([-10, -3.3, 0.1, 10], [-3, 0, 2, 3], [-3, 0, 3], [0.9, 1, 1.1]))
    angle, x, y, scale = (
        torch.from_numpy(np.random.default_rng(seed).choice(values, 200)).double() for seed, values in choices
    )
    augmented = augmentation.take(index, augmentation.matrix(angle * math.pi / 180, x, y, scale))
    for i in index:
        shift = [int(x[i]), int(y[i])]
        expected = functional.affine(as_pil(images[i]), angle[i].item(), shift, scale[i].item(), [0.0, 0.0])
        assert np.array_equal(augmented[i].squeeze(2), expected)


def test_crops_have_torchvisions_distribution():
    images, index = random_images(4000, 3), torch.arange(4000)  # torchvision's has equal chances for each place
    for padding, places in (("zeros", 9), ("reflect", 5)):
        for drawn, values in zip(CropAndMirror(images, padding).draw(1, index), (2, places, places), strict=True):
            assert (drawn.bincount(minlength=values) / 4000).tolist() == pytest.approx([1 / values] * values, abs=0.04)


def test_images_beyond_two_gibibytes_are_rotated_too():
    augmentation = Affine(random_images(1, 1))
    matrix, size = augmentation.draw(3, torch.tensor([0]))[0], len(augmentation.pixels)
    expected, number = augmentation.take(torch.tensor([0]), matrix), 2**31 // size + 1
    pixels = torch.empty((number + 1) * size, dtype=torch.uint8)  # takes no memory where it is not written
    pixels[number * size :] = augmentation.pixels
    augmentation.pixels = pixels
    assert torch.equal(augmentation.take(torch.tensor([number]), matrix), expected)


def test_affine_maps_have_torchvisions_distribution(monkeypatch):
    count, affine, ours = 4000, Affine(random_images(4000, 1)), []
    monkeypatch.setattr(affine, "matrix", lambda angle, *drawn: ours.extend((angle.rad2deg(), *drawn)))
    affine.draw(1, torch.arange(count))
    random = image_transform((1, 28, 28), True)
    limits = random.degrees, random.translate, random.scale, None, [28, 28]
    theirs = [(angle, *shift, scale) for angle, shift, scale, _ in (random.get_params(*limits) for _ in range(count))]
    for drawn, values in zip(ours, torch.tensor(theirs, dtype=torch.float64).T, strict=True):
        tolerance = 0.05 * (values.max() - values.min()).item()
        for quantile in (0.0, 0.1, 0.5, 0.9, 1.0):
            assert drawn.quantile(quantile).item() == pytest.approx(values.quantile(quantile).item(), abs=tolerance)


def test_random_numbers_depend_only_on_key_and_image_and_are_uncorrelated():
    index, some = torch.arange(20_000), torch.tensor([19_999, 3, 70])
    numbers, others = uniform(-(2**63), index, 4), uniform(2**63 - 1, index, 4)
    assert numbers.min() >= 0 and numbers.max() < 1 and len(numbers.unique()) == 80_000
    assert torch.equal(uniform(-(2**63), some, 4), numbers[:, some])
    series = torch.cat([numbers, others, numbers.roll(1, 1)])  # the same image, another key, the next image
    assert (torch.corrcoef(series) - torch.eye(12)).abs().max() < 5 / 20_000**0.5
    assert (numbers.mean(1) - 0.5).abs().max() < 5 * (1 / 12 / 20_000) ** 0.5
