"""A reader's own images: a folder for each class, as torchvision's ImageFolder reads it, decoded once to uint8."""

import os
from pathlib import Path

import numpy as np

from common.errors import DATA, SuiteError
from common.reading import regular

DEFAULT_SIZE = 64  # pixels, height and width
TEST_NAMES = ("test", "val")


def read_folder(root: Path, size: int) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return training images and labels, test images and labels, and the names of the classes.

    root: has train/CLASS/... and test/CLASS/... (or val/CLASS/...). Images become (N, size, size, 3) uint8: the shorter
    side is brought to `size`, and the middle cut out. Labels: (N,) int64, in the order of the classes' names. The
    training images are shuffled, always in the same way.
    Raises SuiteError (DATA) if a folder is missing or empty, if the classes of both parts differ, or if a file cannot
    be read.
    """
    if not root.is_dir():
        raise SuiteError(f"--dataset folder:{root}", "no such directory", "see how it is laid out in docs/extending.md",
                         DATA)
    tests = [root / name for name in TEST_NAMES if (root / name).is_dir()]
    missing = [name for name, there in (("train", (root / "train").is_dir()), ("test (or val)", tests)) if not there]
    if missing:
        raise SuiteError(f"{root} has no folder {' and no folder '.join(missing)}", "it needs train/CLASS/*.png and "
                         "test/CLASS/*.png", "see docs/extending.md", DATA)
    train, test = (_open(part) for part in (root / "train", tests[0]))
    if train.classes != test.classes:
        only = sorted(set(train.classes) ^ set(test.classes))
        raise SuiteError(f"{root / 'train'} and {tests[0]} have different classes", f"only one of them has "
                         f"{', '.join(only)}", "give both the same folders", DATA)
    images, labels = _decode(train, size)
    order = np.random.default_rng(0).permutation(len(labels))  # or --train-size would take the first classes alone
    return [images[order], labels[order], *_decode(test, size)], tuple(train.classes)


def _open(part):
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(part))
    except (FileNotFoundError, OSError) as error:  # no classes, or one without an image
        raise SuiteError(f"{part} is no folder of images", str(error).splitlines()[0], "put a folder with images there "
                         "for each class", DATA) from None


def _decode(part, size):
    from PIL import Image
    from torchvision.transforms import v2 as transforms

    fit = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])
    images = np.empty((len(part.samples), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(part.samples):
        try:
            with Image.open(regular(path)) as image:
                images[index] = np.asarray(fit(image.convert("RGB")))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise SuiteError(f"cannot read the image {path}", f"{type(error).__name__}: {error}", "delete it, or put a "
                             "whole one in its place", DATA) from None
    return images, np.array(part.targets, np.int64)


def stamp(root: Path, size: int) -> str:
    """Return what tells one content of a folder from another: name, size and modification time of every file."""
    files = sorted(Path(place, name) for place, _, names in os.walk(root, followlinks=True) for name in names)
    return repr([size, *((str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
                         for path in files)])
