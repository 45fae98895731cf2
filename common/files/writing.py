"""Atomic writing of files."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from common.errors import FAILED, NO_SPACE, USAGE, SuiteError, remedy
from common.files.reading import FILE_KINDS, to_json_types

_mounts: dict[Path, Path] = {}  # directory → the mount point that it was below, when check_writable() was called
TORN = "[0-9a-f]" * 8 + ".part"  # glob pattern for the suffix of a temporary file


@contextlib.contextmanager
def atomic_write(path: str | Path):
    """Yield a temporary binary file that replaces `path` once all of it is on disk.

    If `path` is a symbolic link, its target is replaced. An existing file keeps its mode and owner; a new one gets 0666
    less the umask. Raises SuiteError (USAGE) if `path` is not a regular file, and (FAILED) if it cannot be written.
    """
    path = file_behind(path)
    with _explained(path):
        _refuse_unmounted(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted since check_writable()
        remove_torn([path])
        part = _new_part(path)
        try:
            with part:
                yield part
                part.flush()
                _keep_mode(part.fileno(), path)
                os.fsync(part.fileno())
                os.replace(part.name, path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError), _opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)  # so that the rename survives a power failure; not all file systems support this


def _refuse_unmounted(directory):
    """Raise OSError if the disk of a checked directory was unmounted: what is written there now would seem lost."""
    directory.exists()  # lets an automounter mount it
    mount = _mounts.get(directory, Path("/"))
    if not os.path.ismount(mount):
        raise OSError(errno.ENODEV, f"{mount} is not mounted any more")


@contextlib.contextmanager
def _explained(path):
    """Raise SuiteError (FAILED) instead of an OSError while `path` is written."""
    try:
        yield
    except Exception as error:
        for cause in (error, error.__context__):  # torch.save raises another error because of it
            if isinstance(cause, OSError):
                what, found = f"cannot write all of {path}", cause.strerror or str(cause)
                mend = "free some space" if cause.errno in NO_SPACE else "check its directory and disk"
                raise SuiteError(what, found, remedy(cause, f"{mend}, or write elsewhere"), FAILED) from error
        raise


@contextlib.contextmanager
def _opened(path, how):
    descriptor = os.open(path, how)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def file_behind(path: str | Path, flag: str = "") -> Path:
    """Return the path behind symbolic links; the file need not exist. Raise SuiteError (USAGE), which names `flag`, if
    it is not a regular file or if the name is invalid."""
    by_flag = f" with {flag}" if flag else ""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG
    except (OSError, ValueError) as error:  # a loop of links; a name that is too long or contains a null byte
        found = getattr(error, "strerror", None) or str(error)
        raise SuiteError(f"cannot write {path}", found, f"name another file{by_flag}", USAGE) from None
    if kind != stat.S_IFREG:
        raise SuiteError(f"cannot write {path}", f"it is {FILE_KINDS[kind]}", f"name a file instead{by_flag}", USAGE)
    return Path(os.path.realpath(path))


def remove_torn(files: Iterable[Path]) -> None:
    """Delete temporary files of `files` left by killed programs. Running programs hold a lock on theirs."""
    for file in files:
        for torn in file.parent.glob(glob.escape(short_name(file.name)) + TORN):
            with contextlib.suppress(OSError), _opened(torn, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if its program is running
                torn.unlink()


def _new_part(path):
    """Return a new temporary file next to `path`, locked while it is open."""
    while True:
        name = path.with_name(f"{short_name(path.name)}{secrets.token_hex(4)}.part")
        part = open(name, "xb")  # noqa: SIM115 - the caller closes it
        with contextlib.suppress(OSError):  # without file locks, remove_torn() deletes nothing
            fcntl.flock(part, fcntl.LOCK_EX)
        if os.fstat(part.fileno()).st_nlink:
            return part
        part.close()  # remove_torn() deleted it before it was locked


def short_name(name: str) -> str:
    """Return `name`; if it is too long for a file name with a suffix, its beginning and a checksum."""
    encoded = os.fsencode(name)
    if len(encoded) <= 200:
        return name
    return f"{encoded[:180].decode(errors='ignore')}-{hashlib.sha256(encoded).hexdigest()[:8]}"


def _keep_mode(descriptor, path):
    with contextlib.suppress(FileNotFoundError):
        before = path.stat()
        with contextlib.suppress(OSError):  # only root may change the owner
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, before.st_mode & 0o777)


def write_json(value: object, path: str | Path) -> None:
    """Write `value` as JSON, atomically. NaN and infinity, which JSON does not have, become null."""
    import msgspec  # here, because this module is imported before the packages are checked

    text = json.dumps(to_json_types(value), ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass")
    indented = msgspec.json.format(text, indent=1)  # json.dumps() itself takes five times as long with an indent
    with atomic_write(path) as file:  # surrogates: of paths that are not UTF-8
        file.write(indented.decode(errors="surrogatepass").encode(errors="backslashreplace"))


def write_text(text: str, path: str | Path) -> None:
    """Write a text in UTF-8, atomically. Paths in it that are not UTF-8 keep their bytes."""
    with atomic_write(path) as file:
        file.write(text.encode(errors="surrogateescape"))


def check_writable(directory: str | Path, flag: str) -> None:
    """Create `directory` and a temporary file in it. Raise SuiteError (USAGE), which names `flag`, if that fails."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        place = Path(os.path.realpath(directory))
        _mounts[place] = next(parent for parent in (place, *place.parents) if os.path.ismount(parent))
    except OSError as error:
        advice = remedy(error, f"name another directory with {flag}, or free this one")
        raise SuiteError(f"cannot write to {directory}", error.strerror or str(error), advice, USAGE) from None
