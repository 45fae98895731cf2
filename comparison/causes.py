"""Why a row is as fast or slow as it is: each cause that its measurements show, with the number behind it."""

import math
import statistics
from dataclasses import dataclass

from comparison.fairness import standing
from comparison.methods import method_of
from comparison.record import Report, Row
from comparison.statistics import NO_DIFFERENCE, phase_milliseconds, ratio_of, run_seconds, summarize, timed_epochs

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


def causes(report: Report, row: Row) -> list[Cause]:
    """Return every cause that the measurements of a row show, in the order in which to read them."""
    stands = standing(report, row)
    found = [
        _unequal(stands), _noise(row, stands), _waiting(report, row), _resident(report, row), _exchange(report, row),
        _small_batch(report, row, stands), _overhead(row), _idle_stage(row), _start_up(row, stands),
    ]
    return [cause for cause in found if cause]


def _unequal(stands):
    if stands.unequal:
        return Cause("unequal", f"It is no fair comparison: {'; '.join(stands.unequal)}.")
    return None


def _noise(row, stands):
    if not stands.speed_up or stands.baseline is row or stands.speed_up.words != NO_DIFFERENCE:
        return None
    seconds = run_seconds(row), run_seconds(stands.baseline)
    spread = max((max(some) - min(some)) / statistics.median(some) for some in seconds)
    return Cause("noise", f"The interval includes 1: with runs that differ by up to {spread:.0%} among themselves, the "
                          "difference may be chance; more --repeats would narrow it.")


def _waiting(report, row):
    phases = phase_milliseconds(row)
    step, epoch = sum(phases.values()), summarize(row).epoch_seconds
    share = phases["data"] / step
    if share < WAITING:
        return None
    workers = row.configuration.planned["workers"]
    several = "0 2 4" if workers == 0 else f"{workers} {2 * workers} {4 * workers}"
    more = [other for other in report.rows if other.results and other.configuration.method == row.configuration.method
            and other.configuration.planned["workers"] > workers
            and {**other.configuration.planned, "workers": workers} == row.configuration.planned]
    if row.results[0].config["loader"] == "resident":
        return Cause("waiting for data", f"Cutting batches out of memory takes {phases['data']:.1f} of {step:.1f} ms "
                     f"per step ({share:.0%}): the network is so small that its data are a good part of the work.")
    advice = f"more --num-workers can save up to that; --num-workers {several} measures it"
    if more:
        best = min(more, key=lambda other: summarize(other).epoch_seconds)
        advice = (f"with {best.configuration.planned['workers']} workers instead of {workers} it was measured at "
                  f"{summarize(best).epoch_seconds:.2f} s")
    return Cause("waiting for data", f"Waiting for data takes {phases['data']:.1f} of {step:.1f} ms per step "
                 f"({share:.0%}); without it an epoch would take {epoch * (1 - share):.2f} s at best: {advice}.")


def _resident(report, row):
    speed, result = report.probe.get("resident_images_per_second"), row.results[0]
    if not speed or result.config["loader"] != "workers":
        return None
    phases = phase_milliseconds(row)
    step, needed = sum(phases.values()), 1000 * result.global_batch_size / result.world_size / speed
    saved = phases["data"] - needed
    if saved / step < SAVED:
        return None
    return Cause("resident loader", f"--loader resident would save {saved:.1f} of {step:.1f} ms per step "
                 f"({saved / step:.0%}): it was measured to cut {speed:,.0f} images/s out of memory here, "
                 f"{needed:.2f} ms for a step's.")


def equal_partner(report: Report, row: Row, method: str) -> Row | None:
    """Return the row of another method with the same swept values and equal settings, if it has results."""
    batch = "per-device batch" if report.settings["scaling"] == "weak" else "global batch"
    other, names = report.partner(row, method), ("model", batch, "workers", "threads per device")
    if other and other.results and all(
            other.configuration.planned[name] == row.configuration.planned[name] for name in names):
        return other
    return None


def _exchange(report, row):
    parts = method_of(row.configuration.method).parts
    silent = parts and equal_partner(report, row, parts.no_exchange)
    if silent is None:
        return None
    cost, seconds = ratio_of(row, silent), summarize(row).epoch_seconds
    share = 1 - 1 / cost.value
    if share < EXCHANGE or cost.low is None or cost.low <= 1:
        return None
    return Cause("exposed communication", f"Exchanging gradients costs {share * seconds:.2f} of {seconds:.2f} s per "
                 f"epoch ({share:.0%}): with it, an epoch takes {cost} times as long as without.")


def _small_batch(report, row, stands):
    planned = row.configuration.planned
    if row.simulated or planned["threads per device"] != report.first["threads per device"]:
        return None  # the probe had the first row's threads
    whole = planned["global batch"]
    if stands.baseline:
        whole = stands.baseline.configuration.planned["per-device batch"]
    part = planned["per-device batch"]
    times = {step["batch"]: step["milliseconds"] for step in report.probe.get("steps", ())
             if step["model"] == planned["model"]}
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


def _overhead(row):
    names = ("scatter", "replicate", "gather")
    times = _own_milliseconds(row, names)
    step = sum(phase_milliseconds(row).values())
    if times is None or sum(times) / step < OVERHEAD:
        return None
    parts = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, times, strict=True))
    where = "Carried out on one device, " if row.simulated else ""
    return Cause("scatter, replicate, gather", f"{where}DataParallel's own work takes {sum(times):.1f} of "
                 f"{step:.1f} ms per step ({sum(times) / step:.0%}; {parts}): one process feeds all "
                 "devices, and the first one collects.")


def _idle_stage(row):
    times = _own_milliseconds(row, ("stage 0", "stage 1"))
    if times is None:
        return None
    micro_batches, forward = row.results[0].config["micro_batches"], phase_milliseconds(row)["forward"]
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
                 f"(P-1)/(M+P-1) with P = 2 stages and M = {micro_batches} micro-batch(es).")


def start_up_seconds(row: Row) -> float:
    """Return the median over the runs of the time before the first step, and what the first epoch takes longer."""
    return statistics.median(result.startup_seconds + max(0.0, result.epochs[0].train_seconds - statistics.median(
        epoch.train_seconds for epoch in timed_epochs(result))) for result in row.results)


def _start_up(row, stands):
    start, epochs = start_up_seconds(row), len(row.results[0].epochs)
    training = epochs * summarize(row).epoch_seconds
    if start > training:
        return Cause("start-up", f"Start-up and warm-up take {start:.1f} s, longer than the {training:.1f} s of "
                     f"training in {epochs} epoch(s): more --epochs show what a long training gains.")
    if stands.speed_up is None or stands.baseline is row or stands.speed_up.words != "faster":
        return None
    extra = start - start_up_seconds(stands.baseline)
    saved = summarize(stands.baseline).epoch_seconds - summarize(row).epoch_seconds
    if extra <= saved * epochs:
        return None
    return Cause("start-up", f"Start-up and warm-up take {extra:.1f} s more than “{stands.baseline.label}” needs, and "
                 f"an epoch saves {saved:.2f} s: it pays from {math.ceil(extra / saved)} epochs on, of {epochs} here.")
