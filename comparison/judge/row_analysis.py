"""All that is derived from one row, beside its baseline."""

from collections.abc import Iterable
from dataclasses import dataclass

from comparison.judge.causes import find_causes
from comparison.judge.fairness import NOT_SHOWN, Standing
from comparison.judge.measures import Costs, Finding, Measures, Summary, find_costs
from comparison.judge.statistics import DISTURBED, FASTER
from comparison.judge.step_causes import Case
from comparison.judge.steps import Accounts, find_accounts
from comparison.record import Report
from comparison.rows import Row
from comparison.words import count, join, say

MUCH_MEMORY = 0.20  # more or less than the baseline needs is worth a sentence


@dataclass(frozen=True)
class RowAnalysis:
    """What is derived from one row. result: in words, what became of it.

    memory_ratio: its peak memory ÷ the baseline's; None where it has no speed-up over another row either.
    """

    row: Row
    summary: Summary
    standing: Standing
    costs: Costs
    accounts: Accounts
    causes: tuple[Finding, ...]
    memory_ratio: float | None
    result: str

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What makes its times doubtful."""
        return self.summary.warnings

    @property
    def much_memory(self) -> bool:
        """Whether it needs much more or much less memory than its baseline."""
        return self.memory_ratio is not None and abs(self.memory_ratio - 1) >= MUCH_MEMORY

    @property
    def name(self) -> str:
        """What identifies the row."""
        return self.row.configuration.name

    @property
    def label(self) -> str:
        """What the row is called."""
        return self.row.label

    @property
    def is_baseline(self) -> bool:
        """Whether the row is what it is compared with."""
        return self.standing.baseline is self.row

    @property
    def rivals_baseline(self) -> bool:
        """Whether it could be used instead of its baseline: it trains, equally, and has a speed-up."""
        return bool(self.standing.speed_up) and not (self.is_baseline or self.standing.unequal or self.row.times_only)


def analyse_row(report: Report, row: Row, standing: Standing, measures: Measures) -> RowAnalysis:
    """Return what is derived from a row."""
    accounts = find_accounts(row, standing)
    case = Case(report, row, standing, accounts, measures.summaries)
    return RowAnalysis(
        row=row,
        summary=measures.summaries[row.configuration.name],
        standing=standing,
        costs=find_costs(report, row, measures.images),
        accounts=accounts,
        causes=find_causes(case) if row.results else (),
        memory_ratio=_memory_ratio(row, standing, measures.summaries),
        result=_result(report, row, standing),
    )


def _memory_ratio(row: Row, standing: Standing, summaries: dict[str, Summary]) -> float | None:
    baseline = standing.baseline
    if not standing.speed_up or not baseline or baseline is row:
        return None
    own, other = (summaries[some.configuration.name].memory for some in (row, baseline))
    return own.peak / other.peak if own and other else None


def _result(report: Report, row: Row, standing: Standing) -> str:
    """In words: its failures, whether it is comparable, faster or slower."""
    if row.configuration.skip:
        return say("skipped")
    words: list[str] = []
    check = report.equivalence.get(row.configuration.name)
    if check and check.status == "failed":
        words.append(say("failed: computes something else" if check.difference else "failed: not checked"))
    if row.troubles:
        batch = row.configuration.planned.batch
        words.append(say("{trouble} {batch}", trouble=row.trouble, batch=batch) if row.out_of_memory else row.trouble)
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


def entry_of(rows: Iterable[RowAnalysis], row: Row | None) -> RowAnalysis:
    """Return what is derived from `row`, one of `rows`."""
    return next(entry for entry in rows if entry.row is row)
