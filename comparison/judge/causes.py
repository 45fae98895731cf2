"""Why a row is as fast or slow as it is: each cause that its measurements show, with the number behind it."""

import math
import statistics
from dataclasses import dataclass, replace

from comparison.judge.fairness import Standing
from comparison.judge.measures import Summary, run_seconds
from comparison.judge.statistics import UNDECIDED
from comparison.judge.steps import OUTSIDE, Accounts
from comparison.methods import method_of
from comparison.record import Report
from comparison.rows import Row
from comparison.words import count, join, say

# From which size on a cause is worth a sentence.
WORTH = 0.02  # of a step or run: a part of its difference
STRAGGLING = 0.05  # of a step: what one rank has to do more than the others
QUEUED = 0.25  # of a step: ready to run, without a core
QUEUED_BESIDE_WORKERS = 0.15  # which ranks reach that exchange gradients on a core each; beside more workers than cores
IDLE_THREADS = 0.25  # of the threads, while they compute
GROWTH = 0.05  # of an epoch, from the first timed one to the last
WAITING = 0.20  # of a step that is compared with none, waiting for data
SAVED = 0.02  # of a step, by the resident loader
OVERHEAD = 0.05  # of a step: scatter, replicate and gather
IDLE = 0.10  # of the passes through the network, per device

PLACES = {
    "data": say("in waiting for data"),
    "transfer": say("in the transfer to the device"),
    "forward": say("in the forward pass"),
    "backward": say("in the backward pass"),
    "exchange": say("in the exchange of gradients"),
    "update": say("in the update"),
    OUTSIDE: say("in none of the phases"),
}
WAITING_FOR_STAGES = say("in waiting for the other stages and sending to them")
WHOLE_BACKWARD = say("in the backward pass and in what the devices exchange during it")
STAGES = {"start-up": "start-up", "warm-up": say("the first epoch's warm-up"), "evaluation": "evaluation"}


@dataclass(frozen=True)
class Cause:
    """One thing that makes a row as fast or slow as it is.

    of: "step" or "run" where it is a part of the account of one, and its sentence only a clause.
    """

    kind: str
    sentence: str
    of: str = ""


def find_causes(
    report: Report, row: Row, standing: Standing, accounts: Accounts, summaries: dict[str, Summary]
) -> tuple[Cause, ...]:
    """Return every cause that the measurements of a row show, in the order in which to read them.

    First what makes its step longer or shorter than an even share of the baseline's, the largest part first. Nothing
    of a row that other programs disturbed. summaries: of all rows, by their configuration's name.
    """
    if not row.results or row.disturbed or (standing.baseline and standing.baseline.disturbed):
        return ()
    own = summaries[row.configuration.name]
    causes = (
        _unequal(standing),
        _noise(row, standing),
        *_parts_of_steps(report, row, accounts.steps, summaries),
        _waiting(report, row, own, accounts.steps, summaries),
        _straggler(row, own, accounts),
        _queued(row, accounts),
        _idle_threads(row, accounts),
        _growth(accounts),
        _resident(report, row, own),
        _overhead(row, own),
        _idle_stage(row, own),
        _bubble(row, accounts),
        *_parts_of_runs(row, standing, accounts.runs, summaries),
    )
    return tuple(cause for cause in causes if cause)


def _unequal(standing):
    if standing.unequal:
        return Cause("unequal", say("It is no fair comparison: {settings}.", settings=join("; ", standing.unequal)))
    return None


def _noise(row, standing):
    if not standing.speed_up or standing.baseline is row or standing.speed_up.words != UNDECIDED:
        return None
    seconds = run_seconds(row), run_seconds(standing.baseline)
    spread = max((max(sample) - min(sample)) / statistics.median(sample) for sample in seconds)
    return Cause(
        "noise",
        say(
            "The interval includes 1: with runs that differ by up to {n:.0%} among themselves, the difference may be "
            "chance; more --repeats would narrow it.",
            n=spread,
        ),
    )


