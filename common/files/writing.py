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
from common.files.reading import KINDS

LONGEST_NAME = 255  # bytes, on all of Linux's and macOS's file systems
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
            _sync_directory(path.parent)
    except BaseException as error:
        for cause in (error, error.__context__):  # torch.save hides it behind an error of its own
            if isinstance(cause, OSError):
                cause.filename = cause.filename or str(path)
        Path(part.name).unlink(missing_ok=True)
        raise


def _sync_directory(directory):
    """Let what a directory holds survive a loss of power, where its file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_behind(path: str | Path, flag: str = "") -> Path:
    """Return the file that is written where `path` is named, which may be a symbolic link; it may be missing yet.

    flag: by which it was named, if by one. Raises SuiteError (USAGE) if it is a device, a directory or the like, or if
    its name cannot be one.
    """
    by_flag = f" with {flag}" if flag else ""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG
    except (OSError, ValueError) as error:  # a circle of links; a name that is too long, or has a 0 in it
        raise SuiteError(
            f"cannot write {path}", getattr(error, "strerror", None) or str(error), f"name another file{by_flag}", USAGE
        ) from None
    if kind != stat.S_IFREG:
        raise SuiteError(f"cannot write {path}", f"it is {KINDS[kind]}", f"name a file instead{by_flag}", USAGE)
    return Path(os.path.realpath(path))


def remove_torn(files: Iterable[Path]) -> None:
    """Delete what programs that were killed while they wrote one of `files` have left: see TORN.

    One that is still at work holds a lock, wherever it runs: in another container, say.
    """
    for file in files:
        for torn in file.parent.glob(glob.escape(_shortened(file.name)) + TORN):
            with contextlib.suppress(OSError):  # somebody else's, or locked
                descriptor = os.open(torn, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    torn.unlink()
                finally:
                    os.close(descriptor)


def _new_part(path):
    """A new file beside `path`, locked as long as it is open."""
    while True:
        name = path.with_name(f"{_shortened(path.name)}{secrets.token_hex(4)}.part")
        part = open(name, "xb")  # noqa: SIM115 - for the caller
        with contextlib.suppress(OSError):  # a file system without locks; then nobody can take it for torn either
            fcntl.flock(part, fcntl.LOCK_EX)
        if os.fstat(part.fileno()).st_nlink:
            return part
        part.close()  # remove_torn() came in between


def _shortened(name):
    return os.fsdecode(os.fsencode(name)[: LONGEST_NAME - len("12345678.part")])


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


def write_json(value: dict, path: str | Path) -> None:
    """Write `value` as JSON, all or nothing; NaN and infinity, which JSON does not have, become null."""
    text = json.dumps(without_nan(value), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # of a path that is no UTF-8: JSON's way to write it


def write_text(text: str, path: str | Path) -> None:
    """Write a text in UTF-8, all or nothing; what it has of a path that is no UTF-8 keeps its bytes."""
    with replacing(path) as file:
        file.write(text.encode(errors="surrogateescape"))


def without_nan(value):
    """Return a copy of `value`, made of JSON's types, with null for NaN and infinity."""
    if isinstance(value, float) and value - value != 0.0:  # NaN or infinite
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value


def check_writable(directory: str | Path, flag: str) -> None:
    """Make `directory` and put a file into it, which is removed again; raise SuiteError (USAGE) if that fails.

    flag: by which another one is named.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SuiteError(
            f"cannot write to {directory}",
            error.strerror or str(error),
            f"name another directory with {flag}, or free this one",
            USAGE,
        ) from None
