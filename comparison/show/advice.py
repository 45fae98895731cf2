"""The recommendation, and what to do next."""

import math
from collections.abc import Iterator
from itertools import islice

from common.errors import OUT_OF_MEMORY
from comparison.judge.analysis import Analysis, best_tip
from comparison.judge.decision import UNEQUAL, Decision
from comparison.judge.fairness import NOT_SHOWN
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, TO_TARGET, WHOLE_RUN
from comparison.judge.remedies import find_remedies
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, Ratio
from comparison.judge.summaries import Finding
from comparison.methods import ALL_CORES_METHODS
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.plan.flags import BUDGET
from comparison.plan.tips import SAME, UNKNOWN, effect_of
from comparison.show.sentences import as_fast, finding_sentence, mebibytes, quoted, sentence, significant
from comparison.words import count, join, say

# Causes whose sentences contain advice.
ADVISED = ("throttled", "too many workers", "shared cores", "resident loader", "waiting for data")
HOPELESS = ("small network", "enough workers", "no core left")  # advice about loading that leaves nothing to do
LARGE = 0.25  # share of what a step takes longer than ideal scaling, from which a cause is worth --prove
HALVING = 4  # times as many runs halve an interval


def recommendations(analysis: Analysis) -> list[str]:
    """Return the recommendation as a paragraph for each model and batch size."""
    return [join(" ", sentences) for sentences in recommended(analysis)]


def recommended(analysis: Analysis) -> list[list[str]]:
    """Return the recommendation as a list of sentences for each model and batch size."""
    if len(analysis.rows) == 1 and analysis.report.only_scripts:
        return []
    if analysis.decisions[0].kind == "not measured" and (analysis.sweeps or analysis.pairs[BEFORE]):
        return []
    paragraphs: list[list[str]] = []
    for decision in analysis.decisions:
        first, *others = _recommend(analysis, decision)
        words = say("Recommendation: {words}", words=first)
        if decision.trained:
            words = say("For {trained}: {words}", trained=decision.trained, words=words)
        paragraphs.append([words, *others])
    return paragraphs


def in_short(analysis: Analysis) -> list[str]:
    """Return the sentences of a single recommendation, or a line for each of several."""
    paragraphs = recommended(analysis)
    if len(paragraphs) < 2:
        return [words for sentences in paragraphs for words in sentences]
    lines: list[str] = [say("Recommendations:")]
    for decision, sentences in zip(analysis.decisions, paragraphs, strict=True):
        words, slower = sentences[0], _proved_slower(decision) if decision.kind == "use" else None
        if slower:
            fast = as_fast(decision.ratios[slower.name], slower.label)
            words = say("“{row}”, {fast}.", row=decision.best.label, fast=fast)
        lines.append(words)
    return lines


def _recommend(analysis: Analysis, decision: Decision) -> list[str]:
    kind, best = decision.kind, decision.best
    if kind == "not measured":
        return [_not_compared(analysis)]
    if kind == "none eligible":
        return [say("none. No row may be used: {rows}.", rows=_reasons(analysis, decision, decision.ineligible))]
    if kind == "few runs":
        runs = {entry.summary.runs for entry in decision.eligible}
        values = {"runs": count(min(runs), "run"), "row": best.label, "time": _times(analysis, decision, best)}
        return [sentence("few runs" if len(runs) == 1 else "fewer runs", **values)]
    if kind == "all cores":
        return [sentence("no answer: all cores"), *_fastest(analysis, decision)]
    if kind != "use":
        return [sentence(f"no answer: {kind}")]
    answer = [_use(analysis, decision)]
    if decision.tied:
        answer.append(_tied(decision))
    if decision.wall_time.kind in (PER_EPOCH, PER_SAMPLES):
        longer = [cause for cause in best.causes if cause.kind == "start-up" and cause.wording != "takes less"]
        answer += [say("Not counted in the speed-up: {parts}.", parts=finding_sentence(cause)) for cause in longer]
    if decision.later:
        answer.append(say("From {n} epochs on, “{row}” is faster.", n=decision.pays_from, row=decision.later.label))
    if faster := [name for name in decision.ineligible if decision.ratios[name].inverse.words == FASTER]:
        answer.append(say("Faster, but excluded: {rows}.", rows=_reasons(analysis, decision, faster)))
    if memory := best.summary.memory:
        answer.append(say("Peak memory, all devices: {x} MiB.", x=mebibytes(memory.together)))
    return answer


def _tied(decision):
    """The rows that are tied with the recommended one, and the simplest of all these, unless others are as simple."""
    rows, simplest = quoted(entry.label for entry in decision.tied), decision.simplest
    if decision.best not in simplest:
        several = " ones" if len(simplest) > 1 else ""
        return sentence(f"tied, simpler{several}", rows=rows, simplest=quoted(entry.label for entry in simplest))
    if len(simplest) > 1:
        return say("It is statistically tied with {rows}.", rows=rows)
    most = say("simplest of them") if len(decision.tied) > 1 else say("simpler of the two")
    return sentence("tied, the simplest", rows=rows, simplest=most)


