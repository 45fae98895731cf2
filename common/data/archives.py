"""Files of downloaded data sets: download, unpack and check."""

import contextlib
import gzip
import hashlib
import io
import shutil
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import DATA, SuiteError, remedy
from common.files.writing import atomic_write
from common.settings.datasets import Archive

PATIENCE = 2.0  # seconds to wait for another process before printing a message
STALL_SECONDS = 30.0  # timeout of a connection that delivers nothing


def all_exist(root: Path, files: Mapping[str, str]) -> bool:
    return all((root / file).is_file() for file in files)


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_checked(root: Path, files: Mapping[str, str]) -> list[bytes]:
    """Return the contents of the files; takes 0.3 s for CIFAR-10.

    files: path below `root` → md5. Raises SuiteError (DATA) if a file is missing or has another md5.
    """
    contents = []
    for file, md5 in files.items():
        path = root / file
        if not path.is_file():
            raise SuiteError(f"{path} is missing", "no such file", "delete it and run again", DATA)
        content = path.read_bytes()
        if (digest := md5_of(content)) != md5:
            found = f"its {len(content):,} bytes have the md5 {digest} instead of {md5}"
            raise SuiteError(f"{path} is damaged", found, "delete it and run again", DATA)
        contents.append(content)
    return contents


def fetch_archive(archive: Archive, places: Sequence[str], root: Path) -> None:
    """Unpack an archive below `root`, from a valid copy in `root` or else from a download.

    places: URLs of directories. The caller holds the lock (data_lock()). Raises SuiteError (DATA).
    """
    path = root / archive.name
    content = path.read_bytes() if path.is_file() else b""
    if (digest := md5_of(content)) != archive.md5:
        if sys.stderr.isatty():
            print(f"Downloading {archive.name} to {root}", file=sys.stderr)
        wrong = [f"{path}: {len(content):,} bytes, whose md5 is {digest} instead of {archive.md5}"] if content else []
        content = _download(archive, places, wrong)
    for name, source in _members(archive, content):
        with atomic_write(root / name) as target:
            shutil.copyfileobj(source, target)


def _members(archive, content):
    """Yield (path below the data directory, open file) for each file of the archive that is needed."""
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:  # in their order: going back decompresses the archive again
                if member.name in archive.files:
                    yield member.name, tar.extractfile(member)
    else:
        (name,) = archive.files
        yield name, io.BytesIO(gzip.decompress(content))


def _download(archive, places, problems):
    """Return the archive from the first place that has it. Raise SuiteError (DATA), with all problems, if none has."""
    for place in places:
        url = f"{place.rstrip('/')}/{archive.name}"
        try:
            with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response:
                content = response.read()
        except (OSError, HTTPException, ValueError) as error:
            problems.append(f"{url}: {error}")
            continue
        if (digest := md5_of(content)) == archive.md5:
            return content
        kind = response.headers.get_content_type()
        problems.append(f"{url}: {len(content):,} bytes of {kind}, whose md5 is {digest} instead of {archive.md5}")
    advice = "connect to the network, name another place with --data-url, copy the files to --data-root, or "
    advice += "train on a set that needs none: --dataset synthetic-mnist or synthetic-cifar10"
    raise SuiteError(f"cannot download {archive.name}", "; ".join(problems), advice, DATA)


@contextlib.contextmanager
def data_lock(root: Path) -> Iterator[None]:
    """Create the data directory and hold a lock on it. A second process waits, and then finds the data there."""
    lock = FileLock(root / ".lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            print(f"Waiting for another process, which writes data to {root}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        advice = remedy(error, "name another directory with --data-root")
        raise SuiteError(f"cannot write data to {root}", error.strerror or str(error), advice, DATA) from None
    try:
        yield
    finally:
        lock.release()
