"""The figures over an axis of values: accuracy over time, one setting, the number of devices, a map of two settings."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from common.files.plots import new_figure, new_panels
from common.files.results import PHASES
from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import DISTURBED, EQUAL, FASTER
from comparison.judge.steps import paired
from comparison.judge.summaries import successful_runs
from comparison.methods import METHODS, PROJECTED
from comparison.rows import SWEEPS
from comparison.show.plots import WIDE, finish, fitted, speed_up_finding, style_of
from comparison.show.sentences import fastest_value, series_name
from comparison.words import join, render, say

# Purple is faster, orange is slower; readable for color-blind people. Twice and half as fast have the full color.
COLORS = "PuOr"
MOST_CHARACTERS = 20  # in a line of a value at an axis
ROOM = 75  # characters of values, side by side in all panels
MOST_MARKERS = 20  # epochs: of more, the lines alone are legible
VISIBLE = 1.0  # percentage points: accuracies that differ less are not drawn over the epochs
Cells = dict[tuple[object, object], RowAnalysis]


def draw_curves(analysis: Analysis):
    """Draw the rows' accuracy over seconds, and also over epochs if it differs visibly between rows."""
    done = [entry for entry in analysis.done if entry.row.learns]
    timed = [entry for entry in done if not entry.row.simulated]
    if not any(len(result.epochs) > 1 for entry in timed for result in entry.row.results):
        return None
    blocks = [{run.block for run, _ in successful_runs(entry.row)} for entry in done]
    common = set.intersection(*blocks)
    accuracies = [100 * _epochs(entry.row, "test_accuracy", common) for entry in done]
    apart = any(np.ptp(points) > VISIBLE for points in zip(*accuracies, strict=False))
    figure, (*over_epochs, over_time) = new_figure(columns=1 + apart, height=4.4 + 0.13 * len(done))
    for entry, points in zip(done, accuracies, strict=True):
        style = {"markersize": 6, **style_of(analysis, entry), "label": render(entry.label)}
        if len(points) > MOST_MARKERS:
            style["marker"] = ""
        for axis in over_epochs:
            axis.plot(range(1, 1 + len(points)), points, **style)
        if entry in timed:
            over_time.plot(_epochs(entry.row, "train_seconds", common).cumsum(), points, **style)
    for axis in over_epochs:
        axis.set(xlabel=render("epoch"), ylabel=render(say("test accuracy (%)")))
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    over_time.set(ylabel=render(say("test accuracy (%)")), xlabel=render(say("seconds of training")), xlim=(0, None))
    finding = curves_finding(done if apart else timed)
    runs = say(
        "; mean of the runs with the same seeds" if set() < common < set.union(*blocks) else "; mean of the runs"
    )
    return finish(figure, analysis, finding, runs, ncols=2, handlelength=4)


def curves_finding(entries: Sequence[RowAnalysis]) -> str:
    """Return the title of the figure of accuracies."""
    apart = {
        entry.label: 100 * statistics.mean(own - other for own, other in pairs)
        for entry in entries
        if entry.standing.baseline and not entry.is_baseline
        if (pairs := paired(entry.row, entry.standing.baseline, lambda result: result.epochs[-1].test_accuracy))
    }
    if not apart:
        return say("Accuracy over the training")
    most = max(apart, key=lambda label: abs(apart[label]))
    far = abs(apart[most])
    if far < 0.05:
        return say("Final accuracy: every row within 0.1 points of its baseline")
    up = math.ceil(10 * far - 1e-6) / 10
    return say("Final accuracy: every row within {x:.1f} points of its baseline (farthest: “{row}”)", x=up, row=most)


def _epochs(row, name, blocks):
    """The mean of an attribute over the runs in these blocks, or over all, for each epoch that all of them have."""
    epochs = zip(*(own.epochs for run, own in successful_runs(row) if run.block in blocks or not blocks), strict=False)
    return np.array([statistics.fmean(getattr(record, name) for record in records) for records in epochs])


