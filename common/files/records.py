"""Records, which are frozen dataclasses, from JSON: checked against their fields' types by msgspec."""

import json
import reprlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from common.files.reading import read_text
from common.files.writing import without_nan

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def read_json(path: str | Path) -> Any:
    """Return what a file of JSON says.

    Raises OSError, ValueError or RecursionError if it says nothing, or a number is infinite or has more than 64 bits.
    """
    values = json.loads(read_text(path), parse_int=_whole)
    if values != without_nan(values):
        raise ValueError("a number in it is infinite")
    return values


def _whole(text):
    if abs(number := int(text)) >= 2**63:
        raise ValueError(f"{reprlib.repr(text)} is too large a number")
    return number


def as_record(values: object, kind: type[Record]) -> Record:
    """Return the record that `values` were written from: they have all of its fields, and no others.

    values: made of JSON's types. Raises ValueError, which says where they do not fit.
    """
    record = msgspec.convert(values, kind)
    found, written = without_nan(values), without_nan(asdict(record))
    if found != written:
        raise ValueError(_difference(found, written, "$"))
    return record


def _difference(found, written, place):
    """Where values are not those of the record that was made of them."""
    if isinstance(written, dict):
        for name in sorted(found.keys() ^ written.keys()):
            return f"{place}.{name} is {'unknown' if name in found else 'missing'}"
        parts = [(found[name], written[name], f"{place}.{name}") for name in written]
    elif isinstance(written, list):
        parts = [(*pair, f"{place}[{index}]") for index, pair in enumerate(zip(found, written, strict=True))]
    else:
        return f"{place} is {reprlib.repr(found)}"
    return next(_difference(*part) for part in parts if part[0] != part[1])
