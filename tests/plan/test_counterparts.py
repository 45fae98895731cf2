"""Counterparts: the baseline's twin for an A/A test, and every row as it was before a change."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import compare_parallel
from common.errors import SuiteError
from comparison.judge.analysis import analyse
from comparison.judge.blocks import ratios
from comparison.judge.measures import block_times
from comparison.methods import Machine, script
from comparison.plan.counterparts import BEFORE, TWIN, before, counterpart, scripts_before, twin_of
from comparison.plan.plan import make_plan
from comparison.results_file import read_results, write_results
from comparison.show.detail_tables import before_table
from comparison.show.remarks import resolution, warnings
from comparison.show.terminal import terminal_text
from tests.fixtures import PROJECT, flag
from tests.reports import SETTINGS, cells, configuration, each_epoch, each_outcome, markdown_of, report_of, runs

STEADY, SLOWER, FAST = (2.0, 2.02, 1.98), (2.2, 2.21, 2.19), (1.0, 1.02, 0.99)
SINGLE = configuration(command=("python", script("data_parallel_train.py"), "--epochs", "1"))
DDP = configuration("ddp", command=("python", script("ddp_train.py"), "--spawn", "2"))
CPU = Machine(0, 2)


def with_counterpart(role, made, label="again"):
    """Return a comparison of one device, its counterpart and DDP. made: the counterpart's runs."""
    other = counterpart(SINGLE, role, label, SINGLE.command)
    return report_of((SINGLE, runs(seconds=STEADY)), (other, made), (DDP, runs("ddp", FAST)))


def test_counterparts_are_stored_but_not_in_the_tables_of_methods(tmp_path):
    report = with_counterpart(TWIN, runs(seconds=SLOWER))
    analysis = analyse(report)
    assert [row.label for row in report.rows] == [entry.label for entry in analysis.rows] == ["SINGLE", "DDP"]
    alone = analyse(report_of((SINGLE, runs(seconds=STEADY)), (DDP, runs("ddp", FAST))))
    assert analysis.rows[1].standing.speed_up.value == pytest.approx(alone.rows[1].standing.speed_up.value)
    assert analysis.decisions[0].best.label == "DDP" and "SINGLE, again" not in terminal_text(analysis)
    write_results(report, tmp_path)
    assert read_results(tmp_path / "results.json") == report


def test_a_failed_counterpart_fails_the_comparison():
    failed = with_counterpart(TWIN, ["failed"] * 3)
    assert failed.failed and "SINGLE, again, block 1: failed: signal 9" in terminal_text(analyse(failed), verbose=True)
    assert analyse(failed).pairs[TWIN] == ()


# ---- the twin


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ("", "single"),
        ("--baseline ddp", "ddp"),
        ("--methods single ddp", None),
        ("--repeats 1", None),
        ("--no-twin", None),
        ("--methods single ddp --twin", "single"),
        ("--repeats 1 --twin", "single"),
    ],
)
def test_which_comparisons_have_a_twin(flags, wanted, planned):
    plan = {row.name: row for row in planned(flags).plan}
    twins = [row for row in plan.values() if row.role == TWIN]
    assert [twin.against for twin in twins] == [wanted] * bool(wanted)
    for twin in twins:
        assert twin.command == plan[wanted].command and twin.label == f"{plan[wanted].label}, again"
    assert twin_of([replace(SINGLE, skip="no"), DDP], "single") == []


def test_result_of_the_a_a_test():
    equal = analyse(with_counterpart(TWIN, runs(seconds=(2.01, 1.99, 2.0))))
    report = with_counterpart(TWIN, runs(seconds=SLOWER))
    assert "A/A test of “SINGLE”: ratio 1.00 [" in resolution(equal)[-1] and warnings(equal) == []
    assert resolution(equal)[-1].endswith("], no significant difference.")
    assert resolution(analyse(report))[-1].endswith("], A SIGNIFICANT DIFFERENCE.")
    (warning,) = warnings(analyse(report))
    assert warning.startswith("WARNING: the A/A test failed: “SINGLE” and its copy differ significantly, 1.10 [")
    disturbed = analyse(each_outcome(report, foreign_cores=0.9))
    assert resolution(disturbed)[-1].endswith("ratio 1.10, disturbed.")
    assert not any("A/A test" in warning for warning in warnings(disturbed))
    first = replace(report, outcomes=tuple(outcome for outcome in report.outcomes if outcome.block == 1))
    assert resolution(analyse(first)) == ["A/A test of “SINGLE”: ratio 1.10."]


