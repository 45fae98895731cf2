"""The figures of whole rows: speed-up, memory, both times, what they learn."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from common.files.plots import new_figure
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import MUCH_MEMORY, RowAnalysis
from comparison.judge.statistics import FASTER
from comparison.methods import METHODS, Look, method_of
from comparison.rows import Row
from comparison.show.sentences import mebibytes
from comparison.words import Sentence, count, join, render, say

BELOW = "outside lower center"  # where a figure's legend stands


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


def finish(figure, analysis: Analysis, finding: str, *more: str, size: int = 12, note: str = "", **legend):
    """Write above a figure what it shows, what was compared, and more; below it a note and its first axes' legend."""
    figure.suptitle(render(join("\n", [finding, join("", [analysis.report.title, *more])])), fontsize=size)
    if note:
        figure.supxlabel(render(note), fontsize=10)
    if legend:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc=BELOW, **legend)
    return figure


def bar_chart(labels: Sequence[str], height: float, each: float, **text):
    """Return (figure, axis) for horizontal bars with these labels, the first one on top; inches, and for each bar."""
    figure, (axis,) = new_figure(width=9.0, height=height + each * len(labels))
    axis.set_yticks(range(len(labels)), list(map(render, labels)), **text)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    return figure, axis


def whiskers(value: float, low: float | None, high: float | None) -> list[list[float]] | None:
    """Return what errorbar() takes for an interval around a value, None where there is none."""
    return None if low is None or high is None else [[value - low], [high - value]]


def _bar(axis, position, value, analysis, entry):
    color = look_of(analysis, entry).color
    return axis.barh(position, value, color=color, edgecolor="#777777", alpha=0.85)


def _left_out(rows: Sentence) -> str:
    """On a line of its own, how many rows are not in a figure, if any."""
    return say("\n{rows} left out", rows=rows) if rows.values["n"] else ""


def draw_speed_ups(analysis: Analysis):
    """Draw a bar for each row with a speed-up, with its interval."""
    compared = [entry for entry in analysis.done if entry.standing.speed_up]
    if all(entry.is_baseline for entry in compared):
        return None
    labels = []
    for entry in compared:
        ratio = entry.standing.speed_up
        words = say("baseline") if entry.is_baseline else join(", ", [str(ratio), ratio.words])
        labels.append(join("\n", [entry.label, words, *([say("UNEQUAL settings")] if entry.standing.unequal else ())]))
    figure, axis = bar_chart(labels, 2.0, 0.6)
    for position, entry in enumerate(compared):
        ratio = entry.standing.speed_up
        _bar(axis, position, ratio.value, analysis, entry)
        interval = whiskers(ratio.value, ratio.low, ratio.high)
        for color, width in (("white", 5), ("black", 2)):  # to be seen on any colour
            look = {"ecolor": color, "elinewidth": width, "capthick": width}
            axis.errorbar(ratio.value, position, xerr=interval, fmt="none", capsize=6, **look)
    axis.axvline(1, color="#777777", linestyle="--")
    axis.set(xlim=(0, None))
    note = say(
        "speed-up over the baseline ({what}; beyond the dashed line is faster)\nwhiskers: simultaneous "
        "95 % confidence intervals; across the dashed line: no difference proved{more}",
        what=analysis.report.asked,
        more=_left_out(count(len(analysis.done) - len(compared), "simulated or refused row")),
    )
    return finish(figure, analysis, speed_up_finding(compared), note=note)


