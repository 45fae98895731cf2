"""The projection is checked against results that others published, and its range comes from them."""

import json

import links
import published
import pytest
from measure import cost_range, share_held

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


def test_an_efficiency_is_relative_to_the_base():
    network = {"network": "bert-base", "buckets": "one", "batch": 10, "what": "a training"}
    measured = {"1x1": 100.0, "1x8": 720.0, "2x8": 1152.0}  # 100 ms on one GPU
    system = {"system": "a system", "inside": 1000, "network": 100}
    (row,) = published.efficiencies(system, {**network, "base": "1x8", "measured": measured})
    (bucket,) = published.buckets_of("bert-base", "one")
    assert row.published == pytest.approx(0.8) and bucket.left == 0
    inside = 14 * 0.0034 + 2 * 7 / 8 * 8e-6 * bucket.size / 800  # ring over the links in a machine
    trees = 2 * 8 * 0.0034 + 2 * 0.0062 + 8e-6 * bucket.size / 78  # two machines exchange all bytes once
    waits = [100 * (1 + 0.02 * published.expected_maximum(count)) for count in (8, 16)]
    assert row.projected == pytest.approx((waits[0] + inside) / (waits[1] + trees))
    assert row.cost == pytest.approx((1 / 0.8 - 1) / (1 / row.projected - 1))


@pytest.mark.parametrize("network, parameters", [("resnet50", 25_557_032), ("vgg16", 138_357_544)])
def test_buckets_hold_all_gradients_in_the_order_of_the_backward_pass(network, parameters):
    for kind, (first, others) in published.BUCKETS.items():
        buckets = published.buckets_of(network, kind)
        assert sum(bucket.size for bucket in buckets) == 4 * parameters
        assert all(bucket.size >= (others if number else first) for number, bucket in enumerate(buckets[:-1]))
        left = [bucket.left for bucket in buckets]
        assert left == sorted(left, reverse=True) and left[-1] == pytest.approx(0)


def test_the_share_held_is_a_mean_over_groups_by_the_range_of_the_others():
    costs = [("a", 1.0), ("a", 3.0), ("b", 2.0), ("b", 2.5), ("b", 2.9), ("b", 9.0)]
    assert share_held(costs) == pytest.approx((1 / 2 + 3 / 4) / 2)
