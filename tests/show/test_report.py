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
from comparison.judge.fairness import differences
from comparison.judge.measures import block_times, measure
from comparison.judge.projection import Link
from comparison.judge.statistics import ratios, residual_deviation, resolution
from comparison.methods import METHODS, UNKNOWN
from comparison.plan.plan import type_flags
from comparison.record import Equivalence
from comparison.results_file import SCHEMA_VERSION, read_results, write_results
from comparison.run import equivalence
from comparison.show import figures as figures_of
from comparison.show.diff import describe_difference
from comparison.show.figures import FIGURES, draw_all
from comparison.show.plots import choice_finding, curves_finding, speed_up_finding
from comparison.show.plots import differences as differences_of
from comparison.show.remarks import definitions, notes, warnings
from comparison.show.report import present, write_csv, write_markdown
from comparison.show.sentences import tell
from comparison.show.sweep_plots import axes_of, find_maps, map_finding
from comparison.show.tables import accuracy, main_table, projection_table, settings_table, sweep_tables
from comparison.show.terminal import terminal_text
from comparison.show.verdict import sweep_sentences, verdict, where_time_goes
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

# ---- tables


def test_main_table():
    report = report_of(
        SINGLE,
        DDP,
        (configuration("dp"), runs("dp", simulated=True)),
        (configuration("mp", skip="needs 2 GPUs, found 1"), []),
        (configuration("accelerate"), ["failed", *runs(seconds=(2.0, 2.1))]),
    )
    single, ddp, dp, mp, accelerate = cells(main_table(analyse(report), "simple"))
    assert single == [
        "SINGLE",
        "synthetic-mnist",
        "1",
        "80.00 ± 0.00",
        "2.00",
        "1.98–2.02",
        "3",
        "500",
        "1.00",
        "1.67 [1.61, 1.73]",
        "100%",
        "9.0",
        "0.0",
        "baseline",
    ]
    assert ddp[8] == "2.00 [1.91, 2.10]" and ddp[9:] == ["1.00", "100% [95, 105]", "9.0", "0.0", "faster"]
    assert dp[8:] == ["–", "–", "–", "9.0", "0.0", "simulated"]
    assert mp == ["MP", "synthetic-mnist", *["–"] * 4, "0", *["–"] * 6, "skipped"]
    assert accelerate[6] == "2" and accelerate[-1] == "1 of 3 runs failed; undecided"
    assert report.failed and not report_of(SINGLE, DDP).failed


@pytest.mark.parametrize(
    "accuracies, text",
    [
        ((), "–"),
        ((0.98765,), "98.8"),
        ((0.9, 0.9), "90.00 ± 0.00"),
        ((0.98, 0.99, 0.985), "98.5 ± 0.5"),
        ((0.6, 0.7, 0.8), "70 ± 10"),
        ((0.9890, 0.9892), "98.91 ± 0.01"),
        ((0.5, 0.502), "50.1 ± 0.1"),
    ],
)
def test_an_accuracy_has_the_digits_that_it_deserves(accuracies, text):
    assert accuracy(accuracies) == text


def test_medians_and_means_are_not_mixed_in_a_line():
    uneven = (configuration("ddp"), runs("ddp", (1.0, 1.0, 1.3)))
    _, ddp = cells(main_table(analyse(report_of((configuration(), runs(seconds=(1.7, 1.8, 1.9))), uneven)), "simple"))
    shown = [float(ddp[column].split()[0]) for column in (4, 8)]
    assert shown[0] * shown[1] == pytest.approx((1.7 * 1.8 * 1.9) ** (1 / 3), rel=0.01)


def test_all_speed_ups_together_have_the_confidence():
    rows = [SINGLE, *((configuration("ddp", f"ddp-{number}"), runs("ddp", (1.0, 1.02, 1.05))) for number in range(4))]
    report = report_of(*rows)
    among_four, (alone,) = analyse(report).rows[1].standing.speed_up, ratios(block_times(report.rows), 0, [1])
    assert among_four == ratios(block_times(report.rows), 0, [1, 2, 3, 4])[0]
    assert among_four.low < alone.low and among_four.high > alone.high

    def family(workers):
        values = {"values": {"num_workers": workers}, "num_workers": workers}
        noisy = runs("ddp", (1.0, 1.02, 1.05), workers_per_process=workers)
        return (configuration(**values), runs(workers_per_process=workers)), (configuration("ddp", **values), noisy)

    report = report_of(*family(0), *family(2))  # two baselines, each with half of the error
    assert analyse(report).rows[1].standing.speed_up == ratios(block_times(report.rows), 0, [1], 0.975)[0]


def test_the_resolution_comes_first(tmp_path):
    noisy = (configuration("ddp"), runs("ddp", (1.0, 1.05, 0.97)))
    report = report_of(SINGLE, noisy)
    noise = analyse(report).resolution
    assert noise.deviation == pytest.approx(residual_deviation(block_times(report.rows))[0])
    assert noise.differences[3] == resolution(noise.deviation, 3, 2, 1) > noise.differences[10]
    write_markdown(analyse(report), tmp_path / "report.md", [])
    sentence = (tmp_path / "report.md").read_text().partition("## Result\n\n")[2]
    assert sentence.startswith("This machine, this hour: the times of runs have a standard")
    assert f"above about {100 * noise.differences[3]:.2g} % in 3 blocks and above about" in sentence
    assert analyse(report_of((configuration(), runs(seconds=(2.0,))))).resolution is None


