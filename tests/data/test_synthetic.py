"""The synthetic data sets: layout, determinism, held-out test sets, and how hard they are."""

import colorsys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import ImageFont

from common.data import synthetic
from common.data.synthetic import (
    CIFAR10_CLASSES,
    MNIST_CLASSES,
    TEST_FONTS,
    TEST_LOOK,
    TRAIN_FONTS,
    TRAIN_LOOK,
    Splits,
    synthetic_cifar10,
    synthetic_mnist,
)

MAKERS = pytest.mark.parametrize("make", [synthetic_mnist, synthetic_cifar10])


@pytest.fixture(scope="module")
def digits() -> Splits:
    return synthetic_mnist(2000, 500)


@pytest.fixture(scope="module")
def shapes() -> Splits:
    return synthetic_cifar10(2000, 500)


@pytest.fixture(params=["digits", "shapes"])
def splits(request: pytest.FixtureRequest) -> Splits:
    return request.getfixturevalue(request.param)


def nearest_class_mean(train, train_labels, test, test_labels) -> float:
    """Accuracy of the simplest classifier: the class whose mean lies nearest."""
    train, test = (part.reshape(len(part), -1).astype(float) for part in (train, test))
    means = np.stack([train[train_labels == label].mean(axis=0) for label in range(10)])
    distances = ((test[:, None] - means) ** 2).sum(axis=2)
    return float(np.mean(distances.argmin(axis=1) == test_labels))


@pytest.mark.parametrize(("make", "shape"), [(synthetic_mnist, (28, 28)), (synthetic_cifar10, (32, 32, 3))])
def test_shapes_and_dtypes(make, shape):
    data = make(37, 11)
    assert data.train_images.shape == (37, *shape) and data.test_images.shape == (11, *shape)
    assert data.train_labels.shape == (37,) and data.test_labels.shape == (11,)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64


@pytest.mark.parametrize("names", [MNIST_CLASSES, CIFAR10_CLASSES])
def test_there_are_ten_class_names(names):
    assert isinstance(names, tuple) and len(set(names)) == 10
    assert all(isinstance(name, str) for name in names)


def test_images_use_the_value_range_without_drowning_in_its_ends(splits):
    assert splits.train_images.min() == 0 and splits.train_images.max() == 255
    assert 30 < splits.train_images.mean() < 130 and splits.train_images.std() > 30


@MAKERS
def test_a_seed_fixes_every_byte(make):
    for first, second in zip(make(30, 20, seed=3), make(30, 20, seed=3), strict=True):
        np.testing.assert_array_equal(first, second)


@MAKERS
def test_another_seed_changes_images_and_labels(make):
    for first, second in zip(make(30, 20, seed=3), make(30, 20, seed=4), strict=True):
        assert (first != second).any()


@MAKERS
def test_the_test_set_does_not_depend_on_the_training_size(make):
    small, large = make(10, 20), make(40, 20)
    np.testing.assert_array_equal(small.test_images, large.test_images)
    np.testing.assert_array_equal(small.test_labels, large.test_labels)


@MAKERS
def test_classes_are_balanced_and_shuffled(make):
    data = make(1003, 27)
    for labels in (data.train_labels, data.test_labels):
        counts = np.bincount(labels, minlength=10)
        assert len(counts) == 10 and counts.max() - counts.min() <= 1
    assert not np.array_equal(data.train_labels[:10], data.train_labels[10:20])


@MAKERS
@pytest.mark.parametrize(("sizes", "name"), [((9, 20), "train_size"), ((20, 0), "test_size")])
def test_too_small_a_set_is_refused_by_name_and_number(make, sizes, name):
    with pytest.raises(ValueError, match=f"{name}.* found {min(sizes)}$"):
        make(*sizes)


def test_images_do_not_repeat(splits):
    images = np.concatenate([splits.train_images, splits.test_images])
    assert len({image.tobytes() for image in images}) == len(images)


# --- held out -------------------------------------------------------------------------------------


