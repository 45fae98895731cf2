"""Offline stand-ins for MNIST and CIFAR-10 with the same image shapes, generated from a seed.

Digits are glyphs of the fonts that matplotlib ships, with a random affine map, a smooth elastic warp, and random stroke
weight, contrast, unevenness of ink and paper, and noise. Shapes are ten silhouettes, defined by signed distances, on a
camouflage background; colours are independent of the class.

The test set measures generalisation, not memory: its digits use a font family that is not in the training set, and its
shapes are larger, have other hues and a finer background. Everything else has the same distribution in both.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

# The test set has another family, because the bold or italic of a training font would be too easy.
TRAIN_FONTS = tuple(
    "DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSans-BoldOblique DejaVuSansMono DejaVuSansMono-Bold "
    "DejaVuSansMono-Oblique DejaVuSansMono-BoldOblique DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic "
    "DejaVuSerif-BoldItalic STIXGeneral STIXGeneralBol STIXGeneralItalic STIXGeneralBolIta".split()
)
TEST_FONTS = tuple("cmr10 cmb10 cmss10 cmtt10".split())

_GLYPH = 4 * 28  # side of a master glyph; fine enough for lookups without interpolation
_HEIGHT = 4 * 21  # height of the digit in a master glyph, in proportion to MNIST's
_CHUNK = 500  # images drawn at once; larger chunks would only take more memory


class Look(NamedTuple):
    """The differences between training and test shapes. Ranges are (low, high)."""

    hue: tuple[float, float]  # of the object, within each third of the colour wheel (0..1/3)
    radius: tuple[float, float]  # of the object, in pixels
    grain: tuple[float, float]  # blotches of the background per side


TRAIN_LOOK = Look(hue=(0.0, 0.2), radius=(7.5, 9.5), grain=(2.0, 4.5))
TEST_LOOK = Look(hue=(0.22, 0.31), radius=(9.75, 11.0), grain=(5.0, 7.0))


def synthetic_mnist(train_size: int = 10_000, test_size: int = 2_000, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return training images (N, 28, 28) uint8, light digits on dark; labels (N,) int64; test images and labels."""
    return _splits(_draw_digits, (_glyphs(TRAIN_FONTS), _glyphs(TEST_FONTS)), (train_size, test_size), seed)


