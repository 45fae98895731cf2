"""Everything derived from a comparison's raw results, computed once; comparison.show only presents it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.files.results import RunResult
from comparison.judge.blocks import Table
from comparison.judge.decision import Decision, decide
from comparison.judge.fairness import (
    accuracy_margin,
    compare_with_baselines,
    differences,
    equal_images,
    seen_differences,
)
from comparison.judge.measures import Measures, Resolution, block_times, measure
from comparison.judge.projection import Projection, project
from comparison.judge.row_analysis import RowAnalysis, analyse_row
from comparison.judge.statistics import FASTER, SLOWER, Ratio, any_reference
from comparison.judge.summaries import Summary
from comparison.outcomes import Outcome
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.plan.tips import TRAINED, options_of
from comparison.record import Report
from comparison.rows import Row
from comparison.words import say

WORTH = 1.03  # speed-up from which an option is launched again, and part of the best tip


@dataclass(frozen=True)
class Sweep:
    """At least two rows that differ only in the swept setting `name`, in the order of its values; none is simulated.

    ratios: how many times as long as the first row each other row takes. fastest: the rows that may be the fastest;
    none if a row is disturbed.
    """

    name: str
    rows: tuple[RowAnalysis, ...]
    ratios: tuple[Ratio, ...]
    fastest: tuple[RowAnalysis, ...]

    def value(self, entry: RowAnalysis) -> object:
        """Return the value of the swept setting in a row."""
        return entry.row.configuration.values[self.name]


@dataclass(frozen=True)
class Pair:
    """A row and its counterpart (see comparison.plan.counterparts), both with a successful run.

    summary: the counterpart's. ratio: how many times as fast the row is; None if the two train different numbers of
    images. differences: in what should be equal between rows, each with both values.
    """

    row: RowAnalysis
    counterpart: Row
    summary: Summary
    ratio: Ratio | None
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Tip:
    """A row with options. ratio: how many times as fast it is as the plain row; None if it has no time.

    accuracy: after a whole training with the options, 0..1; None if there was none. trouble: the status of such a
    training if it did not end well.
    """

    options: tuple[str, ...]
    row: Row
    plain: Row
    ratio: Ratio | None
    accuracy: float | None = None
    trouble: str = ""

    @property
    def proved(self) -> bool:
        """Whether it is proved to be faster."""
        return self.ratio is not None and self.ratio.words == FASTER

    @property
    def speed(self) -> float:
        """How many times as fast it is; 0 if it has no time."""
        return self.ratio.value if self.ratio else 0.0


@dataclass(frozen=True)
class Analysis:
    """A report and everything derived from it. sweeps: one for each method and swept setting with several values.

    pairs: rows and their counterparts, by role. resolution: None with too few runs. tips: the effect of options on the
    recommended row, from a comparison of their own (see comparison.run.tips).
    """

    report: Report
    rows: tuple[RowAnalysis, ...]
    sweeps: tuple[Sweep, ...]
    projection: Projection
    decisions: tuple[Decision, ...]
    resolution: Resolution | None
    pairs: dict[str, tuple[Pair, ...]]
    tips: tuple[Tip, ...] = ()

    @property
    def done(self) -> list[RowAnalysis]:
        """The rows with a successful run."""
        return [entry for entry in self.rows if entry.row.results]

    @property
    def same_images(self) -> bool:
        """Whether the epochs of all rows have equally many images, so that their times per epoch are comparable."""
        return equal_images(entry.row.results[0] for entry in self.done if not entry.row.configuration.is_script)

    def ratio_to_best(self, entry: RowAnalysis) -> Ratio | None:
        """Return how many times as long a row takes as the recommended row of the same training."""
        return next((decision.ratios[entry.name] for decision in self.decisions if entry.name in decision.ratios), None)

    def of(self, row: Row) -> RowAnalysis:
        return next(entry for entry in self.rows if entry.row is row)


def analyse(report: Report) -> Analysis:
    measures = measure(report)
    standings = compare_with_baselines(report, measures)
    rows = tuple(analyse_row(report, row, standings[row.name], measures) for row in report.rows)
    sweeps, projection = _find_sweeps(report, rows, measures.asked), project(report, measures.summaries)
    pairs = {role: _pairs(report, rows, role, measures) for role in (TWIN, BEFORE)}
    return Analysis(report, rows, sweeps, projection, decide(report, rows, measures), measures.resolution, pairs)


def _pairs(report: Report, rows: Sequence[RowAnalysis], role: str, measures: Measures) -> tuple[Pair, ...]:
    """Pair rows with their counterparts. The intervals of one role together have the report's confidence (Bonferroni's
    inequality)."""
    by_name = {entry.name: entry for entry in rows if entry.row.results}
    couples = [
        (by_name[other.configuration.against], other)
        for other in report.all_rows
        if other.configuration.role == role and other.results and other.configuration.against in by_name
    ]
    confidence = 1 - (1 - measures.asked.confidence) / max(1, len(couples))
    pairs = []
    for entry, other in couples:
        mine, theirs, name = entry.row.results[0], other.results[0], other.name
        equal, unlike = equal_images((mine, theirs)), differences(mine, theirs, report.settings["scaling"], ("seed",))
        if entry.row.configuration.is_script:  # its slices may have any length
            equal, unlike = True, [*seen_differences(mine, theirs)]
        now, then = (100 * (own.accuracy or 0.0) for own in (entry.summary, measures.summaries[name]))
        if abs(now - then) > accuracy_margin(report):
            unlike.append(say("accuracy {n:.1f}% instead of {m:.1f}%", n=now, m=then))
        comparable = equal and not (entry.row.missed or other.missed)
        ratio = measures.asked.ratios(name, [entry.name], confidence)[0] if comparable else None
        pairs.append(Pair(entry, other, measures.summaries[name], ratio, tuple(unlike)))
    return tuple(pairs)


# ---- sweeps


def _find_sweeps(report: Report, rows: Sequence[RowAnalysis], asked: Table) -> tuple[Sweep, ...]:
    groups: dict[tuple[str, str], list[RowAnalysis]] = {}
    for name in report.swept:
        for entry in rows:
            if name in entry.row.configuration.values and not entry.row.simulated:
                group = groups.setdefault((name, entry.row.series(name)), [])  # in the order of the plan
                group += [entry] if entry.row.results and not entry.row.missed else []
    swept = [(name, entries) for (name, _), entries in groups.items() if len(entries) > 1]
    return tuple(_sweep(name, entries, asked, len(swept)) for name, entries in swept)


def _sweep(name: str, entries: list[RowAnalysis], asked: Table, sweeps: int) -> Sweep:
    """Return a sweep. Its ratios to the fastest row, and those to the first one, each hold in all sweeps together."""
    confidence = 1 - (1 - asked.confidence) / sweeps
    ratios = asked.ratios(entries[0].name, [entry.name for entry in entries[1:]], confidence)
    disturbed = any(entry.row.disturbed for entry in entries)
    asked = replace(asked, confidence=any_reference(asked.confidence, len(entries), sweeps))
    fastest = [] if disturbed else _tied_for_fastest(entries, asked)
    return Sweep(name, tuple(entries), tuple(ratio.inverse for ratio in ratios), tuple(fastest))


def _tied_for_fastest(entries: Sequence[RowAnalysis], asked: Table) -> list[RowAnalysis]:
    """Return the fastest row, with two runs if any row has two, and all rows that do not differ from it provably."""
    twice = [entry for entry in entries if entry.summary.runs > 1]
    fastest = min(twice or entries, key=lambda entry: entry.summary.asked_seconds or math.inf)
    others = [entry for entry in entries if entry is not fastest]
    ratios = asked.ratios(fastest.name, [other.name for other in others])
    tied = [other for other, ratio in zip(others, ratios, strict=True) if ratio.words not in (FASTER, SLOWER)]
    return [fastest, *tied]


# ---- options for the recommended row


def find_tips(tried: Report) -> tuple[Tip, ...]:
    """Return the effect of each option, or combination of options.

    tried: a comparison of the plain row, its first one, with rows that have options. The intervals of all rows that
    were launched again hold simultaneously. Only options that looked faster are launched again, which adds no false
    claim: it only omits some.
    """
    plain, *others = tried.all_rows
    others = [row for row in others if row.configuration.role != TRAINED]
    rows = [row for row in (plain, *others) if row.results]
    names = tuple(row.name for row in rows)
    disturbed = frozenset(row.name for row in rows if row.disturbed)
    table = Table(names, block_times(rows, _median_image_seconds), disturbed=disturbed)
    timed = dict(zip(names[1:], table.ratios(names[0], names[1:]), strict=True)) if plain.results and names[1:] else {}
    trained = {options_of(row.configuration): row for row in tried.all_rows if row.configuration.role == TRAINED}
    tips = []
    for row in others:
        options = options_of(row.configuration)
        training = trained.get(options)
        accuracy = training.results[0].epochs[-1].test_accuracy if training and training.results else None
        trouble = training.troubles[0].status if training and training.troubles else ""
        tips.append(Tip(options, row, plain, timed.get(row.name), accuracy, trouble))
    return tuple(tips)


def _median_image_seconds(outcome: Outcome, result: RunResult) -> float:
    """Return the seconds per image in the median slice: a launch has few, and one disturbed slice must not decide."""
    return statistics.median(epoch.train_seconds / epoch.samples for epoch in result.timed_epochs)


def best_tip(tips: Sequence[Tip]) -> Tip | None:
    """Return the fastest tip that is proved to be faster and trains well, of options that are each worth it alone."""
    useless = {tip.options for tip in tips if tip.speed < WORTH}
    proved = [
        tip for tip in tips if tip.proved and not tip.trouble and not any((name,) in useless for name in tip.options)
    ]
    return max(proved, key=lambda tip: tip.speed, default=None)