def test_what_is_practically_equal_can_be_chosen():
    near = (configuration("ddp"), runs("ddp", (2.04, 2.06, 2.02)))
    assert analyse(report_of(SINGLE, near)).rows[1].result == "practically equal"
    assert analyse(report_of(SINGLE, near, equal_within=0.01)).rows[1].result == "slower"


def test_every_row_shows_what_should_be_equal():
    header, _, single, ddp = settings_table(report_of(SINGLE, DDP), "simple").splitlines()
    assert re.split(r"\s{2,}", header) == [
        "Method",
        "Device",
        "Global batch",
        "Per-device batch",
        "Steps per epoch",
        "Workers",
        "Threads per device",
        "Precision",
        "Loader",
    ]
    assert single.split() == ["SINGLE", "cpu", "100", "100", "10", "0", "1", "float32", "workers"]
    assert ddp.split()[0] == "DDP"


def test_a_sweep_has_its_column_and_its_table():
    report = report_of(
        *(
            (
                configuration(values={"num_workers": workers}, num_workers=workers),
                runs(seconds=seconds, phases=(data, 0.5, 20.0, 40.0, 3.0), workers_per_process=workers),
            )
            for workers, seconds, data in ((0, (3.0, 3.01, 2.99), 30.0), (2, (2.0, 2.01, 1.99), 1.0))
        )
    )
    assert main_table(analyse(report), "simple").split()[1] == "Workers"
    assert [row[1] for row in cells(main_table(analyse(report), "simple"))] == ["0", "2"]
    (table,) = sweep_tables(analyse(report), "simple")
    first, second = cells(table)
    assert first == ["SINGLE", "0", "30.0", "63.5", "3.00", "333", "9.0", "80.00 ± 0.00", "–"]
    assert second[2:5] == ["1.0", "63.5", "2.00"] and second[-1] == "0.67 [0.66, 0.67] (faster)"
    assert "UNEQUAL" not in terminal_text(analyse(report)) and "refused" not in terminal_text(analyse(report))


def test_a_part_of_the_data_stands_in_the_title():
    assert report_of(SINGLE, max_steps=200, train_size=5000).title == (
        "lenet on synthetic-mnist (first 5,000 images), global batch 100, 3 epochs of 200 steps, 3 runs each"
    )


def test_weak_scaling_stands_in_the_title():
    report = report_of(SINGLE, scaling="weak")
    assert "WEAK SCALING: batch 100 per device" in report.title and report.title in terminal_text(analyse(report))


def test_without_a_baseline_there_are_no_speed_ups_and_it_says_so():
    report = report_of(DDP)
    assert "No speed-up for DDP: the baseline, single, is not among the methods." in notes(analyse(report))
    report = report_of((configuration(), ["failed"]), DDP)
    assert "No speed-up for DDP: the baseline, “SINGLE”, has no run that ended well." in notes(analyse(report))
    assert cells(main_table(analyse(report), "simple"))[1][8] == "–"


def test_another_baseline():
    report = report_of(SINGLE, DDP, baseline="ddp")
    single, ddp = cells(main_table(analyse(report), "simple"))
    assert single[8:11] == ["0.50 [0.50, 0.50]", "1.67 [1.66, 1.67]", "100% [100, 100]"]  # one device instead of two
    assert ddp[8:11] == ["1.00", "1.00", "100%"]
    simulated = report_of(SINGLE, (configuration("dp"), runs("dp", simulated=True)), baseline="dp")
    assert "No speed-up for SINGLE: the baseline, “DP”, is simulated." in notes(analyse(simulated))
    assert "simulated" not in verdict(analyse(simulated))[0].replace("“DP”, is simulated", "")


def test_bars_in_a_cell_do_not_end_it():
    report = full_report()
    for table in (main_table(analyse(report), "github"), settings_table(report, "github")):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert r"max \|Δ parameter\|" in main_table(analyse(report), "github")


def test_what_a_reader_must_know():
    report = report_of((configuration(), runs(seconds=(2.0,), first=8.0)), repeats=1)
    assert any("no interval: 1 run" in note for note in notes(analyse(report)))
    assert any("is synthetic" in note for note in notes(analyse(report)))
    assert warnings(analyse(report)) == [
        f"WARNING: SINGLE: {text}."
        for text in [
            "its first epoch takes 4.0 times as long as the others: warm-up, which is left out of the times; give more "
            "--epochs, so that more of them count"
        ]
    ]
    assert cells(main_table(analyse(report), "simple"))[0][-1] == "baseline"


# ---- fairness