def speed_up_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return what a figure of speed-ups shows, in one line."""
    faster = [entry for entry in entries if entry.rivals_baseline and entry.standing.speed_up.words == FASTER]
    if not faster:
        return say("No row is proved to be faster than its baseline")
    best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    base, x = best.standing.baseline.label, best.standing.speed_up.value
    return say("“{row}” is {x:.2f} times as fast as “{base}”", row=best.label, x=x, base=base)


def draw_memory(analysis: Analysis):
    """Draw a bar for what a device of each row needs at most."""
    entries = [entry for entry in analysis.done if entry.summary.memory]
    if not entries:
        return None
    figure, axis = bar_chart([entry.label for entry in entries], 1.8, 0.5, fontsize=12)
    for position, entry in enumerate(entries):
        bar = _bar(axis, position, entry.summary.memory.peak / 2**20, analysis, entry)
        axis.bar_label(bar, [mebibytes(entry.summary.memory.peak)], padding=4, fontsize=12)
    axis.margins(x=0.12)  # for the numbers beside the bars
    axis.set_xlabel(render(say("peak memory of a device (MiB)")), fontsize=12)
    return finish(figure, analysis, memory_finding(entries))


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


def draw_time_and_memory(analysis: Analysis):
    """Draw a point for each row, the lower and the further to the left the better; simulated rows say nothing of time.

    The axis of memory is so wide that what is not worth a sentence does not look large.
    """
    entries = [entry for entry in analysis.done if entry.summary.memory]
    shown = [entry for entry in entries if not (entry.row.simulated or entry.row.configuration.is_script)]
    if len(shown) < 2:  # one is no choice
        return None
    figure, (axis,) = new_figure(width=9.0, height=5.6 + 0.15 * len(shown))
    sizes = [
        [size / 2**20 for size in (memory.lowest, memory.peak, memory.highest)]
        for memory in (entry.summary.memory for entry in shown)
    ]
    for entry, (lowest, peak, highest) in zip(shown, sizes, strict=True):
        seconds, batch = entry.summary.epoch_seconds, entry.row.configuration.planned.batch_size
        label = say("{row}, batch {n:,}", row=entry.label, n=batch) if analysis.report.fitted else entry.label
        interval = whiskers(seconds, *(entry.summary.epoch_interval or (seconds, seconds)))
        look = {**style_of(analysis, entry), "linestyle": "none", "markersize": 11, "capsize": 5}
        axis.errorbar(peak, seconds, xerr=whiskers(peak, lowest, highest), yerr=interval, label=render(label), **look)
    low, high = min(size[0] for size in sizes), max(size[2] for size in sizes)
    middle, half = (low + high) / 2, 0.6 * max(high - low, MUCH_MEMORY * high)
    axis.set(xlim=(middle - half, middle + half), ylim=(0, None))
    across = say("peak memory of a device (MiB); whiskers: lowest and highest of the runs")
    axis.set_xlabel(render(across), fontsize=12)
    axis.set_ylabel(render(say("time per epoch (s)\nwhiskers: the row's own 95 % interval")), fontsize=12)
    axis.tick_params(labelsize=12)
    left_out = _left_out(count(len(entries) - len(shown), "simulated row"))
    return finish(figure, analysis, choice_finding(shown), left_out, ncols=2, fontsize=12)


def choice_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return what the figure of time and memory shows, in one line: the fastest row, if one is proved to be faster, or
    else the one with the least memory."""
    compared = [entry for entry in entries if entry.rivals_baseline and entry.memory_ratio and not entry.row.disturbed]
    faster = [entry for entry in compared if entry.standing.speed_up.words == FASTER]
    best = min(compared, key=lambda entry: entry.memory_ratio, default=None)
    if faster:
        best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    elif best is None or not best.much_memory or best.memory_ratio > 1:
        return say("No row is proved to be faster than its baseline, or needs {n:.0%} less memory", n=MUCH_MEMORY)
    values = {"row": best.label, "ratio": best.standing.speed_up, "base": best.standing.baseline.label}
    template = "“{row}”: {ratio} times as fast as “{base}”,\nwith {x:.2f} times as much memory per device"
    return say(template, **values, x=best.memory_ratio)


def draw_curves(analysis: Analysis):
    """Draw what the rows learn: loss over the epochs, how far their accuracies are apart, accuracy over time."""
    done = [entry for entry in analysis.done if not entry.row.configuration.is_script]  # what scripts learn is not seen
    if not any(len(result.epochs) > 1 for entry in done for result in entry.row.results):  # one is no curve
        return None
    compared = any(_has_rival(entry) for entry in done)
    width, height = 8.8 + 4.2 * compared, 4.4 + 0.15 * len(done)
    figure, (loss, *difference, time) = new_figure(columns=2 + compared, width=width, height=height)
    for entry in done:
        style = {"linewidth": 2, "markersize": 5, **style_of(analysis, entry), "label": render(entry.label)}
        losses = _epochs(entry.row, "train_loss").mean(axis=0)
        loss.plot(range(1, 1 + len(losses)), losses, **style)
        if entry.row.times_only:
            continue
        apart = np.array(differences(entry.row, entry.standing.baseline) if entry.standing.baseline else [])
        for axis in difference if len(apart) else ():
            epochs = range(1, 1 + len(apart))
            axis.plot(epochs, apart.mean(axis=1), **style)
            axis.fill_between(epochs, apart.min(1), apart.max(1), color=style["color"], alpha=0.12, linewidth=0)
        if not entry.row.simulated:  # its seconds say nothing
            seconds, accuracies = (_epochs(entry.row, name) for name in ("train_seconds", "test_accuracy"))
            time.plot(seconds.mean(axis=0).cumsum(), 100 * accuracies.mean(axis=0), **style)
    loss.set(ylabel=render(say("training loss (nats per image)")))
    for axis in difference:
        axis.set(ylabel=render(say("test accuracy − the baseline's,\nsame seed (percentage points)")))
    time.set(ylabel=render(say("test accuracy (%)")), xlabel=render(say("seconds of training")), xlim=(0, None))
    for axis in (loss, *difference):
        axis.set_xlabel(render("epoch"))
        axis.xaxis.get_major_locator().set_params(integer=True)
    bands = say("; lines: mean over the runs, bands: lowest to highest")
    return finish(figure, analysis, curves_finding(analysis), bands, size=11, ncols=3, handlelength=4)


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
        return say("Loss and accuracy")
    most = max(apart, key=lambda label: abs(apart[label]))
    far = abs(apart[most])
    if far < 0.05:
        return say("At the end, every row is as accurate as its baseline, within 0.1 points")
    return say("At the end, no row is further than {x:.1f} points from its baseline (“{row}”)", x=far, row=most)


def _has_rival(entry):
    """Whether there is another row than itself that it is compared with, and both learn."""
    return bool(entry.standing.baseline) and not entry.is_baseline and not entry.row.times_only


def _epochs(row, name):
    """An attribute of the epochs that all runs have, by run and epoch."""
    epochs = zip(*(result.epochs for result in row.results), strict=False)
    return np.array([[getattr(record, name) for record in records] for records in epochs]).T
