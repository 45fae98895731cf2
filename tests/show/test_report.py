"""What a comparison shows: tables, fairness, projection, files and figures; and what it refuses to show."""

import csv
import json
import math
import re
from dataclasses import replace

import pytest

from common.errors import SuiteError
from common.files.plots import draw_curves
from common.files.probe import Bucket
from common.settings.config import RunConfig, flags_that
from comparison.judge import analysis
from comparison.judge.analysis import analyse
from comparison.judge.blocks import ratios, residual_deviation
from comparison.judge.fairness import differences
from comparison.judge.measures import block_times, measure
from comparison.judge.projection import Link
from comparison.judge.statistics import resolution
from comparison.methods import METHODS, UNKNOWN
from comparison.record import Equivalence
from comparison.results_file import SCHEMA_VERSION, read_results, write_results
from comparison.run import equivalence
from comparison.show import figures, plots, remarks, tables
from comparison.show.diff import describe_difference
from comparison.show.remarks import definitions, notes, warnings
from comparison.show.report import present, write_csv, write_html, write_markdown
from comparison.show.sentences import tell
from comparison.show.sweep_plots import axes_of, find_maps, map_finding
from comparison.show.terminal import LINES, terminal_text
from comparison.show.verdict import sweep_sentences, verdict, where_time_goes
from tests.fixtures import PROJECT
from tests.reports import (
    DDP,
    ENVIRONMENT,
    LINK,
    SINGLE,
    cells,
    configuration,
    full_report,
    make_result,
    report_of,
    row_of,
    runs,
    two_sweeps,
)

ONE_EPOCH = report_of((configuration(), runs(seconds=(2.0,), first=8.0, epochs=1)), repeats=1, epochs=1)
RANKS = [(configuration("ddp", values={"nproc": count}), runs("ddp", count=count)) for count in (1, 2)]
SKIPPED = (configuration("dp", skip="needs 2 GPUs, found 1"), [])


def main_table(report, tablefmt="simple"):
    return tables.main_table(analyse(report), tablefmt)


@pytest.fixture
def drawn(monkeypatch):
    """Draw all figures of an analysis; return them by name. No file is written."""

    def drawn(analysis):
        shown = {}
        monkeypatch.setattr(figures, "keep_figure", lambda figure, path: shown.update({path.name: figure}))
        figures.draw_all(analysis, figures.Path())
        return shown

    return drawn


# ---- tables


def test_rows_without_numbers_say_why():
    report = report_of(
        SINGLE,
        DDP,
        (configuration("dp"), runs("dp", simulated=True)),
        (configuration("mp", skip="needs 2 GPUs, found 1"), []),
        (configuration("accelerate"), ["failed", *runs(seconds=(2.0, 2.1))]),
    )
    mp, accelerate = cells(main_table(report))[3:]
    assert "|".join(mp) == "MP|synthetic-mnist|–|–|–|–|0|–|–|–|–|–|–|skipped"
    assert accelerate[6] == "2" and accelerate[-1] == "1 of 3 runs failed; undecided"
    assert report.failed and not report_of(SINGLE, DDP).failed


def test_an_accuracy_has_the_digits_that_it_deserves():
    for accuracies, text in (
        *(((), "–"), ((0.98765,), "98.8"), ((0.9, 0.9), "90.00 ± 0.00"), ((0.98, 0.99, 0.985), "98.5 ± 0.5")),
        *(((0.6, 0.7, 0.8), "70 ± 10"), ((0.9890, 0.9892), "98.91 ± 0.01")),
    ):
        assert tables.accuracy(accuracies) == text


def test_all_speed_ups_together_have_the_confidence():
    report = report_of(
        SINGLE, *((configuration("ddp", f"ddp-{number}"), runs("ddp", (1.0, 1.02, 1.05))) for number in range(4))
    )
    among_four, (alone,) = analyse(report).rows[1].standing.speed_up, ratios(block_times(report.rows), 0, [1])
    assert among_four == ratios(block_times(report.rows), 0, [1, 2, 3, 4])[0]
    assert among_four.low < alone.low and among_four.high > alone.high
    families = [
        (configuration(method, values={"num_workers": workers}, num_workers=workers), runs(method, seconds, **used))
        for workers, used in ((workers, {"workers_per_process": workers}) for workers in (0, 2))
        for method, seconds in (("single", (2.0, 2.02, 1.98)), ("ddp", (1.0, 1.02, 1.05)))
    ]
    report = report_of(*families)  # two baselines, each with half of the error
    assert analyse(report).rows[1].standing.speed_up == ratios(block_times(report.rows), 0, [1], 0.975)[0]


def test_the_resolution_comes_first(tmp_path):
    report = report_of(SINGLE, (configuration("ddp"), runs("ddp", (1.0, 1.05, 0.97))))
    noise = analyse(report).resolution
    assert noise.deviation == pytest.approx(residual_deviation(block_times(report.rows)))
    assert noise.differences[3] == resolution(noise.deviation, 3, 2, 1) > noise.differences[10]
    write_markdown(analyse(report), tmp_path / "report.md", [])
    sentence = (tmp_path / "report.md").read_text().partition("## Result\n\n")[2]
    assert f"3 runs detect a difference of {100 * noise.differences[3]:.2g}%" in sentence.partition("\n")[0]
    wild = analyse(report_of(SINGLE, (configuration("ddp"), runs("ddp", (1.0, 9.0, 0.2)))))
    assert wild.resolution.differences[3] > 1
    assert ": 3 runs detect a difference of >100%, " in remarks.resolution(wild)[0]
    assert analyse(ONE_EPOCH).resolution is None


