"""The synthetic data sets: layout, determinism, held-out test sets, and how hard they are."""

import colorsys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import ImageFont

from common.data import synthetic
from common.data.synthetic import TEST_FONTS, TEST_LOOK, TRAIN_FONTS, TRAIN_LOOK, synthetic_cifar10, synthetic_mnist
from common.settings.datasets import DATASETS

MAKERS = pytest.mark.parametrize("make", [synthetic_mnist, synthetic_cifar10])
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
    """Accuracy of the simplest classifier: the class whose mean lies nearest."""
    train, test = (part.reshape(len(part), -1).astype(float) for part in (train, test))
    means = np.stack([train[train_labels == label].mean(axis=0) for label in range(10)])
    distances = ((test[:, None] - means) ** 2).sum(axis=2)
    return float(np.mean(distances.argmin(axis=1) == test_labels))


@pytest.mark.parametrize("name, shape", [("synthetic-mnist", (28, 28)), ("synthetic-cifar10", (32, 32, 3))])
def test_sets_are_of_their_twins_layout_balanced_and_shuffled(name, shape):
    images, labels, test_images, test_labels = synthetic.DRAWN[DATASETS[name].layout](1003, 27)
    assert images.shape == (1003, *shape) and test_images.shape == (27, *shape)
    assert images.dtype == test_images.dtype == np.uint8 and labels.dtype == test_labels.dtype == np.int64
    for some in (labels, test_labels):
        counts = np.bincount(some, minlength=10)
        assert len(counts) == 10 and counts.max() - counts.min() <= 1
    assert not np.array_equal(labels[:10], labels[10:20])
    assert len(set(DATASETS[name].classes)) == 10


@pytest.mark.parametrize("kind", ["digits", "shapes"])
def test_images_use_the_value_range_without_drowning_in_its_ends_and_do_not_repeat(kind, request):
    splits = request.getfixturevalue(kind)
    assert splits.train_images.min() == 0 and splits.train_images.max() == 255
    assert 30 < splits.train_images.mean() < 130 and splits.train_images.std() > 30
    images = np.concatenate([splits.train_images, splits.test_images])
    assert len({image.tobytes() for image in images}) == len(images)


@MAKERS
def test_a_seed_fixes_every_byte_and_the_test_set_does_not_depend_on_the_training_size(make):
    drawn, same, other, longer = (make(*sizes) for sizes in ((30, 20, 3), (30, 20, 3), (30, 20, 4), (40, 20, 3)))
    assert all((first == second).all() for first, second in zip(drawn, same, strict=True))
    assert all((first != second).any() for first, second in zip(drawn, other, strict=True))
    assert all((first == second).all() for first, second in zip(drawn[2:], longer[2:], strict=True))


@MAKERS
@pytest.mark.parametrize("sizes, name", [((9, 20), "train_size"), ((20, 0), "test_size")])
def test_too_small_a_set_is_refused_by_name_and_number(make, sizes, name):
    with pytest.raises(ValueError, match=f"{name}.* found {min(sizes)}$"):
        make(*sizes)


# ---- held out