@pytest.mark.parametrize(
    "name, change",
    [
        ("global batch 200 instead of 100", {"global_batch_size": 200}),
        ("workers 4 instead of 0", {"workers_per_process": 4}),
        ("threads per device 2 instead of 1", {"threads_per_process": 2}),
        ("precision bfloat16 instead of float32", {"precision": "bfloat16"}),
        ("device cuda (NVIDIA H200) instead of cpu", {"devices": ("cuda:0 (NVIDIA H200)",)}),
        ("torch 2.15.0 instead of 2.11.0", {"environment": {**ENVIRONMENT, "torch": "2.15.0", "cores": 1}}),
        *(
            (f"{name} 9 instead of {old}", {"config": {name: 9}})
            for name, old in (
                ("loader", "workers"),
                ("dataset", "synthetic-mnist"),
                ("model", "lenet"),
                ("optimizer", "adam"),
                ("lr", 0.001),
                ("epochs", 3),
            )
        ),
        *(
            (f"{name} 9 instead of {getattr(RunConfig(), name)}", {"config": {name: 9}})
            for name in flags_that("equal")
            if name not in make_result().config and name not in ("precision", "seed")
        ),
    ],
)
def test_every_inequality_is_found_refused_or_marked(name, change):
    reference = make_result()
    other = replace(
        reference, **{**change, **({"config": {**reference.config, **change["config"]}} if "config" in change else {})}
    )
    assert differences(other, reference, "strong") == [name] and differences(reference, reference, "strong") == []
    report = report_of(SINGLE, (configuration("ddp"), [other]))
    standing, table = analyse(report).rows[1].standing, main_table(analyse(report), "simple")
    assert standing.speed_up is None and standing.reason == f"refused: {name}"
    assert cells(table)[1][8] == "–" and f"refused: {name}" in table
    allowed = replace(report, settings={**report.settings, "allow_unequal": True})
    assert analyse(allowed).rows[1].standing.speed_up and f"UNEQUAL ({name})" in main_table(analyse(allowed), "simple")


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


def test_a_difference_above_rounding_fails():
    assert equivalence._judge(1e-7, "").status == "ok"
    assert equivalence._judge(0.5, "").status == "failed" and "5.0e-01" in equivalence._judge(0.5, "").reason
    assert equivalence._judge(math.nan, "").status == "failed"
    assert equivalence._judge(5e-4, "").status == equivalence._judge(5e-3, "gradients").status == "failed"
    assert equivalence._judge(5e-4, "gradients").status == "ok"


def test_failed_maths_leave_no_speed_up():
    failed = Equivalence(0.5, "failed", "differs")
    for name, label in (("ddp", "DDP"), ("single", "SINGLE")):  # the row itself, or what it is compared with
        report = report_of(SINGLE, DDP, equivalence={name: failed})
        assert analyse(report).rows[1].standing.reason == f"the check of the maths of “{label}” failed"
        assert report.failed


@pytest.mark.slow
def test_a_row_that_computes_something_else_is_a_failed_row(data_root, monkeypatch):
    monkeypatch.setattr(equivalence, "STEPS", 2)
    shared = "--dataset synthetic-mnist --train-size 96 --recipe fast --target-accuracy 0.99".split()
    shared += ["--data-root", str(data_root)]  # the check leaves out the target
    planned = {"batch_size": 48, "per_device_batch_size": 48}
    scripts = [configuration(**planned), configuration(name="other", **planned), configuration("ddp-no-sync")]
    train = (
        equivalence.python(),
        equivalence.script("data_parallel_train.py"),
        *shared,
        *type_flags(scripts[0].planned.flags),
    )
    whole = replace(configuration("single-all-cores", **planned, threads=2), command=train)
    rows = [
        replace(scripts[0], command=train),
        replace(scripts[1], command=(*train, "--seed", "7")),
        scripts[2],
        replace(scripts[1], name="broken", command=(*train, "--split-at", "x")),
        whole,
    ]
    logs, run_child = [], equivalence.run_child
    monkeypatch.setattr(
        equivalence, "run_child", lambda command, log, *more: logs.append(log.stem) or run_child(command, log, *more)
    )
    checks = equivalence.check_equivalence(rows, shared, 96)
    # one reference for all: one device's threads, also for the row with all cores; another for who differs
    assert logs == ["reference-0-fp32", "0-fp32", "1-fp32", "reference-1-fp64", "1-fp64", "3-fp32", "4-fp32"]
    assert checks["single-all-cores"].difference == 0.0
    assert checks["single"] == Equivalence(0.0, "ok", "")
    assert checks["other"].status == "failed" and checks["other"].difference > 1e-2
    assert checks["ddp-no-sync"].status == "expected" and checks["ddp-no-sync"].difference is None
    assert checks["broken"].status == "failed" and "unrecognized arguments" in checks["broken"].reason
    report = report_of(SINGLE, (scripts[1], runs()), equivalence=checks)
    assert report.failed and "failed: computes something else" in main_table(analyse(report), "simple")
    assert "max |Δ parameter|" in main_table(analyse(report), "simple")


# ---- projection


def projected(*rows, cores=2, loader=LINK["loaders"][0], **settings):
    report = report_of(
        *rows or [row_of("single"), row_of("ddp", 2)], project=[2, 4], probe={**LINK, "loaders": [loader]}, **settings
    )
    return analyse(replace(report, environment={**report.environment, "cores": cores}))


def modelled(*rows, **values):
    """What the model gives by itself: no row of one device says how much longer it takes."""
    rows = rows or [row_of("ddp", 2)]
    return [point.step.milliseconds for point in projected(*rows, **values).projection.points]


