"""The mean step and the whole run of a row, and of each of its ranks: by themselves, and against the baseline's.

Of a step, an even share of the baseline's work is expected, phase by phase; of a whole run, the baseline's own time.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.files.results import RunResult, phase_names
from comparison.judge.accounting import OUTSIDE, Account, Excess, Time, make_account, mean_excess
from comparison.record import Row


@dataclass(frozen=True)
class RankMeans:
    """One rank in the mean step of a run without its warm-up. Milliseconds.

    work: all but the phase in which it waits for the other ranks, which is `exchange`. cpu: computing, all its threads
    together. queued: its threads were ready to run and had no core; None where the kernel does not tell.
    """

    step: float
    work: float
    exchange: float
    cpu: float
    queued: float | None
    phases: dict[str, float]


def rank_means(result: RunResult) -> list[RankMeans]:
    """Return every rank's means; nothing for an older result, which kept no ranks."""
    epochs = result.timed_epochs
    steps = [epoch.steps for epoch in epochs]
    return [_means(times, steps) for times in zip(*(epoch.ranks for epoch in epochs), strict=False)]


def _means(times, steps):
    """times: one rank's RankTimes; steps: how many each epoch had."""
    train, cpu = (
        1000 * sum(getattr(epoch, name) for epoch in times) / sum(steps) for name in ("train_seconds", "cpu_seconds")
    )
    queued = None
    if all(epoch.queue_seconds is not None for epoch in times):
        queued = 1000 * sum(epoch.queue_seconds for epoch in times) / sum(steps)
    phases = _mean_phases([epoch.phases for epoch in times], steps)
    exchange = phases.get("exchange", 0.0)
    return RankMeans(train, train - exchange, exchange, cpu, queued, phases)


def _mean_phases(phases, steps):
    """The mean over all steps of each phase that is known in every epoch."""
    names = [name for name in phase_names() if name != "rest" and all(name in epoch.known for epoch in phases)]
    return {
        name: sum(getattr(epoch, name) * weight for epoch, weight in zip(phases, steps, strict=True)) / sum(steps)
        for name in names
    }


def mean_ranks(results: Sequence[RunResult]) -> tuple[RankMeans, ...]:
    """Return every rank's means over several runs; nothing where one of them kept no ranks."""
    return tuple(_mean_rank(runs) for runs in zip(*map(rank_means, results), strict=False))


def _mean_rank(runs):
    def mean(name):
        values = [getattr(means, name) for means in runs]
        return None if None in values else statistics.mean(values)

    phases = {name: statistics.mean(means.phases[name] for means in runs) for name in runs[0].phases}
    return RankMeans(**{name: mean(name) for name in ("step", "work", "exchange", "cpu", "queued")}, phases=phases)


def critical_rank(result: RunResult) -> RankMeans | None:
    """Return the means of the rank that the others wait for: the one with the most work.

    Without an exchange, or where it is not told apart, it is the slowest. None in an older result.
    """
    return max(rank_means(result), key=lambda rank: rank.work, default=None)


def step_time(result: RunResult) -> Time:
    """Return the milliseconds of a run's mean step, without the warm-up's, and of its phases.

    The whole is the slowest rank's, the phases are the critical rank's; where no rank was kept, the slowest one's. One
    device exchanges nothing, in no time.
    """
    epochs, rank = result.timed_epochs, critical_rank(result)
    steps = [epoch.steps for epoch in epochs]
    parts = rank.phases if rank else _mean_phases([epoch.phases for epoch in epochs], steps)
    if "backward" in parts and len(result.devices) == 1:
        parts = {"exchange": 0.0, **parts}
    return Time(
        1000 * sum(epoch.train_seconds for epoch in epochs) / sum(steps),
        {name: parts[name] for name in phase_names() if name in parts},
    )


@dataclass(frozen=True)
class Straggler:
    """The rank that has most to do. longer: milliseconds per step more than the others' mean, with an interval.

    phase: where most of that is.
    """

    rank: int
    longer: Excess
    phase: str


def find_straggler(results: Sequence[RunResult]) -> Straggler | None:
    """Return the rank with the most work in the runs' mean step; None where there is one rank, or ranks were not kept.

    As it is chosen among all ranks, its interval is that of one of so many claims.
    """
    runs = [rank_means(result) for result in results]
    ranks = min(map(len, runs), default=0)
    if ranks < 2:
        return None

    def longer(rank, measure):
        return [
            measure(means[rank]) - statistics.mean(measure(other) for other in means if other is not means[rank])
            for means in runs
        ]

    slowest = max(range(ranks), key=lambda rank: sum(longer(rank, lambda means: means.work)))
    phases = set.intersection(*({*means.phases} for means in runs[0])) - {"exchange"}
    phase = max(phases, default=OUTSIDE, key=lambda name: sum(longer(slowest, lambda means: means.phases[name])))
    return Straggler(slowest, mean_excess("straggler", longer(slowest, lambda means: means.work), ranks), phase)


