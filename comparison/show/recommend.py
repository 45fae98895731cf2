"""What to use on this machine, in a sentence."""

from comparison.judge.analysis import Analysis
from comparison.judge.choice import Recommendation
from comparison.judge.fairness import NOT_SHOWN
from comparison.methods import all_cores_methods
from comparison.plan.counterparts import BEFORE
from comparison.show.phrases import as_fast, instead_of, time_asked


def recommendations(analysis: Analysis) -> list[str]:
    """Return what to use here, for each model and batch."""
    return [
        (f"For {choice.trained}: " if choice.trained else "") + f"Recommendation: {_recommend(analysis, choice)}"
        for choice in analysis.recommendations
        if choice.kind != "not measured" or not (analysis.sweeps or analysis.pairs[BEFORE])
    ]


def _recommend(analysis: Analysis, choice: Recommendation):
    best, shown = choice.best, choice.shown
    standing = shown and shown.standing
    if choice.kind == "not measured":
        return _unequal(analysis) or "none, as no other method was measured against the baseline."
    if choice.kind == "disturbed":
        return "none. The comparison was disturbed."
    if choice.kind == "all cores":
        cores = analysis.report.environment["cores"]
        return (
            f"none. One process with all {cores} cores may be faster than all of these and was not measured: add "
            f"{' or '.join(all_cores_methods())} to --methods, or see above why it has no time."
        )
    if choice.kind == "own batches":
        return (
            "none. Each row trains with a batch of its own, so that an epoch teaches each something else: images "
            "per second do not say which one learns sooner; with --target-accuracy they are compared in that."
        )
    if choice.kind == "few runs":
        return (
            f"none, as so few runs prove nothing; the fastest was “{shown.label}”, {as_fast(standing.speed_up)} as "
            f"“{standing.baseline.label}”. Give --repeats 3 or more."
        )
    if choice.kind == "stay":
        doubts = [doubt for doubt in (standing.accuracy, shown.row.trouble) if doubt]
        words = standing.speed_up.words + (f", but {' and '.join(doubts)}" if doubts else "")
        more = " More --repeats, or --check-maths, can show that." if standing.accuracy.startswith(NOT_SHOWN) else ""
        return (
            f"stay with “{best.label}”, {time_asked(analysis, best)}. The best of the others against an equal "
            f"baseline, “{shown.label}”, is {as_fast(standing.speed_up)} as “{standing.baseline.label}”: "
            f"{words}.{more}{_ending(analysis, choice)}"
        )
    words = f"use “{best.label}” on this machine: {as_fast(standing.speed_up)} as “{standing.baseline.label}”"
    if choice.whole and choice.whole is not best and choice.whole.row is not standing.baseline:
        words += f" and {as_fast(choice.whole_ratio)} as “{choice.whole.label}”"
    return f"{words}; {instead_of(analysis, best, analysis.of(standing.baseline))}.{_ending(analysis, choice)}"


def _ending(analysis, choice):
    """Which rows could be used as well, whether all runs of the best ended well, and of which rows nothing is known."""
    ending = f" {choice.best.row.trouble}." if choice.best.row.troubles else ""
    if equals := [f"“{entry.label}”" for entry in choice.equals if entry is not choice.shown]:
        ending += f" Statistically tied with it: {', '.join(equals)}."
    rows = [f"“{entry.label}”" for entry in analysis.rows if entry.row.simulated or not entry.row.results]
    return ending + (f" Not measured here: {', '.join(rows)}." if rows else "")


def _unequal(analysis):
    """How fast the rows are that were let run although they are unequal; nothing if none."""
    rows = [
        f"“{entry.label}” is {as_fast(entry.standing.speed_up)} as “{entry.standing.baseline.label}”, with "
        f"{', '.join(entry.standing.unequal)}"
        for entry in analysis.rows
        if entry.standing.speed_up and entry.standing.unequal
    ]
    return f"none, as the rows are unequal: {'; '.join(rows)}." if rows else ""
