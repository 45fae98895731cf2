"""Output in Chinese: every template is translated, columns are aligned, and figures have a font."""

import ast
import re
import sys
import unicodedata
from dataclasses import replace

import pytest
from matplotlib.text import Text

import compare_parallel
from common.errors import MACHINE, SuiteError
from comparison.judge.analysis import analyse
from comparison.results_file import read_results, write_results
from comparison.show import figures as figures_module
from comparison.show.figures import find_font
from comparison.show.report import present
from comparison.show.sections import LIST, sections
from comparison.show.sentences import NOUNS, milliseconds, significant
from comparison.show.terminal import terminal_text
from comparison.words import (
    LANGUAGES,
    catalogue,
    count,
    join,
    named,
    placeholders,
    render,
    say,
    speaking,
    translations,
    without_formats,
)
from tests.fixtures import PROJECT
from tests.reports import COMPARISONS, DDP, ON_CIFAR10, SINGLE, full_report, report_of, two_sweeps, unlike

COMMITTED = [
    PROJECT / "figures" / name / "results.json" for name in (*COMPARISONS, *ON_CIFAR10, "resident-mnist", "prove-mnist")
]
TABLES = catalogue("zh")
# Words that occur in no name. A sentence that still has one is not translated.
ENGLISH = re.compile(
    r"\b(the|of|is|are|was|were|with|than|more|less|not|for|and|its|it|at|in|per|an?|each|only|on|out|"
    r"from|to|by|as|that|which|has|have|be|no)\b",
    re.IGNORECASE,
)


def texts(node):
    """All string values of an expression."""
    if isinstance(node, ast.IfExp):
        return [*texts(node.body), *texts(node.orelse)]
    if isinstance(node, ast.Dict):
        return [text for value in node.values for text in texts(value)]
    return [node.value] if isinstance(getattr(node, "value", None), str) else []


def templates():
    """All templates passed to say(), render() and count() in comparison/."""
    found, nouns = set(), {(noun, *endings, "s")[:2] for noun, *endings in NOUNS.values()}
    for file in (PROJECT / "comparison").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            called = getattr(getattr(node, "func", None), "id", "")
            if called in ("say", "render") and node.args:
                found |= {*texts(node.args[0])}
            if called == "count" and "from comparison.words import" in source and texts(node.args[1]):
                nouns.add((*(argument.value for argument in node.args[1:]), "s")[:2])
            if isinstance(node, ast.Assign) and "template" in getattr(node.targets[0], "id", "").lower():
                found |= {*texts(node.value)}
            if file.stem in ("tables", "detail_tables", "sections") and isinstance(node, ast.Dict):  # headings
                found |= {text for heading in node.keys if heading for text in texts(heading)}
    return {*map(without_formats, found)} | {f"{{n}} {noun}{end}" for noun, plural in nouns for end in ("", plural)}


def small(text):
    return text[:1].lower() + text[1:]


def test_every_template_is_translated_and_every_translation_is_used():
    known, used = translations("zh"), templates()
    worded = {text for text in used if re.search("[A-Za-z]{2}", re.sub(r"\{\w*\}", "", text))}
    assert not {text for text in worded if text not in known and small(text) not in known} - {"GPU", "ok"}
    assert not {text for text in TABLES["sentences"] if not {text, text[:1].upper() + text[1:]} & used}
    for english, chinese in known.items():
        assert {*placeholders(chinese)} <= {*placeholders(english)}, english


@pytest.mark.parametrize(
    "report",
    [*map(read_results, COMMITTED), full_report(), two_sweeps(), report_of(SINGLE, DDP)],
    ids=[*(file.parent.name for file in COMMITTED), "full", "sweeps", "two"],
)
def test_nothing_is_left_in_english(report):
    analysis = analyse(report)
    asides = {result.reason for row in report.all_rows for result in row.results}  # stored in English
    with speaking("zh"):
        shown = [terminal_text(analysis)]
        for heading, parts in sections(analysis, [], [], "plain").items():
            for kind, content in parts if heading not in ("Settings", "Machine", "Commands") else ():
                shown += map(render, content if kind == LIST else [content])
        for reason in asides:
            shown = [text.replace(render(named(reason)), "") for text in shown]
    left = [line for text in shown for line in text.splitlines() if ENGLISH.search(re.sub(r"--\S+|A/A", "", line))]
    assert not left


