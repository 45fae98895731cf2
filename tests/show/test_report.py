"""What a report says of its rows, what it refuses to compare, and the files it is written to."""

import csv
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from common.errors import SuiteError
from common.settings.config import RunConfig, flags_with
from comparison.judge import analysis
from comparison.judge.analysis import analyse
from comparison.judge.blocks import ratios, residual_deviation
from comparison.judge.fairness import differences
from comparison.judge.measures import block_times, measure
from comparison.judge.statistics import Ratio, resolution
from comparison.outcomes import CardUse, Trial
from comparison.record import Equivalence
from comparison.results_file import SCHEMA_VERSION, read_results, write_results
from comparison.run import equivalence
from comparison.run.launch import TIMED_OUT
from comparison.show import detail_tables, figures, page, plots, remarks, tables
from comparison.show.detail_tables import settings_table
from comparison.show.remarks import notes, warnings
from comparison.show.report import fenced, present, write_csv, write_html
from comparison.show.sections import sections
from comparison.show.sentences import tell_trial
from comparison.show.terminal import LINES, terminal_text
from comparison.show.verdict import verdict
from tests.fixtures import PROJECT
from tests.reports import (
    DDP,
    ENVIRONMENT,
    LINK,
    SINGLE,
    cells,
    configuration,
    each_outcome,
    full_report,
    halved,
    make_result,
    markdown_of,
    report_of,
    runs,
    script,
    swept,
    two_sweeps,
)

ONE_EPOCH = report_of((configuration(), runs(seconds=(2.0,), first=8.0, epochs=1)), repeats=1, epochs=1)
RANKS = [(configuration("ddp", values={"nproc": count}), runs("ddp", count=count)) for count in (1, 2)]
SKIPPED = (configuration("mp", skip="needs 2 GPUs, found 1"), [])
SIMULATED = (configuration("dp"), runs("dp", simulated=True))


def main_table(report, tablefmt="simple"):
    return tables.main_table(analyse(report), tablefmt)


# ---- tables


def test_rows_without_numbers_say_why():
    accelerate = (configuration("accelerate"), ["failed", *runs(seconds=(2.0, 2.1))])
    report = report_of(SINGLE, DDP, SIMULATED, SKIPPED, accelerate)
    mp, accelerate = cells(main_table(report))[3:]
    assert "|".join(mp) == "MP|synthetic-mnist|–|–|–|–|0|–|–|–|–|–|–|skipped"
    assert accelerate[6] == "2" and accelerate[-1] == "1 of 3 runs failed; undecided"
    assert report.failed and not report_of(SINGLE, DDP).failed


def test_times_are_compared_with_the_best_if_any_training_has_one():
    rows = swept("single", "ddp", batch_size=(64, 128))
    table = main_table(report_of(*rows, foreign_cores={"ddp-batch_size=64": 0.9}))
    assert "Relative time [95%]" in table and [row[10] for row in cells(table)][2:] == ["1.00", "1.00 [1.00, 1.00]"]


def test_the_time_to_a_target_accuracy():
    others = [*runs("ddp", (1.0, 1.1)), "not reached"], ["not reached"], ["failed"]
    rows = [(configuration(f"ddp-{number}"), made) for number, made in enumerate(others)]
    # the block without a time is the fastest one, so 3.15 s are adjusted
    first, *rest = (row[4] for row in cells(main_table(report_of(SINGLE, *rows, target_accuracy=0.6))))
    assert first.startswith("6.00 [5.8") and rest == ["3.13 (not reached by 1 of 3 runs)", "not reached", "–"]


def test_the_trials_of_a_batch():
    tried = Trial("single", 128, "ok", "", 1000, 3 * 2**20), Trial("single", 1256, "out of memory", "")
    table = detail_tables.trial_table(analyse(replace(report_of(SINGLE), trials=tried)), "simple")
    assert cells(table) == [["SINGLE", "128", "3.0", "fits"], ["SINGLE", "1,256", "–", "out of memory"]]
    failed = replace(tried[1], status="failed", reason="signal 9")
    assert [*map(tell_trial, (tried[1], failed))] == ["out of memory", "failed, signal 9"]


