"""JSON schemas (2020-12) of the files that this project writes, derived from the dataclasses that they are read into.

    python -m tests.schema

writes them anew, to docs/. A field that has a default may be missing, for older files lack it; what is written has all.
"""

import dataclasses
import json
import re
import types
import typing
from pathlib import Path

from common.files import results
from common.files.results import RunResult
from common.files.writing import write_text
from common.settings.config import FLAGS, RunConfig
from comparison import results_file
from comparison.record import Report

WHOLE = {"type": "integer", "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63}
PLAIN = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    object: {},
    int: WHOLE,
    float: {"type": ["number", "null"], "description": "null: NaN"},
    dict: {"type": "object"},
}
PAGES = Path(__file__).resolve().parent.parent / "docs"
DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def schema_of(kind: object) -> dict:
    """Return the schema of a type as it is written at a dataclass's field: the one that check_types() goes by."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return record(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(option) for option in inner]}
    if typing.is_typeddict(kind):
        return {name: part for name, part in record(kind).items() if name != "additionalProperties"}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin is tuple and inner[-1] is ...:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [schema_of(item) for item in inner],
            "minItems": len(inner),
            "maxItems": len(inner),
        }
    return PLAIN[kind]


def record(kind: type) -> dict:
    """Return the schema of a dataclass or a TypedDict, with its docstring."""
    kinds = typing.get_type_hints(kind)
    needed = (
        sorted(kind.__required_keys__, key=[*kinds].index)
        if typing.is_typeddict(kind)
        else [
            field.name
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
    )
    return {
        "type": "object",
        "description": re.sub(r"\s+", " ", kind.__doc__).strip(),
        "properties": {name: schema_of(part) for name, part in kinds.items()},
        "required": needed,
        "additionalProperties": False,
    }


def versioned(schema: dict, versions: range) -> dict:
    """Return a schema with these schema_versions, and no others."""
    return {**schema, "properties": {**schema["properties"], "schema_version": {"enum": [*versions]}}}


def run_result() -> dict:
    """Return the schema of what a training script writes to --output."""
    schema = versioned(record(RunResult), range(1, results.SCHEMA_VERSION + 1))
    flags = {
        name: {**schema_of(kind), "description": FLAGS[name].help.replace("%(default)s", "default")}
        for name, kind in typing.get_type_hints(RunConfig).items()
    }
    schema["properties"]["config"] = {
        "type": "object",
        "description": "the flags' values, and those of the script's own flags",
        "properties": flags,
    }
    return {**DIALECT, "title": "RunResult", **schema}


def comparison() -> dict:
    """Return the schema of a comparison's results.json; the first that it describes is 5."""
    schema = versioned(record(Report), range(5, results_file.SCHEMA_VERSION + 1))
    outcome = schema["properties"]["outcomes"]["items"]["properties"]
    outcome["result"] = {
        "anyOf": [{"type": "null"}, {name: part for name, part in run_result().items() if name not in DIALECT}]
    }
    schema["properties"]["sha256"] = {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "of the other values as JSON with sorted keys, as Python's json writes it",
    }
    return {**DIALECT, "title": "results.json", **schema, "required": ["schema_version", "sha256", *schema["required"]]}


SCHEMAS = {PAGES / "run-result.schema.json": run_result, PAGES / "results.schema.json": comparison}


def text_of(schema: dict) -> str:
    """Return a schema as it stands in its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file, make in SCHEMAS.items():
        write_text(text_of(make()), file)
