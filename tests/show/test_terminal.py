"""The screen that a comparison prints at its end."""

import functools
import re
import unicodedata
from dataclasses import replace

import pytest

from comparison.judge.analysis import analyse
from comparison.plan.counterparts import BEFORE, counterpart
from comparison.record import Equivalence
from comparison.results_file import read_results
from comparison.show import terminal
from comparison.show.report import with_tips_and_proofs
from comparison.show.tables import answer_rows
from comparison.show.terminal import FEWEST, LINES, MOST, USUAL, terminal_columns, terminal_text
from comparison.words import speaking
from tests.fixtures import PROJECT
from tests.reports import DDP, SINGLE, configuration, full_report, halved, report_of, runs, script, swept

FILES = [file for file in sorted((PROJECT / "figures").rglob("results.json")) if "false-alarms" not in str(file)]
NAMES = [str(file.parent.relative_to(PROJECT / "figures")) for file in FILES]


def columns(line):
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line)


@functools.cache
def analysed(file):
    return with_tips_and_proofs(analyse(read_results(file)), file.parent)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_committed_comparison_fits_one_screen_with_rows_by_time(file, width, language):
    analysis, proofs = analysed(file)
    with speaking(language):
        text = terminal_text(analysis, proofs, width=width)
    lines = text.splitlines()
    assert len(lines) <= LINES < 24 and max(map(columns, lines)) <= width and "\x1b" not in text
    excluded = {name for decision in analysis.decisions for name in decision.ineligible}
    ratios = [analysis.ratio_to_best(entry) for entry in analysis.rows if entry.name not in excluded]
    values = {str(ratio): ratio.value for ratio in ratios if ratio and ratio.low}
    cells = [re.split(" {2,}", line) for line in lines]
    heads = [line.index(cell) for line in cells for cell in line if cell.startswith(("Relative [", "相对时间 ["))]
    column = heads[0] if heads else 0
    shown = [values[line[column]] for line in cells if len(line) > column and line[column] in values]
    assert sorted(shown) == shown and {*shown} == {*values.values()}


def test_the_screen_ends_with_the_file_of_the_report_and_has_a_projection():
    report = report_of(SINGLE, halved(peak_memory_bytes=(3 * 2**30, 2**30)))
    assert [row["Result"] for row in answer_rows(analyse(report))] == ["recommended", "slower"]
    alone = next(answer_rows(analyse(report_of(SINGLE))))
    assert "Speed-up [95%]" in alone and "Relative [95% CI]" not in alone  # to the best of one row
    _, advice, table, notes = terminal_text(analyse(report), report="a/report.html").split("\n\n")
    assert "4,096 MiB." in advice and notes.endswith("Causes, figures and definitions: a/report.html")
    assert "4,096" in table and "Accuracy (%)" not in table
    assert ": 0.36 [0.21, 0.43] on 4 devices." in terminal_text(analyse(full_report()))  # 2 devices were measured


def test_rows_are_sorted_and_those_without_a_time_have_a_reason():
    failed, simulated = (configuration("mp"), ["failed"]), (configuration("dp"), runs("dp", simulated=True))
    once = report_of(SINGLE, (simulated[0], [*simulated[1], "failed"]), DDP)
    unchecked = report_of(SINGLE, simulated, DDP, equivalence={"dp": Equivalence(None, "failed", "signal 9")})
    for report, said in ((once, "1 of 4 runs failed; simulated"), (unchecked, "failed: not checked; simulated")):
        assert re.search(f"^DP +{said}$", terminal_text(analyse(report)), re.MULTILINE)
    skipped = (configuration("mp-micro", skip="needs 2 GPUs, found none"), [])
    slower = runs("ddp-no-sync", (5.0, 5.1, 4.9))  # than the simulated one
    silent = (configuration("ddp-no-sync"), slower)
    table = terminal_text(analyse(report_of(simulated, silent, SINGLE, failed, skipped, SLOW, DDP))).split("\n\n")[2]
    lines = table.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["DDP", "FSDP", "SINGLE", "DDP-NO-SYNC", "DP", "MP", "MP-MICRO"]
    assert lines[5].endswith("failed: signal 9") and lines[6].endswith("skipped: needs 2 GPUs, found none")


