"""Rows beside others of the table: the baseline's twin, and every row as it was before a change."""

import shutil
import sys
from dataclasses import replace

import pytest

import compare_parallel
from common.errors import SuiteError
from comparison.judge.analysis import analyse
from comparison.judge.fairness import units
from comparison.judge.measures import block_times
from comparison.judge.statistics import ratios
from comparison.methods import Machine, script
from comparison.plan.counterparts import BEFORE, TWIN, before, counterpart, twin_of
from comparison.plan.plan import make_plan
from comparison.results_file import read_results, write_results
from comparison.show.remarks import warnings
from comparison.show.report import write_csv, write_markdown
from comparison.show.tables import before_table, epoch_table
from comparison.show.terminal import terminal_text
from comparison.show.verdict import resolution
from tests.fixtures import PROJECT
from tests.reports import SETTINGS, cells, configuration, report_of, runs

STEADY, SLOWER = (2.0, 2.02, 1.98), (2.2, 2.21, 2.19)
SINGLE = configuration(command=("python", script("data_parallel_train.py"), "--epochs", "1"))
DDP = configuration("ddp", command=("python", script("ddp_train.py"), "--spawn", "2"))


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plan a comparison on a machine with two cores and no GPU, of MNIST; return the rows' names."""
    monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(0, 2), {}))

    def planned(*flags):
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--dry-run", *map(str, flags)])
        return compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)[0]

    return planned


def beside(role, seconds, label="again", **values):
    """A comparison of one device, its counterpart and DDP."""
    other = counterpart(SINGLE, role, label, SINGLE.command)
    return report_of(
        (SINGLE, runs(seconds=STEADY)), (other, runs(seconds=seconds, **values)), (DDP, runs("ddp", (1.0, 1.02, 0.99)))
    )


# ---- a row of no table


def test_a_counterpart_is_in_no_table_of_methods_and_judges_nobody(tmp_path):
    report = beside(TWIN, SLOWER)
    analysis = analyse(report)
    assert [row.label for row in report.rows] == [entry.label for entry in analysis.rows] == ["SINGLE", "DDP"]
    alone = report_of((SINGLE, runs(seconds=STEADY)), (DDP, runs("ddp", (1.0, 1.02, 0.99))))
    assert analysis.rows[1].standing.speed_up.value == pytest.approx(analyse(alone).rows[1].standing.speed_up.value)
    assert analysis.recommendations[0].best.label == "DDP"
    write_csv(analysis, tmp_path / "results.csv")
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 3
    assert "SINGLE, again" not in terminal_text(analysis)


def test_its_runs_are_kept_listed_and_read_back(tmp_path):
    report = beside(TWIN, STEADY)
    write_results(report, tmp_path)
    assert read_results(tmp_path / "results.json") == report
    assert epoch_table(report, "simple").count("SINGLE, again") == 9


def test_a_failure_of_it_is_a_failure_and_told():
    report = beside(TWIN, STEADY)
    failed = replace(
        report,
        outcomes=tuple(
            replace(outcome, status="failed", reason="signal 9") if outcome.configuration == "single-again" else outcome
            for outcome in report.outcomes
        ),
    )
    assert failed.failed and "SINGLE, again, block 1: failed: signal 9" in terminal_text(analyse(failed))
    assert analyse(failed).pairs[TWIN] == ()


# ---- the twin


def test_the_default_rows_have_a_twin_of_the_baseline(planned):
    twin = planned().plan[-1]
    assert (twin.role, twin.against, twin.label) == (TWIN, "single", "one device, again")
    assert twin.command == planned().plan[0].command
    assert planned("--baseline", "ddp").plan[-1].against == "ddp"


@pytest.mark.parametrize(
    "flags, wanted",
    [
        (("--methods", "single", "ddp"), False),
        (("--repeats", 1), False),
        (("--no-twin",), False),
        (("--methods", "single", "ddp", "--twin"), True),
        (("--repeats", 1, "--twin"), True),
    ],
)
def test_a_twin_can_be_had_and_left_out(flags, wanted, planned):
    assert any(row.role == TWIN for row in planned(*flags).plan) == wanted


def test_there_is_no_twin_of_a_row_that_cannot_run():
    assert twin_of([replace(SINGLE, skip="no"), DDP], "single") == []


