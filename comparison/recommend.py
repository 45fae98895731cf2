"""What to use on this machine, in a sentence."""

from comparison.analysis import Analysis
from comparison.choice import Recommendation
from comparison.methods import all_cores_methods
from comparison.phrases import as_fast, instead_of, tell_disturbed, time_asked


def recommendations(analysis: Analysis) -> list[str]:
    """Return what to use here, for each model and batch."""
    return [(f"For {choice.trained}: " if choice.trained else "") + f"Recommendation: {_recommend(analysis, choice)}"
            for choice in analysis.recommendations]


def _recommend(analysis: Analysis, choice: Recommendation):
    best, shown = choice.best, choice.shown
    standing = shown and shown.standing
    if choice.kind == "not measured":
        return "none, as no other method was measured against the baseline."
    if choice.kind == "disturbed":
        return f"none. The comparison was disturbed: {tell_disturbed([entry.row for entry in choice.rows])}."
    if choice.kind == "all cores":
        cores = analysis.report.environment["cores"]
        return (f"none. One process with all {cores} cores may be faster than all of these and was not measured: add "
                f"{' or '.join(all_cores_methods())} to --methods, or see above why it has no time.")
    if choice.kind == "own batches":
        return ("none. Each row trains with a batch of its own, so that an epoch teaches each something else: images "
                "per second do not say which one learns sooner; with --target-accuracy they are compared in that.")
    if choice.kind == "few runs":
        return (f"none, as so few runs prove nothing; the fastest was “{shown.label}”, {as_fast(standing.speed_up)} as "
                f"“{standing.baseline.label}”. Give --repeats 3 or more.")
    if choice.kind == "stay":
        return (f"stay with “{best.label}”, {time_asked(analysis, best)}. The best of the others against an equal "
                f"baseline, “{shown.label}”, is {as_fast(standing.speed_up)} as “{standing.baseline.label}”: "
                f"{standing.speed_up.words}.{_not_run(analysis)}")
    words = f"use “{best.label}” on this machine: {as_fast(standing.speed_up)} as “{standing.baseline.label}”"
    if choice.whole and choice.whole is not best and choice.whole.row is not standing.baseline:
        words += f" and {as_fast(choice.whole_ratio)} as “{choice.whole.label}”"
    equals = ", ".join(f"“{entry.label}”" for entry in choice.equals)
    return (f"{words}; {instead_of(analysis, best, analysis.of(standing.baseline))}."
            + (f" Not told apart from it: {equals}." if equals else "") + _not_run(analysis))


def _not_run(analysis):
    """Which rows nothing is known of, as they did not run on devices of their own."""
    rows = [f"“{entry.label}”" for entry in analysis.rows if entry.row.simulated or not entry.row.results]
    return f" Not measured here: {', '.join(rows)}." if rows else ""
