"""Files that are there whole or not at all."""

import contextlib
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

from common.errors import USAGE, SuiteError
from common.files.reading import KINDS, without_nan

TORN = "[a-z0-9_]" * 8 + ".part"  # what follows the name of a file that is being written


@contextlib.contextmanager
def replacing(path: str | Path):
    """Yield a binary file that becomes `path` once all of it is on disk; until then, `path` is what it was before.

    Where `path` is a symbolic link, what it leads to is replaced. The file keeps its mode and its owner; a new one gets
    what the umask leaves of 0666. Raises SuiteError (USAGE) if `path` is anything but a file.
    """
    path = file_behind(path)
    path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have deleted it since it was made
    remove_torn([path])
    part = _new_part(path)
    try:
        with part:
            yield part
            part.flush()
            _keep_mode(part.fileno(), path)
            os.fsync(part.fileno())
            os.replace(part.name, path)
        with contextlib.suppress(OSError), _opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)  # or a loss of power may undo it; not all file systems can do that
    except BaseException as error:
        for cause in (error, error.__context__):  # torch.save hides it behind an error of its own
            if isinstance(cause, OSError):
                cause.filename = cause.filename or str(path)
        Path(part.name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _opened(path, how):
    descriptor = os.open(path, how)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def file_behind(path: str | Path, flag: str = "") -> Path:
    """Return the file, which may be missing yet, that is written where `path`, perhaps a symbolic link, is named by a
    flag. Raises SuiteError (USAGE) for what is no file, or a name that cannot be one."""
    by_flag = f" with {flag}" if flag else ""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG
    except (OSError, ValueError) as error:  # a circle of links; a name that is too long, or has a 0 in it
        found = getattr(error, "strerror", None) or str(error)
        raise SuiteError(f"cannot write {path}", found, f"name another file{by_flag}", USAGE) from None
    if kind != stat.S_IFREG:
        raise SuiteError(f"cannot write {path}", f"it is {KINDS[kind]}", f"name a file instead{by_flag}", USAGE)
    return Path(os.path.realpath(path))


def remove_torn(files: Iterable[Path]) -> None:
    """Delete what programs that were killed while they wrote one of `files` have left; one at work holds a lock."""
    for file in files:
        for torn in file.parent.glob(glob.escape(short_name(file.name)) + TORN):
            with contextlib.suppress(OSError), _opened(torn, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails for somebody else's
                torn.unlink()


def _new_part(path):
    """A new file beside `path`, locked as long as it is open."""
    while True:
        name = path.with_name(f"{short_name(path.name)}{secrets.token_hex(4)}.part")
        part = open(name, "xb")  # noqa: SIM115 - for the caller
        with contextlib.suppress(OSError):  # a file system without locks; then nobody can take it for torn either
            fcntl.flock(part, fcntl.LOCK_EX)
        if os.fstat(part.fileno()).st_nlink:
            return part
        part.close()  # remove_torn() came in between


def short_name(name: str) -> str:
    """Return `name`, or, where it leaves no room for an ending in the name of a file, its beginning and a checksum."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= 200 else f"{os.fsdecode(encoded[:180])}-{hashlib.sha256(encoded).hexdigest()[:8]}"


def _keep_mode(descriptor, path):
    with contextlib.suppress(FileNotFoundError):
        before = path.stat()
        with contextlib.suppress(OSError):  # only root may give a file away, to one whom its container knows
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, before.st_mode & 0o777)


def write_json(value: object, path: str | Path) -> None:
    """Write `value` as JSON, all or nothing; NaN and infinity, which JSON does not have, become null."""
    text = json.dumps(without_nan(value), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # of a path that is no UTF-8: JSON's way to write it


def write_text(text: str, path: str | Path) -> None:
    """Write a text in UTF-8, all or nothing; what it has of a path that is no UTF-8 keeps its bytes."""
    with replacing(path) as file:
        file.write(text.encode(errors="surrogateescape"))


def check_writable(directory: str | Path, flag: str) -> None:
    """Make `directory` and try to write there; raise SuiteError (USAGE), which names `flag`, if that fails."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        what, advice = f"cannot write to {directory}", f"name another directory with {flag}, or free this one"
        raise SuiteError(what, error.strerror or str(error), advice, USAGE) from None
