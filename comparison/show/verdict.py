"""The result in words: a paragraph for each row, and the findings."""

from collections.abc import Sequence

from comparison.judge.analysis import Analysis, Sweep
from comparison.judge.measures import WHOLE_RUN
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import EQUAL, FASTER, SLOWER, TOO_FEW, UNDECIDED
from comparison.judge.step_causes import with_loader_workers
from comparison.judge.summaries import usual_batch
from comparison.methods import METHODS, PROJECTED, method_of
from comparison.rows import SWEEPS
from comparison.show.advice import fastest_parallel, recommendations
from comparison.show.sentences import (
    as_fast,
    fastest_value,
    finding_sentence,
    in_seconds,
    instead_of,
    longer,
    milliseconds,
    quoted,
    sentence,
    series_name,
    several_baselines,
    signed,
    time_asked,
)
from comparison.words import count, join, named, say

MOST_PARTS = 2  # of a step, on the screen
REST = 0.1  # share of a step's difference: a larger remainder without a proved cause is mentioned
CLAIM_TEMPLATES = {
    FASTER: "{fast}; {time}.",
    SLOWER: "slower, {fast}; {time}.",
    EQUAL: "practically equal, {fast}; {time}.",
    UNDECIDED: "no significant difference, {fast}; {time}.",
    TOO_FEW: "{fast}, but too few runs for an interval; {time}.",
}


def verdict(analysis: Analysis) -> list[str]:
    """Return a paragraph for each row, a sentence for each sweep, and the recommendations."""
    paragraphs = [(entry.label, _paragraph(analysis, entry)) for entry in analysis.rows]
    rows = [say("{row}: {words}", row=label, words=words) for label, words in paragraphs if words]
    return [*rows, *sweep_sentences(analysis), *recommendations(analysis)]


def answers(analysis: Analysis, proofs: Sequence[Proof] = ()) -> list[str]:
    """Return the main findings: where time goes, answers to flags, accuracies, and the size of a device."""
    costs = [(entry.label, _costs(entry)) for entry in analysis.done]
    return [
        *_step_of_script(analysis),
        *tell_proofs(analysis, proofs),
        *(say("{row}: {words}", row=label, words=join(" ", words)) for label, words in costs if words),
        *where_time_goes(analysis),
        *sweep_sentences(analysis),
        *_projected(analysis),
        *tell_guesses(analysis),
        *_maths(analysis),
        *_accuracies(analysis),
        *_one_learning_rate(analysis),
        *_device(analysis),
    ]


def _projected(analysis):
    projection, settings = analysis.projection, analysis.report.settings
    points = [point for point in projection.points if point.cluster.total > 1 and not point.measured_seconds]
    if not points:
        why = projection.assumptions if settings["project"] and not projection.points else ()
        return list(map(finding_sentence, why))
    template = "{x:.2f} [{low:.2f}, {high:.2f}] on {cluster}"
    speed_ups = [say(template, x=at.speed_up, low=at.low, high=at.high, cluster=at.cluster.words) for at in points]
    name, points = METHODS[PROJECTED].called, join(", ", speed_ups)
    found = [say("Speed-up of {name} ({label}): {points}.", name=name, label=LABEL, points=points)]
    if settings["link_gbps"]:
        found.append(sentence("network", g=settings["link_gbps"], x=settings["link_ms"] or 0.0))
    return found


def _accuracies(analysis):
    means = sorted(100 * entry.summary.accuracy for entry in analysis.done if entry.summary.accuracies)
    ends = dict.fromkeys(f"{mean:.1f}" for mean in (means[:1] + means[-1:]))
    return [say("Test accuracy of all rows: {x}%.", x="–".join(ends))] if len(means) > 1 else []


def _device(analysis):
    report = analysis.report
    if report.first.device == "gpu" or report.only_scripts:
        return []
    return [say("Device: {n} of {cores}.", n=report.first.threads, cores=count(report.environment["cores"], "core"))]


def _one_learning_rate(analysis):
    """A hint if several batch sizes were trained with the same learning rate."""
    batches = {entry.row.configuration.planned.batch_size for entry in analysis.done if entry.row.learns}
    if len(batches) < 2 or analysis.report.settings.get("lr_scaling", "none") != "none":
        return []
    return [sentence("one learning rate")]


def _step_of_script(analysis):
    """The phases of a step of the user's first script."""
    if not (analysis.report.only_scripts and analysis.done):
        return []
    entry = analysis.done[0]
    numbers, batch = entry.summary, usual_batch(entry.row.results)
    parts = join(", ", [say("{part} {x:.1f}", part=name, x=value) for name, value in numbers.phases.known.items()])
    sentences = [sentence("step of a script", row=entry.label, n=batch, x=numbers.step_milliseconds, parts=parts)]
    if loading := with_loader_workers(entry.row, numbers, int(analysis.report.environment["cores"])):
        sentences.append(sentence("loader alone", row=entry.label, alone=loading[0], step=loading[1]))
    return sentences


