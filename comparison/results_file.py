"""A comparison as results.json, out and in: raw, with a checksum, of this schema or an older one."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from common.errors import DATA, SuiteError
from common.files.probe import probe_from_dict
from common.files.reading import as_tuple, check_types, read_text
from common.files.results import result_from_dict, spans_from
from common.files.writing import without_nan, write_json
from comparison.record import Equivalence, Report
from comparison.rows import CardUse, Configuration, Outcome, Planned, Trial

# 8 has cards and timelines; 7 has trials, and runs that are out of memory; 6 has counterparts in its plan, with role
# and against; 5 names the fields of Planned where 4 had a person's words, and has equivalence where 4 had maths, and
# results of schema 4; 4 has results of schema 3; 3 has foreign_cores where 2 had the load average.
SCHEMA_VERSION = 8
SETTINGS_BEFORE_5 = {
    "global batch": "batch_size",
    "workers": "num_workers",
    "threads per device": "threads",
    "per-device batch": "per_device_batch_size",
}


def write_results(report: Report, directory: Path) -> None:
    """Write results.json: all that is known so far, raw, with a checksum over it and without the user's name."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"schema_version": SCHEMA_VERSION, **_values(report)}
    write_json({**values, "sha256": _checksum(values)}, directory / "results.json")


def _values(report):
    """A Report made of JSON's types, without NaN and without the user's name."""
    return without_home(without_nan(asdict(report)))


def without_home(value):
    """Return a copy of JSON's types with ~ for the home directory, whose path names the user, in every text."""
    if isinstance(value, str):
        home = os.path.expanduser("~")  # itself where the user has none
        return value.replace(f"{home}/", "~/") if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: without_home(item) for key, item in value.items()}
    return [without_home(item) for item in value] if isinstance(value, list) else value


def _checksum(values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_results(path: Path) -> Report:
    """Read what write_results wrote, without the commands of its plan: no file says what is to be run.

    Raises SuiteError (DATA) if the file is missing, truncated, of another schema, or not as it was written: numbers
    that a hand has touched are no measurement.
    """
    try:
        values = json.loads(read_text(path))
        version = values.get("schema_version")
        checksum = values.pop("sha256", None)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise SuiteError(
            f"cannot read {path}", f"{type(error).__name__}: {error}", "name the results.json of a comparison", DATA
        ) from None
    if version not in range(2, SCHEMA_VERSION + 1):
        advice = (
            "update this project"
            if isinstance(version, int) and version > SCHEMA_VERSION
            else "run the comparison again"
        )
        raise SuiteError(
            f"cannot read {path}",
            f"its schema_version is {version!r}, this program reads 2 to {SCHEMA_VERSION}",
            advice,
            DATA,
        )
    try:
        intact = checksum == _checksum(values)
    except RecursionError as error:
        raise SuiteError(
            f"cannot read {path}", f"RecursionError: {error}", "name the results.json of a comparison", DATA
        ) from None
    if not intact:
        raise SuiteError(
            f"{path} is not what was measured",
            "its content does not match its checksum: it was edited",
            "undo the change, or run the comparison again",
            DATA,
        )
    del values["schema_version"]
    try:
        return _from_values(values if version > 4 else _as_schema_5(values))
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # a run's result of a newer schema, say
        raise SuiteError(
            f"cannot read {path}", f"{type(error).__name__}: {error}", "update this project", DATA
        ) from None


def _as_schema_5(values):
    """The values of a file of schema 2 to 4 as schema 5 has them."""
    plan = [
        {**row, "planned": {SETTINGS_BEFORE_5.get(name, name): value for name, value in row["planned"].items()}}
        for row in values["plan"]
    ]
    outcomes = [{name: value for name, value in row.items() if name != "load_average"} for row in values["outcomes"]]
    kept = {name: value for name, value in values.items() if name != "maths"}
    return {**kept, "plan": plan, "outcomes": outcomes, "equivalence": values["maths"]}


def as_read(report: Report) -> Report:
    """Return a report as it would be read again from its file."""
    return _from_values(_values(report))


def _from_values(values):
    """The Report that `_values` (and JSON) made `values` from."""
    records = {
        "probe": probe_from_dict(values["probe"]) if values["probe"] else None,
        "plan": tuple(
            Configuration(**{**row, "planned": Planned(**row["planned"]), "command": ()})
            for row in as_tuple(values["plan"])
        ),
        "order": tuple((block, name) for block, name in map(as_tuple, as_tuple(values["order"]))),
        "outcomes": tuple(
            Outcome(
                **{
                    **row,
                    "result": row["result"] and result_from_dict(row["result"]),
                    "cards": tuple(CardUse(**card) for card in as_tuple(row.get("cards", ()))),
                }
            )
            for row in as_tuple(values["outcomes"])
        ),
        "looks": tuple((blocks, share) for blocks, share in map(as_tuple, as_tuple(values.get("looks", ())))),
        "trials": tuple(Trial(**trial) for trial in as_tuple(values.get("trials", ()))),
        "timelines": {name: spans_from({"timeline": spans}) for name, spans in values.get("timelines", {}).items()},
        "equivalence": {name: Equivalence(**check) for name, check in values["equivalence"].items()},
    }
    report = Report(**{**values, **records})
    check_types(report, Report, "report")
    planned = {configuration.name for configuration in report.plan}
    strange = {*(outcome.configuration for outcome in report.outcomes), *(name for _, name in report.order)} - planned
    if any(outcome.status == "ok" and outcome.result and not outcome.result.epochs for outcome in report.outcomes):
        raise ValueError("a run is ok and has no epoch")
    if any(block.block.startswith("-") for block in (report.probe.blocks if report.probe else ())):
        raise ValueError("a block of its networks is called as a flag is")  # and would be typed behind --split-at
    if strange or not planned:
        raise ValueError(f"runs of rows that are not in its plan: {', '.join(sorted(strange)) or 'it has none'}")
    return report
