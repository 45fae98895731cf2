"""The ranks of a run in its mean step: how each spends it, who waits for whom, and whether they get their cores."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.files.results import PHASES, LongSteps, PhaseTimes, RankTimes, RunResult, Span
from comparison.judge.statistics import Excess, mean_excess
from comparison.outcomes import threads_needed

OUTSIDE = "outside"
COMPUTATION = ("forward", "backward", "update")
AGREE = 0.8  # share of the epochs with the same period from which the row has that period


@dataclass(frozen=True)
class RankMeans:
    """One rank in the mean step of one or several runs, without the warm-up, in milliseconds.

    cpu: CPU time of all its threads. queued: the time in which its threads were ready to run but had no core; None if
    the kernel does not report it. waited, caused: as in Waits; None and empty if not recorded. long: by phase, if some
    steps take much longer than the others.
    """

    step: float
    cpu: float
    queued: float | None
    phases: dict[str, float]
    waited: float | None = None
    caused: dict[str, float] = field(default_factory=dict)
    long: dict[str, LongSteps] = field(default_factory=dict)

    @property
    def exchange(self) -> float:
        """The time of the phase in which it waits for the other ranks."""
        return self.phases.get("exchange", 0.0)

    @property
    def work(self) -> float:
        """The step without the exchange."""
        return self.step - self.exchange


Ranks = Sequence[RankMeans]  # of one run


def rank_means(result: RunResult) -> list[RankMeans]:
    """Return every rank's means; empty for older results, which recorded no ranks."""
    epochs = result.timed_epochs
    steps = [epoch.steps for epoch in epochs]
    ranks = zip(*(epoch.ranks for epoch in epochs), strict=False)
    return [_mean_rank(list(map(_mean_step, times, steps)), steps) for times in ranks]


def _mean_step(times: RankTimes, steps: int) -> RankMeans:
    """Return one rank's means in an epoch."""
    queued, waits = times.queue_seconds, times.waits
    return RankMeans(
        step=1000 * times.train_seconds / steps,
        cpu=1000 * times.cpu_seconds / steps,
        queued=None if queued is None else 1000 * queued / steps,
        phases=phases_of(times.phases),
        waited=waits.waited if waits else None,
        caused=waits.caused if waits else {},
        long=times.long_steps,
    )


def phases_of(times: PhaseTimes) -> dict[str, float]:
    """Return the milliseconds of each measured phase, without those in none of them."""
    return {name: value for name, value in times.known.items() if name != "rest"}


