"""Proof by intervention: take the largest cause of a row away, and see whether the phase that it was said to lengthen
becomes shorter by what was predicted, while the others stay and a sham, the same row again, changes nothing.

The remedies run in blocks of their own, after the comparison, beside the rows that they are for: what singled a cause
out as the largest is no part of its proof.
"""

import statistics
from dataclasses import dataclass, replace
from typing import cast

from common.files.probe import Probe
from common.files.results import RunResult
from comparison.judge.analysis import Analysis
from comparison.judge.causes import find_causes
from comparison.judge.measures import Finding
from comparison.judge.ranks import COMPUTATION, rank_means
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess, mean_excess
from comparison.judge.step_causes import Case
from comparison.judge.steps import LATE, account_for_steps, find_accounts, paired, step_time
from comparison.methods import method_of
from comparison.plan.counterparts import REMEDY, SHAM, counterpart
from comparison.plan.plan import make_order
from comparison.record import Report, Settings
from comparison.rows import Configuration, Row

QUEUED = "queued"  # of no phase: the time in which threads wait for a core
NEAR = 0.15  # so much less or more than predicted is still what was predicted
SIDE_EFFECT = 0.25  # of what the blamed phase lost may another one change, before the remedy is no proof of the phase


@dataclass(frozen=True)
class Remedy:
    """What takes one cause away from a row. change: what it is called; flags: of the script, besides the row's own.

    phase: what is to become shorter. predicted: by how many milliseconds per step, as the comparison measured it.
    """

    row: Configuration
    label: str
    cause: str
    change: str
    flags: tuple[str, ...]
    phase: str
    predicted: Excess

    @property
    def configuration(self) -> Configuration:
        """The row beside the one that it is for."""
        return counterpart(self.row, REMEDY, self.change, (*self.row.command, *self.flags))

    @property
    def sham(self) -> Configuration:
        """The same row again, which must change nothing."""
        return counterpart(self.row, SHAM, "again", self.row.command)


@dataclass(frozen=True)
class Proof:
    """The result of a remedy.

    measured, sham: by how many milliseconds per step the blamed phase became shorter with the
    remedy and with the sham, for the same number of images; None if every block was disturbed. moved: the other
    parts of the step that are proved to have changed by more than SIDE_EFFECT of that.
    """

    remedy: Remedy
    measured: Excess | None = None
    sham: Excess | None = None
    moved: tuple[Excess, ...] = ()

    @property
    def outcome(self) -> str:
        """Whether the cause is "proved", or why not: "not measured", "one block", "not shorter", "sham", "elsewhere",
        "less" or "more"."""
        measured, predicted = self.measured, self.remedy.predicted
        if measured is None or self.sham is None:
            return "not measured"
        if measured.low is None or measured.high is None:
            return "one block"
        if measured.low <= 0:
            return "not shorter"
        if self.sham.low is not None and self.sham.low > 0:
            return "sham"
        if self.moved:
            return "elsewhere"
        if predicted.low is None or predicted.high is None:
            return "proved"
        if measured.high < (1 - NEAR) * predicted.low:
            return "less"
        return "more" if measured.low > (1 + NEAR) * predicted.high else "proved"


def find_remedies(analysis: Analysis) -> list[Remedy]:
    """Return the remedy for the largest cause of each row that makes its step longer, where there is one."""
    rows = [_alone(analysis, entry) for entry in analysis.rows if entry.row.results]
    probe = analysis.report.probe
    remedies = (next(filter(None, (_remedy(entry, cause, probe) for cause in entry.causes)), None) for entry in rows)
    return [remedy for remedy in remedies if remedy]


def _alone(analysis: Analysis, entry: RowAnalysis) -> RowAnalysis:
    """A row with the causes that its mean step shows if no other account is told: they are still to be proved."""
    standing = replace(entry.standing, accounts=1)
    accounts, summaries = find_accounts(entry.row, standing), {other.name: other.summary for other in analysis.rows}
    case = Case(analysis.report, entry.row, standing, accounts, summaries)
    return replace(entry, accounts=accounts, causes=find_causes(case))


