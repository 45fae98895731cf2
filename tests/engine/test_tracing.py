"""Traced steps: what every rank did when, on one clock, in a figure and in a file for Perfetto."""

import gzip
import itertools
import json
from dataclasses import replace

import pytest
import torch

from common.engine.timing import PhaseTimer
from common.engine.tracing import RankTrace, lane_of, phase_event, spans_of, write_trace
from common.files.plots import draw_timeline, new_figure
from common.files.results import Span
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.results_file import read_results, write_results
from comparison.run import session
from comparison.show.figures import draw_all
from comparison.show.step_plots import waiting_finding
from tests.reports import configuration, report_of, runs

SPANS = (
    Span(0, "step", "forward", 0.0, 2.0),
    Span(0, "step", "exchange", 2.0, 3.0),
    Span(1, "step", "forward", 0.5, 3.0),
    Span(1, "link", "gloo:all_reduce", 2.0, 2.9),
)


def event(name, start, seconds, kind="user_annotation", **more):
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": seconds, "pid": 4711, "tid": 4712, **more}


def rank_trace(late, *events, base=999_000_000_000):
    """A rank that began so many seconds after 1000 s, and traced two steps of forward (2 ms) and update (1 ms)."""
    began = 1e6 * (1000 + late) - base / 1e3
    phases = [("forward", 0, 2000), ("update", 2000, 1000), ("forward", 4000, 2000), ("update", 6000, 1000)]
    return RankTrace(base, [*(phase_event(name, began + start, took) for name, start, took in phases), *events])


def test_a_timers_spans_add_up_to_its_sums():
    timer = PhaseTimer([torch.device("cpu")])
    timer.start()
    for _ in range(2):
        timer.mark("data")
        timer.start()  # what came before belongs to no phase
        timer.mark("forward")
    spans = timer.spans()
    assert [name for name, _, _ in spans] == ["data", "forward"] * 2
    assert all(start <= end for _, start, end in spans) and spans[1][2] <= spans[2][1]
    for name, total in timer.milliseconds().items():
        assert total == pytest.approx(sum(end - start for other, start, end in spans if other == name))


def test_all_ranks_are_on_one_clock_and_the_warm_up_is_left_out():
    reduce = event("gloo:all_reduce", 1_005_000.0, 1500.0)  # 1000.005 s: 999 s and as many microseconds
    early = event("gloo:all_reduce", 1_001_000.0, 500.0)
    overdue = event("gloo:all_reduce", 1_001_500.0, 4500.0)  # of the warm-up, though it ends later
    spans = spans_of([rank_trace(0.0, early, overdue, reduce), rank_trace(0.002)])
    assert [(span.rank, span.lane, span.name) for span in spans] == [
        (0, "step", "forward"),
        (0, "step", "update"),
        (0, "link", "gloo:all_reduce"),
        (1, "step", "forward"),
        (1, "step", "update"),
    ]
    times = [(round(span.start, 3), round(span.end, 3)) for span in spans]
    assert times == [(0.0, 1.0), (1.0, 2.0), (0.0, 1.5), (1.0, 3.0), (3.0, 4.0)]  # from the end of rank 1's warm-up


def test_lanes():
    assert lane_of(event("gloo:all_reduce", 0, 1)) == "link" and lane_of(event("forward", 0, 1)) == ""
    assert lane_of(event("ncclDevKernel_AllReduce_Sum_f32", 0, 1, "kernel", args={"device": 1})) == "link"
    assert lane_of(event("sgemm", 0, 1, "kernel", args={"device": 1})) == "cuda:1"
    assert lane_of(event("Memcpy PtoP", 0, 1, "gpu_memcpy", args={"device": 0})) == "cuda:0"
    assert lane_of(event("aten::conv2d", 0, 1, "cpu_op")) == ""