@pytest.mark.parametrize(
    "accuracies, text",
    [
        *[((), "–"), ((0.98765,), "98.8"), ((0.9, 0.9), "90.00 ± 0.00"), ((0.98, 0.99, 0.985), "98.5 ± 0.5")],
        *[((0.6, 0.7, 0.8), "70 ± 10"), ((0.9890, 0.9892), "98.91 ± 0.01")],
    ],
)
def test_the_digits_of_an_accuracy_follow_its_standard_deviation(accuracies, text):
    assert tables.accuracy(accuracies) == text


def test_all_speed_ups_together_have_a_confidence_of_95_percent():
    others = [(configuration("ddp", f"ddp-{number}"), runs("ddp", (1.0, 1.02, 1.05))) for number in range(4)]
    report = report_of(SINGLE, *others)
    among_four, (alone,) = analyse(report).rows[1].standing.speed_up, ratios(block_times(report.rows), 0, [1])
    assert among_four == ratios(block_times(report.rows), 0, [1, 2, 3, 4])[0]
    assert among_four.low < alone.low and among_four.high > alone.high
    alone, together = runs(), runs("ddp", (1.0, 1.02, 1.05))
    families = [
        (row, alone if row.method == "single" else together) for row, _ in swept("single", "ddp", num_workers=(0, 2))
    ]
    report = report_of(*families)  # each of two baselines gets half of the error
    assert analyse(report).rows[1].standing.speed_up == ratios(block_times(report.rows), 0, [1], 0.975)[0]


def test_the_result_starts_with_the_smallest_detectable_difference(tmp_path):
    rows = SINGLE, (configuration("ddp"), runs("ddp", (1.0, 1.05, 0.97)))
    report = report_of(*rows)
    noise = analyse(report).resolution
    others = analyse(report_of(*rows, SKIPPED, (configuration("fsdp"), ["failed"])))
    assert others.resolution == noise  # what did not run widens nothing
    looked = [analyse(replace(one, looks=((3, 0.5), (4, 1.0)))) for one in (report, others.report)]
    assert looked[0].rows[1].standing.speed_up == looked[1].rows[1].standing.speed_up
    assert noise.deviation == pytest.approx(residual_deviation(block_times(report.rows)))
    assert noise.differences[3] == resolution(noise.deviation, 3, 2, 1) > noise.differences[10]
    first_line = markdown_of(analyse(report), tmp_path).partition("## Result\n\n")[2].partition("\n")[0]
    assert f"3 runs detect a difference of {100 * noise.differences[3]:.2g}%" in first_line
    wild = analyse(report_of(SINGLE, (configuration("ddp"), runs("ddp", (1.0, 9.0, 0.2)))))
    assert wild.resolution.differences[3] > 1
    assert ": 3 runs detect a difference of >100%, " in remarks.resolution(wild)[0]
    assert analyse(ONE_EPOCH).resolution is None


def test_models_are_swept_at_one_batch_size_and_batch_sizes_with_one_model():
    swept = analyse(two_sweeps())
    assert [[entry.label for entry in sweep.rows] for sweep in swept.sweeps if sweep.name == "model"] == [
        [f"SINGLE (model {model}, batch size {size})" for model in ("lenet", "mlp")] for size in (64, 128)
    ]
    names = [cells(table)[0][0] for table in detail_tables.sweep_tables(swept, "simple")[2:]]
    assert names == ["SINGLE (model lenet)", "SINGLE (model mlp)"]
    assert any(text.startswith("Sweep of batch size, “SINGLE (model mlp)”: ") for text in verdict(swept))


