"""Data sets from disk, network or thin air, checked before they are used."""

import contextlib
import hashlib
import os
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.data import synthetic
from common.data.archives import archives, first_problem, md5_of, only_one_process, unpack
from common.data.download import download
from common.data.folder import DEFAULT_SIZE, read_folder, stamp
from common.errors import DATA, SuiteError
from common.files.reading import refuse_inflated, regular
from common.files.writing import replacing
from common.machine.environment import require_torchvision
from common.settings.config import FOLDER, RunConfig

# Mean and standard deviation of the training images' pixels per channel, on a 0..1 scale; a test recomputes them.
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}
CLASSES = {
    "cifar10": tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
    "mnist": tuple(
        "0 - zero,1 - one,2 - two,3 - three,4 - four,5 - five,6 - six,7 - seven,8 - eight,9 - nine".split(",")
    ),
    "fashion-mnist": tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")),
}
# checksum() of each, decoded from files with the published md5.
SHA256 = {
    "cifar10": "d7b6f8581f2b4abd8d4f091c0f77d6b9f6359062419c158df92fe98e0de620ad",
    "mnist": "ea3a4064cd7cea8b1c28a7a76c02e53f4ebe7628e8017a011384e5c14dadc0a2",
    "fashion-mnist": "d9cac98ca9d6bad5b3392dd268ddbf620fe7e3d01757177abf34dee72a61ee95",
}
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
SYNTHETIC = {
    "synthetic-cifar10": (synthetic.synthetic_cifar10, synthetic.CIFAR10_CLASSES),
    "synthetic-mnist": (synthetic.synthetic_mnist, synthetic.MNIST_CLASSES),
}


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
    for part in ARRAYS:
        array = getattr(image_set, part)
        digest.update(f"{part} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def load_image_set(config: RunConfig) -> ImageSet:
    """Return the data set that `config` names, cut to its train_size; downloads or generates it if need be.

    Raises SuiteError (DATA) if it is missing and cannot be had, if a file is damaged, or if train_size is too large.
    """
    if config.loader == "workers":
        require_torchvision()  # it transforms the images
    root = Path(config.data_root)
    if config.dataset.startswith(FOLDER):
        image_set = _load_folder(Path(config.dataset.removeprefix(FOLDER)), config.image_size or DEFAULT_SIZE, root)
    elif config.dataset in SYNTHETIC:
        image_set = _load_synthetic(config.dataset, root)
    else:
        image_set = _read_decoded(config.dataset, root) or _load_real(config.dataset, root, config.data_url)
    _check(image_set, root)
    size = config.train_size
    if size is None:
        return image_set
    if size > len(image_set.train_labels):
        raise SuiteError(
            f"--train-size {size} is more than {config.dataset} has",
            f"{len(image_set.train_labels)} training images",
            "give less, or leave the flag out",
            DATA,
        )
    return replace(image_set, train_images=image_set.train_images[:size], train_labels=image_set.train_labels[:size])


def _check(image_set, root):
    """Raise SuiteError (DATA) unless every image has a label that is one of the classes."""
    for split in ("train", "test"):
        images, labels = getattr(image_set, f"{split}_images"), getattr(image_set, f"{split}_labels")
        if len(images) != len(labels):
            mismatch = f"{len(labels)} labels for {len(images)} images"
        elif not ((labels >= 0) & (labels < len(image_set.classes))).all():
            mismatch = f"labels from {labels.min()} to {labels.max()} for {len(image_set.classes)} classes"
        else:
            continue
        raise SuiteError(
            f"data set {image_set.name} in {root} is damaged",
            f"its {split} part has {mismatch}",
            "delete it and run again",
            DATA,
        )


def _load_synthetic(name, root):
    generate, classes = SYNTHETIC[name]
    version = hashlib.md5(Path(synthetic.__file__).read_bytes(), usedforsecurity=False).hexdigest()[:8]
    cache = root / "synthetic" / f"{name}-{version}.npz"
    arrays = _read_cache(cache, 4)
    if arrays is None:
        with only_one_process(root):
            arrays = _read_cache(cache, 4) or _write_cache(cache, tuple(generate()))
    return ImageSet(name, *arrays, classes, *_statistics(arrays[0]))


def _statistics(images):
    """Mean and standard deviation per channel, on a 0..1 scale, of images (N, H, W[, 3]) uint8.

    Of a channel that is the same everywhere, the deviation counts as 1: loaders divide by it.
    """
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in images.reshape(-1, 3 if images.ndim == 4 else 1).T:
        counts = np.bincount(channel, minlength=256)  # a copy of all pixels as floats would be eight times their size
        mean = np.average(values, weights=counts)
        means.append(float(mean))
        constant = np.count_nonzero(counts) == 1
        deviations.append(1.0 if constant else float(np.sqrt(np.average((values - mean) ** 2, weights=counts))))
    return tuple(means), tuple(deviations)


def _load_folder(folder, size, root):
    """A reader's own images; what was decoded is kept below `root`, as long as no file in the folder changes."""
    require_torchvision()
    if not folder.is_dir():
        read_folder(folder, size)  # says so
    content = hashlib.sha256(os.fsencode(f"{folder.resolve()} {stamp(folder, size)}")).hexdigest()
    cache = root / "decoded" / f"folder-{content[:16]}.npz"
    kept = _read_cache(cache, 5)
    if kept is None:
        with only_one_process(root):
            kept = _read_cache(cache, 5)
            if kept is None:
                arrays, classes = read_folder(folder, size)
                kept = _write_cache(cache, (*arrays, np.array(classes)))
    *arrays, classes = kept
    return ImageSet("folder", *arrays, tuple(classes.tolist()), *_statistics(arrays[0]))


def _read_cache(cache, count):
    """The `count` arrays that _write_cache wrote, which have the zip file's checksums; None if it is anything else."""
    try:
        refuse_inflated(cache)
        with np.load(cache) as stored:
            arrays = tuple(stored.values())
    except (OSError, EOFError, ValueError, TypeError, MemoryError, zipfile.BadZipFile):
        return None  # none yet, or not whole: it is made anew
    images, labels = arrays[0:4:2], arrays[1:4:2]
    sound = len(arrays) == count and {array.dtype for array in images} == {np.dtype(np.uint8)}
    sound = sound and images[0].ndim in (3, 4) and images[0].shape[1:] == images[1].shape[1:]
    return arrays if sound and all((array.dtype, array.ndim) == (np.int64, 1) for array in labels) else None


def _write_cache(cache, arrays):
    cache.parent.mkdir(exist_ok=True)
    with replacing(cache) as file:
        np.savez(file, *arrays)
    return arrays


def _load_real(name, root, data_url):
    require_torchvision()
    sources = archives(name)
    files = {file: md5 for archive in sources for file, md5 in archive.files.items()}
    if not all((root / file).is_file() for file in files):
        with only_one_process(root):  # another process may be about to put the files there
            for archive in sources:
                if not all((root / file).is_file() for file in archive.files):
                    _get(archive, root, data_url)
    if problem := first_problem(root, files):
        raise SuiteError(*problem, "delete it and run again", DATA)
    image_set = _real_set(name, _decode(name, root, files))
    if (found := checksum(image_set)) != SHA256[name]:
        raise SuiteError(
            f"data set {name} in {root} comes out wrong, although its files are right",
            f"decoded, it has the SHA-256 {found} instead of {SHA256[name]}",
            "run again, and test this machine's memory if it happens again",
            DATA,
        )
    with contextlib.suppress(OSError, SuiteError):  # a full disk, say: decoded again next time
        _keep_decoded(image_set, root)
    return image_set


def _real_set(name, arrays):
    return ImageSet(name, *arrays, CLASSES[name], *STATISTICS[name])


def _decode(name, root, files):
    """Return training images and labels, test images and labels."""
    from torchvision.datasets import CIFAR10, mnist

    if name != "cifar10":
        read = (mnist.read_image_file, mnist.read_label_file) * 2
        return [read_file(str(root / file)).numpy() for read_file, file in zip(read, files, strict=True)]
    try:
        train, test = CIFAR10(root, train=True), CIFAR10(root, train=False)
    except RuntimeError as error:  # it sums the files again, before it unpickles them
        raise SuiteError(f"data set {name} in {root} is damaged", str(error), "delete it and run again", DATA) from None
    return [
        np.ascontiguousarray(values)  # torchvision's images are a transposed view
        for split in (train, test)
        for values in (split.data, split.targets)
    ]


def _decoded_files(name, root):
    return [root / "decoded" / f"{name}-{part}.npy" for part in ARRAYS]


def _keep_decoded(image_set, root):
    (root / "decoded").mkdir(exist_ok=True)
    for file, part in zip(_decoded_files(image_set.name, root), ARRAYS, strict=True):
        with replacing(file) as target:
            np.save(target, getattr(image_set, part))


def _read_decoded(name, root):
    """Return what _keep_decoded wrote, mapped into memory; None unless it is there and its checksum is the known one.

    Every byte is read for that, so that it does not matter what has become of the files that were decoded.
    """
    try:
        image_set = _real_set(
            name, [np.asarray(np.load(regular(file), mmap_mode="c")) for file in _decoded_files(name, root)]
        )
        return image_set if checksum(image_set) == SHA256[name] else None
    except Exception:  # what NumPy raises for a damaged header is of many kinds
        return None


def _get(archive, root, data_url):
    path = root / archive.name
    if path.is_file() and md5_of(path) == archive.md5:  # somebody has put it there
        unpack(archive, path, root)
        return
    if sys.stderr.isatty():
        print(f"Downloading {archive.name} to {root}", file=sys.stderr)
    path = root / f"{archive.md5[:8]}-{archive.name}"  # MNIST's archives are called like Fashion-MNIST's
    places = [data_url] if data_url else archive.mirrors
    download([f"{place.rstrip('/')}/{archive.name}" for place in places], path, archive.md5)
    try:
        unpack(archive, path, root)
    finally:
        path.unlink()  # what it held has been checked on its own
