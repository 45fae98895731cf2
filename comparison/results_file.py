"""Reads and writes results.json: a comparison's raw data with a checksum."""

import os
from dataclasses import replace
from pathlib import Path

from common.errors import DATA, SuiteError, remedy
from common.files.checksums import json_checksum
from common.files.reading import as_record, read_json, to_json_types
from common.files.writing import write_json
from comparison.record import Report, Settings

SCHEMA_VERSION = 9
ANOTHER = "name the results.json of a comparison"


def write_results(report: Report, directory: Path) -> None:
    """Write results.json with a checksum and without the user's name. The report may be incomplete."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"schema_version": SCHEMA_VERSION, **without_home(to_json_types(report))}
    write_json({**values, "sha256": json_checksum(values)}, directory / "results.json")


def without_home(value, home=None):
    """Return a copy of a JSON value in which ~ replaces the home directory, as its path contains the user's name."""
    home = home or os.path.expanduser("~")  # itself where the user has none
    if isinstance(value, str):
        return value.replace(f"{home}/", "~/") if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: without_home(item, home) for key, item in value.items()}
    return [without_home(item, home) for item in value] if isinstance(value, list) else value


def read_results(path: Path) -> Report:
    """Read a results.json, but not the commands of its plan: no file may decide what this program runs.

    Raises SuiteError (DATA) if the file is missing, damaged, edited or of another schema version.
    """
    try:
        values = read_json(path)
        version, signed = values.pop("schema_version", None), values.pop("sha256", None)
        intact = signed == json_checksum({"schema_version": version, **values})
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise SuiteError(f"cannot read {path}", found, remedy(error, ANOTHER), DATA) from None
    if version != SCHEMA_VERSION:
        found = f"its schema_version is {version!r}, this program reads {SCHEMA_VERSION}"
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        advice = "update this project" if newer else "run the comparison again" if "plan" in values else ANOTHER
        raise SuiteError(f"cannot read {path}", found, advice, DATA)
    if not intact:
        raise SuiteError(
            f"{path} was changed after it was written",
            "its content does not match its checksum",
            "undo the change, or run the comparison again",
            DATA,
        )
    try:
        return _from_json(values)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SuiteError(f"cannot read {path}", f"{type(error).__name__}: {error}", ANOTHER, DATA) from None


def as_read(report: Report) -> Report:
    """Return a report as it would be after writing and reading it."""
    return _from_json(without_home(to_json_types(report)))


def _from_json(values):
    settings = {name: value for name, value in values["settings"].items() if name in Settings.__annotations__}
    plan = [{**row, "command": []} for row in values["plan"]]
    report = replace(as_record({**values, "settings": settings, "plan": plan}, Report), settings=values["settings"])
    planned = {configuration.name for configuration in report.plan}
    unknown = {*(outcome.configuration for outcome in report.outcomes), *(name for _, name in report.order)} - planned
    if any(outcome.status == "ok" and outcome.result and not outcome.result.epochs for outcome in report.outcomes):
        raise ValueError("a run is ok and has no epoch")
    if any(block.block.startswith("-") for block in (report.probe.blocks if report.probe else ())):
        raise ValueError("a block of its networks is called as a flag is")  # it would be typed behind --split-at
    if unknown or not planned:
        raise ValueError(f"runs of rows that are not in its plan: {', '.join(sorted(unknown)) or 'it has none'}")
    return report
