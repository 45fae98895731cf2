"""Data sets that are downloaded, drawn or read from a folder, and their cache of decoded arrays."""

import contextlib
import functools
import hashlib
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.data import synthetic
from common.data.archives import all_exist, data_lock, fetch_archive, md5_of, read_checked
from common.data.folder import DEFAULT_SIZE, read_folder, stamp
from common.errors import DATA, SuiteError
from common.files.reading import regular
from common.files.writing import atomic_write
from common.machine.environment import require_torchvision
from common.settings.config import FOLDER, RunConfig
from common.settings.datasets import DATASETS

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

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of its name, images and labels, in hexadecimal; takes 0.1 s for CIFAR-10."""
        digest = hashlib.sha256(self.name.encode())
        for part in PARTS:
            array = getattr(self, part)
            digest.update(f"{part} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def load_image_set(config: RunConfig) -> ImageSet:
    """Return the data set of `config`, cut to its train_size. Download or draw it if necessary.

    Raises SuiteError (DATA) if it cannot be obtained, if a file is damaged, or if train_size is too large.
    """
    if config.loader == "workers" or config.dataset.startswith(FOLDER):
        require_torchvision()  # it transforms the images
    name, size = config.dataset, config.train_size
    image_set = _load_folder(config) if name.startswith(FOLDER) else _load_known(config, DATASETS[name])
    if size and size > (there := len(image_set.train_labels)):
        what = f"--train-size {size} is more than {name} has"
        raise SuiteError(what, f"{there} training images", "give less, or leave the flag out", DATA)
    if size is not None:
        images, labels = image_set.train_images[:size], image_set.train_labels[:size]
        image_set = replace(image_set, train_images=images, train_labels=labels)
    if config.image_size and name in DATASETS:
        train, test = (resized(part, config.image_size) for part in (image_set.train_images, image_set.test_images))
        image_set = replace(image_set, train_images=train, test_images=test)
    return image_set


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Return images (N, H, W) or (N, H, W, C) as (N, size, size[, C]), by nearest neighbours."""
    rows, columns = (np.arange(size) * side // size for side in images.shape[1:3])
    return images.take(rows, axis=1).take(columns, axis=2)


def _load_folder(config):
    """Return the user's own images, from the cache if no file in the folder has changed."""
    root, size = Path(config.dataset.removeprefix(FOLDER)), config.image_size or DEFAULT_SIZE
    content = hashlib.sha256(os.fsencode(f"{root.resolve()} {stamp(root, size)}")).hexdigest()
    return _cached(Path(config.data_root), f"folder-{content[:16]}", "folder", lambda: read_folder(root, size))


def _load_known(config, known):
    root, name = Path(config.data_root), config.dataset
    if known.layout in synthetic.DRAWN:
        version = md5_of(Path(synthetic.__file__).read_bytes())[:8]
        draw = synthetic.DRAWN[known.layout]
        return _cached(root, f"{name}-{version}", name, lambda: (*draw(), known.classes))

    def decode():
        if not all_exist(root, known.files):
            with data_lock(root):  # another process may be downloading the files
                for archive in known.archives:
                    if not all_exist(root, archive.files):
                        fetch_archive(archive, (config.data_url,) if config.data_url else known.places, root)
        return *LAYOUTS[known.layout](read_checked(root, known.files)), known.classes

    return _cached(root, name, name, decode, lock=False)  # the data directory may be read-only


def _cached(root, key, name, make, lock=True):
    """Return the data set cached below `root` under `key`, or make and cache it.

    make: returns the arrays and the class names. lock: let only one process at a time make it.
    """
    if cached := _read_cache(root, key, name):
        return cached
    with data_lock(root) if lock else contextlib.nullcontext():
        if cached := _read_cache(root, key, name):
            return cached
        *arrays, classes = make()
        made = _image_set(name, arrays, classes)
        with contextlib.suppress(OSError, SuiteError):  # e.g. a full disk; then it is made again next time
            about = [*classes, _checksum(made)]
            for file, value in zip(_cache_files(root, key), (*arrays, (made.mean, made.std), about), strict=True):
                with atomic_write(file) as target:
                    np.save(target, value)
        return made


def _read_cache(root, key, name):
    """Return the cached data set, mapped into memory, or None if it is missing or its checksum is wrong.

    The checksum covers every byte, so the files it was decoded from need not be checked again.
    """
    try:
        *arrays, norm, about = (np.asarray(np.load(regular(file), mmap_mode="c")) for file in _cache_files(root, key))
        *classes, checksum = about.tolist()
        cached = _image_set(name, arrays, classes, map(tuple, norm.tolist()))
        known = name in DATASETS and DATASETS[name].sha256
        intact = checksum == _checksum(cached) and (not known or cached.sha256 == known)
        return cached if intact else None
    except Exception:  # NumPy raises many kinds of errors for a damaged header
        return None


def _checksum(image_set):
    """Return the checksum of a cached data set: of its arrays, its class names, and its mean and deviation."""
    about = [image_set.sha256, *map(str, image_set.classes), image_set.mean, image_set.std]
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _cache_files(root, key):
    return [root / "decoded" / f"{key}-{part}.npy" for part in (*PARTS, "norm", "about")]


def _image_set(name, arrays, classes, norm=None):
    """norm: (mean, std) as computed earlier, for images whose record has none."""
    known = DATASETS.get(name)
    norm = (known.mean, known.std) if known and known.mean else norm or _statistics(arrays[0])
    return ImageSet(name, *arrays, tuple(classes), *norm)


def _statistics(images):
    """Return mean and standard deviation per channel, on a 0..1 scale, of images (N, H, W[, 3]) uint8.

    The deviation of a constant channel is set to 1, because the loaders divide by it.
    """
    values, means, deviations = np.arange(256) / 255, [], []
    for channel in images.reshape(-1, 3 if images.ndim == 4 else 1).T:
        # In parts, because bincount() converts to int64: all pixels would take more memory and three times the time.
        counts = sum(np.bincount(part, minlength=256) for part in np.array_split(channel, 64))
        mean = float(np.average(values, weights=counts))
        constant = np.count_nonzero(counts) == 1
        means.append(mean)
        deviations.append(1.0 if constant else float(np.sqrt(np.average((values - mean) ** 2, weights=counts))))
    return tuple(means), tuple(deviations)


def _read_idx(contents):
    """Decode the IDX format (Y. LeCun): two zero bytes, type (8: unsigned byte), dimensions, their sizes, values."""
    arrays = []
    for content in contents:
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        arrays.append(values.astype(np.int64 if values.ndim == 1 else np.uint8))
    return tuple(arrays)


def _read_cifar(contents):
    """Decode pickles of images (channels first) and labels. The last one is the test set."""
    batches = [pickle.loads(content, encoding="latin1") for content in contents]  # safe: their md5s were checked
    arrays = []
    for split in (batches[:-1], batches[-1:]):
        images = np.concatenate([batch["data"] for batch in split]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays += [np.ascontiguousarray(images), np.concatenate([batch["labels"] for batch in split])]
    return tuple(arrays)


# layout of a DataSet → decoder of its files to training images and labels, test images and labels
LAYOUTS = {"idx": _read_idx, "cifar": _read_cifar}
