"""What to use on this machine: the row with the least wall time to what is wanted, of those that may be used at all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from comparison.judge.fairness import NOT_SHOWN, differences, exempt, less_accurate, shown_less_accurate
from comparison.judge.measures import WHOLE_RUN, Measures, WallTime
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER, Ratio
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import SWEEPS, TRIED, Row
from comparison.words import join, say, valued


@dataclass(frozen=True)
class Decision:
    """What to use of rows that trained the same.

    kind: "use"; or why there is nothing to recommend: "not measured", "disturbed", "all cores" (one process with all
    cores has no time), "few runs", "own batches" (all rows have different ones), "none sound".
    wall_time: by what it is decided. trained: the swept values that make it a training of its own, in words. best: the
    row to use, or of few runs the one that was fastest. ratios: by name, how many times as long as `best`, or else the
    fastest, each row takes that was timed. rows: those that may be used, the fastest first; tied: the ones of them,
    besides `best`, that are not proved to take longer. out: by name, why a row must not be used. later: a row that is
    faster than `best` from command to end in a training of `pays_from` epochs or more.
    """

    kind: str
    wall_time: WallTime
    trained: str = ""
    best: RowAnalysis | None = None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    rows: tuple[RowAnalysis, ...] = ()
    tied: tuple[RowAnalysis, ...] = ()
    out: dict[str, str] = field(default_factory=dict)
    later: RowAnalysis | None = None
    pays_from: int = 0

    @property
    def simplest(self) -> RowAnalysis | None:
        """The simplest of `best` and the rows that are tied with it, `best` if others are as simple."""
        rows = (self.best, *self.tied) if self.best else ()
        return min(rows, key=lambda entry: _simplicity(entry)[0], default=None)


def decide(report: Report, rows: Sequence[RowAnalysis], measures: Measures) -> tuple[Decision, ...]:
    """Return what to use, for each model and batch; all batches are one question where rows train to an accuracy."""
    target = report.settings.get("target_accuracy")
    settings = ("model", "batch_size") if target is None else ("model",)
    groups: dict[str, list[RowAnalysis]] = {}  # by what they were trained with, in words
    for entry in rows:
        if entry.row.results and not (entry.row.simulated or entry.row.times_only):
            values = [item for item in entry.row.configuration.values.items() if item[0] in settings]
            words: list[str] = [valued(SWEEPS[name].lower(), value) for name, value in values]
            if entry.row.configuration.is_script and not report.only_scripts:
                words = [say("your scripts")]
            groups.setdefault(join(", ", words), []).append(entry)
    compared = {words: entries for words, entries in groups.items() if len(entries) > 1}
    batches = target is None and (report.fitted or (not compared and "batch_size" in report.swept and len(groups) > 1))
    if batches or not compared:
        return (Decision("own batches" if batches else "not measured", measures.wall_time),)
    return tuple(_decide(report, words, entries, measures) for words, entries in compared.items())


def _decide(report: Report, trained: str, timed: Sequence[RowAnalysis], measures: Measures) -> Decision:
    """timed: the rows of one training that have a time, also those that must not be used."""
    wall_time, out = measures.wall_time, _not_to_be_used(report, timed, measures)
    seconds = wall_time.means
    by_time = sorted(timed, key=lambda entry: seconds[entry.name])
    sound = tuple(entry for entry in by_time if entry.name not in out)
    fastest = (*sound, *by_time)[0]
    beside = _beside(fastest, timed, wall_time)
    none = partial(Decision, wall_time=wall_time, trained=trained, ratios=beside, rows=sound, out=out)
    if any(entry.row.disturbed for entry in timed):
        return none("disturbed")
    if not sound:
        return none("none sound")
    if _all_cores_missing(report, timed):
        return none("all cores")
    whole = [entry for entry in sound[1:] if entry.row.all_cores]
    if fastest.summary.runs < 2 or any(beside[entry.name].low is None for entry in whole):
        return none("few runs", best=fastest)
    most = (1 + wall_time.times.equal_within) * seconds[fastest.name]
    as_good = [entry for entry in sound if seconds[entry.name] <= most and not _proved_slower(beside, entry)]
    best = min(as_good, key=_simplicity)
    beside = _beside(best, timed, wall_time)
    tied = tuple(entry for entry in sound if entry is not best and not _proved_slower(beside, entry))
    later, epochs = _later(sound, best, measures) if wall_time.kind == WHOLE_RUN else (None, 0)
    return Decision("use", wall_time, trained, best, beside, sound, tied, out, later, epochs)


def _beside(reference: RowAnalysis, timed: Sequence[RowAnalysis], wall_time: WallTime) -> dict[str, Ratio]:
    """By name, how many times as long as `reference` each row takes."""
    names = [entry.name for entry in timed if entry is not reference]
    ratios = wall_time.times.ratios(reference.name, names)
    return {reference.name: Ratio(1.0), **{name: ratio.inverse for name, ratio in zip(names, ratios, strict=True)}}


def _proved_slower(beside: dict[str, Ratio], entry: RowAnalysis) -> bool:
    return beside[entry.name].inverse.words == SLOWER


def _all_cores_missing(report: Report, timed: Sequence[RowAnalysis]) -> bool:
    """Whether one process with all cores was not timed beside several methods that have a share, and may beat them."""
    if timed[0].row.configuration.is_script:
        return False
    shares = report.first.device == "cpu" and report.device_threads < int(report.environment["cores"])
    methods = {entry.row.configuration.method for entry in timed}
    return shares and len(methods) > 1 and not any(entry.row.all_cores for entry in timed)


def _simplicity(entry: RowAnalysis) -> tuple[float, ...]:
    if entry.row.configuration.is_script:
        return entry.row.results[0].world_size, not entry.is_baseline
    return method_of(entry.row.configuration.method).complexity, entry.summary.total_seconds or math.inf


# ---- what must not be used


def _not_to_be_used(report: Report, timed: Sequence[RowAnalysis], measures: Measures) -> dict[str, str]:
    """By name, why a row must not be used: it fails, is unequal, computes something else or learns less."""
    reference = next((entry for entry in timed if entry.is_baseline), timed[0])
    out = {entry.name: why for entry in timed if (why := _fault(report, entry, reference.row))}
    sound = [entry.name for entry in timed if entry.name not in out]
    for entry in timed:
        baseline = entry.standing.baseline if entry.standing.baseline and entry.standing.baseline.results else None
        beside = (baseline or reference.row).configuration.name
        if entry.name not in out:
            why = less_accurate(report, measures.accuracies, entry.name, beside)
            if entry.summary.runs < 2 and why.startswith(NOT_SHOWN):  # one run shows nothing of accuracies
                why = ""
            why = why or shown_less_accurate(report, measures.accuracies, entry.name, sound)
            out.update({entry.name: why} if why else {})
    return out


def _fault(report: Report, entry: RowAnalysis, reference: Row) -> str:
    """Why a row must not be used, whatever it learns; nothing if it may."""
    row, unequal = entry.row, entry.standing.unequal
    if row.configuration.what_if in TRIED:
        return row.trouble or say("a trial, accuracy not checked")
    if not (row.configuration.is_script or (entry.standing.baseline and entry.standing.baseline.results)):
        may_differ = (*exempt(row.configuration, reference.configuration), *report.swept)
        unequal = tuple(differences(row.results[0], reference.results[0], report.settings["scaling"], may_differ))
    check = report.equivalence.get(row.configuration.name)
    if check and check.status == "failed":
        if check.difference is None:
            return say("its maths could not be checked: {why}", why=check.reason)
        return say("computes something else: its weights differ by {x:.1e}", x=check.difference)
    return row.trouble or (say("unequal: {settings}", settings=join(", ", unequal)) if unequal else "")


# ---- longer trainings


def _later(sound: Sequence[RowAnalysis], best: RowAnalysis, measures: Measures) -> tuple[RowAnalysis | None, int]:
    """The row that from the fewest epochs on is faster than `best` from command to end, and how many these are."""
    per_epoch, whole = measures.per_epoch, measures.wall_time
    others = [entry for entry in sound if entry is not best]
    ratios = per_epoch.times.ratios(best.name, [entry.name for entry in others])
    found: list[tuple[int, RowAnalysis]] = []
    for entry, ratio in zip(others, ratios, strict=True):
        extra = whole.means[entry.name] - whole.means[best.name]
        if ratio.words == FASTER and extra > 0:
            saved = per_epoch.means[best.name] - per_epoch.means[entry.name]
            found.append((len(entry.row.results[0].epochs) + math.ceil(extra / saved), entry))
    epochs, later = min(found, key=lambda pair: pair[0], default=(0, None))
    return later, epochs
