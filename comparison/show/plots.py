"""The figures of a comparison: bars of speed-up and memory, sweeps, scaling, and those that have files of their own."""

import math
from pathlib import Path

from common.files.plots import new_figure
from common.words import count
from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL, TESTED
from comparison.judge.row_analysis import MUCH_MEMORY, RowAnalysis
from comparison.judge.statistics import FASTER
from comparison.methods import method_of, projected_method
from comparison.rows import SWEEPS
from comparison.show.curve_plots import draw_curves
from comparison.show.figures import keep_figure
from comparison.show.map import draw_map, find_maps
from comparison.show.phrases import fastest_value, mebibytes, series_name
from comparison.show.step_plots import draw_excess, draw_phases, draw_timelines

FIGURES = (
    "curves.png",
    "speed-up.png",
    "phases.png",
    "excess.png",
    "memory.png",
    "time-memory.png",
    "timeline.png",
    "scaling.png",
    "map.png",
    *(f"sweep-{name.replace('_', '-')}.png" for name in SWEEPS),
)


def draw_all(analysis: Analysis, directory: Path) -> list[Path]:
    """Draw every figure for which there are data; return the PNGs' paths."""
    if not analysis.done:
        return []
    compared = any(entry.standing.speed_up and not entry.is_baseline for entry in analysis.done)
    figures = []
    if any(len(result.epochs) > 1 for entry in analysis.done for result in entry.row.results):  # one is no curve
        figures.append(draw_curves(analysis, directory / "curves.png", lambda entry: _style(analysis, entry)))
    if compared:
        figures.append(_speed_ups(analysis, directory / "speed-up.png"))
    figures.append(draw_phases(analysis, directory / "phases.png"))
    if any(entry.accounts.steps for entry in analysis.done):
        figures.append(draw_excess(analysis, directory / "excess.png"))
    if any(entry.summary.memory for entry in analysis.done):
        figures.append(_memory(analysis, directory / "memory.png"))
    if sum(bool(entry.summary.memory) and not entry.row.simulated for entry in analysis.done) > 1:  # one is no choice
        figures.append(_time_and_memory(analysis, directory / "time-memory.png"))
    if any(analysis.report.timelines.values()):  # where an epoch has one step, there are none after the first
        figures.append(draw_timelines(analysis, directory / "timeline.png"))
    for name in analysis.report.swept:
        if sweeps := [sweep for sweep in analysis.sweeps if sweep.name == name]:
            figures.append(_sweep(analysis, sweeps, directory / f"sweep-{name.replace('_', '-')}.png"))
    if find_maps(analysis):
        figures.append(draw_map(analysis, directory / "map.png"))
    if analysis.projection.points or ("nproc" in analysis.report.swept and compared):
        figures.append(_scaling(analysis, directory / "scaling.png"))
    return figures


def _style(analysis: Analysis, entry: RowAnalysis) -> dict:
    """A method's look; in a sweep, later values of the same method are paler."""
    method = entry.row.configuration.method
    same = [other.row for other in analysis.rows if other.row.configuration.method == method]
    return {**vars(method_of(method).look), "alpha": 1 - 0.65 * same.index(entry.row) / max(1, len(same) - 1)}


def _speed_ups(analysis, path):
    report, compared = analysis.report, [entry for entry in analysis.done if entry.standing.speed_up]
    figure, (axis,) = new_figure(width=9.0, height=2.0 + 0.6 * len(compared))
    labels = []
    for position, entry in enumerate(compared):
        speed_up = entry.standing.speed_up
        known = speed_up.low is not None
        whiskers = [[speed_up.value - speed_up.low], [speed_up.high - speed_up.value]] if known else None
        words = "baseline" if entry.is_baseline else f"{speed_up}, {speed_up.words}"
        unequal = "\nUNEQUAL settings" if entry.standing.unequal else ""
        labels.append(f"{entry.label}\n{words}{unequal}")
        axis.barh(
            position,
            speed_up.value,
            color=method_of(entry.row.configuration.method).look.color,
            edgecolor="#777777",
            alpha=0.85,
        )
        for color, width in (("white", 5), ("black", 2)):  # to be seen on any colour
            axis.errorbar(
                speed_up.value,
                position,
                xerr=whiskers,
                fmt="none",
                ecolor=color,
                elinewidth=width,
                capsize=6,
                capthick=width,
            )
    axis.set_yticks(range(len(labels)), labels)
    axis.axvline(1, color="#777777", linestyle="--")
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()
    left_out = len(analysis.done) - len(compared)
    axis.set(xlim=(0, None))
    figure.suptitle(f"{_speed_up_finding(compared)}\n{report.title}", fontsize=12)
    figure.supxlabel(
        f"speed-up over the baseline ({report.asked}; beyond the dashed line is faster)\n"
        "whiskers: intervals that all hold the truth in 95 %; across the dashed line: no difference proved"
        + (f"\n{count(left_out, 'simulated or refused row')} left out" if left_out else ""),
        fontsize=10,
    )
    return keep_figure(figure, path)


