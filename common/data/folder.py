"""A reader's own images: a folder for each class, as torchvision's ImageFolder reads it, decoded once to uint8."""

import os
from pathlib import Path

import numpy as np

from common.errors import DATA, SuiteError
from common.files.reading import regular

DEFAULT_SIZE = 64  # pixels, height and width
TEST_NAMES = ("test", "val")
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # that ImageFolder takes; others may start programs
DECODING = 2  # counted up when the same files are decoded otherwise than before


def read_folder(root: Path, size: int) -> tuple[np.ndarray, ...]:
    """Return training images and labels, test images and labels, and the names of the classes.

    root: has train/CLASS/... and test/CLASS/... (or val/CLASS/...). Images become (N, size, size, 3) uint8: the shorter
    side is brought to `size`, and the middle cut out. Labels: (N,) int64, in the order of the classes' names. The
    training images are shuffled, always in the same way.
    Raises SuiteError (DATA) if a folder is missing or empty, if the classes of both parts differ, or if a file cannot
    be read.
    """
    if not root.is_dir():
        advice = "see how it is laid out in docs/extending.md"
        raise SuiteError(f"--dataset folder:{root}", "no such directory", advice, DATA)
    tests = [root / name for name in TEST_NAMES if (root / name).is_dir()]
    missing = [name for name, there in (("train", (root / "train").is_dir()), ("test (or val)", tests)) if not there]
    if missing:
        what = f"{root} has no folder {' and no folder '.join(missing)}"
        raise SuiteError(what, "it needs train/CLASS/*.png and test/CLASS/*.png", "see docs/extending.md", DATA)
    train, test = (_open(part) for part in (root / "train", tests[0]))
    if only := sorted(set(train.classes) ^ set(test.classes)):
        what = f"{root / 'train'} and {tests[0]} have different classes"
        raise SuiteError(what, f"only one of them has {', '.join(only)}", "give both the same folders", DATA)
    images, labels = _decode(train, size)
    order = np.random.default_rng(0).permutation(len(labels))  # or --train-size would take the first classes alone
    return images[order], labels[order], *_decode(test, size), np.array(train.classes)


def _open(part):
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(part))
    except OSError as error:  # no classes, or one without an image
        found, advice = str(error).splitlines()[0], "put a folder with images there for each class"
        raise SuiteError(f"{part} is no folder of images", found, advice, DATA) from None


def _decode(part, size):
    from PIL import Image
    from torchvision.transforms import v2 as transforms

    fit = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])
    images = np.empty((len(part.samples), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(part.samples):
        try:
            with Image.open(regular(path), formats=FORMATS) as image:
                images[index] = np.asarray(fit(_rgb(image)))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            found, advice = f"{type(error).__name__}: {error}", "delete it, or put a whole one in its place"
            raise SuiteError(f"cannot read the image {path}", found, advice, DATA) from None
    return images, np.array(part.targets, np.int64)


def _rgb(image):
    """An image in eight bits per colour. Pillow makes everything above 255 white."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # grey, sixteen bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits each, of which it is not known what is white")
    return image.convert("RGB")


def stamp(root: Path, size: int) -> str:
    """Return what tells one content of a folder from another: name, size and modification time of every file.

    Raises SuiteError (DATA) for a link that leads nowhere, or in a circle.
    """
    stamps = []
    for place, folders, names in os.walk(root, followlinks=True):
        for path in (Path(place, name) for name in folders):
            if path.is_symlink() and any(path.samefile(parent) for parent in path.parents):
                raise SuiteError(f"{path} is a link to a folder that it is in", os.readlink(path), "delete it", DATA)
        for path in (Path(place, name) for name in names):
            try:
                status = path.stat()
            except OSError as error:  # where a link leads
                raise SuiteError(f"cannot read {path}", error.strerror or str(error), "delete it", DATA) from None
            stamps.append((str(path.relative_to(root)), status.st_size, status.st_mtime_ns))
    return repr([DECODING, size, *sorted(stamps)])
