"""Proof by intervention: what the largest cause of every row should cost, beside what a row without that cause gains.

The remedies run in blocks of their own, after the comparison, beside the rows that they are for: what singled a cause
out as the largest is no part of its proof.
"""

from dataclasses import dataclass
from typing import cast

from comparison.judge.analysis import Analysis
from comparison.judge.measures import Finding
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess
from comparison.judge.steps import COMPUTATION, account_for_steps
from comparison.methods import method_of
from comparison.plan.counterparts import REMEDY, counterpart
from comparison.plan.plan import make_order
from comparison.record import Report, Settings
from comparison.rows import Configuration


@dataclass(frozen=True)
class Remedy:
    """What takes one cause away from a row. change: what it is called; flags: of the script, besides the row's own.

    predicted: milliseconds that the cause makes a step longer, as the comparison measured it.
    """

    row: Configuration
    label: str
    cause: str
    change: str
    flags: tuple[str, ...]
    predicted: Excess

    @property
    def configuration(self) -> Configuration:
        """The row beside the one that it is for."""
        return counterpart(self.row, REMEDY, self.change, (*self.row.command, *self.flags))


@dataclass(frozen=True)
class Proof:
    """A remedy and what came of it. measured: milliseconds by which it made a step shorter; None if no block tells."""

    remedy: Remedy
    measured: Excess | None


def find_remedies(analysis: Analysis) -> list[Remedy]:
    """Return the remedy for the largest cause of each row that makes its step longer, where there is one."""
    remedies = (next(filter(None, (_remedy(entry, cause) for cause in entry.causes)), None) for entry in analysis.rows)
    return [remedy for remedy in remedies if remedy]


def _remedy(entry: RowAnalysis, cause: Finding) -> Remedy | None:
    """What takes the cause away; None if nothing is known that does, or if it costs nothing."""
    result, planned, more = entry.row.results[0], entry.row.configuration.planned, entry.standing.devices
    method, kind, change = method_of(entry.row.configuration.method), cause.kind, ""
    flags: tuple[str, ...] = ()
    parts = {part.name: part for part in entry.accounts.steps.parts} if entry.accounts.steps else {}
    predicted = parts.get(kind) if cause.of == "step" else None
    if kind == "waiting for data":
        predicted = Excess("data", entry.summary.phases.known["data"])
    elif kind == "too many workers" and entry.accounts.queued:
        predicted = entry.accounts.queued.times(entry.summary.step_milliseconds)
    if kind in ("data", "waiting for data") and result.config["loader"] == "workers":
        change, flags = "loader resident", ("--loader", "resident", "--num-workers", "0")
    elif kind == "too many workers" and planned.num_workers > result.world_size:
        change, flags = f"workers {result.world_size}", ("--num-workers", str(result.world_size))
    elif method.without_exchange and (kind == "exchange" or (kind == "backward" and "exchange" not in parts)):
        change, flags = "no exchange", method.without_exchange
    elif kind in COMPUTATION and more > 1 and not method.staged:  # a stage sees the whole batch already
        batch = round(planned.batch_size * more)
        change, flags = f"batch {batch}", ("--batch-size", str(batch))
    if not change or not predicted or predicted.value <= 0:
        return None
    return Remedy(entry.row.configuration, entry.label, kind, change, flags, predicted)


def plan_proof(analysis: Analysis) -> Report | None:
    """Return what is to be run to prove the largest causes: the rows concerned, each beside the same with its remedy.

    As many blocks as the comparison was to have at least. None where no row has a cause with a remedy.
    """
    report, remedies = analysis.report, find_remedies(analysis)
    if not remedies:
        return None
    plan = tuple(row for remedy in remedies for row in (remedy.row, remedy.configuration))
    others = dict.fromkeys(("budget", "margin", "against", "prove", "timeline", "predict"))
    settings = {**report.settings, **others, "repeats": report.wanted_blocks, "check_maths": False, "project": []}
    order = make_order([row.name for row in plan], report.wanted_blocks, report.settings["seed"])
    return Report(report.command, cast(Settings, settings), report.environment, report.probe, plan, tuple(order))


def find_proofs(analysis: Analysis, report: Report) -> list[Proof]:
    """Return what came of the remedies for a comparison's rows, as they were measured afterwards in `report`."""
    rows = {row.configuration.name: row for row in report.all_rows}
    proofs = []
    for remedy in find_remedies(analysis):
        own, other = rows.get(remedy.row.name), rows.get(remedy.configuration.name)
        disturbed = any(row and row.disturbed for row in (own, other))
        account = account_for_steps(own, other, 1.0) if own and other and not disturbed else None
        proofs.append(Proof(remedy, account.total if account else None))
    return proofs
