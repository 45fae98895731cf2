"""What to use on this machine, and what to do next."""

import math
from collections.abc import Iterator
from itertools import islice

from common.errors import OUT_OF_MEMORY
from comparison.judge.analysis import Analysis, best_tip
from comparison.judge.decision import Decision
from comparison.judge.fairness import NOT_SHOWN
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, TO_TARGET, WHOLE_RUN
from comparison.judge.remedies import find_remedies
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Ratio
from comparison.methods import all_cores_methods
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.plan.tips import SAME, UNKNOWN, effect_of
from comparison.show.sentences import as_fast, mebibytes, quoted, seconds, sentence, tell
from comparison.words import count, join, say

# Causes whose sentences say what to do, and how many times as many runs halve an interval.
ADVISED, HALVES = ("throttled", "too many workers", "shared cores", "resident loader", "waiting for data"), 4


def recommendations(analysis: Analysis) -> list[str]:
    """Return what to use here, a paragraph for each model and batch."""
    return [join(" ", sentences) for sentences in recommended(analysis)]


def recommended(analysis: Analysis) -> list[list[str]]:
    """Return what to use here, for each model and batch, sentence by sentence."""
    told: list[list[str]] = []
    for decision in analysis.decisions:
        if len(analysis.rows) == 1 and analysis.report.only_scripts:
            continue
        if decision.kind != "not measured" or not (analysis.sweeps or analysis.pairs[BEFORE]):
            first, *others = _recommend(analysis, decision)
            words = say("Recommendation: {words}", words=first)
            where = decision.trained
            told.append([say("For {trained}: {words}", trained=where, words=words) if where else words, *others])
    return told


def in_short(analysis: Analysis) -> list[str]:
    """Return what to use; of several models and batches, a line for each."""
    told = recommended(analysis)
    if len(told) < 2:
        return [words for sentences in told for words in sentences]
    lines: list[str] = [say("Recommendations:")]
    for decision, sentences in zip(analysis.decisions, told, strict=True):
        best, other = decision.best, _proved_slower(decision) if decision.kind == "use" else None
        words = sentences[0]
        if other:
            words = say("“{row}”, {fast}.", row=best.label, fast=_faster_than(decision, other))
        lines.append(words)
    return lines


def _recommend(analysis: Analysis, decision: Decision) -> list[str]:
    kind, best = decision.kind, decision.best
    if kind == "not measured":
        return [_unequal(analysis) or say("none. Only one row was timed.")]
    if kind == "none sound":
        return [say("none. No row may be used: {rows}.", rows=_reasons(analysis, decision, decision.out))]
    if kind == "few runs":
        fewest = count(min(entry.summary.runs for entry in decision.rows), "run")
        return [sentence("few runs", runs=fewest, row=best.label, time=_times(analysis, decision, best))]
    if kind != "use":
        return [sentence(f"no answer: {kind}"), *_fastest(analysis, decision)]
    answer = [_use(analysis, decision)]
    if decision.tied:
        simplest = decision.simplest
        key = "tied, the simplest" if simplest is best else "tied"
        most = say("simplest of them") if len(decision.tied) > 1 else say("simpler of the two")
        rows = quoted(entry.label for entry in decision.tied)
        answer.append(sentence(key, rows=rows, row=simplest.label, simplest=most))
    if decision.wall_time.kind in (PER_EPOCH, PER_SAMPLES):
        longer = [tell(cause) for cause in best.causes if cause.kind == "start-up" and cause.told != "takes less"]
        answer += [say("Not counted in the speed-up: {parts}.", parts=parts) for parts in longer]
    if decision.later:
        answer.append(say("From {n} epochs on, “{row}” is faster.", n=decision.pays_from, row=decision.later.label))
    if faster := [name for name in decision.out if decision.ratios[name].value < 1]:
        answer.append(say("Faster, but excluded: {rows}.", rows=_reasons(analysis, decision, faster)))
    if memory := best.summary.memory:
        answer.append(say("Peak memory, all devices: {x} MiB.", x=mebibytes(memory.together)))
    return answer


def _reasons(analysis, decision, names):
    labels = {entry.name: entry.label for entry in analysis.rows}
    return join("; ", [say("“{row}”, {why}", row=labels[name], why=decision.out[name]) for name in names])


