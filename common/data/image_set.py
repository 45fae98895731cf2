"""Data sets from disk, network or thin air, checked before they are used."""

import contextlib
import functools
import hashlib
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.data import synthetic
from common.data.archives import are_there, get, only_one_process, read_checked
from common.data.folder import DEFAULT_SIZE, read_folder, stamp
from common.errors import DATA, SuiteError
from common.files.reading import regular
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
    """Return the data set that `config` names, cut to its train_size; downloads or draws it if need be.

    Raises SuiteError (DATA) if it is missing and cannot be had, if a file is damaged, or if train_size is too large.
    """
    if config.loader == "workers" or config.dataset.startswith(FOLDER):
        require_torchvision()  # it transforms the images
    name, size = config.dataset, config.train_size
    image_set = _load_folder(config) if name.startswith(FOLDER) else _load_known(config, DATASETS[name])
    if size and size > (there := len(image_set.train_labels)):
        what = f"--train-size {size} is more than {name} has"
        raise SuiteError(what, f"{there} training images", "give less, or leave the flag out", DATA)
    if size is None:
        return image_set
    return replace(image_set, train_images=image_set.train_images[:size], train_labels=image_set.train_labels[:size])


def _load_folder(config):
    """A reader's own images; what was decoded is kept as long as no file in the folder changes."""
    root, size = Path(config.dataset.removeprefix(FOLDER)), config.image_size or DEFAULT_SIZE
    content = hashlib.sha256(os.fsencode(f"{root.resolve()} {stamp(root, size)}")).hexdigest()
    return _kept_or_made(Path(config.data_root), f"folder-{content[:16]}", "folder", lambda: read_folder(root, size))


def _load_known(config, known):
    root, name = Path(config.data_root), config.dataset
    if known.layout in synthetic.DRAWN:
        version = hashlib.md5(Path(synthetic.__file__).read_bytes(), usedforsecurity=False).hexdigest()[:8]
        draw = synthetic.DRAWN[known.layout]
        return _kept_or_made(root, f"{name}-{version}", name, lambda: (*draw(), known.classes))

    def decode():
        if not are_there(root, known.files):
            with only_one_process(root):  # another process may be about to put the files there
                for archive in known.archives:
                    if not are_there(root, archive.files):
                        get(archive, (config.data_url,) if config.data_url else known.places, root)
        return *LAYOUTS[known.layout](read_checked(root, known.files)), known.classes

    return _kept_or_made(root, name, name, decode, alone=False)  # in a data directory that may only be read, too


def _kept_or_made(root, key, name, make, alone=True):
    """The data set that is kept below `root` under a key, or else the one that make() returns as arrays and classes.

    alone: only one process at a time makes one.
    """
    if kept := _read_kept(root, key, name):
        return kept
    with only_one_process(root) if alone else contextlib.nullcontext():
        if kept := _read_kept(root, key, name):
            return kept
        *arrays, classes = make()
        made = _image_set(name, arrays, classes)
        with contextlib.suppress(OSError, SuiteError):  # a full disk, say: made again next time
            for file, value in zip(_files(root, key), (*arrays, [*classes, made.sha256]), strict=True):
                with replacing(file) as target:
                    np.save(target, value)
        return made


def _read_kept(root, key, name):
    """The data set that is kept, mapped into memory; None unless it is there and its checksum is the known one.

    Every byte is read for that, so that it does not matter what has become of the files that were decoded.
    """
    try:
        *arrays, about = (np.asarray(np.load(regular(file), mmap_mode="c")) for file in _files(root, key))
        *classes, sha256 = about.tolist()
        kept = _image_set(name, arrays, classes)
        known = name in DATASETS and DATASETS[name].sha256
        return kept if kept.sha256 == (known or sha256) else None
    except Exception:  # what NumPy raises for a damaged header is of many kinds
        return None


def _files(root, key):
    return [root / "decoded" / f"{key}-{part}.npy" for part in (*PARTS, "about")]


def _image_set(name, arrays, classes):
    known = DATASETS.get(name)
    norm = (known.mean, known.std) if known and known.mean else _statistics(arrays[0])
    return ImageSet(name, *arrays, tuple(classes), *norm)


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
