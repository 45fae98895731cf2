"""The schemas in docs/ are those of the dataclasses, and all that was ever written, and is kept here, fits them."""

import json

import jsonschema
import pytest

from common.files.reading import check_types
from comparison import results_file
from comparison.results_file import read_results
from tests.fixtures import PROJECT
from tests.reports import configuration, report_of, runs
from tests.schema import SCHEMAS, comparison, run_result, schema_of, text_of

FIGURES = PROJECT / "figures"
RUNS = sorted(FIGURES.glob("*.json"))
COMPARISONS = sorted(file for file in FIGURES.rglob("*.json") if "sha256" in file.read_text())
DESCRIBED = comparison()["properties"]["schema_version"]["enum"]


@pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: file.name)
def test_the_schemas_are_those_of_the_dataclasses(file):
    assert file.read_text(encoding="utf-8") == text_of(SCHEMAS[file]()), "type: python -m tests.schema"


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.name)
def test_results_of_runs_fit(file):
    jsonschema.validate(json.loads(file.read_text()), run_result())


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: str(file.relative_to(FIGURES)))
def test_results_of_comparisons_fit(file, tmp_path):
    values = json.loads(file.read_text())
    if values["schema_version"] not in DESCRIBED:
        results_file.write_results(read_results(file), tmp_path)  # as it is written today
        values = json.loads((tmp_path / "results.json").read_text())
    jsonschema.validate(values, comparison())


def test_a_comparison_that_has_everything_fits(tmp_path):
    rows = [(configuration(), runs()), (configuration("ddp", values={"nproc": 2}), [*runs("ddp", count=2), "failed"])]
    results_file.write_results(report_of(*rows, foreign_cores={"single": 0.5}), tmp_path)
    jsonschema.validate(json.loads((tmp_path / "results.json").read_text()), comparison())


@pytest.mark.parametrize(
    "place, value",
    [
        (("epochs", 0, "train_seconds"), "1.5"),
        (("epochs", 0, "phases", "coffee"), 1.0),
        (("devices",), "cpu"),
        (("epochs", 0, "epoch"), 2**63),
        (("simulated",), 0),
        (("config", "lr"), "high"),
        (("schema_version",), 99),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told(place, value):
    values = json.loads(RUNS[0].read_text())
    part = values
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, run_result())


def as_json(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "kind, fine, wrong",
    [
        (float, [1, 1.5, None], ["1", True, []]),
        (int, [0, -(2**62)], [None, "1", True, 2**63, 1.5]),
        (bool, [True], [0, None]),
        (str | None, ["a", None], [1]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "b"}, []]),
        (dict, [{"a": None}], [[]]),
        (tuple[int, ...], [(), (1, 2)], [("a",), 1]),
        (tuple[tuple[int, str], ...], [((1, "a"),)], [((1, 2),)]),
    ],
    ids=str,
)
def test_the_schema_says_what_is_checked_when_a_file_is_read(kind, fine, wrong):
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    for value in fine:
        check_types(value, kind, "value")
        assert validator.is_valid(as_json(value))
    for value in wrong:
        with pytest.raises(TypeError):
            check_types(value, kind, "value")
        assert not validator.is_valid(as_json(value))
