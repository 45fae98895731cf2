"""Which share of their peak GPUs compute: of known cards alone."""

import csv
from dataclasses import replace

import pytest

from common.engine.run import PRECISIONS
from comparison.judge.analysis import analyse
from comparison.judge.measures import measure
from comparison.judge.summaries import PEAKS
from comparison.show.report import write_csv
from comparison.show.tables import main_table
from tests.reports import configuration, report_of, runs

H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"


def compared(*cards, precision="float32", flop=1e9, **values):
    """A row on a CPU and one on cards: 1000 images in a second."""
    named = tuple(f"cuda:{number} ({card})" for number, card in enumerate(cards))
    own = [replace(run, devices=named, precision=precision, **values) for run in runs("ddp", (1.0, 1.0, 1.0), count=2)]
    models = [{"model": "lenet", "gradient_bytes": 1000, "link_gbps": None, "flop": flop}]
    return report_of((configuration(), runs()), (configuration("ddp"), own), probe={"models": models})


@pytest.mark.parametrize(
    "report, mfu",
    [
        (compared(H100), 1e12 / 67e12),
        (compared(H100, H100), 1e12 / 134e12),
        (compared(H100, precision="bfloat16 autocast"), 1e12 / 989.5e12),
        (compared(H100, precision="float32 as TF32"), 1e12 / 494.5e12),
        (compared(H100, T4), 1e12 / 75.1e12),
        (compared(T4, precision="bfloat16 autocast"), None),  # it has none
        (compared(H100, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), None),
        (compared(H100, precision="float64"), None),
        (compared(H100, flop=None), None),
        (compared(H100, simulated=True), None),
    ],
)
def test_the_share_of_the_peak_is_that_of_all_cards_at_the_runs_precision(report, mfu, tmp_path):
    single, ddp = measure(report).summaries.values()
    assert single.mfu is None and ddp.mfu == (mfu and pytest.approx(mfu))
    analysis = analyse(report)
    assert ("MFU (%)" in main_table(analysis, "simple")) == (mfu is not None)
    assert mfu is None or f" {100 * mfu:#.2g} " in main_table(analysis, "simple")
    write_csv(analysis, tmp_path / "results.csv")
    single, ddp = csv.DictReader((tmp_path / "results.csv").open())
    assert not single.get("mfu") and ddp.get("mfu") == (mfu and str(measure(report).summaries["ddp"].mfu))


def test_peaks_are_of_precisions_that_runs_have():
    assert {name for peaks in PEAKS.values() for name in peaks} <= {*PRECISIONS.values()}
