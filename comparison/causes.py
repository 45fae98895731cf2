"""Why a row is as fast or slow as it is: each cause that its measurements show, with the number behind it."""

import math
import statistics
from dataclasses import dataclass, replace
from operator import attrgetter

from common.words import count
from comparison.fairness import Standing
from comparison.measures import Summary, ratio_of, run_seconds
from comparison.methods import method_of
from comparison.record import Report, Row
from comparison.statistics import UNDECIDED, Ratio

# From which share on a cause is worth a sentence.
WAITING = 0.20  # of a step, waiting for data
SAVED = 0.02  # of a step, by the resident loader
EXCHANGE = 0.05  # of an epoch, exchanging gradients
OVERHEAD = 0.05  # of a step: scatter, replicate and gather
IDLE = 0.10  # of the forward pass, per device
SMALL_BATCH = 1.25  # times the work on one device, for the same images in parts; or its inverse


@dataclass(frozen=True)
class Cause:
    """One thing that makes a row as fast or slow as it is."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Costs:
    """What a method's parts (see comparison.methods.Parts) tell apart, as ratios of times; None if not measured.

    wrapper: one rank ÷ without the method. contention: all ranks without exchange ÷ one rank. exchange: with it ÷
    without it.
    """

    wrapper: Ratio | None = None
    contention: Ratio | None = None
    exchange: Ratio | None = None


def find_costs(report: Report, row: Row) -> Costs:
    """Return the costs of a row whose method has parts, from the rows of those that are equal to it otherwise."""
    parts = method_of(row.configuration.method).parts
    if not parts or not row.results:
        return Costs()
    without, one_rank, no_exchange = (
        _equal_partner(report, row, method) for method in (parts.without, parts.one_rank, parts.no_exchange))
    return Costs(
        without and one_rank and ratio_of(report, one_rank, without),
        one_rank and no_exchange and ratio_of(report, no_exchange, one_rank),
        no_exchange and ratio_of(report, row, no_exchange),
    )


def _equal_partner(report, row, method):
    """The row of another method with the same swept values and equal settings, if it has results."""
    batch = "per_device_batch_size" if report.settings["scaling"] == "weak" else "batch_size"
    other, settings = report.partner(row, method), attrgetter("model", batch, "num_workers", "threads")
    if other and other.results and settings(other.configuration.planned) == settings(row.configuration.planned):
        return other
    return None


def find_causes(
    report: Report, row: Row, standing: Standing, costs: Costs, summaries: dict[str, Summary]
) -> tuple[Cause, ...]:
    """Return every cause that the measurements of a row show, in the order in which to read them.

    summaries: of all rows, by their configuration's name.
    """
    if not row.results:
        return ()
    own = summaries[row.configuration.name]
    baseline = standing.baseline and summaries[standing.baseline.configuration.name]
    causes = (
        _unequal(standing), _noise(row, standing), _waiting(report, row, own, summaries), _resident(report, row, own),
        _exchange(own, costs), _small_batch(report, row, standing), _overhead(row, own), _idle_stage(row, own),
        _start_up(row, own, standing, baseline),
    )
    return tuple(cause for cause in causes if cause)


def _unequal(standing):
    if standing.unequal:
        return Cause("unequal", f"It is no fair comparison: {'; '.join(standing.unequal)}.")
    return None


def _noise(row, standing):
    if not standing.speed_up or standing.baseline is row or standing.speed_up.words != UNDECIDED:
        return None
    seconds = run_seconds(row), run_seconds(standing.baseline)
    spread = max((max(sample) - min(sample)) / statistics.median(sample) for sample in seconds)
    return Cause("noise", f"The interval includes 1: with runs that differ by up to {spread:.0%} among themselves, the "
                          "difference may be chance; more --repeats would narrow it.")


def _waiting(report, row, own, summaries):
    data, step, share = own.phases.data, own.step_milliseconds, own.waiting_share
    if share < WAITING:
        return None
    workers = row.configuration.planned.num_workers
    several = "0 2 4" if workers == 0 else f"{workers} {2 * workers} {4 * workers}"
    more = [other for other in report.rows if other.results and other.configuration.method == row.configuration.method
            and other.configuration.planned.num_workers > workers
            and replace(other.configuration.planned, num_workers=workers) == row.configuration.planned]
    if row.results[0].config["loader"] == "resident":
        return Cause("waiting for data", f"Cutting batches out of memory takes {data:.1f} of {step:.1f} ms "
                     f"per step ({share:.0%}): the network is so small that its data are a good part of the work.")
    advice = f"more --num-workers can save up to that; --num-workers {several} measures it"
    if more:
        best = min(more, key=lambda other: summaries[other.configuration.name].epoch_seconds)
        advice = (f"with {best.configuration.planned.num_workers} workers instead of {workers} it was measured at "
                  f"{summaries[best.configuration.name].epoch_seconds:.2f} s")
    rest = own.epoch_seconds * (1 - share)
    return Cause("waiting for data", f"Waiting for data takes {data:.1f} of {step:.1f} ms per step ({share:.0%}); "
                 f"without it an epoch would take {rest:.2f} s at best: {advice}.")


def _resident(report, row, own):
    speed, result = report.probe and report.probe.resident_images_per_second, row.results[0]
    if not speed or result.config["loader"] != "workers":
        return None
    step, needed = own.step_milliseconds, 1000 * result.global_batch_size / result.world_size / speed
    saved = own.phases.data - needed
    if saved / step < SAVED:
        return None
    return Cause("resident loader", f"--loader resident would save {saved:.1f} of {step:.1f} ms per step "
                 f"({saved / step:.0%}): it was measured to cut {speed:,.0f} images/s out of memory here, "
                 f"{needed:.2f} ms for a step's.")


def _exchange(own, costs):
    cost, seconds = costs.exchange, own.epoch_seconds
    if cost is None:
        return None
    share = 1 - 1 / cost.value
    if share < EXCHANGE or cost.low is None or cost.low <= 1 or cost.disturbed:
        return None
    return Cause("exposed communication", f"Exchanging gradients costs {share * seconds:.2f} of {seconds:.2f} s per "
                 f"epoch ({share:.0%}): with it, an epoch takes {cost} times as long as without.")


def _small_batch(report, row, standing):
    planned = row.configuration.planned
    if report.probe is None or row.simulated or planned.threads != report.first.threads:
        return None  # the probe had the first row's threads
    whole = planned.batch_size
    if standing.baseline:
        whole = standing.baseline.configuration.planned.per_device_batch_size
    part, times = planned.per_device_batch_size, report.probe.step_milliseconds(planned.model)
    if part >= whole or whole not in times or part not in times:
        return None
    longer = times[part] * whole / part / times[whole]
    alone = f"alone, a device needs {times[part]:.1f} ms for {part} and {times[whole]:.1f} ms for {whole} images"
    if longer <= 1 / SMALL_BATCH:
        return Cause("cheaper in parts", f"Cutting the batch alone saves work: {alone}, so that the same images take "
                     f"{longer:.2f} times the work in parts; what it gains over one device is in part this, and one "
                     f"device may gain as much with --batch-size {part}.")
    if longer < SMALL_BATCH:
        return None
    return Cause("small batch per device", f"{part} images keep a device less busy than {whole}: {alone}, so that "
                 f"the same images take {longer:.2f} times the work in parts; a larger --batch-size helps.")


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
    parts = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, times, strict=True))
    where = "Carried out on one device, " if row.simulated else ""
    name = method_of(row.configuration.method).called or row.label
    return Cause("scatter, replicate, gather", f"{where}{name}'s own work takes {sum(times):.1f} of {step:.1f} ms per "
                 f"step ({sum(times) / step:.0%}; {parts}): one process feeds all devices, and the first one collects.")


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
    how = "computed, not measured, for two devices from" if row.simulated else "measured, with"
    return Cause("idle stage", f"In the forward pass each of the two devices idles {idle:.0%} of the time ({how} "
                 f"{times[0]:.1f} and {times[1]:.1f} ms per batch in the two stages), ideally {ideal:.0%}, "
                 f"(P-1)/(M+P-1) with P = 2 stages and M = {count(micro_batches, 'micro-batch', 'es')}.")


def _start_up(row, own, standing, baseline):
    start, epochs = own.startup_seconds, len(row.results[0].epochs)
    training = epochs * own.epoch_seconds
    if start > training:
        return Cause("start-up", f"Start-up and warm-up take {start:.1f} s, longer than the {training:.1f} s of "
                     f"training in {count(epochs, 'epoch')}: more --epochs show what a long training gains.")
    if standing.speed_up is None or standing.baseline is row or standing.speed_up.words != "faster":
        return None
    extra = start - baseline.startup_seconds
    saved = baseline.epoch_seconds - own.epoch_seconds
    if extra <= saved * epochs:
        return None
    return Cause("start-up", f"Start-up and warm-up take {extra:.1f} s more than “{standing.baseline.label}” needs, "
                 f"and an epoch saves {saved:.2f} s: it pays from {math.ceil(extra / saved)} epochs on, of {epochs} "
                 "here.")