def test_what_is_practically_equal_can_be_chosen():
    near = (configuration("ddp"), runs("ddp", (2.04, 2.06, 2.02)))
    for within, result in ((None, "practically equal"), (0.01, "slower")):
        assert analyse(report_of(SINGLE, near, equal_within=within)).rows[1].result == result


def test_models_are_swept_within_their_batch_and_batches_within_their_model():
    swept = analyse(two_sweeps())
    assert [[entry.label for entry in sweep.rows] for sweep in swept.sweeps if sweep.name == "model"] == [
        [f"SINGLE (model {model}, batch size {size})" for model in ("lenet", "mlp")] for size in (64, 128)
    ]
    names = [cells(table)[0][0] for table in tables.sweep_tables(swept, "simple")[2:]]
    assert names == ["SINGLE (model lenet)", "SINGLE (model mlp)"]
    assert any(text.startswith("Sweep of batch size, “SINGLE (model mlp)”: ") for text in verdict(swept))


def test_what_was_trained_stands_in_the_title():
    assert report_of(SINGLE, max_steps=200, train_size=5000).title == (
        "lenet on synthetic-mnist (first 5,000 images), global batch 100, 3 epochs of 200 steps, 3 runs each"
    )
    assert "WEAK SCALING: batch 100 per device" in report_of(SINGLE, scaling="weak").title


SIMULATED = (configuration("dp"), runs("dp", simulated=True))


@pytest.mark.parametrize(
    "rows, baseline, note",
    [
        ([DDP], "single", "DDP: the baseline, single, is not among the methods."),
        ([(configuration(), ["failed"]), DDP], "single", "DDP: the baseline, “SINGLE”, has no run that ended well."),
        ([SINGLE, SIMULATED], "dp", "SINGLE: the baseline, “DP”, is simulated."),
    ],
)
def test_without_a_baseline_there_are_no_speed_ups_and_it_says_so(rows, baseline, note):
    report = report_of(*rows, baseline=baseline)
    assert f"No speed-up for {note}" in notes(analyse(report))
    assert {row[8] for row in cells(main_table(report))} == {"–"}


def test_another_baseline():
    single, ddp = cells(main_table(report_of(SINGLE, DDP, baseline="ddp")))
    assert single[8:11] == ["0.50 [0.50, 0.50]", "1.67 [1.66, 1.67]", "100% [100, 100]"]  # one device instead of two
    assert ddp[8:11] == ["1.00", "1.00", "100%"]


def test_bars_in_a_cell_do_not_end_it():
    report = full_report()
    for table in (main_table(report, "github"), tables.settings_table(report, "github")):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert r"max \|Δ parameter\|" in main_table(report, "github")


def test_what_a_reader_must_know():
    analysis = analyse(report_of((configuration(), runs(seconds=(2.0,), first=8.0)), repeats=1))
    for words in ("each row ran once", "is synthetic"):
        assert any(words in note for note in notes(analysis))
    (warning,) = warnings(analysis)
    assert warning.startswith("SINGLE: its first epoch takes 4.0 times as long as the others: warm-up")
    for in_turns, words in ((False, "Whole runs: "), (True, "In turns: ")):
        assert any(text.startswith(words) for text in definitions(replace(analysis.report, in_turns=in_turns)))
    interrupted = replace(full_report(), outcomes=full_report().outcomes[:2])
    assert warnings(analyse(interrupted))[-1] == "INCOMPLETE: interrupted after 2 of 10 runs."
    assert not warnings(analyse(full_report()))


# ---- fairness


INEQUALITIES = {
    "global batch 200 instead of 100": {"global_batch_size": 200},
    "workers 4 instead of 0": {"workers_per_process": 4},
    "threads per device 2 instead of 1": {"threads_per_process": 2},
    "precision bfloat16 instead of float32": {"precision": "bfloat16"},
    "device cuda (NVIDIA H200) instead of cpu": {"devices": ("cuda:0 (NVIDIA H200)",)},
    "torch 2.15.0 instead of 2.11.0": {"environment": {**ENVIRONMENT, "torch": "2.15.0", "cores": 1}},
    **{
        f"{name} 9 instead of {make_result().config.get(name, getattr(RunConfig(), name))}": {
            "config": {**make_result().config, name: 9}
        }
        for name in flags_that("equal")
        if name not in ("precision", "seed")
    },
}


@pytest.mark.parametrize("name", INEQUALITIES)
def test_every_inequality_is_found_refused_or_marked(name):
    reference, other = make_result(), make_result(**INEQUALITIES[name])
    assert differences(other, reference, "strong") == [name] and differences(reference, reference, "strong") == []
    report = report_of(SINGLE, (configuration("ddp"), [other]))
    standing, table = analyse(report).rows[1].standing, main_table(report)
    assert standing.speed_up is None and standing.reason == f"refused: {name}"
    assert cells(table)[1][8] == "–" and f"refused: {name}" in table
    allowed = replace(report, settings={**report.settings, "allow_unequal": True})
    assert analyse(allowed).rows[1].standing.speed_up and f"UNEQUAL ({name})" in main_table(allowed)


