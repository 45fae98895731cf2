"""The files of the real data sets: where they are, their checksums, and what is wrong with one that differs."""

import contextlib
import gzip
import hashlib
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import DATA, SuiteError
from common.files.writing import replacing

PATIENCE = 2.0  # seconds to wait in silence for another process


@dataclass(frozen=True)
class Archive:
    """What is downloaded: its name, its md5, the places that have it, and the md5 of each file that it unpacks to."""

    name: str
    md5: str
    mirrors: tuple[str, ...]
    files: dict[str, str]  # path below the data directory → md5


# torchvision knows the md5 of the archives, of CIFAR-10 also of the files inside; these are the others.
IDX_MD5 = {
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


def archives(name: str) -> list[Archive]:
    """Return the archives of "cifar10", "mnist" or "fashion-mnist"."""
    from torchvision import datasets

    if name == "cifar10":
        reader = datasets.CIFAR10
        inside = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
        files = {f"{reader.base_folder}/{file}": md5 for file, md5 in inside}
        return [Archive(reader.filename, reader.tgz_md5, (reader.url.removesuffix(reader.filename),), files)]
    reader = {"mnist": datasets.MNIST, "fashion-mnist": datasets.FashionMNIST}[name]
    packed = dict(reader.resources)
    return [
        Archive(f"{Path(file).name}.gz", packed[f"{Path(file).name}.gz"], tuple(reader.mirrors), {file: md5})
        for file, md5 in IDX_MD5[name].items()
    ]


def md5_of(path: Path) -> str:
    """Return the md5 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def first_problem(root: Path, files: dict[str, str]) -> tuple[str, str] | None:
    """Return (what is wrong, what was found) for the first of `files` that is not as it should be, or None.

    Each is read whole: 0.3 s for CIFAR-10.
    """
    for file, md5 in files.items():
        path = root / file
        if not path.is_file():
            return f"{path} is missing", "no such file"
        if (digest := md5_of(path)) != md5:
            size = path.stat().st_size
            found = f"its {size:,} bytes have" if size else "it is empty, with"
            return f"{path} is damaged", f"{found} the md5 {digest} instead of {md5}"
    return None


def unpack(archive: Archive, path: Path, root: Path) -> None:
    """Put the files of an archive (.tar.gz, or one file as .gz) below `root`, each all or nothing.

    To be called with the lock held. Raises SuiteError (DATA) if a member would land elsewhere, or if one is missing.
    """
    if not archive.name.endswith(".tar.gz"):
        (file,) = archive.files
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path) as source, replacing(root / file) as target:
            shutil.copyfileobj(source, target)
        return
    directory = root / ".unpacking"
    shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed
    try:
        with tarfile.open(path) as tar:
            tar.extractall(directory, filter="data")
        for file in archive.files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).replace(root / file)
    except (tarfile.TarError, FileNotFoundError) as error:
        raise SuiteError(
            f"cannot unpack {archive.name}", str(error), "get it from elsewhere with --data-url", DATA
        ) from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def only_one_process(root: Path):
    """Hold a lock on the data directory, which is made: whoever comes second waits, and then finds the data there."""
    lock = FileLock(root / ".lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            print(f"Waiting for another process, which puts data into {root}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        raise SuiteError(
            f"cannot put data into {root}",
            error.strerror or str(error),
            "name another directory with --data-root",
            DATA,
        ) from None
    try:
        yield
    finally:
        lock.release()
