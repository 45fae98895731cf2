"""How numbers and rows are said, wherever they are: parts of sentences, and of cells."""

from collections.abc import Iterable

from comparison.judge.analysis import Analysis
from comparison.judge.choice import Sweep
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Ratio
from comparison.methods import method_of
from comparison.rows import Row
from comparison.words import join, say


def as_fast(ratio: Ratio) -> str:
    """Return how many times as fast a row is, with its interval if that is known."""
    interval = "" if ratio.low is None else f" (95 %: {ratio.low:.2f} to {ratio.high:.2f})"
    return f"{ratio.value:.2f} times as fast{interval}"


def efficiency(share: Ratio) -> str:
    """Return an efficiency in percent, with its interval if that is known."""
    interval = "" if share.low is None else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    return f"{share.value:.0%}{interval}"


def longer(ratio: Ratio) -> str:
    """Return a ratio of times with its interval and what that means: who takes longer is slower."""
    words = {"faster": "slower", "slower": "faster"}.get(ratio.words, ratio.words)
    return f"{ratio} ({words})"


def mebibytes(size: float) -> str:
    """Return bytes in MiB, with a decimal where there are few."""
    return f"{size / 2**20:,.1f}" if size < 10 * 2**20 else f"{size / 2**20:,.0f}"


def series_name(rows: Iterable[Row]) -> str:
    """Return what the rows of one method are called together, which may differ in a swept value."""
    rows = tuple(rows)
    labels, method = {row.configuration.label for row in rows}, rows[0].configuration.method
    return labels.pop() if len(labels) == 1 else method_of(method).called or method


def time_asked(analysis: Analysis, entry: RowAnalysis) -> str:
    """Return how long a row takes for what was asked: to a target accuracy, and per epoch; with images per second where
    epochs hold other numbers of images."""
    target, numbers = analysis.report.settings.get("target_accuracy"), entry.summary
    asked = "" if target is None else f"{numbers.training_seconds:.2f} s of training to {100 * target:g} %, "
    rate = "" if analysis.same_images else f"{numbers.images_per_second:,.0f} images/s, "
    return f"{asked}{rate}{numbers.epoch_seconds:.2f} s per epoch"


def instead_of(analysis: Analysis, entry: RowAnalysis, baseline: RowAnalysis) -> str:
    """Return how long a row takes for what was asked, beside another."""
    if analysis.report.settings.get("target_accuracy") is not None:
        return f"{time_asked(analysis, entry)}, instead of {time_asked(analysis, baseline)}"
    if not analysis.same_images:
        return f"{entry.summary.images_per_second:,.0f} instead of {baseline.summary.images_per_second:,.0f} images/s"
    return f"{entry.summary.epoch_seconds:.2f} s instead of {baseline.summary.epoch_seconds:.2f} s per epoch"


def fastest_value(analysis: Analysis, sweep: Sweep) -> str:
    """Return at which value of a sweep a method is fastest, and how fast, as far as that is decided."""
    if not sweep.fastest:
        return "disturbed, nothing can be claimed from its times"
    values = [str(sweep.value(entry)) for entry in sweep.rows if entry in sweep.fastest]
    if len(values) > 1:
        return f"fastest at {', '.join(values[:-1])} or {values[-1]} (not decided)"
    target, numbers = analysis.report.settings.get("target_accuracy"), sweep.fastest[0].summary
    return f"fastest at {values[0]}, " + (
        f"{numbers.images_per_second:,.0f} images/s"
        if target is None
        else f"{numbers.training_seconds:.2f} s of training to {100 * target:g} %"
    )


def several_baselines(analysis: Analysis) -> bool:
    """Whether rows are compared with different ones, so that words must say with which."""
    return len({entry.standing.baseline.label for entry in analysis.rows if entry.standing.baseline}) > 1


def tell_disturbed(rows: Iterable[Row]) -> str:
    """Return that nothing can be claimed from the rows that other programs disturbed, and by how much; "" if none."""
    noisy = [row for row in rows if row.disturbed]
    if not noisy:
        return ""
    most = max((row.foreign for row in noisy), key=lambda foreign: foreign.share)
    return say(
        "other programs {what} during runs of {rows}, so that nothing can be claimed from their times; close them and "
        "run again",
        what=most.words,
        rows=join(", ", [say("“{row}”", row=row.label) for row in noisy]),
    )