def queued_share(results: Sequence[RunResult]) -> Excess | None:
    """Return which part of a step the threads of a rank were ready to run and had no core, 0..1; None if not known."""
    runs = [rank_means(result) for result in results]
    if not all(runs) or any(means.queued is None for ranks in runs for means in ranks):
        return None
    return mean_excess(
        "queued",
        [
            statistics.mean(means.queued / means.step for means in ranks) / result.threads_per_process
            for ranks, result in zip(runs, results, strict=True)
        ],
    )


def cores_computing(results: Sequence[RunResult]) -> Excess | None:
    """Return how many cores the rank with the most work kept busy, at most, in forward, backward and update.

    All that it computed is taken as done in these phases. None if they, or what it computed, are not known, or if ranks
    may wait for one another in them, as no exchange is told apart.
    """
    ranks = [critical_rank(result) for result in results]
    names = ("forward", "backward", "update")
    for rank, result in zip(ranks, results, strict=True):
        needed = (*names, "exchange") if result.world_size > 1 else names
        if not rank or any(name not in rank.phases for name in needed):
            return None
    return mean_excess("cores", [rank.cpu / sum(rank.phases[name] for name in names) for rank in ranks])


def growth(results: Sequence[RunResult]) -> Excess | None:
    """Return by which share epochs got longer from a run's first timed epoch to its last, along a straight line.

    None where a run has less than three timed epochs.
    """
    if min((len(result.timed_epochs) for result in results), default=0) < 3:
        return None
    return mean_excess("growth", list(map(_growth_of, results)))


def growth_beside(row: Row, other: Row) -> Excess | None:
    """Return by how much more a row's epochs grow than another's, block by block; None as for growth()."""
    if not growth(row.results) or not growth(other.results):
        return None
    pairs = _pairs(row, other, _growth_of)
    return mean_excess("growth", [own - theirs for own, theirs in pairs]) if pairs else None


def _growth_of(result):
    seconds = [epoch.train_seconds for epoch in result.timed_epochs]
    slope = statistics.linear_regression(range(len(seconds)), seconds).slope
    return slope * (len(seconds) - 1) / statistics.mean(seconds)


def account_for_steps(row: Row, baseline: Row, devices: float) -> Account | None:
    """Return where a row's mean step is longer than an even share of the baseline's work, in milliseconds.

    devices: how many times as many the row has as the baseline. What is to be done in a step is told by its images,
    which may differ (weak scaling). None if no block has both.
    """
    pairs = _pairs(row, baseline, step_time)
    if not pairs:
        return None
    images, equal_images = (_images_per_step(some.results[0]) for some in (row, baseline))
    return make_account(pairs, images / equal_images / devices)


def account_for_runs(row: Row, baseline: Row) -> Account | None:
    """Return where a row's whole run is longer than the baseline's, in seconds. None if no block has both."""
    pairs = _pairs(row, baseline, run_time)
    return make_account(pairs, 1.0) if pairs else None


def _pairs(row, baseline, measure):
    """What is measured of both rows' runs that ended well, block by block."""
    own, other = (
        {outcome.block: measure(outcome.result) for outcome in some.outcomes if outcome.status == "ok"}
        for some in (row, baseline)
    )
    return [(own[block], other[block]) for block in own if block in other]


def _images_per_step(result):
    return result.epochs[-1].samples / result.epochs[-1].steps


def run_time(result: RunResult) -> Time:
    """Return the seconds of a whole run, from its command's start to the end of the last evaluation, and its parts.

    Training is the mean timed epoch, times all epochs; by how much the first one was longer is warm-up.
    """
    seconds = sum(epoch.train_seconds for epoch in result.epochs)
    training = len(result.epochs) * statistics.mean(epoch.train_seconds for epoch in result.timed_epochs)
    return Time(
        result.total_seconds,
        {
            "start-up": result.startup_seconds,
            "warm-up": seconds - training,
            "training": training,
            "evaluation": sum(epoch.evaluate_seconds for epoch in result.epochs),
        },
    )