def _speed_up_finding(entries):
    """What the figure shows, in one line."""
    faster = [entry for entry in entries if entry.rivals_baseline and entry.standing.speed_up.words == FASTER]
    if not faster:
        return "No row is proved to be faster than its baseline"
    best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    return f"“{best.label}” is {best.standing.speed_up.value:.2f} times as fast as “{best.standing.baseline.label}”"


def _memory(analysis, path):
    entries = [entry for entry in analysis.done if entry.summary.memory]
    figure, (axis,) = new_figure(width=9.0, height=1.8 + 0.5 * len(entries))
    for position, entry in enumerate(entries):
        bar = axis.barh(
            position,
            entry.summary.memory.peak / 2**20,
            edgecolor="#777777",
            alpha=0.85,
            color=method_of(entry.row.configuration.method).look.color,
        )
        axis.bar_label(bar, [mebibytes(entry.summary.memory.peak)], padding=4, fontsize=12)
    axis.set_yticks(range(len(entries)), [entry.label for entry in entries], fontsize=12)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)  # for the numbers beside the bars
    axis.set_xlabel("peak memory of a device (MiB)", fontsize=12)
    figure.suptitle(f"{_memory_finding(entries)}\n{analysis.report.title}", fontsize=12)
    return keep_figure(figure, path)


def _memory_finding(entries):
    """What the figure shows, in one line."""
    compared = [entry for entry in entries if entry.memory_ratio]
    if not compared:
        return "Peak memory of a device"
    most = max(compared, key=lambda entry: abs(math.log(entry.memory_ratio)))
    if not most.much_memory:
        return f"No row needs {MUCH_MEMORY:.0%} more or less memory than its baseline"
    return f"“{most.label}” needs {most.memory_ratio:.2f} times the memory of “{most.standing.baseline.label}”"


def _time_and_memory(analysis, path):
    """A point for each row, the lower and the further to the left the better; simulated rows say nothing about time.

    The axis of memory is so wide that what is not worth a sentence does not look large.
    """
    entries = [entry for entry in analysis.done if entry.summary.memory]
    shown = [entry for entry in entries if not entry.row.simulated]
    figure, (axis,) = new_figure(width=9.0, height=5.6 + 0.15 * len(shown))
    for entry in shown:
        summary, memory = entry.summary, entry.summary.memory
        low, high = summary.epoch_interval or (summary.epoch_seconds, summary.epoch_seconds)
        batch = f", batch {entry.row.configuration.planned.batch_size:,}" if analysis.report.fitted else ""
        axis.errorbar(
            memory.peak / 2**20,
            summary.epoch_seconds,
            label=entry.label + batch,
            capsize=5,
            xerr=[[(memory.peak - memory.lowest) / 2**20], [(memory.highest - memory.peak) / 2**20]],
            yerr=[[summary.epoch_seconds - low], [high - summary.epoch_seconds]],
            **{**_style(analysis, entry), "linestyle": "none", "markersize": 11},
        )
    low, high = (
        choose(getattr(entry.summary.memory, name) for entry in shown) / 2**20
        for choose, name in ((min, "lowest"), (max, "highest"))
    )
    middle, half = (low + high) / 2, 0.6 * max(high - low, MUCH_MEMORY * high)
    axis.set(xlim=(middle - half, middle + half), ylim=(0, None))
    axis.set_xlabel("peak memory of a device (MiB); whiskers: lowest and highest of the runs", fontsize=12)
    axis.set_ylabel("time per epoch (s)\nwhiskers: the row's own 95 % interval", fontsize=12)
    axis.tick_params(labelsize=12)
    left_out = len(entries) - len(shown)
    note = f"\n{count(left_out, 'simulated row')} left out" if left_out else ""
    figure.suptitle(f"{_choice(shown)}\n{analysis.report.title}{note}", fontsize=12)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=12)
    return keep_figure(figure, path)


