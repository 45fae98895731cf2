"""report.html, a single file: recommendation, sortable table, every raw time, figures, details."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from common.files.writing import write_text
from common.words import printable
from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.judge.summaries import successful_runs
from comparison.show import advice, sentences, tables, verdict
from comparison.show.figures import shown_by
from comparison.show.remarks import warnings
from comparison.show.sections import LIST, sections
from comparison.show.sentences import seconds_of_thousand
from comparison.words import render, say, spoken

TEMPLATE = Path(__file__).with_name("page.html")
OPEN = ("phases.png", "timeline.png")  # figures that are seen without a click
SAFE = " !$)*,/:;=?@"  # characters that need no quoting in a data URL


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files; the SVG files with the same names are embedded."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"render": render, "in_seconds": sentences.in_seconds, "prose": _prose, "whole": _whole}
    environment.filters |= {"embed": _embed, "scoped": _scoped, "shown_by": shown_by}
    warned, others = warnings(analysis), [figure for figure in figures if figure.name not in OPEN]
    limits = map(sentences.finding_sentence, analysis.projection.stops)
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        language=spoken(),
        report=analysis.report,
        recommended=advice.recommended(analysis),
        answers=[*advice.next_step(analysis), *verdict.answers(analysis, proofs), *limits],
        table=tables.cells_of(tables.answer_rows(analysis)),
        times=_times(analysis),
        warned_of=say("Warnings"),
        warnings=warned,
        opened=[figure for figure in figures if figure.name in OPEN],
        sections=[
            (heading, [part for part in parts if part != (LIST, warned)])
            for heading, parts in sections(analysis, others, proofs, "html").items()
        ],
    )
    write_text(printable(text), path)


def _times(analysis):
    """The seconds of every timed epoch, or of 1,000 samples of a script.

    rows: (index, label, mean, template of a tooltip, sorted (seconds, block, epoch)).
    """
    heading = say("Seconds of every timed epoch; line: geometric mean, adjusted to all blocks")
    if analysis.report.only_warm_up:
        heading = say("Seconds of the only epoch, with the warm-up; line: geometric mean, adjusted to all blocks")
    template = "{row}, block {n}, epoch {m}: {x} s"
    if scripts := analysis.report.only_scripts:  # slices differ in length
        heading = say("Seconds per 1,000 samples of every timed slice; line: geometric mean, adjusted to all blocks")
        template = "{row}, block {n}, slice {m}: {x} s per 1,000 samples"
    rows = []
    for place, entry in enumerate(tables.fastest_first(analysis)):
        if not entry.row.results or entry.row.simulated or (entry.row.configuration.is_script and not scripts):
            continue
        dots = [
            (epoch.train_seconds * (1000 / epoch.samples if scripts else 1), run.block, epoch.epoch)
            for run, result in successful_runs(entry.row)
            for epoch in result.timed_epochs
        ]
        mean = seconds_of_thousand(entry) if scripts else entry.summary.epoch_seconds
        words = say(template, row=entry.label, n="{n}", m="{m}", x="{x}")  # filled in by the page
        rows.append((place, entry.label, mean, words, sorted(dots)))
    most = max((max(mean, dots[-1][0]) for _, _, mean, _, dots in rows), default=1.0)
    return {"heading": heading, "rows": rows, "most": most}


def _embed(file):
    """The SVG file of a figure as a data URL, quoted rather than base64, which would be a third longer."""
    svg = " ".join(file.with_suffix(".svg").read_text(encoding="utf-8").split())
    return Markup(f"data:image/svg+xml,{quote(svg, safe=SAFE)}")


def _scoped(table):
    """Add scopes to the heading cells of a table made by tabulate."""
    headed = re.sub(r"<th\b(?!ead)", '<th scope="col"', table)
    return re.sub(r"<tr><td(.*?)</td>", r'<tr><th scope="row"\1</th>', headed)


def _prose(text):
    """A text without line breaks inside flags or between a number and its unit."""
    kept = re.sub(r"(?<=\d) (?=(?:ms|s|MiB|±)(?!\w))|(?<=±) ", "\N{NO-BREAK SPACE}", render(text))
    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="flag">\g<0></span>', str(escape(kept))))


def _whole(cell):
    """A text without line breaks inside intervals and deviations."""
    return re.sub(r"\[\S+, \S+\]| ± ", lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), cell)
