"""The comparison in words: one paragraph per row, every sentence with the number behind it, and what to use here."""

from collections.abc import Sequence

from common.errors import OUT_OF_MEMORY
from common.words import percent
from comparison.judge.analysis import Analysis, Sweep
from comparison.judge.decision import Decision
from comparison.judge.fairness import NOT_SHOWN
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, TO_TARGET
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
    sentence,
    several_baselines,
    tell,
    time_asked,
    within,
)
from comparison.words import count, join, named, say

REST = 0.1  # of a step's difference: what is in no part that is proved, and worth a word
CLAIM_TEMPLATES = {
    FASTER: "{fast}; {time}.",
    SLOWER: "slower, {fast}; {time}.",
    EQUAL: "practically as fast, {fast}; {time}.",
    UNDECIDED: "{fast}: it may be faster or slower; {time}.",
    TOO_FEW: "{fast}, not proved by so few runs; {time}.",
}


def verdict(analysis: Analysis) -> list[str]:
    """Return a paragraph for every row that there is something to say of, one for all simulated rows, one per sweep and
    method, and last what to use on this machine."""
    paragraphs = [(entry.label, _paragraph(analysis, entry)) for entry in analysis.rows]
    rows = [say("{row}: {words}", row=label, words=words) for label, words in paragraphs if words]
    return [*rows, *_simulated(analysis), *sweep_sentences(analysis), *recommendations(analysis)]


def answers(analysis: Analysis, proofs: Sequence[Proof] = ()) -> list[str]:
    """Return what is said below the table: what was asked for by a flag of its own, and where time goes."""
    costs = [(entry.label, _costs(entry)) for entry in analysis.done]
    return [
        *_maths(analysis.report),
        *_largest_batches(analysis),
        *(say("{row}: {words}", row=label, words=join(" ", words)) for label, words in costs if words),
        *sweep_sentences(analysis),
        *tell_proofs(analysis, proofs),
        *tell_guesses(analysis),
        *_step_of_script(analysis),
        *where_time_goes(analysis),
    ]


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


def _maths(report):
    """In how many rows the weights are one device's, if that was asked; who is too far says so in the table."""
    checks = report.equivalence.values()
    same = [check.difference for check in checks if check.status == "ok" and check.difference is not None]
    if not same:
        return []
    template = "Same weights in every row: after 20 steps none differs from one device's by more than {x:.1e}."
    if len(same) < len(report.rows):
        template = (
            "Same weights in {n} of {m} rows: after 20 steps none differs from one device's by more than {x:.1e}."
        )
    return [say(template, x=max(same), n=len(same), m=len(report.rows))]


def _largest_batches(analysis):
    """The largest batch of every row, if that was asked."""
    rows = [
        say("“{row}” {n:,}", row=entry.label, n=entry.row.configuration.planned.batch_size)
        for entry in analysis.done
        if trials_of(entry.row.configuration, analysis.report.trials)
    ]
    return [say("Largest batch that fits: {rows}.", rows=join(", ", rows))] if rows else []


def _simulated(analysis):
    rows = [entry.label for entry in analysis.rows if entry.row.simulated]
    words = say("Simulated on one device, which says nothing about the method's speed: {rows}.", rows=quoted(rows))
    return [words] if rows else []


# ---- what to use


def recommendations(analysis: Analysis) -> list[str]:
    """Return what to use here, for each model and batch."""
    sentences: list[str] = []
    for decision in analysis.decisions:
        if len(analysis.rows) == 1 and analysis.report.only_scripts:
            continue
        if decision.kind != "not measured" or not (analysis.sweeps or analysis.pairs[BEFORE]):
            words = say("Recommendation: {words}", words=_recommend(analysis, decision))
            where = decision.trained
            sentences.append(say("For {trained}: {words}", trained=where, words=words) if where else words)
    return sentences


def _recommend(analysis: Analysis, decision: Decision) -> str:
    kind = decision.kind
    if kind == "not measured":
        return _unequal(analysis) or say("none: no other row was measured that trains the same.")
    if kind == "disturbed":
        return say("none. The comparison was disturbed.")
    if kind == "all cores":
        return sentence(
            "no all-cores row", n=analysis.report.environment["cores"], methods=join(" or ", all_cores_methods())
        )
    if kind == "own batches":
        return sentence("own batches")
    if kind == "none sound":
        return say("none: no row may be used: {rows}.", rows=_reasons(analysis, decision, decision.out))
    if kind == "few runs":
        return sentence("few runs", row=decision.best.label, time=_wall_time(analysis, decision, decision.best))
    best, time = decision.best, _wall_time(analysis, decision, decision.best)
    words = say("stay with “{row}”, {time}" if best.is_baseline else "use “{row}”, {time}", row=best.label, time=time)
    answer = [say("{words}: {beside}.", words=words, beside=_beside_best(decision))]
    if decision.tied:
        tied = quoted(entry.label for entry in decision.tied)
        answer.append(say("Statistically tied with it: {rows}.", rows=tied))
    if best is not decision.rows[0]:
        answer.append(say("It is the simplest of the rows that are tied for the fastest."))
    if decision.later:
        answer.append(say("From {n} epochs on, “{row}” is faster.", n=decision.pays_from, row=decision.later.label))
    faster = [name for name in decision.out if decision.ratios[name].value < 1]
    if faster:
        answer.append(say("Faster, but not to be used: {rows}.", rows=_reasons(analysis, decision, faster)))
    if any(decision.out[name].startswith(NOT_SHOWN) for name in faster):
        answer.append(say("More --repeats, or --check-maths, can show that."))
    if missing := [entry.label for entry in analysis.rows if entry.row.simulated or not entry.row.results]:
        answer.append(say("Not measured here: {rows}.", rows=quoted(missing)))
    return join(" ", answer)


