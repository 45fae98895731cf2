"""The screen that a comparison prints at its end, and the next step that it suggests."""

import functools
import re
import unicodedata
from dataclasses import replace

import pytest

from comparison.judge.analysis import analyse
from comparison.judge.remedies import find_proofs
from comparison.plan.counterparts import BEFORE, counterpart
from comparison.record import Equivalence
from comparison.results_file import read_results
from comparison.show import terminal
from comparison.show.advice import next_step
from comparison.show.report import PROOF, read_beside
from comparison.show.tables import answer_rows
from comparison.show.terminal import FEWEST, LINES, MOST, USUAL, terminal_columns, terminal_text
from comparison.words import speaking
from tests.fixtures import PROJECT
from tests.reports import DDP, SINGLE, configuration, full_report, report_of, runs, script

FILES = [file for file in sorted((PROJECT / "figures").rglob("results.json")) if "false-alarms" not in str(file)]
NAMES = [str(file.parent.relative_to(PROJECT / "figures")) for file in FILES]
SLOW = (configuration("fsdp"), runs("fsdp", (1.5, 1.51, 1.49), count=2))
UNSURE = (configuration("fsdp"), runs("fsdp", (0.9, 1.01, 1.2), count=2))


def columns(line):
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line)


@functools.cache
def analysed(file):
    analysis, proof = analyse(read_results(file)), read_beside(file.parent, PROOF)
    return analysis, find_proofs(analysis, proof) if proof else []


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


def checked(status):
    """The checks of the baseline and of DDP."""
    return {"single": Equivalence(0.0, "ok", ""), "ddp": Equivalence(1.5e-8 if status == "ok" else 0.3, status, "")}


@pytest.mark.parametrize("status", ["failed", "expected"])
def test_rows_with_different_weights_are_not_counted_as_matching(status):
    text = terminal_text(analyse(report_of(SINGLE, DDP, equivalence=checked(status))))
    assert "Weights" not in text
    for said in ("\nNext: fix “DDP”", ": its weights differ from one device's by 3.0e-01"):
        assert (said in text) == (status == "failed")


def test_the_screen_has_title_recommendation_table_and_notes():
    memory = (3 * 2**30, 2**30)
    ddp = (DDP[0], runs("ddp", (1.0, 1.01, 0.99), count=2, world_size=2, peak_memory_bytes=memory))
    report = report_of(SINGLE, ddp, equivalence=checked("ok"))
    title, advice, table, notes = terminal_text(analyse(report), width=80, report="a/report.html").split("\n\n")
    assert title == report.title
    use = "use “DDP”, 1.67 times as fast as “SINGLE” (95% CI 1.66 to 1.67): 1.50 s instead of 2.50 s per epoch"
    assert use in " ".join(advice.split()) and "4,096 MiB." in advice
    assert [re.split(" {2,}", line) for line in table.splitlines()] == [
        ["Method", "Epoch (s)", "Relative [95% CI]", "Memory (MiB)"],
        ["DDP", "1.50", "1.00", "4,096"],
        ["SINGLE", "2.50", "1.67 [1.66, 1.67]", "0.0"],
    ]
    assert ": 0.36 [0.21, 0.43] on 4 devices." in terminal_text(analyse(full_report()))  # 2 devices were measured
    assert "within 1.5e-08" in notes and notes.endswith("Causes, figures and definitions: a/report.html")


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


