"""The figures of a comparison: curves of all methods, speed-up bars, phase bars."""

from pathlib import Path

from common.plots import METHOD_STYLE, new_figure, save_figure
from common.results import phase_names
from comparison.report import Report
from comparison.statistics import summarize, timed_epochs

# Phases are no methods: a colour map of their own (cividis, readable for colour-blind readers), each with its hatch.
SHADES_AND_HATCHES = ((0.0, ""), (0.25, "////"), (0.5, ""), (0.75, "...."), (1.0, "\\\\\\\\"))
PHASE_LOOK = dict(zip(phase_names(), SHADES_AND_HATCHES, strict=True))


def draw_all(report: Report, directory: Path) -> list[Path]:
    """Draw every figure for which there are data; return the PNGs' paths."""
    done = [outcome for outcome in report.outcomes if outcome.status == "ok"]
    if not done:
        return []
    figures = [_curves(report, done, directory / "curves.png"), _phases(report, done, directory / "phases.png")]
    compared = [(outcome, summary) for outcome in done if (summary := summarize(outcome, report.baseline)).speed_up]
    if len(compared) > 1:
        figures.insert(1, _speed_ups(report, compared, len(done) - len(compared), directory / "speed-up.png"))
    return figures


def _curves(report, done, path):
    figure, (loss_axis, accuracy_axis) = new_figure(columns=2, width=10.0, height=4.6)
    for index, outcome in enumerate(done):
        epochs = outcome.result.epochs
        numbers = [epoch.epoch for epoch in epochs]
        # methods that compute the same lie on top of each other: the lower ones are wider, so that all can be seen
        width = 1.2 + 0.9 * (len(done) - 1 - index)
        style = {**METHOD_STYLE[outcome.method], "linewidth": width, "markersize": 3 + width, "label": outcome.label}
        loss_axis.plot(numbers, [epoch.train_loss for epoch in epochs], **style)
        accuracy_axis.plot(numbers, [100 * epoch.test_accuracy for epoch in epochs], **style)
    loss_axis.set(ylabel="training loss (nats per image)")
    accuracy_axis.set(ylabel="test accuracy (%)")
    for axis in (loss_axis, accuracy_axis):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*loss_axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=4)
    figure.suptitle(report.title)
    return save_figure(figure, path)


def _speed_ups(report, compared, left_out, path):
    figure, (axis,) = new_figure(height=1.8 + 0.6 * len(compared))
    baseline = summarize(report.baseline, report.baseline)
    for outcome, summary in compared:
        speed_up = summary.speed_up
        # from the slowest to the fastest epoch, against the baseline's median
        spread = [[speed_up - baseline.epoch_seconds / summary.slowest_epoch],
                  [baseline.epoch_seconds / summary.fastest_epoch - speed_up]]
        axis.barh(f"{outcome.label}\n{speed_up:.2f}", speed_up, color=METHOD_STYLE[outcome.method]["color"],
                  alpha=0.85, xerr=spread, capsize=5, ecolor="#777777")
    axis.axvline(1, color="#777777", linestyle="--")
    axis.grid(visible=False, axis="y")
    axis.invert_yaxis()
    axis.set(xlim=(0, None), title=report.title,
             xlabel=f"speed-up over “{report.baseline.label}” (time per epoch; beyond the dashed line is faster)\n"
                    "whiskers: slowest and fastest epoch of one run, no confidence interval"
                    + (f"\n{left_out} simulated row(s) left out" if left_out else ""))
    return save_figure(figure, path)


def _phases(report, done, path):
    import matplotlib

    figure, (axis,) = new_figure(width=9.0, height=2.2 + 0.5 * len(done))
    labels = [outcome.label for outcome in done]
    left = [0.0] * len(done)
    for phase, (shade, hatch) in PHASE_LOOK.items():
        means = [_mean([getattr(epoch.phases, phase) for epoch in timed_epochs(outcome)]) for outcome in done]
        axis.barh(labels, means, left=left, label=phase, color=matplotlib.colormaps["cividis"](shade), hatch=hatch,
                  edgecolor="white")
        left = [start + mean for start, mean in zip(left, means, strict=True)]
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="milliseconds per step, mean over the epochs without the warm-up",
             title=f"Where a step's time goes\n{report.title}")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(PHASE_LOOK))
    return save_figure(figure, path)


def _mean(values):
    return sum(values) / len(values)
