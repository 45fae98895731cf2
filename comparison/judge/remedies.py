"""Prove causes by intervention: rerun a row without its largest cause.

The cause is proved if the blamed phase becomes shorter by the predicted amount while the other phases stay the same,
and a sham, which is the unchanged row again, has no effect. Remedies and shams run together with their rows in blocks
of their own after the comparison, so the data that selected the cause is not part of its proof.
"""

import statistics
from dataclasses import dataclass, replace
from typing import cast

from common.files.probe import Probe
from common.files.results import RunResult
from comparison.judge.analysis import Analysis
from comparison.judge.causes import find_causes
from comparison.judge.ranks import COMPUTATION, rank_means
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess, mean_excess
from comparison.judge.step_causes import Case
from comparison.judge.steps import LATE, account_for_steps, find_accounts, images_per_step, paired, step_time
from comparison.judge.summaries import Finding
from comparison.methods import method_of
from comparison.plan.counterparts import REMEDY, SHAM, counterpart
from comparison.plan.plan import make_order
from comparison.record import Report, Settings
from comparison.rows import Configuration, Row

QUEUED = "queued"  # not a phase: the time in which threads wait for a core
NEAR = 0.15  # relative difference that still agrees with the prediction
SIDE_EFFECT = 0.25  # share of the blamed phase's reduction by which another part may change in a proof


