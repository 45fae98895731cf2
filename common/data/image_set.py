"""Data sets from disk, network or thin air, checked before they are used."""

import contextlib
import hashlib
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.data import synthetic
from common.data.archives import are_there, get, only_one_process, read_checked
from common.data.folder import DEFAULT_SIZE, read_folder, stamp
from common.errors import DATA, SuiteError
from common.files.reading import refuse_inflated, regular
from common.files.writing import replacing
from common.machine.environment import require_torchvision
from common.settings.config import FOLDER, RunConfig
from common.settings.datasets import DATASETS

Arrays = tuple[np.ndarray, ...]  # training images and labels, test images and labels
PARTS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class ImageSet:
    """A data set in memory. Images: (N, H, W) or (N, H, W, 3) uint8; labels: (N,) int64; mean, std: per channel."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image as the models see it."""
        return (len(self.mean), *self.train_images.shape[1:3])


def checksum(image_set: ImageSet) -> str:
    """Return the sha256 of all that a data set holds, in hexadecimal; 0.1 s for CIFAR-10."""
    digest = hashlib.sha256(image_set.name.encode())
    for part in PARTS:
        array = getattr(image_set, part)
        digest.update(f"{part} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load_image_set(config: RunConfig) -> ImageSet:
    """Return the data set that `config` names, cut to its train_size; downloads or generates it if need be.

    Raises SuiteError (DATA) if it is missing and cannot be had, if a file is damaged, or if train_size is too large.
    """
    if config.loader == "workers":
        require_torchvision()  # it transforms the images
    root, name, size = Path(config.data_root), config.dataset, config.train_size
    if name.startswith(FOLDER):
        image_set = _load_folder(Path(name.removeprefix(FOLDER)), config.image_size or DEFAULT_SIZE, root)
    elif DATASETS[name].layout in synthetic.DRAWN:
        image_set = _load_synthetic(name, DATASETS[name], root)
    else:
        image_set = _read_decoded(name, root) or _load_real(name, DATASETS[name], root, config.data_url)
    if size is None:
        return image_set
    if size > (there := len(image_set.train_labels)):
        what = f"--train-size {size} is more than {name} has"
        raise SuiteError(what, f"{there} training images", "give less, or leave the flag out", DATA)
    return replace(image_set, train_images=image_set.train_images[:size], train_labels=image_set.train_labels[:size])


# ---- drawn, or in a folder: an archive of NumPy's keeps what was made


def _load_synthetic(name, known, root):
    version = hashlib.md5(Path(synthetic.__file__).read_bytes(), usedforsecurity=False).hexdigest()[:8]
    cache = root / "synthetic" / f"{name}-{version}.npz"
    arrays = _kept_or_made(cache, root, lambda: (*synthetic.DRAWN[known.layout](), np.array(known.classes)))
    return ImageSet(name, *arrays[:4], known.classes, *_statistics(arrays[0]))


def _load_folder(folder, size, root):
    """A reader's own images; what was decoded is kept below `root`, as long as no file in the folder changes."""
    require_torchvision()
    if not folder.is_dir():
        read_folder(folder, size)  # says so
    content = hashlib.sha256(os.fsencode(f"{folder.resolve()} {stamp(folder, size)}")).hexdigest()
    cache = root / "decoded" / f"folder-{content[:16]}.npz"
    *arrays, classes = _kept_or_made(cache, root, lambda: read_folder(folder, size))
    return ImageSet("folder", *arrays, tuple(classes.tolist()), *_statistics(arrays[0]))


def _kept_or_made(cache: Path, root: Path, make: Callable[[], Arrays]) -> Arrays:
    """Arrays and class names from the file `cache`, or else from make(), which are then kept there."""
    if kept := _read_cache(cache):
        return kept
    with only_one_process(root):
        if kept := _read_cache(cache):
            return kept
        made = make()
        cache.parent.mkdir(exist_ok=True)
        with replacing(cache) as file:
            np.savez(file, *made)
        return made


def _read_cache(cache):
    """What was kept, which has the zip file's checksums; None if it is anything else than a sound data set."""
    try:
        refuse_inflated(cache)
        with np.load(cache) as stored:
            *arrays, classes = stored.values()
        shapes = [images.shape[1:] for images in arrays[::2]]
        sound = len(arrays) == 4 and shapes[0] == shapes[1] and len(shapes[0]) in (2, 3)
        for images, labels in zip(arrays[::2], arrays[1::2], strict=True):
            sound = sound and (images.dtype, labels.dtype, labels.ndim) == (np.uint8, np.int64, 1)
            sound = sound and len(images) == len(labels) and set(labels.tolist()) <= set(range(len(classes)))
        return (*arrays, classes) if sound else None
    except (OSError, EOFError, ValueError, TypeError, IndexError, MemoryError, zipfile.BadZipFile):
        return None  # none yet, or not whole: it is made anew


def _statistics(images):
    """Mean and standard deviation per channel, on a 0..1 scale, of images (N, H, W[, 3]) uint8.

    Of a channel that is the same everywhere, the deviation counts as 1: loaders divide by it.
    """
    values, means, deviations = np.arange(256) / 255, [], []
    for channel in images.reshape(-1, 3 if images.ndim == 4 else 1).T:
        counts = np.bincount(channel, minlength=256)  # a copy of all pixels as floats would be eight times their size
        means.append(mean := float(np.average(values, weights=counts)))
        constant = np.count_nonzero(counts) == 1
        deviations.append(1.0 if constant else float(np.sqrt(np.average((values - mean) ** 2, weights=counts))))
    return tuple(means), tuple(deviations)


# ---- downloaded: files whose checksums are published, and a decoded copy of them


def _load_real(name, known, root, data_url):
    if not are_there(root, known.files):
        with only_one_process(root):  # another process may be about to put the files there
            for archive in known.archives:
                if not are_there(root, archive.files):
                    get(archive, (data_url,) if data_url else known.places, root)
    image_set = _real_set(name, known, LAYOUTS[known.layout](read_checked(root, known.files)))
    if (digest := checksum(image_set)) != known.sha256:
        what = f"data set {name} in {root} comes out wrong, although its files are right"
        found = f"decoded, it has the SHA-256 {digest} instead of {known.sha256}"
        raise SuiteError(what, found, "run again, and test this machine's memory if it happens again", DATA)
    with contextlib.suppress(OSError, SuiteError):  # a full disk, say: decoded again next time
        (root / "decoded").mkdir(exist_ok=True)
        for part, file in _decoded_files(name, root).items():
            with replacing(file) as target:
                np.save(target, getattr(image_set, part))
    return image_set


def _real_set(name, known, arrays):
    return ImageSet(name, *arrays, known.classes, known.mean, known.std)


def _read_idx(contents: list[bytes]) -> Arrays:
    """The IDX format (Y. LeCun): two zero bytes, type (8: unsigned byte), dimensions, their sizes, the values."""
    arrays = []
    for content in contents:
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        arrays.append(values.astype(np.int64 if values.ndim == 1 else np.uint8))
    return tuple(arrays)


def _read_cifar(contents: list[bytes]) -> Arrays:
    """Pickles of images, channels first, and labels; the last one has those to test with."""
    batches = [pickle.loads(content, encoding="latin1") for content in contents]  # their checksums are known
    arrays = []
    for some in (batches[:-1], batches[-1:]):
        images = np.concatenate([batch["data"] for batch in some]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays += [np.ascontiguousarray(images), np.concatenate([batch["labels"] for batch in some])]
    return tuple(arrays)


LAYOUTS = {"idx": _read_idx, "cifar": _read_cifar}  # how files are decoded, by what a DataSet says


def _decoded_files(name, root):
    return {part: root / "decoded" / f"{name}-{part}.npy" for part in PARTS}


def _read_decoded(name, root):
    """Return the decoded copy, mapped into memory; None unless it is there and its checksum is the known one.

    Every byte is read for that, so that it does not matter what has become of the files that were decoded.
    """
    try:
        files = _decoded_files(name, root).values()
        arrays = tuple(np.asarray(np.load(regular(file), mmap_mode="c")) for file in files)
        image_set = _real_set(name, DATASETS[name], arrays)
        return image_set if checksum(image_set) == DATASETS[name].sha256 else None
    except Exception:  # what NumPy raises for a damaged header is of many kinds
        return None
