"""All that is derived from a comparison's raw results, computed once; tables, figures and words only show it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.files.results import RunResult
from comparison.judge.decision import Decision, decide
from comparison.judge.fairness import compare_with_baselines, differences, equal_images
from comparison.judge.measures import Measures, Resolution, Summary, block_times, measure
from comparison.judge.projection import Projection, project
from comparison.judge.row_analysis import RowAnalysis, analyse_row, entry_of
from comparison.judge.statistics import FASTER, Ratio, Table
from comparison.judge.sweeps import Sweep, find_sweeps
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.plan.tips import TRAINED, options_of
from comparison.record import Report
from comparison.rows import Outcome, Row

WORTH = 1.03  # times as fast in its first launch is an option that is launched again


@dataclass(frozen=True)
class Pair:
    """A row and its counterpart (see comparison.plan.counterparts), if both have a run that ended well.

    summary: the counterpart's. ratio: how many times as fast the row is; None where the two do not train equally many
    images. differences: in what should be equal between rows, each with both values.
    """

    row: RowAnalysis
    counterpart: Row
    summary: Summary
    ratio: Ratio | None
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Tip:
    """A row with options. ratio: how many times as fast it is as the plain row, None if it has no time.

    accuracy: 0..1, of a whole training with it; None where there was none.
    """

    options: tuple[str, ...]
    row: Row
    plain: Row
    ratio: Ratio | None
    accuracy: float | None = None

    @property
    def proved(self) -> bool:
        """Whether it is proved to be faster."""
        return self.ratio is not None and self.ratio.words == FASTER

    @property
    def speed(self) -> float:
        """How many times as fast it is, 0 if it has no time."""
        return self.ratio.value if self.ratio else 0.0


@dataclass(frozen=True)
class Analysis:
    """A report and what is derived from it. sweeps: one for each swept setting and method that has several values.

    pairs: of rows and counterparts, by role. resolution: None where there are too few runs to tell. tips: what options
    make of the row to use, by a comparison of their own (see comparison.run.tips).
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
        """The rows that have a run that ended well."""
        return [entry for entry in self.rows if entry.row.results]

    @property
    def same_images(self) -> bool:
        """Whether the epochs of all rows hold equally many images, so that their times per epoch are comparable."""
        return equal_images(entry.row.results[0] for entry in self.done)

    def beside_best(self, entry: RowAnalysis) -> Ratio | None:
        """Return how many times as long as the row to use, of the same training, a row takes."""
        return next((found.ratios[entry.name] for found in self.decisions if entry.name in found.ratios), None)

    def of(self, row: Row) -> RowAnalysis:
        """Return what is derived from a row."""
        return entry_of(self.rows, row)


def analyse(report: Report) -> Analysis:
    """Return all that is derived from the raw results of a comparison."""
    measures = measure(report)
    standings = compare_with_baselines(report, measures)
    rows = tuple(analyse_row(report, row, standings[row.configuration.name], measures) for row in report.rows)
    return Analysis(
        report,
        rows,
        find_sweeps(report, rows, measures.asked),
        project(report, measures.summaries),
        decide(report, rows, measures),
        measures.resolution,
        {role: _pairs(report, rows, role, measures) for role in (TWIN, BEFORE)},
    )


def _pairs(report: Report, rows: Sequence[RowAnalysis], role: str, measures: Measures) -> tuple[Pair, ...]:
    """The intervals of all pairs of a role together have the report's confidence (Bonferroni's inequality)."""
    by_name = {entry.name: entry for entry in rows if entry.row.results}
    couples = [
        (by_name[other.configuration.against], other)
        for other in report.counterparts
        if other.configuration.role == role and other.results and other.configuration.against in by_name
    ]
    confidence = 1 - (1 - measures.asked.confidence) / max(1, len(couples))
    pairs = []
    for entry, other in couples:
        mine, theirs, name = entry.row.results[0], other.results[0], other.configuration.name
        equal = equal_images((mine, theirs))
        ratio = measures.asked.ratios(name, [entry.name], confidence)[0] if equal else None
        unlike = differences(mine, theirs, report.settings["scaling"], ("seed",))
        pairs.append(Pair(entry, other, measures.summaries[name], ratio, tuple(unlike)))
    return tuple(pairs)


# ---- what options make of the row to use


def find_tips(tried: Report) -> tuple[Tip, ...]:
    """Return what each option, or several together, bring.

    tried: a comparison of the plain row, its first one, with rows that have options. The intervals of all that were
    launched again hold together. That only what looked faster is launched again adds no false claim: it only leaves
    out some.
    """
    plain, *others = tried.all_rows
    others = [row for row in others if row.configuration.role != TRAINED]
    rows = [row for row in (plain, *others) if row.results]
    names = tuple(row.configuration.name for row in rows)
    disturbed = frozenset(row.configuration.name for row in rows if row.disturbed)
    table = Table(names, block_times(rows, _median), disturbed=disturbed)
    timed = dict(zip(names[1:], table.ratios(names[0], names[1:]), strict=True)) if plain.results and names[1:] else {}
    return tuple(
        Tip(options_of(row.configuration), row, plain, timed.get(row.configuration.name), _accuracy(row, tried))
        for row in others
    )


def _median(outcome: Outcome, result: RunResult) -> float:
    """The seconds of an image in the median slice of a launch: one of few that another program met must not decide."""
    return statistics.median(epoch.train_seconds / epoch.samples for epoch in result.timed_epochs)


def _accuracy(row: Row, tried: Report) -> float | None:
    """Of what was trained with a row's options."""
    trained = {options_of(one.configuration): one for one in tried.all_rows if one.configuration.role == TRAINED}
    found = trained.get(options_of(row.configuration))
    return found.results[0].epochs[-1].test_accuracy if found and found.results else None


def best_tip(tips: Sequence[Tip]) -> Tip | None:
    """Return the fastest of what is proved to be faster."""
    return max((tip for tip in tips if tip.proved), key=lambda tip: tip.speed, default=None)