def _reasons(analysis, decision, names):
    labels = {entry.name: entry.label for entry in analysis.rows}
    return join("; ", [say("“{row}”, {why}", row=labels[name], why=decision.out[name]) for name in names])


def _wall_time(analysis, decision, entry):
    """By which time it was decided, and what a row takes, where that was measured whole."""
    kind, seconds = decision.wall_time.kind, decision.wall_time.means[entry.name]
    steps = analysis.report.settings["max_steps"]
    if kind == PER_SAMPLES:
        return say("judged by the time per sample")
    if kind == PER_EPOCH:
        return sentence("by a cut epoch", steps=count(steps, "step")) if steps else sentence("by an epoch")
    if kind == TO_TARGET:
        return sentence("by the time to target", s=seconds, n=100 * analysis.report.settings["target_accuracy"])
    return sentence("by a whole run", s=seconds, epochs=count(analysis.report.settings["epochs"], "epoch"))


def _beside_best(decision):
    """How many times as long as the row to use its baseline takes; of a baseline, the next of the others."""
    best = decision.best
    others = [entry for entry in decision.rows if entry is not best]
    baseline = next((entry for entry in others if entry.row is best.standing.baseline), None)
    other = baseline or next(iter(others), None)
    if not other:
        return say("no other row may be used")
    ratio = decision.ratios[other.name]
    return say("“{row}” takes {x:.2f} times as long{i}", row=other.label, x=ratio.value, i=within(ratio))


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
    rows = [
        entry
        for entry in analysis.rows
        if entry.rivals_baseline and not entry.row.all_cores and not entry.row.disturbed and entry.accounts.steps
    ]
    best = max(rows, key=lambda entry: entry.standing.speed_up.value, default=None)
    return [say("{row}: {words}", row=best.label, words=words) for words in _mean_step(analysis, best)] if best else []


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
    """Return what came of a batch that was tried."""
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
    first, *others = sweep.rows
    ratios = [
        say("{value}: {ratio}", value=sweep.value(entry), ratio=longer(ratio))
        for entry, ratio in zip(others, sweep.ratios, strict=True)
    ]
    method = say("{name}{values}", name=first.row.configuration.method, values=first.row.values(without=sweep.name))
    fastest = fastest_value(analysis, sweep)
    what, time = SWEEPS[sweep.name].lower(), analysis.report.asked.capital
    words = sentence("sweep", what=what, method=method, fastest=fastest)
    multiples = sentence("multiples", time=time, value=sweep.value(first), ratios=join(", ", ratios))
    return join(" ", [words, multiples, *_where_it_pays(sweep)])


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
    shares: str = ""
    for blocks, share in noise.differences.items():
        found = say("above about {x} in {blocks}", x=percent(share), blocks=count(blocks, "block"))
        shares = say("{one} and {other}", one=shares, other=found) if shares else found
    return [sentence("resolution", x=percent(noise.deviation), shares=shares), *twins]


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
    """Return what came of every remedy, or why there is none although --prove asked for them."""
    if proofs or not analysis.report.settings.get("prove") or find_remedies(analysis):
        return [tell_proof(proof) for proof in proofs]
    if any(row.disturbed for row in analysis.report.rows):
        return [say("Nothing was proved: the comparison was disturbed.")]
    return [say("Nothing was proved: no row has a cause that can be taken away.")]


def tell_proof(proof: Proof) -> str:
    """Return what came of taking a row's largest cause away, beside what it was predicted to gain."""
    remedy, measured, outcome = proof.remedy, proof.measured, proof.outcome
    found = say("not measured undisturbed")
    if measured:
        values = {"x": measured, "y": remedy.predicted, "phase": remedy.phase}
        words = sentence(f"outcome {outcome}", sham=proof.sham, moved=_moved(proof))
        found = sentence("phase shorter" if measured.value > 0 else "phase longer", **values, words=words)
    return sentence("remedy", row=remedy.label, cause=remedy.cause, change=named(remedy.change), found=found)


def _moved(proof):
    return join(", ", [say("{part} {x:+.1f} ms", part=part.name, x=-part.value) for part in proof.moved])
