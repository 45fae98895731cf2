"""The projection is checked against results that others published, and its range comes from them."""

import json

import links
import published
import pytest
from measure import cost_range

from comparison.judge.projection import GLOO_COSTS, NCCL_COSTS
from tests.fixtures import PROJECT

RESULTS = PROJECT / "figures" / "benchmark"


def results_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_ranges_of_a_projection_are_those_of_the_committed_results():
    rows = [published.Row(**row) for row in results_of("published")["rows"]]
    most = max(published.Cluster.parse(row.cluster).total for row in rows)
    assert (*cost_range([row.cost for row in rows]), len(rows), most) == NCCL_COSTS
    measured = results_of("links")
    found = links.all_forecasts(measured, RESULTS)
    assert measured["steps"] == links.STEPS
    assert (*cost_range([row.cost for row in found]), len(found), max(links.PROJECTED)) == GLOO_COSTS


def test_the_committed_results_are_those_of_the_table():
    rows = [vars(row) for row in published.rows_of(published.read_table())]
    for row, committed in zip(rows, results_of("published")["rows"], strict=True):
        assert row == {**committed, "projected": pytest.approx(committed["projected"])}