def families(fonts: tuple[str, ...]) -> set[str]:
    """Type families as the font files name themselves; Computer Modern is one, whatever the cut."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = {ImageFont.truetype(str(folder / f"{font}.ttf")).getname()[0] for font in fonts}
    return {"Computer Modern" if name.lower().startswith("cm") else name for name in names}


def test_no_type_family_is_in_both_sets():
    assert families(TEST_FONTS) == {"Computer Modern"}
    assert len(families(TRAIN_FONTS)) >= 3
    assert not families(TRAIN_FONTS) & families(TEST_FONTS)


def test_no_font_is_a_copy_of_another():
    masters = synthetic._glyphs(TRAIN_FONTS + TEST_FONTS)
    assert len({glyph.tobytes() for font in masters for glyph in font}) == 10 * len(masters)


def test_every_font_draws_digits_that_look_like_those_of_the_others():
    fonts = TRAIN_FONTS + TEST_FONTS
    masters, digits = synthetic._glyphs(fonts), np.arange(10)
    for index, font in enumerate(fonts):
        others = np.concatenate(np.delete(masters, index, axis=0))
        labels = np.tile(digits, len(fonts) - 1)
        accuracy = nearest_class_mean(others, labels, masters[index], digits)
        assert accuracy >= 0.5, f"{font} draws something else: {accuracy:.0%} recognised"


def test_every_master_glyph_is_centred_and_of_full_height():
    for glyph in np.concatenate(synthetic._glyphs(TRAIN_FONTS + TEST_FONTS)):
        rows, columns = (np.flatnonzero(glyph.any(axis=axis)) for axis in (1, 0))
        for ink in (rows, columns):
            assert abs(ink[0] + ink[-1] - (synthetic._GLYPH - 1)) <= 6
        assert len(rows) >= synthetic._HEIGHT


def test_every_font_is_used():
    glyphs = np.zeros((4, 10, synthetic._GLYPH, synthetic._GLYPH), np.float32)
    glyphs[-1] = 1
    images = synthetic._draw_digits(np.arange(400) % 10, glyphs, np.random.default_rng(0))
    assert 0.15 < np.mean(images.mean(axis=(1, 2)) > 0.25) < 0.35


def sources_by_split(make, draw: str, monkeypatch) -> list:
    """What the training and the test images are really drawn from."""
    real, seen = getattr(synthetic, draw), []

    def spy(labels, source, rng):
        seen.append(source)
        return real(labels, source, rng)

    monkeypatch.setattr(synthetic, draw, spy)
    make(20, 10)
    assert len(seen) == 2
    return seen


def test_each_set_of_digits_is_drawn_with_its_own_fonts(monkeypatch):
    train, test = sources_by_split(synthetic_mnist, "_draw_digits", monkeypatch)
    np.testing.assert_array_equal(train, synthetic._glyphs(TRAIN_FONTS))
    np.testing.assert_array_equal(test, synthetic._glyphs(TEST_FONTS))


def test_each_set_of_shapes_is_drawn_with_its_own_look(monkeypatch):
    looks = sources_by_split(synthetic_cifar10, "_draw_shapes", monkeypatch)
    assert looks == [TRAIN_LOOK, TEST_LOOK]


@pytest.mark.parametrize("parameter", ["hue", "radius", "grain"])
def test_the_looks_are_disjoint(parameter):
    train, test = getattr(TRAIN_LOOK, parameter), getattr(TEST_LOOK, parameter)
    assert train[0] < train[1] and test[0] < test[1]
    assert train[1] < test[0] or test[1] < train[0]


def test_the_hues_seen_in_the_images_are_disjoint(shapes):
    # The middle of the image is always inside a disc; noise shifts a hue a little.
    def hues(images, labels):
        discs = images[labels == CIFAR10_CLASSES.index("disc"), 14:18, 14:18]
        colours = discs.mean(axis=(1, 2)) / 255
        return np.array([colorsys.rgb_to_hsv(*colour)[0] % (1 / 3) for colour in colours])

    def inside(hues, look):
        return np.mean((hues > look.hue[0]) & (hues < look.hue[1]))

    train = hues(shapes.train_images, shapes.train_labels)
    test = hues(shapes.test_images, shapes.test_labels)
    assert inside(train, TRAIN_LOOK) > 0.8 and inside(test, TEST_LOOK) > 0.8
    assert inside(train, TEST_LOOK) < 0.1 and inside(test, TRAIN_LOOK) < 0.1


# --- what the classes depend on -------------------------------------------------------------------


@pytest.mark.parametrize("label", range(10), ids=CIFAR10_CLASSES)
def test_a_mirrored_shape_stays_in_its_class(label):
    rng = np.random.default_rng(0)
    masks = synthetic._silhouettes(np.full(4000, label), TRAIN_LOOK, rng)
    assert masks.min() == 0 and masks.max() == 1
    mean = masks.mean(axis=0)
    np.testing.assert_allclose(mean, mean[:, ::-1], atol=0.05)


def test_pixels_give_the_digit_away_only_in_part(digits):
    assert 0.2 < nearest_class_mean(*digits) < 0.9


def test_pixels_give_the_shape_away_only_in_part(shapes):
    assert 0.2 < nearest_class_mean(*shapes) < 0.9


def test_colour_does_not_give_the_shape_away(shapes):
    mean_colours = [images.mean(axis=(1, 2)) for images in (shapes.train_images, shapes.test_images)]
    accuracy = nearest_class_mean(mean_colours[0], shapes.train_labels, mean_colours[1], shapes.test_labels)
    assert accuracy < 0.2


def test_unseen_fonts_are_harder_than_unseen_images_of_known_fonts(digits):
    images, labels = digits.train_images, digits.train_labels
    known = nearest_class_mean(images[:1500], labels[:1500], images[1500:], labels[1500:])
    assert nearest_class_mean(*digits) < known
