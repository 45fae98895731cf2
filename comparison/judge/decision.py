"""Choose the row to recommend: the eligible row with the least wall time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from comparison.judge.blocks import Table
from comparison.judge.fairness import NOT_SHOWN, OF_A_BATCH, differences, exempt, less_accurate, shown_less_accurate
from comparison.judge.measures import WHOLE_RUN, Measures
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, SLOWER, Ratio, any_reference
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import SWEEPS, TRIED, Row
from comparison.words import join, say, valued

UNEQUAL = "unequal"  # beginning of a reason


@dataclass(frozen=True)
class Decision:
    """The recommendation among rows of the same training.

    kind: "use"; or why there is no recommendation: "not measured", "disturbed", "all cores" (no time for one process on
    all cores), "few runs", "own batches" (all rows have different ones), "none eligible" (no row is eligible).
    wall_time: decides, with the confidence for ratios to a row that it chooses. trained: the swept values that make it
    a separate training, in words. best: the recommended row or, with few runs, the fastest. ratios: by name, how many
    times as long as `best` (or else the fastest) each timed row takes. eligible: the eligible rows, the fastest first.
    tied: those, without `best`, that are not proved to take longer. ineligible: by name, why a row is not eligible.
    later: a row that is faster than `best` from start to exit of the command in a training of `pays_from` epochs or
    more.
    """

    kind: str
    wall_time: Table
    trained: str = ""
    best: RowAnalysis | None = None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    eligible: tuple[RowAnalysis, ...] = ()
    tied: tuple[RowAnalysis, ...] = ()
    ineligible: dict[str, str] = field(default_factory=dict)
    later: RowAnalysis | None = None
    pays_from: int = 0

    @property
    def simplest(self) -> list[RowAnalysis]:
        """The simplest of `best` and the rows tied with it: all that are as simple."""
        rows = (self.best, *self.tied) if self.best else ()
        return [entry for entry in rows if _complexity(entry) == min(map(_complexity, rows))]


def decide(report: Report, rows: Sequence[RowAnalysis], measures: Measures) -> tuple[Decision, ...]:
    """Return a decision for each model and batch size, or for each model if rows train to a target accuracy."""
    target = report.settings.get("target_accuracy")
    settings = ("model", "batch_size") if target is None else ("model",)
    groups: dict[str, list[RowAnalysis]] = {}  # by the values that they trained with, in words
    for entry in rows:
        if entry.row.results and not (entry.row.simulated or entry.row.times_only):
            values = [item for item in entry.row.configuration.values.items() if item[0] in settings]
            words: list[str] = [valued(SWEEPS[name].lower(), value) for name, value in values]
            if entry.row.configuration.is_script and not report.only_scripts:
                words = [say("your scripts")]
            groups.setdefault(join(", ", words), []).append(entry)
    compared = {words: entries for words, entries in groups.items() if len(entries) > 1}
    sizes = {entry.row.configuration.planned.batch_size for entries in groups.values() for entry in entries}
    unlike = report.fitted or (not compared and "batch_size" in report.swept)
    batches = target is None and unlike and len(sizes) > 1
    if batches or not compared:
        return (Decision("own batches" if batches else "not measured", measures.wall_time),)
    return tuple(_decide(report, words, entries, measures, len(compared)) for words, entries in compared.items())


def _decide(report: Report, trained: str, timed: Sequence[RowAnalysis], measures: Measures, trainings: int) -> Decision:
    """Decide between the timed rows of one of several trainings, eligible or not."""
    wall_time = measures.per_samples if timed[0].row.configuration.is_script else measures.wall_time
    wall_time = replace(wall_time, confidence=any_reference(wall_time.confidence, len(timed), trainings))
    ineligible = _ineligible(report, timed, measures)
    seconds = wall_time.means
    by_time = sorted(timed, key=lambda entry: seconds[entry.name])
    eligible = tuple(entry for entry in by_time if entry.name not in ineligible)
    fastest = (*eligible, *by_time)[0]
    ratios = _ratios_to(fastest, timed, wall_time)
    undecided = partial(
        Decision, wall_time=wall_time, trained=trained, ratios=ratios, eligible=eligible, ineligible=ineligible
    )
    if any(entry.row.disturbed for entry in timed):
        return undecided("disturbed")
    if not eligible:
        return undecided("none eligible")
    if _all_cores_missing(report, timed):
        return undecided("all cores")
    if fastest.summary.runs < 2 or any(ratios[entry.name].low is None for entry in eligible[1:]):
        return undecided("few runs", best=fastest)
    most = (1 + wall_time.equal_within) * seconds[fastest.name]
    as_good = [entry for entry in eligible if seconds[entry.name] <= most and not _proved_slower(ratios, entry)]
    best = min(as_good, key=_simplicity)
    ratios = _ratios_to(best, timed, wall_time)
    tied = tuple(entry for entry in eligible if entry is not best and not _proved_slower(ratios, entry))
    later, epochs = _faster_later(eligible, best, measures, wall_time) if wall_time.kind == WHOLE_RUN else (None, 0)
    return Decision("use", wall_time, trained, best, ratios, eligible, tied, ineligible, later, epochs)


def _ratios_to(reference: RowAnalysis, timed: Sequence[RowAnalysis], wall_time: Table) -> dict[str, Ratio]:
    """Return how many times as long as `reference` each row takes, by name."""
    names = [entry.name for entry in timed if entry is not reference]
    ratios = wall_time.ratios(reference.name, names)
    return {reference.name: Ratio(1.0), **{name: ratio.inverse for name, ratio in zip(names, ratios, strict=True)}}


def _proved_slower(ratios: dict[str, Ratio], entry: RowAnalysis) -> bool:
    return ratios[entry.name].inverse.words == SLOWER


def _all_cores_missing(report: Report, timed: Sequence[RowAnalysis]) -> bool:
    """Return whether the comparison lacks a row with one process on all cores, which might be the fastest."""
    if timed[0].row.configuration.is_script:
        return False
    shares = report.first.device == "cpu" and report.first.threads < int(report.environment["cores"])
    methods = {entry.row.configuration.method for entry in timed}
    plans = [entry.row.configuration.planned for entry in timed]
    tried = [row.configuration.planned for row in report.rows if row.all_cores and (row.results or row.out_of_memory)]
    alike = {(one.model, one.batch_size) for one in plans} & {(one.model, one.batch_size) for one in tried}
    return shares and len(methods) > 1 and not alike


def _simplicity(entry: RowAnalysis) -> tuple[float, ...]:
    if entry.row.configuration.is_script:
        return *_complexity(entry), not entry.is_baseline
    return *_complexity(entry), entry.summary.total_seconds or math.inf


def _complexity(entry: RowAnalysis) -> tuple[int, ...]:
    """Return what makes one row simpler than another: equal numbers are equally simple."""
    if entry.row.configuration.is_script:
        return entry.row.results[0].world_size, bool(entry.row.configuration.what_if)
    return (method_of(entry.row.configuration.method).complexity,)


# ---- rows that are not eligible


def _ineligible(report: Report, timed: Sequence[RowAnalysis], measures: Measures) -> dict[str, str]:
    """Return why a row is not eligible, by name: it fails, is unequal, has different weights or learns less."""
    reference = min(timed, key=lambda one: (not one.is_baseline, bool(one.standing.unequal or one.row.troubles)))
    excluded = {entry.name: fault for entry in timed if (fault := _fault(report, entry, reference.row))}
    others = [entry.name for entry in timed if entry.name not in excluded]
    for entry in timed:
        if entry.name in excluded:
            continue
        baseline = entry.standing.baseline if entry.standing.baseline and entry.standing.baseline.results else None
        compared_with = (baseline or reference.row).name
        why = less_accurate(report, measures.accuracies, entry.name, compared_with)
        if entry.summary.runs < 2 and why.startswith(NOT_SHOWN):  # one run shows nothing about accuracies
            why = ""
        why = shown_less_accurate(report, measures.accuracies, entry.name, others) or why
        if why:
            excluded[entry.name] = why
    return excluded


def _fault(report: Report, entry: RowAnalysis, reference: Row) -> str:
    """Return why a row is not eligible, whatever its accuracy; empty if it is."""
    row, unequal = entry.row, entry.standing.unequal
    if row.configuration.what_if in TRIED:
        return row.trouble or say("a trial, accuracy not checked")
    if not (row.configuration.is_script or (entry.standing.baseline and entry.standing.baseline.results)):
        may_differ = (*exempt(row.configuration, reference.configuration), *report.swept)
        if report.fitted or "batch_size" in report.swept:
            may_differ += OF_A_BATCH
        unequal += tuple(differences(row.results[0], reference.results[0], report.settings["scaling"], may_differ))
    check = report.equivalence.get(row.name)
    if check and check.status == "failed":
        if check.difference is None:
            return say("the check of its maths failed: {why}", why=check.reason)
        return say("its weights differ from one device's by {x:.1e}", x=check.difference)
    return row.trouble or (say("unequal: {settings}", settings=join(", ", unequal)) if unequal else "")


# ---- longer trainings


def _faster_later(
    eligible: Sequence[RowAnalysis], best: RowAnalysis, measures: Measures, wall_time: Table
) -> tuple[RowAnalysis | None, int]:
    """Return the row that overtakes `best` after the fewest epochs, from start to exit, and that number of epochs."""
    per_epoch = measures.per_epoch
    others = [entry for entry in eligible if entry is not best]
    ratios = per_epoch.ratios(best.name, [entry.name for entry in others], wall_time.confidence)
    found: list[tuple[int, RowAnalysis]] = []
    for entry, ratio in zip(others, ratios, strict=True):
        extra = wall_time.means[entry.name] - wall_time.means[best.name]
        saved = per_epoch.means[best.name] - per_epoch.means[entry.name]
        if ratio.words == FASTER and saved > 0:
            found.append((len(entry.row.results[0].epochs) + max(1, math.ceil(extra / saved)), entry))
    epochs, later = min(found, key=lambda pair: pair[0], default=(0, None))
    return later, epochs
