"""The comparison in words: one paragraph per row, every sentence with the number behind it, and a recommendation."""

from collections.abc import Sequence

from common.errors import OUT_OF_MEMORY
from common.words import count, percent
from comparison.judge.analysis import Analysis
from comparison.judge.choice import Sweep
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import EQUAL, FASTER, SLOWER, TOO_FEW, UNDECIDED, Ratio
from comparison.methods import method_of
from comparison.plan.counterparts import TWIN
from comparison.rows import SWEEPS, Trial, trials_of
from comparison.show.phrases import as_fast, fastest_value, instead_of, longer, mebibytes, several_baselines, time_asked
from comparison.show.reasons import tell
from comparison.show.recommend import recommendations


def verdict(analysis: Analysis) -> list[str]:
    """Return a paragraph for every row that there is something to say of, one for all simulated rows, one per sweep and
    method, and last what to use on this machine."""
    paragraphs = [(entry.label, _paragraph(analysis, entry)) for entry in analysis.rows]
    rows = [f"{label}: {words}" for label, words in paragraphs if words]
    return [*rows, *_simulated(analysis), *sweep_sentences(analysis), *recommendations(analysis)]


def answers(analysis: Analysis, proofs: Sequence[Proof] = ()) -> list[str]:
    """Return what is said first: what was asked for by a flag of its own, then what to use, and where time goes."""
    return [
        *_maths(analysis.report),
        *_largest_batches(analysis),
        *(f"{entry.label}: {' '.join(costs)}" for entry in analysis.done if (costs := _costs(entry))),
        *sweep_sentences(analysis),
        *tell_proofs(analysis, proofs),
        *tell_guesses(analysis),
        *recommendations(analysis),
        *where_time_goes(analysis),
    ]


def _maths(report):
    """How far the rows' weights are from one device's, if that was asked; who is too far says so in the table."""
    differences = [check.difference for check in report.equivalence.values() if check.difference is not None]
    return (
        [f"After 20 steps no weight differs from one device's by more than {max(differences):.1e}."]
        if differences
        else []
    )


def _largest_batches(analysis):
    """The largest batch of every row, if that was asked."""
    rows = [
        f"“{entry.label}” {entry.row.configuration.planned.batch_size:,}"
        for entry in analysis.done
        if trials_of(entry.row.configuration, analysis.report.trials)
    ]
    return [f"Largest batch that fits: {', '.join(rows)}."] if rows else []


def _simulated(analysis):
    rows = [f"“{entry.label}”" for entry in analysis.rows if entry.row.simulated]
    return [f"Simulated on one device, which says nothing about the method's speed: {', '.join(rows)}."] if rows else []


def sweep_sentences(analysis: Analysis) -> list[str]:
    """Return a sentence for every sweep and method."""
    return [_sweep(analysis, sweep) for sweep in analysis.sweeps if sweep.name != "model"]


def tell_guesses(analysis: Analysis) -> list[str]:
    """Return what was guessed with --predict, beside what was measured."""
    sentences = []
    for text in analysis.report.settings.get("predict") or ():
        method, _, guess = text.partition("=")
        for entry in analysis.rows:
            speed_up = entry.standing.speed_up
            if entry.row.configuration.method == method and not entry.is_baseline:
                sentences.append(
                    f"“{entry.label}” was guessed to be {guess} times as fast as the baseline: "
                    + (_beside(float(guess), speed_up) if speed_up else "it has no speed-up")
                    + "."
                )
    return sentences


def _beside(guess, speed_up):
    if speed_up.disturbed or speed_up.low is None:
        return f"measured {speed_up}, which proves nothing"
    inside = speed_up.low <= guess <= speed_up.high
    return f"measured {speed_up}, {'in which the guess lies' if inside else 'and so it is not'}"


def where_time_goes(analysis: Analysis) -> list[str]:
    """Return where the fastest parallel row's step takes longer than an even share of the baseline's."""
    rows = [
        entry
        for entry in analysis.rows
        if entry.rivals_baseline and not entry.row.all_cores and not entry.row.disturbed and entry.accounts.steps
    ]
    best = max(rows, key=lambda entry: entry.standing.speed_up.value, default=None)
    return [f"{best.label}: {sentence}" for sentence in _mean_step(analysis, best)] if best else []


def _paragraph(analysis, entry):
    row, standing = entry.row, entry.standing
    if row.configuration.skip:
        return f"skipped: {row.configuration.skip}."
    broken = [f"{row.trouble}: {row.troubles[0].reason}."] if row.troubles else []
    broken += _largest_batch(analysis.report, row)
    if not row.results:
        return " ".join(broken or ["not run."])
    if row.disturbed or (standing.baseline and standing.baseline.disturbed):  # which a warning says, once for all
        return " ".join([*broken, *_memory(analysis, entry)])
    return " ".join(
        [
            *broken,
            *_how_fast(analysis, entry),
            *_mean_step(analysis, entry),
            *(tell(cause) for cause in entry.causes if not cause.of),
            *_whole_run(entry),
            *_costs(entry),
            *_memory(analysis, entry),
        ]
    )