def _not_compared(analysis):
    timed = [entry for entry in analysis.done if not entry.row.simulated]
    if len(timed) > 1:
        return say("none. No two of the timed rows train the same.")
    return say("none. Only one row was timed.") if timed else say("none. No row was timed.")


def _reasons(analysis, decision, names):
    labels = {entry.name: entry.label for entry in analysis.rows}
    return join("; ", [say("“{row}”, {why}", row=labels[name], why=decision.ineligible[name]) for name in names])


def _proved_slower(decision):
    """A row proved slower than the recommended one, to compare it with: the baseline if possible, or the fastest."""
    slower = [entry for entry in decision.eligible if entry not in (decision.best, *decision.tied)]
    baselines = [entry for entry in slower if entry.is_baseline]
    return next(iter([*baselines, *slower]), None)


def _use(analysis, decision):
    best, other = decision.best, _proved_slower(decision)
    time = _times(analysis, decision, best, other)
    if not other:
        words = say("use “{row}”: {time}.", row=best.label, time=time)
        return words if decision.tied else join(" ", [words, say("All other rows are excluded.")])
    fast = as_fast(decision.ratios[other.name], other.label)
    return say("use “{row}”, {fast}: {time}.", row=best.label, fast=fast, time=time)


def _fastest(analysis, decision):
    """The fastest row measured, where a missing row prevents a recommendation."""
    first, *others = decision.eligible
    time = _times(analysis, decision, first)
    sentences = [say("Of the rows measured, “{row}” is the fastest: {time}.", row=first.label, time=time)]
    ratios = [(entry.label, decision.ratios[entry.name]) for entry in others]
    if tied := [label for label, ratio in ratios if ratio.low is not None and ratio.words != FASTER]:
        sentences.append(say("It is statistically tied with {rows}.", rows=quoted(tied)))
    return sentences


def _times(analysis, decision, entry, other=None):
    """The time that decides, of a row and, if given, of another: "1.00 s instead of 2.00 s per epoch"."""
    kind, means, settings = decision.wall_time.kind, decision.wall_time.means, analysis.report.settings
    cut, ran = analysis.report.cut_steps, [one.row.results[-1].epochs[-1].steps for one in (entry, other or entry)]
    what: str = say("per 1,000 samples")
    if kind == PER_EPOCH and cut and max(ran) >= cut:
        what = sentence("by a cut epoch", steps=count(cut, "step"))
    elif kind == PER_EPOCH:
        what = say("per epoch with evaluation")
    elif kind == TO_TARGET:
        what = say("to reach {n:g}% accuracy", n=100 * settings["target_accuracy"])
    elif kind == WHOLE_RUN:
        what = say("for a whole run of {epochs}", epochs=count(settings["epochs"], "epoch"))
    template = "{s} s instead of {t} s {what}" if other else "{s} s {what}"
    return say(template, s=significant(means[entry.name]), t=significant(means[(other or entry).name]), what=what)


# ---- what to do next


def next_step(analysis: Analysis) -> list[str]:
    """Return the most useful next step, if there is one."""
    return [say("Next: {words}", words=words) for words in islice(_steps(analysis), 1)]


def option_advice(analysis: Analysis) -> list[str]:
    """Return a sentence about options that are proved to make the recommended row faster, if there are any."""
    best = best_tip(analysis.tips)
    if not best or not best.ratio:
        return []
    row, effect = best.plain.configuration, effect_of(best.options)
    accuracy: str = say("its accuracy is not changed")
    if best.accuracy is not None:
        then = next(entry.summary.accuracy or 0.0 for entry in analysis.rows if entry.name == row.name)
        accuracy = say("trained to {n:.1f}% here, without to {m:.1f}%", n=100 * best.accuracy, m=100 * then)
    elif effect != SAME:
        accuracy = say("its accuracy was not checked") if effect == UNKNOWN else say("only rounding differs")
    options = join(" and ", [join(", ", best.options[:-1]), best.options[-1]] if best.options[1:] else best.options)
    return [sentence("possible", options=options, fast=as_fast(best.ratio, row.label), accuracy=accuracy)]