def test_a_step_takes_as_long_as_the_slowest_of_devices_loader_and_cores():
    slow = {**LINK["loaders"][0], "images_per_second": 2000.0}
    assert modelled(cores=8) == pytest.approx([40, 24 + 10, 15 + 15])  # the devices
    assert modelled(cores=8, loader=slow) == pytest.approx([50, 50, 50])
    assert modelled(cores=2) == pytest.approx([40, (30 + 2 * 24) / 2 + 10, (30 + 4 * 15) / 2 + 2 * 15])  # 2 on a core
    assert modelled(cores=8, link_gbps=80.0) == pytest.approx([40, 24 + 10 + 1, 15 + 15 + 1.5])  # copied, then sent


def test_a_device_of_several_threads_takes_as_many_cores():
    row = (configuration("ddp", num_workers=2, threads=2), runs("ddp"))
    assert modelled(row, cores=2) == pytest.approx([(30 + 80) / 2, (30 + 96) / 2 + 10, (30 + 120) / 2 + 2 * 15])


def test_gpus_do_not_compute_on_the_cores():
    row = (configuration("ddp", num_workers=2, device="gpu"), runs("ddp"))
    analysis = projected(row, cores=1)
    assert [point.step.milliseconds for point in analysis.projection.points] == pytest.approx([40, 34, 30])
    assert cells(projection_table(analysis, "simple"))[1][:5] == ["2", "24.0", "10.00", "20.0", "–"]
    assert "the cores that feed them" in " ".join(map(tell, analysis.projection.assumptions))


def test_without_workers_every_process_loads_its_part_before_the_step():
    loader, row = {"num_workers": 0, "images_per_second": 5000.0, "cpu_seconds_per_image": 2e-4}, row_of("ddp", 1, 0)
    assert modelled(row, cores=8, loader=loader) == pytest.approx([40 + 20, 24 + 10 + 10, 15 + 5 + 15])
    assert modelled(row, cores=1, loader=loader) == pytest.approx([60, 2 * 24 + 20 + 2 * 10, 4 * 15 + 20 + 4 * 15])


def test_the_projection_begins_with_what_one_device_was_measured_to_take():
    analysis = projected(row_of("single", seconds=0.5), row_of("ddp", 2, seconds=0.5), cores=8)
    first, second, third = analysis.projection.points
    assert (first.epoch_seconds, first.speed_up, first.error) == (pytest.approx(0.5), 1, None)  # 10 steps of 40 ms
    assert second.epoch_seconds == pytest.approx(0.4) and second.speed_up == pytest.approx(50 / (1.25 * 24 + 10))
    assert (second.measured_seconds, second.error) == (pytest.approx(0.5), pytest.approx(-0.2))
    assert third.epoch_seconds == pytest.approx(0.3375) and third.measured_seconds is None  # 1.25 x 15 + 15 ms
    table = projection_table(analysis, "simple")
    assert table.count("projected") == 3 and [row[-1] for row in cells(table)] == ["–", "-20%", "–"]
    assumptions = " ".join(map(tell, analysis.projection.assumptions))
    for text in (
        "projected, not measured",
        "DDP with the batch divided",
        "10,000,000 bytes",
        "2 ranks that train",
        "8.00 Gbit/s",
        "share 8 cores",
        "30.0 ms of a core for the loader's work on a batch (measured)",
        "1.25 times",
    ):
        assert text in assumptions


def test_the_projection_is_held_to_a_row_that_is_planned_as_the_first_one():
    half = configuration("ddp", name="ddp-precision=bf16", num_workers=2, precision="bf16")
    rows = row_of("single"), (half, runs("ddp", (0.3, 0.3, 0.3), count=2)), row_of("ddp", 2)
    assert projected(*rows, cores=8).projection.points[1].measured_seconds == pytest.approx(0.4)
    assert projected(*rows[:2], cores=8).projection.points[1].measured_seconds is None


def test_without_a_row_of_one_device_the_projection_is_what_the_probe_makes_it():
    analysis = projected(row_of("ddp", 2), cores=8)
    first, second, _ = analysis.projection.points
    assert (first.epoch_seconds, second.epoch_seconds) == pytest.approx((0.4, 0.34)) and first.measured_seconds is None
    assert second.error == pytest.approx(0.34 / 0.4 - 1)
    assert "No row shows what one device takes" in " ".join(map(tell, analysis.projection.assumptions))


def test_a_step_that_did_not_fit_leaves_no_projection():
    report = report_of(row_of("single"), project=[2, 4], probe={**LINK, "steps": LINK["steps"][1:]})
    projection = analyse(report).projection
    assert projection.points == () and "did not fit into memory" in tell(projection.assumptions[0])


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_projected_from_a_disturbed_comparison(busy, tmp_path):
    analysis = projected(foreign_cores={busy: 0.5})
    assert analysis.projection.points == analysis.projection.stops == ()
    assert projection_table(analysis, "simple") == ""
    assert not {"scaling.png"} & {path.name for path in draw_all(analysis, tmp_path)}
    write_markdown(analysis, tmp_path / "report.md", [])
    for text in (terminal_text(analysis), (tmp_path / "report.md").read_text()):
        (said,) = map(tell, analysis.projection.assumptions)
        assert said in text and "devices are fastest" not in text and "Speed-up, projected" not in text