def _parts_of_steps(report, row, steps, summaries):
    for part in steps.proved if steps else ():
        if abs(part.value) >= WORTH * steps.value:
            place = PLACES[part.name]
            if part.name == "backward" and all(other.name != "exchange" for other in steps.parts):
                place = WHOLE_BACKWARD
            elif part.name == "exchange" and method_of(row.configuration.method).staged:
                place = WAITING_FOR_STAGES
            values = {"x": part, "place": place}
            sentence = say("{x} ms more {place}" if part.value > 0 else "{x} ms less {place}", **values)
            if part.name == "data" and part.value > 0:
                advice = _loading_advice(report, row, summaries)
                sentence = say("{x} ms more {place} ({advice})", **values, advice=advice)
            yield Cause(part.name, sentence, "step")


def _waiting(report, row, own, steps, summaries):
    """What an account cannot show, as the row is compared with none."""
    if steps or own.waiting_share < WAITING:
        return None
    return Cause(
        "waiting for data",
        say(
            "Waiting for data takes {x:.1f} of {y:.1f} ms per step ({n:.0%}): {advice}.",
            x=own.phases.data,
            y=own.step_milliseconds,
            n=own.waiting_share,
            advice=_loading_advice(report, row, summaries),
        ),
    )


def _loading_advice(report, row, summaries):
    """What could shorten the wait for data: measured with more workers, or computed from the cores that are left."""
    result, planned = row.results[0], row.configuration.planned
    if result.config["loader"] == "resident":
        return say("batches are cut out of memory, so that the network is small beside its data")
    workers = result.loader_workers
    more = [
        other
        for other in report.rows
        if other.results
        and other.configuration.method == row.configuration.method
        and other.configuration.planned.num_workers > planned.num_workers
        and replace(other.configuration.planned, num_workers=planned.num_workers) == planned
    ]
    if more:
        seconds, best = min(
            (summaries[other.configuration.name].epoch_seconds, other.configuration.planned.num_workers)
            for other in more
        )
        return say("with {n} workers instead of {m} an epoch was measured at {s:.2f} s", n=best, m=workers, s=seconds)
    left = row.cores - workers - _computing_threads(result)
    if left > 0:
        template = "{cores} of {n} is left for more --num-workers"
        if left > 1:
            template = "{cores} of {n} are left for more --num-workers"
        return say(template, cores=count(left, "core"), n=row.cores)
    return say(
        "{threads} and {workers} have the {cores} already, so that more workers would take from the computation",
        threads=count(_computing_threads(result), "thread"),
        workers=count(workers, "loader worker"),
        cores=count(row.cores, "core"),
    )


def _computing_threads(result):
    """Threads that compute on a CPU; beside a GPU, one for each process."""
    return result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1)


def _straggler(row, own, accounts):
    straggler = accounts.straggler
    if not straggler or not straggler.longer.least(STRAGGLING * own.step_milliseconds):
        return None
    advice = say("look for what its core or device has to do besides")
    if method_of(row.configuration.method).staged:
        advice = say("another --split-at may give the stages more equal parts")
    return Cause(
        "straggler",
        say(
            "Rank {n} has {x} ms more to do in a step than the others, which wait for it, most of it {place}: "
            "{advice}.",
            n=straggler.rank,
            x=straggler.longer,
            place=PLACES[straggler.phase],
            advice=advice,
        ),
    )


