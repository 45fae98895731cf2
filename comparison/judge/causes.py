"""Why a row is as fast or slow as it is: every cause that its measurements show, with the numbers behind it."""

import math
import statistics
from collections.abc import Callable, Iterator

from common.files.describe import training_seconds
from comparison.judge.ranks import kernel_milliseconds
from comparison.judge.statistics import FASTER, UNDECIDED
from comparison.judge.step_causes import WORTH, Case, parts_of_steps, small_batch, straggler, waiting
from comparison.judge.summaries import Finding, image_seconds, successful_runs
from comparison.methods import method_of
from comparison.record import TRACED_STEPS

# Shares from which a cause is worth a sentence.
THROTTLED = 0.05  # of the training: stopped by a quota
QUEUED = 0.25  # of a step: ready to run, without a core
QUEUED_WITH_WORKERS = 0.15  # with more workers than cores; else ranks that exchange gradients reach it on a core each
NOTICEABLE = 0.05  # of the machine, or of a core: other programs
IDLE_THREADS = 0.25  # of the threads, while they compute
IDLE_GPU = 0.3  # of a step, beyond waiting for data
GROWTH = 0.05  # of an epoch, from the first timed one to the last
SAVED = 0.02  # of a step, by the resident loader
OVERHEAD = 0.05  # of a step: scatter, replicate and gather
IDLE = 0.10  # of the passes through the network, per device

PARTS_OF_RUNS = ("start-up", "warm-up", "evaluation")  # not part of the speed-up


def find_causes(case: Case) -> tuple[Finding, ...]:
    """Return every cause that the measurements of a row show, in reading order.

    Resources that the machine lacks come first, then the parts of the step's difference from ideal scaling, the largest
    first. Empty if other programs disturbed the row or its baseline.
    """
    baseline = case.standing.baseline
    if case.row.disturbed or (baseline and baseline.disturbed):
        return ()
    return tuple(cause for find in CAUSES for cause in find(case))


def _unequal(case: Case) -> Iterator[Finding]:
    if case.standing.unequal:
        yield Finding("unequal", {"settings": case.standing.unequal})


def _noise(case: Case) -> Iterator[Finding]:
    baseline, speed_up = case.standing.baseline, case.standing.speed_up
    if baseline and baseline is not case.row and speed_up and speed_up.words == UNDECIDED:
        per_image = case.report.settings["target_accuracy"] is None
        asked = image_seconds if per_image else lambda _, result: training_seconds(result)
        samples = [([asked(*run) for run in successful_runs(row)], row.label) for row in (case.row, baseline)]
        spread, noisier = max(((max(own) - min(own)) / statistics.median(own), label) for own, label in samples)
        yield Finding("noise", {"n": spread, "row": noisier})


def _throttled(case: Case) -> Iterator[Finding]:
    share = case.accounts.throttled
    if share and share.at_least(THROTTLED):
        yield Finding("throttled", {"n": share.value, "m": share.margin, "cores": case.row.cores}, "machine")


def _queued(case: Case) -> Iterator[Finding]:
    if any(_throttled(case)):
        return  # the kernel counts throttled threads as queued
    share, result, cores = case.accounts.queued, case.result, case.row.cores
    threads, workers = result.world_size * result.threads_per_process, result.loader_workers
    if not share or not share.at_least(QUEUED_WITH_WORKERS if workers > cores else QUEUED):
        return
    values = {"n": share.value, "m": share.margin, "threads": threads, "workers": workers, "cores": cores}
    if workers and threads + workers > cores:
        wording = "too many workers of a script" if case.row.configuration.is_script else ""
        yield Finding("too many workers", values, "machine", wording)
    elif threads > cores:
        yield Finding("shared cores", values, "machine", "too many threads")
    else:
        advice = "other bindings"
        if case.row.foreign.share >= NOTICEABLE:
            advice = "other programs"
        elif result.world_size > 1 and result.devices[0] == "cpu":  # their exchange has threads of its own
            may_bind = not (case.row.configuration.is_script or result.config.get("bind"))
            advice = "unbound ranks" if may_bind else "exchanging threads"
        yield Finding("shared cores", {**values, "advice": Finding(advice)}, "machine")


def _idle_threads(case: Case) -> Iterator[Finding]:
    threads, cores = case.result.threads_per_process, case.accounts.cores
    most = cores.high if cores and threads > 1 and case.result.devices[0] == "cpu" else None
    if most is not None and most <= (1 - IDLE_THREADS) * threads:
        yield Finding("idle threads", {"x": cores, "n": threads}, "machine")


def _idle_gpu(case: Case) -> Iterator[Finding]:
    """A GPU that waits for its launches. NVML calls a period with any kernel busy: its share is an upper bound."""
    if len(case.result.epochs) == 1:  # its time contains the loading and tuning of kernels
        return
    summary, uses = case.summary, [outcome.cards for outcome in case.row.outcomes if outcome.status == "ok"]
    known = [[card.busy for card in cards if card.busy is not None] for cards in uses]
    traced = kernel_milliseconds(case.report.timelines.get(case.row.name, ()))
    most = [statistics.mean(map(max, known))] if known and all(known) else []
    most += [] if traced is None else [traced / TRACED_STEPS / summary.step_milliseconds]
    stages = case.staged and len(case.result.devices) > 1
    if most and not stages and 1 - min(most) - summary.waiting_share >= IDLE_GPU:
        method, planned = method_of(case.row.configuration.method), case.row.configuration.planned
        other = planned.cuda_graph or planned.compile or planned.recompute or planned.accumulate > 1
        wording = "idle GPU, no graph" if other or method.complexity else ""  # others wrap the network
        yield Finding("idle GPU", {"n": min(most)}, "machine", wording)


