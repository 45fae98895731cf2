"""All that is derived from a comparison's raw results, computed once; tables, figures and words only show it."""

import math
import statistics
from dataclasses import dataclass

from common.words import count
from comparison.causes import Accounts, Cause, find_accounts, find_causes
from comparison.costs import Costs, find_costs
from comparison.counterparts import BEFORE, TWIN
from comparison.fairness import Standing, compare_with_baselines, differences
from comparison.measures import (
    Summary,
    asked_seconds,
    block_times,
    confidence_of,
    noise_blocks_of,
    ratio_of,
    ratios_of,
    summarize,
    unsteadiness,
)
from comparison.plan import SWEEPS
from comparison.projection import Projection, project
from comparison.record import Report, Row
from comparison.statistics import DISTURBED, FASTER, Ratio, not_told_apart, residual_deviation, resolution

MUCH_MEMORY = 0.20  # more or less than the baseline needs is worth a sentence


@dataclass(frozen=True)
class RowAnalysis:
    """What is derived from one row. result: in words, what became of it; warnings: what makes its times doubtful.

    memory_ratio: its peak memory ÷ the baseline's; None where it has no speed-up over another row either.
    """

    row: Row
    summary: Summary
    standing: Standing
    costs: Costs
    accounts: Accounts
    causes: tuple[Cause, ...]
    warnings: tuple[str, ...]
    result: str
    memory_ratio: float | None

    @property
    def much_memory(self) -> bool:
        """Whether it needs much more or much less memory than its baseline."""
        return self.memory_ratio is not None and abs(self.memory_ratio - 1) >= MUCH_MEMORY

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
        return bool(self.standing.speed_up) and not (
            self.is_baseline or self.standing.unequal or self.row.times_only)


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in the swept setting `name` alone, at least two, in the order of its values.

    ratios: how many times as long as the first each of the others takes.
    """

    name: str
    rows: tuple[RowAnalysis, ...]
    ratios: tuple[Ratio, ...]

    def value(self, entry: RowAnalysis) -> object:
        """Return the value of the swept setting in a row."""
        return entry.row.configuration.values[self.name]


@dataclass(frozen=True)
class Recommendation:
    """What to use of the rows that trained the same.

    kind: "use" (`best`, proved to be faster), "stay" (with `best`, a baseline), or why there is none: "not measured",
    "disturbed", "all cores" (one process with all cores has no time), "few runs", "own batches" (each row trains with
    the largest that fits).
    trained: the swept values that make it a training of its own, in words. shown: the row whose speed-up is told.
    rows: all that were compared. whole: the fastest row with all cores, and how many times as long as `best` it takes.
    equals: the rows that may be the fastest as well as `best`.
    """

    kind: str
    trained: str = ""
    rows: tuple[RowAnalysis, ...] = ()
    best: RowAnalysis | None = None
    shown: RowAnalysis | None = None
    whole: RowAnalysis | None = None
    whole_ratio: Ratio | None = None
    equals: tuple[RowAnalysis, ...] = ()


@dataclass(frozen=True)
class Resolution:
    """How small a difference the comparison can find, in four of five cases, as a share.

    deviation: the standard deviation of the times of runs, without what blocks and rows have in common, as a share.
    differences: by number of blocks.
    """

    deviation: float
    differences: dict[int, float]


@dataclass(frozen=True)
class Pair:
    """A row and its counterpart (see comparison.counterparts), if both have a run that ended well.

    summary: the counterpart's. ratio: how many times as fast the row is; None where the two do not train equally many
    images. differences: in what should be equal between rows, each with both values.
    """

    row: RowAnalysis
    counterpart: Row
    summary: Summary
    ratio: Ratio | None
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """A report and what is derived from it. sweeps: one for each swept setting and method that has several values.

    pairs: of rows and counterparts, by role. resolution: None where there are too few runs to tell.
    """

    report: Report
    rows: tuple[RowAnalysis, ...]
    sweeps: tuple[Sweep, ...]
    projection: Projection
    recommendations: tuple[Recommendation, ...]
    resolution: Resolution | None
    pairs: dict[str, tuple[Pair, ...]]

    @property
    def done(self) -> list[RowAnalysis]:
        """The rows that have a run that ended well."""
        return [entry for entry in self.rows if entry.row.results]

    def of(self, row: Row) -> RowAnalysis:
        """Return what is derived from a row."""
        return _entry(self.rows, row)


def analyse(report: Report) -> Analysis:
    """Return all that is derived from the raw results of a comparison."""
    summaries = {row.configuration.name: summarize(row) for row in report.rows}
    standings = compare_with_baselines(report)
    rows = tuple(_analyse_row(report, row, standings[row.configuration.name], summaries) for row in report.rows)
    sweeps = tuple(sweep for name in report.swept for sweep in _sweeps(report, rows, name))
    return Analysis(report, rows, sweeps, project(report, summaries), tuple(_recommendations(report, rows)),
                    _resolution(report), {role: _pairs(report, rows, role) for role in (TWIN, BEFORE)})


def _pairs(report, rows, role):
    """The intervals of all pairs of a role together have the report's confidence (Bonferroni's inequality)."""
    by_name = {entry.row.configuration.name: entry for entry in rows if entry.row.results}
    couples = [(by_name[other.configuration.against], other) for other in report.counterparts
               if other.configuration.role == role and other.results and other.configuration.against in by_name]
    confidence = 1 - (1 - confidence_of(report)) / max(1, len(couples))
    return tuple(_pair(report, entry, other, confidence) for entry, other in couples)


def _pair(report, entry, other, confidence):
    mine, theirs = entry.row.results[0], other.results[0]
    ratio = None
    if mine.epochs[-1].samples == theirs.epochs[-1].samples:
        (ratio,) = ratios_of(report, other, [entry.row], asked_seconds(report), confidence)
    unlike = differences(mine, theirs, report.settings["scaling"], ("seed",))
    return Pair(entry, other, summarize(other), ratio, tuple(unlike))


def _resolution(report):
    times = block_times([row for row in report.all_rows if row.results], asked_seconds(report))
    noise = residual_deviation(times) if times.size else None
    if noise is None:
        return None
    (measured, columns), (deviation, _) = times.shape, noise
    shares = {blocks: resolution(deviation, blocks, columns, len(report.rows) - 1, confidence_of(report))
              for blocks in sorted({measured, 10})}
    return Resolution(deviation, {blocks: share for blocks, share in shares.items() if share < math.inf})


def _analyse_row(report, row, standing, summaries):
    accounts = find_accounts(row, standing)
    return RowAnalysis(
        row=row, summary=summaries[row.configuration.name], standing=standing,
        costs=find_costs(report, row), accounts=accounts,
        causes=find_causes(report, row, standing, accounts, summaries), warnings=tuple(unsteadiness(row)),
        result=_result(report, row, standing), memory_ratio=_memory_ratio(row, standing, summaries),
    )


def _memory_ratio(row, standing, summaries):
    if not standing.speed_up or standing.baseline is row:
        return None
    own, baseline = (summaries[name].memory for name in (row.configuration.name, standing.baseline.configuration.name))
    return own.peak / baseline.peak if own and baseline else None


def _entry(rows, row):
    return next(entry for entry in rows if entry.row is row)


def _result(report, row, standing):
    """In words: its failures, whether it is comparable, faster or slower."""
    if row.configuration.skip:
        return "skipped"
    words, check = [], report.equivalence.get(row.configuration.name)
    if check and check.status == "failed":
        words.append("failed: " + ("computes something else" if check.difference else "not checked"))
    if row.troubles:
        words.append(row.trouble + (f" {row.configuration.planned.batch}" if row.out_of_memory else ""))
    if not row.results:
        return "; ".join(words) or "not run"
    allowed = report.settings["allow_unequal"]
    if standing.unequal and allowed:
        words.append("UNEQUAL (" + ", ".join(standing.unequal) + ")")
    if standing.baseline is row:
        words.append("baseline")
    elif standing.speed_up:
        words.append(standing.speed_up.words)
    elif row.simulated:
        words.append("simulated")
    elif standing.unequal and not allowed:
        words.append(standing.reason)
    if row.disturbed and DISTURBED not in words:
        words.append(DISTURBED)
    if row.all_cores:
        words.append(count(row.results[0].threads_per_process, "thread"))
    return "; ".join(words) or "ok"


def _sweeps(report, rows, name):
    groups: dict[str, list[RowAnalysis]] = {}
    for entry in rows:
        if name in entry.row.configuration.values and entry.row.results:
            groups.setdefault(entry.row.series(name), []).append(entry)
    return [Sweep(name, tuple(group), tuple(ratio.inverse for ratio in ratios_of(
        report, group[0].row, [entry.row for entry in group[1:]]))) for group in groups.values() if len(group) > 1]


def _recommendations(report, rows):
    """For each model and batch: the fastest row that is proved to be, or a baseline."""
    groups: dict[str, list[RowAnalysis]] = {}
    for entry in rows:
        if entry.rivals_baseline:
            trained = [f"{SWEEPS[name].lower()} {value}" for name, value in entry.row.configuration.values.items()
                       if name in ("model", "batch_size")]
            groups.setdefault(", ".join(trained), []).append(entry)
    if not groups:
        return [Recommendation("not measured")]
    if report.fitted and report.settings.get("target_accuracy") is None:
        return [Recommendation("own batches")]
    return [_recommend(report, trained, judged, rows) for trained, judged in groups.items()]


def _recommend(report, trained, judged, every):
    """judged: rows with a speed-up that trained the same; every: all rows of the comparison."""
    compared = tuple({entry.label: entry for pair in judged
                      for entry in (pair, _entry(every, pair.standing.baseline))}.values())
    seconds = asked_seconds(report)

    def mean_seconds(entry):
        return statistics.geometric_mean(map(seconds, entry.row.results))

    whole = min((entry for entry in compared if entry.row.all_cores), key=mean_seconds, default=None)
    proved = [entry for entry in judged if entry.standing.speed_up.low is not None]
    if whole and whole.standing.speed_up.low is None and not whole.is_baseline:
        proved = []  # it may be the fastest, and has too few runs
    if any(entry.row.disturbed for entry in compared):
        return Recommendation("disturbed", trained, compared)
    if whole is None and report.first.device == "cpu" and report.device_threads < report.environment["cores"]:
        return Recommendation("all cores", trained, compared)
    if not proved:
        return Recommendation("few runs", trained, compared, shown=max(judged, key=_speed_up))
    winners = [entry for entry in proved if entry.standing.speed_up.words == FASTER]
    best = min([*winners, *(_entry(every, entry.standing.baseline) for entry in proved)], key=mean_seconds)
    if best not in winners:
        return Recommendation("stay", trained, compared, best, shown=max(proved, key=_speed_up))
    columns = {every.index(entry): entry for entry in compared}
    kept = not_told_apart(block_times(report.rows, seconds), list(columns), confidence_of(report),
                          noise_blocks_of(report))
    equals = tuple(columns[column] for column in kept if columns[column] is not best)
    return Recommendation("use", trained, compared, best, best, whole,
                          whole and ratio_of(report, whole.row, best.row, seconds), equals)


def _speed_up(entry):
    return entry.standing.speed_up.value
