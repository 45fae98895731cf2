"""The committed reports, tables and screens are what the committed results show."""

import csv
from itertools import chain

import pytest

from comparison.judge.analysis import analyse
from comparison.results_file import read_results
from comparison.show.figures import FIGURES
from comparison.show.report import with_tips_and_proofs, write_csv, write_markdown
from comparison.show.terminal import terminal_text
from tests.fixtures import PROJECT

COMMITTED = [file.parent for file in sorted((PROJECT / "figures").rglob("report.md"))]


def numbers(file):
    """The cells of a CSV file, with numbers that may be rounded differently."""
    cells = chain(*csv.reader(file.read_text(encoding="utf-8").splitlines()))
    return [
        pytest.approx(float(cell), rel=1e-6) if cell[:1].isdigit() and cell[-1:].isdigit() else cell for cell in cells
    ]


@pytest.mark.parametrize("directory", COMMITTED, ids=lambda directory: directory.name)
def test_what_is_committed_is_current(directory, tmp_path):
    analysis, proofs = with_tips_and_proofs(analyse(read_results(directory / "results.json")), directory)
    drawn = [directory / name for name in FIGURES if (directory / name).exists()]
    write_markdown(analysis, tmp_path / "report.md", drawn, proofs)
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == (directory / "report.md").read_text(encoding="utf-8")
    write_csv(analysis, tmp_path / "results.csv")
    assert numbers(tmp_path / "results.csv") == numbers(directory / "results.csv")
    for file in directory.glob("terminal-*.txt"):
        screen = terminal_text(analysis, width=int(file.stem.rpartition("-")[2]))
        assert file.read_text(encoding="utf-8") == screen + "\n"