def _maths(analysis):
    """How many rows passed --check-maths. The table names those that failed."""
    others = [entry.name for entry in analysis.rows if not entry.is_baseline]
    checked = [check for name, check in analysis.report.equivalence.items() if name in others]
    same = [check.difference for check in checked if check.status == "ok"]
    template = "Weights after 20 steps equal one device's within {x:.1e} in {n} of {rows}."
    return [say(template, x=max(same), n=len(same), rows=count(len(checked), "other row"))] if same else []


# ---- rows


def where_time_goes(analysis: Analysis) -> list[str]:
    """Return where the time of the fastest parallel row goes whose step differs significantly from ideal scaling."""
    best = next((entry for entry in fastest_parallel(analysis) if entry.accounts.steps.total.proved), None)
    if not best:
        return []
    step = _mean_step(analysis, best, MOST_PARTS)
    sentences: list[str] = [say("{row}: {words}", row=best.label, words=words.small) for words in step]
    if (rest := _clauses(best, "run")) and analysis.decisions[0].wall_time.kind == WHOLE_RUN:
        sentences.append(say("{row}: outside the training, {parts}.", row=best.label, parts=rest))
    return sentences


def _paragraph(analysis, entry):
    row, standing = entry.row, entry.standing
    if row.configuration.skip:
        return say("skipped: {why}.", why=named(row.configuration.skip))
    failed = [say("{trouble}: {why}.", trouble=row.trouble, why=row.troubles[0].reason)] if row.troubles else []
    if not row.results:
        return join(" ", failed or [say("not run.")])
    if row.disturbed or (standing.baseline and standing.baseline.disturbed):  # a single warning says so
        return join(" ", failed)
    others = [finding_sentence(cause) for cause in entry.causes if not cause.of]
    step = [*_how_fast(analysis, entry), *_mean_step(analysis, entry), *others]
    rest = _clauses(entry, "run")  # proved differences outside the training
    run = [say("Not counted in the speed-up: {parts}.", parts=rest)] if rest else []
    return join(" ", [*failed, *step, *run, *_costs(entry)])


def _how_fast(analysis, entry):
    row, numbers, standing = entry.row, entry.summary, entry.standing
    own = time_asked(analysis, entry)
    if not row.configuration.is_script:  # whose slices may have any number of steps
        low, high, runs = numbers.fastest_epoch, numbers.slowest_epoch, count(numbers.runs, "run")
        own = sentence("own time", time=own, low=in_seconds(low), high=in_seconds(high), runs=runs)
    if entry.is_baseline:
        return [say("the baseline, {time}.", time=own)]
    if row.simulated:
        return []
    if standing.speed_up is None:
        return [say("{time}; no speed-up, {why}.", time=own, why=standing.reason)]
    speed_up, baseline = standing.speed_up, analysis.of(standing.baseline)
    fast = as_fast(speed_up, baseline.label if several_baselines(analysis) else "")
    time = instead_of(analysis, entry, baseline)
    return [say(CLAIM_TEMPLATES[speed_up.words], fast=fast, time=time), *_scaling_efficiency(entry)]


def _scaling_efficiency(entry):
    row = entry.row
    units = count(len(row.results[0].devices), "device")
    if row.all_cores:
        units = count(row.results[0].threads_per_process, "core")
    if units.values["n"] == 1 or entry.standing.devices == 1:  # the baseline has as many threads
        return []
    return [say("Scaling efficiency {n:.0f}% on {units}.", n=100 * entry.standing.efficiency.value, units=units)]


def _mean_step(analysis, entry, most=None):
    """Causes in the machine, then the difference of a step from ideal scaling with at most the `most` largest parts."""
    machine = [finding_sentence(cause) for cause in entry.causes if cause.of == "machine"]
    steps = entry.accounts.steps
    if not steps:
        return machine
    total, parts = steps.total, _clauses(entry, "step", most and (1 if entry.unproved else most))
    whose = say(" from {base}", base=quoted([entry.standing.baseline.label])) if several_baselines(analysis) else ""
    key = "longer step" if total.value > 0 else "shorter step"
    images = {row.results[0].global_batch_size for row in (entry.row, entry.standing.baseline)}
    key += " of as many devices" if entry.standing.devices == 1 and len(images) == 1 else ""
    rest = total.value - sum(cause.values["x"].value for cause in entry.causes if cause.of == "step")
    if not total.proved:
        parts = parts or (TOO_FEW if total.low is None else say("not significant"))
    elif abs(rest) >= REST * abs(total.value):
        unknown = say("the remaining {x} ms cannot be attributed", x=signed(rest))
        parts = join(", ", [parts, unknown]) if parts else say("the measurements cannot say in which phase")
        if entry.unproved:
            parts = say("{parts} (perhaps {largest})", parts=parts, largest=finding_sentence(entry.unproved))
    whole, ideal = milliseconds(steps.value), milliseconds(steps.expected)
    return [*machine, sentence(key, s=whole, total=total, whose=whose, e=ideal, parts=parts)]


