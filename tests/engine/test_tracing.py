"""Traced steps of all ranks on one clock: in the result, in a figure, and in a file for Perfetto."""

import gzip
import itertools
import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from common.engine.tracing import RankTrace, lane_of, phase_event, spans_of, trace_steps, write_trace
from common.files.plots import draw_timeline, new_figure
from common.files.results import Span
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.judge.ranks import hidden_share
from comparison.results_file import read_results
from comparison.run import session
from comparison.show.plots import draw_timelines, waiting_finding
from tests.fixtures import learned, make_config
from tests.reports import configuration, report_of, runs
from tests.trainings import assert_same, make_context, make_step

SPANS = (
    Span(0, "step", "forward", 0.0, 2.0),
    Span(0, "step", "exchange", 2.0, 3.0),
    Span(1, "step", "forward", 0.5, 3.0),
    Span(1, "link", "gloo:all_reduce", 2.0, 2.9),
)


def event(name, start, seconds, kind="user_annotation", **more):
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": seconds, "pid": 4711, "tid": 4712, **more}


def rank_trace(late, *events, base=999_000_000_000):
    """Return the trace of two steps, forward (2 ms) and update (1 ms), that start `late` seconds after 1000 s."""
    began = 1e6 * (1000 + late) - base / 1e3
    phases = [("forward", 0, 2000), ("update", 2000, 1000), ("forward", 4000, 2000), ("update", 6000, 1000)]
    return RankTrace(base, [*(phase_event(name, began + start, took) for name, start, took in phases), *events])


def test_all_ranks_share_one_clock_without_the_warm_up():
    reduce = event("gloo:all_reduce", 1_005_000.0, 1500.0)  # at 1000.005 s
    early = event("gloo:all_reduce", 1_001_000.0, 500.0)
    overdue = event("gloo:all_reduce", 1_001_500.0, 4500.0)  # starts in the warm-up, although it ends later
    after = event("Memcpy DtoH", 1_007_500.0, 2.0, "gpu_memcpy", args={"device": 0})  # the loss, after the last step
    spans = spans_of([rank_trace(0.0, early, overdue, reduce, after), rank_trace(0.002)])
    found = [f"{span.rank} {span.lane} {span.name}" for span in spans]
    steps = [f"{rank} step {name}" for rank in (0, 1) for name in ("forward", "update")]
    assert found == [*steps[:2], "0 link gloo:all_reduce", *steps[2:]]
    times = [(round(span.start, 3), round(span.end, 3)) for span in spans]
    assert times == [(0.0, 1.0), (1.0, 2.0), (0.0, 1.5), (1.0, 3.0), (3.0, 4.0)]  # from the end of rank 1's warm-up


@pytest.mark.parametrize(
    "name, kind, lane",
    [
        ("gloo:all_reduce", "user_annotation", "link"),
        ("forward", "user_annotation", ""),
        ("ncclDevKernel_AllReduce_Sum_f32", "kernel", "link"),
        ("sgemm", "kernel", "cuda:1"),
        ("Memcpy PtoP", "gpu_memcpy", "cuda:1"),
        ("aten::conv2d", "cpu_op", ""),
    ],
)
def test_lanes(name, kind, lane):
    assert lane_of(event(name, 0, 1, kind, args={"device": 1})) == lane


