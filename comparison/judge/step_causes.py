"""Why a row's mean step is as long as it is: which part, on which rank, in which steps, and who waits for whom."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.files.results import LongSteps, RunResult
from comparison.judge.fairness import Standing
from comparison.judge.ranks import OUTSIDE, Straggler
from comparison.judge.statistics import Excess
from comparison.judge.steps import LATE, Accounts
from comparison.judge.summaries import Finding, Summary
from comparison.methods import method_of
from comparison.outcomes import threads_needed
from comparison.record import Report
from comparison.rows import Row

# Shares from which a cause is worth a sentence.
WORTH = 0.02  # of a step or run: a part of its difference
MINOR = 0.05  # of the largest part: smaller parts may be its consequences
STRAGGLING = 0.05  # of a step: the additional work of one rank
LONG = 0.5  # of a part of a step's difference: the share due to long steps, or to a straggler
LATEST = 0.25  # of all waiting for late ranks: the share due to one rank and phase
SMALL_BATCH = 0.25  # of a step's difference: the share due to one device's inefficiency with so few images
MOSTLY = 0.5  # of what the proved parts leave of a step's difference: an unproved part
WAITING = 0.20  # of a step without an account: waiting for data

LATE_FIRST = 2.0  # waiting for late ranks precedes larger parts up to this many times as long


@dataclass(frozen=True)
class Case:
    """A row with a successful run, and everything needed to find its causes. summaries: of all rows, by name."""

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
        return self.summaries[self.row.name]

    @property
    def staged(self) -> bool:
        """Whether its devices are stages of one network."""
        return method_of(self.row.configuration.method).staged


def small_batch(case: Case) -> Iterator[Finding]:
    """How far one device alone is above ideal scaling with so small a batch: this is not the method's fault."""
    steps, probe, baseline = case.accounts.steps, case.report.probe, case.standing.baseline
    if not steps or not probe or not baseline or not steps.total.at_least(0.0) or case.standing.devices <= 1:
        return
    own, whole = (row.configuration.planned for row in (case.row, baseline))
    times = probe.step_milliseconds(own.model)
    few, many = times.get(own.per_device_batch_size), times.get(whole.per_device_batch_size)
    if few is None or many is None or {own.threads, whole.threads} != {case.report.first.threads}:
        return
    more = few - many * own.per_device_batch_size / whole.per_device_batch_size
    if more >= max(SMALL_BATCH * steps.total.value, WORTH * steps.value):
        values = {"x": few, "n": own.per_device_batch_size, "f": min(more, steps.total.value)}
        yield Finding("small batch", values)


def parts_of_steps(case: Case) -> Iterator[Finding]:
    """The parts of the step's difference.

    A straggler's additional work comes first, as the others wait for it. Waiting for late ranks also comes first, as it
    shows whose fault it is, unless it is a small part.
    """
    steps = case.accounts.steps
    if not steps or not steps.proved:
        return
    slowest = None if case.staged else _straggler_of(case)  # straggler() reports an uneven cut
    least = max(WORTH * steps.value, MINOR * abs(steps.proved[0].value))
    parts = [part for part in steps.proved if abs(part.value) >= least]
    if slowest:  # a straggler waits for nobody, so less waiting is a consequence
        parts = [part for part in parts if part.name != LATE or part.value > 0]
    largest = max((part.value for part in parts), default=0.0)

    def order(part: Excess) -> tuple[bool, bool]:
        late = part.name == LATE and LATE_FIRST * part.value >= largest
        return not (slowest and part.name == slowest.phase), not late

    for part in sorted(parts, key=order):
        mostly_its = slowest and slowest.phases.get(part.name, 0.0) >= LONG * part.value > 0
        yield _part_of_step(case, part, slowest if mostly_its else None)


def unproved_part(case: Case) -> Finding | None:
    """The largest part of a step's proved difference, if it is not proved, but most of what the proved parts leave."""
    steps = case.accounts.steps
    if not steps or not steps.total.proved:
        return None
    sign = math.copysign(1.0, steps.total.value)
    largest = max(steps.parts, key=lambda part: sign * part.value)
    rest = steps.total.value - sum(part.value for part in steps.proved)
    least = max(MOSTLY * abs(rest), WORTH * steps.value)
    return _part_of_step(case, largest, None) if not largest.proved and sign * largest.value >= least else None


def _part_of_step(case: Case, part: Excess, straggler: Straggler | None) -> Finding:
    place = _place(case, part.name)
    values: dict[str, object] = {"x": part, "place": place}
    wording = "more in" if part.value > 0 else "less in"
    if part.name == LATE:
        values["place"] = Finding(LATE, {"ranks": _late_ranks(case)}) if part.value > 0 else Finding("waiting")
    else:
        phase = "rest" if part.name == OUTSIDE else part.name
        long_steps = [rank.long[phase] for rank in case.accounts.ranks if phase in rank.long]
        longest = max(long_steps, key=lambda long: long.milliseconds, default=None)
        values["place"] = _in_steps(place, longest, part.value, case.accounts.usual.get(phase, 0.0))
    if straggler:
        values["place"] = Finding("of a rank", {"place": values["place"], "n": straggler.rank})
    if part.name == "data" and part.value > 0:
        wording, values["advice"] = "more waiting", _loading_advice(case)
    return Finding("straggler" if straggler and part.name == straggler.phase else part.name, values, "step", wording)