def test_an_all_reduce_of_one_device_is_free_and_of_many_is_twice_the_bytes():
    link = Link(start=0.0, gbps=8.0, segments=1, at_once=1)
    for along in (link.ring, link.tree):
        assert along(1000, 1) == (0, 0) and along(10**9, 2) == (0, 1000)
        assert along(10**9, 10**6) == (0, pytest.approx(2000, rel=1e-5))


@pytest.mark.parametrize("segments", [1, 2])
def test_a_ring_has_more_messages_for_each_device_and_a_tree_for_each_doubling(segments):
    link = Link(start=3.0, gbps=math.inf, segments=segments, at_once=1)
    assert [link.ring(1, devices)[0] for devices in (1, 2, 3, 64)] == [0, 6 * segments, 12 * segments, 378 * segments]
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
    model = {
        **LINK["models"][0],
        "short_milliseconds": 4.0,
        "long_milliseconds": 8.0,
        "buckets": [{"size": 6_000_000, "left": 0.1}, {"size": 4_000_000, "left": 0.0}],
    }

    def steps(**settings):
        report = report_of(row_of("single"), project=[2, 4], probe={**LINK, "models": [model]}, **settings)
        report = replace(report, environment={**report.environment, "cores": 8})
        projection = analyse(report).projection
        text = " ".join(map(tell, (*projection.stops, *projection.assumptions)))
        return [point.step.all_reduce for point in projection.points], text

    # 2 devices: 2.4 ms of bytes from 2.4 ms before the end on, then 1.6, and 4 ms of messages; 4: from 1.5 ms on
    waited, text = steps()
    assert waited == pytest.approx([0, 2 + 1.6 + 4, 2 + 2.1 + 2.4 + 12])
    for words in (
        "at 20.00 Gbit/s",
        "ranks wait 2.00 ms",
        "4 (N-1) messages",
        "each takes 1.00 ms",
        "first 6,000,000 bytes",
        "10% of a step",
        "round a ring, 2 devices are fastest, of 50 images each",
        "along trees, 4 devices",
    ):
        assert words in text, words
    given, text = steps(link_gbps=20.0, link_ms=1.0)  # twice as long: copied at 20 Gbit/s, then sent at as many
    assert given == pytest.approx([0, 2 + 2.4 + 3.2 + 8, 2 + 10.5 + 24]) and "each takes 2.00 ms" in text
    assert "a link of 20.00 Gbit/s, as given" in text and "Where ranks share a core" in text
    assert steps(link_gbps=0.8)[1].count("no number of devices is faster than one") == 2


@pytest.mark.parametrize("cores, times", [(None, 1), (8, 1), (4, 2), (2, 4)])
def test_ranks_that_share_a_core_exchange_more_slowly_and_a_given_link_does_not(cores, times):
    link = Link(start=1.0, gbps=8.0, segments=1, at_once=1, cores=cores, delay=3.0, wire=4.0)
    assert (link.message(8), link.byte(8)) == (times + 3, pytest.approx(times * 1e-6 + 2e-6))
    assert (link.message(2), link.byte(2)) == (1 + 3, pytest.approx(3e-6))


def test_of_gpus_a_given_speed_is_all_of_the_link():
    planned = {"device": "gpu", "threads": 1}
    report = report_of(
        (configuration("single", **planned), runs("single")),
        project=[2],
        link_gbps=80.0,
        probe={**LINK, "loaders": [{**LINK["loaders"][0], "num_workers": 0}]},
    )
    projection = analyse(report).projection
    points, assumptions = projection.points, " ".join(map(tell, projection.assumptions))
    assert points[1].step.all_reduce == pytest.approx(1) and "at 80.00 Gbit/s (as given)" in assumptions
    assert "Besides" not in assumptions and "share a core" not in assumptions


# ---- files


def test_files_hold_the_raw_times_and_point_to_the_figures(tmp_path):
    report = full_report()
    figures = draw_all(analyse(report), tmp_path)
    write_results(report, tmp_path)
    write_csv(analyse(report), tmp_path / "results.csv")
    write_markdown(analyse(report), tmp_path / "report.md", figures)
    assert read_results(tmp_path / "results.json") == report
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["result"] for row in rows] == ["baseline", "practically equal", "simulated", "1 of 1 run failed"]
    numbers = [float(rows[1][name]) for name in ("speed_up", "speed_up_low", "efficiency")]
    assert numbers == pytest.approx([1.0, 0.987, 0.5], abs=1e-3)
    assert rows[2]["no_speed_up_because"] == "simulated"
    assert rows[2]["speed_up"] == rows[3]["epoch_seconds"] == "" and rows[2]["simulated"] == "True"
    assert rows[0]["global batch"] == "100" and rows[3]["global batch"] == ""
    text = (tmp_path / "report.md").read_text()
    for heading in (
        "Result",
        "Verdict",
        "What was equal",
        "Projection (projected, not measured)",
        "Figures",
        "What was not measured",
        "Accuracy per class (%)",
        "Machine",
        "Commands",
    ):
        assert f"\n## {heading}\n" in text
    assert "The speed of DP: it was simulated" in text and "python ddp.py" in text
    assert [figure.name for figure in figures] == [
        "curves.png",
        "speed-up.png",
        "phases.png",
        "excess.png",
        "memory.png",
        "time-memory.png",
        "scaling.png",
    ]
    for figure in figures:
        assert f"]({figure.name})" in text
        assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 1e4