def _queued(row, accounts):
    share, result = accounts.queued, row.results[0]
    threads, workers = result.world_size * result.threads_per_process, result.loader_workers
    if not share or not share.least(QUEUED_BESIDE_WORKERS if workers > row.cores else QUEUED):
        return None
    values = {
        "n": share.value,
        "m": share.margin,
        "threads": count(threads, "thread"),
        "workers": count(workers, "loader worker"),
        "cores": count(row.cores, "core"),
    }
    if workers and threads + workers > row.cores:
        return Cause(
            "too many workers",
            say(
                "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core: {threads} and "
                "{workers} share {cores}; fewer --num-workers leave more to the threads.",
                **values,
            ),
        )
    if threads > row.cores:
        return Cause(
            "shared cores",
            say(
                "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core: {threads} share "
                "{cores}; give it more cores, or fewer processes or threads.",
                **values,
            ),
        )
    advice = say("look for other programs, and for what binds processes to the same cores")
    if result.world_size > 1 and result.devices[0] == "cpu":
        advice = say("look for other programs, or type --bind, which gives every rank cores of its own")
        if result.config.get("bind"):
            advice = say("look for other programs; what sends for a rank has no cores but the rank's own")
    return Cause(
        "shared cores",
        say(
            "For {n:.0%} ± {m:.0%} of the time its threads were ready to compute and had no core, of {c}: {advice}.",
            **values,
            c=row.cores,
            advice=advice,
        ),
    )


def _idle_threads(row, accounts):
    threads, cores = row.results[0].threads_per_process, accounts.cores
    if threads == 1 or row.results[0].devices[0] != "cpu" or cores is None or cores.low is None:
        return None
    if cores.high > (1 - IDLE_THREADS) * threads:
        return None
    return Cause(
        "idle threads",
        say(
            "While it computes, it keeps at most {x} cores busy with its {n} threads: its operations are too small to "
            "share, or something limits them (a quota, a library that sets their number).",
            x=cores,
            n=threads,
        ),
    )


def _growth(accounts):
    """Beside the baseline's epochs, which grow too where the machine becomes slower."""
    share, beside = accounts.growth, accounts.beside
    if not (share and beside and share.least(GROWTH) and beside.least(GROWTH)):
        return None
    template = (
        "Its epochs get longer while it trains, by {n:.0%} ± {m:.0%} from the first that counts to the last: a longer "
        "training would not go on at this speed."
    )
    if beside is not share:
        template = (
            "Its epochs get longer while it trains, by {n:.0%} ± {m:.0%} more than the baseline's from the first that "
            "counts to the last: a longer training would not go on at this speed."
        )
    return Cause("growing", say(template, n=beside.value, m=beside.margin))


def _resident(report, row, own):
    speed, result = report.probe and report.probe.resident_images_per_second, row.results[0]
    if not speed or result.config["loader"] != "workers":
        return None
    step, needed = own.step_milliseconds, 1000 * result.global_batch_size / result.loading_ranks / speed
    saved = own.phases.data - needed
    if saved / step < SAVED:
        return None
    return Cause(
        "resident loader",
        say(
            "--loader resident would save {x:.1f} of {y:.1f} ms per step ({n:.0%}): it was measured to cut {r:,.0f} "
            "images/s out of memory here, {z:.2f} ms for a step's.",
            x=saved,
            y=step,
            n=saved / step,
            r=speed,
            z=needed,
        ),
    )


def _own_milliseconds(row, names):
    """Mean over the runs of what the method measures of itself, per batch; None where it measures no such thing."""
    measured = [result.method_milliseconds or {} for result in row.results]
    if not all(name in times for times in measured for name in names):
        return None
    return [statistics.mean(times[name] for times in measured) for name in names]


def _overhead(row, own):
    names = ("scatter", "replicate", "gather")
    times = _own_milliseconds(row, names)
    step = own.step_milliseconds
    if times is None or sum(times) / step < OVERHEAD:
        return None
    template = (
        "{name}'s own work takes {x:.1f} of {y:.1f} ms per step ({n:.0%}; {parts}): one process feeds all devices, and "
        "the first one collects."
    )
    if row.simulated:
        template = (
            "Carried out on one device, {name}'s own work takes {x:.1f} of {y:.1f} ms per step ({n:.0%}; {parts}): one "
            "process feeds all devices, and the first one collects."
        )
    name = method_of(row.configuration.method).called or row.label
    parts = join(", ", [f"{name} {value:.1f}" for name, value in zip(names, times, strict=True)])
    sentence = say(template, name=name, x=sum(times), y=step, n=sum(times) / step, parts=parts)
    return Cause("scatter, replicate, gather", sentence)


