"""The mean step and the whole run of a row: by themselves, and against the baseline's.

A step is expected to scale ideally, phase by phase; a whole run, to take as long as the baseline's.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from common.files.results import PHASES, RunResult
from comparison.judge.fairness import Standing
from comparison.judge.measures import done
from comparison.judge.ranks import (
    OUTSIDE,
    RankMeans,
    Straggler,
    cores_computing,
    critical_rank,
    find_straggler,
    mean_phases,
    mean_ranks,
    queued_share,
    rank_means,
    throttled_share,
)
from comparison.judge.statistics import Excess, mean_excess
from comparison.rows import Row

T = TypeVar("T")
LATE = "late ranks"


@dataclass(frozen=True)
class Time:
    """One measured time, and the parts of it that are known: together at most as long."""

    whole: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Account:
    """How a time differs from what was expected, and the parts of that difference; all in one unit.

    value, expected: means over the blocks in which both were measured; total: value - expected, with its own interval.
    parts: add up to total.value, in the order of a step or run; their intervals hold together with those of all the
    accounts that are told beside it.
    """

    value: float
    expected: float
    total: Excess
    parts: tuple[Excess, ...]

    @property
    def proved(self) -> list[Excess]:
        """The parts whose interval lies on one side of 0, the largest first."""
        return sorted((part for part in self.parts if part.proved), key=lambda part: -abs(part.value))


def make_account(pairs: Sequence[tuple[Time, Time]], share: float, accounts: int = 1) -> Account:
    """Return how the first times of all pairs differ from `share` x the second ones, on average.

    A pair is one block: the row's time and the baseline's. A part that is not known of all times is in "outside", with
    all else that is in no part. Intervals are Student's, on the blocks' differences: of the total with 95%
    confidence; of each of k parts with 1 - 5%/k/accounts, so that all parts of so many accounts together have 95%
    (Bonferroni's inequality).
    """
    names = [name for name in pairs[0][0].parts if all(name in time.parts for pair in pairs for time in pair)]
    if LATE in names and not any(own.parts[LATE] for own, _ in pairs):  # one device beside another
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
    """Return by which share epochs got longer from a run's first timed epoch to its last, along a straight line.

    other: by how much more than that row's, block by block. None where a run has less than three timed epochs.
    """
    results = [*row.results, *(other.results if other else ())]
    if min((len(result.timed_epochs) for result in results), default=0) < 3:
        return None
    shares = [_growth_of(result) for result in row.results]
    if other:
        shares = [own - theirs for own, theirs in paired(row, other, _growth_of)]
    return mean_excess("growth", shares) if shares else None


def _growth_of(result: RunResult) -> float:
    seconds = [epoch.train_seconds / epoch.samples for epoch in result.timed_epochs]  # of equal work
    slope = statistics.linear_regression(range(len(seconds)), seconds).slope
    return slope * (len(seconds) - 1) / statistics.mean(seconds)


def step_time(result: RunResult) -> Time:
    """Return the milliseconds of a run's mean step, without the warm-up's, and of its phases.

    The whole is the slowest rank's, the phases are the critical rank's; where no rank was kept, the slowest one's. What
    it waited for a later one is a part of its own (LATE). One device exchanges nothing, in no time.
    """
    epochs, rank = result.timed_epochs, critical_rank(rank_means(result))
    steps = [epoch.steps for epoch in epochs]
    parts = rank.phases if rank else mean_phases([epoch.phases for epoch in epochs], steps)
    if "backward" in parts and len(result.devices) == 1:
        parts = {"exchange": 0.0, LATE: 0.0, **parts}
    elif rank and rank.waited is not None:
        parts = {**parts, "exchange": rank.exchange - rank.waited, LATE: rank.waited}
    parts = {name: parts[name] for name in (*PHASES, LATE) if name in parts}
    return Time(1000 * sum(epoch.train_seconds for epoch in epochs) / sum(steps), parts)


def run_time(result: RunResult) -> Time:
    """Return the seconds of a whole run, from its command's start to the end of the last evaluation, and its parts.

    Training is the mean timed epoch, times all epochs; by how much the first one was longer is warm-up.
    """
    seconds = sum(epoch.train_seconds for epoch in result.epochs)
    training = len(result.epochs) * statistics.mean(epoch.train_seconds for epoch in result.timed_epochs)
    parts = {
        "start-up": result.startup_seconds,
        "warm-up": seconds - training,
        "training": training,
        "evaluation": sum(epoch.evaluate_seconds for epoch in result.epochs),
    }
    return Time(result.total_seconds, parts)


def account_for_steps(row: Row, baseline: Row, devices: float, accounts: int = 1) -> Account | None:
    """Return where a row's mean step is above ideal scaling of the baseline's, in milliseconds.

    devices: how many times as many the row has as the baseline. What is to be done in a step is told by its images,
    which may differ (weak scaling). accounts: how many are told. None if no block has both.
    """
    pairs = paired(row, baseline, step_time)
    if not pairs:
        return None
    last = [some.results[0].epochs[-1] for some in (row, baseline)]
    images, equal_images = (epoch.samples / epoch.steps for epoch in last)
    return make_account(pairs, images / equal_images / devices, accounts)


def account_for_runs(row: Row, baseline: Row, accounts: int = 1) -> Account | None:
    """Return where a row's whole run is longer than the baseline's, in seconds. None if no block has both."""
    pairs = paired(row, baseline, run_time)
    return make_account(pairs, 1.0, accounts) if pairs else None


def paired(row: Row, baseline: Row, measure: Callable[[RunResult], T]) -> list[tuple[T, T]]:
    """Return what is measured of both rows' runs that ended well, block by block."""
    own, other = ({outcome.block: measure(result) for outcome, result in done(some)} for some in (row, baseline))
    return [(own[block], other[block]) for block in own if block in other]


@dataclass(frozen=True)
class Accounts:
    """What the runs of a row tell of its time.

    steps (milliseconds), runs (seconds): how its mean step and whole run differ from what the baseline lets expect;
    None where it has no speed-up, is the baseline, or was disturbed. ranks: every rank's means over the runs, if they
    were kept. straggler, queued, throttled, cores, growth: see the functions of this module. beside: the growth beside
    the baseline's; of a row that is compared with none, its own. usual: by phase, the milliseconds by which long steps
    lengthen the baseline's, scaled ideally.
    """

    steps: Account | None = None
    runs: Account | None = None
    ranks: tuple[RankMeans, ...] = ()
    straggler: Straggler | None = None
    queued: Excess | None = None
    throttled: Excess | None = None
    cores: Excess | None = None
    growth: Excess | None = None
    beside: Excess | None = None
    usual: dict[str, float] = field(default_factory=dict)


def find_accounts(row: Row, standing: Standing) -> Accounts:
    """Return what the runs of a row tell of its time, by themselves and beside its baseline's."""
    if not row.results:
        return Accounts()
    runs, alone = [rank_means(result) for result in row.results], growth(row)
    baseline = standing.baseline if standing.baseline is not row else None
    steps, whole, usual = None, None, {}
    if baseline and standing.speed_up and not (row.disturbed or baseline.disturbed):
        for rank in mean_ranks([rank_means(result) for result in baseline.results])[:1]:
            usual = {name: long.milliseconds / standing.devices for name, long in rank.long.items()}
        steps = account_for_steps(row, baseline, standing.devices, standing.accounts)
        whole = None if row.configuration.is_script else account_for_runs(row, baseline, standing.accounts)
    return Accounts(
        steps,
        whole,
        mean_ranks(runs),
        find_straggler(runs),
        queued_share(runs, row.results[0].threads_per_process),
        throttled_share(row.results),
        cores_computing(runs),
        alone,
        growth(row, baseline) if baseline and baseline.results else alone,
        usual,
    )
