"""Sweeps: rows of one method that differ in the value of one setting, and which values may be the fastest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER, Ratio, Table
from comparison.record import Report


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


def find_sweeps(report: Report, rows: Sequence[RowAnalysis], asked: Table) -> tuple[Sweep, ...]:
    """Return a Sweep for each swept setting and method that has several values."""
    groups: dict[tuple[str, str], list[RowAnalysis]] = {}
    for name in report.swept:
        for entry in rows:
            if name in entry.row.configuration.values and entry.row.results and not entry.row.simulated:
                groups.setdefault((name, entry.row.series(name)), []).append(entry)
    return tuple(_sweep(name, entries, asked) for (name, _), entries in groups.items() if len(entries) > 1)


def _sweep(name: str, entries: list[RowAnalysis], asked: Table) -> Sweep:
    ratios = asked.ratios(entries[0].name, [entry.name for entry in entries[1:]])
    disturbed = any(entry.row.disturbed for entry in entries)
    fastest = [] if disturbed else _tied_for_fastest(entries, asked)
    return Sweep(name, tuple(entries), tuple(ratio.inverse for ratio in ratios), tuple(fastest))


def _tied_for_fastest(entries: Sequence[RowAnalysis], asked: Table) -> list[RowAnalysis]:
    """The row that was measured to be the fastest, in two runs if one has so many, and all that are neither proved to
    be faster nor to be slower."""
    fastest = min(
        [entry for entry in entries if entry.summary.runs > 1] or entries,
        key=lambda entry: entry.summary.asked_seconds or math.inf,
    )
    others = [entry for entry in entries if entry is not fastest]
    ratios = asked.ratios(fastest.name, [other.name for other in others])
    tied = [other for other, ratio in zip(others, ratios, strict=True) if ratio.words not in (FASTER, SLOWER)]
    return [fastest, *tied]