def _how_fast(analysis, entry):
    row, numbers, standing = entry.row, entry.summary, entry.standing
    own = (
        f"{time_asked(analysis, entry)} ({numbers.fastest_epoch:.2f} to {numbers.slowest_epoch:.2f} in "
        f"{count(numbers.runs, 'run')})"
    )
    if entry.is_baseline:
        return [f"the baseline, {own}."]
    if row.simulated:
        return []
    if standing.speed_up is None:
        return [f"{own}; no speed-up, {standing.reason}."]
    speed_up, baseline = standing.speed_up, analysis.of(standing.baseline)
    times = as_fast(speed_up) + (f" as “{baseline.label}”" if several_baselines(analysis) else "")
    claims = {
        SLOWER: f"slower, {times}",
        EQUAL: f"practically as fast, {times}",
        UNDECIDED: f"{times}, so that it may be faster or slower",
        TOO_FEW: f"{times}, which so few runs do not prove",
    }
    return [f"{claims.get(speed_up.words, times)}; {instead_of(analysis, entry, baseline)}.", *_share(entry)]


def _share(entry):
    """What share a row gives of what its devices or cores could give at best; of one device there is none to give."""
    row, share = entry.row, entry.standing.efficiency
    units = len(row.results[0].devices)
    if row.all_cores:
        units = row.results[0].threads_per_process
    if units == 1:
        return []
    interval = "" if share.low is None else f" ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
    return [f"It gives {100 * share.value:.0f} % of {count(units, 'core' if row.all_cores else 'device')}{interval}."]


def resolution(analysis: Analysis) -> list[str]:
    """Return in a sentence how small a difference can be found on this machine, if the runs tell it."""
    twins = [
        f"Two equal rows, “{pair.row.label}” and the same again: {_twins_stand(pair.ratio)}."
        for pair in analysis.pairs[TWIN]
    ]
    noise = analysis.resolution
    if not noise:
        return twins
    shares = " and ".join(
        f"above about {percent(share)} in {count(blocks, 'block')}" for blocks, share in noise.differences.items()
    )
    return [
        f"This machine, this hour: the times of runs have a standard deviation of {percent(noise.deviation)}, "
        f"without what rows and blocks have in common; differences {shares} are found, in four of five cases.",
        *twins,
    ]


def _twins_stand(ratio: Ratio) -> str:
    """How one of two equal rows stands beside the other."""
    if ratio.low is None:
        return f"{ratio} times as fast"
    words = "TOLD APART, though equal" if told_apart(ratio) else ratio.words if ratio.disturbed else "not told apart"
    return f"{ratio} times as fast, {words}"


def told_apart(ratio: Ratio) -> bool:
    """Whether a ratio of two equal rows claims a difference that cannot be there."""
    return not ratio.disturbed and ratio.low is not None and not ratio.low <= 1 <= ratio.high


def tell_proofs(analysis: Analysis, proofs: Sequence[Proof]) -> list[str]:
    """Return what came of every remedy, or why there is none although --prove asked for them."""
    if proofs or not analysis.report.settings.get("prove") or find_remedies(analysis):
        return [tell_proof(proof) for proof in proofs]
    if any(row.disturbed for row in analysis.report.rows):
        return ["Nothing was proved: the comparison was disturbed."]
    return ["Nothing was proved: no row has a cause that can be taken away."]


def tell_proof(proof: Proof) -> str:
    """Return what came of taking a row's largest cause away, beside what it was predicted to gain."""
    remedy, measured = proof.remedy, proof.measured
    tried = f"{remedy.label}, without “{remedy.cause}” ({remedy.change})"
    if measured is None:
        return f"{tried}: not measured undisturbed."
    shorter = f"{measured} ms {'shorter' if measured.value > 0 else 'longer'}"
    if measured.low is None:
        words = "one block proves nothing"
    elif measured.low <= 0:
        words = "not proved"
    elif remedy.predicted.low is not None and (
        measured.high < remedy.predicted.low or measured.low > remedy.predicted.high
    ):
        words = f"proved, and {'less' if measured.value < remedy.predicted.value else 'more'} than predicted"
    else:
        words = "proved"
    return f"{tried}: a step is {shorter}, predicted were {remedy.predicted} ms: {words}."


