"""The synthetic data sets: layout, determinism, difference of training and test set, and difficulty."""

import colorsys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import ImageFont

from common.data import synthetic
from common.data.synthetic import TEST_FONTS, TEST_LOOK, TRAIN_FONTS, TRAIN_LOOK, synthetic_cifar10, synthetic_mnist
from common.settings.datasets import DATASETS

SHAPES = DATASETS["synthetic-cifar10"].classes
FONTS = TRAIN_FONTS + TEST_FONTS


@pytest.fixture(scope="module")
def digits():
    return synthetic_mnist(2000, 500)


@pytest.fixture(scope="module")
def shapes():
    return synthetic_cifar10(2000, 500)


@pytest.fixture(scope="module")
def masters():
    return synthetic._glyphs(FONTS)


def nearest_class_mean(train, train_labels, test, test_labels) -> float:
    """Accuracy of a nearest-class-mean classifier."""
    train, test = (part.reshape(len(part), -1).astype(float) for part in (train, test))
    means = np.stack([train[train_labels == label].mean(axis=0) for label in range(10)])
    distances = ((test[:, None] - means) ** 2).sum(axis=2)
    return float(np.mean(distances.argmin(axis=1) == test_labels))


@pytest.mark.parametrize("kind, shape", [("digits", (28, 28)), ("shapes", (32, 32, 3))])
def test_data_sets_are_balanced_shuffled_and_varied(kind, shape, request):
    images, labels, test_images, test_labels = request.getfixturevalue(kind)
    assert images.shape == (2000, *shape) and test_images.shape == (500, *shape)
    assert images.dtype == test_images.dtype == np.uint8 and labels.dtype == test_labels.dtype == np.int64
    assert set(np.bincount(labels)) == {200} and set(np.bincount(test_labels)) == {50}
    assert not np.array_equal(labels[:10], labels[10:20])
    assert images.min() == 0 and images.max() == 255 and 30 < images.mean() < 130 and images.std() > 30
    assert len({image.tobytes() for part in (images, test_images) for image in part}) == 2500


@pytest.mark.parametrize("make", [synthetic_mnist, synthetic_cifar10])
def test_data_depends_on_the_seed_and_the_test_set_not_on_the_training_size(make):
    drawn, same, other, longer = (make(*sizes) for sizes in ((30, 20, 3), (30, 20, 3), (30, 20, 4), (40, 20, 3)))
    assert all((first == second).all() for first, second in zip(drawn, same, strict=True))
    assert all((first != second).any() for first, second in zip(drawn, other, strict=True))
    assert all((first == second).all() for first, second in zip(drawn[2:], longer[2:], strict=True))


# ---- training and test set


def families(fonts) -> set[str]:
    """Names of the font families, with all of Computer Modern as one."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = {ImageFont.truetype(str(folder / f"{font}.ttf")).getname()[0] for font in fonts}
    return {"Computer Modern" if name.lower().startswith("cm") else name for name in names}


def test_no_font_family_is_in_both_sets():
    assert families(TEST_FONTS) == {"Computer Modern"}
    assert len(families(TRAIN_FONTS)) >= 3 and not families(TRAIN_FONTS) & families(TEST_FONTS)


def test_every_font_has_its_own_centred_digits_that_resemble_the_others(masters):
    assert len({glyph.tobytes() for font in masters for glyph in font}) == 10 * len(masters)
    classes = np.arange(10)
    for index, font in enumerate(FONTS):
        others = np.concatenate(np.delete(masters, index, axis=0))
        accuracy = nearest_class_mean(others, np.tile(classes, len(FONTS) - 1), masters[index], classes)
        assert accuracy >= 0.5, f"{font} draws something else: {accuracy:.0%} recognised"
    for glyph in np.concatenate(masters):
        rows, columns = (np.flatnonzero(glyph.any(axis=axis)) for axis in (1, 0))
        assert all(abs(ink[0] + ink[-1] - (synthetic._GLYPH - 1)) <= 6 for ink in (rows, columns))
        assert len(rows) >= synthetic._HEIGHT


def test_every_font_is_used():
    glyphs = np.zeros((4, 10, synthetic._GLYPH, synthetic._GLYPH), np.float32)
    glyphs[-1] = 1
    images = synthetic._draw_digits(np.arange(400) % 10, glyphs, np.random.default_rng(0))
    assert 0.15 < np.mean(images.mean(axis=(1, 2)) > 0.25) < 0.35


def test_each_split_uses_its_own_fonts_or_look(masters, monkeypatch):
    seen = []
    for draw in ("_draw_digits", "_draw_shapes"):
        monkeypatch.setattr(synthetic, draw, lambda labels, source, rng: [seen.append(source) or np.zeros((2, 2))])
    synthetic_mnist(20, 10)
    synthetic_cifar10(20, 10)
    np.testing.assert_array_equal(np.concatenate(seen[:2]), masters)
    assert len(seen[0]) == len(TRAIN_FONTS) and seen[2:] == [TRAIN_LOOK, TEST_LOOK]


def test_looks_are_disjoint_and_so_are_hues_in_the_images(shapes):
    for train, test in zip(TRAIN_LOOK, TEST_LOOK, strict=True):
        assert train[0] < train[1] < test[0] < test[1]
    for images, labels, own, other in ((*shapes[:2], TRAIN_LOOK, TEST_LOOK), (*shapes[2:], TEST_LOOK, TRAIN_LOOK)):
        # The centre of the image is always inside a disc. Noise shifts the hue a little.
        colours = images[labels == SHAPES.index("disc"), 14:18, 14:18].mean(axis=(1, 2)) / 255
        hues = np.array([colorsys.rgb_to_hsv(*colour)[0] % (1 / 3) for colour in colours])
        shares = [np.mean((hues > look.hue[0]) & (hues < look.hue[1])) for look in (own, other)]
        assert shares[0] > 0.8 and shares[1] < 0.1


# ---- classes


def test_a_mirrored_shape_stays_in_its_class():
    for label, name in enumerate(SHAPES):
        masks = synthetic._silhouettes(np.full(4000, label), TRAIN_LOOK, np.random.default_rng(0))
        assert masks.min() == 0 and masks.max() == 1
        mean = masks.mean(axis=0)
        np.testing.assert_allclose(mean, mean[:, ::-1], atol=0.05, err_msg=name)


def test_pixels_predict_the_class_in_part_and_colours_do_not(digits, shapes):
    assert 0.2 < nearest_class_mean(*digits) < 0.9 and 0.2 < nearest_class_mean(*shapes) < 0.9
    colours = [images.mean(axis=(1, 2)) for images in shapes[::2]]
    assert nearest_class_mean(colours[0], shapes[1], colours[1], shapes[3]) < 0.2
    known = nearest_class_mean(digits[0][:1500], digits[1][:1500], digits[0][1500:], digits[1][1500:])
    assert nearest_class_mean(*digits) < known  # unseen fonts are harder than unseen images of known fonts
