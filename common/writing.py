"""Files that are there whole or not at all."""

import contextlib
import json
import os
import tempfile
from pathlib import Path

from common.errors import USAGE, SuiteError


@contextlib.contextmanager
def replacing(path: str | Path):
    """Yield a binary file that becomes `path` once all of it is on disk; until then, `path` is what it was before."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp lets only the owner read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(value: dict, path: str | Path) -> None:
    """Write `value` as JSON, all or nothing; NaN and infinity, which JSON does not have, become null."""
    with replacing(path) as file:
        file.write(json.dumps(without_nan(value), indent=1, ensure_ascii=False, allow_nan=False).encode())


def without_nan(value):
    """Return a copy of `value`, made of JSON's types, with null for NaN and infinity."""
    if isinstance(value, float) and value - value != 0.0:  # NaN or infinite
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value


def check_writable(directory: str | Path) -> None:
    """Make `directory` and put a file into it, which is removed again; raise SuiteError (USAGE) if that fails."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SuiteError(f"cannot write to {directory}", error.strerror or str(error),
                         "name another directory, or free this one", USAGE) from None