@pytest.mark.parametrize("rows", [2, 9, 30])
def test_the_screen_is_full_if_there_is_more_to_say(rows, monkeypatch):
    long = ("answers", "doubts", "in_short") if rows == 2 else ("answers",)
    for name in long:
        monkeypatch.setattr(terminal, name, lambda *_: ["One more."] * 40)
    monkeypatch.setattr(terminal, "resolution", lambda _: [])
    others = [(configuration("ddp", f"ddp-{n}"), runs("ddp", (1 + n / 100,) * 3, count=2)) for n in range(1, rows)]
    for file, last in (("report.md", 1), (f"{'long/' * 16}report.html", 2)):
        lines = terminal_text(analyse(report_of(SINGLE, *others, twin=False)), (), 80, file).splitlines()
        said = lines.count("One more.")
        assert len(lines) == LINES and said >= 1 and lines[-last].startswith(f"{40 * len(long) - said} more findings")


def test_a_sentence_is_cut_after_three_lines_and_left_out_if_it_does_not_fit():
    words = " ".join(f"word{number}" for number in range(100))
    lines, hidden = terminal.fitting([words, "Short.", words], 80, 5)
    assert (len(lines), hidden, lines[-1]) == (4, 1, "Short.")
    assert lines[2].endswith("…") and words.startswith(" ".join(lines[:3]).rstrip("… "))


def test_a_disturbed_ratio_claims_nothing():
    table = terminal_text(analyse(report_of(SINGLE, DDP, foreign_cores={"ddp": 0.5}))).split("\n\n")[2]
    assert "1.67 disturbed" in table and "," not in table
    results = [row["Result"] for row in answer_rows(analyse(report_of(SINGLE, DDP, foreign_cores={"ddp": 0.9})))]
    assert results == ["disturbed", "disturbed"]  # rather than fastest


def test_warnings_are_counted_and_listed_if_verbose():
    noisy = (configuration("fsdp"), runs("fsdp", (1.2, 1.5, 2.1), first=9.0))
    text, all_of_it = (terminal_text(analyse(report_of(SINGLE, DDP, noisy)), verbose=more) for more in (False, True))
    assert text.splitlines()[-1] == "2 warnings (noisy runs in 1 row): report.md" and "WARNING" not in text
    assert all_of_it.count("\n\nFSDP: its ") == 2 and all_of_it.count("Noisy runs: ") == 1


SLOW, OFF = halved("fsdp", (1.5, 1.51, 1.49)), halved(seconds=(1.2, 1.21, 1.19))


@pytest.mark.parametrize(
    "rows, busy, told",
    [([SLOW, OFF], 0.0, ["DDP"]), ([SLOW, OFF], 0.9, ["FSDP"]), ([SLOW, DDP], 0.0, ["FSDP"]), ([], 0.0, [])],
)
def test_where_time_goes_in_the_fastest_undisturbed_row_that_differs_from_ideal_scaling(rows, busy, told):
    text = terminal_text(analyse(report_of(SINGLE, *rows, foreign_cores={"ddp": busy})), verbose=True)
    assert re.findall(r"(\w+): a step takes", text) == told


