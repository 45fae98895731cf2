"""The comparison in words: one paragraph per row, every sentence with the number behind it, and what to use here."""

from collections.abc import Iterator, Sequence

from common.errors import OUT_OF_MEMORY
from common.words import percent
from comparison.judge.analysis import Analysis, Sweep
from comparison.judge.decision import Decision
from comparison.judge.fairness import NOT_SHOWN
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, TO_TARGET, WHOLE_RUN
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import EQUAL, FASTER, SLOWER, TOO_FEW, UNDECIDED, Ratio
from comparison.judge.step_causes import with_loader_workers
from comparison.methods import all_cores_methods, method_of
from comparison.plan.counterparts import BEFORE, TWIN
from comparison.rows import SWEEPS, Trial, trials_of
from comparison.show.sentences import (
    as_fast,
    fastest_value,
    instead_of,
    longer,
    mebibytes,
    quoted,
    seconds,
    sentence,
    several_baselines,
    tell,
    time_asked,
    within,
)
from comparison.words import count, join, named, say

# Causes whose sentences say what to do, and how many times as many runs halve an interval.
ADVISED, HALVES = ("throttled", "too many workers", "shared cores", "resident loader", "waiting for data"), 4
REST = 0.1  # of a step's difference: what is in no part that is proved, and worth a word
CLAIM_TEMPLATES = {
    FASTER: "{fast}; {time}.",
    SLOWER: "slower, {fast}; {time}.",
    EQUAL: "practically as fast, {fast}; {time}.",
    UNDECIDED: "{fast}: it may be faster or slower; {time}.",
    TOO_FEW: "{fast}, not proved by so few runs; {time}.",
}


def verdict(analysis: Analysis) -> list[str]:
    """Return a paragraph for every row that there is something to say of, one per sweep and method, and last what to
    use on this machine."""
    paragraphs = [(entry.label, _paragraph(analysis, entry)) for entry in analysis.rows]
    rows = [say("{row}: {words}", row=label, words=words) for label, words in paragraphs if words]
    return [*rows, *sweep_sentences(analysis), *recommendations(analysis)]


def answers(analysis: Analysis, proofs: Sequence[Proof] = ()) -> list[str]:
    """Return where a script's step goes, what was asked for by a flag of its own, and what every row learned."""
    costs = [(entry.label, _costs(entry)) for entry in analysis.done]
    return [
        *_step_of_script(analysis),
        *tell_proofs(analysis, proofs),
        *(say("{row}: {words}", row=label, words=join(" ", words)) for label, words in costs if words),
        *sweep_sentences(analysis),
        *_projected(analysis),
        *tell_guesses(analysis),
        *_maths(analysis),
        *_accuracies(analysis),
        *_one_learning_rate(analysis),
    ]


def details(analysis: Analysis) -> list[str]:
    """Return where a projection stops, and where time goes."""
    stops = analysis.projection.stops if analysis.report.settings["project"] else ()
    return [*map(tell, stops), *where_time_goes(analysis)]


def _projected(analysis):
    """How many times as fast as one device more of them would be, if that was asked."""
    points = [point for point in analysis.projection.points if point.speed_up and point.devices > 1]
    if not points:
        return list(map(tell, analysis.projection.assumptions if analysis.report.settings["project"] else ()))
    speeds, devices = zip(*((f"{point.speed_up:.2f}", str(point.devices)) for point in points), strict=True)
    values = {"label": LABEL, "speeds": join(", ", speeds), "n": join(", ", devices)}
    return [say("Speed-up ({label}): {speeds} on {n} devices.", **values)]


def _accuracies(analysis):
    means = sorted(100 * entry.summary.accuracy for entry in analysis.done if entry.summary.accuracies)
    ends = dict.fromkeys(f"{mean:.1f}" for mean in (means[:1] + means[-1:]))
    return [say("Accuracy: {x} %, mean of each row's runs.", x="–".join(ends))] if len(means) > 1 else []


def _one_learning_rate(analysis):
    """What to type where batches of several sizes were trained on with one learning rate."""
    batches = {entry.row.configuration.planned.batch_size for entry in analysis.done if entry.row.learns}
    if len(batches) < 2 or analysis.report.settings.get("lr_scaling", "none") != "none":
        return []
    template = "Batches differ and the learning rate does not: --lr-scaling linear, or sqrt for Adam, scales it."
    return [say(template)]