def trained(size, seconds):
    """A baseline and a DDP row that train with a batch size."""
    values = {"values": {"batch_size": size}, "batch_size": size}
    ranks = runs("ddp", seconds, count=2, world_size=2, per_device_batch_size=size // 2, global_batch_size=size)
    ddp = configuration("ddp", **{**values, "per_device_batch_size": size // 2})
    return (configuration(**values), runs(global_batch_size=size)), (ddp, ranks)


def test_each_of_several_batch_sizes_has_its_line():
    report = report_of(*trained(64, (1.0, 1.01, 0.99)), *trained(512, (1.5, 1.51, 1.49)))
    advice = terminal_text(analyse(report)).split("\n\n")[1].splitlines()
    assert [line.partition(" times")[0] for line in advice if " times" in line] == [
        "“DDP (batch size 64)”, 1.67",
        "“DDP (batch size 512)”, 1.25",
    ]


def of_two_cores(report):
    return replace(report, environment={**report.environment, "cores": 2})


def again(report):
    """The report with a twin of the baseline that takes half as long."""
    twin = replace(report.plan[0], name="single-again", role="twin", against="single")
    runs = [run for run in report.outcomes if run.configuration == "single"]
    halves = tuple(replace(run, configuration=twin.name, result=_half(run.result)) for run in runs)
    order = (*report.order, *((run.block, run.configuration) for run in halves))
    return replace(report, plan=(*report.plan, twin), outcomes=(*report.outcomes, *halves), order=order)


def _half(result):
    return replace(result, epochs=tuple(replace(one, train_seconds=one.train_seconds / 2) for one in result.epochs))


SIMULATED = (configuration("dp"), runs("dp", simulated=True))
ALIKE = (configuration("pipeline"), runs("pipeline", (1.0, 1.01, 0.99), count=2))
TWICE = replace(DDP[0].planned, batch_size=200)
INTERRUPTED = replace(report_of(SINGLE, DDP), outcomes=report_of(SINGLE, DDP).outcomes[:5])
WAITING = (DDP[0], runs("ddp", (1.0, 1.01, 0.99), count=2, world_size=2, phases=(4.0, 0.5, 20.0, 40.0, 3.0)))
LATE = (DDP[0], runs("ddp", (1.0, 1.01, 0.99), first=11.0, count=2, world_size=2))  # the same time from start to end
OUTSIDE = (DDP[0], runs("ddp", (1.2, 1.21, 1.19), count=2, world_size=2, phases=(0.5, 0.25, 10.0, 23.0, 1.5)))
MODELS = [(configuration(values={"model": model}, model=model), runs()) for model in ("lenet", "mlp")]
NEXT = {  # situation → (report, part of the next step)
    "disturbed": (report_of(SINGLE, DDP, SLOW, foreign_cores={"ddp": 0.5}), "0.5 of 1 core busy; close them"),
    "interrupted": (INTERRUPTED, "--resume"),
    "failed": (report_of(SINGLE, DDP, (configuration("mp"), ["failed"])), "mp-1.log"),
    "without all cores": (of_two_cores(report_of(SINGLE, DDP)), "add single-all-cores to --methods"),
    "few runs": (report_of((configuration(), runs(seconds=(2.0,))), (DDP[0], DDP[1][:1])), "--repeats 3"),
    "one row": (report_of(SINGLE), "leave out --methods"),
    "models": (report_of(*MODELS), None),
    "only simulated": (report_of(SINGLE, SIMULATED), "can only be simulated on this machine"),
    "missed": (report_of(SINGLE, (DDP[0], ["not reached"] * 3), target_accuracy=0.9), "more --epochs, or a lower"),
    "memory": (report_of(SINGLE, (DDP[0], ["out of memory"])), "a smaller --batch-size"),
    "before": (report_of(SINGLE, (counterpart(SINGLE[0], BEFORE, BEFORE, ()), SINGLE[1])), None),
    "own batches": (report_of(SINGLE, (replace(DDP[0], planned=TWICE), DDP[1]), fit_batch=True), "--target-accuracy"),
    "twins": (again(report_of(SINGLE, DDP)), "when the machine is quiet"),
    "tied": (report_of(SINGLE, DDP, ALIKE, UNSURE), "--repeats 12 (now 3)"),
    "resident": (report_of(SINGLE, WAITING, probe={"resident_images_per_second": 50_000}), "--loader resident"),
    "a cause": (report_of(SINGLE, DDP), "add --prove to test whether “backward” is what slows “DDP” down"),
    "a small cause": (report_of(SINGLE, OUTSIDE), None),  # the backward pass has 3 of 20 ms
    "nothing": (report_of(SINGLE, DDP, prove=True), None),
    "a row that is no slower": (report_of((configuration(), runs(first=9.0)), LATE), None),
}  # fmt: skip


@pytest.mark.parametrize("kind", NEXT)
def test_the_most_useful_next_step(kind):
    report, expected = NEXT[kind]
    steps = next_step(analyse(report))
    assert [expected in step for step in steps] == ([True] if expected else [])
    screen = " ".join(terminal_text(analyse(report)).split())
    assert all(" ".join(step.split()) in screen for step in steps)


@pytest.mark.parametrize(
    "report, doubt",
    [
        (INTERRUPTED, "\nINCOMPLETE: interrupted after 5 of 6 runs."),
        (again(report_of(SINGLE, DDP)), "A/A test failed"),
        (report_of(SINGLE, DDP), ""),
    ],
    ids=["interrupted", "twins", "none"],
)
def test_doubts_stand_above_the_recommendation(report, doubt):
    title, advice, *_ = terminal_text(analyse(report)).split("\n\n")
    assert "Recommendation" in advice and (doubt in title if doubt else title == report.title)
    assert not doubt or terminal_text(analyse(report), verbose=True).count(doubt.strip()) == 1


def test_warnings_are_counted_and_listed_if_verbose():
    noisy = (configuration("fsdp"), runs("fsdp", (1.2, 1.5, 2.1), first=9.0))
    text, all_of_it = (terminal_text(analyse(report_of(SINGLE, DDP, noisy)), verbose=more) for more in (False, True))
    assert text.splitlines()[-1] == "2 warnings (noisy runs in 1 row): report.md" and "WARNING" not in text
    assert all_of_it.count("\n\nFSDP: its ") == 2 and all_of_it.count("Noisy runs: ") == 1


OFF = (DDP[0], runs("ddp", (1.2, 1.21, 1.19), count=2, world_size=2))


@pytest.mark.parametrize(
    "rows, busy, told",
    [([SLOW, OFF], 0.0, ["DDP"]), ([SLOW, OFF], 0.9, ["FSDP"]), ([SLOW, DDP], 0.0, ["FSDP"]), ([], 0.0, [])],
)
def test_where_time_goes_in_the_fastest_undisturbed_row_that_differs_from_ideal_scaling(rows, busy, told):
    text = terminal_text(analyse(report_of(SINGLE, *rows, foreign_cores={"ddp": busy})), verbose=True)
    assert re.findall(r"(\w+): a step takes", text) == told


@pytest.mark.parametrize("width", [FEWEST, 80])
def test_a_long_name_is_cut_and_the_column_of_accuracies_left_out(width):
    long = (replace(DDP[0], label="DDP with a very long name that nobody shortens"), DDP[1])
    text = terminal_text(analyse(report_of(SINGLE, long)), width=width)
    table = text.split("\n\n")[2]
    assert max(map(len, text.splitlines())) <= width
    assert "1.67 [1.66, 1.67]" in table and "Accuracy (%)" not in table and ("…" in table) == (width == FEWEST)


@pytest.mark.parametrize(
    "terminal, columns, expected", [(True, "80", 80), (True, "220", MOST), (True, "20", FEWEST), (False, "100", USUAL)]
)
def test_the_width_of_the_terminal_is_used_within_limits(terminal, columns, expected, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_columns() == expected


def test_a_row_is_only_called_recommended_if_it_is():
    for rows, result in (((SINGLE, DDP), "recommended"), (((row, made[:1]) for row, made in (SINGLE, DDP)), "fastest")):
        first = next(answer_rows(analyse(report_of(*rows))))
        assert (first["Method"], first["Result"]) == ("DDP", result)


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
    rows = []
    for size, workers in ((64, 0), (64, 2), (256, 0), (256, 2)):
        values = {"batch_size": size, "num_workers": workers}
        row = configuration("pipeline", values=values, per_device_batch_size=size, **values)
        made = runs("pipeline", global_batch_size=size, workers_per_process=workers)
        rows.append((replace(row, label="pipeline ×2, 4 micro-batches"), made))
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
