"""The figures with a line or panel for each row: speed-up, memory, phases of a step, and timelines."""

import math
import textwrap
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from common.files.plots import draw_timeline, new_figure, new_panels
from common.files.results import PHASES
from comparison.judge.analysis import Analysis
from comparison.judge.ranks import kernel_milliseconds
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER
from comparison.methods import METHODS, Look, method_of
from comparison.show.sentences import mebibytes, milliseconds
from comparison.show.terminal import fill
from comparison.words import count, join, render, say

BELOW = "outside lower center"  # a location for legends
WIDE = 8  # largest ÷ smallest ratio, above which the axis is logarithmic
ROW_COLUMNS, LEGEND_COLUMNS = 43, 39  # characters in a line of a label
NUMBER_SHARE = 0.0225  # of the width of all panels, for each digit of a number beside their bars
MUCH_MEMORY = 0.20  # difference from the baseline's memory that is worth a sentence
SMALL = 0.01  # share of the longest step: a phase that takes less in every row has no panel


def style_of(analysis: Analysis, entry: RowAnalysis) -> dict[str, Any]:
    """Return matplotlib's line properties for a row; in a sweep, later values of the same method are paler."""
    row = entry.row.configuration
    same = [other.row for other in analysis.rows if other.row.configuration.method == row.method]
    alpha = 1.0 if row.is_script else 1 - 0.65 * same.index(entry.row) / max(1, len(same) - 1)
    return {**vars(look_of(analysis, entry)), "alpha": alpha}


def look_of(analysis: Analysis, entry: RowAnalysis) -> Look:
    """Return the look of a row's method; each of the user's own scripts has a different one."""
    row = entry.row.configuration
    if not row.is_script:
        return method_of(row.method).look
    looks = [method.look for method in reversed(METHODS.values()) if method.by_default]
    scripts = [other.name for other in analysis.report.plan if other.is_script]
    return looks[scripts.index(row.name) % len(looks)]


def finish(figure, analysis: Analysis, finding: str, more: str = "", note: str = "", **legend):
    """Add the title, the note below the figure, and the legend of the first axes, if `legend` has any properties."""
    title = join("\n", [finding, join("", [analysis.report.title, more])])
    figure.suptitle(render(title), x=0.012, ha="left")
    if note:
        figure.supxlabel(render(note))
    if legend:
        artists, labels = figure.axes[0].get_legend_handles_labels()
        labels = [fitted(label, LEGEND_COLUMNS) for label in labels]
        figure.set_figheight(figure.get_figheight() + 0.1 * sum(label.count("\n") for label in labels))
        figure.legend(artists, labels, loc=BELOW, **legend)
    return figure


def fitted(text: str, columns: int) -> str:
    """Render a text and wrap it; a word that is too long for a line, as a path, is broken."""
    return "\n".join(part for line in fill(text, columns).splitlines() for part in textwrap.wrap(line, columns))