def test_what_may_differ():
    reference = make_result()
    part = replace(reference, per_device_batch_size=50)
    assert differences(part, reference, "strong") == []
    assert differences(part, reference, "weak") == ["per-device batch 50 instead of 100"]
    assert differences(replace(reference, global_batch_size=200), reference, "weak") == []
    steps = [
        replace(reference, epochs=(*reference.epochs[:-1], replace(reference.epochs[-1], steps=count)))
        for count in (11, 12)
    ]
    assert differences(steps[0], reference, "strong") == []  # ranks leave out what does not divide
    assert differences(steps[1], reference, "strong") == ["steps per epoch 12 instead of 10"]


# ---- same maths


def test_failed_maths_leave_no_speed_up():
    failed = Equivalence(0.5, "failed", "differs")
    for name, label in (("ddp", "DDP"), ("single", "SINGLE")):  # the row itself, or what it is compared with
        report = report_of(SINGLE, DDP, equivalence={name: failed})
        assert analyse(report).rows[1].standing.reason == f"the check of the maths of “{label}” failed"
        assert report.failed


def test_a_row_that_computes_something_else_is_a_failed_row(monkeypatch):
    def run_child(command, log):
        assert "--target-accuracy" not in command  # which 20 steps would miss
        logs.append(log.stem)
        return "--split-at" in command

    logs: list[str] = []
    monkeypatch.setattr(equivalence, "run_child", run_child)
    monkeypatch.setattr(equivalence, "cause", lambda code, log: "unrecognized arguments")
    monkeypatch.setattr(equivalence, "ask", lambda _, *files: json.dumps([0.5 * ("other" in f) for f in files[1::2]]))
    other, broken = configuration(name="other"), configuration(name="broken", command=("python", "--split-at", "x"))
    rows = [configuration(), other, configuration("ddp-no-sync"), broken, configuration("single-all-cores", threads=2)]
    checks = equivalence.check_equivalence(rows, ["--target-accuracy", "0.99"], 96)
    # one reference for all: one device's threads, also for the row with all cores; another for who differs
    in_float32 = ["reference-0", "single-fp32", "other-fp32", "broken-fp32", "single-all-cores-fp32"]
    assert logs == [*in_float32, "reference-1", "other-fp64"]
    assert checks["single"] == checks["single-all-cores"] == Equivalence(0.0, "ok", "")
    assert checks["other"].status == "failed" and checks["ddp-no-sync"].status == "expected"
    assert checks["broken"].status == "failed" and "unrecognized arguments" in checks["broken"].reason
    report = report_of(SINGLE, (other, runs()), equivalence=checks)
    assert report.failed and "failed: computes something else" in main_table(report)


# ---- projection


LOADER = LINK["loaders"][0]
IN_PLACE = {"num_workers": 0, "images_per_second": 5000.0, "cpu_seconds_per_image": 2e-4}
ON_GPUS = (configuration("ddp", num_workers=2, device="gpu"), runs("ddp"))


def projected(*rows, cores=2, **probed):
    """settings and, in "loader" or "models", what the probe found."""
    probe = {**LINK, "loaders": [probed.pop("loader", LOADER)], "models": probed.pop("models", LINK["models"])}
    report = report_of(*rows or [row_of("single"), row_of("ddp", 2)], project=[2, 4], probe=probe, **probed)
    return analyse(replace(report, environment={**report.environment, "cores": cores}))


def told(analysis):
    return " ".join(map(tell, (*analysis.projection.stops, *analysis.projection.assumptions)))


@pytest.mark.parametrize(
    "row, values, milliseconds",
    [
        (row_of("ddp", 2), {"cores": 8}, [40, 24 + 10, 15 + 15]),  # the devices
        (row_of("ddp", 2), {"cores": 8, "loader": {**LOADER, "images_per_second": 2000.0}}, [50, 50, 50]),
        (row_of("ddp", 2), {"cores": 2}, [40, (30 + 2 * 24) / 2 + 10, (30 + 4 * 15) / 2 + 2 * 15]),  # 2 on a core
        (row_of("ddp", 2), {"cores": 8, "link_gbps": 80.0}, [40, 24 + 10 + 1, 15 + 15 + 1.5]),  # copied, then sent
        (  # a device of several threads takes as many cores
            (configuration("ddp", num_workers=2, threads=2), runs("ddp")),
            {"cores": 2},
            [(30 + 80) / 2, (30 + 96) / 2 + 10, (30 + 120) / 2 + 2 * 15],
        ),
        (ON_GPUS, {"cores": 1}, [40, 34, 30]),  # they do not compute on the cores
        # without workers, every process loads its part before the step
        (row_of("ddp", 1, 0), {"cores": 8, "loader": IN_PLACE}, [40 + 20, 24 + 10 + 10, 15 + 5 + 15]),
        (row_of("ddp", 1, 0), {"cores": 1, "loader": IN_PLACE}, [60, 2 * 24 + 20 + 2 * 10, 4 * 15 + 20 + 4 * 15]),
    ],
)
def test_a_step_takes_as_long_as_the_slowest_of_devices_loader_and_cores(row, values, milliseconds):
    points = projected(row, **values).projection.points  # by the model alone: there is no row of one device
    assert [point.step.milliseconds for point in points] == pytest.approx(milliseconds)