def families(fonts) -> set[str]:
    """Type families as the font files name themselves; Computer Modern is one, whatever the cut."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = {ImageFont.truetype(str(folder / f"{font}.ttf")).getname()[0] for font in fonts}
    return {"Computer Modern" if name.lower().startswith("cm") else name for name in names}


def test_no_type_family_is_in_both_sets():
    assert families(TEST_FONTS) == {"Computer Modern"}
    assert len(families(TRAIN_FONTS)) >= 3 and not families(TRAIN_FONTS) & families(TEST_FONTS)


def test_every_font_draws_digits_of_its_own_that_look_like_those_of_the_others(masters):
    assert len({glyph.tobytes() for font in masters for glyph in font}) == 10 * len(masters)
    digits = np.arange(10)
    for index, font in enumerate(FONTS):
        others = np.concatenate(np.delete(masters, index, axis=0))
        accuracy = nearest_class_mean(others, np.tile(digits, len(FONTS) - 1), masters[index], digits)
        assert accuracy >= 0.5, f"{font} draws something else: {accuracy:.0%} recognised"


def test_every_master_glyph_is_centred_and_of_full_height(masters):
    for glyph in np.concatenate(masters):
        rows, columns = (np.flatnonzero(glyph.any(axis=axis)) for axis in (1, 0))
        assert all(abs(ink[0] + ink[-1] - (synthetic._GLYPH - 1)) <= 6 for ink in (rows, columns))
        assert len(rows) >= synthetic._HEIGHT


def test_every_font_is_used():
    glyphs = np.zeros((4, 10, synthetic._GLYPH, synthetic._GLYPH), np.float32)
    glyphs[-1] = 1
    images = synthetic._draw_digits(np.arange(400) % 10, glyphs, np.random.default_rng(0))
    assert 0.15 < np.mean(images.mean(axis=(1, 2)) > 0.25) < 0.35


@pytest.mark.parametrize("make, draw", [(synthetic_mnist, "_draw_digits"), (synthetic_cifar10, "_draw_shapes")])
def test_each_split_is_drawn_from_its_own_fonts_or_look(make, draw, masters, monkeypatch):
    real, seen = getattr(synthetic, draw), []
    monkeypatch.setattr(synthetic, draw, lambda labels, source, rng: seen.append(source) or real(labels, source, rng))
    make(20, 10)
    if make is synthetic_cifar10:
        assert seen == [TRAIN_LOOK, TEST_LOOK]
    else:
        assert [len(source) for source in seen] == [len(TRAIN_FONTS), len(TEST_FONTS)]
        np.testing.assert_array_equal(np.concatenate(seen), masters)


@pytest.mark.parametrize("parameter", ["hue", "radius", "grain"])
def test_the_looks_are_disjoint(parameter):
    train, test = getattr(TRAIN_LOOK, parameter), getattr(TEST_LOOK, parameter)
    assert train[0] < train[1] and test[0] < test[1]
    assert train[1] < test[0] or test[1] < train[0]


def test_the_hues_seen_in_the_images_are_disjoint(shapes):
    # The middle of the image is always inside a disc; noise shifts a hue a little.
    def share(images, labels, look):
        colours = images[labels == SHAPES.index("disc"), 14:18, 14:18].mean(axis=(1, 2)) / 255
        hues = np.array([colorsys.rgb_to_hsv(*colour)[0] % (1 / 3) for colour in colours])
        return np.mean((hues > look.hue[0]) & (hues < look.hue[1]))

    train, test = (shapes.train_images, shapes.train_labels), (shapes.test_images, shapes.test_labels)
    assert share(*train, TRAIN_LOOK) > 0.8 and share(*test, TEST_LOOK) > 0.8
    assert share(*train, TEST_LOOK) < 0.1 and share(*test, TRAIN_LOOK) < 0.1


# ---- what the classes depend on


@pytest.mark.parametrize("label", range(10), ids=SHAPES)
def test_a_mirrored_shape_stays_in_its_class(label):
    masks = synthetic._silhouettes(np.full(4000, label), TRAIN_LOOK, np.random.default_rng(0))
    assert masks.min() == 0 and masks.max() == 1
    mean = masks.mean(axis=0)
    np.testing.assert_allclose(mean, mean[:, ::-1], atol=0.05)


def test_pixels_give_the_class_away_only_in_part_and_colours_not_at_all(digits, shapes):
    assert 0.2 < nearest_class_mean(*digits) < 0.9 and 0.2 < nearest_class_mean(*shapes) < 0.9
    colours = [images.mean(axis=(1, 2)) for images in (shapes.train_images, shapes.test_images)]
    assert nearest_class_mean(colours[0], shapes.train_labels, colours[1], shapes.test_labels) < 0.2


def test_unseen_fonts_are_harder_than_unseen_images_of_known_fonts(digits):
    images, labels = digits.train_images, digits.train_labels
    known = nearest_class_mean(images[:1500], labels[:1500], images[1500:], labels[1500:])
    assert nearest_class_mean(*digits) < known