@pytest.mark.parametrize(
    "terminal, columns, expected", [(True, "80", 80), (True, "220", MOST), (True, "20", FEWEST), (False, "100", USUAL)]
)
def test_the_width_of_the_terminal_is_used_within_limits(terminal, columns, expected, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_columns() == expected


def test_a_narrow_terminal_shows_labels_and_no_more_columns_than_fit():
    before = (counterpart(DDP[0], BEFORE, BEFORE, ()), DDP[1])
    table = terminal_text(analyse(report_of(SINGLE, DDP, before, target_accuracy=0.6)), width=FEWEST).split("\n\n")[2]
    assert {line.split()[0] for line in table.splitlines()} == {"Method", "DDP", "SINGLE"}
    assert max(map(len, table.splitlines())) <= FEWEST


@pytest.mark.parametrize("max_steps, heading, seconds", [(99, "Epoch (s)", "2.50"), (10, "Whole epoch (s)", "20.5")])
def test_an_extrapolated_epoch_is_called_a_whole_one(max_steps, heading, seconds):
    report = report_of(SINGLE, DDP, max_steps=max_steps, probe={"train_images": 10_000 if max_steps == 10 else 1000})
    rows = {row["Method"]: row for row in answer_rows(analyse(report))}
    assert rows["SINGLE"][heading] == seconds


def test_a_single_script_beside_the_suite_shows_its_own_time():
    table = terminal_text(analyse(report_of(SINGLE, DDP, script("mine", 20.0), warmup=10))).split("\n\n")[2]
    assert re.search(r"^mine +0\.200 s per 1,000 samples$", table, re.MULTILINE), table


@pytest.mark.parametrize("language", ["en", "zh"])
def test_labels_that_are_cut_still_differ(language):
    made = swept("pipeline", batch_size=(64, 256), num_workers=(0, 2))
    rows = [(replace(row, label="pipeline ×2, 4 micro-batches"), results) for row, results in made]
    analysis = analyse(report_of(*rows, baseline="pipeline"))
    with speaking(language):
        for width in (FEWEST, USUAL):
            lines = terminal_text(analysis, width=width).split("\n\n")[2].splitlines()[1:]
            labels = [line.split("  ")[0] for line in lines]
            assert len(lines) == len({*labels}) == 4 and max(map(columns, lines)) <= width, lines


@pytest.mark.parametrize("width", range(60, 70))
def test_no_number_is_cut(width):
    numbers = [f"{number}.25" for number in range(100, 200)]
    lines, _ = terminal.fitting([" ".join(numbers)], width, 5)
    assert {*" ".join(lines).rstrip("…").split()} <= {*numbers} and max(map(len, lines)) <= width


@pytest.mark.parametrize("single_run", [False, True])
def test_the_memory_is_left_out_only_if_the_screen_is_too_narrow(single_run):
    rows = [(row, made[:1] if single_run else made) for row, made in (SINGLE, DDP)]
    analysis = analyse(report_of(*rows))
    answers = [*answer_rows(analysis)]
    full = [name for name in answers[0] if name not in ("Accuracy (%)", "Result")]
    whole_line = sum(max(len(name), *(len(str(row[name] or "–")) for row in answers)) + 2 for name in full) - 2
    assert 38 < whole_line < 60 and full[-1] == "Memory (MiB)"
    for width in range(38, 60):
        table = next(part for part in terminal_text(analysis, width=width).split("\n\n") if part.startswith("Method "))
        shown = re.split(r"\s{2,}", table.splitlines()[0])
        assert shown == (full if whole_line <= width else full[:-1])


@pytest.mark.parametrize(
    "seconds, last",
    [(3.0, ["SINGLE", "… 7 more rows"]), (1.085, ["SINGLE", "… 7 more rows"]), (0.9, ["DDP-7", "… 7 more rows"])],
)
def test_a_long_table_has_its_first_rows_and_the_baseline(seconds, last):
    others = [(configuration("ddp", f"ddp-{n}"), runs("ddp", (1 + n / 100,) * 3)) for n in range(15)]
    others = [(replace(row, label=row.name.upper()), made) for row, made in others]
    baseline = configuration(), runs(seconds=(seconds,) * 3)
    lines = terminal_text(analyse(report_of(*others, baseline)), width=80).split("\n\n")[2].splitlines()
    assert len(lines) == 11 and [line.strip().split("  ")[0] for line in lines[-2:]] == last
