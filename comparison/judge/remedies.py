"""Proof by intervention: what the largest cause of every row should cost, beside what a row without that cause gains.

The remedies run in blocks of their own, after the comparison, beside the rows that they are for: what singled a cause
out as the largest is no part of its proof.
"""

from dataclasses import dataclass

from comparison.judge.analysis import Analysis
from comparison.judge.fairness import units
from comparison.judge.steps import COMPUTATION, Excess, account_for_steps
from comparison.methods import method_of
from comparison.plan.counterparts import REMEDY, counterpart
from comparison.plan.plan import make_order
from comparison.record import Report
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
    remedies = (next(_remedies(entry), None) for entry in analysis.rows)
    return [remedy for remedy in remedies if remedy]


def _remedies(entry):
    """What could be done about a row's causes, the largest first."""
    for cause in entry.causes:
        change, predicted = _change(entry, cause.kind), _predicted(entry, cause)
        if change and predicted and predicted.value > 0:
            yield Remedy(entry.row.configuration, entry.label, cause.kind, *change, predicted)


def _predicted(entry, cause):
    """What the cause costs, in milliseconds per step."""
    step = entry.summary.step_milliseconds
    if cause.kind == "waiting for data":
        return Excess("data", entry.summary.phases.data)
    if cause.kind == "too many workers":
        return entry.accounts.queued.times(step)
    return (
        next((part for part in entry.accounts.steps.parts if part.name == cause.kind), None)
        if cause.of == "step"
        else None
    )


def _change(entry, cause):
    """What takes the cause away: what it is called, and the flags; None if nothing is known that does."""
    result, planned = entry.row.results[0], entry.row.configuration.planned
    method = method_of(entry.row.configuration.method)
    exchange = method.without_exchange
    told_apart = entry.accounts.steps and any(part.name == "exchange" for part in entry.accounts.steps.parts)
    if cause in ("data", "waiting for data") and result.config["loader"] == "workers":
        return "loader resident", ("--loader", "resident", "--num-workers", "0")
    if cause == "too many workers" and planned.num_workers > result.world_size:
        return f"workers {result.world_size}", ("--num-workers", str(result.world_size))
    if exchange and (cause == "exchange" or (cause == "backward" and not told_apart)):
        return "no exchange", exchange
    more = units(result) / units(entry.standing.baseline.results[0]) if entry.standing.baseline else 1
    if cause in COMPUTATION and more > 1 and not method.staged:  # a stage sees the whole batch already
        batch = round(planned.batch_size * more)
        return f"batch {batch}", ("--batch-size", str(batch))
    return None


def plan_proof(analysis: Analysis) -> Report | None:
    """Return what is to be run to prove the largest causes: the rows concerned, each beside the same with its remedy.

    As many blocks as the comparison was to have at least. None where no row has a cause with a remedy.
    """
    report, remedies = analysis.report, find_remedies(analysis)
    if not remedies:
        return None
    plan = tuple(row for remedy in remedies for row in (remedy.row, remedy.configuration))
    settings = {
        **report.settings,
        "repeats": report.wanted_blocks,
        "check_maths": False,
        "project": [],
        **dict.fromkeys(("budget", "margin", "against", "prove", "timeline", "predict")),
    }
    order = make_order([row.name for row in plan], report.wanted_blocks, settings["seed"])
    return Report(report.command, settings, report.environment, report.probe, plan, tuple(order))


def find_proofs(analysis: Analysis, report: Report) -> list[Proof]:
    """Return what came of the remedies for a comparison's rows, as they were measured afterwards in `report`."""
    rows = {row.configuration.name: row for row in report.all_rows}
    proofs = []
    for remedy in find_remedies(analysis):
        own, other = rows.get(remedy.row.name), rows.get(remedy.configuration.name)
        disturbed = any(row and row.disturbed for row in (own, other))
        account = account_for_steps(own, other, 1.0) if own and other and not disturbed else None
        proofs.append(Proof(remedy, account and account.total))
    return proofs
