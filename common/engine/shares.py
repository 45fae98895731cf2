"""One rank's share of an epoch of training or of an evaluation, and those of all ranks as one record."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.files.results import PHASES, EpochRecord, LongSteps, PhaseTimes, RankTimes, Waits

RING = 500  # steps of an epoch that are kept, the last ones
FEWEST_STEPS = 20  # among which some may be called long
APART = 3.0  # times the short steps' standard deviation lies the shortest long one above their mean, in logarithms
WORTH = 0.01  # of the mean step: by what long ones have to lengthen it to be kept
REGULAR = 0.8  # of the gaps between long steps are equal where they have a period
PLACES = {name: place for place, name in enumerate(PHASES)}
EXCHANGE, BEFORE = PLACES["exchange"], [PLACES[name] for name in ("data", "transfer", "forward", "backward")]
AFTER = [PLACES[name] for name in ("update", "rest")]
Series = tuple[tuple[float, ...], ...]  # (steps, phases), milliseconds


@dataclass(frozen=True)
class Training:
    """One rank's share of one epoch of training: seconds, sums over its images, milliseconds per phase.

    cpu_seconds, queue_seconds, throttled_seconds: see CoreClock. start: when it began, by time.monotonic(); None if in
    another run. series: its phases step by step, see series_of().
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

    def after(self, earlier: "Training") -> "Training":
        """Return an epoch's second part with the times of the first, which another run did; sums have both already."""
        phases, before = self.phase_milliseconds, earlier.phase_milliseconds
        queued, throttled = (
            [getattr(part, name) for part in (earlier, self) if getattr(part, name) is not None]
            for name in ("queue_seconds", "throttled_seconds")
        )
        return replace(
            self,
            seconds=earlier.seconds + self.seconds,
            phase_milliseconds={name: before.get(name, 0.0) + phases.get(name, 0.0) for name in {**before, **phases}},
            cpu_seconds=earlier.cpu_seconds + self.cpu_seconds,
            queue_seconds=None if self.queue_seconds is None else sum(queued),
            throttled_seconds=None if self.throttled_seconds is None else sum(throttled),
            start=None,
        )


@dataclass(frozen=True)
class Evaluation:
    """One rank's share of one evaluation: seconds, sum of losses, correct and all images per class."""

    data_rank: int
    seconds: float
    loss_sum: float
    correct: list[int]
    counts: list[int]


def merge(epoch: int, trainings: list[Training], evaluations: list[Evaluation]) -> EpochRecord:
    """Return one record for all ranks: sums of counts, the times of the slowest rank, and of each.

    What nothing is known of, as without evaluations, is NaN.
    """
    same_images = len({part.data_rank for part in trainings}) < len(trainings)
    waits = waits_of([() if same_images else part.series for part in trainings])
    ranks = tuple(
        RankTimes(
            part.seconds,
            _phases(part),
            part.cpu_seconds,
            part.queue_seconds,
            waited,
            long_steps_of(part.series),
            part.throttled_seconds,
        )
        for part, waited in zip(trainings, waits, strict=True)
    )
    slowest = max(trainings, key=lambda part: part.seconds)
    start, evaluate_seconds = trainings[0].start, max((part.seconds for part in evaluations), default=math.nan)
    trainings, evaluations = once_each(trainings), once_each(evaluations)
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
    times = PhaseTimes(**{name: total / part.steps for name, total in part.phase_milliseconds.items()})
    return times if None in (times.transfer, times.forward, times.backward) else replace(times, rest=None)


def once_each(parts: list) -> list:
    """Return of all ranks' Trainings or Evaluations one for each share of the data: the last rank's that sees it."""
    return list({part.data_rank: part for part in parts}.values())


def series_of(phases: Iterable[tuple[str, float]]) -> Series:
    """Return the milliseconds of every phase in each of the last RING steps, each of which begins with its data."""
    steps: deque[list[float]] = deque(maxlen=RING)
    for name, milliseconds in phases:
        if name == "data":
            steps.append([0.0] * len(PHASES))
        if name and steps:
            steps[-1][PLACES[name]] += milliseconds
    return tuple(map(tuple, steps))


def waits_of(ranks: Sequence[Series]) -> tuple[Waits | None, ...]:
    """Return what each rank waited in the exchange, and the others for it; None where no step has one.

    No clocks are compared: an all-reduce ends on all ranks at once, so that of each step the rank with the shortest
    exchange came last. By what the others' are longer they waited for it; its own is what sending takes.
    """
    times = np.array(ranks) if len({len(series) for series in ranks}) == 1 else np.zeros(0)
    if len(ranks) < 2 or times.ndim < 3 or not times[:, :, EXCHANGE].all():
        return (None,) * len(ranks)
    exchange, steps = times[:, :, EXCHANGE], times.shape[1]
    waiting = exchange - exchange.min(axis=0)
    last, lateness = exchange.argmin(axis=0), waiting.sum(axis=0) / (len(ranks) - 1)
    before = np.roll(times, 1, axis=1)  # what follows an exchange delays the next one
    before[:, 0] = 0.0
    known = np.zeros_like(times)
    known[:, :, BEFORE], known[:, :, AFTER] = times[:, :, BEFORE], before[:, :, AFTER]
    mine = np.take_along_axis(known, last[None, :, None], axis=0)[0]
    others = (known.sum(axis=0) - mine) / (len(ranks) - 1)
    longer = np.maximum(0.0, mine - others)
    shares = longer / np.maximum(longer.sum(axis=1, keepdims=True), 1e-9)
    caused = shares * lateness[:, None] / steps
    names = [name for name in PLACES if name != "exchange"]
    return tuple(
        Waits(float(waiting[rank].mean()), {name: float(caused[last == rank, PLACES[name]].sum()) for name in names})
        for rank in range(len(ranks))
    )


def long_steps_of(series: Series) -> dict[str, LongSteps]:
    """Return by phase which of a rank's steps are much longer than the others, where some are."""
    if len(series) < FEWEST_STEPS:
        return {}
    times = np.array(series)
    least = WORTH * times.sum(axis=1).mean()
    found = {name: _long_steps(times[:, place], least) for name, place in PLACES.items()}
    return {name: long for name, long in found.items() if long and long.milliseconds >= least}


def _long_steps(times, least):
    """Splits one phase's times where the variance of their logarithms within both parts is least (Otsu 1979)."""
    logs = np.sort(np.log(np.maximum(times, least)))
    count = np.arange(1, len(logs))
    below, above = np.cumsum(logs)[:-1] / count, np.cumsum(logs[::-1])[-2::-1] / count[::-1]
    split = int(np.argmax(count * count[::-1] * (above - below) ** 2)) + 1
    short = logs[:split]
    if logs[split] - short.mean() <= APART * short.std() or logs[split] == short[-1]:
        return None
    long = np.flatnonzero(np.log(np.maximum(times, least)) >= logs[split])
    gaps, counts = np.unique(np.diff(long), return_counts=True)
    gap = int(gaps[counts.argmax()]) if len(gaps) and counts.max() >= REGULAR * counts.sum() else 0
    throughout = long[0] < gap and len(times) - long[-1] <= gap  # from the epoch's first steps to its last
    period = gap if gap > 1 and throughout else None
    rest = np.delete(times, long).mean()
    share = len(long) / len(times)
    return LongSteps(share, float(share * (times[long].mean() - rest)), period)