def test_two_equal_rows_are_said_to_be_so_and_warned_of_if_not():
    equal, apart = analyse(beside(TWIN, (2.01, 1.99, 2.0))), analyse(beside(TWIN, SLOWER))
    assert "Two equal rows, “SINGLE” and the same again: 1.00 [" in resolution(equal)[-1]
    assert resolution(equal)[-1].endswith("times as fast, not told apart.") and warnings(equal) == []
    assert resolution(apart)[-1].endswith("times as fast, TOLD APART, though equal.")
    (warning,) = warnings(apart)
    assert warning.startswith("WARNING: two equal rows were told apart, “SINGLE” and the same again: 1.10 [")


def test_a_disturbed_twin_claims_nothing():
    report = beside(TWIN, SLOWER)
    disturbed = replace(report, outcomes=tuple(replace(outcome, foreign_cores=0.9) for outcome in report.outcomes))
    assert resolution(analyse(disturbed))[-1].endswith("times as fast, disturbed.")
    assert not any("told apart" in warning for warning in warnings(analyse(disturbed)))


def test_after_one_block_the_twin_tells_without_an_interval():
    report = beside(TWIN, SLOWER)
    first = replace(report, outcomes=tuple(outcome for outcome in report.outcomes if outcome.block == 1))
    assert resolution(analyse(first)) == ["Two equal rows, “SINGLE” and the same again: 1.10 times as fast."]


# ---- before


@pytest.fixture
def checkout(tmp_path):
    """Another checkout, without ddp_train.py."""
    (tmp_path / "other").mkdir()
    for name in ("compare_parallel.py", "data_parallel_train.py"):
        shutil.copy(PROJECT / name, tmp_path / "other" / name)
    return tmp_path / "other"


def test_another_checkouts_scripts_get_the_flags_of_now(checkout, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (row,) = before(
        [replace(SINGLE, command=("python", str(PROJECT / "data_parallel_train.py"), "--epochs", "1"))],
        checkout,
        None,
        Machine(0, 2),
    )
    assert row.command == ("python", "other/data_parallel_train.py", "--epochs", "1")
    assert (row.name, row.label, row.role, row.against) == ("single-before", "SINGLE, before", BEFORE, "single")


def test_a_script_that_the_other_checkout_lacks_is_named(checkout):
    with pytest.raises(SuiteError, match="is without ddp_train.py; it was written later; leave that method out"):
        before([SINGLE, DDP], checkout, None, Machine(0, 2))


@pytest.fixture
def before_file(monkeypatch, tmp_path):
    """before_file(typed, command, **settings): the row of one device as it was in a results.json with these settings.

    typed: the flags of now; command: what the file says that its row ran.
    """

    def before_file(*typed, command=("python", "data_parallel_train.py"), **settings):
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--methods", "single", "--model", "lenet", *typed])
        arguments, shared = compare_parallel.parse()
        arguments.loader = "workers"
        then = replace(
            report_of((configuration(command=command), runs(seconds=STEADY))),
            settings={**SETTINGS, "model": ["lenet"], "num_workers": [0], **settings},
        )
        write_results(then, tmp_path)
        plan = make_plan(arguments, Machine(0, 2), shared)
        (row,) = before(plan, tmp_path / "results.json", arguments, Machine(0, 2))
        return row

    return before_file


def value(row, flag):
    return row.command[row.command.index(flag) + 1]


def test_the_flags_of_an_earlier_comparison_go_to_the_scripts_of_now(before_file):
    row = before_file("--lr", "0.5", "--data-root", "/now", lr=0.25, augment=False, batch_size=[50], data_root="~/then")
    interpreter, *rest = row.command
    assert "python" in interpreter and rest[0] == script("data_parallel_train.py") and "--no-augment" in rest
    assert (value(row, "--lr"), value(row, "--data-root"), value(row, "--batch-size")) == ("0.25", "/now", "50")
    assert row.planned.batch_size == 50 and value(row, "--epochs") == "3"
    assert (row.name, row.role, row.against) == ("single-before", BEFORE, "single")


def test_a_setting_that_an_earlier_comparison_did_not_have_yet_has_its_default(before_file):
    assert value(before_file("--worker-nice", "3"), "--worker-nice") == "10"


def test_no_command_of_a_file_is_run(before_file, tmp_path):
    evil = ("python", "-c", "import os; os.system('touch /tmp/owned')", "data_parallel_train.py")
    row = before_file(command=evil)
    assert row.command[1] == script("data_parallel_train.py") and not {*evil[1:3]} & {*row.command}
    assert read_results(tmp_path / "results.json").plan[0].command == ()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"model": ["/tmp/evil.py:build"]}, r"names /tmp/evil.py:build; what only"),
        ({"dataset": "folder:/etc"}, "names folder:/etc; what only"),
        ({"model": ["--save"]}, "cannot be typed; .*unknown name"),
        ({"model": None}, "cannot be typed"),
        ({"precision": "--output=/tmp/owned"}, "cannot be typed"),
        ({"lr": [0.1, "--save"]}, "cannot be typed"),
        ({"nproc": ["2; rm"]}, "cannot be typed"),
        ({"batch_size": []}, "cannot be typed"),
        ({"cuda_graph": "yes"}, "cannot be typed"),
    ],
)
def test_settings_that_no_flag_takes_are_refused(settings, message, before_file):
    with pytest.raises(SuiteError, match=message):
        before_file(**settings)