def _proved_slower(decision):
    """The row to say how much faster the one to use is: the baseline, or the next, if it is proved to be slower."""
    slower = [entry for entry in decision.rows if entry not in (decision.best, *decision.tied)]
    return next((entry for entry in slower if entry.is_baseline), next(iter(slower), None))


def _use(analysis, decision):
    """Which row to use, how long it takes, and how many times as fast as another that is."""
    best, other = decision.best, _proved_slower(decision)
    time = _times(analysis, decision, best, other)
    if not other:
        words = say("use “{row}”: {time}.", row=best.label, time=time)
        return words if decision.tied else join(" ", [words, say("All other rows are excluded.")])
    return say("use “{row}”, {fast}: {time}.", row=best.label, fast=_faster_than(decision, other), time=time)


def _faster_than(decision, other):
    return as_fast(decision.ratios[other.name], other.label)


def _fastest(analysis, decision):
    """Which row is the fastest of those that could be compared, where that is not enough for a recommendation."""
    if decision.kind != "all cores":
        return []
    first, *others = decision.rows
    time = _times(analysis, decision, first)
    told = [say("Of the rows measured, “{row}” is the fastest: {time}.", row=first.label, time=time)]
    if tied := [entry.label for entry in others if not decision.ratios[entry.name].decided]:
        told.append(say("It is statistically tied with {rows}.", rows=quoted(tied)))
    return told


def _times(analysis, decision, entry, other=None):
    """How long a row takes for that by which it was decided, beside another."""
    kind, means, settings = decision.wall_time.kind, decision.wall_time.means, analysis.report.settings
    what: str = say("per 1,000 samples")
    if kind == PER_EPOCH and settings["max_steps"]:
        what = sentence("by a cut epoch", steps=count(settings["max_steps"], "step"))
    elif kind == PER_EPOCH:
        what = say("per epoch with evaluation")
    elif kind == TO_TARGET:
        what = say("to reach {n:g}% accuracy", n=100 * settings["target_accuracy"])
    elif kind == WHOLE_RUN:
        what = say("for a whole run of {epochs}", epochs=count(settings["epochs"], "epoch"))
    if not other:
        return say("{s} s {what}", s=seconds(means[entry.name]), what=what)
    return say("{s} s instead of {t} s {what}", s=seconds(means[entry.name]), t=seconds(means[other.name]), what=what)


def _unequal(analysis):
    """How fast the rows are that were let run although they are unequal; nothing if none."""
    rows = []
    for entry in analysis.rows:
        if entry.standing.speed_up and entry.standing.unequal:
            fast = as_fast(entry.standing.speed_up, entry.standing.baseline.label)
            unequal = join(", ", entry.standing.unequal)
            rows.append(say("“{row}” is {fast}, with {settings}", row=entry.label, fast=fast, settings=unequal))
    return say("none. The rows are unequal: {rows}.", rows=join("; ", rows)) if rows else ""


# ---- what to do next


def next_step(analysis: Analysis) -> list[str]:
    """Return the most valuable thing to do next, if there is one."""
    return [say("Next: {words}", words=words) for words in islice(_steps(analysis), 1)]


def possible(analysis: Analysis) -> list[str]:
    """Return in a sentence what else the machine could do with the row to use, if any option is proved to help."""
    best = best_tip(analysis.tips)
    if not best or not best.ratio:
        return []
    row, effect = best.plain.configuration, effect_of(best.options)
    accuracy: str = say("its accuracy is not changed")
    if best.accuracy is not None:
        accuracy = say("trained to {n:.1f}% here", n=100 * best.accuracy)
    elif effect != SAME:
        accuracy = say("its accuracy was not checked") if effect == UNKNOWN else say("only rounding differs")
    options = join(" and ", [join(", ", best.options[:-1]), best.options[-1]] if best.options[1:] else best.options)
    return [sentence("possible", options=options, fast=as_fast(best.ratio, row.label), accuracy=accuracy)]


