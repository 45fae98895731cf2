"""The user's own images: one folder for each class, as for torchvision's ImageFolder, decoded once to uint8."""

import contextlib
from pathlib import Path

import numpy as np

from common.errors import DATA, SuiteError, remedy
from common.files.reading import regular

DEFAULT_SIZE = 64  # pixels, height and width
ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}  # ImageFolder's
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # Pillow's readers of other formats may start programs
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # TIFF 6.0
DECODING = 3  # version; increment when the decoded pixels change


def read_folder(root: Path, size: int) -> tuple[np.ndarray, ...]:
    """Return training images and labels, test images and labels, and the class names, which the labels index.

    root: contains train/CLASS/... and test/CLASS/... (or val/CLASS/...). Images are (N, size, size, 3) uint8: resized
    so that the shorter side is `size`, then centre-cropped.
    Raises SuiteError (DATA) if there are no images, if the classes of both splits differ, or if a file is unreadable.
    """
    train, test = _find(root)
    images, labels = _decode(train, size)
    order = np.random.default_rng(0).permutation(len(labels))  # so that --train-size keeps all classes
    return images[order], labels[order], *_decode(test, size), np.array([*train])


def count_training_images(root: Path) -> int:
    """Return the number of training images; 0 if there is no such folder."""
    return sum(map(len, _by_class(root / "train").values()))


def stamp(root: Path, size: int) -> str:
    """Return a text that changes with the content of a folder: path, size and modification time of every image."""
    paths = [path for split in _find(root) for paths in split.values() for path in paths]
    try:
        found = [(str(path.relative_to(root)), path.stat()) for path in paths]
    except OSError as error:  # a broken link
        raise SuiteError(f"cannot read {error.filename}", f"{error.strerror}", "delete it", DATA) from None
    return repr([DECODING, size, *((name, status.st_size, status.st_mtime_ns) for name, status in found)])


def _find(root):
    """Return the training and the test images, each as class → paths."""
    names = ("train", "val" if (root / "val").is_dir() and not (root / "test").is_dir() else "test")
    train, test = splits = [_by_class(root / name) for name in names]
    for name, split in zip(names, splits, strict=True):
        _refuse_other_files(root / name, split)
        if not split:
            advice = "put a folder with images there for each class, see docs/extending.md"
            raise SuiteError(f"--dataset folder:{root}", f"no images in {root / name}", advice, DATA)
    if only := sorted(train.keys() ^ test.keys()):
        what = f"{' and '.join(names)} of {root} have different classes"
        raise SuiteError(what, f"only one of them has {', '.join(only)}", "give both the same folders", DATA)
    return splits


def _refuse_other_files(split, classes):
    """Raise SuiteError (DATA) for a folder that is no class because none of its files is an image."""
    for folder in sorted(split.glob("[!.]*")):
        if folder.name not in classes and any(path.is_file() for path in folder.rglob("[!.]*")):
            found = f"none of its files has the ending of an image ({' '.join(sorted(ENDINGS))})"
            raise SuiteError(f"no images in {folder}", found, "convert them, or delete the folder", DATA)


def _by_class(split):
    """Return class → paths, in ImageFolder's order. A class may be a link to a folder; deeper links are ignored."""
    found = {}
    for folder in sorted(path for path in split.glob("*") if path.is_dir()):
        if images := [path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS]:
            found[folder.name] = sorted(images, key=lambda path: (str(path.parent), path.name))
    return found


def _decode(split, size):
    from PIL import Image
    from torchvision.transforms import v2 as transforms

    resize = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])
    samples = [(path, label) for label, paths in enumerate(split.values()) for path in paths]
    images = np.empty((len(samples), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(samples):
        try:
            with Image.open(regular(path), formats=FORMATS) as image:
                images[index] = np.asarray(resize(_rgb(image)))
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises many kinds for a damaged file
            found = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            advice = remedy(error, "delete it, or put a whole one in its place")
            raise SuiteError(f"cannot read the image {path}", found, advice, DATA) from None
    return images, np.array([label for _, label in samples], np.int64)


def _rgb(image):
    """Convert an image to upright 8-bit RGB, without its opacity.

    Pillow alone would turn all 16-bit values above 255 into white, 12-bit values into almost black, and only TIFF
    images upright.
    """
    from PIL import Image, ImageOps

    image.load()  # raises if it is damaged
    with contextlib.suppress(Exception):  # some cameras write malformed EXIF
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = Image.fromarray(_upper_bits(image))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have a sign or 32 bits each, so it is not known which value is white")
    elif image.mode == "P":
        image = image.convert("RGBA")  # or Pillow warns if several colours are transparent
    return image.convert("RGB")


def _upper_bits(image):
    """Return the upper 8 bits of the pixels of a grey image of 12 or 16 bits, as uint8."""
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    values = (np.asarray(image) >> (tags.get(BITS_PER_SAMPLE, (16,))[0] - 8)).astype(np.uint8)
    return 255 - values if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else values
