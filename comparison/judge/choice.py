"""What to use on this machine: the fastest row that is proved to be, of those that trained the same; the simplest of
several."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from comparison.judge.row_analysis import RowAnalysis, entry_of
from comparison.judge.statistics import FASTER, SLOWER, Ratio, Table
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import SWEEPS
from comparison.words import join, valued


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
    fastest = [] if disturbed else tied_for_fastest(entries, asked)
    return Sweep(name, tuple(entries), tuple(ratio.inverse for ratio in ratios), tuple(fastest))


@dataclass(frozen=True)
class Recommendation:
    """What to use of the rows that trained the same.

    kind: "use" (`best`, proved to be faster), "stay" (with `best`, a baseline), or why there is none: "not measured",
    "disturbed", "all cores" (one process with all cores has no time), "few runs", "own batches" (each row trains with
    the largest that fits).
    trained: the swept values that make it a training of its own, in words. shown: the row whose speed-up is told.
    rows: all that were compared. whole: the fastest row with all cores, and how many times as long as `best` it takes.
    equals: the rows that are statistically tied with `best`: undecided beside it, or practically equal.
    """

    kind: str
    trained: str = ""
    rows: tuple[RowAnalysis, ...] = ()
    best: RowAnalysis | None = None
    shown: RowAnalysis | None = None
    whole: RowAnalysis | None = None
    whole_ratio: Ratio | None = None
    equals: tuple[RowAnalysis, ...] = ()


def choose(report: Report, rows: Sequence[RowAnalysis], asked: Table) -> tuple[Recommendation, ...]:
    """Return what to use, for each model and batch; all batches are one question where rows train to an accuracy."""
    target = report.settings.get("target_accuracy")
    settings = ("model", "batch_size") if target is None else ("model",)
    groups: dict[str, list[RowAnalysis]] = {}  # by what they were trained with, in words
    for entry in rows:
        if entry.rivals_baseline:
            values = [item for item in entry.row.configuration.values.items() if item[0] in settings]
            words = [valued(SWEEPS[name].lower(), value) for name, value in values]
            groups.setdefault(join(", ", words), []).append(entry)
    if not groups:
        return (Recommendation("not measured"),)
    if report.fitted and target is None:
        return (Recommendation("own batches"),)
    return tuple(_recommend(report, trained, judged, rows, asked) for trained, judged in groups.items())


def _recommend(
    report: Report, trained: str, judged: Sequence[RowAnalysis], every: Sequence[RowAnalysis], asked: Table
) -> Recommendation:
    """judged: rows with a speed-up that trained the same; every: all rows of the comparison."""
    beside = [some for entry in judged for some in (entry, entry_of(every, entry.standing.baseline))]
    compared = tuple({entry.label: entry for entry in beside}.values())
    answer = partial(Recommendation, trained=trained, rows=compared)
    whole = min((entry for entry in compared if entry.row.all_cores), key=_asked_seconds, default=None)
    proved = [entry for entry in judged if _speed_up(entry).low is not None]
    if whole and not whole.is_baseline and _speed_up(whole).low is None:
        proved = []  # it may be the fastest, and has too few runs
    if any(entry.row.disturbed for entry in compared):
        return answer("disturbed")
    if whole is None and report.first.device == "cpu" and report.device_threads < report.environment["cores"]:
        return answer("all cores")
    if not proved:
        return answer("few runs", shown=max(judged, key=lambda entry: _speed_up(entry).value))
    sound = [entry for entry in compared if not entry.row.troubles]
    winners = [
        entry
        for entry in proved
        if _speed_up(entry).words == FASTER and not entry.standing.accuracy and _reliable(entry, sound, asked)
    ]
    beaten = [entry.standing.baseline for entry in winners]
    rest = [entry for entry in compared if not entry.standing.accuracy and entry.row not in beaten]
    fastest = tied_for_fastest([*winners, *(entry for entry in rest if entry.is_baseline)], asked)
    best = min(fastest, key=_simplicity)
    equals = tuple(_tied(best, rest, asked))
    if best not in winners:
        shown = max(proved, key=lambda entry: _speed_up(entry).value)
        return answer("stay", best=best, shown=shown, equals=equals)
    ratio = asked.ratios(whole.name, [best.name])[0] if whole else None
    return answer("use", best=best, shown=best, whole=whole, whole_ratio=ratio, equals=equals)


def _reliable(entry: RowAnalysis, sound: Iterable[RowAnalysis], asked: Table) -> bool:
    """Whether all runs of a row ended well, or it is proved to be faster than every row of which that is true."""
    return not entry.row.troubles or all(
        ratio.inverse.words == FASTER for ratio in asked.ratios(entry.name, [other.name for other in sound])
    )


def tied_for_fastest(entries: Sequence[RowAnalysis], asked: Table) -> list[RowAnalysis]:
    """Return the row of `entries` that was measured to be the fastest, in two runs if one has so many, and all that are
    statistically tied with it."""
    fastest = min([entry for entry in entries if entry.summary.runs > 1] or entries, key=_asked_seconds)
    return [fastest, *_tied(fastest, entries, asked)]


def _tied(entry: RowAnalysis, rows: Iterable[RowAnalysis], asked: Table) -> list[RowAnalysis]:
    """Those of the other rows that are neither proved to be faster than `entry` nor to be slower."""
    others = [other for other in rows if other is not entry]
    ratios = asked.ratios(entry.name, [other.name for other in others])
    return [other for other, ratio in zip(others, ratios, strict=True) if ratio.words not in (FASTER, SLOWER)]


def _asked_seconds(entry: RowAnalysis) -> float:
    return entry.summary.asked_seconds or math.inf


def _simplicity(entry: RowAnalysis) -> tuple[float, ...]:
    return method_of(entry.row.configuration.method).complexity, entry.summary.total_seconds or math.inf


def _speed_up(entry: RowAnalysis) -> Ratio:
    assert entry.standing.speed_up  # a row that rivals its baseline has one
    return entry.standing.speed_up
