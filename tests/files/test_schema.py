"""All results that are kept here fit their schemas, and what does not fit is refused."""

import json

import pytest

from comparison.results_file import write_results
from tests.fixtures import PROJECT, misfits
from tests.reports import configuration, report_of, runs

FIGURES = PROJECT / "figures"
RUNS = sorted(FIGURES.glob("*.json"))
COMPARISONS = sorted(file for file in FIGURES.rglob("*.json") if "sha256" in file.read_text())


@pytest.mark.parametrize("file", [*RUNS, *COMPARISONS], ids=lambda file: str(file.relative_to(FIGURES)))
def test_what_is_kept_fits(file):
    assert not misfits(json.loads(file.read_text()), "run-result" if file in RUNS else "results")


def test_a_comparison_that_has_everything_fits(tmp_path):
    rows = [(configuration(), runs()), (configuration("ddp", values={"nproc": 2}), [*runs("ddp", count=2), "failed"])]
    write_results(report_of(*rows, foreign_cores={"single": 0.5}), tmp_path)
    assert not misfits(json.loads((tmp_path / "results.json").read_text()), "results")


@pytest.mark.parametrize(
    "place, value",
    [
        (("epochs", 0, "train_seconds"), "1.5"),
        (("epochs", 0, "phases", "coffee"), 1.0),
        (("devices",), "cpu"),
        (("devices",), []),
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
    assert misfits(values, "run-result")
