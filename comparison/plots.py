"""The figures of a comparison: curves of all methods, speed-up bars, phase bars, sweeps, scaling."""

import statistics
from pathlib import Path

from common.plots import new_figure, save_figure
from common.results import phase_names
from comparison.fairness import standing
from comparison.methods import method_of
from comparison.plan import SWEEPS
from comparison.projection import LABEL, project
from comparison.record import Report, Row
from comparison.statistics import phase_milliseconds, summarize
from comparison.verdict import sweep_groups

# Phases are no methods: a colour map of their own (cividis, readable for colour-blind readers), each with its hatch.
SHADES_AND_HATCHES = ((0.0, ""), (0.25, "////"), (0.5, ""), (0.75, "...."), (1.0, "\\\\\\\\"))
FIGURES = ("curves.png", "speed-up.png", "phases.png", "scaling.png",
           *(f"sweep-{name.replace('_', '-')}.png" for name in SWEEPS))
PHASE_LOOK = dict(zip(phase_names(), SHADES_AND_HATCHES, strict=True))


def draw_all(report: Report, directory: Path) -> list[Path]:
    """Draw every figure for which there are data; return the PNGs' paths."""
    done = [row for row in report.rows if row.results]
    if not done:
        return []
    compared = any(standing(report, row).speed_up and standing(report, row).baseline is not row for row in done)
    figures = [_curves(report, done, directory / "curves.png")]
    if compared:
        figures.append(_speed_ups(report, done, directory / "speed-up.png"))
    figures.append(_phases(report, done, directory / "phases.png"))
    for name in report.swept:
        if groups := sweep_groups(report, name):
            figures.append(_sweep(report, name, groups, directory / f"sweep-{name.replace('_', '-')}.png"))
    if project(report) or ("nproc" in report.swept and compared):
        figures.append(_scaling(report, done, directory / "scaling.png"))
    return figures


def _style(report: Report, row: Row) -> dict:
    """A method's look; in a sweep, later values of the same method are paler."""
    same = [other for other in report.rows if other.configuration.method == row.configuration.method]
    look = vars(method_of(row.configuration.method).look)
    return {**look, "alpha": 1 - 0.65 * same.index(row) / max(1, len(same) - 1)}


def _curves(report, done, path):
    figure, (loss_axis, accuracy_axis) = new_figure(columns=2, width=10.0, height=4.3 + 0.15 * len(done))
    for index, row in enumerate(done):
        # methods that compute the same lie on top of each other: the lower ones are wider, so that all can be seen
        width = 1.2 + 0.7 * (len(done) - 1 - index)
        style = {**_style(report, row), "linewidth": width, "markersize": 3 + width, "label": row.label}
        _band(loss_axis, row, lambda epoch: epoch.train_loss, style)
        if not row.times_only:
            _band(accuracy_axis, row, lambda epoch: 100 * epoch.test_accuracy, style)
    loss_axis.set(ylabel="training loss (nats per image)")
    accuracy_axis.set(ylabel="test accuracy (%)")
    for axis in (loss_axis, accuracy_axis):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*loss_axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=4)
    figure.suptitle(f"{report.title}\nlines: mean over the runs, bands: lowest to highest", fontsize=11)
    return save_figure(figure, path)


def _band(axis, row, value, style):
    epochs = range(1, 1 + min(len(result.epochs) for result in row.results))
    values = [[value(result.epochs[epoch - 1]) for result in row.results] for epoch in epochs]
    axis.plot(epochs, [statistics.mean(some) for some in values], **style)
    axis.fill_between(epochs, [min(some) for some in values], [max(some) for some in values], color=style["color"],
                      alpha=0.12, linewidth=0)


def _speed_ups(report, done, path):
    standings = [(row, standing(report, row)) for row in done]
    compared = [(row, stands) for row, stands in standings if stands.speed_up]
    figure, (axis,) = new_figure(width=9.0, height=2.0 + 0.6 * len(compared))
    labels = []
    for position, (row, stands) in enumerate(compared):
        speed_up = stands.speed_up
        known = speed_up.low is not None
        whiskers = [[speed_up.value - speed_up.low], [speed_up.high - speed_up.value]] if known else None
        words = "baseline" if stands.baseline is row else f"{speed_up}, {speed_up.words}"
        unequal = "\nUNEQUAL settings" if stands.unequal else ""
        labels.append(f"{row.label}\n{words}{unequal}")
        axis.barh(position, speed_up.value, xerr=whiskers, capsize=5, ecolor="#777777",
                  color=method_of(row.configuration.method).look.color, edgecolor="#777777", alpha=0.85)
    axis.set_yticks(range(len(labels)), labels)
    axis.axvline(1, color="#777777", linestyle="--")
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()
    left_out = len(done) - len(compared)
    axis.set(xlim=(0, None))
    figure.suptitle(report.title, fontsize=11)
    figure.supxlabel(f"speed-up over {report.settings['baseline']} (time per epoch; beyond the dashed line is faster)\n"
                     "whiskers: 95 % interval; across the dashed line: no significant difference"
                     + (f"\n{left_out} simulated or refused row(s) left out" if left_out else ""), fontsize=10)
    return save_figure(figure, path)