def _remedy(entry: RowAnalysis, cause: Finding, probe: Probe | None) -> Remedy | None:
    """What takes the cause away; None if nothing is known that does, or if it costs nothing."""
    result, planned, more = entry.row.results[0], entry.row.configuration.planned, entry.standing.devices
    method, kind, change = method_of(entry.row.configuration.method), cause.kind, ""
    flags: tuple[str, ...] = ()
    place = cause.values.get("place")
    of_a_rank = isinstance(place, Finding) and place.kind == "of a rank"  # which no flag makes as fast as the others
    if kind == "straggler" and entry.accounts.straggler:
        kind = entry.accounts.straggler.phase
    phase = kind
    parts = {part.name: part for part in entry.accounts.steps.parts} if entry.accounts.steps else {}
    predicted = parts.get(kind) if cause.of == "step" else None
    if kind in ("data", "waiting for data"):
        phase, predicted = "data", _all_waiting(entry, probe)
    elif kind == "too many workers" and entry.accounts.queued:
        phase, predicted = QUEUED, entry.accounts.queued.times(entry.summary.step_milliseconds)
    if kind in ("data", "waiting for data") and result.config["loader"] == "workers":
        change, flags = "loader resident", ("--loader", "resident", "--num-workers", "0")
    elif kind == "too many workers" and planned.num_workers > result.world_size:
        change, flags = f"workers {result.world_size}", ("--num-workers", str(result.world_size))
    elif method.without_exchange and (kind == "exchange" or (kind == "backward" and "exchange" not in parts)):
        change, flags = "no exchange", method.without_exchange
    elif kind in COMPUTATION and more > 1 and not method.staged and not of_a_rank:  # a stage sees the whole batch
        batch = round(planned.batch_size * more)
        change, flags = f"batch {batch}", ("--batch-size", str(batch))
    if not change or not predicted or predicted.value <= 0:
        return None
    return Remedy(entry.row.configuration, entry.label, kind, change, flags, phase, predicted)


def _all_waiting(entry: RowAnalysis, probe: Probe | None) -> Excess:
    """What a step waits for its batch, of which the resident loader leaves no more than it needs to cut one."""
    result, speed = entry.row.results[0], probe and probe.resident_images_per_second
    needed = 1000 * result.global_batch_size / result.data_ranks / speed if speed else 0.0
    return mean_excess("data", [step_time(run).parts["data"] - needed for run in entry.row.results])


def plan_proof(analysis: Analysis) -> Report | None:
    """Return what is to be run to prove the largest causes: the rows concerned, beside their remedies and shams.

    As many blocks as the comparison was to have at least. None where no row has a cause with a remedy.
    """
    report, remedies = analysis.report, find_remedies(analysis)
    if not remedies:
        return None
    plan = tuple(row for remedy in remedies for row in (remedy.row, remedy.configuration, remedy.sham))
    others = dict.fromkeys(("budget", "margin", "against", "prove", "timeline", "predict", "tips"))
    settings = {**report.settings, **others, "repeats": report.wanted_blocks, "check_maths": False, "project": []}
    order = make_order([row.name for row in plan], report.wanted_blocks, report.settings["seed"])
    return Report(report.command, cast(Settings, settings), report.environment, report.probe, plan, tuple(order))


def find_proofs(analysis: Analysis, report: Report) -> list[Proof]:
    """Return the measured effect of each remedy; `report` is the second comparison, which ran them.

    The remedies' gains have simultaneous 95% intervals, and so have the shams'.
    """
    rows = {row.configuration.name: row for row in report.all_rows}
    remedies = find_remedies(analysis)
    return [_proof(remedy, rows, len(remedies)) for remedy in remedies]


def _proof(remedy: Remedy, rows: dict[str, Row], claims: int) -> Proof:
    own, remedied, sham = (rows.get(row.name) for row in (remedy.row, remedy.configuration, remedy.sham))
    if not own or not remedied or any(row and row.disturbed for row in (own, remedied, sham)):
        return Proof(remedy)
    measured = _shorter(own, remedied, remedy.phase, claims)
    account = account_for_steps(own, remedied, 1.0)
    if not measured or not account:
        return Proof(remedy)
    gone = (remedy.phase, LATE) if remedy.phase in ("exchange", "backward") else (remedy.phase,)
    others = [part for part in account.proved if part.name not in gone]  # without an exchange nobody waits in it
    moved = [part for part in others if abs(part.value) > SIDE_EFFECT * abs(measured.value)]
    return Proof(remedy, measured, _shorter(own, sham, remedy.phase, claims) if sham else None, tuple(moved))


def _shorter(own: Row, other: Row, phase: str, claims: int) -> Excess | None:
    """By how many milliseconds a phase of a step is shorter in another row; None where no block has both."""
    runs = paired(own, other, lambda result: result)
    gains = [
        _milliseconds(mine, phase) - _images(mine) / _images(theirs) * _milliseconds(theirs, phase)
        for mine, theirs in runs
    ]
    return mean_excess(phase, gains, claims) if gains else None


def _milliseconds(result: RunResult, phase: str) -> float:
    if phase == QUEUED:
        return statistics.mean(means.queued or 0.0 for means in rank_means(result)) / result.threads_per_process
    return step_time(result).parts.get(phase, 0.0)


def _images(result: RunResult) -> float:
    """How many a step has."""
    return result.epochs[-1].samples / result.epochs[-1].steps
