"""The figures of whole rows: speed-up, memory, what they learn."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from common.files.plots import new_figure, new_panels
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import MUCH_MEMORY, RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER
from comparison.methods import METHODS, Look, method_of
from comparison.rows import Row
from comparison.show.sentences import mebibytes
from comparison.words import count, join, render, say

BELOW = "outside lower center"  # where a figure's legend stands
WIDE = 8  # of ratios, the largest ÷ the smallest, above which their axis is logarithmic
VISIBLE = 1.0  # percentage points by which accuracies have to differ to have a panel of their own


def style_of(analysis: Analysis, entry: RowAnalysis) -> dict[str, Any]:
    """Return a row's look, in matplotlib's words; in a sweep, later values of the same method are paler."""
    row = entry.row.configuration
    same = [other.row for other in analysis.rows if other.row.configuration.method == row.method]
    alpha = 1.0 if row.is_script else 1 - 0.65 * same.index(entry.row) / max(1, len(same) - 1)
    return {**vars(look_of(analysis, entry)), "alpha": alpha}


def look_of(analysis: Analysis, entry: RowAnalysis) -> Look:
    """Return a method's look; of somebody's own scripts each has another one."""
    row = entry.row.configuration
    if not row.is_script:
        return method_of(row.method).look
    looks = [method.look for method in reversed(METHODS.values()) if method.by_default]
    return looks[[other.name for other in analysis.report.plan if other.is_script].index(row.name) % len(looks)]


def finish(figure, analysis: Analysis, finding: str, *more: str, note: str = "", **legend):
    """Write above a figure what it shows, what was compared, and more; below it a note and its first axes' legend."""
    figure.suptitle(render(join("\n", [finding, join("", [analysis.report.title, *more])])), x=0.012, ha="left")
    if note:
        figure.supxlabel(render(note))
    if legend:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc=BELOW, **legend)
    return figure


