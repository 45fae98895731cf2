"""The files of the data sets that are downloaded: checked, fetched where they are missing, and unpacked."""

import contextlib
import gzip
import hashlib
import shutil
import sys
import tarfile
import time
import urllib.error
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
SLOW_SECONDS, SLOWEST = 30.0, 10_000  # after so many seconds the mean rate must have reached so many bytes/s


def are_there(root: Path, files: Mapping[str, str]) -> bool:
    """Return whether all of these files are below `root`."""
    return all((root / file).is_file() for file in files)


def md5_of(path: Path) -> str:
    """Return the md5 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def read_checked(root: Path, files: Mapping[str, str]) -> list[bytes]:
    """Return the content of each file; 0.3 s for CIFAR-10.

    Raises SuiteError (DATA) for the first that is not as it was published.
    """
    contents = []
    for path, md5 in ((root / file, md5) for file, md5 in files.items()):
        if not path.is_file():
            raise SuiteError(f"{path} is missing", "no such file", "delete it and run again", DATA)
        contents.append(content := path.read_bytes())
        if (digest := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
            found = f"its {len(content):,} bytes have" if content else "it is empty, with"
            found += f" the md5 {digest} instead of {md5}"
            raise SuiteError(f"{path} is damaged", found, "delete it and run again", DATA)
    return contents


def get(archive: Archive, places: Sequence[str], root: Path) -> None:
    """Put the files of an archive below `root`: from the archive there, if somebody has put it there, or downloaded.

    To be called with the lock held. Raises SuiteError (DATA).
    """
    path = root / archive.name
    if path.is_file() and md5_of(path) == archive.md5:
        _unpack(archive, path, root)
        return
    if sys.stderr.isatty():
        print(f"Downloading {archive.name} to {root}", file=sys.stderr)
    path = root / f"{archive.md5[:8]}-{archive.name}"  # MNIST's archives are called like Fashion-MNIST's
    _download([f"{place.rstrip('/')}/{archive.name}" for place in places], path, archive.md5)
    try:
        _unpack(archive, path, root)
    finally:
        path.unlink()  # what it held has been checked on its own


def _unpack(archive, path, root):
    """Put the files of an archive below `root`, each all or nothing."""
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
        advice = "get it from elsewhere with --data-url"
        raise SuiteError(f"cannot unpack {archive.name}", str(error), advice, DATA) from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _download(urls, path, md5):
    """Fetch the first of `urls` that has the file with this md5. Until it is whole, it is called `path`.part.

    Raises SuiteError (DATA) with what was wrong with each of them.
    """
    part = path.with_name(path.name + ".part")
    problems = []
    for url in urls:
        for begun in dict.fromkeys((part.exists(), False)):  # what an earlier attempt left may be of something else
            try:
                kind = _fetch(url, part, begun)
            except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, ValueError) as error:
                problems.append(f"{url}: {error}")
                break
            digest = md5_of(part)
            if digest == md5:
                part.replace(path)
                return
            part.unlink()
            if not begun:
                page = ", it is a web page" if kind == "text/html" else ""
                problems.append(f"{url}: its md5 is {digest} instead of {md5}{page}")
    if part.exists():
        problems.append(f"{part.stat().st_size} bytes are kept in {part}, the next attempt goes on from there")
    advice = "connect to the network, name another place with --data-url, copy the files to --data-root, or "
    advice += "train on a set that needs none: --dataset synthetic-mnist or synthetic-cifar10"
    raise SuiteError(f"cannot download {path.name}", "; ".join(problems), advice, DATA)


def _fetch(url, part, begun):
    """Write to the file `part`, or append what is missing; return the content's type.

    An interrupted download is continued; raises ConnectionError if it does not all come, or not fast enough.
    """
    have = part.stat().st_size if begun else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing beyond what is here: the checksum will tell
            return error.headers.get_content_type()
        raise
    goes_on = (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
    with response, open(part, "ab" if goes_on else "wb") as file:
        length, came, start = response.headers.get("Content-Length"), 0, time.monotonic()
        while chunk := response.read1(2**16):
            file.write(chunk)
            came += len(chunk)
            seconds = time.monotonic() - start
            if seconds > SLOW_SECONDS and came / seconds < SLOWEST:
                raise ConnectionError(f"only {came / seconds / 1000:.1f} kB/s, given up after {seconds:.0f} s")
        if length is not None and came < int(length):
            raise ConnectionError(f"the server closed the connection after {came} of {length} bytes")
        return response.headers.get_content_type()


@contextlib.contextmanager
def only_one_process(root: Path) -> Iterator[None]:
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
        advice = "name another directory with --data-root"
        raise SuiteError(f"cannot put data into {root}", error.strerror or str(error), advice, DATA) from None
    try:
        yield
    finally:
        lock.release()
