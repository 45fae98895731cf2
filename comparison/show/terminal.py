"""The screen that a comparison prints at its end: recommendation, next step, table of rows, and main findings.

The report has everything else, and --verbose prints more of it.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.show.advice import in_short, next_step, option_advice, recommendations
from comparison.show.remarks import doubts, faults, resolution, tell_warnings, warnings
from comparison.show.sentences import finding_sentence
from comparison.show.tables import DASH, answer_rows, cells_of, fastest_first
from comparison.show.verdict import answers
from comparison.words import ZERO_WIDTH, count, join, narrowed, render, say, widened

FEWEST, USUAL, MOST = 60, 80, 100  # columns
LINES = 23  # a screen of 24, less the prompt
MOST_OPENING, MOST_ADVICE, MOST_PER_SENTENCE = 5, 9, 3  # lines
MOST_ROWS, FEWEST_ROWS = 10, 4  # lines of the table below its heading
BREAK = "\v"  # textwrap treats it as a space; marks where a line of Chinese may end
GAP = "  "  # between columns
FEWEST_OF_LABEL = 8  # characters


def terminal_columns() -> int:
    """Return the width of the terminal, within limits."""
    return max(FEWEST, min(MOST, shutil.get_terminal_size((USUAL, 0)).columns)) if sys.stdout.isatty() else USUAL


def terminal_text(
    analysis: Analysis,
    proofs: Sequence[Proof] = (),
    width: int = USUAL,
    report: str | Path = "report.md",
    verbose: bool = False,
) -> str:
    """Return what a comparison prints at its end: at most LINES lines of `width` columns, or all sentences if verbose.

    report: the file that the last line refers to.
    """
    title, following = analysis.report.title, [*next_step(analysis), *option_advice(analysis)]
    findings = [*answers(analysis, proofs), *resolution(analysis)]
    if verbose:
        above = [title, *doubts(analysis), *recommendations(analysis), *following]
        limits, warned = map(finding_sentence, analysis.projection.stops), warnings(analysis)
        below = [*findings, *limits, *(text for text in warned if text not in above), *faults(analysis)]
        table = "\n".join(_table(analysis, width, len(analysis.rows)))
        return "\n\n".join([*(fill(text, width) for text in above), table, *(fill(text, width) for text in below)])
    findings = [text for text in findings if not any(render(text) in render(step) for step in following)]
    ending, _ = fitting(following, width, MOST_ADVICE)
    opening, beyond = fitting([title, *doubts(analysis)], width, MOST_OPENING)
    head, left_out = fitting(in_short(analysis), width, MOST_ADVICE - len(ending))
    # less three empty lines, the heading of the table, and the last line
    room = LINES - 5 - len(opening) - len(head) - len(ending)
    rows = _table(analysis, width, max(FEWEST_ROWS, min(MOST_ROWS, room)))
    room += 1 - len(rows)

    def last(hidden: int) -> str:
        more_findings = [count(hidden, "more finding")] if hidden else []
        rest = join(", ", [*more_findings, *tell_warnings(analysis)])
        return fill(say("{rest}: {file}", rest=rest or say("Causes, figures and definitions"), file=report), width)

    notes, hidden = fitting(findings, width, room)
    if wrapped := last(hidden + beyond + left_out).count("\n"):
        notes, hidden = fitting(findings, width, room - wrapped)
    parts = (opening, [*head, *ending], rows, [*notes, last(hidden + beyond + left_out)])
    return "\n\n".join("\n".join(part) for part in parts if part)


def fitting(sentences, width, most):
    """Return (lines of the sentences that fit into `most` lines, number of sentences that do not fit)."""
    kept, hidden = [], 0
    for words in sentences:
        lines = fill(words, width).splitlines()
        if len(lines) > MOST_PER_SENTENCE:
            last = " ".join(lines[MOST_PER_SENTENCE - 1 :])
            lines[MOST_PER_SENTENCE - 1 :] = [narrowed(cut(widened(last), width))]
        if len(kept) + len(lines) <= most:
            kept += lines
        else:
            hidden += 1
    return kept, hidden


def fill(text: str, width: int) -> str:
    """Wrap a text to `width` columns. Words stay whole; Chinese may be broken after any character."""
    text = re.sub(r"[\t\n\v\f\r]", " ", render(text))
    text = re.sub(f"{ZERO_WIDTH}(?![，。；：）”])", BREAK, widened(text))
    width -= BREAK in text  # the last character of a line may be wide, and its BREAK is not counted
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return narrowed("\n".join(lines)).replace(BREAK, "")


def cut(text, columns, end=0):
    """Shorten a widened text to `columns`. end: how many of its last characters stay, as they tell rows apart."""
    if len(text) <= columns:
        return text
    last = text[len(text) - end :].removeprefix(ZERO_WIDTH)
    place = columns - 1 - len(last)
    first = text[: place - (text[place] == ZERO_WIDTH)]  # no half of a double-width character
    if not end:
        first = re.sub(r"[-+.,\w]+$", "", first, flags=re.ASCII)  # no part of a number
    return f"{first}…{last}"


def _table(analysis, width, most):
    """The lines of the table: a heading and at most `most` more. A row without numbers shows the reason instead."""
    names, *cells = cells_of(answer_rows(analysis))
    shown = _rows_to_show([entry.is_baseline for entry in fastest_first(analysis)], most)
    header, *rows = ([widened(render(text)) for text in row] for row in (names, *(cells[place] for place in shown)))
    with_numbers = [header, *(row for row in rows if {*row[1:-1]} != {DASH})]
    sizes = [max(len(row[column]) for row in with_numbers) for column in range(len(names))]
    sizes[0] = max(len(row[0]) for row in (header, *rows))
    columns = _columns_to_show(names[:-1], sizes, width)
    label = min(sizes[0], width - sum(len(GAP) + sizes[column] for column in columns[1:]))
    lines = []
    for row in (header, *rows):
        parts = [cut(row[0], label, label // 2).ljust(label)]
        if row in with_numbers:
            parts += [row[column].rjust(sizes[column]) for column in columns[1:]]
        else:
            parts.append(cut(row[-1], width - label - len(GAP)))
        lines.append(narrowed(GAP.join(parts)).rstrip())
    if left := len(cells) - len(shown):
        lines.append(render(say("… {rows}", rows=count(left, "more row"))))
    return lines


def _rows_to_show(baselines, most):
    """The indices of the rows to show: all if they fit, otherwise the first ones and the first baseline."""
    if len(baselines) <= most:
        return range(len(baselines))
    first = baselines.index(True) if True in baselines else 0
    head = range(most - 1)
    return head if first in head else [*head[:-1], first]


def _columns_to_show(names, sizes, width):
    """The indices of the columns to show: no accuracies, which a sentence states, and of the last ones those that fit.

    The memory needs room beside the whole labels, the others beside FEWEST_OF_LABEL of their characters.
    """
    columns = [column for column, name in enumerate(names) if name != "Accuracy (%)"]

    def room(label):
        return width - label - sum(sizes[column] + len(GAP) for column in columns[1:])

    if room(sizes[0]) < 0:
        columns = [column for column in columns if names[column] != "Memory (MiB)"]
    while room(min(sizes[0], FEWEST_OF_LABEL)) < 0:
        columns.pop()
    return columns
