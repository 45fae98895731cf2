"""A comparison as one HTML file that needs nothing else: what to use, charts that tell their numbers, all else.

Charts are drawn by the page itself where hovering shows a number; the other figures are in it as they were drawn.
"""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from common.files.writing import write_text
from common.words import printable
from comparison.judge.analysis import Analysis
from comparison.judge.remedies import Proof
from comparison.judge.row_analysis import RowAnalysis
from comparison.methods import method_of
from comparison.show.language import say, spoken
from comparison.show.sections import CODE, FIGURES, LIST, TABLE, TEXT, sections
from comparison.show.tables import lay_out
from comparison.show.terminal import answer_rows
from comparison.show.verdict import answers

OPEN = ("Result", "Verdict", "Figures")  # sections that are; the others open at a click, and in print
STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.3rem; } h2, summary { font-size: 1.1rem; font-weight: 600; margin: 1.5rem 0 .5rem; }
summary { cursor: pointer; } .answer { font-size: 1.15rem; border-left: 4px solid #0072b2; padding-left: 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); } th { cursor: pointer; text-align: left; }
td { white-space: nowrap; } td:last-child { white-space: normal; min-width: 8rem; }
tbody tr:hover, pre { background: var(--soft); } pre { overflow-x: auto; font-size: .8rem; padding: .5rem; }
figure { margin: 1rem 0; overflow-x: auto; } figure img { width: 100%; background: white; }
.chart { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; column-gap: .5rem; font-size: 12px; }
.chart svg { width: 100%; } .chart span { text-align: right; padding-top: .25rem; }
@media (max-width: 40rem) { .chart { grid-template-columns: 1fr; } .chart span { text-align: left; } }
.answers td, .answers td:last-child { white-space: normal; min-width: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .answers th, .answers td { padding: .25rem .2rem; min-width: 0; font-size: .75rem; } }
svg text { fill: currentColor; font-size: 12px; } svg line, rect, circle { stroke: currentColor; }
@media print { body { max-width: none; font-size: 11px; } th, summary { cursor: auto; } }
"""
SORT = """
for (const head of document.querySelectorAll("th")) head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex, down = head.dataset.down !== "yes";
  const value = row => { const text = row.cells[column].innerText.replaceAll(",", ""), number = parseFloat(text);
                         return isNaN(number) ? text : number; };
  const order = (one, other) => { const a = value(one), b = value(other);
    return typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1; };
  const rows = [...body.rows].sort((one, other) => down ? order(one, other) : order(other, one));
  head.dataset.down = down ? "yes" : "no";
  body.append(...rows);
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => part.open = true));
"""
WIDEST, LINE = 80, 26  # percent of a chart's width, beside which there is room for a number; pixels of a row's height


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files, which are put into it."""
    title = escape(say(analysis.report.title))
    rows, header = answer_rows(analysis)
    table = lay_out(rows, header, "html", left=(0, len(header) - 1))
    parts = [
        f"<h1>{title}</h1>",
        *(f'<p class="answer">{escape(say(sentence))}</p>' for sentence in answers(analysis, proofs)),
        f'<div class="answers">{table}</div>',
        _speed_ups(analysis),
        _epochs(analysis),
    ]
    for section in sections(analysis, figures, proofs, "html"):
        inside = "\n".join(WRITTEN[kind](content) for kind, content in section.parts)
        if section.heading in map(say, OPEN):
            parts.append(f"<h2>{escape(section.heading)}</h2>\n{inside}")
        else:
            parts.append(f"<details><summary>{escape(section.heading)}</summary>\n{inside}\n</details>")
    parts.append(f"<p>{say('Made by')} <code>{escape(analysis.report.command)}</code>.</p>")
    body = "\n".join(part for part in parts if part)
    write_text(
        printable(f"""<!doctype html>
<html lang="{spoken()}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<script>{SORT}</script>
</body>
</html>
"""),
        path,
    )


def _list(sentences):
    return "<ul>\n" + "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "\n</ul>"


def _figures(paths):
    return "\n".join(
        f'<figure><img alt="{escape(path.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"></figure>'
        for path in paths
    )


WRITTEN = {
    TEXT: lambda text: f"<p>{escape(text)}</p>",
    TABLE: lambda table: f'<div class="wide">{table}</div>',
    LIST: _list,
    CODE: lambda text: f"<pre>{escape(text)}</pre>",
    FIGURES: _figures,
}


def _speed_ups(analysis):
    """Bars of the speed-ups with their intervals, and a line at 1."""
    shown = [entry for entry in analysis.done if entry.standing.speed_up]
    if len(shown) < 2:
        return ""
    scale = WIDEST / max(1.0, *(entry.standing.speed_up.high or entry.standing.speed_up.value for entry in shown))
    rows = []
    for entry in shown:
        speed_up = entry.standing.speed_up
        words = say(f"“{entry.label}”: {speed_up} times as fast as “{entry.standing.baseline.label}”, {entry.result}")
        marks = [
            f"<title>{escape(words)}</title>",
            f'<rect x="0" y="4" height="18" width="{scale * speed_up.value:.2f}%" fill="{_color(entry)}" />',
            f'<line x1="{scale:.2f}%" x2="{scale:.2f}%" y1="0" y2="{LINE}" stroke-dasharray="4 3" />',
        ]
        if speed_up.low is not None:
            low, high = (scale * end for end in (speed_up.low, speed_up.high))
            marks.append(f'<line x1="{low:.2f}%" x2="{high:.2f}%" y1="13" y2="13" stroke-width="2" />')
        marks.append(_number(scale * (speed_up.high or speed_up.value), f"{speed_up.value:.2f}"))
        rows.append(_row(entry, marks))
    return _chart("Speed-up, with what all intervals together hold in 95 % of comparisons", rows)


def _epochs(analysis):
    """A dot for every timed epoch of every run, at its seconds."""
    shown = [entry for entry in analysis.done if entry.row.results]
    seconds = [epoch.train_seconds for entry in shown for result in entry.row.results for epoch in result.timed_epochs]
    if not seconds:
        return ""
    scale, rows = WIDEST / max(seconds), []
    for entry in shown:
        marks = []
        for outcome in entry.row.outcomes:
            for epoch in outcome.result.timed_epochs if outcome.status == "ok" else ():
                words = say(f"{entry.label}, block {outcome.block}, epoch {epoch.epoch}: {epoch.train_seconds:.3f} s")
                marks.append(
                    f'<circle cx="{scale * epoch.train_seconds:.2f}%" cy="13" r="5" fill="{_color(entry)}" '
                    f'fill-opacity=".6"><title>{escape(words)}</title></circle>'
                )
        marks.append(_number(scale * entry.summary.slowest_epoch, f"{entry.summary.epoch_seconds:.2f} s"))
        rows.append(_row(entry, marks))
    return _chart("Seconds of every timed epoch (warm-up left out), and their mean", rows)


def _chart(caption: str, rows: list[str]) -> str:
    return f'<figure><figcaption>{say(caption)}</figcaption><div class="chart">{"".join(rows)}</div></figure>'


def _row(entry: RowAnalysis, marks: list[str]) -> str:
    """A row's label, and its marks, whose places are percent of the width that a window leaves them."""
    return f'<span>{escape(say(entry.label))}</span><svg height="{LINE}" role="img">{"".join(marks)}</svg>'


def _number(place: float, text: str) -> str:
    return f'<text x="{place:.2f}%" dx="9" y="17">{text}</text>'


def _color(entry):
    return method_of(entry.row.configuration.method).look.color