def _step_of_script(analysis):
    """What is in a step of the first of somebody's own scripts."""
    for entry in analysis.done[:1] if analysis.report.only_scripts else ():
        numbers = entry.summary
        parts = [say("{part} {x:.1f}", part=name, x=value) for name, value in numbers.phases.known.items()]
        batch = entry.row.results[0].global_batch_size
        values = {"n": batch, "x": numbers.step_milliseconds, "parts": join(", ", parts)}
        sentences = [sentence("step of a script", row=entry.label, **values)]
        if loading := with_loader_workers(entry.row, numbers, int(analysis.report.environment["cores"])):
            sentences.append(sentence("loader alone", row=entry.label, alone=loading[0], step=loading[1]))
        return sentences
    return []


def _maths(analysis):
    """In how many rows the weights are one device's, if that was asked; who is too far says so in the table."""
    others = [entry.name for entry in analysis.rows if not entry.is_baseline]
    checks = [analysis.report.equivalence.get(name) for name in others]
    same = [check.difference for check in checks if check and check.status == "ok" and check.difference is not None]
    if not same:
        return []
    template = "Weights after 20 steps: all rows within {x:.1e} of one device's."
    if len(same) < len(others):
        template = "Weights after 20 steps: {n} of {m} rows within {x:.1e} of one device's."
    return [say(template, x=max(same), n=len(same), m=len(others))]


# ---- what to use


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
        best, other = decision.best, _beside_best(decision) if decision.kind == "use" else None
        words = sentences[0]
        if other and not best.is_baseline:
            ratio = decision.ratios[other.name]
            words = say("“{row}”: {x:.2f} times as fast{i}.", row=best.label, x=ratio.value, i=within(ratio))
        lines.append(words)
    return lines


def _recommend(analysis: Analysis, decision: Decision) -> list[str]:
    kind, best = decision.kind, decision.best
    if kind == "not measured":
        return [_unequal(analysis) or say("none: no other row was measured that trains the same.")]
    if kind == "disturbed":
        return [say("none. The comparison was disturbed.")]
    if kind == "all cores":
        return [sentence("no all-cores row", n=analysis.report.environment["cores"])]
    if kind == "own batches":
        return [sentence("own batches")]
    if kind == "none sound":
        return [say("none: no row may be used: {rows}.", rows=_reasons(analysis, decision, decision.out))]
    if kind == "few runs":
        return [sentence("few runs", row=best.label, time=_times(analysis, decision, best))]
    other = _beside_best(decision)
    answer = [_use(analysis, decision, other)]
    if decision.tied:
        tied = quoted(entry.label for entry in decision.tied)
        simplest = decision.simplest
        key = "tied, the simplest" if simplest is best else "tied"
        answer.append(sentence(key, rows=tied, row=simplest.label))
    if decision.wall_time.kind in (PER_EPOCH, PER_SAMPLES):
        longer = [tell(cause) for cause in best.causes if cause.kind == "start-up" and cause.told != "takes less"]
        answer += [say("Not counted in the speed-up: {parts}.", parts=parts) for parts in longer]
    if decision.later:
        answer.append(say("From {n} epochs on, “{row}” is faster.", n=decision.pays_from, row=decision.later.label))
    if faster := [name for name in decision.out if decision.ratios[name].value < 1]:
        answer.append(say("Faster, but not to be used: {rows}.", rows=_reasons(analysis, decision, faster)))
    if memory := best.summary.memory:
        answer.append(say("Memory of all its devices: {x} MiB.", x=mebibytes(memory.together)))
    return answer


def _reasons(analysis, decision, names):
    labels = {entry.name: entry.label for entry in analysis.rows}
    return join("; ", [say("“{row}”, {why}", row=labels[name], why=decision.out[name]) for name in names])


def _beside_best(decision):
    """The baseline of the row to use; of a baseline, the next of the others; None if no other row may be used."""
    others = [entry for entry in decision.rows if entry is not decision.best]
    return next((entry for entry in others if entry.row is decision.best.standing.baseline), next(iter(others), None))


