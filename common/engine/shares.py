"""Each rank's share of an epoch, and how the shares of all ranks become one EpochRecord."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.files.results import PHASES, EpochRecord, LongSteps, PhaseTimes, RankTimes, Waits

RING = 500  # last steps of an epoch that are kept
FEWEST_STEPS = 20  # with fewer, no step is called long
MIN_DEVIATIONS = 3.0  # of the short steps' logarithms, from their mean to the shortest long step
MIN_COST = 0.01  # by which long steps must lengthen the mean step
MIN_EQUAL_GAPS = 0.8  # share of equal gaps between long steps if they have a period
COLUMNS = {name: column for column, name in enumerate(PHASES)}
EXCHANGE, AFTER_EXCHANGE = COLUMNS["exchange"], [COLUMNS["update"], COLUMNS["rest"]]
Series = tuple[tuple[float, ...], ...]  # (steps, phases), milliseconds


@dataclass(frozen=True)
class Training:
    """One rank's share of a training epoch: seconds, sums over its images, milliseconds per phase.

    cpu_seconds, queue_seconds, throttled_seconds: see CoreClock. start: by time.monotonic(); None if an earlier run
    started the epoch. series: the phases of each step, from series_of().
    """

    data_rank: int
    seconds: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    steps: int = 0
    phase_milliseconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    queue_seconds: float | None = None
    throttled_seconds: float | None = None
    start: float | None = None
    series: Series = ()

    def with_earlier_part(self, earlier: "Training") -> "Training":
        """Add the times of an earlier run's part of this epoch. The sums over images already include it."""
        phases, before = self.phase_milliseconds, earlier.phase_milliseconds
        return replace(
            self,
            seconds=earlier.seconds + self.seconds,
            phase_milliseconds={name: before.get(name, 0.0) + phases.get(name, 0.0) for name in {**before, **phases}},
            cpu_seconds=earlier.cpu_seconds + self.cpu_seconds,
            queue_seconds=_add_known(earlier.queue_seconds, self.queue_seconds),
            throttled_seconds=_add_known(earlier.throttled_seconds, self.throttled_seconds),
            start=None,
        )


def _add_known(earlier, later):
    return None if later is None else (earlier or 0.0) + later


@dataclass(frozen=True)
class Evaluation:
    """One rank's share of an evaluation: seconds, sum of losses, correct and all images per class."""

    data_rank: int
    seconds: float
    loss_sum: float
    correct: list[int]
    counts: list[int]


def merge(epoch: int, trainings: list[Training], evaluations: list[Evaluation]) -> EpochRecord:
    """Return one record for all ranks: total counts, the slowest rank's times, and each rank's own times.

    Unknown values, e.g. without evaluations, are NaN.
    """
    same_images = len({part.data_rank for part in trainings}) < len(trainings)
    waits = waits_of([() if same_images else part.series for part in trainings])
    uneven = any(part.samples % max(1, part.steps) for part in trainings)  # the last batch is smaller, on all ranks
    ranks = tuple(
        RankTimes(
            train_seconds=part.seconds,
            phases=_phases(part),
            cpu_seconds=part.cpu_seconds,
            queue_seconds=part.queue_seconds,
            waits=rank_waits,
            long_steps=long_steps_of(part.series[:-1] if uneven else part.series),
            throttled_seconds=part.throttled_seconds,
        )
        for part, rank_waits in zip(trainings, waits, strict=True)
    )
    slowest = max(trainings, key=lambda part: part.seconds)
    start, evaluate_seconds = trainings[0].start, max((part.seconds for part in evaluations), default=math.nan)
    trainings, evaluations = one_per_share(trainings), one_per_share(evaluations)
    samples = sum(part.samples for part in trainings)
    tested = sum(sum(part.counts) for part in evaluations) or math.nan
    return EpochRecord(
        epoch=epoch,
        train_seconds=slowest.seconds,
        evaluate_seconds=evaluate_seconds,
        samples=samples,
        steps=slowest.steps,
        train_loss=sum(part.loss_sum for part in trainings) / (samples or math.nan),
        test_loss=sum(part.loss_sum for part in evaluations) / tested,
        test_accuracy=sum(sum(part.correct) for part in evaluations) / tested,
        phases=_phases(slowest),
        ranks=ranks,
        start=start,
    )


