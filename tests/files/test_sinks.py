"""Untrusted names and texts are shown literally: no terminal, spreadsheet, page or figure interprets them."""

import csv
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from common.files.plots import new_figure, save_figure
from common.machine.entry import print_error
from common.words import printable
from comparison.judge.analysis import analyse
from comparison.results_file import write_results
from comparison.show.diff import describe_difference
from comparison.show.figures import keep_figure
from comparison.show.report import fenced, markdown, present, write_csv
from tests.reports import configuration, markdown_of, report_of, runs

STEADY = (2.0, 2.02, 1.98)
EVIL = "\x1b]52;c;aaaa\x07\x9b31m\u202egnp\u2066 <img src=x onerror=alert(1)> [link](http://evil) $_or_$ \x00\x08"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def evil_report():
    """Two rows with malicious names, settings and command."""
    rows = [
        (replace(configuration(), label=EVIL), runs(seconds=STEADY)),
        (replace(configuration("ddp"), label=f"=cmd|{EVIL}"), runs("ddp", (1.0, 1.02, 0.99))),
    ]
    return replace(report_of(*rows, dataset=EVIL), command=f"python `` {EVIL}\n```\n<script>")


def test_terminal_and_page_get_no_control_characters(capsys, tmp_path):
    write_results(evil_report(), tmp_path)
    present(tmp_path)
    print(describe_difference(evil_report(), evil_report()))
    print_error(ValueError(EVIL), as_rank=False)
    shown, page = capsys.readouterr(), (tmp_path / "report.html").read_text()
    for text in (shown.out, shown.err, page):
        assert "gnp" in text and not CONTROL.search(text)
    assert "<img src=x" not in page
    figures = [*tmp_path.glob("*.svg")]
    assert len(figures) > 2 and all(ElementTree.parse(figure) for figure in figures)


def test_csv_cells_are_no_formulas(tmp_path):
    for label in ("=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "DDP ×2"):
        report = report_of((replace(configuration(), label=label), runs(seconds=STEADY)))
        write_csv(analyse(report), tmp_path / "results.csv")
        with open(tmp_path / "results.csv", newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["label"] == (label if label == "DDP ×2" else f"'{label}")
        assert float(row["epoch_seconds"]) == pytest.approx(2.0, rel=0.01)


def test_markdown_has_no_html_and_no_links_and_code_stays_fenced(tmp_path):
    text = markdown_of(analyse(evil_report()), tmp_path)
    assert not CONTROL.search(text)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert "gnp" in outside and not re.search(r"<img|<script|\]\(http", outside)
    assert markdown("1 < 2, [1, 2] & <b>") == "1 < 2, [1, 2] & &lt;b>"
    assert fenced("a ``` b").splitlines() == ["````", "a ``` b", "````"]


def test_figures_draw_texts_literally_and_tick_numbers_as_formulas(tmp_path):
    figure, (axis,) = new_figure()
    axis.set_yticks([1, 2], ["net_$_or_$.py\x01", "\ud800"])
    axis.set(title="$\\frac$ \x1b", xscale="log", xlim=(1, 1000))
    keep_figure(figure, tmp_path / "figure.png")
    assert [label.get_text() for label in axis.get_yticklabels()] == ["net_$_or_$.py\ufffd", "\ufffd"]
    assert axis.title.get_text() == "$\\frac$ \ufffd" and not axis.title.get_parse_math()
    assert any("mathdefault" in label.get_text() and label.get_parse_math() for label in axis.get_xticklabels())
    assert ElementTree.parse(tmp_path / "figure.svg") and save_figure(figure, tmp_path / "again.png").exists()


def test_printable_text_is_unchanged():
    text = "DDP ×2, “两个设备” – é\n\t日本 🎉"
    assert printable(text) == text
