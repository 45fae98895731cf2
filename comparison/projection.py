"""What more devices than there are would give: computed from measurements on one device, and never mixed with them."""

from dataclasses import dataclass

from comparison.record import Report
from comparison.statistics import summarize

LABEL = "projected, not measured"


@dataclass(frozen=True)
class Projected:
    """One number of devices. Milliseconds are per step; error: projected ÷ measured - 1, where that was measured."""

    devices: int
    step_milliseconds: float
    all_reduce_milliseconds: float
    loader_milliseconds: float
    epoch_seconds: float
    speed_up: float
    measured_seconds: float | None
    error: float | None


def project(report: Report) -> list[Projected]:
    """Return the projection for DDP on one device and on each number of --project; empty where it was not asked for.

    A step takes what one device alone needs for the batch ÷ N (not its time for the batch, divided by N), plus the
    all-reduce, or as long as the loader needs for a batch, if that is longer. Of a sweep, the first value counts.
    """
    wanted = report.settings["project"]
    if not wanted:
        return []
    batch, model, bytes_, gbps, loader = _basis(report)
    found, first = [], None
    for devices in (1, *sorted(set(wanted) - {1})):
        step = next(step["milliseconds"] for step in report.probe["steps"]
                    if step["model"] == model and step["batch"] == batch // devices)
        exchange = all_reduce_milliseconds(bytes_, devices, gbps)
        waiting = 1000 * batch / loader
        seconds = max(step + exchange, waiting) / 1000 * _steps(report, batch)
        first = first or seconds
        measured = _measured(report, devices)
        found.append(Projected(devices, step, exchange, waiting, seconds, first / seconds, measured,
                               measured and seconds / measured - 1))
    return found


def all_reduce_milliseconds(size: int, devices: int, gbps: float) -> float:
    """Return how long a ring all-reduce of `size` bytes takes over links of `gbps` gigabits per second.

    Each device sends 2 (N-1)/N of the bytes (P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009); the time
    for messages to start is not in it.
    """
    return 1000 * 2 * (devices - 1) / devices * size * 8e-9 / gbps


def _basis(report):
    """Batch, model, bytes of gradients, Gbit/s, and the loader's images/s, of the first value of every sweep."""
    planned = report.plan[0].planned
    model = next(model for model in report.probe["models"] if model["model"] == planned["model"])
    loader = next(loader for loader in report.probe["loaders"] if loader["num_workers"] == planned["workers"])
    return (planned["global batch"], planned["model"], model["gradient_bytes"],
            report.settings["link_gbps"] or model["link_gbps"], loader["images_per_second"])


def _steps(report, batch):
    steps = -(-report.probe["train_images"] // batch)
    return min(steps, report.settings["max_steps"] or steps)


def _measured(report, devices):
    """Median seconds per epoch of the row with the same first values on so many devices, if it was run."""
    planned = report.plan[0].planned
    names = ("model", "global batch", "workers")
    for row in report.rows:
        method = "single" if devices == 1 else "ddp"
        if (row.configuration.method == method and row.results and len(row.results[0].devices) == devices
                and all(row.configuration.planned[name] == planned[name] for name in names)):
            return summarize(row).epoch_seconds
    return None


def assumptions(report: Report) -> list[str]:
    """Return what the projection assumes, with the numbers that went into it."""
    batch, model, size, gbps, loader = _basis(report)
    link = "as given" if report.settings["link_gbps"] else "measured between two ranks here, at this size"
    return [
        f"{LABEL}: {model}, global batch {batch}; DDP with the batch divided by the number of devices.",
        "A step takes what one device alone was measured to need for its part of the batch; every further device is as "
        "fast, and they take nothing from one another (cores, memory, power).",
        f"An all-reduce moves 2 (N-1)/N x {size:,} bytes of gradients per step at {gbps:.2f} Gbit/s ({link}), all "
        "of it after the backward pass: overlap would make it cheaper.",
        f"The loader delivers at most {loader:,.0f} images/s, measured with no training beside it: however many the "
        "devices, a step takes no less.",
    ]