def test_the_title_names_what_was_trained():
    assert report_of(SINGLE, max_steps=10, train_size=5000, image_size=64).title == (
        "lenet on synthetic-mnist at 64 × 64 pixels (first 5,000 images), "
        "global batch 100, 3 epochs of 10 steps, 3 runs each"
    )
    assert "3 epochs, 3 runs" in report_of(SINGLE, script("mine", 60.0), max_steps=20).title  # of 10 steps
    whole = report_of(SINGLE, DDP, repeats=5)
    assert whole.title.endswith(", 3 runs each")  # it was interrupted
    assert replace(whole, outcomes=whole.outcomes[:-1]).title.endswith(", 2 to 3 runs each")
    assert "WEAK SCALING: batch 100 per device" in report_of(SINGLE, scaling="weak").title


@pytest.mark.parametrize(
    "rows, baseline, note",
    [
        ([DDP], "single", "“DDP”: the baseline, single, is not among the methods."),
        ([(configuration(), ["failed"]), DDP], "single", "“DDP”: the baseline, “SINGLE”, has no run that ended well."),
        ([SINGLE, SIMULATED], "dp", "“SINGLE”: the baseline, “DP”, is simulated."),
    ],
)
def test_a_missing_baseline_is_the_reason_for_missing_speed_ups(rows, baseline, note):
    report = report_of(*rows, baseline=baseline)
    assert f"No speed-up for {note}" in notes(analyse(report))
    assert {row[8] for row in cells(main_table(report))} == {"–"}


def test_notes_and_warnings_fit_the_comparison():
    analysis = analyse(report_of((configuration(), runs(seconds=(2.0,), first=8.0)), repeats=1))
    for words in ("each row ran once", "is synthetic"):
        assert any(words in note for note in notes(analysis))
    (warning,) = warnings(analysis)
    assert warning.startswith("SINGLE: its first epoch takes 4.0 times as long as the others: warm-up")
    interrupted = replace(full_report(), outcomes=full_report().outcomes[:2])
    assert warnings(analyse(interrupted))[-1] == "INCOMPLETE: interrupted after 2 of 10 runs."
    assert not warnings(analyse(full_report()))


def gpus(report, *found):
    return replace(report, environment={**report.environment, "gpus": [*found]})


NO_GPU, ON_CPU = "Anything on a GPU: PyTorch finds none", "Anything on this machine's GPUs: the comparison was run"
CONFINED, NODES = "is confined to a part of the machine's cores", "the cores of several nodes are not watched"
MATHS, LEARNS = "Whether every method computes the same", "What a script learns"
LADDER, MEMORY = "What exchanging gradients costs DDP", "it ran out of memory at a batch of 100"
ON_GPU = (configuration(device="gpu"), runs(seconds=(2.0, 2.02, 1.98)))
NO_MEMORY = ["out of memory"] * 2
SCRIPTS = report_of(script("mine", 20.0), script("other", 30.0), warmup=10)
ON_NODES = replace(SINGLE[0], nodes=2), SINGLE[1]


@pytest.mark.parametrize(
    "report, said",
    [
        (report_of(SINGLE), {NO_GPU, MATHS}),
        (report_of(SKIPPED), {NO_GPU, MATHS}),
        (gpus(report_of(SINGLE, DDP), "H200"), {ON_CPU, LADDER, MATHS}),
        (gpus(report_of(ON_GPU), "H200"), {MATHS}),
        (each_outcome(report_of(SINGLE), foreign_cores=None), {NO_GPU, CONFINED, MATHS}),
        (each_outcome(report_of(ON_NODES), foreign_cores=None), {NO_GPU, NODES, MATHS}),
        (report_of(SINGLE, (DDP[0], NO_MEMORY)), {NO_GPU, MATHS, MEMORY}),
        (report_of(SINGLE, (DDP[0], ["failed"])), {NO_GPU, MATHS}),
        (report_of(SINGLE, (DDP[0], [*DDP[1], *NO_MEMORY])), {NO_GPU, LADDER, MATHS}),
        (report_of(SINGLE, DDP, (configuration("ddp-no-sync"), runs())), {NO_GPU, MATHS}),
        (report_of(SINGLE, (configuration("ddp"), runs("ddp"))), {NO_GPU, MATHS}),  # on one device
        (SCRIPTS, {NO_GPU, LEARNS}),
        (report_of(script("mine", 20.0), (script("other", 20.0)[0], NO_MEMORY), warmup=10), {NO_GPU, LEARNS}),
        (report_of(SINGLE, script("mine", 20.0)), {NO_GPU, LEARNS, MATHS}),
    ],
)
def test_what_was_not_measured(report, said):
    sentences = remarks.not_measured(report)
    assert len(sentences) == len(said) and all(any(words in one for one in sentences) for words in said), sentences


