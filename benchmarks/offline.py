"""Packs packages and data sets for a machine without a network."""

import platform
import tarfile
from pathlib import Path

import numpy as np
from measure import call, config_of

from common.data.archives import all_exist
from common.data.image_set import load_image_set
from common.files.writing import atomic_write
from common.settings.datasets import DATASETS

PARTS = 3  # of CIFAR-10


def write_bundle(directory: Path, missing: list[str], version: str, root: Path) -> None:
    """Write packages for another Python version on Linux to directory/site, and the data sets in `root` to directory.

    CIFAR-10 is split into PARTS of less than 45 MiB, for machines that limit the size of an upload.
    """
    if missing:
        platforms = (f"--platform=manylinux{kind}_{platform.machine()}" for kind in ("2014", "_2_17", "_2_27", "_2_28"))
        how = (*platforms, "--only-binary=:all:", "--no-deps", "--upgrade", f"--python-version={version}")
        call("-m", "pip", "install", "--quiet", f"--target={directory.resolve() / 'site'}", *how, *missing)
    directory.mkdir(parents=True, exist_ok=True)
    if all_exist(root, files := DATASETS["mnist"].files):
        with tarfile.open(directory / "mnist.tar.gz", "w:gz") as archive:
            for file in files:
                archive.add(root / file, file)
    if has("cifar10", root):
        load_image_set(config_of(dataset="cifar10", data_root=str(root)))  # writes the decoded arrays
        arrays = {file.stem: np.load(file) for file in (root / "decoded").glob("cifar10-*.npy")}
        for part in range(PARTS):
            some = {name: differences(np.array_split(array, PARTS)[part]) for name, array in arrays.items()}
            np.savez_compressed(directory / f"cifar10-{part + 1}.npz", **some)
    for file in sorted(file for file in directory.iterdir() if file.is_file()):
        print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


def read_bundle(directory: Path, root: Path) -> None:
    """Unpack the data sets of a bundle into `root`; CIFAR-10 once all of its parts are present."""
    if (archive := directory / "mnist.tar.gz").exists() and not has("mnist", root):
        with tarfile.open(archive) as opened:
            opened.extractall(root, filter="data")
    files = [*directory.glob("cifar10-*.npz")]
    if len(files) == PARTS and not has("cifar10", root):
        parts = [np.load(file) for file in sorted(files)]
        for name in sorted(parts[0].files, reverse=True):  # -about last, as has() looks for it
            with atomic_write(root / "decoded" / f"{name}.npy") as file:
                np.save(file, np.concatenate([sums(part[name]) for part in parts]))


def differences(images: np.ndarray) -> np.ndarray:
    """Return the differences of neighbouring pixels of uint8 images (N, H, W, 3), which compress to two thirds.

    sums() restores them. Other arrays are returned unchanged.
    """
    for axis in (1, 2, 3) if images.ndim == 4 else ():
        images = np.diff(images, axis=axis, prepend=np.uint8(0))
    return images


def sums(images: np.ndarray) -> np.ndarray:
    for axis in (1, 2, 3) if images.ndim == 4 else ():
        images = np.cumsum(images, axis=axis, dtype=np.uint8)
    return images


def has(name: str, root: Path) -> bool:
    return all_exist(root, DATASETS[name].files) or (root / "decoded" / f"{name}-about.npy").exists()
