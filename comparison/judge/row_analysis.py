"""Everything derived from one row, compared with its baseline."""

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from comparison.judge.blocks import Table
from comparison.judge.causes import find_causes
from comparison.judge.fairness import NOT_SHOWN, Standing
from comparison.judge.measures import Measures
from comparison.judge.statistics import DISTURBED, FASTER, Ratio
from comparison.judge.step_causes import Case, unproved_part
from comparison.judge.steps import Accounts, find_accounts
from comparison.judge.summaries import Finding, Summary
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import Row
from comparison.words import count, join, say


@dataclass(frozen=True)
class Costs:
    """The costs that a method's parts (see comparison.methods.Parts) separate, as ratios of times; None if unknown.

    wrapper: one rank ÷ without the method. contention: all ranks without exchange ÷ one rank. exchange: with ÷ without.
    """

    wrapper: Ratio | None = None
    contention: Ratio | None = None
    exchange: Ratio | None = None

    @property
    def undisturbed(self) -> "Costs":
        """Those that other programs did not disturb."""
        return Costs(*(ratio and (None if ratio.disturbed else ratio) for ratio in vars(self).values()))


@dataclass(frozen=True)
class RowAnalysis:
    """Everything derived from one row. result: the outcome in words.

    unproved: the largest part of its step's difference, if it is not proved, but most of what the proved parts leave.
    memory_ratio: its peak memory ÷ the baseline's; None if it has no speed-up over another row either.
    """

    row: Row
    summary: Summary
    standing: Standing
    costs: Costs
    accounts: Accounts
    causes: tuple[Finding, ...]
    unproved: Finding | None
    memory_ratio: float | None
    result: str

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Reasons to doubt its times."""
        return self.summary.warnings

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def label(self) -> str:
        return self.row.label

    @property
    def is_baseline(self) -> bool:
        """Whether the row is its own baseline."""
        return self.standing.baseline is self.row

    @property
    def rivals_baseline(self) -> bool:
        """Whether it could replace its baseline: it trains, with equal settings, and has a speed-up."""
        return bool(self.standing.speed_up) and not (self.is_baseline or self.standing.unequal or self.row.times_only)


def analyse_row(report: Report, row: Row, standing: Standing, measures: Measures) -> RowAnalysis:
    accounts = find_accounts(row, standing)
    case = Case(report, row, standing, accounts, measures.summaries)
    return RowAnalysis(
        row=row,
        summary=case.summary,
        standing=standing,
        costs=_find_costs(report, row, measures.images),
        accounts=accounts,
        causes=find_causes(case) if row.results else (),
        unproved=unproved_part(case) if row.results else None,
        memory_ratio=_memory_ratio(row, standing, measures.summaries),
        result=_result(report, row, standing),
    )


def _find_costs(report: Report, row: Row, images: Table) -> Costs:
    """Return the costs of a row whose method has parts, from the rows of the parts with equal settings.

    The intervals of all costs of a comparison hold simultaneously (Bonferroni's inequality).
    """
    parts = method_of(row.configuration.method).parts
    if not parts or not row.results:
        return Costs()
    batch = "per_device_batch_size" if report.settings["scaling"] == "weak" else "batch_size"
    settings = attrgetter("model", batch, "num_workers", "threads")
    names = []
    for method in (parts.without, parts.one_rank, parts.no_exchange):
        part = report.partner(row, method)
        equal = part and settings(part.configuration.planned) == settings(row.configuration.planned)
        names.append(part.name if part and part.results and equal else "")
    pairs = list(pairwise([*names, row.name]))
    costs = len(pairs) * sum(bool(method_of(other.configuration.method).parts) for other in report.rows)
    confidence = 1 - (1 - images.confidence) / costs
    return Costs(*(images.ratios(more, [less], confidence)[0] if less and more else None for less, more in pairs))


def _memory_ratio(row: Row, standing: Standing, summaries: dict[str, Summary]) -> float | None:
    baseline = standing.baseline
    if not standing.speed_up or not baseline or baseline is row:
        return None
    own, other = (summaries[some.name].memory for some in (row, baseline))
    return own.peak / other.peak if own and other else None


def _result(report: Report, row: Row, standing: Standing) -> str:
    """Return the outcome in words: failures, whether the row is comparable, faster or slower."""
    if row.configuration.skip:
        return say("skipped")
    words: list[str] = []
    check = report.equivalence.get(row.name)
    if check and check.status == "failed":
        words.append(say("failed: different weights" if check.difference else "failed: not checked"))
    if row.troubles:
        batch = row.configuration.planned.batch
        named = row.out_of_memory and not row.configuration.is_script  # whose batch is unknown
        words.append(say("{trouble} {batch}", trouble=row.trouble, batch=batch) if named else row.trouble)
    if not row.results:
        return join("; ", words or [say("not run")])
    allowed = report.settings["allow_unequal"]
    if standing.unequal and allowed:
        words.append(say("UNEQUAL ({settings})", settings=join(", ", standing.unequal)))
    if standing.baseline is row:
        words.append(say("baseline"))
    elif standing.speed_up:
        words.append(standing.speed_up.words)
        if standing.accuracy and (standing.speed_up.words == FASTER or not standing.accuracy.startswith(NOT_SHOWN)):
            words.append(standing.accuracy)
    elif row.simulated:
        words.append(say("simulated"))
    elif standing.unequal and not allowed:
        words.append(standing.reason)
    if row.disturbed and DISTURBED not in words:
        words.append(DISTURBED)
    if row.all_cores:
        words.append(count(row.results[0].threads_per_process, "thread"))
    return join("; ", words or ["ok"])