@pytest.mark.parametrize(
    "report", [unlike(), full_report(), two_sweeps(methods=("single", "ddp"))], ids=["rows", "scaling", "map"]
)
def test_figures_are_in_chinese(report):
    report = replace(report, plan=(replace(report.plan[0], label="one device"), *report.plan[1:]))
    with speaking("zh"):
        drawn = [figure for draw in figures_module.FIGURES.values() if (figure := draw(analyse(report)))]
    texts = [text.get_text() for figure in drawn for text in figure.findobj(Text)]
    english = re.compile(f"{ENGLISH.pattern}|measured|ideal|device", re.IGNORECASE)
    assert len(drawn) >= 5 and not [text for text in texts if english.search(text.replace("A/A", ""))]
    axes = [axis for figure in drawn for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    assert all(re.search("[\u4e00-\u9fff]", axis.get_label_text() or "中") for axis in axes)


@pytest.mark.parametrize("width", [80, 100])
def test_the_columns_of_chinese_tables_are_aligned_and_no_line_begins_with_a_comma(width):
    def columns(text):
        return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)

    report = read_results(PROJECT / "figures" / "compare-synthetic" / "results.json")
    with speaking("zh"):
        lines = terminal_text(analyse(report), width=width).splitlines()
    assert not any(line.strip()[:1] in tuple("，。；：") for line in lines)
    found = [(line, re.search(r"\d  +\d\.\d\d \[", line)) for line in lines if " 1.00 " not in line]
    assert len({columns(line[: number.end()]) for line, number in found if number}) == 1


def test_sentences_are_rendered_in_both_languages():
    share = say("Scaling efficiency {n:.0f}% on {units}.", n=72.6, units=count(2, "device"))
    assert {*LANGUAGES} == {"en", "zh"} and say("faster").capital == "Faster"
    for text, english, chinese in (
        (share, "Scaling efficiency 73% on 2 devices.", "2 台设备上的并行效率为 73%。"),
        (named("pipeline ×4 on 2 nodes"), "pipeline ×4 on 2 nodes", "流水线 ×4，2 个节点"),
        (named("DDP ×2 {0}, a 1b"), "DDP ×2 {0}, a 1b", "DDP ×2 {0}，a 1b"),
        (join("; ", [say("Faster"), "lenet"]), "Faster; lenet", "更快；lenet"),
        (say("{n:,} things that nobody knows", n=1000), *["1,000 things that nobody knows"] * 2),
    ):
        assert text == render(text) == english
        with speaking("zh"):
            assert render(text) == chinese


def test_a_report_in_chinese(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_module, "find_font", lambda language: None if language == "en" else "DejaVu Sans")
    write_results(report_of(SINGLE, DDP), tmp_path)
    with pytest.warns(UserWarning, match="missing from font"):
        present(tmp_path, "zh")
    text = (tmp_path / "report.md").read_text()
    assert "## 结论" in text and "Made by" not in text
    assert '<html lang="zh">' in (tmp_path / "report.html").read_text()


def test_a_missing_font_is_an_error_before_anything_runs(monkeypatch):
    monkeypatch.setattr("matplotlib.font_manager.get_font_names", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--lang", "zh"])
    with pytest.raises(SuiteError, match="no font with Chinese characters") as refused:
        compare_parallel.main()
    assert refused.value.exit_code == MACHINE and find_font("en") is None


@pytest.mark.parametrize(
    "value, text", [(9.994, "9.99"), (9.996, "10.0"), (10.04, "10.0"), (0.09996, "0.100"), (1234.5, "1,234")]
)
def test_significant_digits_are_those_of_the_rounded_number(value, text):
    assert significant(value) == text


@pytest.mark.parametrize("value, text", [(0.0, "0.0"), (0.456, "0.46"), (0.996, "1.00"), (1.0, "1.0"), (12.34, "12.3")])
def test_milliseconds_below_one_have_two_decimals(value, text):
    assert milliseconds(value) == text
