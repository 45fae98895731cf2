"""What to use on this machine: the fastest row that is proved to be, of those that trained the same."""

import statistics
from dataclasses import dataclass

from comparison.measures import asked_seconds, block_times, confidence_of, noise_blocks_of, ratio_of
from comparison.plan import SWEEPS
from comparison.record import Report
from comparison.row_analysis import RowAnalysis, entry_of
from comparison.statistics import FASTER, Ratio, not_told_apart


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


def choose(report: Report, rows: tuple[RowAnalysis, ...]) -> list[Recommendation]:
    """Return, for each model and batch, the fastest row that is proved to be, or a baseline."""
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
                      for entry in (pair, entry_of(every, pair.standing.baseline))}.values())
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
    best = min([*winners, *(entry_of(every, entry.standing.baseline) for entry in proved)], key=mean_seconds)
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
