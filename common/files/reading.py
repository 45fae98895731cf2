"""Files that a command is given to read, and records, which are frozen dataclasses, from the JSON in them."""

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
LARGEST_TEXT = 2**28  # bytes; a results.json of a thousand runs has 20 MB
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def regular(path: str | Path) -> Path:
    """Return `path`; raise ValueError if it is a FIFO, which would wait for a writer, a device, or the like."""
    if kind := KINDS.get(stat.S_IFMT(os.stat(path).st_mode)):
        raise ValueError(f"it is {kind}, no file")
    return Path(path)


def read_text(path: str | Path) -> str:
    """Return the text of a file; raise ValueError if it is not UTF-8, or larger than LARGEST_TEXT."""
    size = regular(path).stat().st_size
    if size > LARGEST_TEXT:
        raise ValueError(f"it has {size:,} bytes")
    return Path(path).read_text(encoding="utf-8")


def refuse_inflated(path: str | Path) -> None:
    """Raise ValueError if an archive would become larger than it is, or is compressed, as none of this project's is."""
    size = regular(path).stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        if unpacked > size or any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError(f"it is compressed: its {size:,} bytes would become {unpacked:,}")


def read_json(path: str | Path) -> Any:
    """Return what a file of JSON says.

    Raises OSError, ValueError or RecursionError if it says nothing, or a number is infinite or has more than 64 bits.
    """
    return json.loads(read_text(path), parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def _whole(text):
    if abs(number := int(text)) >= 2**63:
        raise ValueError(f"{reprlib.repr(text)} is too large a number")
    return number


def _finite(text):
    if not math.isfinite(number := float(text)):
        raise ValueError("a number in it is infinite")
    return number


def without_nan(value):
    """Return a copy of `value`, made of records and JSON's types, as JSON: with null for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return {field.name: without_nan(getattr(value, field.name)) for field in fields(value)}


def as_record(values: object, kind: type[Record]) -> Record:
    """Return the record that `values`, of JSON's types, were written from: they have all its fields and no others.

    Raises ValueError, which says where they do not fit.
    """
    import msgspec  # a command line is parsed before it is known whether there is one

    record = msgspec.convert(values, kind)
    written = without_nan(record)
    if written != values and written != (found := without_nan(values)):
        found, written = dict(_leaves(found)), dict(_leaves(written))
        place = min(place for place in {**found, **written} if found.get(place, ...) != written.get(place, ...))
        how = "missing" if place not in found else "unknown" if place not in written else reprlib.repr(found[place])
        raise ValueError(f"{place} is {how}")
    return record


def _leaves(values, place="$") -> Iterator[tuple[str, Any]]:
    """Every value within `values`, and where it is, e.g. "$.epochs[0].steps"."""
    parts = {}
    if isinstance(values, dict):
        parts = {f"{place}.{name}": value for name, value in values.items()}
    elif isinstance(values, list):
        parts = {f"{place}[{index}]": value for index, value in enumerate(values)}
    if not parts:
        yield place, values
    for name, value in parts.items():
        yield from _leaves(value, name)
