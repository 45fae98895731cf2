"""The comparison in words: a paragraph for each row, every sentence with the number behind it, and the findings."""

from collections.abc import Sequence

from comparison.judge.analysis import Analysis, Sweep
from comparison.judge.measures import WHOLE_RUN
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import EQUAL, FASTER, SLOWER, TOO_FEW, UNDECIDED
from comparison.judge.step_causes import with_loader_workers
from comparison.methods import method_of, projected_method
from comparison.rows import SWEEPS
from comparison.show.advice import fastest_parallel, recommendations
from comparison.show.sentences import (
    as_fast,
    fastest_value,
    instead_of,
    longer,
    quoted,
    sentence,
    series_name,
    several_baselines,
    tell,
    time_asked,
)
from comparison.words import count, join, named, say

TOLD = 2  # parts of a step, where there is not much room
REST = 0.1  # of a step's difference: what is in no part that is proved, and worth a word
CLAIM_TEMPLATES = {
    FASTER: "{fast}; {time}.",
    SLOWER: "slower, {fast}; {time}.",
    EQUAL: "practically equal, {fast}; {time}.",
    UNDECIDED: "no significant difference, {fast}; {time}.",
    TOO_FEW: "{fast}, but too few runs for an interval; {time}.",
}


def verdict(analysis: Analysis) -> list[str]:
    """Return a paragraph for every row that there is something to say of, one per sweep and method, and last what to
    use on this machine."""
    paragraphs = [(entry.label, _paragraph(analysis, entry)) for entry in analysis.rows]
    rows = [say("{row}: {words}", row=label, words=words) for label, words in paragraphs if words]
    return [*rows, *sweep_sentences(analysis), *recommendations(analysis)]


def answers(analysis: Analysis, proofs: Sequence[Proof] = ()) -> list[str]:
    """Return where steps go, what was asked for by a flag of its own, what every row learned, and what a device is."""
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


def details(analysis: Analysis) -> list[str]:
    """Return where a projection stops."""
    return list(map(tell, analysis.projection.stops if analysis.report.settings["project"] else ()))


def _projected(analysis):
    """How many times as fast as one device more of them would be, if that was asked."""
    found = analysis.projection.points
    points = [point for point in found if point.speed_up and point.devices > 1 and not point.measured_seconds]
    if not points:
        return list(map(tell, analysis.projection.assumptions if analysis.report.settings["project"] else ()))
    told = [say("{x:.2f} on {devices}", x=point.speed_up, devices=count(point.devices, "device")) for point in points]
    name = projected_method().called
    return [say("Speed-up of {name} ({label}): {points}.", name=name, label=LABEL, points=join(", ", told))]


def _accuracies(analysis):
    means = sorted(100 * entry.summary.accuracy for entry in analysis.done if entry.summary.accuracies)
    ends = dict.fromkeys(f"{mean:.1f}" for mean in (means[:1] + means[-1:]))
    return [say("Test accuracy of all rows: {x}%.", x="–".join(ends))] if len(means) > 1 else []


def _device(analysis):
    """Which part of a CPU a device is."""
    report = analysis.report
    if report.first.device == "gpu" or report.only_scripts:
        return []
    return [say("Device: {n} of {cores}.", n=report.device_threads, cores=count(report.environment["cores"], "core"))]


def _one_learning_rate(analysis):
    """What to type where batches of several sizes were trained on with one learning rate."""
    batches = {entry.row.configuration.planned.batch_size for entry in analysis.done if entry.row.learns}
    if len(batches) < 2 or analysis.report.settings.get("lr_scaling", "none") != "none":
        return []
    return [sentence("one learning rate")]


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
    checks = [check for name in others if (check := analysis.report.equivalence.get(name))]
    checked = [check for check in checks if check.difference is not None]
    same = [check.difference for check in checked if check.status == "ok"]
    template = "Weights after 20 steps: {n} of {rows} match one device's, within {x:.1e}."
    return [say(template, x=max(same), n=len(same), rows=count(len(checked), "other row"))] if same else []


# ---- a row


def where_time_goes(analysis: Analysis) -> list[str]:
    """Return where a parallel row's step is above ideal scaling, the fastest's in which that is significant."""
    told: list[str] = []
    for best in [entry for entry in fastest_parallel(analysis) if entry.accounts.steps.total.proved][:1]:
        told += [say("{row}: {words}", row=best.label, words=words.small) for words in _mean_step(analysis, best, TOLD)]
        if (rest := _clauses(best, "run")) and analysis.decisions[0].wall_time.kind == WHOLE_RUN:
            told.append(say("{row}: outside the training, {parts}.", row=best.label, parts=rest))
    return told