def row_panels(entries: Sequence[RowAnalysis], panels: int = 1):
    """Return (figure, axes) with a line for each row, the first one on top, in every panel; labels on the left."""
    figure, axes, columns = new_panels(panels, 1.4, 0.6 + 0.36 * len(entries))
    for number, axis in enumerate(axes):
        shown = () if number % columns else entries
        axis.set_yticks(range(len(shown)), [render(entry.label) for entry in shown])
        axis.set_ylim(len(entries) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
    return figure, axes


def write_beside(axis, end: float, place: int, words: str) -> None:
    """Write what a line or bar says to the right of its end."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over lines of the axes
    axis.annotate(words, (end, place), (8, 0), textcoords="offset points", va="center", bbox=ground)


def whiskers(value: float, low: float | None, high: float | None) -> list[list[float]] | None:
    """Return what errorbar() takes for an interval around a value, None where there is none."""
    return None if low is None or high is None else [[value - low], [high - value]]


def draw_speed_ups(analysis: Analysis):
    """Draw a dot with an interval for each row with a speed-up, the fastest first, and a line at the baseline."""
    compared = [entry for entry in analysis.done if entry.standing.speed_up]
    compared.sort(key=lambda entry: -entry.standing.speed_up.value)
    if all(entry.is_baseline for entry in compared):
        return None
    figure, (axis,) = row_panels(compared)
    for place, entry in enumerate(compared):
        ratio = entry.standing.speed_up
        words = [] if entry.is_baseline or ratio.words in (FASTER, SLOWER) else [ratio.words]
        words = [str(ratio), *words, *([say("UNEQUAL settings")] if entry.standing.unequal else [])]
        look = {"color": look_of(analysis, entry).color, "elinewidth": 3, "capsize": 0, "markersize": 9}
        axis.errorbar(ratio.value, place, xerr=whiskers(ratio.value, ratio.low, ratio.high), fmt="o", **look)
        write_beside(axis, ratio.high or ratio.value, place, render(join(", ", words)))
    axis.axvline(1, color="#777777", linestyle="--", linewidth=1.5, zorder=0)
    above = {"xycoords": axis.get_xaxis_transform(), "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
    axis.annotate(render(say("baseline")), (1, 1), **above)
    if compared[0].standing.speed_up.value > WIDE * compared[-1].standing.speed_up.value:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    left_out = count(len(analysis.done) - len(compared), "simulated or refused row")
    note = say(
        "speed-up over the baseline, by {what} (right of the dashed line: faster)\nlines: simultaneous "
        "95% confidence intervals; across the dashed line: not significant{more}",
        what=analysis.report.asked,
        more=say("\n{rows} left out", rows=left_out) if left_out.values["n"] else "",
    )
    return finish(figure, analysis, speed_up_finding(compared), note=note)


def speed_up_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return what a figure of speed-ups shows, in one line."""
    faster = [entry for entry in entries if entry.rivals_baseline and entry.standing.speed_up.words == FASTER]
    if not faster:
        return say("No row is significantly faster than its baseline")
    best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    base, x = best.standing.baseline.label, best.standing.speed_up.value
    return say("“{row}” is {x:.2f} times as fast as “{base}”", row=best.label, x=x, base=base)


def draw_memory(analysis: Analysis):
    """Draw a bar for what a device of each row needs at most."""
    entries = [entry for entry in analysis.done if entry.summary.memory]
    if not entries:
        return None
    figure, (axis,) = row_panels(entries)
    for place, entry in enumerate(entries):
        peak = entry.summary.memory.peak
        axis.barh(place, peak / 2**20, 0.62, color=look_of(analysis, entry).color)
        write_beside(axis, peak / 2**20, place, mebibytes(peak))
    return finish(figure, analysis, memory_finding(entries), note=say("peak memory of a device (MiB)"))


def memory_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return what the figure of memory shows, in one line."""
    compared = [entry for entry in entries if entry.memory_ratio]
    if not compared:
        return say("Peak memory of a device")
    most = max(compared, key=lambda entry: abs(math.log(entry.memory_ratio)))
    if not most.much_memory:
        return say("No row needs {n:.0%} more or less memory than its baseline", n=MUCH_MEMORY)
    base = most.standing.baseline.label
    return say("“{row}” needs {x:.2f} times the memory of “{base}”", row=most.label, x=most.memory_ratio, base=base)


def draw_curves(analysis: Analysis):
    """Draw the rows' accuracy over the seconds and, where it differs visibly, over the epochs too."""
    done = [entry for entry in analysis.done if not (entry.row.configuration.is_script or entry.row.times_only)]
    timed = [entry for entry in done if not entry.row.simulated]  # whose seconds say something
    if not any(len(result.epochs) > 1 for entry in timed for result in entry.row.results):  # one is no curve
        return None
    accuracies = [100 * _epochs(entry.row, "test_accuracy") for entry in done]
    apart = any(np.ptp(points) > VISIBLE for points in zip(*accuracies, strict=False))  # of the epochs that all have
    figure, (*over_epochs, over_time) = new_figure(columns=1 + apart, height=4.4 + 0.13 * len(done))
    for entry, points in zip(done, accuracies, strict=True):
        style = {"markersize": 6, **style_of(analysis, entry), "label": render(entry.label)}
        for axis in over_epochs:
            axis.plot(range(1, 1 + len(points)), points, **style)
        if entry in timed:
            over_time.plot(_epochs(entry.row, "train_seconds").cumsum(), points, **style)
    for axis in over_epochs:
        axis.set(xlabel=render("epoch"), ylabel=render(say("test accuracy (%)")))
        axis.xaxis.get_major_locator().set_params(integer=True)
    over_time.set(ylabel=render(say("test accuracy (%)")), xlabel=render(say("seconds of training")), xlim=(0, None))
    return finish(figure, analysis, curves_finding(analysis), say("; mean of the runs"), ncols=2, handlelength=4)


def differences(row: Row, baseline: Row) -> list[list[float]]:
    """Return, for each epoch, by how many percentage points a row's test accuracy is above its baseline's, in every
    block in which both ended well: their seeds are the same."""
    theirs = {outcome.block: outcome.result.epochs for outcome in baseline.outcomes if outcome.status == "ok"}
    pairs = [
        zip(outcome.result.epochs, theirs[outcome.block], strict=False)  # as many as both have
        for outcome in row.outcomes
        if outcome.status == "ok" and outcome.block in theirs
    ]
    epochs = zip(*pairs, strict=False)
    return [[100 * (own.test_accuracy - other.test_accuracy) for own, other in epoch] for epoch in epochs]


def curves_finding(analysis: Analysis) -> str:
    """Return what the figure shows, in one line."""
    apart = {
        entry.label: statistics.mean(points[-1])
        for entry in analysis.done
        if entry.row.learns and _has_rival(entry) and (points := differences(entry.row, entry.standing.baseline))
    }
    if not apart:
        return say("Accuracy over the training")
    most = max(apart, key=lambda label: abs(apart[label]))
    far = abs(apart[most])
    if far < 0.05:
        return say("Final accuracy: every row within 0.1 points of its baseline")
    return say("Final accuracy: every row within {x:.1f} points of its baseline (farthest: “{row}”)", x=far, row=most)


def _has_rival(entry):
    """Whether there is another row than itself that it is compared with, and both learn."""
    return bool(entry.standing.baseline) and not entry.is_baseline and not entry.row.times_only


def _epochs(row, name):
    """An attribute of the epochs that all runs have, by epoch: the mean of the runs."""
    epochs = zip(*(result.epochs for result in row.results), strict=False)
    return np.array([statistics.fmean(getattr(record, name) for record in records) for records in epochs])