def means_by_name(parts: Sequence[Mapping[str, float]], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Return the mean of each number that is in all parts."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: statistics.fmean([part[name] for part in parts], weights) for name in names}


def _mean_rank(means: Ranks, weights: Sequence[float] | None = None) -> RankMeans:
    """Return the mean of one rank's means in several epochs, with their numbers of steps as weights, or runs."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known, weights) if len(known) == len(values) else None

    return RankMeans(
        step=statistics.fmean([one.step for one in means], weights),
        cpu=statistics.fmean([one.cpu for one in means], weights),
        queued=mean([one.queued for one in means]),
        phases=means_by_name([one.phases for one in means], weights),
        waited=mean([one.waited for one in means]),
        caused=means_by_name([one.caused for one in means], weights),
        long=_mean_long_steps([one.long for one in means]),
    )


def _mean_long_steps(parts: Sequence[Mapping[str, LongSteps]]) -> dict[str, LongSteps]:
    """Return the mean over epochs or runs of each phase's long steps, with the period on which most of them agree."""
    return {
        name: _pooled([part[name] for part in parts if name in part], len(parts))
        for name in PHASES
        if any(name in part for part in parts)
    }


def _pooled(parts: Sequence[LongSteps], epochs: int) -> LongSteps:
    ((period, times),) = Counter(part.period for part in parts).most_common(1)
    share, milliseconds = (sum(getattr(part, name) for part in parts) / epochs for name in ("share", "milliseconds"))
    return LongSteps(share, milliseconds, period if times >= AGREE * epochs else None)


def mean_ranks(runs: Sequence[Ranks]) -> tuple[RankMeans, ...]:
    """Return every rank's means over several runs; empty if one of them recorded no ranks."""
    return tuple(_mean_rank(means) for means in zip(*runs, strict=False))


def critical_rank(ranks: Ranks) -> RankMeans | None:
    """Return the means of the rank that the others wait for: the one with the most work.

    Without a measured exchange, this is the slowest rank. None if no ranks were recorded.
    """
    return max(ranks, key=lambda rank: rank.work, default=None)


def critical_phases(result: RunResult) -> list[PhaseTimes]:
    """Return the critical rank's phases in each timed epoch; the slowest rank's if no ranks were recorded."""
    means = rank_means(result)
    if not means:
        return [epoch.phases for epoch in result.timed_epochs]
    number = max(range(len(means)), key=lambda rank: means[rank].work)
    return [epoch.ranks[number].phases for epoch in result.timed_epochs]


@dataclass(frozen=True)
class Straggler:
    """The rank with the most work. longer: milliseconds per step above the others' mean, with an interval.

    phases: the part of that in each phase, and OUTSIDE.
    """

    rank: int
    longer: Excess
    phases: dict[str, float]

    @property
    def phase(self) -> str:
        """The phase with the largest part."""
        return max(self.phases, key=lambda name: self.phases[name])


def find_straggler(runs: Sequence[Ranks]) -> Straggler | None:
    """Return the rank with the most work in the runs' mean step; None for a single rank, or if none were recorded.

    As it is selected among all ranks, its interval is corrected for that many claims.
    """
    ranks = min(map(len, runs), default=0)
    if ranks < 2:
        return None

    def longer(rank: int, phase: str = "") -> list[float]:
        values = [[means.phases[phase] if phase else means.work for means in run] for run in runs]
        return [own[rank] - statistics.mean(own[:rank] + own[rank + 1 :]) for own in values]

    slowest = max(range(ranks), key=lambda rank: sum(longer(rank)))
    known = [name for name in runs[0][0].phases if all(name in means.phases for run in runs for means in run)]
    phases = {name: statistics.mean(longer(slowest, name)) for name in known if name != "exchange"}
    excess = mean_excess("straggler", longer(slowest), ranks)
    return Straggler(slowest, excess, {**phases, OUTSIDE: excess.value - sum(phases.values())})


def throttled_share(results: Sequence[RunResult]) -> Excess | None:
    """Return the share of a training in which a quota stopped its threads, 0..1; None without a quota."""
    shares = [share for result in results if (share := _throttled(result)) is not None]
    return mean_excess("throttled", shares) if len(shares) == len(results) else None


def _throttled(result: RunResult) -> float | None:
    """Return one run's share. The kernel adds up the time of all stopped cores, at most as many as the node's threads
    and workers needed."""
    ranks = [rank for epoch in result.timed_epochs for rank in epoch.ranks[:1]]
    stopped = [rank.throttled_seconds for rank in ranks if rank.throttled_seconds is not None]
    if not ranks or len(stopped) < len(ranks):
        return None
    needed = threads_needed(result) + result.loader_workers
    nodes = len(result.environment.get("nodes", ())) or 1
    return min(1.0, sum(stopped) / sum(rank.train_seconds for rank in ranks) / (needed / nodes))


def queued_share(runs: Sequence[Ranks], threads: int) -> Excess | None:
    """Return the share of a step in which a rank's threads were ready to run but had no core, 0..1; None if unknown."""
    shares = [[means.queued / means.step for means in ranks if means.queued is not None] for ranks in runs]
    if not all(shares) or any(len(own) < len(ranks) for own, ranks in zip(shares, runs, strict=True)):
        return None
    return mean_excess("queued", [statistics.mean(own) / threads for own in shares])


def cores_computing(runs: Sequence[Ranks]) -> Excess | None:
    """Return how many cores the rank with the most work kept busy at most in forward, backward and update.

    All of its CPU time is attributed to these phases. None if they are unknown, or if they may contain waiting for
    other ranks because the exchange was not measured separately.
    """
    ranks = [critical_rank(run) for run in runs]
    for rank, run in zip(ranks, runs, strict=True):
        needed = (*COMPUTATION, "exchange") if len(run) > 1 else COMPUTATION
        if not rank or any(name not in rank.phases for name in needed):
            return None
    return mean_excess("cores", [rank.cpu / sum(rank.phases[name] for name in COMPUTATION) for rank in ranks if rank])


def hidden_share(spans: Iterable[Span], rank: int) -> float | None:
    """Return the share of the time of a rank's exchanges in which it also computes, 0..1.

    spans: of traced steps. A GPU computes while one of its kernels runs, a CPU in the phases of COMPUTATION. None if
    nothing is exchanged.
    """
    own = [span for span in spans if span.rank == rank]
    kernels = [span for span in own if span.lane not in ("step", "link")]
    links = _merged(span for span in own if span.lane == "link")
    work = _merged(kernels or [span for span in own if span.lane == "step" and span.name in COMPUTATION])
    both = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in links for begin, stop in work)
    return both / sum(end - start for start, end in links) if links else None


def kernel_milliseconds(spans: Sequence[Span]) -> float | None:
    """Return for how long the busiest GPU runs kernels in the traced steps; None without GPUs."""
    gpus = {(span.rank, span.lane) for span in spans if span.lane not in ("step", "link")}
    times = [_merged(span for span in spans if (span.rank, span.lane) == gpu) for gpu in gpus]
    return max((sum(end - start for start, end in own) for own in times), default=None)


def _merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Return the union of the spans' times, as (start, end) that do not overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.end > span.start):
        if merged and start <= merged[-1][1]:
            start, earlier_end = merged.pop()
            end = max(end, earlier_end)
        merged.append((start, end))
    return merged
