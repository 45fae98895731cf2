"""Files that a command is given to read: one that is none, or has no end, is found out before it is opened."""

import dataclasses
import functools
import itertools
import math
import os
import reprlib
import stat
import types
import typing
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


class _Missing:
    """The value of a key that is not there, which fits no type."""

    def __repr__(self):
        return "missing"


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


def as_tuple(value: object) -> tuple:
    """Return a list of JSON's as a tuple; raise TypeError for a text or anything else that could be taken for one."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{reprlib.repr(value)} is no list")
    return tuple(value)


def check_types(value: object, kind: object, name: str) -> None:
    """Raise TypeError if what was read from a file is not of the type that its field has, or a part of it is not.

    kind: a type as it is written at a dataclass's field. A number may be null, which is how NaN is written; none may be
    infinite or too large for a float. What a TypedDict does not name may be anything.
    """
    if misfit := _misfit(value, kind, name):
        raise TypeError(f"{misfit[0]} is {reprlib.repr(misfit[1])}")


def _misfit(value, kind, name):
    """(Name, value) of the first part that does not fit, or None."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        misfits = [_misfit(value, option, name) for option in inner]
        return None if None in misfits else max(misfits, key=lambda misfit: len(misfit[0]))  # the nearest to fit
    if kind in (int, float):
        return None if _is_number(value, kind) else (name, value)
    if typing.is_typeddict(kind):
        origin = dict
    if not isinstance(value, origin or kind):
        return name, value
    return next(filter(None, (_misfit(*part) for part in _parts(value, kind, origin, inner, name))), None)


def _parts(value, kind, origin, inner, name):
    """(Value, type, name) of each part of a record, a tuple or a dictionary."""
    if dataclasses.is_dataclass(kind):
        for field, part in _fields(kind):
            yield getattr(value, field), part, f"{name}.{field}"
    elif typing.is_typeddict(kind):
        for key, part in _fields(kind):
            if key in value or key in kind.__required_keys__:
                yield value.get(key, _Missing()), part, f"{name}[{key!r}]"
    elif origin is list:
        for place, item in enumerate(value):
            yield item, inner[0], f"{name}[{place}]"
    elif origin is tuple:
        kinds = itertools.repeat(inner[0]) if inner[-1] is ... else inner
        for place, (item, part) in enumerate(zip(value, kinds, strict=False)):
            yield item, part, f"{name}[{place}]"
    elif origin is dict:
        for key, item in value.items():
            yield key, inner[0], f"a key of {name}"
            yield item, inner[1], f"{name}[{key!r}]"


def _is_number(value, kind):
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return kind is float and (value is None or (isinstance(value, float) and not math.isinf(value)))


@functools.cache
def _fields(kind):
    return tuple(typing.get_type_hints(kind).items())
