"""What somebody guessed before a comparison stands beside what was measured."""

import sys

import pytest

import compare_parallel
from common.errors import SuiteError
from comparison.judge.analysis import analyse
from comparison.methods import Machine
from comparison.show.report import write_markdown
from comparison.show.terminal import terminal_text
from comparison.show.verdict import tell_guesses
from tests.reports import configuration, report_of, runs

SINGLE = configuration("single"), runs()
DDP = configuration("ddp"), runs("ddp", (1.0, 1.05, 0.97), count=2)
SIMULATED = configuration("dp"), runs("dp", simulated=True)


def guessed(*rows, **settings):
    return tell_guesses(analyse(report_of(*rows, **settings)))


def test_a_guess_is_right_if_it_lies_in_the_interval():
    speed_up = analyse(report_of(SINGLE, DDP)).rows[1].standing.speed_up
    inside, outside = f"{speed_up.value:.2f}", "3"
    said = "“DDP” was guessed to be {} times as fast as the baseline: measured {}, {}."
    assert guessed(SINGLE, DDP, predict=[f"ddp={inside}", f"ddp={outside}"]) == [
        said.format(inside, speed_up, "in which the guess lies"),
        said.format(outside, speed_up, "and so it is not"),
    ]


def test_what_proves_nothing_and_what_was_not_measured():
    (noisy,) = guessed(SINGLE, DDP, predict=["ddp=2"], foreign_cores={"ddp": 0.9})
    assert noisy.endswith("which proves nothing.")
    assert guessed(SINGLE, SIMULATED, predict=["dp=0.5", "fsdp=2"]) == [
        "“DP” was guessed to be 0.5 times as fast as the baseline: it has no speed-up."
    ]
    assert guessed(SINGLE, DDP) == guessed(SINGLE, DDP, predict=None) == []


def test_it_is_on_the_terminal_and_in_the_report(tmp_path):
    analysis = analyse(report_of(SINGLE, DDP, predict=["ddp=3"]))
    (sentence,) = tell_guesses(analysis)
    assert sentence in " ".join(terminal_text(analysis).split())
    write_markdown(analysis, tmp_path / "report.md", [])
    assert f"## What was guessed\n\n- {sentence}" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("text", ["ddp", "ddp=0", "ddp=fast", "spp=2", "=2"])
def test_what_is_no_guess_is_refused(text, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--predict", text])
    with pytest.raises(SuiteError, match="argument --predict: "):
        compare_parallel.parse()
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--predict", "ddp=1.80", "fsdp=.5"])
    assert compare_parallel.parse()[0].predict == ["ddp=1.8", "fsdp=0.5"]


@pytest.mark.parametrize(
    "flags, accepted",
    [
        (("--methods", "single", "ddp", "--baseline", "dp"), False),
        (("--methods", "single", "--predict", "ddp=2"), False),
        (("--methods", "ddp", "--predict", "ddp=2"), False),
        (("--methods", "single", "--predict", "single=2"), False),
        (("--baseline", "mp"), False),
        (("--methods", "ddp"), True),  # one row, without a speed-up
        (("--methods", "single", "ddp", "--predict", "ddp=2"), True),
        (("--baseline", "ddp", "--predict", "fsdp=2"), True),
    ],
)
def test_a_baseline_or_a_guess_without_a_row_is_refused_before_anything_runs(flags, accepted, monkeypatch, tmp_path):
    monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(0, 2), {}))
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--model", "lenet", *flags])
    arguments = compare_parallel.parse()
    if accepted:
        assert compare_parallel.plan_comparison(*arguments, tmp_path)[0].plan
    else:
        with pytest.raises(SuiteError, match=f"{flags[-2]} .* is about no row that is compared"):
            compare_parallel.plan_comparison(*arguments, tmp_path)
