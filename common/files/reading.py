"""Files that a command is given to read: one that is none, or has no end, is found out before it is opened."""

import os
import stat
import zipfile
from pathlib import Path

LARGEST_TEXT = 2**28  # bytes; a results.json of a thousand runs has 20 MB
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def regular(path: str | Path) -> Path:
    """Return `path`; raise ValueError if it is a FIFO, which would wait for a writer, a device, which may have no end,
    or the like; FileNotFoundError if it is missing."""
    kind = KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    if kind:
        raise ValueError(f"it is {kind}, no file")
    return Path(path)


def read_text(path: str | Path) -> str:
    """Return the text of a file, which is UTF-8; raises ValueError if it is none, or larger than LARGEST_TEXT."""
    path = regular(path)
    size = path.stat().st_size
    if size > LARGEST_TEXT:
        raise ValueError(f"it has {size:,} bytes")
    return path.read_text(encoding="utf-8")


def refuse_inflated(path: str | Path) -> None:
    """Raise ValueError if an archive would become larger than it is, or is compressed, as none of this project's is."""
    size = regular(path).stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        if unpacked > size:
            raise ValueError(f"its {size:,} bytes would become {unpacked:,}")
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("it is compressed")
