"""The same random augmentation for one image (with torchvision) and for a whole batch (with tensor operations).

Colour images: random crop of the padded image and random horizontal flip (He et al., "Deep Residual Learning", 2016,
section 4.2). Grey images: rotation up to 10 degrees, shift up to 10%, scale 0.9 to 1.1, nearest neighbour.

The classes for batches have two methods. draw(key, index) returns random parameters for the images at `index` (M,): a
list of tensors whose first dimension is M. take(index, *parameters) returns augmented images (B, H, W, C) uint8.
"""

import math

import numpy as np
import torch

CROP_PADDING = {"zeros": (4, "constant"), "reflect": (2, "reflect")}  # pixels, torchvision's padding_mode
DEGREES, SHIFT, SCALE = 10, 0.1, 0.1


def image_transform(shape: tuple[int, int, int], augment: bool, crop_padding: str = "zeros"):
    """Return the torchvision transform that augments one PIL image of a shape (C, H, W)."""
    from torchvision import transforms

    channels, *size = shape
    if not augment:
        return transforms.Compose([])
    if channels == 3:
        pixels, mode = CROP_PADDING[crop_padding]
        crop = transforms.RandomCrop(size, padding=pixels, padding_mode=mode)
        return transforms.Compose([crop, transforms.RandomHorizontalFlip()])
    return transforms.RandomAffine(DEGREES, translate=(SHIFT, SHIFT), scale=(1 - SCALE, 1 + SCALE))


def batch_transform(images: torch.Tensor, augment: bool, crop_padding: str = "zeros"):
    """Return an object that augments batches of `images` (N, H, W, C) uint8, on their device."""
    if not augment:
        return Unchanged(images)
    return CropAndMirror(images, crop_padding) if images.shape[3] == 3 else Affine(images)


def peak_bytes(shape: tuple[int, int, int, int], augment: bool, crop_padding: str = "zeros") -> int:
    """Return the peak memory of batch_transform() in bytes for images of shape (N, H, W, C), including the images."""
    count, height, width, channels = shape
    plain = count * height * width * channels
    if not augment:
        return plain
    padding = CROP_PADDING[crop_padding][0] if channels == 3 else _affine_padding(height, width)
    padded = count * (height + 2 * padding) * (width + 2 * padding) * channels
    return 2 * plain + 2 * padded if channels == 3 else plain + padded


def uniform(key: int, index: torch.Tensor, count: int) -> torch.Tensor:
    """Return (count, M) float64 in [0, 1) that depend only on a 64-bit key and each image's index (M,).

    This is SplitMix64, whose n-th number is a hash of n (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom
    Number Generators", 2014). int64 wraps around.
    """
    numbers = torch.arange(1, count + 1, device=index.device)[:, None] + count * index  # (count, M), all different
    bits = numbers * (0x9E3779B97F4A7C15 - 2**64) + key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shift_right(bits, shift)) * (factor - 2**64)
    return _shift_right(bits ^ _shift_right(bits, 31), 11).double() * 2.0**-53


def _shift_right(bits, count):
    """Logical shift; torch's >> is arithmetic."""
    return (bits >> count) & ((1 << 64 - count) - 1)


class Unchanged:
    def __init__(self, images: torch.Tensor):
        self.images = images

    def draw(self, _key: int, _index: torch.Tensor) -> list[torch.Tensor]:
        return []

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self.images[index]


