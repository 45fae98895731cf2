"""report.html, one file: the answer, a table that sorts, every raw time, phases and timeline by row, and details."""

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
from comparison.show import advice, step_plots, tables, verdict
from comparison.show.figures import shown_by
from comparison.show.remarks import warnings
from comparison.show.sections import LIST, sections
from comparison.show.sentences import seconds_of_thousand
from comparison.words import join, render, say, spoken

TEMPLATE = Path(__file__).with_name("page.html")
LINKED = ("phases.png", "timeline.png")  # the page draws these itself, row by row
SAFE = " !$)*,/:;=?@"  # what an address in an attribute may hold besides letters and digits
FINEST = 0.001  # of a timeline's width: what is no further apart is drawn as one


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files; the SVG files beside them are put into it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"render": render, "embed": _embed, "scoped": _scoped, "whole": _whole, "shown_by": shown_by}
    environment.filters["prose"] = _prose
    warned, drawn = warnings(analysis), [figure for figure in figures if figure.name not in LINKED]
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        language=spoken(),
        report=analysis.report,
        recommended=advice.recommended(analysis),
        answers=[*advice.next_step(analysis), *verdict.answers(analysis, proofs), *verdict.details(analysis)],
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
    """(place in the table of answers, row) of every row whose time says something, in that order."""
    rows = enumerate(tables.fastest_first(analysis))
    return [(place, entry) for place, entry in rows if entry.row.results and not entry.row.simulated]


def _times(analysis):
    """The seconds of every timed epoch, a script's for 1,000 samples: a heading; the most; by row its place, label,
    mean, what to say of a time, and (seconds, block, epoch) of each, by seconds."""
    heading = say("Seconds of every timed epoch, without warm-up; line: geometric mean")
    template = "{row}, block {n}, epoch {m}: {x} s"
    if scripts := analysis.report.only_scripts:  # whose slices are not equally long
        heading = say("Seconds per 1,000 samples of every timed slice; line: geometric mean")
        template = "{row}, block {n}, slice {m}: {x} s per 1,000 samples"
    rows = []
    for place, entry in _rows(analysis):
        dots = []
        for outcome in entry.row.outcomes:
            for epoch in outcome.result.timed_epochs if outcome.status == "ok" else ():
                seconds = epoch.train_seconds * (1000 / epoch.samples if scripts else 1)
                dots.append((seconds, outcome.block, epoch.epoch))
        mean = seconds_of_thousand(entry) if scripts else entry.summary.epoch_seconds
        words = say(template, row=entry.label, n="{n}", m="{m}", x="{x}")  # which the page fills in
        rows += [(place, entry.label, mean, words, sorted(dots))] if dots else []
    return {"heading": heading, "rows": rows, "most": max((dots[-1][0] for *_, dots in rows), default=1.0)}


def _phases(analysis):
    """What the rows' phases show, in what unit, the names; by row: its place, label, (milliseconds, ideal) of each."""
    names, rows = step_plots.phases_shown(analysis), _rows(analysis)
    inside = [
        entry.label
        for _, entry in rows
        if entry.rivals_baseline
        and len(entry.row.results[0].devices) > 1
        and "exchange" not in entry.summary.phases.known
    ]
    found = [
        (
            place,
            entry.label,
            [(entry.summary.phases.known.get(name), step_plots.ideal_phase(analysis, entry, name)) for name in names],
        )
        for place, entry in rows
    ]
    return {
        "finding": step_plots.phase_finding(analysis),
        "unit": step_plots.phase_unit(analysis),
        "names": names,
        "rows": found if names else [],
        "longest": max((time for *_, cells in found for pair in cells for time in pair if time), default=1.0),
        "ideal": any(ideal for *_, cells in found for _, ideal in cells),
        "inside": say("{rows}: exchange is in forward and backward", rows=join(", ", inside)) if inside else "",
    }


def _timeline(analysis):
    """What the traced rows show, the colors of what is in it; by row: its place, label, and (rank, lane, paths)."""
    traced = analysis.report.timelines
    rows = [(place, entry, traced[entry.name]) for place, entry in _rows(analysis) if traced.get(entry.name)]
    end = max((span.end for *_, spans in rows for span in spans), default=1.0)
    lanes = [(place, entry.label, list(_lanes(spans, end))) for place, entry, spans in rows]
    found = {name: color for *_, own in lanes for *_, paths in own for name, color, _ in paths}
    used = {name: found[name] for name in (*PHASES, *found) if name in found}
    finding = step_plots.waiting_finding({entry.label: spans for _, entry, spans in rows}) if rows else ""
    return {"finding": finding, "key": used, "rows": lanes, "end": end}


def _lanes(spans: Sequence[Span], end: float) -> Iterator[tuple[int, str, list[tuple[str, str, str]]]]:
    """Yield (rank, lane, (name, color, path) of what is in it), in a drawing that is 1000 wide and 1 high."""
    for rank, lane in sorted({(span.rank, span.lane) for span in spans}, key=lambda one: (one[0], one[1] != "step")):
        parts: dict[tuple[str, str], list[list[float]]] = {}
        for span in sorted((one for one in spans if (one.rank, one.lane) == (rank, lane)), key=lambda one: one.start):
            runs = parts.setdefault(_look(span), [[span.start, span.end]])
            if span.start - runs[-1][1] <= FINEST * end:
                runs[-1][1] = max(runs[-1][1], span.end)
            else:
                runs.append([span.start, span.end])
        blocks = {
            look: [(1000 * begin / end, 1000 * (stop - begin) / end) for begin, stop in runs]
            for look, runs in parts.items()
        }
        paths = {look: "".join(f"M{x:.1f} 0h{w:.2f}v1h-{w:.2f}z" for x, w in own) for look, own in blocks.items()}
        yield rank, lane, [(*look, path) for look, path in paths.items()]


def _look(span):
    """The name and the color of a span."""
    if span.lane == "step":
        return span.name, PHASES[span.name].color if span.name in PHASES else PHASES["rest"].color
    return BETWEEN_RANKS if span.lane == "link" else (ON_A_GPU[0], "currentColor")


def _embed(file):
    """An SVG file as an address, in three quarters of the characters that base64 takes."""
    svg = " ".join(file.with_suffix(".svg").read_text(encoding="utf-8").split())
    return Markup(f"data:image/svg+xml,{quote(svg, safe=SAFE)}")


def _scoped(table):
    """A table as tabulate made it, that says which of its cells are headings of what."""
    headed = re.sub(r"<th\b(?!ead)", '<th scope="col"', table)
    return re.sub(r"<tr><td(.*?)</td>", r'<tr><th scope="row"\1</th>', headed)


def _prose(text):
    """A text whose flags are not broken, nor a number from its unit."""
    kept = re.sub(r"(?<=\d) (?=(?:ms|s|MiB|±)(?!\w))|(?<=±) ", "\N{NO-BREAK SPACE}", render(text))
    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="flag">\g<0></span>', str(escape(kept))))


def _whole(cell):
    """A text whose intervals and deviations are not broken into two lines."""
    return re.sub(r"\[\S+, \S+\]| ± ", lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), cell)
