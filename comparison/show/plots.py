"""The figures of whole rows: speed-up, memory, both times, what they learn."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from common.files.plots import new_figure
from common.files.results import EpochRecord
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import MUCH_MEMORY, RowAnalysis
from comparison.judge.statistics import FASTER
from comparison.methods import method_of
from comparison.rows import Row
from comparison.show.sentences import mebibytes
from comparison.words import Sentence, count, join, render, say


def style_of(analysis: Analysis, entry: RowAnalysis) -> dict:
    """Return a method's look, in matplotlib's words; in a sweep, later values of the same method are paler."""
    method = entry.row.configuration.method
    same = [other.row for other in analysis.rows if other.row.configuration.method == method]
    return {**vars(method_of(method).look), "alpha": 1 - 0.65 * same.index(entry.row) / max(1, len(same) - 1)}


def head(figure, analysis: Analysis, finding: str, *more: str, size: int = 12) -> None:
    """Write above a figure what it shows, what was compared, and more lines."""
    figure.suptitle(render(join("\n", [finding, join("", [analysis.report.title, *more])])), fontsize=size)


def lie(axis, labels: Sequence[str], **text) -> None:
    """Give an axis of horizontal bars its labels, the first one on top."""
    axis.set_yticks(range(len(labels)), list(map(render, labels)), **text)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")


def _bar(axis, position, value, entry):
    color = method_of(entry.row.configuration.method).look.color
    return axis.barh(position, value, color=color, edgecolor="#777777", alpha=0.85)


def left_out(rows: Sentence) -> str:
    """Return on a line of its own how many rows are not in a figure, if any."""
    return say("\n{rows} left out", rows=rows) if rows.values["n"] else ""


def draw_speed_ups(analysis: Analysis):
    """Draw a bar for each row with a speed-up, with its interval."""
    report, compared = analysis.report, [entry for entry in analysis.done if entry.standing.speed_up]
    if not any(not entry.is_baseline for entry in compared):
        return None
    figure, (axis,) = new_figure(width=9.0, height=2.0 + 0.6 * len(compared))
    labels = []
    for position, entry in enumerate(compared):
        ratio = entry.standing.speed_up
        lines = [entry.label, say("baseline") if entry.is_baseline else join(", ", [str(ratio), ratio.words])]
        labels.append(join("\n", [*lines, *([say("UNEQUAL settings")] if entry.standing.unequal else ())]))
        _bar(axis, position, ratio.value, entry)
        whiskers = None if ratio.low is None else [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        for color, width in (("white", 5), ("black", 2)):  # to be seen on any colour
            look = {"ecolor": color, "elinewidth": width, "capthick": width}
            axis.errorbar(ratio.value, position, xerr=whiskers, fmt="none", capsize=6, **look)
    lie(axis, labels)
    axis.axvline(1, color="#777777", linestyle="--")
    axis.set(xlim=(0, None))
    head(figure, analysis, speed_up_finding(compared))
    note = say(
        "speed-up over the baseline ({what}; beyond the dashed line is faster)\nwhiskers: intervals that all hold the "
        "truth in 95 %; across the dashed line: no difference proved{more}",
        what=report.asked,
        more=left_out(count(len(analysis.done) - len(compared), "simulated or refused row")),
    )
    figure.supxlabel(render(note), fontsize=10)
    return figure


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
    figure, (axis,) = new_figure(width=9.0, height=1.8 + 0.5 * len(entries))
    for position, entry in enumerate(entries):
        bar = _bar(axis, position, entry.summary.memory.peak / 2**20, entry)
        axis.bar_label(bar, [mebibytes(entry.summary.memory.peak)], padding=4, fontsize=12)
    lie(axis, [entry.label for entry in entries], fontsize=12)
    axis.margins(x=0.12)  # for the numbers beside the bars
    axis.set_xlabel(render(say("peak memory of a device (MiB)")), fontsize=12)
    head(figure, analysis, memory_finding(entries))
    return figure


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
    shown = [entry for entry in entries if not entry.row.simulated]
    if len(shown) < 2:  # one is no choice
        return None
    figure, (axis,) = new_figure(width=9.0, height=5.6 + 0.15 * len(shown))
    for entry in shown:
        summary, memory, batch = entry.summary, entry.summary.memory, entry.row.configuration.planned.batch_size
        low, high = summary.epoch_interval or (summary.epoch_seconds, summary.epoch_seconds)
        label = say("{row}, batch {n:,}", row=entry.label, n=batch) if analysis.report.fitted else entry.label
        axis.errorbar(
            memory.peak / 2**20,
            summary.epoch_seconds,
            label=render(label),
            capsize=5,
            xerr=[[(memory.peak - memory.lowest) / 2**20], [(memory.highest - memory.peak) / 2**20]],
            yerr=[[summary.epoch_seconds - low], [high - summary.epoch_seconds]],
            **{**style_of(analysis, entry), "linestyle": "none", "markersize": 11},
        )
    low = min(entry.summary.memory.lowest for entry in shown) / 2**20
    high = max(entry.summary.memory.highest for entry in shown) / 2**20
    middle, half = (low + high) / 2, 0.6 * max(high - low, MUCH_MEMORY * high)
    axis.set(xlim=(middle - half, middle + half), ylim=(0, None))
    across = say("peak memory of a device (MiB); whiskers: lowest and highest of the runs")
    axis.set_xlabel(render(across), fontsize=12)
    axis.set_ylabel(render(say("time per epoch (s)\nwhiskers: the row's own 95 % interval")), fontsize=12)
    axis.tick_params(labelsize=12)
    head(figure, analysis, choice_finding(shown), left_out(count(len(entries) - len(shown), "simulated row")))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=12)
    return figure


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
    return say(
        "“{row}”: {ratio} times as fast as “{base}”,\nwith {x:.2f} times as much memory per device",
        row=best.label,
        ratio=best.standing.speed_up,
        base=best.standing.baseline.label,
        x=best.memory_ratio,
    )


def draw_curves(analysis: Analysis):
    """Draw what the rows learn: loss over the epochs, how far their accuracies are apart, accuracy over time."""
    if not any(len(result.epochs) > 1 for entry in analysis.done for result in entry.row.results):  # one is no curve
        return None
    compared = any(_has_rival(entry) for entry in analysis.done)
    width, height = 8.8 + 4.2 * compared, 4.4 + 0.15 * len(analysis.done)
    figure, (loss, *difference, time) = new_figure(columns=2 + compared, width=width, height=height)
    for entry in analysis.done:
        style = {"linewidth": 2, "markersize": 5, **style_of(analysis, entry), "label": render(entry.label)}
        epochs = range(1, 1 + _epochs(entry.row))
        loss.plot(epochs, _means(entry.row, lambda epoch: epoch.train_loss), **style)
        if entry.row.times_only:
            continue
        for axis in difference if entry.standing.baseline else ():
            apart = differences(entry.row, entry.standing.baseline)
            some, lowest, highest = epochs[: len(apart)], list(map(min, apart)), list(map(max, apart))
            axis.plot(some, list(map(statistics.mean, apart)), **style)
            axis.fill_between(some, lowest, highest, color=style["color"], alpha=0.12, linewidth=0)
        if not entry.row.simulated:  # its seconds say nothing
            time.plot(_seconds(entry.row), _means(entry.row, lambda epoch: 100 * epoch.test_accuracy), **style)
    loss.set(ylabel=render(say("training loss (nats per image)")))
    for axis in difference:
        axis.set(ylabel=render(say("test accuracy − the baseline's,\nsame seed (percentage points)")))
    time.set(ylabel=render(say("test accuracy (%)")), xlabel=render(say("seconds of training")), xlim=(0, None))
    for axis in (loss, *difference):
        axis.set_xlabel(render("epoch"))
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=4)
    head(
        figure,
        analysis,
        curves_finding(analysis),
        say("; lines: mean over the runs, bands: lowest to highest"),
        size=11,
    )
    return figure


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
        if _has_rival(entry) and (points := differences(entry.row, entry.standing.baseline))
    }
    if not apart:
        return say("Loss and accuracy")
    most = max(apart, key=lambda label: abs(apart[label]))
    if abs(apart[most]) < 0.05:
        return say("At the end, every row is as accurate as its baseline, within 0.1 points")
    far = abs(apart[most])
    return say("At the end, no row is further than {x:.1f} points from its baseline (“{row}”)", x=far, row=most)


def _has_rival(entry):
    """Whether there is another row than itself that it is compared with, and both learn."""
    return bool(entry.standing.baseline) and not entry.is_baseline and not entry.row.times_only


def _epochs(row: Row) -> int:
    return min(len(result.epochs) for result in row.results)


def _means(row: Row, value: Callable[[EpochRecord], float]) -> list[float]:
    return [statistics.mean(value(result.epochs[epoch]) for result in row.results) for epoch in range(_epochs(row))]


def _seconds(row: Row) -> list[float]:
    """The seconds of training up to the end of each epoch, mean over the runs."""
    return list(itertools.accumulate(_means(row, lambda epoch: epoch.train_seconds)))