def _steps(analysis: Analysis) -> Iterator[str]:
    """Yield possible next steps, the most useful first."""
    report, decisions = analysis.report, analysis.decisions
    for entry in analysis.rows:
        check = report.equivalence.get(entry.name)
        if check and check.status == "failed" and check.difference is not None:
            yield say("fix “{row}”: its weights are not those of one device.", row=entry.label)
    disturbed = [row.foreign for row in report.rows if row.disturbed]
    if disturbed:
        most = max(disturbed, key=lambda foreign: foreign.share)
        yield say("other programs {what}; close them, and run the same command again.", what=most.words)
    if len(report.outcomes) < len(report.order):
        yield say("run the same command with --resume to measure the rest.")
    if any(told_apart(pair.ratio) for pair in analysis.pairs[TWIN]):
        yield say("run it again when the machine is quiet.")
    for row in report.all_rows:
        for run in row.troubles:
            if run.status not in (OUT_OF_MEMORY, "not reached") or row.configuration.is_script:
                yield say("see {log}: “{row}” {status}.", row=row.label, status=run.status, log=run.log)
    for decision in decisions:
        yield from _to_decide(analysis, decision)
    parallel = fastest_parallel(analysis)
    for entry in [*(decision.best for decision in decisions if decision.best), *parallel[:1]]:
        for cause in entry.causes:
            advice = cause.values.get("advice")
            if cause.kind in ADVISED and not (isinstance(advice, Finding) and advice.kind in HOPELESS):
                yield say("{row}: {words}", row=entry.label, words=finding_sentence(cause).small)
    if not (report.settings.get("prove") or report.only_scripts or report.fitted):
        causes = _causes_to_prove(analysis)
        for entry in parallel:
            if entry.name in causes and not any(entry in decision.tied for decision in decisions):
                yield sentence("prove", row=entry.label, cause=causes[entry.name])


def _to_decide(analysis: Analysis, decision: Decision) -> Iterator[str]:
    """Yield what to type to get a recommendation, or one with fewer ties and exclusions."""
    kind, best, settings = decision.kind, decision.best, analysis.report.settings
    if kind in ("all cores", "own batches", "few runs"):
        yield sentence(f"after {kind}", methods=join(" or ", ALL_CORES_METHODS))
    if kind in ("not measured", "none eligible"):
        if settings["allow_unequal"] and any(why.startswith(UNEQUAL) for why in decision.ineligible.values()):
            yield say("give all rows the same settings, and leave out --allow-unequal.")
        if any(row.missed for row in analysis.report.rows):
            yield say("give more --epochs, or a lower --target-accuracy.")
        if any(row.out_of_memory for row in analysis.report.rows):  # a script's log was the first step
            yield say("give a smaller --batch-size.")
    if all(row.configuration.skip for row in analysis.report.rows):
        yield say("no row can run here; the report says why.")
    if kind == "not measured" and any(row.is_script for row in analysis.report.plan) and not analysis.pairs[BEFORE]:
        yield say("add a second --script COMMAND to compare it with.")
    elif kind == "not measured" and any(row.simulated for row in analysis.report.rows):
        yield sentence("only simulated")
    elif kind == "not measured" and not (analysis.sweeps or analysis.pairs[BEFORE]):
        yield say("leave out --methods to compare all, or name a second one.")
    if kind == "use" and best.row.configuration.what_if and not any(entry.is_baseline for entry in decision.tied):
        yield say("make the change “{row}”; the report says how.", row=best.label)
    if kind == "use" and any(not decision.ratios[entry.name].decided for entry in decision.tied):
        typed = {"--budget": settings.get("budget") not in (None, BUDGET), "--margin": settings["margin"] is not None}
        flags = join(" and ", [flag for flag, excludes in typed.items() if excludes])
        key = "more runs instead" if flags else "more runs"
        yield sentence(key, n=HALVING * best.summary.runs, m=best.summary.runs, flags=flags)
    for entry in analysis.rows:
        if decision.ineligible.get(entry.name, "").startswith(NOT_SHOWN):
            add = "more --repeats" if entry.name in analysis.report.equivalence else "--check-maths or more --repeats"
            yield say("add {flags}: “{row}” may prove to be as accurate.", flags=add, row=entry.label)


def fastest_parallel(analysis: Analysis) -> list[RowAnalysis]:
    """Return the parallel rows and the user's scripts that have an account of a step, the fastest first."""
    rows = [
        entry
        for entry in analysis.rows
        if entry.rivals_baseline and not entry.row.all_cores and not entry.row.disturbed and entry.accounts.steps
        if len(entry.row.results[0].devices) > 1 or entry.row.configuration.is_script
    ]

    def rank(entry: RowAnalysis) -> tuple[float, float]:
        beside = analysis.ratio_to_best(entry)
        return beside.value if beside else math.inf, -entry.standing.speed_up.value

    return sorted(rows, key=rank)


def _causes_to_prove(analysis):
    """For each row name, the reported cause that --prove can remove, if it may be what slows the row down."""
    rows, causes = {entry.name: entry for entry in analysis.rows}, {}
    for remedy in find_remedies(analysis):
        entry = rows[remedy.row.name]
        slower = entry.accounts.steps.total.value if entry.accounts.steps else 0.0
        reported = any(cause and cause.kind == remedy.cause for cause in (*entry.causes, entry.unproved))
        if reported and remedy.predicted.value >= LARGE * slower:
            causes[entry.name] = remedy.cause
    return causes


def told_apart(ratio: Ratio) -> bool:
    """Return whether a ratio of two identical rows claims a difference."""
    return not ratio.disturbed and ratio.low is not None and not ratio.low <= 1 <= ratio.high