@dataclass(frozen=True)
class Remedy:
    """A change that removes one cause from a row. change: its name. flags: added to the row's command.

    phase: the phase that should become shorter. predicted: by how many milliseconds per step, from the comparison.
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
        """The row with the remedy."""
        return counterpart(self.row, REMEDY, self.change, (*self.row.command, *self.flags))

    @property
    def sham(self) -> Configuration:
        """The unchanged row again, which should have no effect."""
        return counterpart(self.row, SHAM, "again", self.row.command)


@dataclass(frozen=True)
class Proof:
    """The result of a remedy.

    measured, sham: by how many milliseconds per step the remedy and the sham shortened the blamed phase, for the same
    number of images; None if not measured, or disturbed. moved: the other parts of the step that are proved to have
    changed by more than SIDE_EFFECT of `measured`.
    """

    remedy: Remedy
    measured: Excess | None = None
    sham: Excess | None = None
    moved: tuple[Excess, ...] = ()

    @property
    def outcome(self) -> str:
        """ "proved", or why not: "not measured", "one block", "not shorter", "sham", "elsewhere", "less" or "more"."""
        measured, predicted = self.measured, self.remedy.predicted
        if measured is None or self.sham is None:
            return "not measured"
        if measured.low is None or measured.high is None:
            return "one block"
        if measured.low <= 0:
            return "not shorter"
        if self.sham.proved and abs(self.sham.value) > SIDE_EFFECT * measured.value:
            return "sham"
        if self.moved:
            return "elsewhere"
        if predicted.low is None or predicted.high is None:
            return "proved"
        if measured.high < (1 - NEAR) * predicted.low:
            return "less"
        return "more" if measured.low > (1 + NEAR) * predicted.high else "proved"


def find_remedies(analysis: Analysis) -> list[Remedy]:
    """Return a remedy for the largest cause of each row that has a remedy."""
    found = []
    for entry in analysis.rows:
        if entry.row.results and not entry.row.configuration.is_script:
            entry = _without_correction(analysis, entry)
            remedies = (_remedy(entry, cause, analysis.report) for cause in entry.causes)
            found += [remedy for remedy in remedies if remedy][:1]
    return found


def _without_correction(analysis: Analysis, entry: RowAnalysis) -> RowAnalysis:
    """Return a row with its causes as if it had the only account: these causes are yet to be proved."""
    standing = replace(entry.standing, accounts=1)
    accounts = find_accounts(entry.row, standing)
    summaries = {other.name: other.summary for other in analysis.rows}
    case = Case(analysis.report, entry.row, standing, accounts, summaries)
    return replace(entry, accounts=accounts, causes=find_causes(case))


def _remedy(entry: RowAnalysis, cause: Finding, report: Report) -> Remedy | None:
    """Return the remedy for a cause; None if there is none, or if the cause costs nothing.

    A larger batch shows what a device loses by its small share of the batch, which is the baseline's in weak scaling.
    """
    result, planned, devices = entry.row.results[0], entry.row.configuration.planned, entry.standing.devices
    method, accounts, kind = method_of(entry.row.configuration.method), entry.accounts, cause.kind
    place = cause.values.get("place")
    has_part = devices > 1 and not method.staged and report.settings["scaling"] == "strong"  # a stage has it whole
    of_a_rank = isinstance(place, Finding) and place.kind == "of a rank"  # no flag makes a slow rank faster
    if kind == "straggler" and accounts.straggler:
        kind = accounts.straggler.phase
    parts = {part.name: part for part in accounts.steps.parts} if accounts.steps else {}
    phase, predicted = kind, parts.get(kind) if cause.of == "step" else None
    flags: tuple[str, ...]
    if kind in ("data", "waiting for data") and result.config["loader"] == "workers":
        phase, predicted = "data", _avoidable_waiting(entry, report.probe)
        change, flags = "loader resident", ("--loader", "resident", "--num-workers", "0")
    elif kind == "too many workers" and accounts.queued and planned.num_workers > result.world_size:
        phase, predicted = QUEUED, accounts.queued.times(entry.summary.step_milliseconds)
        change, flags = f"workers {result.world_size}", ("--num-workers", str(result.world_size))
    elif method.without_exchange and (kind == "exchange" or (kind == "backward" and "exchange" not in parts)):
        change, flags = "no exchange", method.without_exchange
    elif kind in COMPUTATION and has_part and not of_a_rank:
        batch = round(planned.batch_size * devices)
        change, flags = f"batch {batch}", ("--batch-size", str(batch))
    else:
        return None
    if not predicted or predicted.value <= 0:
        return None
    return Remedy(entry.row.configuration, entry.label, kind, change, flags, phase, predicted)


def _avoidable_waiting(entry: RowAnalysis, probe: Probe | None) -> Excess:
    """Return the milliseconds that a step waits for its batch, without those that the resident loader needs too."""
    result, speed = entry.row.results[0], probe and probe.resident_images_per_second
    needed = 1000 * result.global_batch_size / result.data_ranks / speed if speed else 0.0
    return mean_excess("data", [step_time(run).parts["data"] - needed for run in entry.row.results])


def plan_proof(analysis: Analysis) -> Report | None:
    """Return the comparison that proves the largest causes: rows with their remedies and shams.

    It has the least number of blocks of the first comparison. None if no row has a cause with a remedy.
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
    """Return the measured effect of each remedy. report: the comparison that ran them.

    The remedies' gains have simultaneous 95% intervals, and so do the shams'.
    """
    rows = {row.name: row for row in report.all_rows}
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
    gone = (remedy.phase, LATE) if remedy.phase in ("exchange", "backward") else (remedy.phase,)  # no exchange, no wait
    others = [part for part in account.proved if part.name not in gone]
    moved = [part for part in others if abs(part.value) > SIDE_EFFECT * abs(measured.value)]
    return Proof(remedy, measured, _shorter(own, sham, remedy.phase, claims) if sham else None, tuple(moved))


def _shorter(own: Row, other: Row, phase: str, claims: int) -> Excess | None:
    """Return by how many milliseconds per step a phase is shorter in the other row; None if no block has both rows."""
    runs = paired(own, other, lambda result: result)
    gains = [
        _milliseconds(mine, phase) - images_per_step(mine) / images_per_step(theirs) * _milliseconds(theirs, phase)
        for mine, theirs in runs
    ]
    return mean_excess(phase, gains, claims) if gains else None


def _milliseconds(result: RunResult, phase: str) -> float:
    if phase == QUEUED:
        return statistics.mean(means.queued or 0.0 for means in rank_means(result)) / result.threads_per_process
    return step_time(result).parts.get(phase, 0.0)