def test_definitions_fit_the_comparison():
    plain, other = (
        " ".join(remarks.definitions(report_of(SINGLE, **settings)))
        for settings in ({}, {"scaling": "weak", "equal_within": 0.07})
    )
    assert "Batch sizes are per device" in other and "7%" in other
    assert "Batch sizes are per device" not in plain and "3%" in plain


def test_definitions_tell_how_runs_warm_up():
    made = {
        (epochs, timed_from): report_of((configuration(), runs(epochs=epochs, timed_from=timed_from)), epochs=epochs)
        for epochs in (1, 2)
        for timed_from in (1, 2)
    }
    told = {key: remarks.definitions(report)[0] for key, report in made.items()}
    assert told[1, 1] == told[2, 1] and len({*told.values()}) == 3
    for key, report in made.items():
        for words in (plots.phase_unit(analyse(report)), page._times(analyse(report))["heading"]):
            assert ("with the warm-up" in words) == (key == (1, 2))


def test_the_size_of_a_device_is_said_of_methods_on_a_cpu_alone():
    for report, said in ((SCRIPTS, False), (report_of(ON_GPU), False), (report_of(SINGLE), True)):
        assert ("Device: 1 of 1 core." in terminal_text(analyse(report))) == said


def test_the_row_with_all_cores_is_compared_only_with_others():
    alone = configuration("single-all-cores", threads=2), runs(threads_per_process=2)
    said = [" ".join(notes(analyse(report_of(*rows)))) for rows in ((alone,), (SINGLE, alone))]
    assert ["per device in the other rows" in text for text in said] == [False, True]


def test_settings_that_differ_have_a_column_of_their_own():
    graph = [replace(run, config={**run.config, "cuda_graph": True, "seed": 43}) for run in SINGLE[1]]
    table = settings_table(report_of(SINGLE, (configuration("ddp"), ["failed", *graph])), "github")
    assert "Cuda graph" in table and "Crop padding" not in table and "Seed" not in table
    assert [row[-1].strip("| ") for row in cells(table)] == ["False", "True"]


def test_a_setting_that_a_script_does_not_show_is_unknown(tmp_path):
    suite = [replace(run, config={**run.config, "lr": 0.2, "weight_decay": 0.1}) for run in SINGLE[1]]
    own = {"dataset": "its own", "model": "its own", "loader": "its own", "optimizer": "SGD", "epochs": 5}
    seen = replace(configuration("script", "script-mine"), label="mine"), [make_result("script", config=own)]
    report = report_of((SINGLE[0], suite), DDP, seen)
    names, *rows = (line.split("|")[1:-1] for line in settings_table(report, "github").splitlines() if "--" not in line)
    mine = dict(zip(map(str.strip, names), map(str.strip, rows[2]), strict=True))
    assert (mine["Lr"], mine["Weight decay"], mine["Steps per epoch"]) == ("–", "–", "–")
    assert (mine["Optimizer"], mine["Global batch"], "Epochs" in mine) == ("SGD", "100", False)
    write_csv(analyse(report), tmp_path / "results.csv")
    written = [(row["steps per epoch"], row["model"]) for row in csv.DictReader((tmp_path / "results.csv").open())]
    assert written == [("10", "lenet"), ("10", "lenet"), ("", "")]