def draw_sweep(analysis: Analysis, name: str):
    """Draw a panel per method: the time per image at each value of a setting, with the part that waits for data."""
    sweeps = [sweep for sweep in analysis.sweeps if sweep.name == name]
    if not sweeps:
        return None
    figure, axes, columns = new_panels(len(sweeps), 1.4, 3.4)
    for axis, sweep in zip(axes, sweeps, strict=True):
        numbers = [entry.summary for entry in sweep.rows]
        times = np.array([1e6 / summary.images_per_second for summary in numbers])
        epochs = np.array([[some.fastest_epoch, some.epoch_seconds, some.slowest_epoch] for some in numbers]).T
        below, above = times * (1 - epochs[0] / epochs[1]), times * (epochs[2] / epochs[1] - 1)
        bounds = np.maximum(0.0, [below, above])  # rounding may make them negative
        data = times * [summary.waiting_share for summary in numbers]
        values, places = [fitted(str(sweep.value(entry)), MOST_CHARACTERS) for entry in sweep.rows], range(len(times))
        axis.bar(places, data, color=PHASES["data"].color, label=render("waiting for data"))
        rest = render(say("the rest of the step"))
        axis.bar(places, times - data, bottom=data, label=rest, yerr=bounds, color="#BBBBBB")
        crowded = columns * len(values) * (1 + max(map(len, values))) > ROOM
        axis.set_xticks(places, values, **({"rotation": 30, "ha": "right"} if crowded else {}))
        axis.grid(visible=False, axis="x")
        title = [series_name((entry.row for entry in sweep.rows), name), fastest_value(analysis, sweep)]
        axis.set(xlabel=render(SWEEPS[name].lower()), ylabel=render(say("time per image (µs)")), ylim=(0, None))
        axis.set_title(render(join("\n", title)))
    finding = say("Time per image, by {what}", what=SWEEPS[name].lower())
    return finish(figure, analysis, finding, say("\nwhiskers: fastest and slowest epoch"), ncols=2)


def draw_scaling(analysis: Analysis):
    """Draw the measured and the projected speed-up against the number of devices."""
    compared = any(entry.standing.speed_up and not entry.is_baseline for entry in analysis.done)
    target = analysis.report.settings["target_accuracy"]
    points = analysis.projection.points if target is None else ()  # the projection is about the time per image
    if not (points or (compared and "nproc" in analysis.report.swept)):
        return None
    figure, (axis,) = new_figure(height=5.0)
    series: dict[str, list[RowAnalysis]] = {}
    for entry in sorted(analysis.done, key=_devices):
        if entry.standing.speed_up and not entry.row.times_only and not entry.row.all_cores:
            series.setdefault(entry.row.series("nproc"), []).append(entry)
    units = {round(_devices(entry) / entry.standing.devices, 6) for own in series.values() for entry in own} or {1.0}
    most = top = 1.0  # largest number of devices, highest point drawn
    for entries in series.values():
        devices, ratios = [_devices(entry) for entry in entries], [entry.standing.speed_up for entry in entries]
        values = [ratio.value for ratio in ratios]
        ends = [ratio.interval or (ratio.value, ratio.value) for ratio in ratios]
        bounds = np.abs(np.array(ends).T - values)
        words: list[str] = [say("{row}, measured", row=series_name((entry.row for entry in entries), "nproc"))]
        words += [say("UNEQUAL settings")] if any(entry.standing.unequal for entry in entries) else []
        words += [DISTURBED] if any(ratio.disturbed for ratio in ratios) else []
        label = render(join(", ", words))
        look = {"label": label, **style_of(analysis, entries[0])}
        axis.errorbar(devices, values, yerr=bounds, **look)
        most = max(most, devices[-1])
        top = max(top, *(high for _, high in ends))
    top = min(top, WIDE * max((entry.standing.speed_up.value for own in series.values() for entry in own), default=top))
    if points and units == {1.0}:  # the projection is relative to one device
        (alone, *others), shaded = points, render(say("range of the projection"))
        inside = [point for point in others if point.cluster.machines == 1]
        between = [point for point in others if point.cluster.machines > 1]
        for part, linestyle, how in ((inside, "-", []), (between, "--", [say("several machines")])):
            if part:
                part = [alone, *part]
                label = render(join(", ", [METHODS[PROJECTED].called, LABEL, *how]))
                places, speed_ups = [point.cluster.total for point in part], [point.speed_up for point in part]
                axis.plot(places, speed_ups, color="#777777", linestyle=linestyle, marker="x", label=label)
                lows, highs = [point.low for point in part], [point.high for point in part]
                axis.fill_between(places, lows, highs, color="#777777", alpha=0.15, linewidth=0, label=shaded)
                shaded = ""
        most, top = max(most, points[-1].cluster.total), max(top, *(point.high for point in points))
    if len(units) == 1:  # otherwise some baselines have more devices than others, and no line is ideal for all
        ideal, (unit,) = render(say("ideal: linear speed-up")), units
        axis.plot([1, most], [1 / unit, most / unit], color="#BBBBBB", linestyle=":", label=ideal)
    finding = speed_up_finding([entry for entry in analysis.done if entry.standing.speed_up])
    what = say("speed-up over the baseline,\nby {what}", what=analysis.report.asked)
    axis.set(xlabel=render("devices"), ylabel=render(what))
    axis.set(xlim=(0.8, most + 0.2), ylim=(0, 1.15 * top))  # the ideal line and a long interval may leave
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return finish(figure, analysis, finding, ncols=2)


