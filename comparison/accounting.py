"""What a row's time differs by from what was expected of it: parts with an interval each, which add up.

Of a step, an even share of the baseline's work is expected, phase by phase; of a whole run, the baseline's own time.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.results import RunResult, phase_names
from comparison.measures import timed_epochs
from comparison.record import Row
from comparison.statistics import CONFIDENCE, t_quantile

OUTSIDE = "outside"


@dataclass(frozen=True)
class Excess:
    """By how much a time is longer than expected (shorter, if negative): the mean over the blocks, and its interval.

    low, high: None with one block.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def proved(self) -> bool:
        """Whether its interval lies on one side of 0."""
        return self.low is not None and (self.low > 0 or self.high < 0)

    @property
    def margin(self) -> float | None:
        """Half of its interval, which is symmetric."""
        return None if self.low is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Account:
    """How a time differs from what was expected, and the parts of that difference; all in one unit.

    value, expected: means over the blocks in which both were measured; total: value - expected, with its own interval.
    parts: add up to total.value, in the order of a step or run; their intervals hold together.
    """

    value: float
    expected: float
    total: Excess
    parts: tuple[Excess, ...]

    @property
    def proved(self) -> list[Excess]:
        """The parts whose interval lies on one side of 0, the largest first."""
        return sorted((part for part in self.parts if part.proved), key=lambda part: -abs(part.value))


@dataclass(frozen=True)
class Time:
    """One measured time, and the parts of it that are known: together at most as long."""

    whole: float
    parts: dict[str, float]


def make_account(pairs: Sequence[tuple[Time, Time]], share: float) -> Account:
    """Return how the first times of all pairs differ from `share` x the second ones, on average.

    A pair is one block: the row's time and the baseline's. A part that is not known of all times is in "outside", with
    all else that is in no part. Intervals are Student's, on the blocks' differences: of the total with 95 %
    confidence; of each of k parts with 1 - 5 %/k, so that all of them together have 95 % (Bonferroni's inequality).
    """
    known = set.intersection(*({*time.parts} for pair in pairs for time in pair))
    names = [name for name in pairs[0][0].parts if name in known]
    differences = {
        **{name: [own.parts[name] - share * other.parts[name] for own, other in pairs] for name in names},
        OUTSIDE: [_outside(own, names) - share * _outside(other, names) for own, other in pairs],
    }
    whole = [own.whole for own, _ in pairs]
    expected = [share * other.whole for _, other in pairs]
    total = mean_excess("total", [own - other for own, other in zip(whole, expected, strict=True)])
    parts = (mean_excess(name, values, len(differences)) for name, values in differences.items())
    return Account(statistics.mean(whole), statistics.mean(expected), total, tuple(parts))


def _outside(time, names):
    return time.whole - math.fsum(time.parts[name] for name in names)


def mean_excess(name: str, values: Sequence[float], claims: int = 1) -> Excess:
    """Return the mean of the blocks' values with Student's interval, which holds as one of so many with 95 %."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return Excess(name, mean)
    confidence = 1 - (1 - CONFIDENCE) / claims
    margin = t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Excess(name, mean, mean - margin, mean + margin)


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
    epochs = timed_epochs(result)
    steps = [epoch.steps for epoch in epochs]
    return [_means(ranks, steps) for ranks in zip(*(epoch.ranks for epoch in epochs), strict=True)]


def _means(times, steps):
    """times: one rank's RankTimes; steps: how many each epoch had."""
    train, cpu = (1000 * sum(getattr(epoch, name) for epoch in times) / sum(steps) for name in (
        "train_seconds", "cpu_seconds"))
    queued = None
    if all(epoch.queue_seconds is not None for epoch in times):
        queued = 1000 * sum(epoch.queue_seconds for epoch in times) / sum(steps)
    phases = _mean_phases([epoch.phases for epoch in times], steps)
    exchange = phases.get("exchange", 0.0)
    return RankMeans(train, train - exchange, exchange, cpu, queued, phases)


def _mean_phases(phases, steps):
    """The mean over all steps of each phase that is known in every epoch."""
    names = [name for name in phase_names() if name != "rest" and all(name in epoch.known for epoch in phases)]
    return {name: sum(getattr(epoch, name) * weight for epoch, weight in zip(phases, steps, strict=True)) / sum(steps)
            for name in names}


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
    epochs, rank = timed_epochs(result), critical_rank(result)
    steps = [epoch.steps for epoch in epochs]
    parts = rank.phases if rank else _mean_phases([epoch.phases for epoch in epochs], steps)
    if "backward" in parts and len(result.devices) == 1:
        parts = {"exchange": 0.0, **parts}
    return Time(1000 * sum(epoch.train_seconds for epoch in epochs) / sum(steps),
                {name: parts[name] for name in phase_names() if name in parts})


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
    own, other = ({outcome.block: measure(outcome.result) for outcome in some.outcomes if outcome.status == "ok"}
                  for some in (row, baseline))
    return [(own[block], other[block]) for block in own if block in other]


def _images_per_step(result):
    return result.epochs[-1].samples / result.epochs[-1].steps


def run_time(result: RunResult) -> Time:
    """Return the seconds of a whole run, from its command's start to the end of the last evaluation, and its parts.

    Of the first epoch, what is above the mean of the others is warm-up.
    """
    timed, first = timed_epochs(result), result.epochs[0].train_seconds
    training = statistics.mean(epoch.train_seconds for epoch in timed)
    return Time(result.total_seconds, {
        "start-up": result.startup_seconds, "warm-up": first - training if len(result.epochs) > 1 else 0.0,
        "training": training * len(timed) + (training if len(result.epochs) > 1 else 0.0),
        "evaluation": sum(epoch.evaluate_seconds for epoch in result.epochs),
    })
