"""The files of the data sets that are downloaded: checked, fetched where they are missing, and unpacked."""

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

from common.errors import DATA, SuiteError
from common.files.writing import replacing
from common.settings.datasets import Archive

PATIENCE = 2.0  # seconds to wait in silence for another process
STALL_SECONDS = 30.0  # without a single byte


def are_there(root: Path, files: Mapping[str, str]) -> bool:
    return all((root / file).is_file() for file in files)


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_checked(root: Path, files: Mapping[str, str]) -> list[bytes]:
    """Return the content of each file; 0.3 s for CIFAR-10.

    Raises SuiteError (DATA) for the first that is not as it was published.
    """
    contents = []
    for path, md5 in ((root / file, md5) for file, md5 in files.items()):
        if not path.is_file():
            raise SuiteError(f"{path} is missing", "no such file", "delete it and run again", DATA)
        contents.append(content := path.read_bytes())
        if (digest := md5_of(content)) != md5:
            found = f"its {len(content):,} bytes have the md5 {digest} instead of {md5}"
            raise SuiteError(f"{path} is damaged", found, "delete it and run again", DATA)
    return contents


def get(archive: Archive, places: Sequence[str], root: Path) -> None:
    """Put the files of an archive below `root`: from the archive there, if somebody has put it there, or downloaded.

    To be called with the lock held. Raises SuiteError (DATA).
    """
    path = root / archive.name
    content = path.read_bytes() if path.is_file() else b""
    if md5_of(content) != archive.md5:
        if sys.stderr.isatty():
            print(f"Downloading {archive.name} to {root}", file=sys.stderr)
        content = _download(archive, places)
    for name, source in _members(archive, content):
        with replacing(root / name) as target:
            shutil.copyfileobj(source, target)


def _members(archive, content):
    """(Path below the data directory, open file) of each of the archive's files that is wanted."""
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            yield from ((member.name, tar.extractfile(member)) for member in tar if member.name in archive.files)
    else:
        yield from ((name, io.BytesIO(gzip.decompress(content))) for name in archive.files)


def _download(archive, places):
    """The content of an archive from the first place that has it; SuiteError (DATA) with what was wrong with each."""
    problems = []
    for url in (f"{place.rstrip('/')}/{archive.name}" for place in places):
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
def only_one_process(root: Path) -> Iterator[None]:
    """Hold a lock on the data directory, which is made: whoever comes second waits, and then finds the data there."""
    lock = FileLock(root / ".lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            print(f"Waiting for another process, which writes data to {root}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        advice = "name another directory with --data-root"
        raise SuiteError(f"cannot write data to {root}", error.strerror or str(error), advice, DATA) from None
    try:
        yield
    finally:
        lock.release()
