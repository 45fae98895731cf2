"""report.html, a single file: recommendation, sortable table, every raw time, phases and timeline by row, details."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from common.files.plots import BETWEEN_RANKS, ON_A_GPU
from common.files.results import PHASES, Span
from common.files.writing import write_text
from common.words import printable
from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.judge.summaries import successful_runs
from comparison.show import advice, plots, sentences, tables, verdict
from comparison.show.figures import shown_by
from comparison.show.remarks import warnings
from comparison.show.sections import LIST, sections
from comparison.show.sentences import milliseconds, seconds_of_thousand
from comparison.words import join, render, say, spoken

TEMPLATE = Path(__file__).with_name("page.html")
DRAWN_BY_PAGE = ("phases.png", "timeline.png")
SAFE = " !$)*,/:;=?@"  # characters that need no quoting in a data URL
FINEST = 0.001  # share of the timeline: spans with smaller gaps are merged


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files; the SVG files with the same names are embedded."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["in_seconds"] = sentences.in_seconds
    filters = {"render": render, "embed": _embed, "scoped": _scoped, "whole": _whole, "shown_by": shown_by}
    environment.filters |= {**filters, "prose": _prose, "milliseconds": milliseconds}
    warned, drawn = warnings(analysis), [figure for figure in figures if figure.name not in DRAWN_BY_PAGE]
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
        phases=_phases(analysis),
        timeline=_timeline(analysis),
        sections=[
            (section.heading, [part for part in section.parts if part != (LIST, warned)])
            for section in sections(analysis, drawn, proofs, "html")
        ],
    )
    write_text(printable(text), path)


def _rows(analysis):
    """(index in the table of answers, row) for every row that was timed."""
    rows = enumerate(tables.fastest_first(analysis))
    return [(place, entry) for place, entry in rows if entry.row.results and not entry.row.simulated]


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
    for place, entry in _rows(analysis):
        if entry.row.configuration.is_script and not scripts:
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


def _phases(analysis):
    """The phases of each row. rows: (index, label, [(milliseconds, ideal) for each of names])."""
    names, found, inside = plots.phases_shown(analysis), [], []
    for place, entry in _rows(analysis):
        known = entry.summary.phases.known
        cells = [(known.get(name), plots.ideal_phase(analysis, entry, name)) for name in names]
        found.append((place, entry.label, cells))
        if entry.rivals_baseline and len(entry.row.results[0].devices) > 1 and "exchange" not in known:
            inside.append(entry.label)
    return {
        "finding": plots.phase_finding(analysis),
        "unit": plots.phase_unit(analysis),
        "names": names,
        "rows": found if names else [],
        "longest": max((time for *_, cells in found for pair in cells for time in pair if time), default=1.0),
        "ideal": any(ideal for *_, cells in found for _, ideal in cells),
        "inside": say("{rows}: exchange is in forward and backward", rows=join(", ", inside)) if inside else "",
    }


def _timeline(analysis):
    """The timelines of the traced rows. rows: (index, label, [(rank, lane, paths)]); key: colors by name."""
    traced = analysis.report.timelines
    rows = [(place, entry, traced[entry.name]) for place, entry in _rows(analysis) if traced.get(entry.name)]
    end = max((span.end for *_, spans in rows for span in spans), default=1.0)
    lanes = [(place, entry.label, list(_lanes(spans, end))) for place, entry, spans in rows]
    colors = {name: color for *_, own in lanes for *_, paths in own for name, color, _ in paths}
    key = {name: colors[name] for name in (*PHASES, *colors) if name in colors}  # phases in their order first
    finding = plots.waiting_finding({entry.label: spans for _, entry, spans in rows}) if rows else ""
    return {"finding": finding, "key": key, "rows": lanes, "end": end}


def _lanes(spans: Sequence[Span], end: float) -> Iterator[tuple[int, str, list[tuple[str, str, str]]]]:
    """Yield (rank, lane, [(name, color, SVG path)]) in a drawing that is 1000 wide and 1 high."""
    for rank, lane in sorted({(span.rank, span.lane) for span in spans}, key=lambda one: (one[0], one[1] != "step")):
        intervals: dict[tuple[str, str], list[list[float]]] = {}
        own = [span for span in spans if (span.rank, span.lane) == (rank, lane)]
        for span in sorted(own, key=lambda span: span.start):
            merged = intervals.setdefault(_name_and_color(span), [[span.start] * 2])
            if span.start - merged[-1][1] <= FINEST * end:
                merged[-1][1] = max(merged[-1][1], span.end)
            else:
                merged.append([span.start, span.end])
        yield rank, lane, [(*look, _path(merged, 1000 / end)) for look, merged in intervals.items()]


def _path(intervals, scale):
    """An SVG path with a box of height 1 for each interval."""
    boxes = [(scale * start, scale * (stop - start)) for start, stop in intervals]
    return "".join(f"M{x:.1f} 0h{width:.2f}v1h-{width:.2f}z" for x, width in boxes)


def _name_and_color(span):
    if span.lane == "step":
        return span.name, PHASES.get(span.name, PHASES["rest"]).color
    return BETWEEN_RANKS if span.lane == "link" else (ON_A_GPU[0], "currentColor")


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