def test_a_network_of_ones_own_is_opened_if_it_is_typed_too(before_file, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    row = before_file("--model", "/home/me/net.py:build", model=["~/net.py:build"])
    assert value(row, "--model") == "/home/me/net.py:build"


def test_a_block_that_is_called_as_a_flag_is_is_refused(tmp_path):
    blocks = [{"model": "lenet", "block": "--save", "milliseconds": 1.0}]
    write_results(report_of((SINGLE, runs(seconds=STEADY)), probe={"blocks": blocks}), tmp_path)
    with pytest.raises(SuiteError, match="a block of its networks"):
        read_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: None, "is no checkout of this project"),
        (
            lambda path: write_results(report_of((configuration("mp"), runs("mp")), model=["lenet"]), path),
            "in common; found mp there",
        ),
    ],
)
def test_what_is_no_before_is_refused(make, message, planned, tmp_path):
    make(tmp_path)
    file = tmp_path / "results.json"
    with pytest.raises(SuiteError, match=message):
        planned("--methods", "single", "--against", file if file.exists() else tmp_path)


def test_rows_stand_beside_themselves_before_and_all_intervals_hold_together():
    pairs = [(row, counterpart(row, BEFORE, BEFORE, row.command)) for row in (SINGLE, DDP)]
    report = report_of(
        *(
            (row, runs(row.method, seconds))
            for pair, times in zip(pairs, ((STEADY, SLOWER), ((1.0, 1.02, 0.99), (1.01, 1.0, 1.0))), strict=True)
            for row, seconds in zip(pair, times, strict=True)
        )
    )
    first, second = analyse(report).pairs[BEFORE]
    assert first.ratio == ratios(block_times(report.all_rows), 1, [0], 0.975)[0] and first.ratio.words == "faster"
    assert second.ratio.words != "faster" and first.differences == ()
    table = cells(before_table(analyse(report), "simple"))
    assert table[0][:4] == ["SINGLE", "2.20", "2.00", str(first.ratio)] and table[0][4] == "faster"
    assert "Now and before" in terminal_text(analyse(report))


def test_what_differs_besides_the_code_is_named_and_other_work_is_not_compared(tmp_path):
    other = {**runs()[0].config, "lr": 0.5}
    analysis = analyse(beside(BEFORE, SLOWER, BEFORE, config=other))
    assert analysis.pairs[BEFORE][0].differences == ("lr 0.001 instead of 0.5",)
    half = [
        replace(result, epochs=tuple(replace(epoch, samples=epoch.samples // 2) for epoch in result.epochs))
        for result in runs(seconds=SLOWER)
    ]
    report = report_of((SINGLE, runs(seconds=STEADY)), (counterpart(SINGLE, BEFORE, BEFORE, SINGLE.command), half))
    assert analyse(report).pairs[BEFORE][0].ratio is None
    write_markdown(analyse(report), tmp_path / "report.md", [])
    assert "not compared: they train other numbers of images" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_a_change_that_makes_training_slower_is_found_beside_the_checkout_before_it(project, data_root, tmp_path):
    other = tmp_path / "other"
    left_out = {".venv", "data", ".git", "figures", "tests"}
    shutil.copytree(PROJECT, other, ignore=lambda place, _: left_out if place == str(PROJECT) else ())
    script_before = other / "data_parallel_train.py"
    text = script_before.read_text()
    assert text.count("loss.backward()") == 1
    script_before.write_text(text.replace("loss.backward()", "loss.backward(), __import__('time').sleep(0.1)"))
    done = project(
        "compare_parallel.py",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        480,
        "--batch-size",
        48,
        "--loader",
        "resident",
        "--epochs",
        2,
        "--repeats",
        2,
        "--methods",
        "single",
        "--against",
        other,
        "--output-dir",
        tmp_path / "out",
        tiny=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_results(tmp_path / "out" / "results.json")
    (pair,) = analyse(report).pairs[BEFORE]
    assert pair.ratio.value > 2 and report.in_turns and units(pair.counterpart.results[0]) == 1
    assert "Now and before" in done.stdout and "one device  " in done.stdout.partition("Now and before")[2]