def test_of_gpus_the_cores_only_feed_them_and_a_given_speed_is_all_of_the_link():
    analysis = projected(ON_GPUS, cores=1)
    assert cells(tables.projection_table(analysis, "simple"))[1][:5] == ["2", "24.0", "10.00", "20.0", "–"]
    assert "(power, host cores)" in told(analysis)
    planned = configuration("single", device="gpu", threads=1)
    given = projected((planned, runs("single")), link_gbps=80.0, loader={**LOADER, "num_workers": 0})
    assert given.projection.points[1].step.all_reduce == pytest.approx(1)
    assert "at 80.00 Gbit/s (as given)" in told(given) and not re.search("crosses a link|share a core", told(given))


def test_the_projection_begins_with_what_one_device_was_measured_to_take():
    analysis = projected(row_of("single", seconds=0.5), row_of("ddp", 2, seconds=0.5), cores=8)
    first, second, third = analysis.projection.points
    assert (first.epoch_seconds, first.speed_up, first.error) == (pytest.approx(0.5), 1, None)  # 10 steps of 40 ms
    assert second.epoch_seconds == pytest.approx(0.4) and second.speed_up == pytest.approx(50 / (1.25 * 24 + 10))
    assert (second.measured_seconds, second.error) == (pytest.approx(0.5), pytest.approx(-0.2))
    assert third.epoch_seconds == pytest.approx(0.3375) and third.measured_seconds is None  # 1.25 x 15 + 15 ms
    table = tables.projection_table(analysis, "simple")
    assert table.count("projected") == 3 and [row[-1] for row in cells(table)] == ["–", "-20%", "–"]
    for text in (
        *("projected, not measured", "DDP with the batch divided", "10,000,000 bytes", "2 training ranks"),
        *(
            "8.00 Gbit/s",
            "share 8 cores",
            "30.0 ms of a core for the loader's work on a batch (measured)",
            "1.25 times",
        ),
    ):
        assert text in told(analysis)


def test_the_projection_is_held_to_a_row_that_is_planned_as_the_first_one():
    half = configuration("ddp", name="ddp-precision=bf16", num_workers=2, precision="bf16")
    rows = row_of("single"), (half, runs("ddp", (0.3, 0.3, 0.3), count=2)), row_of("ddp", 2)
    assert projected(*rows, cores=8).projection.points[1].measured_seconds == pytest.approx(0.4)
    assert projected(*rows[:2], cores=8).projection.points[1].measured_seconds is None
    alone = projected(row_of("ddp", 2), cores=8)  # without a row of one device, it is what the probe makes it
    first, second, _ = alone.projection.points
    assert (first.epoch_seconds, second.epoch_seconds) == pytest.approx((0.4, 0.34)) and first.measured_seconds is None
    assert second.error == pytest.approx(0.34 / 0.4 - 1) and "No row shows what one device takes" in told(alone)


def test_a_step_that_did_not_fit_leaves_no_projection():
    report = report_of(row_of("single"), project=[2, 4], probe={**LINK, "steps": LINK["steps"][1:]})
    assert analyse(report).projection.points == () and "did not fit into memory" in told(analyse(report))


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_projected_from_a_disturbed_comparison(busy, tmp_path, drawn):
    analysis = projected(foreign_cores={busy: 0.5})
    assert analysis.projection.points == analysis.projection.stops == () and "scaling.png" not in drawn(analysis)
    write_markdown(analysis, tmp_path / "report.md", [])
    for text in (terminal_text(analysis), (tmp_path / "report.md").read_text()):
        assert told(analysis) in text and not re.search("devices are fastest|Speed-up, projected", text)


def test_messages_of_a_ring_grow_with_the_devices_and_those_of_a_tree_with_each_doubling():
    link = Link(start=0.0, gbps=8.0, segments=1, at_once=1)
    for along in (link.ring, link.tree):
        assert along(1000, 1) == (0, 0) and along(10**9, 2) == (0, 1000)  # of one free, of many twice the bytes
        assert along(10**9, 10**6) == (0, pytest.approx(2000, rel=1e-5))
    for parts in (1, 2):
        link = Link(start=3.0, gbps=math.inf, segments=parts, at_once=1)
        assert [link.ring(1, devices)[0] for devices in (1, 2, 3, 64)] == [0, 6 * parts, 12 * parts, 378 * parts]
        assert [link.tree(1, devices)[0] for devices in (1, 2, 3, 4, 64)] == [0, 6, 12, 12, 36]


def test_what_a_backward_pass_leaves_of_the_exchange_is_waited_for():
    nccl, gloo = (Link(start=0.0, gbps=8.0, segments=1, at_once=at_once) for at_once in (1, 2))  # 1 MB/ms
    parts = [Bucket(10**6, 0.3), Bucket(5 * 10**5, 0.0)]
    for link in (nccl, gloo):
        assert link.waited_for([Bucket(10**6, 0.0)], 10.0, 2) == 1
        assert link.waited_for([Bucket(10**6, 0.3)], 10.0, 2) == 0
        assert link.waited_for(parts, 10.0, 2) == 0.5  # the first has 3 ms
        assert link.waited_for(parts, 2.0, 2) == pytest.approx(0.9)  # 0.6 ms: the second waits for it
    nccl, gloo = (Link(start=1.0, gbps=8.0, segments=1, at_once=at_once) for at_once in (1, 2))
    assert nccl.waited_for(parts, 2.0, 2) == pytest.approx(0.4 + 2 + 0.5 + 2)
    assert gloo.waited_for(parts, 2.0, 2) == pytest.approx(0.4 + 0.5 + 2)  # its messages start meanwhile
    assert gloo.waited_for([*parts, *parts[1:]], 2.0, 2) == pytest.approx(0.4 + 2 + 0.5 + 2)  # the third cannot
    assert gloo.waited_for(parts, 2.0, 1) == 0
    assert nccl.waited_for(parts, 2.0, 4, Link.tree) == pytest.approx(1.5 - 0.6 + 4 + 0.75 + 4)