def _use(analysis, decision, other):
    """Which row to use, and how many times as fast it is; of a baseline, how much longer another takes."""
    best = decision.best
    if not other:
        words = say("stay with “{row}”" if best.is_baseline else "use “{row}”", row=best.label)
        return say("{words}, {time}; no other row may be used.", words=words, time=_times(analysis, decision, best))
    ratio, pair = decision.ratios[other.name], (other, best) if best.is_baseline else (best, other)
    values = {"row": best.label, "other": other.label, "x": ratio.value, "i": within(ratio)}
    return sentence("stay" if best.is_baseline else "use", **values, time=_times(analysis, decision, *pair))


def _times(analysis, decision, entry, other=None):
    """How long a row takes for that by which it was decided, beside another."""
    kind, means, settings = decision.wall_time.kind, decision.wall_time.means, analysis.report.settings
    what: str = say("per 1,000 samples")
    if kind == PER_EPOCH and settings["max_steps"]:
        what = sentence("by a cut epoch", steps=count(settings["max_steps"], "step"))
    elif kind == PER_EPOCH:
        what = say("per epoch with evaluation")
    elif kind == TO_TARGET:
        what = say("to reach {n:g} %", n=100 * settings["target_accuracy"])
    elif kind == WHOLE_RUN:
        what = say("for a whole run of {epochs}", epochs=count(settings["epochs"], "epoch"))
    if not other:
        return say("{s} s {what}", s=seconds(means[entry.name]), what=what)
    return say("{s} s instead of {t} s {what}", s=seconds(means[entry.name]), t=seconds(means[other.name]), what=what)


# ---- what to do next


def next_step(analysis: Analysis) -> list[str]:
    """Return the most valuable thing to do next, if there is one."""
    return [say("Next: {words}", words=words) for words in [*_steps(analysis)][:1]]


def _steps(analysis: Analysis) -> Iterator[str]:
    """What to do next, the most valuable first."""
    report, decisions = analysis.report, analysis.decisions
    for entry in analysis.rows:
        check = report.equivalence.get(entry.name)
        if check and check.status == "failed" and check.difference is not None:
            yield say("find the mistake in “{row}”: it computes something else than the baseline.", row=entry.label)
    noisy = [row.foreign for row in report.rows if row.disturbed]
    if noisy:
        most = max(noisy, key=lambda foreign: foreign.share)
        yield say("other programs {what}; close them, and run the same command again.", what=most.words)
    if len(report.outcomes) < len(report.order):
        yield say("the same command with --resume goes on.")
    if any(told_apart(pair.ratio) for pair in analysis.pairs[TWIN]):
        yield say("run it again at a quieter time.")
    for row in report.all_rows:
        for run in row.troubles:
            if run.status not in (OUT_OF_MEMORY, "not reached"):
                yield say("“{row}”: {status}; read {log}.", row=row.label, status=run.status, log=run.log)
    for decision in decisions:
        yield from _to_decide(analysis, decision)
    parallel = _fastest_parallel(analysis)
    for entry in [*(decision.best for decision in decisions if decision.best), *parallel]:
        causes = [tell(cause) for cause in entry.causes if cause.kind in ADVISED]
        yield from (say("{row}: {words}", row=entry.label, words=words) for words in causes)
    for one in [] if report.settings.get("prove") or report.only_scripts else find_remedies(analysis):
        if one.label in [entry.label for entry in parallel]:
            yield sentence("prove", row=one.label, cause=one.cause, change=named(one.change))


def _to_decide(analysis: Analysis, decision: Decision) -> Iterator[str]:
    """What to type for a recommendation, or for one that excludes more."""
    kind, best, shown = decision.kind, decision.best, analysis.sweeps or analysis.pairs[BEFORE]
    if kind in ("all cores", "own batches", "few runs"):
        yield sentence(f"after {kind}", methods=join(" or ", all_cores_methods()))
    if kind == "not measured" and analysis.report.only_scripts:
        yield say("compare it with another one: --script COMMAND, once more.")
    elif kind == "not measured" and not shown and not analysis.report.settings["allow_unequal"]:
        yield say("leave out --methods, or name another that trains the same.")
    if kind == "use" and best.row.configuration.what_if:
        yield say("“{row}” is your script with one change; the report says which.", row=best.label)
    if kind == "use" and any(not decision.ratios[entry.name].decided for entry in decision.tied):
        yield sentence("more runs", n=HALVES * best.summary.runs, m=best.summary.runs)
    for name in [name for name, why in decision.out.items() if why.startswith(NOT_SHOWN)]:
        label = next(entry.label for entry in analysis.rows if entry.name == name)
        yield say("--check-maths, or more --repeats, can show that “{row}” learns as much.", row=label)