def _largest_batch(report, row):
    """With which batch a row trained, and why with no larger one."""
    own, planned = trials_of(row.configuration, report.trials), row.configuration.planned
    if not own:
        return []
    results = {trial.batch_size: trial for trial in own}
    if not results[planned.batch_size].fits:
        return [f"It could not be tried {planned.batch}."]
    more = 2 * planned.batch_size
    why = f"with {more:,}: {tell_trial(results[more])}" if more in results else f"there are fewer than {more:,} images"
    return [f"It trains {planned.batch}, which {tell_trial(results[planned.batch_size])}; {why}."]


def tell_trial(trial: Trial) -> str:
    """Return what came of a batch that was tried."""
    if trial.fits:
        return f"fits, with {mebibytes(trial.peak_bytes)} MiB at its peak"
    return trial.status if trial.status == OUT_OF_MEMORY else f"{trial.status}, {trial.reason}"


def _mean_step(analysis, entry):
    """By how much a step differs from an even share of the baseline's work, and which parts of that are proved."""
    steps = entry.accounts.steps
    if not steps:
        return []
    more = "more" if steps.total.value > 0 else "less"
    whose = f"“{entry.standing.baseline.label}”" if several_baselines(analysis) else "the baseline's"
    sentence = f"A step takes {steps.value:.1f} ms, {steps.total} ms {more} than an even share of {whose}"
    return [f"{sentence} ({steps.expected:.1f} ms): {_clauses(entry, 'step') or 'where, is not proved'}."]


def _whole_run(entry):
    """What is proved to make a whole run longer or shorter, besides the training."""
    clauses = _clauses(entry, "run")
    return [f"In no speed-up: {clauses}."] if clauses else []


def _clauses(entry, account):
    return ", ".join(tell(cause) for cause in entry.causes if cause.of == account)


def _costs(entry):
    """What a method's parts tell apart."""
    method, costs, sentences = method_of(entry.row.configuration.method), entry.costs, []
    ranks = len(entry.row.results[0].devices)
    if costs.wrapper:
        sentences.append(
            f"{method.called}'s wrapper: an epoch with one rank, divided by one without {method.called}, "
            f"is {longer(costs.wrapper)}."
        )
    if costs.contention:
        sentences.append(
            f"Contention: an epoch with {ranks} ranks that exchange nothing, divided by one with one "
            f"rank, is {costs.contention}, where {1 / ranks:.2f} would be ideal; ranks share cores, "
            "memory and loader, and have smaller batches."
        )
    if costs.exchange:
        sentences.append(
            "Communication: an epoch with the exchange of gradients, divided by one without, is "
            f"{longer(costs.exchange)}."
        )
    return sentences


def _memory(analysis, entry):
    """What a method needs of memory, where that is much more or much less than the baseline needs."""
    if not entry.much_memory:
        return []
    own, baseline = entry.summary.memory, analysis.of(entry.standing.baseline).summary.memory
    parts = "".join(f"{name} {mebibytes(size)}, " for name, size in own.parts.items())
    change = f"{abs(entry.memory_ratio - 1):.0%} {'more' if entry.memory_ratio > 1 else 'less'}"
    return [
        f"At its peak a device needs {mebibytes(own.peak)} MiB of memory, {change} than the "
        f"{mebibytes(baseline.peak)} MiB of “{entry.standing.baseline.label}”"
        + (f": {parts}the rest {mebibytes(own.rest)} MiB." if parts else ".")
    ]


def _sweep(analysis: Analysis, sweep: Sweep) -> str:
    first = sweep.rows[0]
    compared = ", ".join(
        f"{sweep.value(entry)}: {longer(ratio)}" for entry, ratio in zip(sweep.rows[1:], sweep.ratios, strict=True)
    )
    return (
        f"Sweep of {SWEEPS[sweep.name].lower()}, {first.row.configuration.method}"
        f"{first.row.values(without=sweep.name)}: {fastest_value(analysis, sweep)}. "
        f"{analysis.report.asked.capitalize()} as a multiple of that at {sweep.value(first)}: {compared}."
        + _where_it_pays(sweep)
    )


def _where_it_pays(sweep):
    """At which batch, or number of processes, a method is proved to be faster than its baselines."""
    compared = [entry for entry in sweep.rows if entry.rivals_baseline]
    if sweep.name not in ("batch_size", "nproc") or len(compared) < len(sweep.rows):
        return ""
    pays = [entry.standing.speed_up.words == FASTER for entry in compared]
    values = [str(sweep.value(entry)) for entry, faster in zip(compared, pays, strict=True) if faster]
    if all(pays):
        where = "at each of them"
    elif not any(pays):
        where = "at none of them"
    elif all(pays[pays.index(True) :]):
        where = f"from {values[0]} on"
    else:
        where = f"at {', '.join(values)} alone"
    return f" It is proved to be faster than its baseline {where}."