def _phases(report, done, path):
    import matplotlib

    figure, (axis,) = new_figure(width=9.0, height=2.2 + 0.5 * len(done))
    positions, left = range(len(done)), [0.0] * len(done)  # labels alone need not differ
    phases = [phase_milliseconds(row) for row in done]
    for phase, (shade, hatch) in PHASE_LOOK.items():
        means = [times[phase] for times in phases]
        axis.barh(positions, means, left=left, label=phase, color=matplotlib.colormaps["cividis"](shade), hatch=hatch,
                  edgecolor="white")
        left = [start + mean for start, mean in zip(left, means, strict=True)]
    axis.set_yticks(positions, [row.label for row in done])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    warm_up = "without the warm-up" if report.settings["epochs"] > 1 else "with the warm-up"
    axis.set_xlabel(f"milliseconds per step, mean over the epochs {warm_up}")
    figure.suptitle(f"Where a step's time goes\n{report.title}", fontsize=11)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(PHASE_LOOK))
    return save_figure(figure, path)


def _sweep(report, name, groups, path):
    import matplotlib

    figure, axes = new_figure(columns=len(groups), width=max(7.0, 3.6 * len(groups)), height=4.6)
    waiting, rest = (matplotlib.colormaps["cividis"](shade) for shade in (0.0, 0.6))
    for axis, rows in zip(axes, groups, strict=True):
        values = [str(row.configuration.values[name]) for row in rows]
        numbers = [summarize(row) for row in rows]
        shares = [times["data"] / sum(times.values()) for times in map(phase_milliseconds, rows)]
        data = [one.epoch_seconds * share for one, share in zip(numbers, shares, strict=True)]
        whiskers = [[one.epoch_seconds - one.fastest_epoch for one in numbers],
                    [one.slowest_epoch - one.epoch_seconds for one in numbers]]
        axis.bar(values, data, color=waiting, label="waiting for data")
        axis.bar(values, [one.epoch_seconds - wait for one, wait in zip(numbers, data, strict=True)], bottom=data,
                 color=rest, hatch="////", edgecolor="white", label="the rest: transfer, forward, backward, update",
                 yerr=whiskers, capsize=5, ecolor="#777777")
        axis.grid(visible=False, axis="x")
        axis.set(xlabel=SWEEPS[name].lower(), ylabel="time per epoch (s)", ylim=(0, None),
                 title=rows[0].configuration.method + rows[0].values(without=name)
                 + (" (simulated)" if rows[0].simulated else ""))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{report.title}\nwhiskers: fastest and slowest epoch", fontsize=11)
    return save_figure(figure, path)


def _scaling(report, done, path):
    figure, (axis,) = new_figure(height=4.8)
    series: dict[str, list] = {}
    for row in done:
        stands = standing(report, row)
        if stands.speed_up and not row.times_only:
            series.setdefault(row.series("nproc"), []).append((len(row.results[0].devices), row, stands))
    most, baseline_devices = 1, 1
    for points in series.values():
        points.sort(key=lambda point: point[0])
        row, ratios = points[0][1], [stands.speed_up for _, _, stands in points]
        whiskers = [[one.value - (one.low or one.value) for one in ratios],
                    [(one.high or one.value) - one.value for one in ratios]]
        axis.errorbar([devices for devices, _, _ in points], [one.value for one in ratios], yerr=whiskers, capsize=5,
                      **_style(report, row), label=f"{row.configuration.method}{row.values()}, measured")
        most = max(most, points[-1][0])
        baseline_devices = len(points[0][2].baseline.results[0].devices)
    projected = project(report)
    if projected and baseline_devices == 1:  # it is over one device, as the axis then is
        axis.plot([one.devices for one in projected], [one.speed_up for one in projected], color="#777777",
                  linestyle="--", marker="x", label=f"DDP, {LABEL}")
        most = max(most, projected[-1].devices)
    axis.plot([1, most], [1 / baseline_devices, most / baseline_devices], color="#BBBBBB", linestyle=":",
              label="ideal: in proportion to the devices")
    axis.set(xlabel="devices", ylabel=f"speed-up over {report.settings['baseline']}", title=report.title,
             xlim=(0.8, most + 0.2), ylim=(0, None))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=9)
    return save_figure(figure, path)
