"""All that is derived from a comparison's raw results, computed once; tables, figures and words only show it."""

import math
from dataclasses import dataclass

from comparison.judge.choice import Recommendation, choose, tied_for_fastest
from comparison.judge.fairness import compare_with_baselines, differences, equal_images
from comparison.judge.measures import Summary, asked_seconds, block_times, confidence_of, ratios_of, summarize
from comparison.judge.projection import Projection, project
from comparison.judge.row_analysis import RowAnalysis, analyse_row, entry_of
from comparison.judge.statistics import Ratio, residual_deviation, resolution
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.record import Report, Row


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in the swept setting `name` alone, at least two, in the order of its values; none is simulated.

    ratios: how many times as long as the first each of the others takes for what was asked. fastest: the rows that may
    be the fastest; none where one is disturbed.
    """

    name: str
    rows: tuple[RowAnalysis, ...]
    ratios: tuple[Ratio, ...]
    fastest: tuple[RowAnalysis, ...]

    def value(self, entry: RowAnalysis) -> object:
        """Return the value of the swept setting in a row."""
        return entry.row.configuration.values[self.name]


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
    recommendations: tuple[Recommendation, ...]
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

    def of(self, row: Row) -> RowAnalysis:
        """Return what is derived from a row."""
        return entry_of(self.rows, row)


def analyse(report: Report) -> Analysis:
    """Return all that is derived from the raw results of a comparison."""
    summaries = summarize(report)
    standings = compare_with_baselines(report)
    rows = tuple(analyse_row(report, row, standings[row.configuration.name], summaries) for row in report.rows)
    sweeps = tuple(sweep for name in report.swept for sweep in _sweeps(report, rows, name))
    return Analysis(
        report,
        rows,
        sweeps,
        project(report, summaries),
        tuple(choose(report, rows)),
        _resolution(report),
        {role: _pairs(report, rows, role, summaries) for role in (TWIN, BEFORE)},
    )


def _pairs(report, rows, role, summaries):
    """The intervals of all pairs of a role together have the report's confidence (Bonferroni's inequality)."""
    by_name = {entry.row.configuration.name: entry for entry in rows if entry.row.results}
    couples = [
        (by_name[other.configuration.against], other)
        for other in report.counterparts
        if other.configuration.role == role and other.results and other.configuration.against in by_name
    ]
    confidence = 1 - (1 - confidence_of(report)) / max(1, len(couples))
    return tuple(
        _pair(report, entry, other, summaries[other.configuration.name], confidence) for entry, other in couples
    )


def _pair(report, entry, other, summary, confidence):
    mine, theirs = entry.row.results[0], other.results[0]
    ratio = None
    if equal_images((mine, theirs)):
        (ratio,) = ratios_of(report, other, [entry.row], asked_seconds(report), confidence)
    unlike = differences(mine, theirs, report.settings["scaling"], ("seed",))
    return Pair(entry, other, summary, ratio, tuple(unlike))


def _resolution(report):
    times = block_times([row for row in report.all_rows if row.results], asked_seconds(report))
    noise = residual_deviation(times) if times.size else None
    if noise is None:
        return None
    (measured, columns), (deviation, _) = times.shape, noise
    shares = {
        blocks: resolution(deviation, blocks, columns, len(report.rows) - 1, confidence_of(report))
        for blocks in sorted({measured, 10})
    }
    return Resolution(deviation, {blocks: share for blocks, share in shares.items() if share < math.inf})


def _sweeps(report, rows, name):
    groups: dict[str, list[RowAnalysis]] = {}
    for entry in rows:
        if name in entry.row.configuration.values and entry.row.results and not entry.row.simulated:
            groups.setdefault(entry.row.series(name), []).append(entry)
    return [_sweep(report, name, group) for group in groups.values() if len(group) > 1]


def _sweep(report, name, group):
    others = [entry.row for entry in group[1:]]
    ratios = tuple(ratio.inverse for ratio in ratios_of(report, group[0].row, others, asked_seconds(report)))
    disturbed = any(entry.row.disturbed for entry in group)
    return Sweep(name, tuple(group), ratios, () if disturbed else tuple(tied_for_fastest(report, group)))