def _unequal(analysis):
    """How fast the rows are that were let run although they are unequal; nothing if none."""
    rows = []
    for entry in analysis.rows:
        if entry.standing.speed_up and entry.standing.unequal:
            fast = as_fast(entry.standing.speed_up, entry.standing.baseline.label)
            unequal = join(", ", entry.standing.unequal)
            rows.append(say("“{row}” is {fast}, with {settings}", row=entry.label, fast=fast, settings=unequal))
    return say("none: the rows are unequal: {rows}.", rows=join("; ", rows)) if rows else ""


# ---- a row


def where_time_goes(analysis: Analysis) -> list[str]:
    """Return where the fastest parallel row's step is above ideal scaling."""
    return [
        say("{row}: {words}", row=best.label, words=words)
        for best in _fastest_parallel(analysis)
        for words in _mean_step(analysis, best)
    ]


def _fastest_parallel(analysis):
    rows = [
        entry
        for entry in analysis.rows
        if entry.rivals_baseline and not entry.row.all_cores and not entry.row.disturbed and entry.accounts.steps
    ]
    return sorted(rows, key=lambda entry: -entry.standing.speed_up.value)[:1]


def _paragraph(analysis, entry):
    row, standing = entry.row, entry.standing
    if row.configuration.skip:
        return say("skipped: {why}.", why=named(row.configuration.skip))
    broken = [say("{trouble}: {why}.", trouble=row.trouble, why=row.troubles[0].reason)] if row.troubles else []
    broken += _largest_batch(analysis.report, row)
    if not row.results:
        return join(" ", broken or [say("not run.")])
    if row.disturbed or (standing.baseline and standing.baseline.disturbed):  # which a warning says, once for all
        return join(" ", [*broken, *_memory(analysis, entry)])
    others = [tell(cause) for cause in entry.causes if not cause.of]
    step = [*_how_fast(analysis, entry), *_mean_step(analysis, entry), *others]
    return join(" ", [*broken, *step, *_whole_run(entry), *_costs(entry), *_memory(analysis, entry)])


def _how_fast(analysis, entry):
    row, numbers, standing = entry.row, entry.summary, entry.standing
    time, low, high = time_asked(analysis, entry), numbers.fastest_epoch, numbers.slowest_epoch
    own = sentence("own time", time=time, low=low, high=high, runs=count(numbers.runs, "run"))
    if analysis.report.only_scripts:  # whose slices may have any number of steps
        own = time
    if entry.is_baseline:
        return [say("the baseline, {time}.", time=own)]
    if row.simulated:
        return []
    if standing.speed_up is None:
        return [say("{time}; no speed-up, {why}.", time=own, why=standing.reason)]
    speed_up, baseline = standing.speed_up, analysis.of(standing.baseline)
    fast = as_fast(speed_up, baseline.label if several_baselines(analysis) else "")
    return [say(CLAIM_TEMPLATES[speed_up.words], fast=fast, time=instead_of(analysis, entry, baseline)), *_share(entry)]


def _share(entry):
    """What share a row gives of what its devices or cores could give at best; of one device there is none to give."""
    row, share = entry.row, entry.standing.efficiency
    units = count(len(row.results[0].devices), "device")
    if row.all_cores:
        units = count(row.results[0].threads_per_process, "core")
    if units.values["n"] == 1:
        return []
    percents = {"n": 100 * share.value, "units": units}
    if share.low is None:
        return [say("Scaling efficiency {n:.0f} % on {units}.", **percents)]
    bounds = {"low": 100 * share.low, "high": 100 * share.high}
    return [say("Scaling efficiency {n:.0f} % on {units} ({low:.0f} to {high:.0f} %).", **percents, **bounds)]