def _devices(entry):
    return len(entry.row.results[0].devices)


def find_maps(analysis: Analysis) -> dict[str, Cells]:
    """Return, by method, the rows that could replace their baseline, by their values of the two swept settings.

    The value on the vertical axis comes first. The result is empty unless exactly two settings are swept.
    """
    maps: dict[str, Cells] = {}
    if len(analysis.report.swept) != 2:
        return maps
    vertical, horizontal = axes_of(analysis)
    for entry in analysis.done:
        values = entry.row.configuration.values
        if entry.rivals_baseline and vertical in values and horizontal in values:
            maps.setdefault(entry.row.configuration.method, {})[values[vertical], values[horizontal]] = entry
    return maps


def axes_of(analysis: Analysis) -> list[str]:
    """Return the settings on the vertical and the horizontal axis. Models have no order, so they are vertical."""
    return sorted(analysis.report.swept, key=lambda name: name != "model")


def draw_map(analysis: Analysis):
    """Draw a panel per method: its speed-up for every combination of two swept settings."""
    maps = find_maps(analysis)
    if not maps:
        return None
    vertical, horizontal = axes_of(analysis)
    planned = [[row.values.get(name) for row in analysis.report.plan] for name in (vertical, horizontal)]
    shown = zip(*(place for cells in maps.values() for place in cells), strict=True)
    rows, columns = (sorted({*values}, key=order.index) for values, order in zip(shown, planned, strict=True))
    figure, axes, _ = new_panels(len(maps), 1.4, 0.8 + 0.8 * len(rows), across=max(1, 6 // len(columns)))
    for axis, cells in zip(axes, maps.values(), strict=True):
        for (row, column), entry in cells.items():
            _draw_cell(axis, rows.index(row), columns.index(column), entry.standing.speed_up)
        names = {"xlabel": render(SWEEPS[horizontal].lower()), "ylabel": render(SWEEPS[vertical].lower())}
        axis.set(title=render(_series_label(cells)), **names)
        axis.set_xticks(range(len(columns)), map(str, columns))
        axis.set_yticks(range(len(rows)), [fitted(str(row), MOST_CHARACTERS) for row in rows])
        axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
    note = say(
        "speed-up; purple: significantly faster, orange: significantly slower, white: practically equal, "
        "hatched: not significant"
    )
    return finish(figure, analysis, map_finding(analysis, maps), note=note)


def _draw_cell(axis, row, column, speed_up):
    import matplotlib
    from matplotlib.patches import Rectangle

    strength = 0.0 if speed_up.words == EQUAL else max(-1.0, min(1.0, math.log2(speed_up.value)))
    look = {"facecolor": matplotlib.colormaps[COLORS](0.5 + 0.5 * strength), "hatch": ""}
    text = {"color": "black" if -0.76 < strength < 0.62 else "white", "bbox": None}  # the better contrast
    if not speed_up.decided:
        look = {"facecolor": "white", "hatch": "//"}
        text = {"color": "black", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 2}}
    axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, edgecolor="#AAAAAA", **look))
    axis.text(column, row, f"{speed_up.value:.2f}", ha="center", va="center", fontsize=14, **text)


def _series_label(cells):
    return series_name(entry.row for entry in cells.values())


def map_finding(analysis: Analysis, maps: dict[str, Cells]) -> str:
    """Return the title of the map."""
    counts = []
    for cells in maps.values():
        faster = sum(entry.standing.speed_up.words == FASTER for entry in cells.values())
        counts.append(say("“{row}” in {n} of {m}", row=_series_label(cells), n=faster, m=len(cells)))
    name = analysis.report.settings["baseline"]
    return say("Faster than {name}: {cases} cases", name=name, cases=join(", ", counts))