def _growth(case: Case) -> Iterator[Finding]:
    """Compare with the baseline's epochs, which also grow if the machine becomes slower."""
    own, relative = case.accounts.growth, case.accounts.relative_growth
    if own and relative and own.at_least(GROWTH) and relative.at_least(GROWTH):
        wording = "" if relative is own else "growing more"
        yield Finding("growing", {"n": relative.value, "m": relative.margin}, wording=wording)


def _resident(case: Case) -> Iterator[Finding]:
    speed, result = case.report.probe and case.report.probe.resident_images_per_second, case.result
    if speed and result.config["loader"] == "workers":
        step, needed = case.summary.step_milliseconds, 1000 * result.global_batch_size / result.data_ranks / speed
        saved = case.summary.phases.known["data"] - needed
        if saved / step >= SAVED:
            yield Finding("resident loader", {"x": saved, "y": step, "n": saved / step, "r": speed, "z": needed})


def _method_milliseconds(case: Case, *names: str) -> dict[str, float]:
    """Return the mean over the runs of times that the method itself measures, per batch; empty if it does not."""
    measured = [result.method_milliseconds or {} for result in case.row.results]
    if not all(name in times for times in measured for name in names):
        return {}
    return {name: statistics.mean(times[name] for times in measured) for name in names}


def _overhead(case: Case) -> Iterator[Finding]:
    parts, step = _method_milliseconds(case, "scatter", "replicate", "gather"), case.summary.step_milliseconds
    spent = sum(parts.values())
    if parts and spent / step >= OVERHEAD:
        name = method_of(case.row.configuration.method).called or case.row.label
        values = {"name": name, "x": spent, "y": step, "n": spent / step, "parts": parts}
        yield Finding("scatter, replicate, gather", values, wording="simulated overhead" if case.row.simulated else "")


def _idle_stage(case: Case) -> Iterator[Finding]:
    times, forward = [*_method_milliseconds(case, "stage 0", "stage 1").values()], case.summary.phases.forward
    if not times or forward is None:
        return
    micro_batches = case.result.config["micro_batches"]
    ideal = 1 / (micro_batches + 1)  # (P-1)/(M+P-1) for P = 2 stages (Y. Huang et al., GPipe, 2019)
    if case.row.simulated:
        # On two devices, the slower stage runs without a break, and the faster one waits for it.
        forward = sum(times) / micro_batches + max(times) * (micro_batches - 1) / micro_batches
    idle = 1 - sum(times) / (2 * forward)
    if idle >= IDLE:
        values = {"n": idle, "x": times[0], "y": times[1], "i": ideal, "micro_batches": micro_batches}
        yield Finding("idle stage", values, wording="simulated idle stage" if case.row.simulated else "")


def _bubble(case: Case) -> Iterator[Finding]:
    """Measure how long the stages of a pipeline do not compute between a batch's first pass and its last."""
    ranks = case.accounts.ranks
    waiting = sum(rank.exchange for rank in ranks)
    if not case.staged or not waiting:
        return
    computing = sum(rank.phases["forward"] + rank.phases["backward"] for rank in ranks)
    share = waiting / (waiting + computing)
    if share >= IDLE:
        stages, micro_batches = len(ranks), case.result.config["micro_batches"]
        ideal = (stages - 1) / (micro_batches + stages - 1)  # Y. Huang et al., GPipe, 2019
        yield Finding("bubble", {"n": share, "i": ideal, "p": stages, "micro_batches": micro_batches})


def _parts_of_runs(case: Case) -> Iterator[Finding]:
    runs = case.accounts.runs
    if not runs:
        return
    for part in runs.proved:
        if part.name in PARTS_OF_RUNS and abs(part.value) >= WORTH * runs.value:
            wording = "takes more" if part.value > 0 else "takes less"
            values: dict[str, object] = {"what": Finding(part.name), "x": part}
            pays = _pays_from(case) if part.name == "start-up" and part.value > 0 else None
            if pays:
                wording, values = "pays", {"what": Finding(wording, values), "pays": pays}
            yield Finding(part.name, values, "run", wording)


def _pays_from(case: Case) -> Finding | None:
    """Return the number of epochs after which a faster row makes up for its longer start.

    None if epochs were cut, which save less than the whole ones that the table shows.
    """
    speed_up, runs, report = case.standing.speed_up, case.accounts.runs, case.report
    other_epochs = report.settings["target_accuracy"] is not None or report.cut_steps
    if not runs or not speed_up or speed_up.words != FASTER or other_epochs:
        return None
    longer, epochs = {part.name: part.value for part in runs.parts}, len(case.result.epochs)
    saved = -(longer["training"] + longer["evaluation"]) / epochs
    once = longer["start-up"] + longer.get("warm-up", 0.0)
    if saved <= 0 or once <= saved * epochs:
        return None
    return Finding("pays from", {"s": saved, "n": math.ceil(once / saved), "m": epochs})


CAUSES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    small_batch,  # its sentence is about the one before
    _unequal,
    _noise,
    _throttled,
    _queued,
    _idle_threads,
    _idle_gpu,
    parts_of_steps,
    waiting,
    straggler,
    _growth,
    _resident,
    _overhead,
    _idle_stage,
    _bubble,
    _parts_of_runs,
)