# ---- before


@pytest.fixture
def checkout(tmp_path):
    """Another checkout that lacks ddp_train.py."""
    (tmp_path / "other").mkdir()
    for name in ("compare_parallel.py", "data_parallel_train.py"):
        shutil.copy(PROJECT / name, tmp_path / "other" / name)
    return tmp_path / "other"


def test_scripts_of_another_checkout_get_the_current_flags(checkout, planned, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usual, earlier = planned(f"--methods single --against {checkout}").plan
    assert earlier.command == (usual.command[0], "other/data_parallel_train.py", *usual.command[2:])
    plan = planned(f"--methods single --twin --against {checkout}").plan  # the twin needs no row before the change
    assert [row.name for row in plan] == ["single", "single-again", "single-before"]
    now = replace(SINGLE, command=("python", str(PROJECT / "data_parallel_train.py"), "--epochs", "1"))
    others = [replace(SINGLE, skip="needs GPUs"), configuration("script", command=("python", "mine.py"))]
    (row,) = before([now, *others], checkout, None, None, CPU)
    assert row.command == ("python", "other/data_parallel_train.py", "--epochs", "1")
    assert (row.name, row.label, row.role, row.against) == ("single-before", "SINGLE, before", BEFORE, "single")
    with pytest.raises(SuiteError, match="is without ddp_train.py; it was written later; leave that method out"):
        before([SINGLE, DDP], checkout, None, None, CPU)


@pytest.fixture
def before_file(monkeypatch, tmp_path):
    """before_file(typed, **settings): the row of one device as in a results.json with these settings.

    typed: the current flags. Checks that the command in the file is not used.
    """
    evil = ("python", "-c", "import os; os.system('touch /tmp/owned')", "data_parallel_train.py")

    def before_file(typed="", **settings):
        monkeypatch.setattr(sys, "argv", "compare_parallel.py --methods single --model lenet".split() + typed.split())
        arguments, shared = compare_parallel.parse()
        arguments.loader = "workers"
        then = report_of((configuration(command=evil), runs(seconds=STEADY)))
        settings = {**SETTINGS, "model": ["lenet"], "num_workers": [0], **settings}
        write_results(replace(then, settings=settings), tmp_path)
        kept = read_results(tmp_path / "results.json")
        assert kept.plan[0].command == ()
        (row,) = before(make_plan(arguments, CPU, shared), tmp_path, kept, arguments, CPU)
        assert row.command[1] == script("data_parallel_train.py") and not {*evil[1:3]} & {*row.command}
        return row

    return before_file


def test_current_scripts_get_the_flags_of_an_earlier_comparison(before_file):
    then = {"lr": 0.25, "augment": False, "batch_size": [50], "data_root": "~/then", "bucket_mb": [None]}
    row = before_file("--lr 0.5 --data-root /now --optimizer sgd", **then)
    interpreter, *rest = row.command
    assert "python" in interpreter and rest[0] == script("data_parallel_train.py") and "--no-augment" in rest
    values = {"--lr": "0.25", "--data-root": "/now", "--batch-size": "50", "--epochs": "3"}
    values["--optimizer"] = "adam"  # not in the file: the default, not the current flag
    assert {name: flag(row, name) for name in values} == values
    assert row.planned.batch_size == 50 and (row.name, row.role, row.against) == ("single-before", BEFORE, "single")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"model": ["/tmp/evil.py:build"]}, r"names /tmp/evil.py:build; a file that only"),
        ({"dataset": "folder:/etc"}, "names folder:/etc; a file that only"),
        ({"model": ["--save"]}, "cannot be typed; .*unknown name"),
        ({"model": None}, "cannot be typed"),
        ({"precision": "--output=/tmp/owned"}, "cannot be typed"),
        ({"lr": [0.1, "--save"]}, "cannot be typed"),
        ({"nproc": ["2; rm"]}, "cannot be typed"),
        ({"batch_size": []}, "cannot be typed"),
        ({"cuda_graph": "yes"}, "cannot be typed"),
    ],
)
def test_invalid_settings_of_a_results_file_are_refused(settings, message, before_file):
    with pytest.raises(SuiteError, match=message):
        before_file(**settings)