def test_one_file_for_all_ranks(tmp_path):
    op = event("aten::conv2d", 1_000_500.0, 20.0, "cpu_op", id=3)
    named = {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "args": {"name": "python"}}
    later = rank_trace(0.002, op, base=999_000_100_000)
    path = write_trace([rank_trace(0.0, op, named), later], tmp_path / "steps.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    convolutions = [(entry["pid"], entry["id"], entry["ts"]) for entry in events if entry["name"] == "aten::conv2d"]
    assert convolutions == [(0, "0.3", 1_000_500.0), (1, "1.3", 1_000_600.0)]
    forward = [(entry["pid"], entry["tid"], entry["ts"]) for entry in events if entry["name"] == "forward"]
    assert forward == [
        (0, 0, pytest.approx(1e6)),
        (0, 0, pytest.approx(1_004_000)),
        (1, 0, pytest.approx(1_002_000)),
        (1, 0, pytest.approx(1_006_000)),
    ]
    names = [(entry["pid"], entry["args"]["name"]) for entry in events if entry["name"] == "process_name"]
    assert names == [(0, "rank 0"), (1, "rank 1")]
    tracks = [entry["args"]["name"] for entry in events if entry["name"] == "thread_name"]
    assert tracks == ["phases ", "4711 4712"] * 2


def test_traced_steps_of_ddp_count_for_nothing_and_show_the_exchange(train, tmp_path):
    flags = ("ddp_train.py", "--spawn", 2, "--model", "lenet")
    result, weights, printed = train(*flags, "--profile", 2)
    assert len(list((tmp_path / "figures").glob("*.trace.json.gz"))) == 1 and "Trace:  " in printed
    plain, expected, _ = train(*flags)
    assert [epoch["train_loss"] for epoch in result["epochs"]] == [epoch["train_loss"] for epoch in plain["epochs"]]
    assert all(torch.equal(weights[name], expected[name]) for name in expected) and plain["timeline"] == []
    spans = [Span(**span) for span in result["timeline"]]
    for rank in (0, 1):
        steps = [span for span in spans if span.rank == rank and span.lane == "step"]
        assert [span.name for span in steps if span.name == "update"] == ["update"] * 2
        for one, other in itertools.pairwise(steps):
            assert one.start <= one.end <= other.start + 1e-6
    backward = [span for span in spans if span.rank == 0 and span.name in ("backward", "exchange")]
    exchanged = [span for span in spans if span.rank == 0 and span.lane == "link"]
    began = [backward[0].start < span.start < backward[-1].end for span in exchanged]
    # on a busy machine the profiler may date the beginning of gloo's first one back to its own
    assert any(began) and all(span.start < backward[-1].end and span.end > backward[0].start for span in exchanged)


@pytest.mark.parametrize(
    "script, flags, lanes",
    [
        ("data_parallel_train.py", ("--schedule", "one-cycle", "--num-workers", 2), {"step"}),
        pytest.param("pipeline_train.py", ("--spawn", 2), {"step", "link"}, marks=pytest.mark.slow),
        pytest.param("fsdp_train.py", ("--spawn", 2), {"step", "link"}, marks=pytest.mark.slow),
    ],
)
def test_other_methods_can_be_traced(script, flags, lanes, train):
    result, _, _ = train(script, *flags, "--profile", 2)
    assert {span["lane"] for span in result["timeline"]} == lanes
    assert min(span["start"] for span in result["timeline"]) == 0.0


def test_a_row_is_traced_once_and_one_without_results_never(monkeypatch, tmp_path):
    (result,) = runs(seconds=(2.0,))
    row = configuration("single", command=("python", "x.py"))
    report = report_of((row, [result]), (configuration("ddp"), ["failed"]), timeline=True, target_accuracy=0.9)
    calls = []

    def run_once(row, block, seed, directory, timeout):
        calls.append((row.name, *row.command[2:], directory))
        return replace(report.outcomes[0], result=replace(result, timeline=SPANS))

    monkeypatch.setattr(session, "run_once", run_once)
    traced = session.trace_rows(report, output_to(tmp_path))
    assert calls == [
        (
            "single",
            *"--epochs 1 --max-steps 10 --profile 2 --target-accuracy 0.001".split(),
            tmp_path / "traces" / "single",
        )
    ]
    assert traced.timelines == {"single": SPANS} == read_results(tmp_path / "results.json").timelines
    assert session.trace_rows(traced, output_to(tmp_path)) == traced and len(calls) == 1
    unasked = replace(report, settings={**report.settings, "timeline": False})
    assert session.trace_rows(unasked, output_to(tmp_path)) == unasked and len(calls) == 1


def test_the_figure_has_a_panel_for_each_row_that_was_traced(tmp_path):
    rows = (configuration("single"), runs()), (configuration("ddp"), runs("ddp"))
    names = [path.name for path in draw_all(analyse(report_of(*rows)), tmp_path)]
    assert "timeline.png" not in names
    empty = replace(report_of(*rows), timelines={"ddp": ()})
    assert "timeline.png" not in [path.name for path in draw_all(analyse(empty), tmp_path)]
    report = replace(report_of(*rows), timelines={"ddp": SPANS, "single": ()})
    assert "timeline.png" in [path.name for path in draw_all(analyse(report), tmp_path)]
    write_results(report, tmp_path)
    assert read_results(tmp_path / "results.json") == report


def test_what_the_figure_says():
    assert waiting_finding({"A": SPANS, "B": SPANS[:1]}) == (
        "In “A”, ranks wait for one another for 18% of the traced steps"
    )  # 1 of 5.5 ms
    assert waiting_finding({"B": SPANS[:1]}) == "What every device does in a step"
    figure, axes = new_figure(rows=(2, 1))
    legend = draw_timeline(axes[0], (*SPANS, Span(1, "cuda:0", "sgemm", 0.0, 1.0)))
    assert list(legend) == ["forward", "exchange", "exchange between ranks", "kernels on a GPU"]
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["rank 0", "rank 1"]
    bars = [(round(bar.get_x(), 3), round(bar.get_width(), 3)) for bar in axes[0].patches]
    assert bars == [(0.0, 2.0), (2.0, 1.0), (0.5, 2.5), (2.0, 0.9), (0.0, 1.0)]
    heights = {round(bar.get_y(), 3) for bar in axes[0].patches}
    assert len(heights) == 4  # every lane its own
    assert len(figure.axes) == 2
