"""All that is derived from a comparison's raw results, computed once; tables, figures and words only show it."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.judge.decision import Decision, decide
from comparison.judge.fairness import compare_with_baselines, differences, equal_images
from comparison.judge.measures import Measures, Resolution, Summary, measure
from comparison.judge.projection import Projection, project
from comparison.judge.row_analysis import RowAnalysis, analyse_row, entry_of
from comparison.judge.statistics import Ratio
from comparison.judge.sweeps import Sweep, find_sweeps
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.record import Report
from comparison.rows import Row


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
class Analysis:
    """A report and what is derived from it. sweeps: one for each swept setting and method that has several values.

    pairs: of rows and counterparts, by role. resolution: None where there are too few runs to tell.
    """

    report: Report
    rows: tuple[RowAnalysis, ...]
    sweeps: tuple[Sweep, ...]
    projection: Projection
    decisions: tuple[Decision, ...]
    resolution: Resolution | None
    pairs: dict[str, tuple[Pair, ...]]

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