def test_rows_with_equal_labels_are_all_in_the_tables():
    again = replace(DDP[0], name="ddp-1"), DDP[1]
    report = report_of(SINGLE, DDP, again)
    tables_of = [settings_table(report, "simple"), *detail_tables.account_tables(analyse(report), "simple")]
    assert [table.count("\nDDP ") for table in tables_of] == [2, 2, 2]


def test_a_disturbed_ratio_has_no_interval_in_any_table(tmp_path):
    report = report_of(SINGLE, DDP, foreign_cores={"ddp": 0.5})
    row = cells(main_table(report))[1]
    assert row[8] == "2.00" and "[" not in "".join(row), row
    write_csv(analyse(report), tmp_path / "results.csv")
    *_, written = csv.DictReader((tmp_path / "results.csv").open())
    assert [name for name in written if written[name] and name.endswith(("_low", "_high"))] == []


def test_very_short_and_very_long_times_are_readable():
    (row,) = cells(main_table(report_of((configuration(), runs(seconds=(0.0042, 0.0043, 0.0041))))))
    assert row[4:6] == ["0.0042", "0.0041–0.0043"]
    slow = report_of((configuration(), runs(seconds=(20_000.0,) * 3)))
    (row,) = tables.main_rows(analyse(each_outcome(slow, cards=(CardUse("cuda:0", joules=50_000.0),))))
    assert (row["Images/s"], row["Images/J"]) == ("0.0500", "0.0200")

    def told(factor):
        rows = (configuration(), runs(seconds=3 * (2 * factor,))), halved(seconds=3 * (factor,))
        return verdict(analyse(report_of(*rows)))

    assert told(0.001)[0] == "SINGLE: the baseline, 0.0020 s per epoch (0.0020 to 0.0020 in 3 runs)."
    assert "; 0.0010 s instead of 0.0020 s per epoch." in told(0.001)[1]
    assert "; 10000.00 s instead of 20000.00 s per epoch." in told(10_000.0)[1]
    scripts = report_of(script("mine", 20_000.0, samples=4), script("other", 30_000.0, samples=4), warmup=10)
    assert "; 7,500 s instead of 5,000 s per 1,000 samples." in verdict(analyse(scripts))[1]


def settings_of(**settings):
    """The table of settings, without those of every made-up report."""
    ((_, table),) = sections(analyse(report_of(SINGLE, **settings)), [], [], "plain")["Settings"]
    return {re.sub(r" {2,}", ": ", line.strip()) for line in table.splitlines()[1:]}


def test_the_settings_have_units_and_those_that_are_zero_or_switched_off_are_shown():
    typed = {"augment": False, "tips": False, "seed": 0, "weight_decay": 0.0, "compile": False, "bucket_mb": [None]}
    limits = {"budget": 300.0, "timeout": 20.5, "equal_within": 0.07, "margin": 0.015, "accuracy_margin": 1.0}
    shown = settings_of(**typed, **limits, memory_limit=2**31, steps=0.5, warmup=10)
    assert shown >= {
        *("augment: False", "tips: False", "seed: 0", "weight decay: 0.0", "memory limit: 2,048 MiB"),
        *("budget: 300 s", "timeout: 20.5 s", "equal within: 7%", "margin: 1.5%", "accuracy margin: 1 point"),
    }
    assert not {line.partition(":")[0] for line in shown} & {"compile", "bucket mb", "steps", "warmup"}


# ---- fairness


INEQUALITIES = {
    "global batch 200 instead of 100": {"global_batch_size": 200},
    "workers 4 instead of 0": {"workers_per_process": 4},
    "threads per device 2 instead of 1": {"threads_per_process": 2},
    "precision bfloat16 instead of float32": {"precision": "bfloat16"},
    "device cuda (NVIDIA H200) instead of cpu": {"devices": ("cuda:0 (NVIDIA H200)",)},
    "torch 2.15.0 instead of 2.11.0": {"environment": {**ENVIRONMENT, "torch": "2.15.0", "cores": 1}},
    **{
        f"{name.replace('_', ' ')} 9 instead of {make_result().config.get(name, getattr(RunConfig(), name))}": {
            "config": {**make_result().config, name: 9}
        }
        for name in flags_with("equal")
        if name not in ("precision", "seed")
    },
}


