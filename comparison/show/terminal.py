"""What a comparison prints at its end: one screen, with what to use, how sure that is, what to do next, and the table.

All else, each row's causes and how every number is defined, stands in the report; --verbose prints more of it.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.show.advice import in_short, next_step, possible, recommendations
from comparison.show.remarks import doubts, faults, resolution, tell_warnings, warnings
from comparison.show.tables import BESIDE_BEST, DASH, answer_rows, cells_of, fastest_first
from comparison.show.verdict import answers, details
from comparison.words import NOTHING, count, join, narrowed, render, say, widened

FEWEST, USUAL, MOST = 60, 80, 100  # columns
LINES = 23  # of a screen, besides the prompt
MOST_OPENING, MOST_ADVICE, LONGEST = 5, 9, 3  # lines of the title with doubts, of what to use, of a sentence
MOST_ROWS, FEWEST_ROWS = 10, 4  # of the table
PARTING = "\v"  # for textwrap a space, between two characters that have none
GAP = "  "  # between two columns of the table
# Columns that the table can do without, first the first; what the accuracies are, a sentence says.
SPARE = ("Accuracy (%)", "Speed-up [95%]", "Memory (MiB)")


def terminal_columns() -> int:
    """Return in how many columns to print: as many as the terminal has, within limits."""
    return max(FEWEST, min(MOST, shutil.get_terminal_size((USUAL, 0)).columns)) if sys.stdout.isatty() else USUAL


def terminal_text(
    analysis: Analysis,
    proofs: Sequence[Proof] = (),
    width: int = USUAL,
    report: str | Path = "report.md",
    verbose: bool = False,
) -> str:
    """Return what is printed when a comparison ends: at most LINES of `width` columns, or, verbose, all sentences.

    report: the file that has the rest.
    """
    title, following = analysis.report.title, [*next_step(analysis), *possible(analysis)]
    findings = [*answers(analysis, proofs), *resolution(analysis)]
    if verbose:
        said = [title, *doubts(analysis), *recommendations(analysis), *following]
        more = [*findings, *details(analysis), *warnings(analysis), *faults(analysis)]
        table = "\n".join(_table(analysis, width, len(analysis.rows)))
        return "\n\n".join([*(fill(words, width) for words in said), table, *(fill(words, width) for words in more)])
    ending, _ = fitting(following, width, MOST_ADVICE)
    opening, beyond = fitting([title, *doubts(analysis)], width, MOST_OPENING)
    head, left_out = fitting(in_short(analysis), width, MOST_ADVICE - len(ending))
    # besides three empty lines, the table's heading and the last line
    room = LINES - 5 - len(opening) - len(head) - len(ending)
    rows = _table(analysis, width, max(FEWEST_ROWS, min(MOST_ROWS, room)))
    notes, hidden = fitting(findings, width, room + 1 - len(rows))
    hidden += beyond + left_out
    rest = join(", ", [*([count(hidden, "more finding")] if hidden else []), *tell_warnings(analysis)])
    last = say("{rest}: {file}", rest=rest or say("Causes, figures and definitions"), file=report)
    parts = (opening, [*head, *ending], rows, [*notes, fill(last, width)])
    return "\n\n".join("\n".join(part) for part in parts if part)


def fitting(sentences, width, most):
    """The lines of those sentences that fit into so many together, each cut after LONGEST, and how many do not fit."""
    kept, hidden = [], 0
    for words in sentences:
        lines = fill(words, width).splitlines()
        if len(lines) > LONGEST:
            lines[LONGEST - 1 :] = [narrowed(_cut(widened(" ".join(lines[LONGEST - 1 :])), width))]
        fits = len(kept) + len(lines) <= most
        kept += lines if fits else []
        hidden += not fits
    return kept, hidden


def fill(text: str, width: int) -> str:
    """Return a text in lines of at most `width` columns; words stay whole, Chinese is parted before any character."""
    parted = _with_breaks(re.sub(r"[\t\n\v\f\r]", " ", render(text)))
    lines = textwrap.wrap(
        parted, width - (PARTING in parted), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )  # a line's last character may be wide
    return narrowed("\n".join(lines)).replace(PARTING, "")


def _with_breaks(text):
    """A text as long as its columns are, which has PARTING where a line of Chinese may end."""
    return re.sub(f"{NOTHING}(?![，。；：）”])", PARTING, widened(text))


def _cut(text, columns):
    """A widened text, or its beginning where it is longer."""
    return text if len(text) <= columns else text[: columns - 2] + "…"


def _table(analysis, width, most):
    """The rows in a line each, so many at most, and the heading above them; those without numbers have a reason."""
    names, *cells = cells_of(answer_rows(analysis))
    places = _shown([entry.is_baseline for entry in fastest_first(analysis)], most)
    header, *rows = ([widened(render(text)) for text in row] for row in (names, *(cells[place] for place in places)))
    numbered = [row for row in rows if {*row[1:-1]} != {DASH}]
    sizes = [max(len(row[place]) for row in [header, *(numbered if place else rows)]) for place in range(len(names))]
    columns = _that_fit(names[:-1], sizes, width)
    label = min(sizes[0], width - sum(len(GAP) + sizes[place] for place in columns[1:]))
    lines = []
    for row in (header, *rows):
        numbers = [row[place].rjust(sizes[place]) for place in columns[1:]]
        reason = [_cut(row[-1], width - label - len(GAP))]
        lines.append([_cut(row[0], label).ljust(label), *(numbers if row in (header, *numbered) else reason)])
    left = len(cells) - len(places)
    more = [render(say("… {rows}", rows=count(left, "more row")))] if left else []
    return [*(narrowed(GAP.join(line)).rstrip() for line in lines), *more]


def _shown(baselines, most):
    """The places of the rows to show in so many lines: the first ones, and the first baseline; all if they fit."""
    if len(baselines) <= most:
        return range(len(baselines))
    first = baselines.index(True) if True in baselines else 0
    return sorted({*range(most - 2 + (first < most - 1)), first})


def _that_fit(names, sizes, width):
    """The places of the columns of a table that fit into so many characters, without SPARE[0]."""
    columns = [place for place, name in enumerate(names) if name != SPARE[0]]
    for name in SPARE:
        fits = sum(sizes[place] + len(GAP) for place in columns) - len(GAP) <= width
        if not fits and (BESIDE_BEST in names or "Speed-up" not in name):
            columns = [place for place in columns if names[place] != name]
    return columns
