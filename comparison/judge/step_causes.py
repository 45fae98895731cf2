"""Why a row's mean step is as long as it is: which part, of which rank, in which steps, who waits for whom."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.files.results import LongSteps, RunResult
from comparison.judge.fairness import Standing
from comparison.judge.measures import Finding, Summary
from comparison.judge.ranks import Straggler
from comparison.judge.statistics import Excess
from comparison.judge.steps import LATE, Accounts
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import Row

# From which size on a cause is worth a sentence.
WORTH = 0.02  # of a step or run: a part of its difference
MINOR = 0.05  # of the largest part: what is less may follow from that
STRAGGLING = 0.05  # of a step: what one rank has to do more than the others
LONG = 0.5  # of a part of a step's difference: what long steps bring is told where it is more
LATE_FIRST = 2.0  # times what ranks wait for late ones: up to that much in a phase comes behind it
LATEST = 0.25  # of what the ranks waited: who causes more is named, or who causes most
SMALL_BATCH = 0.25  # of a step's difference: what one device alone takes more for so few images
WAITING = 0.20  # of a step that is compared with none, waiting for data


@dataclass(frozen=True)
class Case:
    """A row with a run that ended well, and all from which its causes are found. summaries: of all rows, by name."""

    report: Report
    row: Row
    standing: Standing
    accounts: Accounts
    summaries: dict[str, Summary]

    @property
    def result(self) -> RunResult:
        return self.row.results[0]

    @property
    def summary(self) -> Summary:
        return self.summaries[self.row.configuration.name]

    @property
    def staged(self) -> bool:
        """Whether its devices are the stages of one network."""
        return method_of(self.row.configuration.method).staged


def small_batch(case: Case) -> Iterator[Finding]:
    """By how much one device is above ideal scaling too, when its batch is as small: no fault of the method."""
    steps, probe, baseline = case.accounts.steps, case.report.probe, case.standing.baseline
    if not steps or not probe or not baseline or not steps.total.least(0.0):
        return
    own, whole = (row.configuration.planned for row in (case.row, baseline))
    times, shares = probe.step_milliseconds(str(own.model)), case.standing.devices
    few, many = times.get(own.per_device_batch_size), times.get(whole.per_device_batch_size)
    if few is None or many is None or {own.threads, whole.threads} != {case.report.device_threads}:
        return
    more = few - many * own.per_device_batch_size / whole.per_device_batch_size
    if more >= max(SMALL_BATCH * steps.total.value, WORTH * steps.value) and shares > 1:
        yield Finding("small batch", {"x": few, "n": own.per_device_batch_size, "f": more})


def parts_of_steps(case: Case) -> Iterator[Finding]:
    """What a straggler has more to do comes first: the others wait for it. So does waiting for late ranks, which tells
    whose fault it is, unless it is a small part."""
    steps, slowest = case.accounts.steps, _straggler_of(case)
    proved = steps.proved if steps else []
    least = max(WORTH * steps.value, MINOR * abs(proved[0].value)) if steps and proved else 0.0
    slowest = None if case.staged else slowest  # whose larger stage is told apart
    parts = [part for part in proved if abs(part.value) >= least]
    if slowest:  # who is always the last waits for nobody: that follows
        parts = [part for part in parts if part.name != LATE or part.value > 0]
    largest = max((part.value for part in parts), default=0.0)

    def order(part: Excess) -> tuple[bool, bool]:
        late = part.name == LATE and LATE_FIRST * part.value >= largest
        return not (slowest and part.name == slowest.phase), not late

    for part in sorted(parts, key=order):
        yield _part_of_step(case, part, slowest if _is_of(slowest, part) else None)


def _is_of(straggler: Straggler | None, part: Excess) -> bool:
    """Whether a straggler has most of a part more than the others."""
    return straggler is not None and straggler.phases.get(part.name, 0.0) >= LONG * part.value > 0


def _part_of_step(case: Case, part: Excess, straggler: Straggler | None) -> Finding:
    place = part.name
    if place == "backward" and case.accounts.steps and all(o.name != "exchange" for o in case.accounts.steps.parts):
        place = "backward with exchange"
    elif place == "exchange" and case.staged:
        place = "waiting for stages"
    values: dict[str, object] = {"x": part, "place": Finding(place)}
    told = "more in" if part.value > 0 else "less in"
    if part.name == LATE:
        values["place"] = Finding(LATE, {"ranks": _late_ranks(case)}) if part.value > 0 else Finding("waiting")
    else:
        long = [rank.long[part.name] for rank in case.accounts.ranks if part.name in rank.long]
        longest = max(long, key=lambda long: long.milliseconds, default=None)
        values["place"] = _in_steps(Finding(place), longest, part.value, case.accounts.usual.get(part.name, 0.0))
    if straggler:
        values["place"] = Finding("of a rank", {"place": values["place"], "n": straggler.rank})
    if part.name == "data" and part.value > 0:
        told, values["advice"] = "more waiting", _loading_advice(case)
    return Finding("straggler" if straggler and part.name == straggler.phase else part.name, values, "step", told)


def _late_ranks(case: Case) -> tuple[Finding, ...]:
    """Who came last to the exchange, and in which phase it lost the time: what makes most of the others' waiting."""
    ranks = case.accounts.ranks
    caused = [(x, number, phase) for number, rank in enumerate(ranks) for phase, x in rank.caused.items()]
    caused.sort(reverse=True)
    least = LATEST * sum(milliseconds for milliseconds, *_ in caused)
    most = [late for late in caused if late[0] > least] or caused[:1]
    return tuple(
        Finding("late rank", {"n": n, "place": _in_steps(Finding(phase), ranks[n].long.get(phase), x), "x": x})
        for x, n, phase in most
    )


