"""A comparison as one HTML file that needs nothing else: what to use, charts that tell their numbers, all else.

Charts are drawn by the page itself where hovering shows a number; the other figures are in it as they were drawn.
"""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from common.words import printable
from common.writing import write_text
from comparison.analysis import Analysis
from comparison.language import say, spoken
from comparison.methods import method_of
from comparison.remedies import Proof
from comparison.row_analysis import RowAnalysis
from comparison.sections import CODE, FIGURES, LIST, TABLE, TEXT, sections
from comparison.verdict import answers

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
svg { width: 100%; min-width: 40rem; height: auto; }
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
WIDTH, LABEL, LINE = 900, 250, 26  # of a chart, of its labels, and of a row, in its own units


def write_html(analysis: Analysis, path: Path, figures: Sequence[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.html. figures: PNG files, which are put into it."""
    title = escape(say(analysis.report.title))
    parts = [f"<h1>{title}</h1>",
             *(f'<p class="answer">{escape(say(sentence))}</p>' for sentence in answers(analysis, proofs)),
             _speed_ups(analysis), _epochs(analysis)]
    for section in sections(analysis, figures, proofs, "html"):
        inside = "\n".join(WRITTEN[kind](content) for kind, content in section.parts)
        if section.heading in map(say, OPEN):
            parts.append(f"<h2>{escape(section.heading)}</h2>\n{inside}")
        else:
            parts.append(f"<details><summary>{escape(section.heading)}</summary>\n{inside}\n</details>")
    parts.append(f"<p>{say('Made by')} <code>{escape(analysis.report.command)}</code>.</p>")
    body = "\n".join(part for part in parts if part)
    write_text(printable(f"""<!doctype html>
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
"""), path)


def _list(sentences):
    return "<ul>\n" + "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "\n</ul>"


def _figures(paths):
    return "\n".join(
        f'<figure><img alt="{escape(path.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"></figure>' for path in paths)


WRITTEN = {TEXT: lambda text: f"<p>{escape(text)}</p>", TABLE: lambda table: f'<div class="wide">{table}</div>',
           LIST: _list, CODE: lambda text: f"<pre>{escape(text)}</pre>", FIGURES: _figures}


def _speed_ups(analysis):
    """Bars of the speed-ups with their intervals, and a line at 1."""
    shown = [entry for entry in analysis.done if entry.standing.speed_up]
    if len(shown) < 2:
        return ""
    most = max(entry.standing.speed_up.high or entry.standing.speed_up.value for entry in shown)
    scale = (WIDTH - LABEL - 60) / max(1.0, most)
    marks = [f'<line x1="{LABEL + scale:.1f}" x2="{LABEL + scale:.1f}" y1="0" y2="{LINE * len(shown)}" '
             'stroke-dasharray="4 3" />']
    for number, entry in enumerate(shown):
        speed_up, y = entry.standing.speed_up, LINE * number
        words = say(f"“{entry.label}”: {speed_up} times as fast as “{entry.standing.baseline.label}”, {entry.result}")
        whisker = ""
        if speed_up.low is not None:
            low, high = (LABEL + scale * end for end in (speed_up.low, speed_up.high))
            whisker = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 13}" y2="{y + 13}" stroke-width="2" />'
        marks.append(f'<g><title>{escape(words)}</title>{_label(entry, y)}<rect x="{LABEL}" y="{y + 4}" height="18" '
                     f'width="{scale * speed_up.value:.1f}" fill="{_color(entry)}" />{whisker}<text x='
                     f'"{LABEL + scale * (speed_up.high or speed_up.value) + 6:.1f}" y="{y + 17}">{speed_up.value:.2f}'
                     "</text></g>")
    return _chart("Speed-up, with what all intervals together hold in 95 % of comparisons", marks, len(shown))


def _epochs(analysis):
    """A dot for every timed epoch of every run, at its seconds."""
    shown = [entry for entry in analysis.done if entry.row.results]
    seconds = [epoch.train_seconds for entry in shown for result in entry.row.results for epoch in result.timed_epochs]
    if not seconds:
        return ""
    scale = (WIDTH - LABEL - 60) / max(seconds)
    marks = []
    for number, entry in enumerate(shown):
        y = LINE * number
        marks.append(_label(entry, y))
        for outcome in entry.row.outcomes:
            for epoch in outcome.result.timed_epochs if outcome.status == "ok" else ():
                words = say(f"{entry.label}, block {outcome.block}, epoch {epoch.epoch}: {epoch.train_seconds:.3f} s")
                marks.append(f'<circle cx="{LABEL + scale * epoch.train_seconds:.1f}" cy="{y + 13}" r="5" fill='
                             f'"{_color(entry)}" fill-opacity=".6"><title>{escape(words)}</title></circle>')
        marks.append(f'<text x="{LABEL + scale * entry.summary.slowest_epoch + 10:.1f}" y="{y + 17}">'
                     f"{entry.summary.epoch_seconds:.2f} s</text>")
    return _chart("Seconds of every timed epoch (warm-up left out), and their mean", marks, len(shown))


def _chart(caption: str, marks: list[str], rows: int) -> str:
    return (f'<figure><figcaption>{say(caption)}</figcaption><svg viewBox="0 0 {WIDTH} {LINE * rows}" role="img">'
            + "".join(marks) + "</svg></figure>")


def _label(entry: RowAnalysis, y: float) -> str:
    return f'<text x="{LABEL - 8}" y="{y + 17}" text-anchor="end">{escape(say(entry.label))}</text>'


def _color(entry):
    return method_of(entry.row.configuration.method).look.color