def row_panels(entries: Sequence[RowAnalysis], panels: int = 1):
    """Return (figure, axes), each panel with one horizontal line per row, the first on top, labelled on the left."""
    labels = [fitted(entry.label, ROW_COLUMNS) for entry in entries]
    lines = max(label.count("\n") + 1 for label in labels)
    figure, axes, columns = new_panels(panels, 1.4, 0.6 + max(0.36, 0.04 + 0.19 * lines) * len(entries))
    for number, axis in enumerate(axes):
        shown = () if number % columns else labels
        axis.set_yticks(range(len(shown)), shown)
        axis.set_ylim(len(entries) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
    return figure, axes


def _write_beside(axis, end, place, text):
    """Write `text` to the right of a line or bar that ends at `end`."""
    background = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides grid lines
    axis.annotate(text, (end, place), (8, 0), textcoords="offset points", va="center", bbox=background)


def draw_speed_ups(analysis: Analysis):
    """Draw each row's speed-up with its interval, the fastest first, and a dashed line at the baseline."""
    compared = [entry for entry in analysis.done if entry.standing.speed_up]
    compared.sort(key=lambda entry: -entry.standing.speed_up.value)
    if all(entry.is_baseline for entry in compared):
        return None
    figure, (axis,) = row_panels(compared)
    for place, entry in enumerate(compared):
        ratio = entry.standing.speed_up
        words = [str(ratio)]
        if not entry.is_baseline and ratio.words not in (FASTER, SLOWER):
            words.append(ratio.words)
        if entry.standing.unequal:
            words.append(say("UNEQUAL settings"))
        look = {"color": look_of(analysis, entry).color, "elinewidth": 3, "capsize": 0, "markersize": 9}
        whiskers = [[ratio.value - ratio.low], [ratio.high - ratio.value]] if ratio.interval else None
        axis.errorbar(ratio.value, place, xerr=whiskers, fmt="o", **look)
        _write_beside(axis, max(ratio.interval or (ratio.value,)), place, render(join(", ", words)))
    axis.axvline(1, color="#777777", linestyle="--", linewidth=1.5, zorder=0)
    above = {"xycoords": axis.get_xaxis_transform(), "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
    axis.annotate(render(say("baseline")), (1, 1), **above)
    ends = [entry.standing.speed_up.interval or (entry.standing.speed_up.value,) for entry in compared]
    if max(map(max, ends)) > WIDE * min(map(min, ends)):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    left_out = count(len(analysis.done) - len(compared), "uncompared row")
    note = say(
        "speed-up over the baseline, by {what} (right of the dashed line: faster)\nlines: simultaneous "
        "95% confidence intervals; across the dashed line: not significant{more}",
        what=analysis.report.asked,
        more=say("\n{rows} left out", rows=left_out) if left_out.values["n"] else "",
    )
    return finish(figure, analysis, speed_up_finding(compared), note=note)


def speed_up_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return the title of a figure of speed-ups."""
    shown = [entry for entry in entries if entry.standing.speed_up.words == FASTER]
    faster = [entry for entry in shown if entry.rivals_baseline]
    if shown and not faster:
        return say("No row that trains the same is significantly faster than its baseline")
    if not faster:
        return say("No row is significantly faster than its baseline")
    best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    base, x = best.standing.baseline.label, best.standing.speed_up.value
    return say("“{row}” is {x:.2f} times as fast as “{base}”", row=best.label, x=x, base=base)


def draw_memory(analysis: Analysis):
    """Draw a bar for the peak memory of a device in each row."""
    entries = [entry for entry in analysis.done if entry.summary.memory]
    if not entries:
        return None
    figure, (axis,) = row_panels(entries)
    for place, entry in enumerate(entries):
        peak = entry.summary.memory.peak
        axis.barh(place, peak / 2**20, 0.62, color=look_of(analysis, entry).color)
        _write_beside(axis, peak / 2**20, place, mebibytes(peak))
    return finish(figure, analysis, memory_finding(entries), note=say("peak memory of a device (MiB)"))


def memory_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return the title of the figure of memory."""
    compared = [entry for entry in entries if entry.memory_ratio]
    if not compared:
        return say("Peak memory of a device")
    much = [entry for entry in compared if abs((entry.memory_ratio or 1.0) - 1) >= MUCH_MEMORY]
    if not much and any(not (entry.memory_ratio or entry.is_baseline) for entry in entries):
        return say("No compared row needs {n:.0%} more or less memory than its baseline", n=MUCH_MEMORY)
    if not much:
        return say("No row needs {n:.0%} more or less memory than its baseline", n=MUCH_MEMORY)
    most = max(much, key=lambda entry: abs(math.log(entry.memory_ratio)))
    base = most.standing.baseline.label
    return say("“{row}” needs {x:.2f} times the memory of “{base}”", row=most.label, x=most.memory_ratio, base=base)


# ---- steps


def draw_phases(analysis: Analysis):
    """Draw a panel for each phase, on a common scale, with a bar for each row and a tick at ideal scaling."""
    done, shown = analysis.done, phases_shown(analysis)
    known = [entry.summary.phases.known for entry in done]
    if not shown:
        return None
    figure, axes = row_panels(done, len(shown))
    places, colors = range(len(done)), [look_of(analysis, entry).color for entry in done]
    for axis, name in zip(axes, shown, strict=True):
        axis.barh(places, [own.get(name, 0.0) for own in known], 0.62, color=colors)
        ideals = {place: ideal for place, entry in enumerate(done) if (ideal := ideal_phase(analysis, entry, name))}
        for color, width in (("white", 3.5), ("black", 1.5)) if ideals else ():  # visible on any color
            axis.plot([*ideals.values()], [*ideals], "|", color=color, markersize=22, markeredgewidth=width)
        for place, own in enumerate(known):
            number, at_right = milliseconds(own[name]) if name in own else "", axis.get_yaxis_transform()
            axis.text(0.98, place, number, transform=at_right, ha="right", va="center")
        axis.set_title(render(name))
    end, across = max(axis.dataLim.x1 for axis in axes), axes[0].get_gridspec().ncols
    longest = max(len(milliseconds(time)) for own in known for time in own.values())
    for axis in axes:
        axis.set_xlim(0, end / (1 - min(0.7, NUMBER_SHARE * longest * across)))  # leaves room for the numbers
    ticks = [say("tick: ideal scaling of the baseline's time")] if any(axis.lines for axis in axes) else []
    return finish(figure, analysis, phase_finding(analysis), note=join("\n", [phase_unit(analysis), *ticks]))


def phases_shown(analysis: Analysis) -> list[str]:
    """Return the phases to show: those that take more than SMALL of the longest step in any row."""
    longest = max((entry.summary.step_milliseconds for entry in analysis.done), default=0.0)
    known = [entry.summary.phases.known for entry in analysis.done]
    return [name for name in PHASES if any(own.get(name, 0.0) > SMALL * longest for own in known)]


def phase_unit(analysis: Analysis) -> str:
    """Return the unit of the phases, and over which epochs they are averaged."""
    template = "milliseconds per step, mean over the timed epochs"
    if analysis.report.only_scripts:
        template = "milliseconds per step, mean over the timed slices"
    elif analysis.report.only_warm_up:
        template = "milliseconds per step, mean over the epochs with the warm-up"
    return say(template)


def ideal_phase(analysis: Analysis, entry: RowAnalysis, phase: str) -> float | None:
    """Return the milliseconds that a phase would take if the baseline's scaled ideally, or None if unknown."""
    standing, baseline = entry.standing, entry.standing.baseline
    if entry.is_baseline or not (baseline and standing.speed_up):
        return None
    time = analysis.of(baseline).summary.phases.known.get(phase)
    own, other = (row.results[0].epochs[-1] for row in (entry.row, baseline))
    images = own.samples / own.steps * other.steps / other.samples
    return None if time is None else time * images / standing.devices


def phase_finding(analysis: Analysis) -> str:
    """Return the title of the phases: which phase of which row exceeds ideal scaling by the most milliseconds."""
    found = [
        (time - (ideal or 0.0), entry.label, phase, time)
        for entry in analysis.done
        if entry.rivals_baseline and not entry.row.simulated
        for phase, time in entry.summary.phases.known.items()
        if (ideal := ideal_phase(analysis, entry, phase)) is not None or phase == "exchange"  # one device has none
    ]
    excess, row, phase, time = max(found, default=(0.0, "", "", 0.0))
    if excess <= 0:
        return say("Where a step's time goes")
    template = "Largest excess over ideal scaling: {phase} of “{row}”, {x} instead of {y} ms"
    return say(template, row=row, x=milliseconds(time), y=milliseconds(time - excess), phase=say(phase))


def draw_timelines(analysis: Analysis):
    """Draw a panel for each traced row, on a common time scale."""
    traced = analysis.report.timelines
    timelines = {entry.label: traced[entry.name] for entry in analysis.rows if traced.get(entry.name)}
    if not timelines:
        return None
    lanes = [len({(span.rank, span.lane) for span in spans}) for spans in timelines.values()]
    figure, axes = new_figure(rows=lanes, height=2.0 + sum(0.5 + 0.28 * lane for lane in lanes))
    legend: dict[str, object] = {}
    for axis, (label, spans) in zip(axes, timelines.items(), strict=True):
        legend = {**draw_timeline(axis, spans), **legend}
        axis.set_title(render(label), x=0, ha="left")
    axes[-1].set_xlabel(render(say("milliseconds; two traced steps, which take a little longer than timed ones")))
    figure.legend(legend.values(), map(render, legend), loc=BELOW, ncols=4)
    return finish(figure, analysis, waiting_finding(timelines))


def waiting_finding(timelines) -> str:
    """Return the title of the timelines: the row whose ranks wait most, or else the one whose only GPU does."""

    def share(spans, milliseconds):
        return milliseconds / sum(span.end - span.start for span in spans if span.lane == "step")

    exchange, kernels = {}, {}
    for row, spans in timelines.items():
        if any(span.rank for span in spans):  # one rank waits for no other
            exchange[row] = share(spans, sum(span.end - span.start for span in spans if span.name == "exchange"))
        elif len({span.lane for span in spans} - {"step", "link"}) == 1 and (busy := kernel_milliseconds(spans)):
            kernels[row] = share(spans, busy)
    if any(exchange.values()):
        row, n = max(exchange.items(), key=itemgetter(1))
        return say("In “{row}”, ranks exchange, or wait for one another, for {n:.0%} of the traced time", row=row, n=n)
    if kernels:
        row, n = min(kernels.items(), key=itemgetter(1))
        return say("In “{row}”, the GPU runs kernels for {n:.0%} of the traced time", row=row, n=n)
    return say("What every device does in a step")
