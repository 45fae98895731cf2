"""Writes anew what the project's pages hold of its code and its results: `make docs`.

    python benchmarks/docs.py

docs/*.schema.json are JSON schemas (2020-12) of the files that this project writes, made of the dataclasses that are
read from them. In a page, what stands between <!-- NAME --> and <!-- end --> is made of committed JSON.
"""

import json
import sys
from pathlib import Path

import msgspec

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.files.results import PHASES, RunResult  # noqa: E402
from common.files.writing import write_text  # noqa: E402
from common.settings.config import FLAGS, RunConfig  # noqa: E402
from comparison.record import Report  # noqa: E402
from comparison.results_file import SCHEMA_VERSION  # noqa: E402

DOCS = PROJECT / "docs"


def schema(kind: type) -> dict:
    """Return the schema of a record: a file has all of its fields, and no others but in a comparison's settings."""
    made = msgspec.json.schema(kind)
    for name, part in made["$defs"].items():
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
        if name in ("Settings", "Environment"):  # a TypedDict, which says what may be missing
            part["additionalProperties"] = name == "Settings"
        else:
            part |= {"required": [*part["properties"]], "additionalProperties": False}
    for name, phase in PHASES.items():
        made["$defs"]["PhaseTimes"]["properties"][name]["description"] = phase.meaning
    flags = msgspec.json.schema(RunConfig)["$defs"]["RunConfig"]["properties"]
    for name, about in FLAGS.items():
        flags[name] = {**flags[name], "description": about.help.replace("%(default)s", "default")}
    made["$defs"]["RunResult"]["properties"]["config"] = {
        "type": "object",
        "description": "the flags' values, and those of the script's own flags",
        "properties": flags,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def comparison() -> dict:
    """Return the schema of a comparison's results.json."""
    made = schema(Report)
    own = {
        "schema_version": {"const": SCHEMA_VERSION},
        "sha256": {
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
            "description": "of the other values as JSON with sorted keys, as Python's json writes it",
        },
    }
    report = made["$defs"]["Report"]
    report["properties"] |= own
    report["required"] += own
    return made


def made() -> dict[Path, str]:
    """Return what each file is to say."""
    schemas = {"run-result": schema(RunResult), "results": comparison()}
    return {
        DOCS / f"{name}.schema.json": json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        for name, value in schemas.items()
    }


if __name__ == "__main__":
    for file, text in made().items():
        write_text(text, file)