def test_the_exchange_starts_messages_and_begins_in_the_backward_pass():
    """Of 10 ms for two devices' 10 MB, they wait 2, and their 4 messages take 4 to start; 4 are left for the bytes."""
    buckets = [{"size": 6_000_000, "left": 0.1}, {"size": 4_000_000, "left": 0.0}]
    model = {**LINK["models"][0], "short_milliseconds": 4.0, "long_milliseconds": 8.0, "buckets": buckets}

    def steps(**settings):
        analysis = projected(row_of("single"), cores=8, models=[model], **settings)
        return [point.step.all_reduce for point in analysis.projection.points], told(analysis)

    # 2 devices: 2.4 ms of bytes from 2.4 ms before the end on, then 1.6, and 4 ms of messages; 4: from 1.5 ms on
    waited, text = steps()
    assert waited == pytest.approx([0, 2 + 1.6 + 4, 2 + 2.1 + 2.4 + 12])
    for words in (
        *("at 20.00 Gbit/s", "ranks wait 2.00 ms", "4 (N-1) messages", "each takes 1.00 ms", "first 6,000,000 bytes"),
        *("10% of a step", "ring all-reduce, 2 devices with 50 images each are fastest", "tree all-reduce, 4 devices"),
    ):
        assert words in text, words
    given, text = steps(link_gbps=20.0, link_ms=1.0)  # twice as long: copied at 20 Gbit/s, then sent at as many
    assert given == pytest.approx([0, 2 + 2.4 + 3.2 + 8, 2 + 10.5 + 24]) and "each takes 2.00 ms" in text
    assert "a link of 20.00 Gbit/s (given)" in text and "Where k ranks share a core" in text
    assert steps(link_gbps=0.8)[1].count("adding devices never helps") == 2


@pytest.mark.parametrize("cores, times", [(None, 1), (8, 1), (4, 2), (2, 4)])
def test_ranks_that_share_a_core_exchange_more_slowly_and_a_given_link_does_not(cores, times):
    link = Link(start=1.0, gbps=8.0, segments=1, at_once=1, cores=cores, delay=3.0, wire=4.0)
    assert (link.message(8), link.byte(8)) == (times + 3, pytest.approx(times * 1e-6 + 2e-6))
    assert (link.message(2), link.byte(2)) == (1 + 3, pytest.approx(3e-6))


# ---- files


def test_files_hold_the_raw_times_and_point_to_the_figures(tmp_path, capsys):
    write_results(full_report(), tmp_path)
    assert present(tmp_path) == read_results(tmp_path / "results.json") == full_report()
    names = "curves speed-up phases memory scaling".split()
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'report.html'}\n")
    present(tmp_path, verbose=True)
    assert "MP, block 1: failed: signal 9" in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text()
    for name in names:
        file = tmp_path / f"{name}.png"
        assert f"]({file.name})" in text and file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 1e4
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["result"] for row in rows] == ["baseline", "practically equal", "simulated", "1 of 1 run failed"]
    assert rows[2]["no_speed_up_because"] == "simulated" and rows[2]["simulated"] == "True"
    assert rows[2]["speed_up"] == rows[3]["epoch_seconds"] == rows[3]["global batch"] == ""
    assert rows[0]["global batch"] == "100"
    for heading in (
        *("Result", "Verdict", "What was held equal", "Projection (projected, not measured)", "Figures"),
        *("What was not measured", "Accuracy per class (%)", "Machine", "Commands"),
    ):
        assert f"\n## {heading}\n" in text
    assert "The speed of DP: it was simulated" in text and "python ddp.py" in text


def test_everything_that_is_shown_comes_from_one_analysis(tmp_path, monkeypatch):
    reports, report = [], full_report()
    monkeypatch.setattr(analysis, "measure", lambda report: reports.append(report) or measure(report))
    write_results(report, tmp_path)
    present(tmp_path)
    assert reports == [report]