@pytest.mark.parametrize("name", INEQUALITIES)
def test_unequal_settings_are_refused_or_marked(name):
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
    for steps, found in ((11, []), (12, ["steps per epoch 12 instead of 10"])):  # ranks may drop an incomplete batch
        last = replace(reference.epochs[-1], steps=steps)
        assert differences(replace(reference, epochs=(*reference.epochs[:-1], last)), reference, "strong") == found
    other_seed = [replace(result, config={**result.config, "seed": 7}) for result in DDP[1]]  # as in another block
    assert analyse(report_of(SINGLE, (DDP[0], other_seed))).rows[1].standing.speed_up


# ---- same maths


def test_a_failed_check_of_the_maths_leaves_no_speed_up():
    failed = Equivalence(0.5, "failed", "differs")
    for name, label in (("ddp", "DDP"), ("single", "SINGLE")):  # the row itself, or its baseline
        report = report_of(SINGLE, DDP, equivalence={name: failed})
        reason = f"the check of the maths of “{label}” failed"
        assert analyse(report).rows[1].standing.reason == reason
        assert f"no speed-up, {reason}" in verdict(analyse(report))[1] and report.failed


def test_the_check_of_the_maths_fails_rows_with_other_weights(monkeypatch):
    def run_child(command, log, timeout):
        assert "--target-accuracy" not in command  # 20 steps would not reach it
        logs.append(log.stem)
        return TIMED_OUT if timeout and "--hang" in command else "--split-at" in command

    logs: list[str] = []
    monkeypatch.setattr(equivalence, "run_child", run_child)
    monkeypatch.setattr(equivalence, "cause", lambda code, log: "unrecognized arguments")
    monkeypatch.setattr(equivalence, "ask", lambda _, *files: json.dumps([0.5 * ("other" in f) for f in files[1::2]]))
    other = configuration(name="other", command=("python", "other.py"))
    broken = configuration(name="broken", command=("python", "--split-at", "x"))
    rows = [configuration(), other, configuration("ddp-no-sync"), broken, configuration("single-all-cores", threads=2)]
    rows.append(replace(rows[1], name="again"))  # the same command
    rows.append(configuration(name="hangs", command=("python", "--hang")))
    checks = equivalence.check_equivalence(rows, ["--target-accuracy", "0.99"], 96)
    # a single reference with the threads of one device, and one in float64 for rows that differ in float32
    in_float32 = ["0-single", "1-single", "2-other", "3-broken", "3-single-all-cores", "4-hangs"]
    assert logs == [*in_float32, "4-other", "5-other"]
    assert checks["single"] == checks["single-all-cores"] == Equivalence(0.0, "ok", "")
    assert checks["other"].status == "failed" and checks["ddp-no-sync"].status == "expected"
    assert checks["broken"].status == "failed" and "unrecognized arguments" in checks["broken"].reason
    assert checks["hangs"].status == "failed" and "stopped after 600 s" in checks["hangs"].reason
    report = report_of(SINGLE, (other, runs()), equivalence=checks)
    assert report.failed and "failed: different weights" in main_table(report)


# ---- files


def test_a_comparison_is_written_to_its_files(tmp_path, capsys):
    write_results(full_report(), tmp_path)
    assert present(tmp_path) == read_results(tmp_path / "results.json") == full_report()
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'report.html'}\n")
    text = (tmp_path / "report.md").read_text()
    for name in ("curves.png", "speed-up.png", "phases.png", "memory.png", "scaling.png"):
        assert f"]({name})" in text
        content = (tmp_path / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 1e4
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["result"] for row in rows] == ["baseline", "practically equal", "simulated", "1 of 1 run failed"]
    assert rows[2]["speed_up"] == rows[3]["epoch_seconds"] == rows[3]["global batch"] == ""


