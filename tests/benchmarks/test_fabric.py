"""The benchmark of copies and all-reduces, on pretended GPUs and with gloo."""

import fabric
import pytest
import torch
from runs import Runs, benchmark_parser

from common.errors import SuiteError
from tests.pretended_gpus import pretended_gpus

LONG = 1000


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Copy LONG bytes instead of 256 MiB. Returns the Runs of two blocks."""
    monkeypatch.setattr(fabric, "LONG", LONG)
    monkeypatch.setattr(fabric, "COPIES", {fabric.SHORT: 3, LONG: 2})
    flags = ["--output", str(tmp_path / "fabric.json")]
    return lambda: Runs(benchmark_parser("", blocks=2).parse_args(flags))


def test_every_pair_of_two_gpus_and_the_host_is_copied_between(small, monkeypatch):
    monkeypatch.setattr(fabric, "all_reduces", lambda devices: {"1024": float(len(devices))})
    with pretended_gpus("first", "second") as gpus, monkeypatch.context() as patch:
        patch.setattr(fabric.dist, "is_nccl_available", lambda: True)
        results = fabric.measured(small())
    places = ["cpu", "cuda:0", "cuda:1"]
    expected = {f"{one} → {other}" for one in places for other in places} - {"cpu → cpu"}
    assert results["places"] == places and results["ranks"] == 2 and results["all_reduces"] == {"1024": [2.0, 2.0]}
    assert all({*results["copies"][size]} == expected for size in ("4", str(LONG)))
    between = [size for source, target, size in gpus.copies if (source, target) == ("cuda:0", "cuda:1")]
    assert (between.count(4), between.count(LONG)) == (3 * 3, 3 * 2)  # copies of a measurement x blocks with warm-up


def test_a_copy_that_arrives_changed_is_an_error(small, monkeypatch):
    copy = torch.Tensor.copy_

    def wrong(target, source, non_blocking=False):
        copy(target, source)
        target[:2] += 1

    monkeypatch.setattr(torch.Tensor, "copy_", wrong)
    with (
        pretended_gpus("one"),
        pytest.raises(SuiteError, match="a copy from cpu to cpu is wrong; 2 of 1,000 bytes are others"),
    ):
        fabric.microseconds(fabric.HOST, fabric.HOST, LONG)


@pytest.mark.slow
@pytest.mark.process
def test_all_reduces_of_two_ranks(monkeypatch):
    found = fabric.all_reduces([fabric.HOST, fabric.HOST])
    assert [*found] == [str(size) for size in fabric.MESSAGES["cpu"]] and min(found.values()) > 0


def test_the_tables_show_the_rates():
    times = {"cuda:0 → cuda:1": [100.0, 200.0, 300.0]}
    results = {
        "places": ["cuda:0", "cuda:1"],
        "links": ["GPU0-GPU1 NV18"],
        "copies": {str(2**28): times, "4": times},
        "ranks": 4,
        "all_reduces": {"1000000": [10.0, 20.0, 40.0]},
    }
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in fabric.table(results).splitlines()]
    assert ["cuda:0", "–", "1,342.2"] in lines and ["cuda:0", "–", "200.0"] in lines  # 2**28 bytes in 200 µs
    # 10**6 bytes in 20 µs are 50 GB/s, and 2 (N - 1) / N of that with N = 4 ranks is 75
    assert ["1,000,000", "20 (10–40)", "75 (37.5–150)"] in lines
    assert lines[-1] == ["Links (`nvidia-smi topo -m`): GPU0-GPU1 NV18."]