def _phases(part):
    """Return the mean milliseconds of each phase. "rest" is dropped if transfer, forward and backward are known."""
    times = PhaseTimes(**{name: total / part.steps for name, total in part.phase_milliseconds.items()})
    return times if None in (times.transfer, times.forward, times.backward) else replace(times, rest=None)


def one_per_share(parts: list) -> list:
    """Return one Training or Evaluation per share of the data: that of the last rank with the share."""
    return list({part.data_rank: part for part in parts}.values())


def series_of(phases: Iterable[tuple[str, float]]) -> Series:
    """Return the milliseconds of each phase in each of the last RING steps. A step begins with its data phase."""
    steps: deque[list[float]] = deque(maxlen=RING)
    for name, milliseconds in phases:
        if name == "data":
            steps.append([0.0] * len(PHASES))
        if name and steps:
            steps[-1][COLUMNS[name]] += milliseconds
    return tuple(map(tuple, steps))


def waits_of(ranks: Sequence[Series]) -> tuple[Waits | None, ...]:
    """Return how long each rank waited in the exchange and what it made the others wait for; None without exchanges.

    No clocks are compared. An all-reduce ends on all ranks at once, so the rank with the shortest exchange came last:
    its exchange is the time for sending, and the others waited for as long as theirs took more.
    """
    times = np.array(ranks) if len({len(series) for series in ranks}) == 1 else np.zeros(0)
    if len(ranks) < 2 or times.ndim < 3 or not times[:, :, EXCHANGE].all():
        return (None,) * len(ranks)
    exchange, steps = times[:, :, EXCHANGE], times.shape[1]
    waiting = exchange - exchange.min(axis=0)
    last, lateness = exchange.argmin(axis=0), waiting.sum(axis=0) / (len(ranks) - 1)
    work = times.copy()
    work[:, :, EXCHANGE] = 0.0
    work[:, 1:, AFTER_EXCHANGE] = times[:, :-1, AFTER_EXCHANGE]  # phases after an exchange delay the next one
    work[:, 0, AFTER_EXCHANGE] = 0.0
    of_last = np.take_along_axis(work, last[None, :, None], axis=0)[0]
    of_others = (work.sum(axis=0) - of_last) / (len(ranks) - 1)
    longer = np.maximum(0.0, of_last - of_others)
    shares = longer / np.maximum(longer.sum(axis=1, keepdims=True), 1e-9)
    caused = shares * lateness[:, None] / steps
    names = [name for name in COLUMNS if name != "exchange"]
    return tuple(
        Waits(float(waiting[rank].mean()), {name: float(caused[last == rank, COLUMNS[name]].sum()) for name in names})
        for rank in range(len(ranks))
    )


def long_steps_of(series: Series) -> dict[str, LongSteps]:
    """Return, for each phase with outliers, which of a rank's steps are much longer than the others."""
    if len(series) < FEWEST_STEPS:
        return {}
    times = np.array(series)
    least = MIN_COST * times.sum(axis=1).mean()
    found = {name: _long_steps(times[:, column], least) for name, column in COLUMNS.items()}
    return {name: long for name, long in found.items() if long and long.milliseconds >= least}


def _long_steps(times, least):
    """Split one phase's times where the variance of the logarithms within both parts is least (Otsu, 1979)."""
    logs = np.sort(np.log(np.maximum(times, least)))
    count = np.arange(1, len(logs))
    below, above = np.cumsum(logs)[:-1] / count, np.cumsum(logs[::-1])[-2::-1] / count[::-1]
    split = int(np.argmax(count * count[::-1] * (above - below) ** 2)) + 1
    short = logs[:split]
    if logs[split] - short.mean() <= MIN_DEVIATIONS * short.std() or logs[split] == short[-1]:
        return None
    long = np.flatnonzero(np.log(np.maximum(times, least)) >= logs[split])
    if 2 * len(long) > len(times):  # then some are short, like an epoch's last step
        return None
    gaps, counts = np.unique(np.diff(long), return_counts=True)
    gap = int(gaps[counts.argmax()]) if len(gaps) and counts.max() >= MIN_EQUAL_GAPS * counts.sum() else 0
    throughout = long[0] < gap and len(times) - long[-1] <= gap  # from the first steps to the last
    period = gap if gap > 1 and throughout else None
    rest = np.delete(times, long).mean()
    share = len(long) / len(times)
    return LongSteps(share, float(share * (times[long].mean() - rest)), period)