def _clauses(entry, account, most=None):
    """The causes found in a row's step or run, at most the `most` largest."""
    causes, more = [cause for cause in entry.causes if cause.of == account], []
    if most and len(causes) > most:
        causes = sorted(causes, key=lambda cause: -abs(cause.values["x"].value))[:most]
        more = [say("smaller parts")]
    return join(", ", [*map(finding_sentence, causes), *more])


def _costs(entry):
    """The costs of the wrapper, of contention and of communication, where simpler rows show them."""
    costs, ranks, sentences = entry.costs.undisturbed, len(entry.row.results[0].devices), []
    if costs.wrapper:
        name = method_of(entry.row.configuration.method).called
        sentences.append(sentence("wrapper", name=name, ratio=longer(costs.wrapper)))
    if costs.contention:
        sentences.append(sentence("contention", n=ranks, ratio=costs.contention, x=1 / ranks))
    if costs.exchange:
        sentences.append(sentence("communication", ratio=longer(costs.exchange)))
    return sentences


# ---- sweeps, guesses and proofs


def sweep_sentences(analysis: Analysis) -> list[str]:
    """Return a paragraph for each sweep and method."""
    return [_sweep(analysis, sweep) for sweep in analysis.sweeps if sweep.name != "model"]


def _sweep(analysis: Analysis, sweep: Sweep) -> str:
    row, fastest = series_name((entry.row for entry in sweep.rows), sweep.name), fastest_value(analysis, sweep)
    words = sentence("sweep", what=SWEEPS[sweep.name].lower(), row=row, fastest=fastest)
    waits = [
        say("{row}: {words}", row=entry.label, words=finding_sentence(cause).small)
        for entry in sweep.rows
        for cause in entry.causes
        if sweep.name == "num_workers" and cause.kind == "waiting for data"
    ]
    return join(" ", [words, *waits[:1], *_values_proved_faster(sweep)])


def _values_proved_faster(sweep):
    """The batch sizes or numbers of processes at which a method is proved faster than its baselines."""
    known = [entry for entry in sweep.rows if entry.rivals_baseline and entry.standing.speed_up.interval]
    if sweep.name not in ("batch_size", "nproc") or len(known) < len(sweep.rows):
        return []
    values = [str(sweep.value(entry)) for entry in known if entry.standing.speed_up.words == FASTER]
    at = join(", ", values) if values else say("none of them")
    return [say("Significantly faster than its baseline at {values}.", values=at)]


def tell_guesses(analysis: Analysis) -> list[str]:
    """Return each guess made with --predict, compared with the measurement."""
    guesses = [text.partition("=")[::2] for text in analysis.report.settings.get("predict") or ()]
    return [
        sentence("guess", row=entry.label, x=guess, found=_guess_result(float(guess), entry.standing.speed_up))
        for method, guess in guesses
        for entry in analysis.rows
        if entry.row.configuration.method == method and not entry.is_baseline
    ]


def _guess_result(guess, speed_up):
    if not speed_up:
        return say("it has no speed-up")
    if speed_up.disturbed:
        return say("measured {x:.2f}, but disturbed", x=speed_up.value)
    if speed_up.low is None:
        return say("measured {ratio}, without an interval", ratio=speed_up)
    return sentence("right guess" if speed_up.low <= guess <= speed_up.high else "wrong guess", ratio=speed_up)


def tell_proofs(analysis: Analysis, proofs: Sequence[Proof]) -> list[str]:
    """Return the result of every remedy, or why --prove had none to try."""
    if proofs or not analysis.report.settings.get("prove") or find_remedies(analysis):
        return [tell_proof(proof) for proof in proofs]
    if any(row.disturbed for row in analysis.report.rows):
        return [say("Nothing was proved: the comparison was disturbed.")]
    return [say("Nothing was proved: no row has a cause that --prove can remove.")]


def tell_proof(proof: Proof) -> str:
    """Return the measured and the predicted gain of removing a row's largest cause."""
    remedy, measured, outcome = proof.remedy, proof.measured, proof.outcome
    found = say("not measured undisturbed")
    if measured:
        values = {"x": measured, "y": remedy.predicted, "phase": remedy.phase}
        shifted = [say("{part} {x} ms", part=part.name, x=signed(-part.value)) for part in proof.moved]
        sham = signed(-proof.sham.value) if proof.sham else ""
        words = sentence(f"outcome {outcome}", sham=sham, moved=join(", ", shifted))
        found = sentence("phase shorter" if measured.value > 0 else "phase longer", **values, words=words)
    return sentence("remedy", row=remedy.label, cause=remedy.cause, change=named(remedy.change), found=found)
