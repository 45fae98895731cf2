"""What a comparison prints at its end, in as many columns as a terminal has: the table, what to use, what is doubtful.

All else, each row's causes and how every number is defined, stands in the report.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from comparison.judge.analysis import Analysis
from comparison.judge.fairness import EFFECTIVE, effective
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import words_of
from comparison.show.language import NOTHING, narrowed, say, widened
from comparison.show.phrases import mebibytes
from comparison.show.reasons import tell
from comparison.show.remarks import faults, warnings
from comparison.show.tables import accuracy, before_rows, cell, lay_out, target_cell
from comparison.show.verdict import answers

MOST, FEWEST = 100, 60  # columns
PARTING = "\v"  # for textwrap a space, between two characters that have none
GAP, PADDING = 2, 2  # of tabulate: between two columns of a table; what a column is wider than its heading, at least


def terminal_columns() -> int:
    """Return in how many columns to print: as many as the terminal has, within limits."""
    return max(FEWEST, min(MOST, shutil.get_terminal_size((MOST, 0)).columns)) if sys.stdout.isatty() else MOST


def terminal_text(analysis: Analysis, proofs: Sequence[Proof] = (), width: int = MOST) -> str:
    """Return what is printed when a comparison ends, no line of it longer than `width` where words can be parted."""
    parts = [
        fill(say(analysis.report.title), width),
        fill(say(_what_is_equal(analysis)), width),
        fitted_table(*answer_rows(analysis, narrow=width < MOST), width),
        _before_table(analysis, width),
        _projection(analysis, width),
        *(fill(say(sentence), width) for sentence in answers(analysis, proofs)),
        _list([*warnings(analysis), *faults(analysis)], width),
    ]
    return "\n\n".join(part for part in parts if part)


def fill(text: str, width: int, indent: str = "") -> str:
    """Return a text in lines of at most `width` columns; words stay whole, Chinese is parted before any character."""
    parted = _with_breaks(re.sub(r"[\t\n\v\f\r]", " ", text))
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


def _list(sentences: Iterable[str], width):
    return "\n".join(fill(f"- {say(sentence)}", width, "  ") for sentence in sentences)


def _what_is_equal(analysis):
    settings = [effective(entry.row.results[0]) for entry in analysis.done]
    equal = [
        f"{words_of(name)} {settings[0][name]}" for name in EFFECTIVE if len({values[name] for values in settings}) == 1
    ]
    return f"Equal in all rows: {', '.join(equal)}." if equal else ""


def answer_rows(analysis: Analysis, narrow: bool = False) -> tuple[list[list[str]], list[str]]:
    """Return the cells of the table of what is judged, and its header; narrow: with intervals on lines of their own."""
    report, target = analysis.report, analysis.report.settings.get("target_accuracy")
    time = "Epoch\n(s)" if analysis.same_images else "Images/s"
    if target is not None:
        time = f"Training to\n{100 * target:g} % (s)"
    batch = ["Largest\nbatch"] if report.fitted else []
    header = ["Method", *batch, time, "Total\n(s)", "Speed-up\n[95 %]", "Memory\n(MiB)", "Accuracy\n(%)", "Result"]
    rows = [
        [
            entry.label,
            *([f"{entry.row.configuration.planned.batch_size:,}"] if batch else []),
            _time_cell(analysis, entry),
            cell(entry.summary.total_seconds, ".1f"),
            cell(entry.standing.speed_up).replace(" [", "\n[" if narrow else " ["),
            cell(entry.summary.memory and mebibytes(entry.summary.memory.peak)),
            accuracy(entry.summary.accuracies),
            entry.result,
        ]
        for entry in analysis.rows
    ]
    return rows, header


def _time_cell(analysis, entry):
    """What was asked for; the images per second where epochs hold other numbers of images."""
    if analysis.report.settings.get("target_accuracy") is not None:
        return target_cell(entry)
    if analysis.same_images:
        return cell(entry.summary.epoch_seconds, ".2f")
    return cell(entry.summary.images_per_second, ",.0f")


def fitted_table(rows: list[list[str]], header: list[str], width: int) -> str:
    """Return a table of at most `width` columns, where its first and its last can be brought to lines."""
    header, *rows = ([say(text) for text in row] for row in (header, *rows))
    wide = ([widened(text) for text in row] for row in (header, *rows))
    columns = [
        max(
            [len(line) + PADDING for line in name.splitlines()]
            + [len(line) for text in column for line in text.splitlines()]
        )
        for name, *column in zip(*wide, strict=True)
    ]
    first, *others, last = columns
    spare = width - sum(others) - GAP * (len(columns) - 1)
    word = max(len(word) for *_, text in (header, *rows) for word in _with_breaks(text).split())
    last = min(last, max(3 * spare // 10, spare - first, word))
    narrow = [[fill(row[0], max(1, min(first, spare - last))), *row[1:-1], fill(row[-1], last)] for row in rows]
    return lay_out(narrow, header, "simple", left=(0, len(header) - 1))


def _before_table(analysis, width):
    if not analysis.pairs[BEFORE]:
        return ""
    header = [
        "Method",
        "Before (s\nper epoch)",
        "Now (s\nper epoch)",
        "Times as\nfast [95 %]",
        "Result",
        "Now differs in",
    ]
    return f"{say('Now and before')}\n\n{fitted_table(before_rows(analysis), header, width)}"


def _projection(analysis, width):
    if not analysis.report.settings["project"]:
        return ""
    rows = [
        [
            str(point.devices),
            f"{point.epoch_seconds:.2f}",
            f"{point.speed_up:.2f}",
            cell(point.measured_seconds, ".2f"),
            cell(point.error, "+.0%"),
        ]
        for point in analysis.projection.points
    ]
    header = ["Devices", "Epoch (s)", "Speed-up", "Epoch,\nmeasured (s)", "Error of the\nprojection"]
    projection = analysis.projection
    table = [lay_out(rows, header, "simple", left=())] if rows else []
    words = fill(say(" ".join(map(tell, projection.stops or projection.assumptions))), width)
    return "\n\n".join([say(f"Projection ({LABEL})"), *table, words])
