"""What more devices than there are would give: computed from measurements on one device, and never mixed with them."""

from dataclasses import dataclass
from operator import attrgetter

from common.words import count
from comparison.measures import Summary
from comparison.methods import method_of, projected_method
from comparison.record import Report

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


@dataclass(frozen=True)
class Projection:
    """The projection for one device and each number of --project, and in words what it assumes."""

    points: tuple[Projected, ...]
    assumptions: tuple[str, ...]


def project(report: Report, summaries: dict[str, Summary]) -> Projection:
    """Return the projection for one device and for each number of --project; without points if none was asked.

    A step takes what one device alone needs for the batch ÷ N (not its time for the batch, divided by N), plus the
    all-reduce; with loader workers, at least as long as they need for a batch; without, it also takes the time in which
    each of N processes loads its own part. Of a sweep, the first value counts. Also without points where a step that
    it needs did not fit into memory. summaries: of all rows, by their configuration's name.
    """
    basis = _basis(report) if report.settings["project"] and report.probe else None
    counts = (1, *sorted(set(report.settings["project"]) - {1}))
    if basis is None or not all(basis.batch // devices in basis.steps for devices in counts):
        return Projection((), ("Not computed: a step on one device did not fit into memory, or nothing was measured.",))
    points: list[Projected] = []
    for devices in counts:
        step = basis.steps[basis.batch // devices]
        exchange = all_reduce_milliseconds(basis.gradient_bytes, devices, basis.gbps)
        loading = 1000 * basis.batch / basis.images_per_second / (1 if basis.workers else devices)
        whole = max(step + exchange, loading) if basis.workers else step + exchange + loading
        seconds = whole / 1000 * _steps(report, basis.batch)
        first = points[0].epoch_seconds if points else seconds
        measured = _measured(report, devices, summaries)
        points.append(Projected(devices, step, exchange, loading, seconds, first / seconds, measured,
                                measured and seconds / measured - 1))
    return Projection(tuple(points), _assumptions(report, basis))


def all_reduce_milliseconds(size: int, devices: int, gbps: float) -> float:
    """Return how long a ring all-reduce of `size` bytes takes over links of `gbps` gigabits per second.

    Each device sends 2 (N-1)/N of the bytes (P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009); the time
    for messages to start is not in it.
    """
    return 1000 * 2 * (devices - 1) / devices * size * 8e-9 / gbps


@dataclass(frozen=True)
class _Basis:
    """What was measured for the first value of every sweep; steps: images → milliseconds."""

    model: str
    batch: int
    workers: int
    steps: dict[int, float]
    gradient_bytes: int
    gbps: float
    images_per_second: float


def _basis(report):
    planned, probe = report.first, report.probe
    model = next((model for model in probe.models if model.model == planned.model), None)
    loader = next((loader for loader in probe.loaders if loader.num_workers == planned.num_workers), None)
    if not model or not loader:
        return None
    return _Basis(planned.model, planned.batch_size, planned.num_workers, probe.step_milliseconds(planned.model),
                  model.gradient_bytes, report.settings["link_gbps"] or model.link_gbps, loader.images_per_second)


def _steps(report, batch):
    steps = -(-report.probe.train_images // batch)
    return min(steps, report.settings["max_steps"] or steps)


def _measured(report, devices, summaries):
    """Median seconds per epoch of the row with the same first values on so many devices, if it was run."""
    settings = attrgetter("model", "batch_size", "num_workers", "threads")
    for row in report.rows:
        method = method_of(row.configuration.method)
        wanted = method.baseline if devices == 1 else method.projected
        if (wanted and row.results and len(row.results[0].devices) == devices
                and settings(row.configuration.planned) == settings(report.first)):
            return summaries[row.configuration.name].epoch_seconds
    return None


def _assumptions(report, basis):
    link = "as given" if report.settings["link_gbps"] else "measured between two ranks here, at this size"
    loader = (f"{count(basis.workers, 'loader worker')} can deliver at most {basis.images_per_second:,.0f} images/s, "
              "measured with no training beside them: with as many workers, a step takes no less on any number of "
              "devices.")
    if not basis.workers:
        loader = (f"Without workers, each process loads its own part before every step, at the measured "
                  f"{basis.images_per_second:,.0f} images/s.")
    return (
        f"{LABEL}: {basis.model}, global batch {basis.batch}; {projected_method().called} with the batch divided by "
        "the number of devices.",
        "A step takes what one device alone was measured to need for its part of the batch; every further device is as "
        "fast, and they take nothing from one another (cores, memory, power).",
        f"An all-reduce moves 2 (N-1)/N x {basis.gradient_bytes:,} bytes of gradients per step at {basis.gbps:.2f} "
        f"Gbit/s ({link}), all of it after the backward pass: overlap would make it cheaper.",
        loader,
    )