def _largest_batch(report, row):
    """With which batch a row trained, and why with no larger one."""
    own, planned = trials_of(row.configuration, report.trials), row.configuration.planned
    if not own:
        return []
    results = {trial.batch_size: trial for trial in own}
    if not results[planned.batch_size].fits:
        return [say("It could not be tried {batch}.", batch=planned.batch)]
    more = 2 * planned.batch_size
    why = say("there are fewer than {n:,} images", n=more)
    if more in results:
        why = say("with {n:,}: {what}", n=more, what=tell_trial(results[more]))
    fits = tell_trial(results[planned.batch_size])
    return [say("It trains {batch}, which {fits}; {why}.", batch=planned.batch, fits=fits, why=why)]


def tell_trial(trial: Trial) -> str:
    """Return the result of trying a batch."""
    if trial.fits:
        return say("fits, with {n} MiB at its peak", n=mebibytes(trial.peak_bytes))
    return trial.status if trial.status == OUT_OF_MEMORY else f"{trial.status}, {trial.reason}"


def _mean_step(analysis, entry):
    """What the machine withholds; by how much a step differs from ideal scaling, and which parts of that are proved."""
    steps, machine = entry.accounts.steps, [tell(cause) for cause in entry.causes if cause.of == "machine"]
    if not steps:
        return machine
    whose = ""
    if several_baselines(analysis):
        whose = say(" from {base}", base=quoted([entry.standing.baseline.label]))
    key, parts = "longer step" if steps.total.value > 0 else "shorter step", _clauses(entry, "step")
    rest = steps.total.value - sum(cause.values["x"].value for cause in entry.causes if cause.of == "step")
    if parts and abs(rest) >= REST * abs(steps.total.value):
        parts = join(", ", [parts, say("the other {x:+.1f} ms cannot be attributed", x=rest)])
    where = parts or say("the data cannot say in which phase")
    return [*machine, sentence(key, s=steps.value, total=steps.total, whose=whose, e=steps.expected, parts=where)]


def _whole_run(entry):
    """What is proved to make a whole run longer or shorter, besides the training."""
    clauses = _clauses(entry, "run")
    return [say("Not counted in the speed-up: {parts}.", parts=clauses)] if clauses else []


def _clauses(entry, account):
    return join(", ", [tell(cause) for cause in entry.causes if cause.of == account])


def _costs(entry):
    """What a method's parts tell apart."""
    costs, ranks, sentences = entry.costs, len(entry.row.results[0].devices), []
    if costs.wrapper:
        sentences.append(
            sentence("wrapper", name=method_of(entry.row.configuration.method).called, ratio=longer(costs.wrapper))
        )
    if costs.contention:
        sentences.append(sentence("contention", n=ranks, ratio=costs.contention, x=1 / ranks))
    if costs.exchange:
        sentences.append(sentence("communication", ratio=longer(costs.exchange)))
    return sentences


def _memory(analysis, entry):
    """What a method needs of memory, where that is much more or much less than the baseline needs."""
    if not entry.much_memory:
        return []
    own, baseline = entry.summary.memory, entry.standing.baseline
    parts = [*own.parts.items(), ("the rest", own.rest)] if own.parts else []
    *sizes, rest = [say("{part} {size}", part=name, size=mebibytes(size)) for name, size in parts] or [""]
    held = say(": {parts} MiB", parts=join(", ", [*sizes, rest])) if rest else ""
    peaks = {"x": mebibytes(own.peak), "y": mebibytes(analysis.of(baseline).summary.memory.peak)}
    key = "more memory" if entry.memory_ratio > 1 else "less memory"
    return [sentence(key, **peaks, p=abs(entry.memory_ratio - 1), base=baseline.label, parts=held)]


# ---- the whole


def sweep_sentences(analysis: Analysis) -> list[str]:
    """Return a sentence for every sweep and method."""
    return [_sweep(analysis, sweep) for sweep in analysis.sweeps if sweep.name != "model"]


def _sweep(analysis: Analysis, sweep: Sweep) -> str:
    first = sweep.rows[0]
    method = say("{name}{values}", name=first.row.configuration.method, values=first.row.values(without=sweep.name))
    fastest = fastest_value(analysis, sweep)
    words = sentence("sweep", what=SWEEPS[sweep.name].lower(), method=method, fastest=fastest)
    return join(" ", [words, *_where_it_pays(sweep)])


