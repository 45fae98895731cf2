"""The mean step and the whole run of a row, and of each of its ranks: by themselves, and against the baseline's.

Of a step, an even share of the baseline's work is expected, phase by phase; of a whole run, the baseline's own time.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from common.files.results import PHASES, PhaseTimes, RankTimes, RunResult, Waits
from comparison.judge.fairness import Standing
from comparison.judge.measures import done
from comparison.judge.statistics import Excess, mean_excess
from comparison.rows import Row

T = TypeVar("T")
OUTSIDE, LATE = "outside", "late ranks"
COMPUTATION = ("forward", "backward", "update")


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
    all else that is in no part. Intervals are Student's, on the blocks' differences: of the total with 95 %
    confidence; of each of k parts with 1 - 5 %/k/accounts, so that all parts of so many accounts together have 95 %
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


@dataclass(frozen=True)
class RankMeans:
    """One rank in the mean step of a run, or of several, without the warm-up. Milliseconds.

    cpu: computing, all its threads together. queued: its threads were ready to run and had no core; None where the
    kernel does not tell. waited, caused: as in Waits; None and nothing where that is not told.
    """

    step: float
    cpu: float
    queued: float | None
    phases: dict[str, float]
    waited: float | None = None
    caused: dict[str, float] = field(default_factory=dict)

    @property
    def exchange(self) -> float:
        """The phase in which it waits for the other ranks."""
        return self.phases.get("exchange", 0.0)

    @property
    def work(self) -> float:
        """All but that."""
        return self.step - self.exchange


Ranks = Sequence[RankMeans]  # of one run


def rank_means(result: RunResult) -> list[RankMeans]:
    """Return every rank's means; nothing for an older result, which kept no ranks."""
    epochs = result.timed_epochs
    steps = [epoch.steps for epoch in epochs]
    return [_means(times, steps) for times in zip(*(epoch.ranks for epoch in epochs), strict=False)]


def _means(times: Sequence[RankTimes], steps: Sequence[int]) -> RankMeans:
    """times: one rank's in each epoch; steps: how many each epoch had."""

    def per_step(seconds: Sequence[float]) -> float:
        return 1000 * sum(seconds) / sum(steps)

    queues = [epoch.queue_seconds for epoch in times if epoch.queue_seconds is not None]
    return RankMeans(
        per_step([epoch.train_seconds for epoch in times]),
        per_step([epoch.cpu_seconds for epoch in times]),
        per_step(queues) if len(queues) == len(times) else None,
        _mean_phases([epoch.phases for epoch in times], steps),
        *_mean_waits([epoch.waits for epoch in times], steps),
    )


def _mean_waits(waits: Sequence[Waits | None], steps: Sequence[int]) -> tuple[float | None, dict[str, float]]:
    """The means of what a rank waited, and of what the others waited for it, if every epoch tells it."""
    told = [some for some in waits if some]
    if len(told) < len(waits):
        return None, {}
    shares = [count / sum(steps) for count in steps]
    weighted = list(zip(told, shares, strict=True))
    caused = {name: sum(some.caused[name] * share for some, share in weighted) for name in told[0].caused}
    return sum(some.waited * share for some, share in weighted), caused


def _mean_phases(phases: Sequence[PhaseTimes], steps: Sequence[int]) -> dict[str, float]:
    """The mean over all steps of each phase that is known in every epoch."""
    known = [epoch.known for epoch in phases]
    names = [name for name in PHASES if name != "rest" and all(name in epoch for epoch in known)]
    return {
        name: sum(epoch[name] * weight for epoch, weight in zip(known, steps, strict=True)) / sum(steps)
        for name in names
    }


def mean_ranks(runs: Sequence[Ranks]) -> tuple[RankMeans, ...]:
    """Return every rank's means over several runs; nothing where one of them kept no ranks."""
    return tuple(_mean_rank(means) for means in zip(*runs, strict=False))


def _mean_rank(runs: Ranks) -> RankMeans:
    queues = [means.queued for means in runs if means.queued is not None]
    return RankMeans(
        statistics.mean(means.step for means in runs),
        statistics.mean(means.cpu for means in runs),
        statistics.mean(queues) if len(queues) == len(runs) else None,
        {name: statistics.mean(means.phases[name] for means in runs) for name in runs[0].phases},
        statistics.mean(means.waited or 0.0 for means in runs) if runs[0].waited is not None else None,
        {name: statistics.mean(means.caused.get(name, 0.0) for means in runs) for name in runs[0].caused},
    )


def critical_rank(ranks: Ranks) -> RankMeans | None:
    """Return the means of the rank that the others wait for: the one with the most work.

    Without an exchange, or where it is not told apart, it is the slowest. None in an older result.
    """
    return max(ranks, key=lambda rank: rank.work, default=None)


