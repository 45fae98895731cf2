"""Reading of untrusted files, and conversion between JSON and records (frozen dataclasses)."""

import json
import math
import os
import reprlib
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
LARGEST_TEXT = 2**28  # bytes; the results.json of a thousand runs has 20 MB
FILE_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def regular(path: str | Path) -> Path:
    """Return `path`. Raise ValueError if it is not a regular file: reading a FIFO, for example, would block."""
    if kind := FILE_KINDS.get(stat.S_IFMT(os.stat(path).st_mode)):
        raise ValueError(f"it is {kind}, no file")
    return Path(path)


def read_text(path: str | Path) -> str:
    """Return the text of a file. Raise ValueError if it is not UTF-8 or larger than LARGEST_TEXT."""
    path = regular(path)
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise ValueError(f"it has {size:,} bytes")
    return path.read_text(encoding="utf-8")


def refuse_inflated(path: str | Path) -> None:
    """Raise ValueError if a file is a compressed zip archive: a zip bomb, since torch.save() does not compress."""
    size = regular(path).stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > size or any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError(f"it is compressed: its {size:,} bytes would become {unpacked:,}")


def read_json(path: str | Path) -> Any:
    """Return the value in a JSON file. Raise OSError, ValueError or RecursionError if it cannot be read or parsed, or
    if a number is infinite or has more than 64 bits."""
    return json.loads(read_text(path), parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def _whole(text):
    if abs(number := int(text)) >= 2**63:
        raise ValueError(f"{reprlib.repr(text)} is too large a number")
    return number


def _finite(text):
    if not math.isfinite(number := float(text)):
        raise ValueError("a number in it is not finite")
    return number


def to_json_types(value):
    """Return a copy of `value` as JSON types: records become dicts, tuples lists, NaN and infinity None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, dict):
        return {key: to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_types(item) for item in value]
    return {field.name: to_json_types(getattr(value, field.name)) for field in fields(value)}


def as_record(values: object, kind: type[Record]) -> Record:
    """Convert JSON values to a record. Raise ValueError, with the place, if they do not have exactly its fields."""
    import msgspec  # here, because this module is imported before the packages are checked

    record = msgspec.convert(values, kind)
    # msgspec ignores unknown fields and fills in defaults. Writing the record again reveals both.
    written = to_json_types(record)
    if written != values and written != (found := to_json_types(values)):
        found, written = dict(_leaves(found)), dict(_leaves(written))
        place = min(place for place in {**found, **written} if found.get(place, ...) != written.get(place, ...))
        how = "missing" if place not in found else "unknown" if place not in written else reprlib.repr(found[place])
        raise ValueError(f"{place} is {how}")
    return record


def _leaves(values, place="$") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of every leaf, e.g. ("$.epochs[0].steps", 3)."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from _leaves(value, f"{place}.{name}")
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from _leaves(value, f"{place}[{index}]")
    else:
        yield place, values