DAMAGES = {
    "cannot read": (r"\A[\s\S]*\Z", ["", "[]", "{"]),
    "version is 99.*update this": (f'"schema_version": {SCHEMA_VERSION}', ['"schema_version": 99']),
    "run the comparison again": (f'"schema_version": {SCHEMA_VERSION}', ['"schema_version": 1']),
    "it was edited": ('"train_seconds": 0.4', ['"train_seconds": 0.3']),
    "was edited": ('"sha256"', ['"sha"']),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_results_file_that_is_not_what_was_measured_is_refused(message, tmp_path):
    write_results(full_report(), tmp_path)
    file, (pattern, texts) = tmp_path / "results.json", DAMAGES[message]
    whole = file.read_text()
    for text in texts:
        file.write_text(re.sub(pattern, text, whole, count=1))
        with pytest.raises(SuiteError, match=message) as refused:
            read_results(file)
        assert refused.value.exit_code == 4 and file.read_text() != whole


def test_results_hold_no_nan(tmp_path):
    write_results(report_of((configuration(), [make_result(seconds=(math.nan, 2.0))])), tmp_path)
    json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert math.isnan(read_results(tmp_path / "results.json").outcomes[0].result.epochs[0].train_seconds)


def test_no_file_names_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    report = replace(report_of(SINGLE), command="/home/ada/venv/bin/python compare_parallel.py")
    write_results(report, tmp_path)
    assert read_results(tmp_path / "results.json").command == "~/venv/bin/python compare_parallel.py"
    assert "/home/ada" not in (tmp_path / "results.json").read_text()


KINDS = {
    "nothing ran": report_of(SKIPPED),
    "all failed": report_of((configuration(), ["failed", "timed out"])),
    "one skipped": report_of(SINGLE, SKIPPED),
    "one row": report_of(SINGLE),
    "no baseline": report_of((configuration(), []), DDP),
    "devices alone": report_of(*RANKS),
    "devices": report_of(SINGLE, *RANKS),
    "one epoch": ONE_EPOCH,
    "no classes": report_of((configuration(), runs(class_accuracy=None))),
    "projected": report_of(SINGLE, DDP, project=[2]),
    "projected without a baseline": report_of((configuration(), ["failed"]), DDP, project=[2], probe=LINK),
    "two sweeps": two_sweeps(),
    "full": full_report(),
    "interrupted": replace(full_report(), outcomes=full_report().outcomes[:1]),
    "weak": report_of(SINGLE, DDP, baseline="ddp", scaling="weak"),
    "methods that are not known any more": report_of(
        SINGLE, (configuration("old"), runs("old", (1.0, 1.01, 0.99))), (configuration("older"), ["failed"])
    ),
}
DRAWN = {
    "devices alone": "curves phases memory sweep-nproc",  # no scaling without a speed-up
    "devices": "curves phases memory scaling speed-up sweep-nproc",
    "one epoch": "phases memory",  # is no curve
    "two sweeps": "curves phases memory sweep-model sweep-batch-size",
    "methods that are not known any more": "curves speed-up phases memory",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_comparison_can_be_shown(kind, tmp_path, drawn):
    whole = analyse(KINDS[kind])
    shown = {name.removesuffix(".png") for name in drawn(whole)}
    assert shown == {*DRAWN[kind].split()} if kind in DRAWN else {f"{name}.png" for name in shown} <= {*figures.FIGURES}
    write_csv(whole, tmp_path / "results.csv")
    write_markdown(whole, tmp_path / "report.md", [])
    write_html(whole, tmp_path / "report.html", [])
    assert "<h2>Commands" in (tmp_path / "report.html").read_text() or not whole.report.outcomes
    assert len(terminal_text(whole, width=80).splitlines()) <= LINES
    text = " ".join(terminal_text(whole, verbose=True).split())
    assert re.search("Recommendation: |Sweep of ", text)
    assert text.count("Sweep of ") == sum(sweep.name != "model" for sweep in whole.sweeps)
    for row in whole.report.all_rows:
        assert all(f"{row.label}, block {run.block}: {run.status}: {run.reason}" in text for run in row.troubles)
        assert not row.configuration.skip or f"{row.label}: {row.configuration.skip}." in text
    said = {words.partition(": ")[0] for words in verdict(whole)}
    assert {entry.label for entry in whole.rows if not entry.row.simulated} <= said


# ---- figures


def learned(method, *ends):
    """A row whose runs of two epochs end with these test accuracies; None: a run that failed."""
    results = runs(method, (2.0,) * len(ends), epochs=2)
    made = [
        replace(result, epochs=(result.epochs[0], replace(result.epochs[1], test_accuracy=end))) if end else "failed"
        for result, end in zip(results, ends, strict=True)
    ]
    return configuration(method), made


def test_accuracies_are_compared_with_those_of_the_same_seed():
    report = report_of(learned("single", 0.70, 0.80, 0.60), learned("ddp", None, 0.83, 0.62), learned("dp", None))
    single, ddp, dp = report.rows
    assert plots.differences(ddp, single) == [pytest.approx([0.0, 0.0]), pytest.approx([3.0, 2.0])]
    assert plots.differences(dp, single) == []
    alike = report_of(learned("single", 0.70, 0.80), learned("ddp", 0.7004, 0.7999))
    for compared, finding in (
        (report, "Final accuracy: every row within 2.5 points of its baseline (farthest: “DDP”)"),
        (alike, "Final accuracy: every row within 0.1 points of its baseline"),
        (report_of(SINGLE), "Accuracy over the training"),
    ):
        assert plots.curves_finding(analyse(compared)) == finding


@pytest.mark.parametrize("apart, axes", [(0.009, ["seconds of training"]), (0.011, ["epoch", "seconds of training"])])
def test_accuracy_is_drawn_over_epochs_only_where_rows_differ_by_more_than_a_point(apart, axes, drawn):
    report = report_of(learned("single", 0.70, 0.70), learned("ddp", 0.70 + 2 * apart, 0.70), learned("dp", 0.70))
    panels = drawn(analyse(report))["curves.png"].axes
    assert [axis.get_xlabel() for axis in panels] == axes
    for axis in panels:
        single, ddp, _ = axis.get_lines()
        assert single.get_ydata() == pytest.approx([60, 70]) and ddp.get_ydata() == pytest.approx(
            [60, 70 + 100 * apart]
        )
        assert axis is not panels[-1] or single.get_xdata() == pytest.approx([2.0, 4.0])


def test_speed_ups_are_written_at_the_ends_of_their_intervals_the_fastest_first(drawn):
    slow, fast = (
        (configuration(name), runs(name, times)) for name, times in (("dp", (4.0, 4.1, 3.9)), ("ddp", (0.9, 1.0, 1.1)))
    )
    analysis = analyse(report_of(SINGLE, slow, fast))
    figure = drawn(analysis)["speed-up.png"]
    (axis,), ratios = figure.axes, {entry.label: entry.standing.speed_up for entry in analysis.rows}
    assert [label.get_text() for label in axis.get_yticklabels()] == ["DDP", "SINGLE", "DP"]
    assert axis.get_ylim() == (2.5, -0.5) and axis.get_xlim()[0] > 0.3 and axis.get_xscale() == "linear"
    words = [text.get_text() for text in axis.texts]
    assert words == [str(ratios["DDP"]), "1.00", str(ratios["DP"]), "baseline"]
    ends = [text.xy for text in axis.texts]
    assert ends == [(ratios["DDP"].high, 0), (1.0, 1), (ratios["DP"].high, 2), (1, 1)] and not axis.patches


@pytest.mark.parametrize("seconds, scale", [(0.26, "linear"), (0.24, "log")])
def test_ratios_are_on_a_logarithmic_axis_only_if_they_span_more_than_eight_times(seconds, scale, drawn):
    ddp = (configuration("ddp"), runs("ddp", (seconds, seconds * 1.01, seconds * 0.99)))
    (axis,) = drawn(analyse(report_of(SINGLE, ddp)))["speed-up.png"].axes
    assert axis.get_xscale() == scale


def test_a_row_that_claims_nothing_says_so_beside_its_dot(drawn):
    undecided = (configuration("ddp"), runs("ddp", (1.5, 2.5, 1.9)))
    unequal = (configuration("fsdp"), runs("fsdp", (1.0, 1.01, 0.99), workers_per_process=2))
    figure = drawn(analyse(report_of(SINGLE, undecided, unequal, allow_unequal=True)))["speed-up.png"]
    words = [text.get_text().partition("], ")[2] for text in figure.axes[0].texts]
    assert words == ["UNEQUAL settings", "undecided", "", ""]


def test_titles_say_what_was_found(drawn):
    simulated = (configuration("dp"), runs("dp", phases=(1.0, 0.5, 20.0, 99.0, 3.0), simulated=True))
    halved = (configuration("ddp"), runs("ddp", count=2, phases=(1.0, 0.5, 25.0, 40.0, 3.0), world_size=2))
    title = drawn(analyse(report_of(SINGLE, halved, simulated)))["phases.png"].get_suptitle()
    assert title.startswith("Largest excess over ideal scaling: backward of “DDP”, 40.0 instead of 20.0 ms\n")
    alone = drawn(analyse(report_of(SINGLE, simulated)))["phases.png"].get_suptitle()
    assert alone.startswith("Where a step's time goes\n")
    figure = drawn(projected(row_of("single"), row_of("ddp", 2, seconds=0.2), cores=8))["scaling.png"]
    assert figure.get_suptitle().splitlines()[0] == "“DDP” is 2.00 times as fast as “SINGLE”"
    assert {"SINGLE, measured", "DDP, measured"} < {text.get_text() for text in figure.legends[0].get_texts()}
    swept = [
        (configuration("mp", values={"num_workers": count}), runs("mp", 3 * [time]))
        for count, time in ((0, 3.0), (2, 1.5))
    ]
    figure = drawn(analyse(report_of(*swept)))["sweep-num-workers.png"]
    assert figure.axes[0].get_title() == "MP\nfastest at 2, 667 images/s"
    assert figure.get_suptitle().startswith("Time per image, by workers\n")


@pytest.mark.parametrize("seconds", [0.2, 2.0])
def test_what_was_measured_fills_the_figure_of_scaling_whatever_the_ideal(seconds, drawn):
    analysis = projected(row_of("single"), row_of("ddp", 2, seconds=seconds), cores=8)
    (axis,) = drawn(analysis)["scaling.png"].axes
    drawn_to = [entry.standing.speed_up.high or 1.0 for entry in analysis.rows]
    drawn_to += [point.speed_up for point in analysis.projection.points]
    assert axis.get_ylim() == (0, pytest.approx(1.15 * max(drawn_to)))


def test_a_map_says_where_a_method_pays(drawn):
    seconds = {"slower": (3.0, 3.01, 2.99), "undecided": (1.5, 2.5, 1.9), "faster": (1.0, 1.01, 0.99)}
    words = ["undecided", "faster", "slower", "slower"]
    places = [(model, size) for model in ("lenet", "mlp") for size in (64, 256)]
    rows = []
    for (model, size), word in zip(places, words, strict=True):
        values = {"model": model, "batch_size": size}
        rows.append((configuration(values=values, **values), runs(global_batch_size=size)))
        ddp = configuration("ddp", values=values, per_device_batch_size=size // 2, **values)
        rows.append((ddp, runs("ddp", seconds[word], count=2, global_batch_size=size)))
    analysis = analyse(report_of(*rows))
    assert axes_of(analysis) == ["model", "batch_size"] and "map.png" in drawn(analysis)
    (found,) = find_maps(analysis).values()
    assert [entry.standing.speed_up.words for entry in found.values()] == words and list(found) == places
    assert map_finding(analysis, find_maps(analysis)) == "Faster than single: “DDP” in 1 of 4 cases"
    pays = [text for text in sweep_sentences(analysis) if "batch size, “DDP" in text]
    assert [text.rpartition("its baseline ")[2] for text in pays] == ["at 256.", "at none of them."]
    assert find_maps(analyse(report_of(SINGLE, DDP))) == {}


def test_what_could_not_be_used_is_named_the_fastest_nowhere():
    """What exchanges no gradients, and what has other settings, is faster here than what could be used."""
    values = {"model": "mlp", "batch_size": 100}
    rows = [(configuration(values=values, model="mlp"), runs(peak_memory_bytes=(100 * 2**20,)))]
    for method, seconds, workers in (("ddp-no-sync", 0.5, 0), ("fsdp", 0.6, 2), ("ddp", 1.0, 0)):
        planned = configuration(method, values=values, model="mlp", per_device_batch_size=50, num_workers=2 * workers)
        used = {"count": 2, "peak_memory_bytes": (50 * 2**20,) * 2, "workers_per_process": workers}
        rows.append((planned, runs(method, (seconds, seconds + 0.01, seconds - 0.01), **used)))
    analysis = analyse(report_of(*rows, allow_unequal=True))
    assert all(entry.standing.speed_up for entry in analysis.rows) and list(find_maps(analysis)) == ["ddp"]
    name = "DDP (model mlp, batch size 100)"
    assert plots.speed_up_finding(analysis.done).startswith(f"“{name}” is 2.00 times as fast")
    assert [words.partition(":")[0] for words in where_time_goes(analysis)] == [name]


def test_every_method_has_a_look_of_its_own(tmp_path):
    looks = [method.look for method in (*METHODS.values(), UNKNOWN)]
    for key in ("color", "linestyle", "marker"):
        assert len({str(getattr(look, key)) for look in looks}) == len(looks)
    drawn = draw_curves(make_result("ddp", devices=("cpu", "cpu")), tmp_path)
    assert drawn.name == "synthetic-mnist-lenet-ddp-2.png" and drawn.stat().st_size > 1e4


# ---- two reports


def test_diff_compares_equal_rows_and_refuses_unequal_ones():
    before = report_of(SINGLE, DDP, (configuration("mp"), runs("mp", simulated=True)))
    unequal = [replace(result, global_batch_size=200) for result in DDP[1]]
    after = report_of((configuration(), runs(seconds=(1.0, 1.01, 0.99))), (DDP[0], unequal), row_of("dp"), lr=0.1)
    text = describe_difference(before, replace(after, environment={**after.environment, "torch": "2.15.0"}), 200)
    assert not re.search(r"faster|slower|equal|\[", text)  # another hour: no claim, no interval
    assert "To claim a difference, measure both in turns: --against." in text
    for pattern in (
        *(r"SINGLE +2.00 +1.00 +2.00\n", "“DDP”: refused: global batch 200 instead of 100"),
        *(r"MP +2.00 +– +–\n", "“MP”, “DP”: not in both"),
        *("Different machine: torch 2.11.0 → 2.15.0.", "Different settings: lr None → 0.1."),
    ):
        assert re.search(pattern, text), pattern


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"config": {"lr_milestones": [3]}}, r"every row: refused: lr_milestones \[3\] instead of None"),
        ({"config": {"cuda_graph": True}}, "every row: refused: cuda_graph True instead of False"),
        ({"config": {"seed": 7}}, r"1.00\n[^~]*every row: seed 7 instead of 42"),
        (  # what belongs to the machine
            {"threads_per_process": 4, "devices": ("cuda:0 (NVIDIA H200)",)},
            r"1.00\n[^~]*every row: device cuda \(NVIDIA H200\) instead of cpu; threads per device 4 instead of 1",
        ),
    ],
)
def test_diff_refuses_what_trained_something_else_and_lists_what_belongs_to_the_machine(changed, words):
    config = {**SINGLE[1][0].config, **changed.get("config", {})}
    other = [replace(result, **{**changed, "config": config}) for result in SINGLE[1]]
    text = describe_difference(report_of(SINGLE), report_of((configuration(), other)), 200)
    assert re.search(words, text), text


def test_a_difference_is_one_screen():
    before, after = (
        read_results(PROJECT / "figures" / name / "results.json") for name in ("cifar10-vgg", "ladder-mnist")
    )
    for one, other in ((before, after), (after, before), (after, after)):
        lines = describe_difference(one, other).splitlines()
        assert len(lines) <= LINES and max(map(len, lines)) <= 80
        assert "To claim a difference, measure both in turns: --against." in " ".join(lines)


def test_seeds_differ_by_block():
    other = [replace(result, config={**result.config, "seed": 7}) for result in DDP[1]]
    report = report_of(SINGLE, (DDP[0], other))
    assert analyse(report).rows[1].standing.speed_up  # its first run that ended well may be of a later block