def _idle_stage(row, own):
    times = _own_milliseconds(row, ("stage 0", "stage 1"))
    if times is None or own.phases.forward is None:
        return None
    micro_batches, forward = row.results[0].config["micro_batches"], own.phases.forward
    ideal = 1 / (micro_batches + 1)  # (P-1)/(M+P-1) for P = 2 stages (Y. Huang et al., GPipe, 2019)
    if row.simulated:
        # the schedule of two devices: the slower stage's parts follow each other, the faster stage's wait for them
        forward = sum(times) / micro_batches + max(times) * (micro_batches - 1) / micro_batches
    idle = 1 - sum(times) / (2 * forward)
    if idle < IDLE:
        return None
    template = (
        "In the forward pass each of the two devices idles {n:.0%} of the time (measured, with {x:.1f} and {y:.1f} ms "
        "per batch in the two stages), ideally {i:.0%}, (P-1)/(M+P-1) with P = 2 stages and M = {m}."
    )
    if row.simulated:
        template = (
            "In the forward pass each of the two devices idles {n:.0%} of the time (computed, not measured, for two "
            "devices from {x:.1f} and {y:.1f} ms per batch in the two stages), ideally {i:.0%}, (P-1)/(M+P-1) with "
            "P = 2 stages and M = {m}."
        )
    parts = count(micro_batches, "micro-batch", "es")
    return Cause("idle stage", say(template, n=idle, x=times[0], y=times[1], i=ideal, m=parts))


def _bubble(row, accounts):
    """How much of the time between a batch's first pass and its last the stages of a pipeline do not compute."""
    ranks = accounts.ranks
    if not method_of(row.configuration.method).staged or not all("exchange" in rank.phases for rank in ranks):
        return None
    waiting = sum(rank.exchange for rank in ranks)
    computing = sum(rank.phases["forward"] + rank.phases["backward"] for rank in ranks)
    if not waiting or waiting / (waiting + computing) < IDLE:
        return None
    stages, micro_batches = len(ranks), row.results[0].config["micro_batches"]
    ideal = (stages - 1) / (micro_batches + stages - 1)  # Y. Huang et al., GPipe, 2019
    return Cause(
        "bubble",
        say(
            "From the first forward pass of a batch to its last backward pass, the stages wait and send for {n:.0%} of "
            "the time, ideally {i:.0%}, (P-1)/(M+P-1) with P = {p} stages and M = {m}.",
            n=waiting / (waiting + computing),
            i=ideal,
            p=stages,
            m=count(micro_batches, "micro-batch", "es"),
        ),
    )


def _parts_of_runs(row, standing, runs, summaries):
    """What the speed-up does not contain."""
    for part in runs.proved if runs else ():
        if part.name in STAGES and abs(part.value) >= WORTH * runs.value:
            template = "{what} takes {x} s more" if part.value > 0 else "{what} takes {x} s less"
            sentence = say(template, what=STAGES[part.name], x=part)
            pays = _pays_from(row, standing, part.value, summaries) if part.name == "start-up" else ""
            yield Cause(part.name, say("{what} ({pays})", what=sentence, pays=pays) if pays else sentence, "run")


def _pays_from(row, standing, extra, summaries):
    """From how many epochs on a faster row makes up for its longer start."""
    own, other = (summaries[some.configuration.name] for some in (row, standing.baseline))
    saved = own.epoch_seconds * (own.images_per_second / other.images_per_second - 1)
    epochs = len(row.results[0].epochs)
    if standing.speed_up.words != "faster" or extra <= saved * epochs:
        return ""
    return say(
        "an epoch saves {s:.2f} s, so it pays from {n} epochs on, of {m} here",
        s=saved,
        n=math.ceil(extra / saved),
        m=epochs,
    )