def _where_it_pays(sweep):
    """At which batch, or number of processes, a method is proved to be faster than its baselines."""
    compared = [entry for entry in sweep.rows if entry.rivals_baseline]
    if sweep.name not in ("batch_size", "nproc") or len(compared) < len(sweep.rows):
        return []
    pays = [entry.standing.speed_up.words == FASTER for entry in compared]
    values = [str(sweep.value(entry)) for entry, faster in zip(compared, pays, strict=True) if faster]
    if all(pays):
        return [say("It is proved to be faster than its baseline at each of them.")]
    if not any(pays):
        return [say("It is proved to be faster than its baseline at none of them.")]
    if all(pays[pays.index(True) :]):
        return [say("It is proved to be faster than its baseline from {value} on.", value=values[0])]
    return [say("It is proved to be faster than its baseline at {values} alone.", values=join(", ", values))]


def tell_guesses(analysis: Analysis) -> list[str]:
    """Return what was guessed with --predict, beside what was measured."""
    guesses = [text.partition("=")[::2] for text in analysis.report.settings.get("predict") or ()]
    return [
        sentence("guess", row=entry.label, x=guess, found=_beside(float(guess), entry.standing.speed_up))
        for method, guess in guesses
        for entry in analysis.rows
        if entry.row.configuration.method == method and not entry.is_baseline
    ]


def _beside(guess, speed_up):
    if not speed_up:
        return say("it has no speed-up")
    if speed_up.disturbed or speed_up.low is None:
        return say("measured {ratio}, not proved", ratio=speed_up)
    inside = speed_up.low <= guess <= speed_up.high
    return sentence("right guess" if inside else "wrong guess", ratio=speed_up)


def resolution(analysis: Analysis) -> list[str]:
    """Return in a sentence how small a difference can be found on this machine, if the runs tell it."""
    twins: list[str] = [
        say("Two equal rows, “{row}” and the same again: {words}.", row=pair.row.label, words=_twins_stand(pair.ratio))
        for pair in analysis.pairs[TWIN]
    ]
    noise = analysis.resolution
    if not noise:
        return twins
    shares: list[str] = []
    for blocks, share in noise.differences.items():
        template = "{blocks} {x}" if shares else "{blocks} detect a difference of {x}"
        shares.append(say(template, x=percent(share), blocks=count(blocks, "block")))
    return [sentence("resolution", x=percent(noise.deviation), shares=join(", ", shares)), *twins]


def _twins_stand(ratio: Ratio) -> str:
    """How one of two equal rows stands beside the other."""
    if ratio.low is None:
        return say("{ratio} times as fast", ratio=ratio)
    words = ratio.words
    if not ratio.disturbed:
        words = say("DIFFERENT, though equal" if told_apart(ratio) else "no significant difference")
    return say("{ratio} times as fast, {words}", ratio=ratio, words=words)


def told_apart(ratio: Ratio) -> bool:
    """Whether a ratio of two equal rows claims a difference that cannot be there."""
    return not ratio.disturbed and ratio.low is not None and not ratio.low <= 1 <= ratio.high


def tell_proofs(analysis: Analysis, proofs: Sequence[Proof]) -> list[str]:
    """Return the result of every remedy, or why there is none although --prove asked for them."""
    if proofs or not analysis.report.settings.get("prove") or find_remedies(analysis):
        return [tell_proof(proof) for proof in proofs]
    if any(row.disturbed for row in analysis.report.rows):
        return [say("Nothing was proved: the comparison was disturbed.")]
    return [say("Nothing was proved: no row has a cause that can be taken away.")]


def tell_proof(proof: Proof) -> str:
    """Return the measured gain of removing a row's largest cause, beside the predicted one."""
    remedy, measured, outcome = proof.remedy, proof.measured, proof.outcome
    found = say("not measured undisturbed")
    if measured:
        values = {"x": measured, "y": remedy.predicted, "phase": remedy.phase}
        words = sentence(f"outcome {outcome}", sham=proof.sham, moved=_moved(proof))
        found = sentence("phase shorter" if measured.value > 0 else "phase longer", **values, words=words)
    return sentence("remedy", row=remedy.label, cause=remedy.cause, change=named(remedy.change), found=found)


def _moved(proof):
    return join(", ", [say("{part} {x:+.1f} ms", part=part.name, x=-part.value) for part in proof.moved])