def synthetic_cifar10(train_size: int = 10_000, test_size: int = 2_000, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return the same with coloured shapes (N, 32, 32, 3)."""
    return _splits(_draw_shapes, (TRAIN_LOOK, TEST_LOOK), (train_size, test_size), seed)


DRAWN = {"digits": synthetic_mnist, "shapes": synthetic_cifar10}  # layout of a DataSet → generator


def _splits(draw, sources, sizes, seed):
    """Return both splits, balanced and shuffled. Each has its own random stream, whatever the other's size."""
    arrays = []
    for split, (source, size) in enumerate(zip(sources, sizes, strict=True)):
        rng = np.random.default_rng([seed, split])
        labels = rng.permutation(np.arange(size, dtype=np.int64) % 10)
        chunks = (draw(labels[start : start + _CHUNK], source, rng) for start in range(0, size, _CHUNK))
        arrays += [np.concatenate([np.rint(np.clip(chunk, 0, 1) * 255).astype(np.uint8) for chunk in chunks]), labels]
    return tuple(arrays)


def _uniform(rng, low, high, count):
    """Return one value per image as (count, 1, 1), which broadcasts over its pixels."""
    return rng.uniform(low, high, (count, 1, 1)).astype(np.float32)


def _placed_grid(rng, count, side, shift, turn):
    """Return the pixels' x and y, (count, side, side) each, in axes shifted by up to `shift` pixels and rotated by up
    to `turn` radians."""
    axis = np.arange(side, dtype=np.float32) - (side - 1) / 2
    x = axis[None, :] - _uniform(rng, -shift, shift, count)
    y = axis[:, None] - _uniform(rng, -shift, shift, count)
    angle = _uniform(rng, -turn, turn, count)
    return np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x


def _smooth_field(rng, count, cells, side):
    """Return smooth noise (count, side, side) with mean 0 and deviation below 1. cells: its grain, per side."""
    knots = np.arange(np.ceil(np.max(cells)) + 1, dtype=np.float32)
    offset = np.linspace(0, 1, side, dtype=np.float32)[:, None] * cells - knots
    weights = 0.5 + 0.5 * np.cos(np.pi * np.clip(offset, -1, 1))  # a cosine window around each knot
    values = rng.standard_normal((count, len(knots), len(knots)), dtype=np.float32)
    return weights @ values @ weights.swapaxes(-1, -2)


def _noisy(images, rng):
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    return images + _uniform(rng, 0.02, 0.12, len(images)).reshape(-1, *[1] * (images.ndim - 1)) * noise


# --- digits


def _glyphs(fonts):
    """Return master glyphs (fonts, 10, _GLYPH, _GLYPH) float32 in 0..1, centred and of equal height."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    masters = np.empty((len(fonts), 10, _GLYPH, _GLYPH), np.float32)
    for i, name in enumerate(fonts):
        # Every build of Pillow has the basic layout engine; Raqm is optional.
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), 120, layout_engine=ImageFont.Layout.BASIC)
        for digit in range(10):
            page = Image.new("L", (200, 200))
            ImageDraw.Draw(page).text((40, 10), str(digit), fill=255, font=font)
            ink = page.crop(page.getbbox())
            ink = ink.resize((ink.width * _HEIGHT // ink.height, _HEIGHT), Image.Resampling.BOX)
            canvas = Image.new("L", (_GLYPH, _GLYPH))
            canvas.paste(ink, ((_GLYPH - ink.width) // 2, (_GLYPH - _HEIGHT) // 2))
            # The blur makes a ramp of the outline, so that a threshold can set the stroke weight.
            masters[i, digit] = np.asarray(canvas.filter(ImageFilter.GaussianBlur(3))) / 255
    return masters


def _draw_digits(labels, glyphs, rng):
    count = len(labels)
    u, v = _placed_grid(rng, count, 28, shift=2, turn=0.35)
    u = u / _uniform(rng, 0.75, 1.1, count) + 1.4 * _smooth_field(rng, count, 3, 28)
    v = v / _uniform(rng, 0.75, 1.1, count) + 1.4 * _smooth_field(rng, count, 3, 28)
    u += _uniform(rng, -0.3, 0.3, count) * v  # slant
    column, row = (np.clip(np.rint(4 * w + (_GLYPH - 1) / 2), 0, _GLYPH - 1).astype(np.intp) for w in (u, v))
    face = rng.integers(len(glyphs), size=(count, 1, 1))
    ramp = glyphs[face, labels[:, None, None], row, column]
    weight = _uniform(rng, 0.25, 0.5, count)
    ink = np.clip((ramp - weight) * 3 + 0.5, 0, 1)
    ink *= np.clip(0.85 + 0.3 * _smooth_field(rng, count, 5, 28), 0.2, 1.2)
    paper = 0.15 * np.abs(_smooth_field(rng, count, 4, 28))
    return _noisy(paper + _uniform(rng, 0.4, 1.0, count) * ink, rng)


# --- shapes


def _box(u, v, width, height):
    return np.maximum(np.abs(u) - width, np.abs(v) - height)


def _star(u, v):
    # Fold the plane onto half an arm, whose edge is one straight line from the tip at 1.1.
    fifth = 2 * np.pi / 5
    arm = np.abs((np.arctan2(u, -v) / fifth + 0.5) % 1 - 0.5) * fifth
    radius = np.hypot(u, v)
    return 0.39 * (radius * np.cos(arm) - 1.1) + 0.92 * radius * np.sin(arm)


def _checks(u, v, period):
    return -np.cos(u * 2 * np.pi / period) * np.cos(v * 2 * np.pi / period) * period / 6


# Signed distances, negative inside, in the order of the classes. u and v point right and down, in radii of the object.
# All are even in u and rotate symmetrically, so a mirrored shape stays in its class.
_SILHOUETTES = (
    lambda u, v: np.hypot(u, v) - 0.85,
    lambda u, v: _box(u, v, 0.75, 0.75),
    lambda u, v: np.maximum(0.87 * np.abs(u) - 0.5 * v, v) - 0.55,
    _star,
    lambda u, v: np.abs(np.hypot(u, v) - 0.75) - 0.22,
    lambda u, v: np.minimum(_box(u, v, 1.0, 0.3), _box(u, v, 0.3, 1.0)),
    lambda u, v: np.maximum(np.hypot(u, v) - 0.95, 0.75 - np.hypot(u, v + 0.5)),
    lambda u, v: np.maximum(0.8 * np.abs(u) - 0.6 * np.abs(v) - 0.05, np.abs(v) - 0.9),
    lambda u, v: np.maximum(_box(u, v, 0.9, 0.9), _checks(u, 0 * v, 0.72)),  # stripes
    lambda u, v: np.maximum(_box(u, v, 0.9, 0.9), _checks(u, v, 0.72)),
)


def _draw_shapes(labels, look, rng):
    count, mask = len(labels), _silhouettes(labels, look, rng)[..., None]
    lit = 1 + 0.15 * _smooth_field(rng, count, 3, 32)[..., None]
    hue = _uniform(rng, *look.hue, count) + np.floor(_uniform(rng, 0, 3, count)) / 3
    paint = lit * _colours(hue, _uniform(rng, 0.55, 1.0, count))
    return _noisy(mask * paint + (1 - mask) * _background(count, look, rng), rng)


def _silhouettes(labels, look, rng):
    """Return the share of each pixel that the object covers, (N, 32, 32) in 0..1."""
    count = len(labels)
    u, v = _placed_grid(rng, count, 32, shift=3, turn=0.4)
    radius = _uniform(rng, *look.radius, count)
    u, v = u / radius, v / radius
    distance = np.empty_like(u)
    for label, silhouette in enumerate(_SILHOUETTES):
        chosen = labels == label
        distance[chosen] = silhouette(u[chosen], v[chosen])
    return np.clip(0.5 - distance * radius, 0, 1)


def _background(count, look, rng):
    """Return camouflage (N, 32, 32, 3): shaded blotches of one colour on another."""
    grain = _uniform(rng, *look.grain, count)
    blotch = np.clip(2 * _smooth_field(rng, count, grain, 32) + 0.5, 0, 1)[..., None]
    colour, ground = (_colours(_uniform(rng, 0, 1, count), _uniform(rng, 0.1, 0.75, count)) for _ in range(2))
    shade = 1 + 0.2 * _smooth_field(rng, count, grain, 32)[..., None]
    return shade * (colour * blotch + ground * (1 - blotch))


def _colours(hue, value):
    """Return RGB (N, 1, 1, 3) of hues and values (N, 1, 1), with a saturation of 0.6."""
    distance = np.abs((6 * hue[..., None] - np.array([0, 2, 4], np.float32) + 3) % 6 - 3)
    return value[..., None] * (1 - 0.6 * np.clip(distance - 1, 0, 1))
