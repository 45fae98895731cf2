"""What all runs of a comparison show together: tables of times and accuracies, summaries, and what can be detected."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from common.files.describe import training_seconds
from common.files.results import RunResult
from comparison.judge.blocks import CHANCE, Table, block_dependence, residual_deviation, residuals, two_modes
from comparison.judge.statistics import CONFIDENCE, EQUAL_WITHIN, Array, look_confidence, resolution
from comparison.judge.summaries import A_THOUSAND, Finding, Summary, image_seconds, successful_runs, summarise
from comparison.outcomes import Outcome
from comparison.record import Report
from comparison.rows import Row

# Kinds of wall time, in seconds: of an epoch with its evaluation; from start to exit of the command; the same if a
# target accuracy ends the run; of A_THOUSAND samples.
PER_EPOCH, WHOLE_RUN, TO_TARGET, PER_SAMPLES = "epoch", "run", "target", "samples"


@dataclass(frozen=True)
class Resolution:
    """The smallest difference, as a share, that the comparison detects with a probability of 80%.

    deviation: the standard deviation of the times of runs, as a share, without the effects of blocks and rows.
    differences: by number of blocks. dependence: the correlation of one block's noise with the next one's, if it is
    significant: the blocks then contain less information than independent ones.
    """

    deviation: float
    differences: dict[int, float]
    dependence: float | None = None


@dataclass(frozen=True)
class Measures:
    """What all runs of a report show.

    asked: the times that rows are judged by: seconds per image or, with a target accuracy, of the whole training.
    images: seconds per image. accuracies: percent, of the rows that learn. wall_time: decides the recommendation, and
    per_samples between scripts. per_epoch: the wall time of an epoch. summaries: by configuration's name. resolution:
    None with too few runs.
    """

    asked: Table
    images: Table
    accuracies: Table
    wall_time: Table
    per_samples: Table
    per_epoch: Table
    summaries: dict[str, Summary]
    resolution: Resolution | None


def block_times(rows: Sequence[Row], measure: Callable[[Outcome, RunResult], float] = image_seconds) -> Array:
    """Return a measure of every successful run, (blocks, rows), with nan where there is none."""
    blocks = sorted({run.block for row in rows for run, _ in successful_runs(row)})
    times = np.full((len(blocks), len(rows)), np.nan)
    for column, row in enumerate(rows):
        for run, result in successful_runs(row):
            times[blocks.index(run.block), column] = measure(run, result)
    return times


def confidence_of(report: Report) -> float:
    """Return the confidence to judge with, so that all looks at the data during the measurement together have 95%."""
    if not report.looks:
        return CONFIDENCE
    blocks, spent = zip(*report.looks, strict=True)
    return look_confidence(blocks, spent, max(2, sum(bool(row.results) for row in report.all_rows)))


def measure(report: Report) -> Measures:
    """Return what all runs of a report show.

    The noise is estimated from all rows, including those that stand in for missing devices: they train on the same
    machine, in the same blocks. With --margin, it is estimated only from the blocks that determined the number of
    blocks, so the intervals keep their confidence although that number depends on the noise (C. Stein, Annals of
    Mathematical Statistics 16, 1945).
    """
    rows, settings = report.all_rows, report.settings
    confidence = confidence_of(report)
    noise_blocks = report.wanted_blocks if settings.get("margin") else None
    equal_within = settings["equal_within"] or EQUAL_WITHIN
    disturbed = frozenset(row.name for row in rows if row.disturbed)

    def table(rows: Sequence[Row], measure: Callable[[Outcome, RunResult], float]) -> Table:
        names = tuple(row.name for row in rows)
        return Table(names, block_times(rows, measure), confidence, noise_blocks, equal_within, disturbed)

    images = table(rows, image_seconds)
    training = table(rows, lambda _, result: training_seconds(result))
    total = table(rows, lambda outcome, _: outcome.wall_seconds)
    asked = images if settings.get("target_accuracy") is None else training
    learning = [row for row in report.rows if row.learns]
    accuracies = table(learning, lambda _, result: 100 * result.epochs[-1].test_accuracy)
    per_samples = replace(images, values=A_THOUSAND * images.values, kind=PER_SAMPLES)
    per_epoch = replace(table(rows, partial(_epoch_seconds, _images_of_epoch(report))), kind=PER_EPOCH)
    kind = _deciding_wall_time(report)
    wall_time = {PER_EPOCH: per_epoch, PER_SAMPLES: per_samples}.get(kind) or replace(total, kind=kind)
    flop = {model.model: model.flop for model in report.probe.models} if report.probe else {}
    noise = residuals(images.values)
    summaries = {}
    squares = np.nansum(noise**2, axis=0)
    for column, row in enumerate(rows):
        means = (times.means[row.name] for times in (asked, images, training, total))
        summary = summarise(row, training.values[:, column], flop.get(row.configuration.planned.model), *means)
        largest = math.isclose(squares[column], squares.max())  # a row's modes show in the others' residuals too
        modes = two_modes([value for value in noise[:, column] if math.isfinite(value)]) if largest else None
        if modes and modes[1] < CHANCE / len(rows):
            summary = replace(summary, warnings=(*summary.warnings, Finding("two modes", {"n": modes[0]})))
        summaries[row.name] = summary
    return Measures(asked, images, accuracies, wall_time, per_samples, per_epoch, summaries, _resolution(report, asked))


def _images_of_epoch(report: Report) -> int:
    """Return the images in a whole epoch, even if --max-steps cut the measured ones."""
    trained = (result.epochs[-1].samples for row in report.all_rows for result in row.results)
    return report.probe.train_images if report.probe else max(trained, default=0)


def _epoch_seconds(images: int, outcome: Outcome, result: RunResult) -> float:
    later = result.epochs[1:] or result.epochs  # nothing warms up the first evaluation
    known = [epoch.evaluate_seconds for epoch in later if not math.isnan(epoch.evaluate_seconds)]
    return images * image_seconds(outcome, result) + (statistics.fmean(known) if known else 0.0)


def _deciding_wall_time(report: Report) -> str:
    """Return the kind of wall time that decides.

    It is that of whole runs, unless their epochs were cut, as a sample of a longer training, or their fixed share is
    within the difference that counts as practically equal.
    """
    if report.only_scripts:
        return PER_SAMPLES
    if report.settings.get("target_accuracy") is not None:
        return TO_TARGET
    rows = [row for row in report.rows if not (row.simulated or row.configuration.is_script)]
    fixed = [_fixed_share(result) for row in rows for result in row.results]
    large = max(fixed, default=0.0) > (report.settings["equal_within"] or EQUAL_WITHIN)
    return WHOLE_RUN if large and not report.cut_steps else PER_EPOCH


def _fixed_share(result: RunResult) -> float:
    """Return the share of a run spent on its start-up and on what an untimed first epoch takes more than the others."""
    epochs, first = result.epochs, result.epochs[: result.timed_from - 1]
    mean = statistics.fmean(epoch.train_seconds for epoch in result.timed_epochs)
    fixed = result.startup_seconds + sum(max(0.0, epoch.train_seconds - mean) for epoch in first)
    return fixed / (result.startup_seconds + sum(epoch.train_seconds + epoch.evaluate_seconds for epoch in epochs))


def _resolution(report: Report, asked: Table) -> Resolution | None:
    compared = [row for row in report.rows if row.results and not row.simulated]
    comparisons = max(1, len(compared) - 1)  # one row is compared with its counterpart
    times = asked.values[:, np.isfinite(asked.values).any(axis=0)]
    deviation = residual_deviation(times) if times.size else None
    if deviation is None:
        return None
    measured, columns = times.shape
    shares = {n: resolution(deviation, n, columns, comparisons, asked.confidence) for n in sorted({measured, 10})}
    found = {blocks: share for blocks, share in shares.items() if share < math.inf}
    dependence, chance = block_dependence(times) or (0.0, 1.0)
    return Resolution(deviation, found, dependence if chance < CHANCE and dependence > 0 else None)