def test_a_model_file_is_opened_if_it_is_also_typed(before_file, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    row = before_file("--model /home/me/net.py:build", model=["~/net.py:build"])
    assert flag(row, "--model") == "/home/me/net.py:build"


def test_invalid_against_paths_are_refused(planned, monkeypatch, tmp_path):
    blocks = [{"model": "lenet", "block": "--save", "milliseconds": 1.0}]  # would become a flag
    write_results(report_of((SINGLE, runs(seconds=STEADY)), probe={"blocks": blocks}), tmp_path)
    with pytest.raises(SuiteError, match="a block of its networks"):
        read_results(tmp_path / "results.json")
    with pytest.raises(SuiteError, match="is no checkout of this project"):
        planned(f"--methods single --against {tmp_path}")
    write_results(report_of((configuration("mp"), runs("mp")), model=["lenet"]), tmp_path)
    with pytest.raises(SuiteError, match="in common; found mp there"):
        planned(f"--methods single --against {tmp_path / 'results.json'}")
    (tmp_path / "mine.py").touch()
    (row,) = scripts_before([configuration("script", command=("python", "mine.py"))], tmp_path)
    assert row.script == str(tmp_path / "mine.py")
    (tmp_path / "here" / "bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    Path("bin/python").symlink_to(sys.executable)
    (row,) = scripts_before([configuration("script", command=("env", "X=1", "bin/python", "mine.py"))], tmp_path)
    assert row.command[4:] == ("env", "X=1", str(tmp_path / "here/bin/python"), "mine.py")  # there is none there
    for typed, lacking in (("python yours.py", "found no yours.py"), ("python -m mine", "found no script that is ")):
        with pytest.raises(SuiteError, match=lacking):
            scripts_before([configuration("script", command=tuple(typed.split()))], tmp_path)


def test_rows_are_compared_with_themselves_before_with_simultaneous_intervals():
    rows = []
    for row, now, then in ((SINGLE, STEADY, SLOWER), (DDP, FAST, (1.01, 1.0, 1.0))):
        rows.append((row, runs(row.method, now)))
        rows.append((counterpart(row, BEFORE, BEFORE, row.command), runs(row.method, then)))
    report = report_of(*rows)
    analysis = analyse(report)
    first, second = analysis.pairs[BEFORE]
    assert first.ratio.words == "faster" != second.ratio.words and first.differences == ()
    assert first.ratio == ratios(block_times(report.all_rows), 1, [0], 0.975)[0]
    table = cells(before_table(analysis, "simple"))
    assert table[0][:4] == ["SINGLE", "2.20", "2.00", str(first.ratio)] and table[0][4] == "faster"
    assert f" {first.ratio} " in terminal_text(analysis)
    longer = [(row, [replace(run, epochs=run.epochs[: 3 - bool(row.role)]) for run in made]) for row, made in rows]
    analysis = analyse(report_of(*longer, target_accuracy=0.5))
    assert cells(before_table(analysis, "simple"))[0][:4] == ["SINGLE", "4.40", "6.00", "0.73 [0.68, 0.79]"]


def test_other_differences_from_before_are_named_and_different_work_is_not_compared(tmp_path):
    other = {**runs()[0].config, "lr": 0.5}
    analysis = analyse(with_counterpart(BEFORE, runs(seconds=SLOWER, config=other), BEFORE))
    assert analysis.pairs[BEFORE][0].differences == ("lr 0.001 instead of 0.5",)
    worse = [each_epoch(result, test_accuracy=0.9) for result in runs(seconds=SLOWER)]
    (pair,) = analyse(with_counterpart(BEFORE, worse, BEFORE)).pairs[BEFORE]
    assert pair.ratio and pair.differences == ("accuracy 80.0% instead of 90.0%",)
    missed = with_counterpart(BEFORE, [*runs(seconds=SLOWER[:2]), "not reached"], BEFORE)
    assert analyse(missed).pairs[BEFORE][0].ratio is None
    half = [each_epoch(result, samples=500) for result in runs(seconds=SLOWER)]
    analysis = analyse(with_counterpart(BEFORE, half, BEFORE))
    assert analysis.pairs[BEFORE][0].ratio is None
    assert "not compared: they train other numbers of images" in markdown_of(analysis, tmp_path)
