"""Checksums of result files, and of what was trained: a file, and the code of this package with a script."""

import hashlib
import json
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
DIGITS = 16  # of SHA-256's 64: enough to tell two versions apart
CODE = "checksum of the code"


def json_checksum(values: dict) -> str:
    """Return the SHA-256 of the other values of a JSON file, which is kept in it."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def file_checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, "missing" if there is none; DIGITS of its hexadecimal digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:DIGITS] if Path(path).is_file() else "missing"


def code_checksum(script: str | Path, package: Path = PACKAGE) -> str:
    """Return DIGITS digits of the SHA-256 of all Python files of a package, by default this one, and of a script.

    A script that is no file, as "-c" of `python -c`, does not count.
    """
    digest = hashlib.sha256()
    for file in (*sorted(package.rglob("*.py")), Path(script)):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:DIGITS]
