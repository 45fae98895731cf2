"""What a comparison prints at its end, in as many columns as a terminal has: what to use, the table, what is doubtful.

All else, each row's causes and how every number is defined, stands in the report.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.show.remarks import faults, warnings
from comparison.show.sentences import tell
from comparison.show.tables import answer_rows, before_rows, cells_of, lay_out, projected_rows, table_of
from comparison.show.verdict import answers, recommendations
from comparison.words import NOTHING, join, narrowed, render, say, widened

MOST, FEWEST = 100, 60  # columns
PARTING = "\v"  # for textwrap a space, between two characters that have none
GAP, PADDING = 2, 2  # of tabulate: between two columns of a table; what a column is wider than its heading, at least
# Headings that a terminal has in two lines.
NARROW = {
    "Before (s per epoch)": "Before (s\nper epoch)",
    "Now (s per epoch)": "Now (s\nper epoch)",
    "Times as fast [95 %]": "Times as\nfast [95 %]",
    "Epoch, projected, not measured (s)": "Epoch (s)",
    "Speed-up, projected": "Speed-up",
    "Epoch, measured (s)": "Epoch,\nmeasured (s)",
    "Error of the projection": "Error of the\nprojection",
}


def terminal_columns() -> int:
    """Return in how many columns to print: as many as the terminal has, within limits."""
    return max(FEWEST, min(MOST, shutil.get_terminal_size((MOST, 0)).columns)) if sys.stdout.isatty() else MOST


def terminal_text(analysis: Analysis, proofs: Sequence[Proof] = (), width: int = MOST) -> str:
    """Return what is printed when a comparison ends, no line of it longer than `width` where words can be parted."""
    before = cells_of(_narrowed(before_rows(analysis)))
    parts = [
        fill(analysis.report.title, width),
        *(fill(sentence, width) for sentence in recommendations(analysis)),
        fitted_table(*cells_of(answer_rows(analysis, narrow=width < MOST)), width=width),
        f"{render(say('Now and before'))}\n\n{fitted_table(*before, width=width)}" if before else "",
        *(_projection(analysis, width) if analysis.report.settings["project"] else ()),
        *(fill(sentence, width) for sentence in answers(analysis, proofs)),
        "\n".join(fill(join("", ["- ", text]), width, "  ") for text in (*warnings(analysis), *faults(analysis))),
    ]
    return "\n\n".join(part for part in parts if part)


def _narrowed(rows):
    return [{NARROW.get(heading, heading): text for heading, text in row.items()} for row in rows]


def fill(text: str, width: int, indent: str = "") -> str:
    """Return a text in lines of at most `width` columns; words stay whole, Chinese is parted before any character."""
    parted = _with_breaks(re.sub(r"[\t\n\v\f\r]", " ", render(text)))
    lines = textwrap.wrap(
        parted,
        width - (PARTING in parted),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )  # a line's last character may be wide
    return narrowed("\n".join(lines)).replace(PARTING, "")


def _with_breaks(text):
    """A text as long as its columns are, which has PARTING where a line of Chinese may end."""
    return re.sub(f"{NOTHING}(?![，。；：）”])", PARTING, widened(text))


def fitted_table(header: list[str], *rows: list[str], width: int) -> str:
    """Return a table of at most `width` columns, where its first and its last can be brought to lines."""
    cells = [[render(text) for text in row] for row in (header, *rows)]
    wide = zip(*([widened(text) for text in row] for row in cells), strict=True)
    lines = [[(place, line) for place, text in enumerate(column) for line in text.splitlines()] for column in wide]
    columns = [max(len(line) + PADDING * (not place) for place, line in column) for column in lines]
    first, *others, last = columns
    spare = width - sum(others) - GAP * (len(columns) - 1)
    word = max(len(word) for *_, text in cells for word in _with_breaks(text).split())
    last = min(last, max(3 * spare // 10, spare - first, word))
    narrow = [[fill(row[0], max(1, min(first, spare - last))), *row[1:-1], fill(row[-1], last)] for row in cells[1:]]
    return lay_out(narrow, cells[0], "simple", left=(0, len(header) - 1))


def _projection(analysis, width):
    projection = analysis.projection
    shown = ("Devices", *NARROW.values())
    rows = [{name: row[name] for name in row if name in shown} for row in _narrowed(projected_rows(analysis))]
    words = join(" ", map(tell, projection.stops or projection.assumptions))
    return render(say("Projection ({words})", words=LABEL)), table_of(rows, "simple"), fill(words, width)