class CropAndMirror:
    """Holds the padded images and their mirror images, and views both as sliding windows: a batch is one gather."""

    def __init__(self, images: torch.Tensor, crop_padding: str = "zeros"):
        self.padding, mode = CROP_PADDING[crop_padding]
        count, self.height, self.width, channels = images.shape
        inner = slice(self.padding, -self.padding)
        both = images.new_zeros(2, count, self.height + 2 * self.padding, self.width + 2 * self.padding, channels)
        both[0, :, inner, inner] = images
        both[1, :, inner, inner] = images.flip(2)
        if mode == "reflect":
            _reflect(both, 2, self.padding)
            _reflect(both, 3, self.padding)
        both = both.flatten(3)  # (2, N, H + 2 P, (W + 2 P) C)
        # (2, N, 2 P + 1, 2 P + 1, H, W C): [mirrored, image, top, left]
        self.windows = both.unfold(2, self.height, 1).unfold(3, self.width * channels, channels)

    def draw(self, key: int, index: torch.Tensor) -> list[torch.Tensor]:
        mirrored, top, left = uniform(key, index, 3)
        return [(mirrored * 2).long(), *((edge * (2 * self.padding + 1)).long() for edge in (top, left))]

    def take(self, index: torch.Tensor, mirrored: torch.Tensor, top: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        left = torch.where(mirrored == 1, 2 * self.padding - left, left)  # the same window of the mirror image
        return self.windows[mirrored, index, top, left].view(len(index), self.height, self.width, -1)


def _reflect(images, dimension, padding):
    """Fill the padding along a dimension, in place, by reflection about the outermost pixels of the image.

    Like torchvision, it reflects an image that is smaller than the padding repeatedly.
    """
    size = images.shape[dimension]
    sources = np.pad(np.arange(padding, size - padding), padding, mode="reflect")
    for target in (*range(padding), *range(size - padding, size)):
        images.select(dimension, target).copy_(images.select(dimension, int(sources[target])))


class Affine:
    """RandomAffine in fixed-point arithmetic, like Pillow's. The padding covers every possible source pixel, so that no
    lookup needs a bounds check."""

    BITS = 16  # fractional bits

    def __init__(self, images: torch.Tensor):
        _, self.height, self.width, _ = images.shape
        self.padding = _affine_padding(self.height, self.width)
        padded = torch.nn.functional.pad(images, (0, 0, *[self.padding] * 4))  # (N, H + 2 P, W + 2 P, 1)
        self.pixels, self.padded_size = padded.view(-1), padded.shape[1:3]
        self.rows = torch.arange(self.height, dtype=torch.int32, device=images.device)
        self.columns = torch.arange(self.width, dtype=torch.int32, device=images.device)

    def draw(self, key: int, index: torch.Tensor) -> list[torch.Tensor]:
        angle, horizontal, vertical, scale = uniform(key, index, 4) * 2 - 1
        shift_x, shift_y = (horizontal * SHIFT * self.width).round(), (vertical * SHIFT * self.height).round()
        return [self.matrix(angle * math.radians(DEGREES), shift_x, shift_y, 1 + SCALE * scale)]

    def matrix(self, angle, shift_x, shift_y, scale) -> torch.Tensor:
        """Return (M, 6) int32: the fixed-point map from a pixel (x, y) of the result to its source in the padded image.

        All arguments are (M,) float64; angle in radians, shifts in pixels. The map is the inverse of a rotation and
        scaling about the centre followed by a shift, computed like in torchvision.transforms.functional.
        """
        cosine, sine = angle.cos() / scale, angle.sin() / scale
        centre_x, centre_y = self.width / 2, self.height / 2
        x = centre_x - cosine * (centre_x + shift_x - 0.5) - sine * (centre_y + shift_y - 0.5) + self.padding
        y = centre_y + sine * (centre_x + shift_x - 0.5) - cosine * (centre_y + shift_y - 0.5) + self.padding
        return torch.stack((cosine, sine, x, -sine, cosine, y), 1).mul(1 << self.BITS).add(0.5).floor().int()

    def take(self, index: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        x_by_x, x_by_y, x, y_by_x, y_by_y, y = matrix.T[:, :, None]  # (B, 1) each
        x = (x_by_x * self.columns)[:, None, :] + (x_by_y * self.rows + x)[:, :, None]  # (B, H, W)
        y = (y_by_x * self.columns)[:, None, :] + (y_by_y * self.rows + y)[:, :, None]
        height, width = self.padded_size
        kind = torch.int32 if len(self.pixels) <= 2**31 else torch.int64
        first_pixel = (index.to(kind) * (height * width))[:, None, None]
        source = (y >> self.BITS).mul_(width).add_(x >> self.BITS).to(kind).add_(first_pixel)
        return self.pixels.index_select(0, source.view(-1)).view(*source.shape, 1)


def _affine_padding(height, width):
    """Return how far outside the image, in pixels, a source pixel can be at the maximum shift, scale and rotation."""
    farthest = (0.5 + SHIFT) * max(height, width) + 1
    rotated = math.cos(math.radians(DEGREES)) + math.sin(math.radians(DEGREES))
    return math.ceil(farthest * rotated / (1 - SCALE) - min(height, width) / 2)