def _place(case: Case, name: str) -> Finding:
    """Return the words for a part of a step."""
    steps, is_script = case.accounts.steps, case.row.configuration.is_script
    if name == "backward" and steps and all(other.name != "exchange" for other in steps.parts):
        name = "backward with exchange"
    elif name == "exchange" and (case.staged or is_script):
        name = "waiting for stages" if case.staged else "exchange of a script"
    elif name == OUTSIDE and is_script:
        name = "rest"
    return Finding(name)


def _late_ranks(case: Case) -> tuple[Finding, ...]:
    """Return the ranks that came last to the exchange, and the phases in which they lost the time.

    Only those that cause much of the others' waiting are named, or the one that causes most.
    """
    ranks = case.accounts.ranks
    caused = [
        (milliseconds, number, phase)
        for number, rank in enumerate(ranks)
        for phase, milliseconds in rank.caused.items()
    ]
    caused.sort(reverse=True)
    least = LATEST * sum(milliseconds for milliseconds, *_ in caused)
    most = [late for late in caused if late[0] > least] or caused[:1]
    found = []
    for milliseconds, number, phase in most:
        place = _in_steps(Finding(phase), ranks[number].long.get(phase), milliseconds)
        found.append(Finding("late rank", {"n": number, "place": place, "x": milliseconds}))
    return tuple(found)


def _in_steps(place: Finding, long: LongSteps | None, milliseconds: float, usual: float = 0.0) -> Finding:
    """Return a place, with its long steps if they account for most of the `milliseconds` spent there.

    usual: milliseconds that long steps take in the baseline too.
    """
    if not long or not long.milliseconds - usual >= LONG * milliseconds > 0:
        return place
    return Finding("regular steps" if long.period else "some steps", {"place": place, **vars(long)})


def _straggler_of(case: Case) -> Straggler | None:
    """Return the rank that is proved to have much more to do than the others, if any."""
    found = case.accounts.straggler
    return found if found and found.longer.at_least(STRAGGLING * case.summary.step_milliseconds) else None


def waiting(case: Case) -> Iterator[Finding]:
    """Waiting for data in a row without an account of its steps."""
    own = case.summary
    if not case.accounts.steps and own.waiting_share >= WAITING:
        values = {"x": own.phases.data, "y": own.step_milliseconds, "n": own.waiting_share}
        yield Finding("waiting for data", {**values, "advice": _loading_advice(case)})


def _loading_advice(case: Case) -> Finding:
    """Return what could shorten the wait for data: more workers, if measured, or the cores that are left."""
    row, result, planned = case.row, case.result, case.row.configuration.planned
    if result.config["loader"] == "resident":
        return Finding("small network")
    workers, threads = result.loader_workers, threads_needed(result)
    more = []
    for other in case.report.rows:
        theirs = other.configuration.planned
        same_method = other.configuration.method == row.configuration.method
        equal = same_method and replace(theirs, num_workers=planned.num_workers) == planned
        if other.results and equal and theirs.num_workers > planned.num_workers:
            more.append((case.summaries[other.name].step_milliseconds, theirs.num_workers))
    if more:
        step, best = min(more)
        kind = "one worker" if best == 1 else "more workers"
        if step >= case.summary.step_milliseconds:
            kind = "enough workers"
        return Finding(kind, {"n": best, "m": workers, "s": step})
    left = int(row.cores - workers - threads)
    if left > 0:
        kind = "cores for workers" if row.configuration.is_script else "a core left" if left == 1 else "cores left"
        return Finding(kind, {"cores": left, "n": row.cores, "m": workers})
    return Finding("no core left", {"threads": threads, "workers": workers, "cores": row.cores})


def straggler(case: Case) -> Iterator[Finding]:
    """A rank with more to do, unless it was named with a part of the account."""
    slowest = _straggler_of(case)
    if slowest and all(part.kind != "straggler" for part in parts_of_steps(case)):
        advice = "slow rank of a script" if case.row.configuration.is_script else "slow rank"
        values = {"n": slowest.rank, "x": slowest.longer, "place": _place(case, slowest.phase)}
        yield Finding("straggler", {**values, "advice": Finding("uneven cut" if case.staged else advice)})


def with_loader_workers(row: Row, summary: Summary, cores: int) -> tuple[float, float] | None:
    """Return a script's loading time alone and the least possible step time with a worker on each core of an otherwise
    idle machine, in milliseconds per batch and per step; None without a loader."""
    alone = [found for result in row.results if (found := result.config.get("loader_milliseconds"))]
    if not alone:
        return None
    milliseconds = statistics.median(alone)
    result = row.results[0]
    batches = milliseconds * result.config.get("batches_per_step", 1)
    shared = batches * result.world_size * max(1, result.workers_per_process) / cores
    return milliseconds, max(summary.step_milliseconds - (summary.phases.data or 0.0), shared)