def _steps(analysis: Analysis) -> Iterator[str]:
    """What to do next, the most valuable first."""
    report, decisions = analysis.report, analysis.decisions
    for entry in analysis.rows:
        check = report.equivalence.get(entry.name)
        if check and check.status == "failed" and check.difference is not None:
            yield say("fix “{row}”: its weights are not those of the baseline.", row=entry.label)
    noisy = [row.foreign for row in report.rows if row.disturbed]
    if noisy:
        most = max(noisy, key=lambda foreign: foreign.share)
        yield say("other programs {what}; close them, and run the same command again.", what=most.words)
    if len(report.outcomes) < len(report.order):
        yield say("run the same command with --resume to measure the rest.")
    if any(told_apart(pair.ratio) for pair in analysis.pairs[TWIN]):
        yield say("run it again when the machine is quiet.")
    for row in report.all_rows:
        for run in row.troubles:
            if run.status not in (OUT_OF_MEMORY, "not reached"):
                yield say("read {log}: “{row}” {status}.", row=row.label, status=run.status, log=run.log)
    for decision in decisions:
        yield from _to_decide(analysis, decision)
    parallel = fastest_parallel(analysis)
    for entry in [*(decision.best for decision in decisions if decision.best), *parallel[:1]]:
        causes = [tell(cause) for cause in entry.causes if cause.kind in ADVISED]
        yield from (say("{row}: {words}", row=entry.label, words=words) for words in causes)
    remedies = {} if report.settings.get("prove") or report.only_scripts else _causes_to_prove(analysis)
    slow = [row for row in parallel if row.name in remedies and not any(row in decision.tied for decision in decisions)]
    yield from (sentence("prove", row=row.label, cause=remedies[row.name]) for row in slow)


def _to_decide(analysis: Analysis, decision: Decision) -> Iterator[str]:
    """What to type for a recommendation, or for one that excludes more."""
    kind, best, settings = decision.kind, decision.best, analysis.report.settings
    if kind in ("all cores", "own batches", "few runs"):
        yield sentence(f"after {kind}", methods=join(" or ", all_cores_methods()))
    if kind in ("not measured", "none sound"):
        if settings["allow_unequal"]:
            yield say("give all rows the same settings, and leave out --allow-unequal.")
        if any(row.missed for row in analysis.report.rows):
            yield say("give more --epochs, or a lower --target-accuracy.")
        if any(row.out_of_memory for row in analysis.report.rows):
            yield say("give a smaller --batch-size.")
    if kind == "not measured" and analysis.report.only_scripts:
        yield say("add a second --script COMMAND to compare it with.")
    elif kind == "not measured" and any(row.simulated for row in analysis.report.rows):
        yield sentence("only simulated")
    elif kind == "not measured" and not (analysis.sweeps or analysis.pairs[BEFORE]):
        yield say("leave out --methods to compare all, or name a second one.")
    if kind == "use" and best.row.configuration.what_if:
        yield say("make the change “{row}” in your script; the report says how.", row=best.label)
    if kind == "use" and any(not decision.ratios[entry.name].decided for entry in decision.tied):
        yield sentence("more runs", n=HALVES * best.summary.runs, m=best.summary.runs)
    for name in [name for name, why in decision.out.items() if why.startswith(NOT_SHOWN)]:
        label = next(entry.label for entry in analysis.rows if entry.name == name)
        yield say("add --check-maths or more --repeats: “{row}” may turn out to learn as much.", row=label)


def fastest_parallel(analysis: Analysis) -> list[RowAnalysis]:
    """Return the parallel rows, and somebody's scripts, whose steps are accounted for, the fastest first."""
    rows = [
        entry
        for entry in analysis.rows
        if entry.rivals_baseline and not entry.row.all_cores and not entry.row.disturbed and entry.accounts.steps
        if len(entry.row.results[0].devices) > 1 or entry.row.configuration.is_script
    ]

    def rank(entry: RowAnalysis) -> tuple[float, float]:
        beside = analysis.beside_best(entry)
        return beside.value if beside else math.inf, -entry.standing.speed_up.value

    return sorted(rows, key=rank)


def _causes_to_prove(analysis):
    """By a row's name, its cause that --prove can take away, where the report names that cause."""
    told = {entry.name: {cause.kind for cause in entry.causes} for entry in analysis.rows}
    return {one.row.name: one.cause for one in find_remedies(analysis) if one.cause in told[one.row.name]}


def told_apart(ratio: Ratio) -> bool:
    """Whether a ratio of two equal rows claims a difference that cannot be there."""
    return not ratio.disturbed and ratio.low is not None and not ratio.low <= 1 <= ratio.high