def test_a_comparison_is_analysed_once(tmp_path, monkeypatch):
    reports, report = [], report_of(SKIPPED)
    monkeypatch.setattr(analysis, "measure", lambda report: reports.append(report) or measure(report))
    write_results(report, tmp_path)
    present(tmp_path)
    assert reports == [report]


DAMAGES = {
    "cannot read": (r"\A[\s\S]*\Z", ["", "[]", "{"]),
    "version is 99.*update this": (f'"schema_version": {SCHEMA_VERSION}', ['"schema_version": 99']),
    "run the comparison again": (f'"schema_version": {SCHEMA_VERSION}', ['"schema_version": 1']),
    "was changed after it was written": ('"train_seconds": 0.4', ['"train_seconds": 0.3']),
    "does not match its checksum": ('"sha256"', ['"sha"']),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_results_file_is_refused(message, tmp_path):
    write_results(full_report(), tmp_path)
    file, (pattern, texts) = tmp_path / "results.json", DAMAGES[message]
    whole = file.read_text()
    for text in texts:
        file.write_text(re.sub(pattern, text, whole, count=1))
        with pytest.raises(SuiteError, match=message) as refused:
            read_results(file)
        assert refused.value.exit_code == 4 and file.read_text() != whole


def test_the_result_of_a_run_is_not_a_comparison():
    file = PROJECT / "figures" / "mnist-lenet-ddp-2.json"
    with pytest.raises(SuiteError, match="schema_version is 7.*; name the results.json of a comparison"):
        read_results(file)


def test_results_contain_no_nan(tmp_path):
    write_results(report_of((configuration(), [make_result(seconds=(math.nan, 2.0))])), tmp_path)
    json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert math.isnan(read_results(tmp_path / "results.json").outcomes[0].result.epochs[0].train_seconds)


def test_results_do_not_contain_the_home_directory(tmp_path, monkeypatch):
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
    "two rows of one epoch": report_of((configuration(), runs(epochs=1)), (DDP[0], runs("ddp", epochs=1)), epochs=1),
    "no classes": report_of((configuration(), runs(class_accuracy=None))),
    "projected": report_of(SINGLE, DDP, project=["2"]),
    "projected without a baseline": report_of((configuration(), ["failed"]), DDP, project=["2"], probe=LINK),
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
    "one epoch": "phases memory",  # a single epoch is no curve
    "two sweeps": "curves phases memory sweep-model sweep-batch-size",
    "methods that are not known any more": "curves speed-up phases memory",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_comparison_can_be_shown(kind, tmp_path):
    whole = analyse(KINDS[kind])
    if whole.done:
        drawn = {name.removesuffix(".png") for name, draw in figures.FIGURES.items() if draw(whole)}
        assert drawn == {*DRAWN.get(kind, " ".join(drawn)).split()}
    write_csv(whole, tmp_path / "results.csv")
    markdown_of(whole, tmp_path)
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


@pytest.mark.parametrize("text, ticks", [("a", 3), ("a `b` c", 3), ("a ```` b ` c", 5)])
def test_a_code_block_is_fenced_with_more_backticks_than_it_contains(text, ticks):
    assert fenced(text) == f"{'`' * ticks}\n{text}\n{'`' * ticks}"


def test_a_tip_of_which_one_launch_failed_is_judged_by_the_others():
    for results, told in (([*DDP[1], "failed"], "faster"), (["failed"], "failed: signal 9")):
        (row,) = report_of((DDP[0], results)).rows
        tip = SimpleNamespace(row=row, trouble="", ratio=Ratio(1.5, 1.4, 1.6) if row.results else None, speed=1.5)
        assert detail_tables._tip_result(tip) == told