def test_accuracies_are_compared_with_those_of_the_same_seed():
    def learned(*ends):
        """A run for each end: the test accuracy of its second epoch."""
        results = runs(seconds=(2.0,) * len(ends), epochs=2)
        return [
            replace(result, epochs=(result.epochs[0], replace(result.epochs[1], test_accuracy=end)))
            for result, end in zip(results, ends, strict=True)
        ]

    report = report_of(
        (configuration(), learned(0.70, 0.80, 0.60)),
        (configuration("ddp"), ["failed", *learned(0.83, 0.62)]),
        (configuration("dp"), ["failed"]),
    )
    single, ddp, dp = report.rows
    assert differences_of(ddp, single) == [pytest.approx([0.0, 0.0]), pytest.approx([3.0, 2.0])]
    assert differences_of(dp, single) == []
    assert curves_finding(analyse(report)) == "At the end, no row is further than 2.5 points from its baseline (“DDP”)"
    alike = report_of((configuration(), learned(0.70, 0.80)), (configuration("ddp"), learned(0.7004, 0.7999)))
    assert curves_finding(analyse(alike)) == "At the end, every row is as accurate as its baseline, within 0.1 points"
    assert curves_finding(analyse(report_of(SINGLE))) == "Loss and accuracy"


def test_one_epoch_is_no_curve(tmp_path):
    one = report_of((configuration(), runs(epochs=1)), (configuration("ddp"), runs("ddp", count=2, epochs=1)), epochs=1)
    assert "curves.png" not in [figure.name for figure in draw_all(analyse(one), tmp_path)]


def test_every_sweep_has_a_figure(tmp_path):
    report = two_sweeps()
    names = [figure.name for figure in draw_all(analyse(report), tmp_path)]
    assert names == [
        "curves.png",
        "phases.png",
        "memory.png",
        "time-memory.png",
        "sweep-model.png",
        "sweep-batch-size.png",
    ]
    assert [[entry.label for entry in sweep.rows] for sweep in analyse(report).sweeps if sweep.name == "model"] == [
        ["SINGLE (model lenet, batch size 64)", "SINGLE (model mlp, batch size 64)"],
        ["SINGLE (model lenet, batch size 128)", "SINGLE (model mlp, batch size 128)"],
    ]
    first, second = sweep_tables(analyse(report), "simple")[2:]
    assert cells(first)[0][0] == "SINGLE (model lenet)" and cells(second)[0][0] == "SINGLE (model mlp)"
    assert any(text.startswith("Sweep of batch size, single (model mlp): ") for text in verdict(analyse(report)))