def test_all_ranks_are_in_one_file(tmp_path):
    op = event("aten::conv2d", 1_000_500.0, 20.0, "cpu_op", id=3)
    named = {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "args": {"name": "python"}}
    later = rank_trace(0.002, op, base=999_000_100_000)
    path = write_trace([rank_trace(0.0, op, named), later], tmp_path / "steps.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    convolutions = [(entry["pid"], entry["id"], entry["ts"]) for entry in events if entry["name"] == "aten::conv2d"]
    assert convolutions == [(0, "0.3", 1_000_500.0), (1, "1.3", 1_000_600.0)]
    forward = [(entry["pid"], entry["tid"], round(entry["ts"])) for entry in events if entry["name"] == "forward"]
    assert forward == [(0, 0, 10**6), (0, 0, 1_004_000), (1, 0, 1_002_000), (1, 0, 1_006_000)]
    names = [(entry["pid"], entry["args"]["name"]) for entry in events if entry["name"] == "process_name"]
    assert names == [(0, "rank 0"), (1, "rank 1")]
    tracks = [entry["args"]["name"] for entry in events if entry["name"] == "thread_name"]
    assert tracks == ["phases ", "4711 4712"] * 2


def test_tracing_changes_no_result(train_here, tmp_path, capfd):
    plain, weights, _ = train_here("data_parallel_train.py --model lenet", name="plain")
    traced, same, printed = train_here("data_parallel_train.py --model lenet --profile 2", name="traced")
    assert learned(tmp_path / "traced.json") == learned(tmp_path / "plain.json")
    assert_same(same, weights)
    timeline = traced["timeline"]
    assert plain["timeline"] == [] and {span["lane"] for span in timeline} == {"step"}
    assert min(span["start"] for span in timeline) == 0.0
    assert len(list(tmp_path.glob("*.trace.json.gz"))) == 1 and "Trace:  " in printed and not capfd.readouterr().err


def test_traced_steps_of_ddp_show_the_exchange(train):
    result, _, _ = train("ddp_train.py --spawn 2 --model lenet --optimizer adam --profile 2 --max-steps 4")
    spans = [Span(**span) for span in result["timeline"]]
    for number in (0, 1):
        steps = [span for span in spans if span.rank == number and span.lane == "step"]
        assert [span.name for span in steps if span.name == "update"] == ["update"] * 2
        for one, other in itertools.pairwise(steps):
            assert one.start <= one.end <= other.start + 1e-6
    backward = [span for span in spans if span.rank == 0 and span.name in ("backward", "exchange")]
    exchanged = [span for span in spans if span.rank == 0 and span.lane == "link"]
    began = [backward[0].start < span.start < backward[-1].end for span in exchanged]
    # on a busy machine, the profiler may predate the start of gloo's first all-reduce to its own start
    assert any(began) and all(span.start < backward[-1].end and span.end > backward[0].start for span in exchanged)
    parts, size = result["memory_parts"], 4 * result["parameters"]
    assert parts["parameters"] == parts["gradients"] == size and 2 * size <= parts["optimizer state"] < 2.1 * size
    assert len(result["peak_memory_bytes"]) == 2 and sum(parts.values()) < max(result["peak_memory_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["pipeline_train.py", "fsdp_train.py"])
def test_other_methods_can_be_traced(script, train):
    result, _, _ = train(f"{script} --spawn 2 --schedule one-cycle --profile 2")
    assert {span["lane"] for span in result["timeline"]} == {"step", "link"}


def test_only_successful_rows_are_traced_and_only_once(monkeypatch, tmp_path):
    (result,) = runs(seconds=(2.0,))
    row = configuration("single", command=("python", "x.py"))
    report = report_of((row, [result]), (configuration("ddp"), ["failed"]), timeline=True, target_accuracy=0.9)
    calls = []

    def run_once(row, block, seed, directory, timeout):
        calls.append((row.name, " ".join(row.command[2:]), directory))
        return replace(report.outcomes[0], result=replace(result, timeline=SPANS))

    monkeypatch.setattr(session, "run_once", run_once)
    traced = session.trace_rows(report, output_to(Mock(directory=tmp_path)))
    flags = "--epochs 1 --max-steps 10 --profile 2 --target-accuracy 0.001"
    assert calls == [("single", flags, tmp_path / "traces" / "single")]
    assert traced.timelines == {"single": SPANS} == read_results(tmp_path / "results.json").timelines
    assert session.trace_rows(traced, output_to(Mock(directory=tmp_path))) == traced and len(calls) == 1
    unasked = replace(report, settings={**report.settings, "timeline": False})
    assert session.trace_rows(unasked, output_to(Mock(directory=tmp_path))) == unasked and len(calls) == 1


def test_the_figure_has_a_panel_per_traced_row():
    report = report_of((configuration("single"), runs()), (configuration("ddp"), runs("ddp")))
    for timelines, panels in (({}, 0), ({"ddp": ()}, 0), ({"ddp": SPANS, "single": ()}, 1)):
        figure = draw_timelines(analyse(replace(report, timelines=timelines)))
        assert len(figure.axes if figure else ()) == panels


def test_the_title_of_the_figure_names_the_row_whose_ranks_wait():
    assert waiting_finding({"A": SPANS, "B": SPANS[:1]}) == (
        "In “A”, ranks exchange, or wait for one another, for 18% of the traced time"
    )  # 1 of 5.5 ms
    alone = (Span(0, "step", "forward", 0.0, 2.0), Span(0, "step", "exchange", 2.0, 4.0))  # with nobody
    assert waiting_finding({"B": SPANS[:1]}) == waiting_finding({"C": alone}) == "What every device does in a step"
    busy, busier = ((*alone, Span(0, "cuda:0", "sgemm", 1.0, end)) for end in (2.0, 3.0))
    assert waiting_finding({"C": busier, "D": busy}) == "In “D”, the GPU runs kernels for 25% of the traced time"


def test_each_lane_of_a_rank_has_a_height_of_its_own():
    _, axes = new_figure(rows=(2, 1))
    draw_timeline(axes[0], (*SPANS, Span(1, "cuda:0", "sgemm", 0.0, 1.0)))
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["rank 0", "rank 1"]
    assert len({round(bar.get_y(), 3) for bar in axes[0].patches}) == 4


@pytest.mark.parametrize(
    "spans, share",
    [
        (SPANS[:3], None),  # rank 1 has no exchange
        (SPANS, 1.0),  # from 2 to 2.9 ms, in a forward pass until 3 ms
        ((*SPANS, Span(1, "link", "gloo:all_reduce", 2.5, 3.8)), 1.0 / 1.8),  # overlapping exchanges count once
        ((*SPANS, Span(1, "cuda:0", "sgemm", 1.0, 2.3)), 0.3 / 0.9),  # the GPU's kernels count, not the host's phases
        ((*SPANS, Span(1, "cuda:0", "a", 1.0, 2.3), Span(1, "cuda:0", "b", 2.2, 2.6)), 0.6 / 0.9),
        ((*SPANS, Span(0, "cuda:0", "sgemm", 1.0, 2.3)), 1.0),  # of another rank
        ((Span(1, "link", "nccl", 0.0, 1.0), Span(1, "step", "exchange", 0.0, 1.0)), 0.0),
    ],
)
def test_hidden_share_of_an_exchange(spans, share):
    assert hidden_share(spans, 1) == (share and pytest.approx(share))


def test_an_epoch_shorter_than_the_trace_begins_again():
    model, config = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)), make_config(profile=4)
    optimizer, batches = torch.optim.SGD(model.parameters(), 0.1), [(torch.ones(2, 1, 2, 2), torch.tensor([0, 1]))] * 2
    traces = trace_steps(make_context(model), make_step(model, config), optimizer, batches, config)
    assert [span.name for span in spans_of(traces)].count("update") == 4