def _choice(entries):
    """What the figure of time and memory shows, in one line: the fastest row, if one is proved to be faster, or else
    the one with the least memory."""
    compared = [entry for entry in entries if entry.rivals_baseline and entry.memory_ratio and not entry.row.disturbed]
    faster = [entry for entry in compared if entry.standing.speed_up.words == FASTER]
    if faster:
        best = max(faster, key=lambda entry: entry.standing.speed_up.value)
    else:
        best = min(compared, key=lambda entry: entry.memory_ratio, default=None)
        if best is None or not best.much_memory or best.memory_ratio > 1:
            return f"No row is proved to be faster than its baseline, or needs {MUCH_MEMORY:.0%} less memory"
    return (
        f"“{best.label}”: {best.standing.speed_up} times as fast as “{best.standing.baseline.label}”,\n"
        f"with {best.memory_ratio:.2f} times as much memory per device"
    )


def _sweep(analysis, sweeps, path):
    import matplotlib

    figure, axes = new_figure(columns=len(sweeps), width=max(7.0, 3.6 * len(sweeps)), height=4.6)
    waiting, rest = (matplotlib.colormaps["cividis"](shade) for shade in (0.0, 0.6))
    for axis, sweep in zip(axes, sweeps, strict=True):
        values = [str(sweep.value(entry)) for entry in sweep.rows]
        numbers = [entry.summary for entry in sweep.rows]
        per_image = [1e6 / summary.images_per_second for summary in numbers]
        data = [time * summary.waiting_share for time, summary in zip(per_image, numbers, strict=True)]
        # a mean may be outside of its values by what was rounded
        whiskers = [
            [
                max(0.0, time * (1 - summary.fastest_epoch / summary.epoch_seconds)),
                max(0.0, time * (summary.slowest_epoch / summary.epoch_seconds - 1)),
            ]
            for time, summary in zip(per_image, numbers, strict=True)
        ]
        axis.bar(values, data, color=waiting, label="waiting for data")
        axis.bar(
            values,
            [time - wait for time, wait in zip(per_image, data, strict=True)],
            bottom=data,
            color=rest,
            hatch="////",
            edgecolor="white",
            label="the rest: transfer, forward, backward, update",
            yerr=list(zip(*whiskers, strict=True)),
            capsize=5,
            ecolor="#777777",
        )
        axis.grid(visible=False, axis="x")
        name = series_name(entry.row for entry in sweep.rows) + sweep.rows[0].row.values(without=sweep.name)
        axis.set(
            xlabel=SWEEPS[sweep.name].lower(),
            ylabel="time per image (µs)",
            ylim=(0, None),
            title=f"{name}\n{fastest_value(analysis, sweep)}",
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{analysis.report.title}\nwhiskers: fastest and slowest epoch", fontsize=11)
    return keep_figure(figure, path)


def _scaling(analysis, path):
    figure, (axis,) = new_figure(height=4.8)
    series: dict[str, list[RowAnalysis]] = {}
    for entry in analysis.done:
        if entry.standing.speed_up and not entry.row.times_only and not entry.row.all_cores:
            series.setdefault(entry.row.series("nproc"), []).append(entry)
    most, baseline_devices = 1, 1
    for entries in series.values():
        entries.sort(key=_devices)
        first, devices = entries[0], [_devices(entry) for entry in entries]
        ratios = [entry.standing.speed_up for entry in entries]
        whiskers = [
            [ratio.value - (ratio.low or ratio.value) for ratio in ratios],
            [(ratio.high or ratio.value) - ratio.value for ratio in ratios],
        ]
        label = series_name(entry.row for entry in entries) + first.row.values(without="nproc")
        axis.errorbar(
            devices,
            [ratio.value for ratio in ratios],
            yerr=whiskers,
            capsize=5,
            **_style(analysis, first),
            label=f"{label}, measured",
        )
        most = max(most, devices[-1])
        baseline_devices = len(first.standing.baseline.results[0].devices)
    points = analysis.projection.points
    if points and baseline_devices == 1:  # it is over one device, as the axis then is
        tested = [point for point in points if point.devices <= TESTED]
        for part, linestyle, how in ((tested, "-", ""), (points[len(tested) - 1 :], "--", ", untested")):
            axis.plot(
                [point.devices for point in part],
                [point.speed_up for point in part],
                color="#777777",
                linestyle=linestyle,
                marker="x",
                label=f"{projected_method().called}, {LABEL}{how}",
            )
        most = max(most, points[-1].devices)
    axis.plot(
        [1, most],
        [1 / baseline_devices, most / baseline_devices],
        color="#BBBBBB",
        linestyle=":",
        label="ideal: in proportion to the devices",
    )
    entries = [entry for entries in series.values() for entry in entries]
    axis.set(
        xlabel="devices",
        ylabel="speed-up over the baseline",
        title=f"{_speed_up_finding(entries)}\n{analysis.report.title}",
        xlim=(0.8, most + 0.2),
        ylim=(0, None),
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=9)
    return keep_figure(figure, path)


def _devices(entry):
    return len(entry.row.results[0].devices)
