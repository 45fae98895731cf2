"""A comparison as one HTML file that needs nothing else: what to use, the table, the figures, all else at a click."""

import base64
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from common.files.writing import write_text
from common.words import printable
from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.methods import method_of
from comparison.show.sections import sections
from comparison.show.tables import answer_rows, table_of
from comparison.show.verdict import answers
from comparison.words import render, say, spoken

TEMPLATE = Path(__file__).with_name("page.html")
WIDEST = 80  # percent of the chart's width, beside which there is room for a number


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files, which are put into it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"render": render, "base64": lambda file: base64.b64encode(file.read_bytes()).decode()}
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        language=spoken(),
        report=analysis.report,
        answers=answers(analysis, proofs),
        table=table_of(answer_rows(analysis), "html"),
        chart=_chart(analysis.done),
        sections=sections(analysis, figures, proofs, "html"),
    )
    write_text(printable(text), path)


def _chart(entries):
    """A row for each entry: its label, color, mean with its place, and (place, words) of every timed epoch."""
    slowest = max((entry.summary.slowest_epoch for entry in entries), default=1.0)
    rows = []
    for entry in entries:
        dots = []
        for outcome in entry.row.outcomes:
            for epoch in outcome.result.timed_epochs if outcome.status == "ok" else ():
                seconds = epoch.train_seconds
                values = {"row": entry.label, "n": outcome.block, "m": epoch.epoch, "x": seconds}
                dots.append((WIDEST * seconds / slowest, say("{row}, block {n}, epoch {m}: {x:.3f} s", **values)))
        color, numbers = method_of(entry.row.configuration.method).look.color, entry.summary
        rows.append((entry.label, color, WIDEST * numbers.slowest_epoch / slowest, numbers.epoch_seconds, dots))
    return rows
