"""What more devices than there are would give: computed from measurements on one device, and never mixed with them."""

from dataclasses import dataclass, replace

from common.words import count
from comparison.measures import Summary
from comparison.methods import method_of, projected_method
from comparison.record import Report

LABEL = "projected, not measured"


@dataclass(frozen=True)
class ModelledStep:
    """What takes how many milliseconds in a step of N devices, each of which has a process of its own.

    compute: one device's step on its part of the batch. all_reduce: of the gradients. loading: until the loader's
    workers deliver a batch, or, without workers, until each process has loaded its part. workers: whether it has any.
    cores: all that those processes and workers compute, divided among the cores; None where GPUs train.
    """

    compute: float
    all_reduce: float
    loading: float
    workers: bool
    cores: float | None

    @property
    def milliseconds(self) -> float:
        """The whole step: as long as the slowest of devices, loader and cores. Processes without workers load first."""
        device = self.compute + (0.0 if self.workers else self.loading)
        return max(max(device, self.cores or 0.0) + self.all_reduce, self.loading)


@dataclass(frozen=True)
class Projected:
    """One number of devices. error: projected ÷ measured - 1, where that was measured and is not itself a premise."""

    devices: int
    step: ModelledStep
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

    Every ModelledStep is multiplied by the same factor: what one device was measured to take, with loader and all, ÷
    what the model gives for it; by 1 if no such row was run. Of a sweep, the first value counts. Also without points
    where a step that it needs did not fit into memory. summaries: of all rows, by their configuration's name.
    """
    basis = _basis(report) if report.settings["project"] and report.probe else None
    counts = (1, *sorted(set(report.settings["project"]) - {1}))
    if basis is None or not all(basis.batch // devices in basis.steps for devices in counts):
        return Projection((), ("Not computed: a step on one device did not fit into memory, or nothing was measured.",))
    alone = _step(basis, 1).milliseconds / 1000 * _steps(report, basis.batch)
    measured_alone = _measured(report, 1, summaries)
    factor = measured_alone / alone if measured_alone else None
    points = []
    for devices in counts:
        step, measured = _step(basis, devices), _measured(report, devices, summaries)
        speed_up = _step(basis, 1).milliseconds / step.milliseconds
        seconds = (measured_alone or alone) / speed_up
        error = seconds / measured - 1 if measured and devices > 1 else None
        points.append(Projected(devices, step, seconds, speed_up, measured, error))
    return Projection(tuple(points), _assumptions(report, basis, factor))


def all_reduce_milliseconds(size: int, devices: int, gbps: float) -> float:
    """Return how long a ring all-reduce of `size` bytes takes over links of `gbps` gigabits per second.

    Each device sends 2 (N-1)/N of the bytes (P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009); the time
    for messages to start is not in it.
    """
    return 1000 * 2 * (devices - 1) / devices * size * 8e-9 / gbps


@dataclass(frozen=True)
class _Basis:
    """What was measured for the first value of every sweep; steps: images → milliseconds, on `threads` threads.

    loading, cpu: milliseconds in which the loader delivers a batch, and those that it takes of all cores meanwhile.
    cores: of the machine; None where GPUs train: what their processes need of the cores was not measured, and the
    loader alone takes none the longer for sharing them. old: an older probe measured no cpu, and idle ranks' exchange.
    """

    model: str
    batch: int
    workers: int
    threads: int
    cores: int | None
    steps: dict[int, float]
    gradient_bytes: int
    gbps: float
    loading: float
    cpu: float
    old: bool


def _basis(report):
    planned, probe = report.first, report.probe
    model = next((model for model in probe.models if model.model == planned.model), None)
    loader = next((loader for loader in probe.loaders if loader.num_workers == planned.num_workers), None)
    if not model or not loader:
        return None
    cores, per_image = report.environment["cores"], loader.cpu_seconds_per_image
    if old := per_image is None:
        per_image = max(1, min(planned.num_workers, cores)) / loader.images_per_second
    return _Basis(
        planned.model, planned.batch_size, planned.num_workers, planned.threads,
        cores if planned.device == "cpu" else None, probe.step_milliseconds(planned.model), model.gradient_bytes,
        report.settings["link_gbps"] or model.link_gbps, 1000 * planned.batch_size / loader.images_per_second,
        1000 * planned.batch_size * per_image, old)


def _step(basis, devices):
    compute = basis.steps[basis.batch // devices]
    return ModelledStep(
        compute, all_reduce_milliseconds(basis.gradient_bytes, devices, basis.gbps),
        basis.loading if basis.workers else basis.loading / devices, basis.workers > 0,
        basis.cores and (basis.cpu + devices * basis.threads * compute) / basis.cores)


def _steps(report, batch):
    steps = -(-report.probe.train_images // batch)
    return min(steps, report.settings["max_steps"] or steps)


def _measured(report, devices, summaries):
    """Seconds per epoch of the row on so many devices that is planned as the first row is, if it was run."""
    part = report.first.per_device_batch_size  # which follows from the number of devices
    for row in report.rows:
        method = method_of(row.configuration.method)
        wanted = method.baseline if devices == 1 else method.projected
        if (wanted and row.results and len(row.results[0].devices) == devices
                and replace(row.configuration.planned, per_device_batch_size=part) == report.first):
            return summaries[row.configuration.name].epoch_seconds
    return None


def _assumptions(report, basis, factor):
    rate = 1000 * basis.batch / basis.loading
    loader = (f"{count(basis.workers, 'loader worker')} can deliver at most {rate:,.0f} images/s, measured with no "
              "training beside them: with as many workers, a step takes no less on any number of devices.")
    if not basis.workers:
        loader = (f"Without workers, each process loads its own part before every step, at the measured {rate:,.0f} "
                  "images/s.")
    sharing = "The devices take nothing from one another (power, the cores that feed them)."
    if basis.cores:
        how = "measured"
        if basis.old:
            how = "its workers being busy all the time, which an older probe did not measure"
        sharing = (f"All processes share {count(basis.cores, 'core')}: before the all-reduce, a step takes what "
                   f"they compute, divided by that, or more: {basis.cpu:.1f} ms of a core for the loader's work on a "
                   f"batch ({how}), and every device's own step on {count(basis.threads, 'thread')}. The devices take "
                   "nothing else from one another (memory, power).")
    ranks = len(report.environment["gpus"]) if report.first.device == "gpu" else 2
    link = f"measured here between {ranks} ranks that train, at this size"
    if basis.old:
        link = "measured here by an older probe, at this size, between two idle ranks: more than ranks that train have"
    if report.settings["link_gbps"]:
        link = "as given"
    scale = "No row shows what one device takes, to adjust this to."
    if factor:
        scale = (f"One device was measured to take {factor:.2f} times what this makes of its own step and loader; "
                 "every epoch here is multiplied by that.")
    return (
        f"{LABEL}: {basis.model}, global batch {basis.batch}; {projected_method().called} with the batch divided by "
        "the number of devices.",
        "A step takes what one device alone was measured to need for its part of the batch, then the all-reduce; every "
        "further device is as fast.",
        loader,
        sharing,
        f"An all-reduce moves 2 (N-1)/N x {basis.gradient_bytes:,} bytes of gradients per step at {basis.gbps:.2f} "
        f"Gbit/s ({link}), all of it after the backward pass: overlap would make it cheaper.",
        scale,
    )
