"""The mean step and the whole run of a row, alone and compared with the baseline's.

A step is expected to scale ideally, phase by phase; a whole run is expected to take as long as the baseline's.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from common.files.results import PHASES, RunResult
from comparison.judge.fairness import Standing
from comparison.judge.ranks import (
    OUTSIDE,
    RankMeans,
    Straggler,
    cores_computing,
    critical_rank,
    find_straggler,
    mean_ranks,
    means_by_name,
    phases_of,
    queued_share,
    rank_means,
    throttled_share,
)
from comparison.judge.statistics import Excess, mean_excess
from comparison.judge.summaries import successful_runs
from comparison.rows import Row

T = TypeVar("T")
LATE = "late ranks"


@dataclass(frozen=True)
class Time:
    """A measured time and its known parts, whose sum is at most as long."""

    whole: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Account:
    """How a time differs from the expected one, and the parts of that difference, all in the same unit.

    value, expected: means over the blocks in which both were measured. total: value - expected, with its own interval.
    parts: in the order of a step or run; they add up to total.value. Their intervals hold simultaneously with those of
    the other accounts of the comparison.
    """

    value: float
    expected: float
    total: Excess
    parts: tuple[Excess, ...]

    @property
    def proved(self) -> list[Excess]:
        """The parts whose interval excludes 0, the largest first."""
        return sorted((part for part in self.parts if part.proved), key=lambda part: -abs(part.value))


def make_account(pairs: Sequence[tuple[Time, Time]], share: float, accounts: int = 1) -> Account:
    """Return how the first times of all pairs differ from `share` x the second ones, on average.

    A pair is one block: the row's time and the baseline's. "outside" is the part of a time that is in no other part,
    including parts that are not known for all times. Intervals are Student's, of the blocks' differences: the total's
    has 95% confidence; that of each of k parts has 1 - 5%/k/accounts, so that the parts of all accounts together have
    95% (Bonferroni's inequality).
    """
    names = [name for name in pairs[0][0].parts if all(name in time.parts for pair in pairs for time in pair)]
    if LATE in names and not any(time.parts[LATE] for pair in pairs for time in pair):  # one device has no late ranks
        names.remove(LATE)

    def outside(time: Time) -> float:
        return time.whole - math.fsum(time.parts[name] for name in names)

    differences = {name: [own.parts[name] - share * other.parts[name] for own, other in pairs] for name in names}
    differences[OUTSIDE] = [outside(own) - share * outside(other) for own, other in pairs]
    whole, expected = [own.whole for own, _ in pairs], [share * other.whole for _, other in pairs]
    total = mean_excess("total", [own - other for own, other in zip(whole, expected, strict=True)])
    parts = (mean_excess(name, values, accounts * len(differences)) for name, values in differences.items())
    return Account(statistics.mean(whole), statistics.mean(expected), total, tuple(parts))


def growth(row: Row, other: Row | None = None) -> Excess | None:
    """Return the share by which epochs got longer from a run's first timed epoch to its last, by linear regression.

    other: a row whose growth is subtracted, block by block. None if a run has fewer than three timed epochs.
    """
    results = [*row.results, *(other.results if other else ())]
    if min((len(result.timed_epochs) for result in results), default=0) < 3:
        return None
    if other:
        shares = [own - theirs for own, theirs in paired(row, other, _growth_of)]
    else:
        shares = [_growth_of(result) for result in row.results]
    return mean_excess("growth", shares) if shares else None


def _growth_of(result: RunResult) -> float:
    samples = np.array([epoch.samples for epoch in result.timed_epochs])  # of slices of a script, unequal
    seconds = np.array([epoch.train_seconds for epoch in result.timed_epochs])
    middles = np.cumsum(samples) - samples / 2
    slope, _ = np.polyfit(middles, seconds / samples, deg=1, w=np.sqrt(samples))
    return float(slope * (middles[-1] - middles[0]) / (seconds.sum() / samples.sum()))


def step_time(result: RunResult) -> Time:
    """Return the milliseconds of a run's mean step, without the warm-up, and of its phases.

    The whole is the slowest rank's. The phases are the critical rank's or, if no ranks were recorded, the slowest
    rank's. Waiting for later ranks is a part of its own (LATE). One device exchanges nothing, in no time.
    """
    epochs, rank = result.timed_epochs, critical_rank(rank_means(result))
    steps = [epoch.steps for epoch in epochs]
    parts = rank.phases if rank else means_by_name([phases_of(epoch.phases) for epoch in epochs], steps)
    if "backward" in parts and len(result.devices) == 1:
        parts = {"exchange": 0.0, LATE: 0.0, **parts}
    elif rank and rank.waited is not None:
        waited = min(rank.waited, rank.exchange)  # it is known of the last steps of an epoch only
        parts = {**parts, "exchange": rank.exchange - waited, LATE: waited}
    parts = {name: parts[name] for name in (*PHASES, LATE) if name in parts}
    return Time(1000 * sum(epoch.train_seconds for epoch in epochs) / sum(steps), parts)


def run_time(result: RunResult) -> Time:
    """Return the seconds of a run, from the start of its command to the end of the last evaluation, and its parts.

    Training is the number of epochs times the mean timed epoch. What a first epoch that warms up takes more is warm-up.
    """
    seconds = sum(epoch.train_seconds for epoch in result.epochs)
    training = len(result.epochs) * statistics.mean(epoch.train_seconds for epoch in result.timed_epochs)
    warm_up = {} if result.timed_from == 1 else {"warm-up": seconds - training}
    evaluation = sum(epoch.evaluate_seconds for epoch in result.epochs)
    parts = {"start-up": result.startup_seconds, **warm_up, "training": training, "evaluation": evaluation}
    return Time(result.total_seconds, parts)


def account_for_steps(row: Row, baseline: Row, devices: float, accounts: int = 1) -> Account | None:
    """Return how a row's mean step differs from ideal scaling of the baseline's, in milliseconds.

    devices: the row's devices ÷ the baseline's. The work of a step is the number of its images, which may differ (weak
    scaling). accounts: as for make_account. None if no block has both rows.
    """
    pairs = paired(row, baseline, step_time)
    if not pairs:
        return None
    images, baseline_images = (images_per_step(some.results[0]) for some in (row, baseline))
    return make_account(pairs, images / baseline_images / devices, accounts)


def images_per_step(result: RunResult) -> float:
    """Return the mean number of images in a step."""
    return result.epochs[-1].samples / result.epochs[-1].steps


def paired(row: Row, baseline: Row, measure: Callable[[RunResult], T]) -> list[tuple[T, T]]:
    """Return a measure of both rows' successful runs, block by block."""
    own, other = (
        {outcome.block: measure(result) for outcome, result in successful_runs(some)} for some in (row, baseline)
    )
    return [(own[block], other[block]) for block in own if block in other]


@dataclass(frozen=True)
class Accounts:
    """Where the time of a row's runs goes.

    steps (milliseconds), runs (seconds): how its mean step and whole run differ from those expected from the baseline;
    None if it has no speed-up, is the baseline, or was disturbed. ranks: every rank's means over the runs, if recorded.
    straggler, queued, throttled, cores: see comparison.judge.ranks. growth: see growth(). relative_growth: the growth
    minus the baseline's; without a baseline, the row's own. usual: by phase, the milliseconds that long steps add to
    the baseline's, scaled ideally.
    """

    steps: Account | None = None
    runs: Account | None = None
    ranks: tuple[RankMeans, ...] = ()
    straggler: Straggler | None = None
    queued: Excess | None = None
    throttled: Excess | None = None
    cores: Excess | None = None
    growth: Excess | None = None
    relative_growth: Excess | None = None
    usual: dict[str, float] = field(default_factory=dict)


def find_accounts(row: Row, standing: Standing) -> Accounts:
    """Return where the time of a row's runs goes, alone and compared with its baseline's."""
    if not row.results:
        return Accounts()
    runs, own_growth = [rank_means(result) for result in row.results], growth(row)
    baseline = standing.baseline if standing.baseline is not row else None
    steps, whole, usual = None, None, {}
    if baseline and standing.speed_up and not (row.disturbed or baseline.disturbed):
        ideal = images_per_step(row.results[0]) / images_per_step(baseline.results[0]) / standing.devices
        for rank in mean_ranks([rank_means(result) for result in baseline.results])[:1]:
            usual = {name: long.milliseconds * ideal for name, long in rank.long.items()}
        steps = account_for_steps(row, baseline, standing.devices, standing.accounts)
        pairs = [] if row.configuration.is_script else paired(row, baseline, run_time)
        whole = make_account(pairs, 1.0, standing.accounts) if pairs else None
    return Accounts(
        steps=steps,
        runs=whole,
        ranks=mean_ranks(runs),
        straggler=find_straggler(runs),
        queued=queued_share(runs, row.results[0].threads_per_process),
        throttled=throttled_share(row.results),
        cores=cores_computing(runs),
        growth=own_growth,
        relative_growth=growth(row, baseline) if baseline and baseline.results else own_growth,
        usual=usual,
    )
