"""The figure of what the rows learn: loss over the epochs, how far their accuracies are apart, accuracy over time."""

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

from common.files.plots import new_figure
from common.files.results import EpochRecord
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import RowAnalysis
from comparison.rows import Row
from comparison.show.figures import keep_figure


def draw_curves(analysis: Analysis, path: Path, style_of: Callable[[RowAnalysis], dict]) -> Path:
    """Draw all rows that learn. style_of: a row's look, in matplotlib's words."""
    compared = any(_has_rival(entry) for entry in analysis.done)
    figure, (loss, *difference, time) = new_figure(
        columns=2 + compared, width=8.8 + 4.2 * compared, height=4.4 + 0.15 * len(analysis.done)
    )
    for entry in analysis.done:
        style = {"linewidth": 2, "markersize": 5, **style_of(entry), "label": entry.label}
        epochs = range(1, 1 + _epochs(entry.row))
        loss.plot(epochs, _means(entry.row, lambda epoch: epoch.train_loss), **style)
        if entry.row.times_only:
            continue
        for axis in difference if entry.standing.baseline else ():
            apart = differences(entry.row, entry.standing.baseline)
            axis.plot(epochs[: len(apart)], [statistics.mean(sample) for sample in apart], **style)
            axis.fill_between(
                epochs[: len(apart)],
                [min(sample) for sample in apart],
                [max(sample) for sample in apart],
                color=style["color"],
                alpha=0.12,
                linewidth=0,
            )
        if not entry.row.simulated:  # its seconds say nothing
            time.plot(_seconds(entry.row), _means(entry.row, lambda epoch: 100 * epoch.test_accuracy), **style)
    loss.set(ylabel="training loss (nats per image)")
    for axis in difference:
        axis.set(ylabel="test accuracy − the baseline's,\nsame seed (percentage points)")
    time.set(ylabel="test accuracy (%)", xlabel="seconds of training", xlim=(0, None))
    for axis in (loss, *difference):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=4)
    figure.suptitle(
        f"{finding(analysis)}\n{analysis.report.title}; lines: mean over the runs, bands: lowest to highest",
        fontsize=11,
    )
    return keep_figure(figure, path)


def differences(row: Row, baseline: Row) -> list[list[float]]:
    """Return, for each epoch, by how many percentage points a row's test accuracy is above its baseline's, in every
    block in which both ended well: their seeds are the same."""
    theirs = {outcome.block: outcome.result for outcome in baseline.outcomes if outcome.status == "ok"}
    pairs = [
        (outcome.result.epochs, theirs[outcome.block].epochs)
        for outcome in row.outcomes
        if outcome.status == "ok" and outcome.block in theirs
    ]
    if not pairs:
        return []
    epochs = min(len(epochs) for pair in pairs for epochs in pair)
    return [
        [100 * (own[epoch].test_accuracy - other[epoch].test_accuracy) for own, other in pairs]
        for epoch in range(epochs)
    ]


def finding(analysis: Analysis) -> str:
    """Return what the figure shows, in one line."""
    apart = {
        entry.label: statistics.mean(points[-1])
        for entry in analysis.done
        if _has_rival(entry) and (points := differences(entry.row, entry.standing.baseline))
    }
    if not apart:
        return "Loss and accuracy"
    most = max(apart, key=lambda label: abs(apart[label]))
    if abs(apart[most]) < 0.05:
        return "At the end, every row is as accurate as its baseline, within 0.1 points"
    return f"At the end, no row is further than {abs(apart[most]):.1f} points from its baseline (“{most}”)"


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