@dataclass(frozen=True)
class Straggler:
    """The rank that has most to do. longer: milliseconds per step more than the others' mean, with an interval.

    phase: where most of that is.
    """

    rank: int
    longer: Excess
    phase: str


def find_straggler(runs: Sequence[Ranks]) -> Straggler | None:
    """Return the rank with the most work in the runs' mean step; None where there is one rank, or ranks were not kept.

    As it is chosen among all ranks, its interval is that of one of so many claims.
    """
    ranks = min(map(len, runs), default=0)
    if ranks < 2:
        return None

    def longer(rank: int, measure: Callable[[RankMeans], float]) -> list[float]:
        values = [[measure(means) for means in run] for run in runs]
        return [own[rank] - statistics.mean(own[:rank] + own[rank + 1 :]) for own in values]

    work = attrgetter("work")
    slowest = max(range(ranks), key=lambda rank: sum(longer(rank, work)))
    known = [name for name in runs[0][0].phases if all(name in means.phases for means in runs[0])]
    phases = [name for name in known if name != "exchange"]
    phase = max(phases, default=OUTSIDE, key=lambda name: sum(longer(slowest, lambda means: means.phases[name])))
    return Straggler(slowest, mean_excess("straggler", longer(slowest, work), ranks), phase)


def queued_share(runs: Sequence[Ranks], threads: int) -> Excess | None:
    """Return which part of a step the threads of a rank were ready to run and had no core, 0..1; None if not known."""
    shares = [[means.queued / means.step for means in ranks if means.queued is not None] for ranks in runs]
    if not all(shares) or any(len(own) < len(ranks) for own, ranks in zip(shares, runs, strict=True)):
        return None
    return mean_excess("queued", [statistics.mean(own) / threads for own in shares])


def cores_computing(runs: Sequence[Ranks]) -> Excess | None:
    """Return how many cores the rank with the most work kept busy, at most, in forward, backward and update.

    All that it computed is taken as done in these phases. None if they, or what it computed, are not known, or if ranks
    may wait for one another in them, as no exchange is told apart.
    """
    ranks = [critical_rank(run) for run in runs]
    for rank, run in zip(ranks, runs, strict=True):
        needed = (*COMPUTATION, "exchange") if len(run) > 1 else COMPUTATION
        if not rank or any(name not in rank.phases for name in needed):
            return None
    return mean_excess("cores", [rank.cpu / sum(rank.phases[name] for name in COMPUTATION) for rank in ranks if rank])


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
    seconds = [epoch.train_seconds for epoch in result.timed_epochs]
    slope = statistics.linear_regression(range(len(seconds)), seconds).slope
    return slope * (len(seconds) - 1) / statistics.mean(seconds)


def step_time(result: RunResult) -> Time:
    """Return the milliseconds of a run's mean step, without the warm-up's, and of its phases.

    The whole is the slowest rank's, the phases are the critical rank's; where no rank was kept, the slowest one's. What
    it waited for a later one is a part of its own (LATE). One device exchanges nothing, in no time.
    """
    epochs, rank = result.timed_epochs, critical_rank(rank_means(result))
    steps = [epoch.steps for epoch in epochs]
    parts = rank.phases if rank else _mean_phases([epoch.phases for epoch in epochs], steps)
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
    """Return where a row's mean step is longer than an even share of the baseline's work, in milliseconds.

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
    were kept. straggler, queued, cores, growth: see the functions of this module. beside: the growth beside the
    baseline's; of a row that is compared with none, its own.
    """

    steps: Account | None = None
    runs: Account | None = None
    ranks: tuple[RankMeans, ...] = ()
    straggler: Straggler | None = None
    queued: Excess | None = None
    cores: Excess | None = None
    growth: Excess | None = None
    beside: Excess | None = None


def find_accounts(row: Row, standing: Standing) -> Accounts:
    """Return what the runs of a row tell of its time, by themselves and beside its baseline's."""
    if not row.results:
        return Accounts()
    runs, alone = [rank_means(result) for result in row.results], growth(row)
    baseline = standing.baseline if standing.baseline is not row else None
    steps = whole = None
    if baseline and standing.speed_up and not (row.disturbed or baseline.disturbed):
        steps = account_for_steps(row, baseline, standing.devices, standing.accounts)
        whole = account_for_runs(row, baseline, standing.accounts)
    return Accounts(
        steps,
        whole,
        mean_ranks(runs),
        find_straggler(runs),
        queued_share(runs, row.results[0].threads_per_process),
        cores_computing(runs),
        alone,
        growth(row, baseline) if baseline and baseline.results else alone,
    )
