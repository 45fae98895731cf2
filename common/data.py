"""Data sets from disk, network or thin air, checked before they are used, and the loaders of one rank.

    python -m common.data --dataset mnist --data-root ./data

downloads or generates a data set ahead of time; the training scripts do the same when they need it.
"""

import contextlib
import fcntl
import hashlib
import socket
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import synthetic
from common.augment import training_transform
from common.config import OneLineParser, RunConfig, add_training_flags, per_process, total_workers
from common.environment import require_torchvision
from common.errors import DATA, USAGE, SuiteError, run_script
from common.lifetime import end_with_parent
from common.results import replacing

# md5 of the files inside the archives, whose own md5 torchvision checks when it downloads them (it checks no more
# once they are unpacked). CIFAR-10's are taken from torchvision.
MNIST_MD5 = {
    "mnist": {
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
# Mean and standard deviation of the training images' pixels per channel, on a 0..1 scale; a test recomputes them.
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}
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


def load_image_set(config: RunConfig) -> ImageSet:
    """Return the data set that `config` names, cut to its train_size; downloads or generates it if need be.

    Raises SuiteError (DATA) if it is missing and cannot be had, if a file is damaged, or if train_size is too large.
    """
    require_torchvision()
    loader = _load_synthetic if config.dataset in SYNTHETIC else _load_real
    image_set = loader(config.dataset, Path(config.data_root))
    size = config.train_size
    if size is None:
        return image_set
    if size > len(image_set.train_labels):
        raise SuiteError(f"--train-size {size} is more than {config.dataset} has",
                         f"{len(image_set.train_labels)} training images", "give less, or leave the flag out",
                         DATA)
    return replace(
        image_set, train_images=image_set.train_images[:size], train_labels=image_set.train_labels[:size]
    )


def _load_synthetic(name, root):
    generate, classes = SYNTHETIC[name]
    version = hashlib.md5(Path(synthetic.__file__).read_bytes(), usedforsecurity=False).hexdigest()[:8]
    cache = root / "synthetic" / f"{name}-{version}.npz"
    arrays = _read_cache(cache)
    if arrays is None:
        with _only_one_process(root):
            arrays = _read_cache(cache) or _write_cache(cache, tuple(generate()))
    pixels = arrays[0].reshape(-1, 3 if arrays[0].ndim == 4 else 1)
    mean, std = (tuple((statistic(axis=0) / 255).tolist()) for statistic in (pixels.mean, pixels.std))
    return ImageSet(name, *arrays, classes, mean, std)


def _read_cache(cache):
    try:
        with np.load(cache) as stored:
            return tuple(stored.values())
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None  # none yet, or not whole: it is made anew


def _write_cache(cache, arrays):
    cache.parent.mkdir(exist_ok=True)
    with replacing(cache) as file:
        np.savez(file, *arrays)
    return arrays


def _load_real(name, root):
    from torchvision import datasets

    reader = {"cifar10": datasets.CIFAR10, "mnist": datasets.MNIST, "fashion-mnist": datasets.FashionMNIST}[name]
    folder = reader.base_folder if name == "cifar10" else ""
    checksums = MNIST_MD5.get(name) or {
        f"{folder}/{file}": md5
        for file, md5 in [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    }
    if _damage(root, checksums):
        with _only_one_process(root):  # another process may be about to put the files there
            if not all((root / file).is_file() for file in checksums):
                _download(reader, name, root)
            if damage := _damage(root, checksums):
                raise SuiteError(*damage, "delete it and run again", DATA)
    train, test = reader(root, train=True), reader(root, train=False)
    arrays = (np.asarray(values) for split in (train, test) for values in (split.data, split.targets))
    return ImageSet(name, *arrays, tuple(train.classes), *STATISTICS[name])


def _damage(root, checksums):
    """Return what is wrong with the first of `checksums`' files that is not as it should be, or None."""
    for file, expected in checksums.items():
        if not (root / file).is_file():
            return f"{root / file} is missing", "no such file"
        found = hashlib.md5((root / file).read_bytes(), usedforsecurity=False).hexdigest()
        if found != expected:
            return f"{root / file} is damaged", f"its md5 is {found} instead of {expected}"
    return None


def _download(reader, name, root):
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)  # torchvision sets none: a silent server would hang the run for ever
    try:
        for train in (True, False):
            reader(root, train=train, download=True)
    except (OSError, RuntimeError) as error:  # URLError is an OSError
        raise SuiteError(f"data set {name} is not in {root} and cannot be downloaded", str(error),
                         "connect to the network, copy the files there, or type --dataset synthetic-"
                         + ("cifar10" if name == "cifar10" else "mnist"), DATA) from None
    finally:
        socket.setdefaulttimeout(previous)


@contextlib.contextmanager
def _only_one_process(root):
    """Hold a lock on the data directory: whoever comes second waits, and then finds the data there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = open(root / ".lock", "w")  # noqa: SIM115 - closed by the `with` below
    except OSError as error:
        raise SuiteError(f"cannot put data into {root}", error.strerror or str(error),
                         "name another directory with --data-root", DATA) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed
        yield


class TransformedImages:
    """A map-style Dataset: index → (transform(image as PIL), label)."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


def make_loaders(
    image_set: ImageSet, config: RunConfig, rank: int = 0, world_size: int = 1, pin_memory: bool = False
) -> tuple[DataLoader, DataLoader]:
    """Return (train_loader, test_loader) of one rank; batches are images (B, C, H, W) float32 and labels (B,) int64.

    Training: batch k of all ranks together is the same set of images for every world size, because DistributedSampler
    deals out one permutation in turn. At most world_size - 1 images per epoch are left out, so that all ranks take
    equally many steps; none is used twice. Test: every world_size-th image, without padding, so that over all ranks
    each image counts once. Raises SuiteError (USAGE) if batch size or workers do not divide by the world size.
    """
    batch_size = per_process("--batch-size", config.batch_size, world_size)
    workers = per_process("--num-workers", total_workers(config.num_workers, world_size), world_size)
    if len(image_set.train_labels) < world_size:
        raise SuiteError("every rank needs an image", f"{len(image_set.train_labels)} images for {world_size} ranks",
                         "give a larger --train-size", USAGE)
    transform = training_transform(image_set.mean, image_set.std, config.augment)
    train = TransformedImages(image_set.train_images, image_set.train_labels, transform)
    sampler = DistributedSampler(train, world_size, rank, shuffle=True, seed=config.seed, drop_last=True)
    train_loader = DataLoader(
        train, batch_size, sampler=sampler, num_workers=workers, pin_memory=pin_memory, persistent_workers=workers > 0,
        worker_init_fn=end_with_parent,
    )
    shard = slice(rank, None, world_size)
    test = TensorDataset(
        normalize(image_set.test_images[shard], image_set.mean, image_set.std),
        torch.from_numpy(image_set.test_labels[shard]),
    )
    return train_loader, DataLoader(test, batch_size, pin_memory=pin_memory)


def normalize(images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """Return uint8 images (N, H, W[, C]) as float32 (N, C, H, W), as torchvision's ToTensor and Normalize do."""
    tensor = torch.from_numpy(images.reshape(*images.shape[:3], -1)).permute(0, 3, 1, 2)
    scaled = tensor.contiguous().float().div_(255)
    return scaled.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))


def main() -> None:
    """Download or generate the data set that the command line names."""
    parser = OneLineParser(prog="-m common.data", description=__doc__, allow_abbrev=False)
    add_training_flags(parser)
    arguments = parser.parse_args()
    image_set = load_image_set(arguments)
    print(f"{image_set.name}: {len(image_set.train_labels)} training and {len(image_set.test_labels)} test images")


if __name__ == "__main__":
    run_script(main)
