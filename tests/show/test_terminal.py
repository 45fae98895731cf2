"""What a comparison prints at its end fits its terminal, and says what to do."""

import re

import pytest

from comparison.judge.analysis import analyse
from comparison.record import Equivalence
from comparison.results_file import read_results
from comparison.show.terminal import FEWEST, MOST, fitted_table, terminal_columns, terminal_text
from tests.fixtures import PROJECT
from tests.reports import COMPARISONS, SINGLE, configuration, report_of, runs

DDP = (configuration("ddp"), runs("ddp", (1.0, 1.01, 0.99), count=2))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", COMPARISONS)
def test_no_line_is_wider_than_the_terminal(name, width):
    report = read_results(PROJECT / "figures" / name / "results.json")
    text = terminal_text(analyse(report), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) < 70 and "\x1b" not in text
    for row in report.rows:  # no word is cut
        assert all(word in text for word in row.label.split())
    for entry in analyse(report).rows if name == "compare-synthetic" and width == 100 else ():  # each is a line
        times = rf"{entry.summary.epoch_seconds:.2f} +{entry.summary.total_seconds:.1f} "
        assert re.search(rf"^{re.escape(entry.label)}  +{times}", text, re.MULTILINE)


def checked(status):
    """Checks of one device's weights and of DDP's."""
    return {"single": Equivalence(0.0, "ok", ""), "ddp": Equivalence(1.5e-8 if status == "ok" else 0.3, status, "")}


@pytest.mark.parametrize("status", ["failed", "expected"])
def test_rows_with_other_weights_are_not_called_the_same(status):
    text = terminal_text(analyse(report_of(SINGLE, DDP, equivalence=checked(status))))
    assert "Same weights in 1 of 2 rows: after 20 steps none differs from one device's by more than 0.0e+00." in text
    assert "Same weights" not in terminal_text(analyse(report_of(SINGLE, DDP)))


def test_the_order_and_what_is_in_it():
    report = report_of(SINGLE, DDP, equivalence=checked("ok"), project=[2, 4])
    title, advice, table, projection, *_, maths, where = terminal_text(analyse(report)).split("\n\n")
    assert title == report.title
    header, again, _, ddp, single = table.splitlines()
    assert header.split() == ["Method", "Epoch", "Total", "Speed-up", "Time", "÷", "Accuracy", "Result"]
    assert again.split() == ["(s)", "(s)", "[95", "%]", "best", "(%)"]
    assert single.split()[:4] == ["SINGLE", "2.00", "9.0", "1.00"] and ddp.split()[-1] == "faster"
    assert projection == "Projection (projected, not measured)"  # what was asked for comes first
    assert maths == "Same weights in every row: after 20 steps none differs from one device's by more than 1.5e-08."
    assert advice.startswith("Recommendation: use “DDP”, judged by an epoch")
    assert where.startswith("DDP: A step takes 100.0")


def test_the_fastest_row_comes_first_and_those_without_a_time_come_last():
    slow = (configuration("fsdp"), runs("fsdp", (1.5, 1.51, 1.49), count=2))
    failed, simulated = (configuration("mp"), ["failed"]), (configuration("dp"), runs("dp", simulated=True))
    rows = (simulated, SINGLE, failed, slow, DDP)
    table = terminal_text(analyse(report_of(*rows))).split("\n\n")[2]
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["DDP", "FSDP", "SINGLE", "DP", "MP"]


def test_where_time_goes_is_said_of_the_fastest_parallel_row_that_is_not_disturbed():
    slow = (configuration("fsdp"), runs("fsdp", (1.5, 1.51, 1.49), count=2))
    for rows, busy, told in (
        ([SINGLE, slow, DDP], 0.0, ["DDP"]),
        ([SINGLE, slow, DDP], 0.9, ["FSDP"]),
        ([SINGLE], 0, []),
    ):
        text = terminal_text(analyse(report_of(*rows, foreign_cores={"ddp": busy})))
        assert re.findall(r"(\w+): A step takes", text) == told


def test_a_table_is_brought_to_the_terminals_width():
    header = ["Method", "Epoch\n(s)", "Result"]
    rows = [["a method with a very long name that nobody shortens", "1.00", "failed for a reason of many words, too"]]
    assert len(fitted_table(header, *rows, width=200).splitlines()) == 4
    table = fitted_table(header, *rows, width=50)
    assert max(map(len, table.splitlines())) <= 50 and len(table.splitlines()) > 5
    assert all(word in table for word in " ".join(rows[0]).split())


@pytest.mark.parametrize(
    "terminal, columns, expected", [(True, "80", 80), (True, "220", MOST), (True, "20", FEWEST), (False, "80", MOST)]
)
def test_columns(terminal, columns, expected, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_columns() == expected
