"""A reader's own images: a folder for each class, as torchvision's ImageFolder reads it, decoded once to uint8."""

from pathlib import Path

import numpy as np

from common.errors import DATA, SuiteError
from common.files.reading import regular

DEFAULT_SIZE = 64  # pixels, height and width
ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}  # ImageFolder's
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # what is in such files; other readers may start programs
DECODING = 2  # counted up when the same files are decoded otherwise than before


def read_folder(root: Path, size: int) -> tuple[np.ndarray, ...]:
    """Return training images and labels, test images and labels, and the names of the classes, which label them.

    root: has train/CLASS/... and test/CLASS/... (or val/CLASS/...). Images become (N, size, size, 3) uint8: the shorter
    side is brought to `size`, and the middle cut out.
    Raises SuiteError (DATA) if there are no images, if the classes of both parts differ, or if a file cannot be read.
    """
    train, test = _find(root)
    images, labels = _decode(train, size)
    order = np.random.default_rng(0).permutation(len(labels))  # or --train-size would take the first classes alone
    return images[order], labels[order], *_decode(test, size), np.array([*train])


def count_training_images(root: Path) -> int:
    """Return how many images there are to train with; 0 where there is no such folder."""
    return sum(map(len, _by_class(root / "train").values()))


def stamp(root: Path, size: int) -> str:
    """Return what tells one content of a folder from another: name, size and modification time of every image."""
    paths = [path for part in _find(root) for paths in part.values() for path in paths]
    try:
        found = [(str(path.relative_to(root)), path.stat()) for path in paths]
    except OSError as error:  # where a link leads
        raise SuiteError(f"cannot read {error.filename}", f"{error.strerror}", "delete it", DATA) from None
    return repr([DECODING, size, *((name, status.st_size, status.st_mtime_ns) for name, status in found)])


def _find(root):
    """The images to train with and to test with, by class."""
    names = ("train", "val" if (root / "val").is_dir() and not (root / "test").is_dir() else "test")
    train, test = parts = [_by_class(root / name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if not part:
            advice = "put a folder with images there for each class, see docs/extending.md"
            raise SuiteError(f"--dataset folder:{root}", f"no images in {root / name}", advice, DATA)
    if only := sorted(train.keys() ^ test.keys()):
        what = f"{' and '.join(names)} of {root} have different classes"
        raise SuiteError(what, f"only one of them has {', '.join(only)}", "give both the same folders", DATA)
    return parts


def _by_class(part):
    """Class → its images, in ImageFolder's order. A class may be a link to a folder; links further below are left."""
    found = {}
    for folder in sorted(path for path in part.glob("*") if path.is_dir()):
        if images := [path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS]:
            found[folder.name] = sorted(images, key=lambda path: (str(path.parent), path.name))
    return found


def _decode(part, size):
    from PIL import Image
    from torchvision.transforms import v2 as transforms

    fit = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])
    samples = [(path, label) for label, paths in enumerate(part.values()) for path in paths]
    images = np.empty((len(samples), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(samples):
        try:
            with Image.open(regular(path), formats=FORMATS) as image:
                images[index] = np.asarray(fit(_rgb(image)))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            found, advice = f"{type(error).__name__}: {error}", "delete it, or put a whole one in its place"
            raise SuiteError(f"cannot read the image {path}", found, advice, DATA) from None
    return images, np.array([label for _, label in samples], np.int64)


def _rgb(image):
    """An image in eight bits per colour. Pillow makes everything above 255 white."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # grey, sixteen bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits each, of which it is not known what is white")
    return image.convert("RGB")