def _in_steps(place: Finding, long: LongSteps | None, milliseconds: float, usual: float = 0.0) -> Finding:
    """A place with the steps in which so many milliseconds are spent there, if most are spent in long ones.

    usual: what long ones take all the same.
    """
    if not long or not long.milliseconds - usual >= LONG * milliseconds > 0:
        return place
    return Finding("regular steps" if long.period else "some steps", {"place": place, **vars(long)})


def _straggler_of(case: Case) -> Straggler | None:
    """The rank that is proved to have more to do than the others, if one is."""
    found = case.accounts.straggler
    return found if found and found.longer.least(STRAGGLING * case.summary.step_milliseconds) else None


def waiting(case: Case) -> Iterator[Finding]:
    """What an account cannot show, as the row is compared with none."""
    own = case.summary
    if not case.accounts.steps and own.waiting_share >= WAITING:
        values = {"x": own.phases.data, "y": own.step_milliseconds, "n": own.waiting_share}
        yield Finding("waiting for data", {**values, "advice": _loading_advice(case)})


def _loading_advice(case: Case) -> Finding:
    """What could shorten the wait for data: measured with more workers, or computed from the cores that are left."""
    row, result, planned = case.row, case.result, case.row.configuration.planned
    if result.config["loader"] == "resident":
        return Finding("small network")
    workers = result.loader_workers
    more = [
        (
            case.summaries[other.configuration.name].step_milliseconds or math.inf,
            other.configuration.planned.num_workers,
        )
        for other in case.report.rows
        if other.results
        and other.configuration.method == row.configuration.method
        and other.configuration.planned.num_workers > planned.num_workers
        and replace(other.configuration.planned, num_workers=planned.num_workers) == planned
    ]
    if more:
        step, best = min(more)
        return Finding("more workers", {"n": best, "m": workers, "s": step})
    # on a CPU threads compute; beside a GPU, one for each process
    threads = result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1)
    left = int(row.cores - workers - threads)
    if left > 0 and row.configuration.is_script:
        return Finding("cores for workers", {"cores": left, "n": row.cores, "m": workers})
    if left > 0:
        return Finding("a core left" if left == 1 else "cores left", {"cores": left, "n": row.cores})
    return Finding("no core left", {"threads": threads, "workers": workers, "cores": row.cores})


def straggler(case: Case) -> Iterator[Finding]:
    """A rank that has more to do, where no part of the account is called its own."""
    straggler = _straggler_of(case)
    if straggler and all(part.kind != "straggler" for part in parts_of_steps(case)):
        advice, place = Finding("uneven cut" if case.staged else "slow rank"), Finding(straggler.phase)
        yield Finding("straggler", {"n": straggler.rank, "x": straggler.longer, "place": place, "advice": advice})


def with_loader_workers(row: Row, summary: Summary, cores: int) -> tuple[float, float] | None:
    """Return what a script's loader takes alone, in milliseconds per batch, and what a step takes at the least where
    each core of an otherwise idle machine had a worker; None without a loader."""
    alone = [found for result in row.results if (found := result.config.get("loader_milliseconds"))]
    if not alone:
        return None
    milliseconds = statistics.median(alone)
    shared = milliseconds * max(1, row.results[0].workers_per_process) / cores
    return milliseconds, max(summary.step_milliseconds - (summary.phases.data or 0.0), shared)