@pytest.mark.parametrize("rows, panels", [((SINGLE,), 2), ((SINGLE, DDP), 3)])
def test_curves_of_one_row_alone_have_no_panel_of_differences(rows, panels, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(figures_of, "keep_figure", lambda figure, path: shown.append(figure) or path)
    draw_all(analyse(report_of(*rows)), tmp_path)
    assert len(shown[0].axes) == panels and all(axis.has_data() for axis in shown[0].axes)


def test_the_figure_of_scaling_says_what_it_found_and_calls_rows_as_the_table_does(tmp_path, monkeypatch):
    shown = {}
    monkeypatch.setattr(figures_of, "keep_figure", lambda figure, path: shown.setdefault(path.name, figure) and path)
    draw_all(projected(row_of("single"), row_of("ddp", 2, seconds=0.2), cores=8), tmp_path)
    (axis,) = shown["scaling.png"].axes
    assert axis.get_title().splitlines()[0] == "“DDP” is 2.00 times as fast as “SINGLE”"
    assert {"SINGLE, measured", "DDP, measured"} < {text.get_text() for text in axis.get_legend().get_texts()}


def test_titles_of_phases_and_sweeps_say_what_was_found(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(figures_of, "keep_figure", lambda figure, path: titles.append(figure) or path)
    simulated = runs("dp", phases=(1.0, 0.5, 20.0, 99.0, 3.0), simulated=True)
    draw_all(analyse(report_of(SINGLE, (configuration("dp"), simulated))), tmp_path)
    assert any(
        figure.get_suptitle().startswith("“SINGLE” has the longest step: 64.5 ms, 40.0 of them in the phase backward\n")
        for figure in titles
    )
    titles.clear()
    swept = [
        (configuration("mp", values={"num_workers": count}), runs("mp", 3 * [time]))
        for count, time in ((0, 3.0), (2, 1.5))
    ]
    draw_all(analyse(report_of(*swept)), tmp_path)
    shown = [axis.get_title() for figure in titles for axis in figure.axes]
    assert "MP\nfastest at 2, 667 images/s" in shown, shown


def test_no_figure_of_scaling_without_a_speed_up(tmp_path):
    assert "scaling.png" not in [figure.name for figure in draw_all(analyse(report_of(*RANKS)), tmp_path)]
    assert "scaling.png" in [figure.name for figure in draw_all(analyse(report_of(SINGLE, *RANKS)), tmp_path)]


def test_a_map_says_where_a_method_pays(tmp_path):
    def pair(model, size, seconds):
        values = {"values": {"model": model, "batch_size": size}, "model": model, "batch_size": size}
        return (
            (configuration(**values), runs(seconds=(2.0, 2.01, 1.99), global_batch_size=size)),
            (
                configuration("ddp", per_device_batch_size=size // 2, **values),
                runs("ddp", seconds, count=2, global_batch_size=size),
            ),
        )

    slower, undecided, faster = (3.0, 3.01, 2.99), (1.5, 2.5, 1.9), (1.0, 1.01, 0.99)
    report = report_of(
        *pair("lenet", 64, undecided), *pair("lenet", 256, faster), *pair("mlp", 64, slower), *pair("mlp", 256, slower)
    )
    analysis = analyse(report)
    assert axes_of(analysis) == ["model", "batch_size"]
    (cells,) = find_maps(analysis).values()
    assert {place: entry.standing.speed_up.words for place, entry in cells.items()} == {
        ("lenet", 64): "undecided",
        ("lenet", 256): "faster",
        ("mlp", 64): "slower",
        ("mlp", 256): "slower",
    }
    assert tmp_path / "map.png" in draw_all(analysis, tmp_path)
    assert map_finding(analysis, find_maps(analysis)) == "Faster than single: “DDP” in 1 of 4 cases"
    pays = [text for text in sweep_sentences(analysis) if "batch size, ddp" in text]
    assert [text.rpartition(". ")[2] for text in pays] == [
        "It is proved to be faster than its baseline from 256 on.",
        "It is proved to be faster than its baseline at none of them.",
    ]
    assert find_maps(analyse(report_of(SINGLE, DDP))) == {}


def test_what_could_not_be_used_is_named_the_fastest_nowhere():
    """What exchanges no gradients, and what has other settings, is faster here than what could be used."""
    part = {"count": 2, "peak_memory_bytes": (50 * 2**20,) * 2}
    values = {"model": "mlp", "batch_size": 100}
    rivals = (
        (configuration(values=values, model="mlp"), runs(peak_memory_bytes=(100 * 2**20,))),
        (
            configuration("ddp-no-sync", per_device_batch_size=50, values=values, model="mlp"),
            runs("ddp-no-sync", (0.5, 0.51, 0.49), **part),
        ),
        (
            configuration("fsdp", per_device_batch_size=50, values=values, model="mlp", num_workers=4),
            runs("fsdp", (0.6, 0.61, 0.59), workers_per_process=2, **part),
        ),
        (
            configuration("ddp", per_device_batch_size=50, values=values, model="mlp"),
            runs("ddp", (1.0, 1.01, 0.99), **part),
        ),
    )
    analysis = analyse(report_of(*rivals, allow_unequal=True))
    assert [bool(entry.standing.speed_up) for entry in analysis.rows] == [True] * 4
    assert speed_up_finding(analysis.done).startswith("“DDP (model mlp, batch size 100)” is 2.00 times as fast")
    assert choice_finding(analysis.done).startswith("“DDP (model mlp, batch size 100)”: 2.00")
    assert [words.partition(":")[0] for words in where_time_goes(analysis)] == ["DDP (model mlp, batch size 100)"]
    assert list(find_maps(analysis)) == ["ddp"]


SKIPPED = (configuration("dp", skip="needs 2 GPUs, found 1"), [])


RANKS = [(configuration("ddp", values={"nproc": count}), runs("ddp", count=count)) for count in (1, 2)]


@pytest.mark.parametrize(
    "report",
    [
        report_of(SKIPPED),
        report_of((configuration(), ["failed", "timed out"])),
        report_of(SINGLE, SKIPPED),
        report_of(SINGLE),
        report_of((configuration(), []), DDP),
        report_of(*RANKS),
        report_of(SINGLE, *RANKS),
        report_of((configuration(), runs(seconds=(2.0,), epochs=1)), repeats=1, epochs=1),
        report_of((configuration(), runs(class_accuracy=None))),
        report_of(SINGLE, DDP, project=[2]),
        report_of((configuration(), ["failed"]), DDP, project=[2], probe=LINK),
        two_sweeps(),
        full_report(),
        replace(full_report(), outcomes=full_report().outcomes[:1]),
        report_of(SINGLE, DDP, baseline="ddp", scaling="weak"),
    ],
    ids=range(15),
)
def test_every_kind_of_comparison_can_be_shown(report, tmp_path):
    figures = draw_all(analyse(report), tmp_path)
    write_csv(analyse(report), tmp_path / "results.csv")
    write_markdown(analyse(report), tmp_path / "report.md", figures)
    assert re.search("Recommendation: |Sweep of ", terminal_text(analyse(report)))
    said = {words.partition(": ")[0] for words in verdict(analyse(report))}
    assert {entry.label for entry in analyse(report).rows if not entry.row.simulated} <= said
    assert {figure.name for figure in figures} <= {*FIGURES}


def test_a_method_that_is_not_known_any_more_can_be_shown(tmp_path):
    report = report_of(
        SINGLE, (configuration("old"), runs("old", (1.0, 1.01, 0.99))), (configuration("older"), ["failed"])
    )
    figures = draw_all(analyse(report), tmp_path)
    write_csv(analyse(report), tmp_path / "results.csv")
    write_markdown(analyse(report), tmp_path / "report.md", figures)
    assert len(figures) == 6 and verdict(analyse(report))[1].startswith("OLD: 2.00 times as fast (")


def test_everything_that_is_shown_comes_from_one_analysis(tmp_path, monkeypatch):
    reports, report = [], full_report()
    monkeypatch.setattr(analysis, "measure", lambda report: reports.append(report) or measure(report))
    write_results(report, tmp_path)
    present(tmp_path)
    assert reports == [report]


def test_an_interrupted_comparison_says_so():
    report = full_report()
    assert not any("INCOMPLETE" in note for note in notes(analyse(report)))
    interrupted = analyse(replace(report, outcomes=report.outcomes[:2]))
    assert notes(interrupted)[0] == "INCOMPLETE: interrupted after 2 of 10 runs."


def test_every_method_has_a_look_of_its_own(tmp_path):
    looks = [method.look for method in (*METHODS.values(), UNKNOWN)]
    for key in ("color", "linestyle", "marker"):
        assert len({str(getattr(look, key)) for look in looks}) == len(looks)
    drawn = draw_curves(make_result("ddp", devices=("cpu", "cpu")), tmp_path)
    assert drawn.name == "synthetic-mnist-lenet-ddp-2.png" and drawn.stat().st_size > 1e4


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[: len(text) // 2], "cannot read"),
        (
            lambda text: text.replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99', 1),
            "version is 99.*update this",
        ),
        (
            lambda text: text.replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 1', 1),
            "run the comparison again",
        ),
        (lambda text: text.replace('"train_seconds": 0.4', '"train_seconds": 0.3', 1), "it was edited"),
        (lambda text: text.replace('"sha256"', '"sha"'), "it was edited"),
        (lambda text: "[]", "cannot read"),
        (lambda text: "", "cannot read"),
    ],
)
def test_a_results_file_that_is_not_what_was_measured_is_refused(damage, message, tmp_path):
    write_results(full_report(), tmp_path)
    file = tmp_path / "results.json"
    before = file.read_text()
    assert damage(before) != before
    file.write_text(damage(before))
    with pytest.raises(SuiteError, match=message) as refused:
        read_results(file)
    assert refused.value.exit_code == 4


def test_results_hold_no_nan(tmp_path):
    write_results(report_of((configuration(), [make_result(seconds=(math.nan, 2.0))])), tmp_path)
    json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert math.isnan(read_results(tmp_path / "results.json").outcomes[0].result.epochs[0].train_seconds)


# ---- two reports


def test_diff_compares_equal_rows_and_refuses_unequal_ones():
    before = report_of(SINGLE, DDP, (configuration("mp"), runs("mp", simulated=True)))
    after = report_of(
        (configuration(), runs(seconds=(1.0, 1.01, 0.99))),
        (DDP[0], [replace(result, global_batch_size=200) for result in DDP[1]]),
        (configuration("dp"), runs("dp")),
        lr=0.1,
    )
    after = replace(after, environment={**after.environment, "torch": "2.15.0"})
    text = describe_difference(before, after)
    assert re.search(r"SINGLE +2.00 +3 +1.00 +3 +2.00\n", text)
    assert not any(word in text for word in ("faster", "slower", "equal", "["))  # another hour: no claim, no interval
    assert "To claim a difference, measure both in turns: --against." in text
    assert "refused: global batch 200 instead of 100" in text
    assert re.search(r"MP .*–.* not in both", text) and re.search(r"DP  .*–.* not in both", text)
    assert "Different machine: torch 2.11.0 → 2.15.0." in text and "Different settings: lr None → 0.1." in text


@pytest.mark.parametrize("name, value", [("lr_milestones", [3]), ("cuda_graph", True)])
def test_diff_refuses_rows_that_trained_something_else(name, value):
    other = [replace(result, config={**result.config, name: value}) for result in SINGLE[1]]
    text = describe_difference(report_of(SINGLE), report_of((configuration(), other)))
    assert f"refused: {name} {value} instead of {getattr(RunConfig(), name)}" in text


def test_seeds_differ_by_block_and_are_named_between_reports():
    other = [replace(result, config={**result.config, "seed": 7}) for result in DDP[1]]
    report = report_of(SINGLE, (DDP[0], other))
    assert analyse(report).rows[1].standing.speed_up  # its first run that ended well may be of a later block
    assert "seed 42 instead of 7" in describe_difference(report_of((DDP[0], other)), report_of(DDP))


def test_diff_of_two_machines_lists_what_belongs_to_the_machine():
    other = [replace(result, threads_per_process=4, devices=("cuda:0 (NVIDIA H200)",)) for result in SINGLE[1]]
    text = describe_difference(report_of(SINGLE), report_of((configuration(), other)))
    assert re.search(r"1.00 +device cuda \(NVIDIA H200\) instead of cpu; threads per device 4 instead of 1\n", text)


def test_no_file_names_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    report = replace(report_of(SINGLE), command="/home/ada/venv/bin/python compare_parallel.py")
    write_results(report, tmp_path)
    assert read_results(tmp_path / "results.json").command == "~/venv/bin/python compare_parallel.py"
    assert "/home/ada" not in (tmp_path / "results.json").read_text()


def test_the_report_says_whether_rows_took_turns():
    report = report_of(SINGLE)
    assert any(text.startswith("Whole runs: ") for text in definitions(report))
    assert any(text.startswith("In turns: ") for text in definitions(replace(report, in_turns=True)))
