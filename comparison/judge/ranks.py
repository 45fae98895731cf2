"""The ranks of a run in its mean step: what each does in it, who waits for whom, and what they have of the cores."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.files.results import PHASES, LongSteps, PhaseTimes, RankTimes, RunResult, Span, Waits
from comparison.judge.statistics import Excess, mean_excess

OUTSIDE = "outside"
COMPUTATION = ("forward", "backward", "update")
AGREE = 0.8  # of the epochs have the same period where the row has it


@dataclass(frozen=True)
class RankMeans:
    """One rank in the mean step of a run, or of several, without the warm-up. Milliseconds.

    cpu: computing, all its threads together. queued: its threads were ready to run and had no core; None where the
    kernel does not tell. waited, caused: as in Waits; None and nothing where that is not told. long: by phase, where
    some steps take much longer than the others.
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
        mean_phases([epoch.phases for epoch in times], steps),
        *_mean_waits([epoch.waits for epoch in times], steps),
        _mean_long_steps([epoch.long_steps for epoch in times]),
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


def mean_phases(phases: Sequence[PhaseTimes], steps: Sequence[int]) -> dict[str, float]:
    """The mean over all steps of each phase that is known in every epoch."""
    known = [epoch.known for epoch in phases]
    names = [name for name in PHASES if name != "rest" and all(name in epoch for epoch in known)]
    return {
        name: sum(epoch[name] * weight for epoch, weight in zip(known, steps, strict=True)) / sum(steps)
        for name in names
    }


def _mean_long_steps(parts: Sequence[Mapping[str, LongSteps]]) -> dict[str, LongSteps]:
    """The mean over epochs or runs of each phase's long steps, with the period on which most of them agree."""
    return {
        name: _pooled([part[name] for part in parts if name in part], len(parts))
        for name in PHASES
        if any(name in part for part in parts)
    }


def _pooled(told: Sequence[LongSteps], of: int) -> LongSteps:
    ((period, times),) = Counter(part.period for part in told).most_common(1)
    share, milliseconds = (sum(getattr(part, name) for part in told) / of for name in ("share", "milliseconds"))
    return LongSteps(share, milliseconds, period if times >= AGREE * of else None)


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
        _mean_long_steps([means.long for means in runs]),
    )


def critical_rank(ranks: Ranks) -> RankMeans | None:
    """Return the means of the rank that the others wait for: the one with the most work.

    Without a measured exchange, it is the slowest. None if no ranks were recorded.
    """
    return max(ranks, key=lambda rank: rank.work, default=None)


@dataclass(frozen=True)
class Straggler:
    """The rank that has most to do. longer: milliseconds per step more than the others' mean, with an interval.

    phases: the part of that in each of them.
    """

    rank: int
    longer: Excess
    phases: dict[str, float]

    @property
    def phase(self) -> str:
        """Where most of it is."""
        return max(self.phases, default=OUTSIDE, key=lambda name: self.phases[name])


def find_straggler(runs: Sequence[Ranks]) -> Straggler | None:
    """Return the rank with the most work in the runs' mean step; None where there is one rank, or ranks were not kept.

    As it is chosen among all ranks, its interval is that of one of so many claims.
    """
    ranks = min(map(len, runs), default=0)
    if ranks < 2:
        return None

    def longer(rank: int, phase: str | None = None) -> list[float]:
        values = [[means.phases[phase] if phase else means.work for means in run] for run in runs]
        return [own[rank] - statistics.mean(own[:rank] + own[rank + 1 :]) for own in values]

    slowest = max(range(ranks), key=lambda rank: sum(longer(rank)))
    known = [name for name in runs[0][0].phases if all(name in means.phases for means in runs[0])]
    phases = {name: statistics.mean(longer(slowest, name)) for name in known if name != "exchange"}
    return Straggler(slowest, mean_excess("straggler", longer(slowest), ranks), phases)


def throttled_share(results: Sequence[RunResult]) -> Excess | None:
    """Return which part of a training a quota had stopped its threads, 0..1; None if it has none."""
    shares = [_throttled(result) for result in results]
    return mean_excess("throttled", [share for share in shares if share is not None]) if None not in shares else None


def _throttled(result: RunResult) -> float | None:
    """The kernel adds up for how long each core was not to be used: at most as many as something on the node wanted."""
    ranks = [rank for epoch in result.timed_epochs for rank in epoch.ranks[:1]]
    stopped = [rank.throttled_seconds for rank in ranks if rank.throttled_seconds is not None]
    if not ranks or len(stopped) < len(ranks):
        return None
    wanted = (
        result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1) + result.loader_workers
    )
    nodes = len(result.environment.get("nodes", ())) or 1
    return min(1.0, sum(stopped) / sum(rank.train_seconds for rank in ranks) / (wanted / nodes))


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


def hidden_share(spans: Iterable[Span], rank: int) -> float | None:
    """Return for which share of the time in which a rank's exchanges are under way it computes too, 0..1.

    spans: of traced steps. On a GPU it computes while a kernel of its own runs, on a CPU in the phases of COMPUTATION.
    None where nothing is exchanged.
    """
    own = [span for span in spans if span.rank == rank]
    kernels = [span for span in own if span.lane not in ("step", "link")]
    links = _merged(span for span in own if span.lane == "link")
    work = _merged(kernels or [span for span in own if span.lane == "step" and span.name in COMPUTATION])
    both = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in links for begin, stop in work)
    return both / sum(end - start for start, end in links) if links else None


def _merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The times in which any of some spans is under way, as (start, end) that do not overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.end > span.start):
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged
