"""What a comparison says in Chinese: every sentence is translated, tables stand in columns, figures have a font."""

import ast
import re
import sys
import unicodedata

import pytest

import compare_parallel
from common.errors import MACHINE, SuiteError
from comparison.judge.analysis import analyse
from comparison.results_file import read_results, write_results
from comparison.show import figures as figures_module
from comparison.show.chinese import CATALOGUE
from comparison.show.figures import find_font
from comparison.show.language import LANGUAGES, PLACE, say, speaking
from comparison.show.report import present
from comparison.show.sections import CODE, FIGURES, sections
from comparison.show.terminal import terminal_text
from tests.fixtures import PROJECT
from tests.reports import COMPARISONS, DDP, ON_CIFAR10, SINGLE, full_report, report_of, two_sweeps

COMMITTED = [
    PROJECT / "figures" / name / "results.json" for name in (*COMPARISONS, *ON_CIFAR10, "resident-mnist", "prove-mnist")
]
# Words that no name has: where one of them is left, a sentence has no translation.
ENGLISH = re.compile(
    r"\b(the|of|is|are|was|were|with|than|more|less|not|for|and|its|it|at|in|per|an?|each|only|on|out|"
    r"from|to|by|as|that|which|has|have|be|no)\b",
    re.IGNORECASE,
)
SPEAKING = (
    "choice",
    "curve_plots",
    "fairness",
    "foreign",
    "map",
    "page",
    "phrases",
    "plots",
    "reasons",
    "recommend",
    "record",
    "remarks",
    "row_analysis",
    "sections",
    "step_plots",
    "tables",
    "terminal",
    "verdict",
)


def said_in(module):
    """The texts of a module that are sentences or parts of one, between the places of what differs; no docstrings."""
    (file,) = (PROJECT / "comparison").rglob(f"{module}.py")
    tree = ast.parse(file.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
    }
    errors = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | errors
    ]
    return [
        part
        for text in texts
        for part in re.split(r"\n|\{[^{}]*\}|(?<=[.!?]) (?=[A-Z“])", text)
        if len(re.findall(r"[A-Za-z]{2,}", part)) > 1 and ENGLISH.search(part) and not part.endswith((";", "{"))
    ]  # as a line of a page's script does


@pytest.mark.parametrize("module", SPEAKING)
def test_every_sentence_has_its_chinese(module):
    known = [piece.lower() for english in CATALOGUE for piece in PLACE.split(english)[::4]]
    missing = [
        text
        for whole in said_in(module)
        for text in whole.removeprefix("WARNING: ").split("\n")
        if not any(text.strip(" .,;:()“”").lower() in piece for piece in known)
    ]
    assert not missing


def test_every_place_of_a_translation_is_one_of_its_sentence():
    for english, chinese in CATALOGUE.items():
        assert set(re.findall(r"\{(\w+)\}", chinese)) <= {name for _, name, _ in PLACE.findall(english)}, english
        assert re.search("[\u4e00-\u9fff]", chinese) or english.replace("#", "") == chinese, english


@pytest.mark.parametrize(
    "report",
    [*map(read_results, COMMITTED), full_report(), two_sweeps(), report_of(SINGLE, DDP)],
    ids=[*(file.parent.name for file in COMMITTED), "full", "sweeps", "two"],
)
def test_nothing_english_is_left(report):
    with speaking("zh"):
        analysis = analyse(report)
        texts = [terminal_text(analysis)]
        for section in sections(analysis, [], [], "plain"):
            if section.heading not in (say("Settings"), say("Machine")):
                texts += [str(content) for kind, content in section.parts if kind not in (CODE, FIGURES)]
    left = [line for text in texts for line in text.splitlines() if ENGLISH.search(re.sub(r"--\S+", "", line))]
    assert not left


@pytest.mark.parametrize("width", [80, 100])
def test_lines_of_a_terminal_are_no_longer_and_columns_stand_below_each_other(width):
    def columns(text):
        return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)

    with speaking("zh"):
        lines = terminal_text(
            analyse(read_results(PROJECT / "figures" / "compare-synthetic" / "results.json")), width=width
        ).splitlines()
    assert max(map(columns, lines)) <= width and not any(line.strip()[:1] in tuple("，。；：") for line in lines)
    ends = {
        columns(line[: found.end()])
        for line in lines
        if (found := re.search(r" \d\.\d\d ", line)) and line.count("  ") > 2
    }
    assert len(ends) == 1


def test_english_stays_as_it_is():
    assert say("faster") == "faster" and set(LANGUAGES) == {"en", "zh"}
    with speaking("zh"):
        assert say("faster") == "更快"
        assert say("It gives 73 % of 2 devices (63 to 83 %).") == "它发挥了 2 台设备的 73 %（63 至 83 %）。"
        assert say("pipeline ×4 on 2 nodes, 4 micro-batches") == "流水线 ×4，2 个节点，4 个微批次"
        assert say("DDP ×4 on 2 nodes, gloo: faster") == "DDP ×4，2 个节点，gloo：更快"
        assert say("lenet") == "lenet" and say("a sentence that nobody knows") == "a sentence that nobody knows"
    assert say("faster") == "faster"


def test_a_report_and_its_figures_in_chinese(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(figures_module, "find_font", lambda language: None if language == "en" else "DejaVu Sans")
    keep = figures_module.save_figure
    monkeypatch.setattr(figures_module, "save_figure", lambda figure, path: shown.append(figure) or keep(figure, path))
    write_results(report_of(SINGLE, DDP), tmp_path)
    with pytest.warns(UserWarning, match="missing from font"):
        present(tmp_path, "zh")
    assert "## 结论" in (tmp_path / "report.md").read_text()
    assert '<html lang="zh">' in (tmp_path / "report.html").read_text()
    texts = [
        text.get_text()
        for figure in shown
        for axes in figure.axes
        for text in (axes.xaxis.label, *axes.get_yticklabels())
    ]
    assert "一台设备的内存峰值 (MiB)" in texts or any("加速比" in text for text in texts)
    assert not [text for text in texts if ENGLISH.search(text)]
    assert "SINGLE\n基准" in texts  # what stands at a tick


def test_a_figure_without_a_font_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr("matplotlib.font_manager.get_font_names", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--lang", "zh", "--dry-run"])
    with pytest.raises(SuiteError, match="no font with Chinese characters") as refused:
        compare_parallel.main()
    assert refused.value.exit_code == MACHINE and find_font("en") is None
