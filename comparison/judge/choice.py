"""What to use on this machine: the fastest row that is proved to be, of those that trained the same; the simplest of
several."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.judge.measures import asked_seconds, ratio_of, ratios_of
from comparison.judge.row_analysis import RowAnalysis, entry_of
from comparison.judge.statistics import FASTER, SLOWER, Ratio
from comparison.methods import method_of
from comparison.plan.plan import SWEEPS
from comparison.record import Report


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


def choose(report: Report, rows: tuple[RowAnalysis, ...]) -> list[Recommendation]:
    """Return what to use, for each model and batch; all batches are one question where rows train to an accuracy."""
    target = report.settings.get("target_accuracy")
    settings = ("model", "batch_size") if target is None else ("model",)
    groups: dict[str, list[RowAnalysis]] = {}
    for entry in rows:
        if entry.rivals_baseline:
            trained = [
                f"{SWEEPS[name].lower()} {value}"
                for name, value in entry.row.configuration.values.items()
                if name in settings
            ]
            groups.setdefault(", ".join(trained), []).append(entry)
    if not groups:
        return [Recommendation("not measured")]
    if report.fitted and target is None:
        return [Recommendation("own batches")]
    return [_recommend(report, trained, judged, rows) for trained, judged in groups.items()]


def _recommend(report, trained, judged, every):
    """judged: rows with a speed-up that trained the same; every: all rows of the comparison."""
    compared = tuple(
        {entry.label: entry for pair in judged for entry in (pair, entry_of(every, pair.standing.baseline))}.values()
    )
    whole = min((entry for entry in compared if entry.row.all_cores), key=_asked, default=None)
    proved = [entry for entry in judged if entry.standing.speed_up.low is not None]
    if whole and whole.standing.speed_up.low is None and not whole.is_baseline:
        proved = []  # it may be the fastest, and has too few runs
    if any(entry.row.disturbed for entry in compared):
        return Recommendation("disturbed", trained, compared)
    if whole is None and report.first.device == "cpu" and report.device_threads < report.environment["cores"]:
        return Recommendation("all cores", trained, compared)
    if not proved:
        return Recommendation("few runs", trained, compared, shown=max(judged, key=_speed_up))
    winners = [
        entry
        for entry in proved
        if entry.standing.speed_up.words == FASTER
        and not entry.standing.accuracy
        and _reliable(report, entry, compared)
    ]
    beaten = [entry.standing.baseline for entry in winners]
    baselines = [entry for entry in compared if entry.is_baseline and entry.row not in beaten]
    best = min(
        tied_for_fastest(report, [*winners, *baselines]),
        key=lambda entry: (method_of(entry.row.configuration.method).complexity, entry.summary.total_seconds),
    )
    equals = _tied(
        report,
        best,
        [entry for entry in compared if entry is not best and not entry.standing.accuracy and entry.row not in beaten],
    )
    if best not in winners:
        return Recommendation("stay", trained, compared, best, shown=max(proved, key=_speed_up), equals=tuple(equals))
    return Recommendation(
        "use",
        trained,
        compared,
        best,
        best,
        whole,
        whole and ratio_of(report, whole.row, best.row, asked_seconds(report)),
        tuple(equals),
    )


def _reliable(report, entry, compared):
    """Whether all runs of a row ended well, or it is proved to be faster than every row of which that is true."""
    sound = [other.row for other in compared if not other.row.troubles]
    return not entry.row.troubles or all(
        ratio.inverse.words == FASTER for ratio in ratios_of(report, entry.row, sound, asked_seconds(report))
    )


def tied_for_fastest(report: Report, entries: Sequence[RowAnalysis]) -> list[RowAnalysis]:
    """Return the row of `entries` that was measured to be the fastest, in two runs if one has so many, and all that are
    statistically tied with it."""
    fastest = min([entry for entry in entries if entry.summary.runs > 1] or entries, key=_asked)
    return [fastest, *_tied(report, fastest, [entry for entry in entries if entry is not fastest])]


def _tied(report, entry, others):
    """Those of `others` that are neither proved to be faster than `entry` nor to be slower."""
    ratios = ratios_of(report, entry.row, [other.row for other in others], asked_seconds(report))
    return [other for other, ratio in zip(others, ratios, strict=True) if ratio.words not in (FASTER, SLOWER)]


def _asked(entry):
    return entry.summary.asked_seconds


def _speed_up(entry):
    return entry.standing.speed_up.value