def _paragraph(analysis, entry):
    row, standing = entry.row, entry.standing
    if row.configuration.skip:
        return say("skipped: {why}.", why=named(row.configuration.skip))
    broken = [say("{trouble}: {why}.", trouble=row.trouble, why=row.troubles[0].reason)] if row.troubles else []
    if not row.results:
        return join(" ", broken or [say("not run.")])
    if row.disturbed or (standing.baseline and standing.baseline.disturbed):  # which a warning says, once for all
        return join(" ", broken)
    others = [tell(cause) for cause in entry.causes if not cause.of]
    step = [*_how_fast(analysis, entry), *_mean_step(analysis, entry), *others]
    rest = _clauses(entry, "run")  # what is proved to make a whole run longer or shorter, besides the training
    run = [say("Not counted in the speed-up: {parts}.", parts=rest)] if rest else []
    return join(" ", [*broken, *step, *run, *_costs(entry)])


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
    row = entry.row
    units = count(len(row.results[0].devices), "device")
    if row.all_cores:
        units = count(row.results[0].threads_per_process, "core")
    if units.values["n"] == 1:
        return []
    return [say("Scaling efficiency {n:.0f}% on {units}.", n=100 * entry.standing.efficiency.value, units=units)]


def _mean_step(analysis, entry, most=None):
    """What the machine withholds; by how much a step differs from ideal scaling, and which parts of that are proved, so
    many at most, the largest."""
    steps, machine = entry.accounts.steps, [tell(cause) for cause in entry.causes if cause.of == "machine"]
    if not steps:
        return machine
    whose = ""
    if several_baselines(analysis):
        whose = say(" from {base}", base=quoted([entry.standing.baseline.label]))
    key, parts = "longer step" if steps.total.value > 0 else "shorter step", _clauses(entry, "step", most)
    key += " of as many devices" if entry.standing.devices == 1 else ""
    rest = steps.total.value - sum(cause.values["x"].value for cause in entry.causes if cause.of == "step")
    if parts and steps.total.proved and abs(rest) >= REST * abs(steps.total.value):
        parts = join(", ", [parts, say("the remaining {x:+.1f} ms cannot be attributed", x=rest)])
    unknown = say("the measurements cannot say in which phase") if steps.total.proved else say("not significant")
    return [
        *machine,
        sentence(key, s=steps.value, total=steps.total, whose=whose, e=steps.expected, parts=parts or unknown),
    ]


def _clauses(entry, account, most=None):
    """What is told of a row's step or run, so many parts of it at most, the largest."""
    causes = [cause for cause in entry.causes if cause.of == account]
    if not most or len(causes) <= most:
        return join(", ", map(tell, causes))
    largest = sorted(causes, key=lambda cause: -abs(cause.values["x"].value))[:most]
    return join(", ", [*map(tell, largest), say("smaller parts")])


def _costs(entry):
    """What a method's parts tell apart."""
    costs, ranks, sentences = entry.costs, len(entry.row.results[0].devices), []
    if costs.wrapper:
        name = method_of(entry.row.configuration.method).called
        sentences.append(sentence("wrapper", name=name, ratio=longer(costs.wrapper)))
    if costs.contention:
        sentences.append(sentence("contention", n=ranks, ratio=costs.contention, x=1 / ranks))
    if costs.exchange:
        sentences.append(sentence("communication", ratio=longer(costs.exchange)))
    return sentences


# ---- the whole


def sweep_sentences(analysis: Analysis) -> list[str]:
    """Return a sentence for every sweep and method."""
    return [_sweep(analysis, sweep) for sweep in analysis.sweeps if sweep.name != "model"]


def _sweep(analysis: Analysis, sweep: Sweep) -> str:
    row, fastest = series_name((entry.row for entry in sweep.rows), sweep.name), fastest_value(analysis, sweep)
    words = sentence("sweep", what=SWEEPS[sweep.name].lower(), row=row, fastest=fastest)
    waits = [
        say("{row}: {words}", row=entry.label, words=tell(cause).small)
        for entry in sweep.rows
        for cause in entry.causes
        if sweep.name == "num_workers" and cause.kind == "waiting for data"
    ]
    return join(" ", [words, *waits[:1], *_where_it_pays(sweep)])


def _where_it_pays(sweep):
    """At which batch, or number of processes, a method is proved to be faster than its baselines."""
    compared = [entry for entry in sweep.rows if entry.rivals_baseline]
    if sweep.name not in ("batch_size", "nproc") or len(compared) < len(sweep.rows):
        return []
    values = [str(sweep.value(entry)) for entry in compared if entry.standing.speed_up.words == FASTER]
    at = join(", ", values) if values else say("none of them")
    return [say("Significantly faster than its baseline at {values}.", values=at)]


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
        return say("measured {ratio}, without an interval", ratio=speed_up)
    inside = speed_up.low <= guess <= speed_up.high
    return sentence("right guess" if inside else "wrong guess", ratio=speed_up)


def tell_proofs(analysis: Analysis, proofs: Sequence[Proof]) -> list[str]:
    """Return the result of every remedy, or why there is none although --prove asked for them."""
    if proofs or not analysis.report.settings.get("prove") or find_remedies(analysis):
        return [tell_proof(proof) for proof in proofs]
    if any(row.disturbed for row in analysis.report.rows):
        return [say("Nothing was proved: the comparison was disturbed.")]
    return [say("Nothing was proved: no row has a cause that --prove can remove.")]


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
