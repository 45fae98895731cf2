"""Project the speed-up with more devices than there are. Projections are never mixed with measurements."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.files.probe import Bucket, ModelLink, Probe
from comparison.cluster import ALONE, Cluster, Link, expected_maximum
from comparison.judge.summaries import Finding, Summary
from comparison.methods import BASELINE, METHODS, PROJECTED
from comparison.record import Report
from comparison.rows import Planned
from comparison.words import say

LABEL = say("projected, not measured")
# The cost of exchanging gradients and of waiting, measured ÷ projected: the least and the most, the number of
# measurements and the most devices. NCCL: published results (benchmarks/published.py). gloo: benchmarks/links.py.
NCCL_COSTS, GLOO_COSTS = (0.6, 5.7, 43, 512), (0.7, 2.3, 54, 4)


@dataclass(frozen=True)
class ModelledStep:
    """The milliseconds of a step with one process per device.

    compute: one device's step on its part of the batch. exchange: the part of the gradients' exchange after the
    backward pass, and the time a rank waits for the slowest one. loading: until the loader's workers deliver a
    machine's batch or, without workers, until each process has loaded its part. workers: whether the loader has any.
    cores: the CPU time of a machine's processes and workers, divided by its cores; None on GPUs.
    """

    compute: float
    exchange: float
    loading: float
    workers: bool
    cores: float | None

    @property
    def milliseconds(self) -> float:
        """The step: as long as the slowest of devices, loader and cores. Without workers, processes load first."""
        device = self.compute + (0.0 if self.workers else self.loading)
        return max(max(device, self.cores or 0.0) + self.exchange, self.loading)


@dataclass(frozen=True)
class Projected:
    """The projection for one cluster.

    low, high: the range of its speed-up, by NCCL_COSTS or GLOO_COSTS. error: projected ÷ measured - 1, if measured and
    not an input.
    """

    cluster: Cluster
    step: ModelledStep
    epoch_seconds: float
    speed_up: float
    low: float
    high: float
    measured_seconds: float | None
    error: float | None


@dataclass(frozen=True)
class Projection:
    """The projections for one device and each value of --project, their assumptions, and the most devices that pay."""

    points: tuple[Projected, ...]
    assumptions: tuple[Finding, ...]
    stops: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Basis:
    """Measurements with the first value of every sweep. steps: images → milliseconds, with the row's threads.

    batch: images in a step or, if `weak`, on each device. ranks: the number that exchanged gradients here. wait:
    milliseconds that one of them waits for the others before an exchange. loading, cpu: milliseconds per image until
    the loader delivers it, and CPU time for it. cores: of a machine; None on GPUs, as the CPU time of their processes
    was not measured and the loader alone is not slowed down by sharing the cores. factor: measured ÷ modelled time of
    one device.
    """

    planned: Planned
    batch: int
    weak: bool
    cores: float | None
    steps: dict[int, float]
    buckets: tuple[Bucket, ...]
    ranks: int
    link: Link
    wait: float
    loading: float
    cpu: float
    factor: float | None = None

    def images(self, cluster: Cluster) -> int:
        """Return the number of images in a step."""
        return self.batch * cluster.total if self.weak else self.batch

    def step(self, cluster: Cluster) -> ModelledStep:
        planned, factor = self.planned, self.factor or 1.0
        share, machine = (self.images(cluster) // count for count in (cluster.total, cluster.machines))
        compute = factor * self.steps[share]
        cores = self.cores and (factor * self.cpu * machine + cluster.devices * planned.threads * compute) / self.cores
        exchange = self.link.exposed(self.buckets, max(compute, cores or 0.0), cluster) if cluster != ALONE else 0.0
        exchange += self.wait * expected_maximum(cluster.total) / expected_maximum(self.ranks)
        workers = planned.num_workers > 0
        return ModelledStep(compute, exchange, factor * self.loading * (machine if workers else share), workers, cores)

    def speed_up(self, step: ModelledStep, cluster: Cluster) -> float:
        """Return one device's milliseconds per image ÷ those of a step."""
        alone = self.step(ALONE).milliseconds / self.images(ALONE)
        return alone / (step.milliseconds / self.images(cluster))


def device_batch(report: Report, devices: int) -> int:
    """Return the number of images on each device."""
    weak = report.settings["scaling"] == "weak"
    return report.first.per_device_batch_size if weak else report.first.batch_size // devices


def project(report: Report, summaries: dict[str, Summary]) -> Projection:
    """Return the projections for one device and each value of --project.

    There are no points without --project, if a necessary step did not fit into memory, or if other programs disturbed a
    row. summaries: of all rows, by configuration's name.
    """
    if any(row.disturbed for row in report.rows):
        return Projection((), (Finding("projection disturbed"),))
    basis = basis_of(report, summaries) if report.settings["project"] else None
    clusters = sorted({ALONE, *map(Cluster.parse, report.settings["project"])}, key=lambda cluster: cluster.total)
    if not basis or not all(device_batch(report, cluster.total) in basis.steps for cluster in clusters):
        return Projection((), (Finding("nothing to project"),))
    points = [_point(report, basis, cluster, summaries) for cluster in clusters]
    stops = () if basis.weak else (_most_that_pay(basis, clusters[-1]),)
    return Projection(tuple(points), tuple(_assumptions(basis, clusters)), stops)


def basis_of(report: Report, summaries: dict[str, Summary]) -> Basis | None:
    """Return the measurements of the probe. Of each sweep, the first value is used.

    The step without the exchange of gradients, which was measured separately, is scaled by a common factor: measured ÷
    modelled time of one device with its loader, or 1 if that row was not run.
    """
    basis, alone = _probed(report, report.probe) if report.probe else None, _measured(report, ALONE, summaries)
    if not basis or not alone or device_batch(report, 1) not in basis.steps:
        return basis
    step = 1000 * alone / _steps(report, basis.images(ALONE))
    return replace(basis, factor=step / basis.step(ALONE).milliseconds)


def _steps(report: Report, images: int) -> int:
    """Return the number of steps per epoch."""
    assert report.probe
    steps = math.ceil(report.probe.train_images / images)
    return min(steps, report.settings["max_steps"] or steps)


def _point(report: Report, basis: Basis, cluster: Cluster, summaries: dict[str, Summary]) -> Projected:
    step, measured = basis.step(cluster), _measured(report, cluster, summaries)
    seconds = step.milliseconds / 1000 * _steps(report, basis.images(cluster))
    costs = GLOO_COSTS if basis.cores else NCCL_COSTS
    high, low = (basis.speed_up(replace(step, exchange=cost * step.exchange), cluster) for cost in costs[:2])
    error = seconds / measured - 1 if measured and cluster != ALONE else None
    return Projected(cluster, step, seconds, basis.speed_up(step, cluster), low, high, measured, error)


def _probed(report: Report, probe: Probe) -> Basis | None:
    planned = report.first
    model = next((model for model in probe.models if model.model == planned.model), None)
    loader = next((loader for loader in probe.loaders if loader.num_workers == planned.num_workers), None)
    inside = planned.device == "cpu" or any(Cluster.parse(text).devices > 1 for text in report.settings["project"])
    if not model or not loader or (inside and not model.link_gbps):
        return None
    ranks = max(2, len(report.environment["gpus"])) if planned.device == "gpu" else 2
    waiting = 8e-6 * model.gradient_bytes * 2 * (ranks - 1) / ranks / (model.link_gbps or math.inf)
    return Basis(
        planned=planned,
        batch=device_batch(report, 1),
        weak=report.settings["scaling"] == "weak",
        cores=report.environment["cores"] if planned.device == "cpu" else None,
        steps=probe.step_milliseconds(planned.model),
        buckets=model.buckets or (Bucket(model.gradient_bytes, None),),
        ranks=ranks,
        link=_link(report, model, ranks, waiting),
        wait=max(0.0, waiting - model.long_milliseconds) if model.long_milliseconds else 0.0,
        loading=1000 / loader.images_per_second,
        cpu=1000 * loader.cpu_seconds_per_image,
    )


def _link(report: Report, model: ModelLink, ranks: int, waiting: float) -> Link:
    """Return the link measured between ranks on this machine, and the given network between machines.

    waiting: milliseconds of the exchange with which link_gbps was measured.
    """
    on_cpu, short = report.first.device == "cpu", model.short_milliseconds or 0.0
    segments = at_once = 2 if on_cpu else 1
    rest = (model.long_milliseconds or waiting) - short  # a long exchange contains the time of a short one
    return Link(
        start=short / (2 * (ranks - 1) * segments),
        gbps=math.inf if rest <= 0 else (model.link_gbps or math.inf) * waiting / rest,
        segments=segments,
        at_once=at_once,
        cores=report.environment["cores"] if on_cpu else None,
        delay=report.settings.get("link_ms") or 0.0,
        wire=report.settings["link_gbps"] or math.inf,
    )


def _measured(report: Report, cluster: Cluster, summaries: dict[str, Summary]) -> float | None:
    """Return the seconds per epoch of this machine's row with these devices and the first row's plan, if it was run."""
    scaled = "batch_size" if report.settings["scaling"] == "weak" else "per_device_batch_size"  # with the devices
    for row in report.rows:
        if (
            cluster.machines == 1
            and row.configuration.method == (BASELINE if cluster == ALONE else PROJECTED)
            and row.results
            and len(row.results[0].devices) == cluster.devices
            and replace(row.configuration.planned, **{scaled: getattr(report.first, scaled)}) == report.first
        ):
            return summaries[row.name].epoch_seconds
    return None


def _assumptions(basis: Basis, clusters: Sequence[Cluster]) -> Iterator[Finding]:
    planned, link, model = basis.planned, basis.link, basis.planned.model
    kind = "projected per device" if basis.weak else "projected"
    yield Finding(kind, {"model": model, "n": basis.batch, "name": METHODS[PROJECTED].called})
    yield Finding("even devices")
    rate = {"workers": planned.num_workers, "r": 1000 / basis.loading}
    yield Finding("loader" if planned.num_workers else "no loader workers", rate)
    cpu = basis.cpu * basis.images(ALONE)
    shared = {"cores": basis.cores, "x": cpu, "how": Finding("measured"), "threads": planned.threads}
    yield Finding("all cores", shared) if basis.cores else Finding("own power")
    size = sum(bucket.size for bucket in basis.buckets)
    if link.gbps < math.inf:
        how = Finding("training ranks", {"n": basis.ranks})
        yield Finding("all-reduce", {"b": size, "g": link.gbps, "how": how})
    if any(cluster.machines > 1 for cluster in clusters):
        yield Finding("network", {"b": size, "g": link.wire, "x": link.delay})
    start = {"k": 2 * link.segments, "x": link.start}
    yield Finding("messages", start) if link.start else Finding("no start")
    if link.cores:
        yield Finding("crowded")
    if basis.wait:
        yield Finding("wait", {"x": basis.wait, "n": basis.ranks})
    first = basis.buckets[0]
    if len(basis.buckets) > 1:
        yield Finding("overlap", {"b": first.size, "x": first.left})
    else:
        yield Finding("unknown overlap" if first.left is None else "no overlap")
    low, high, count, most = GLOO_COSTS if basis.cores else NCCL_COSTS
    kind = "measured costs" if basis.cores else "published costs"
    yield Finding(kind, {"low": low, "high": high, "n": count, "most": most})
    yield Finding("scaled", {"x": basis.factor}) if basis.factor else Finding("not scaled")


def _most_that_pay(basis: Basis, asked: Cluster) -> Finding:
    """Return the number of devices with the shortest step, among those that divide the batch into measured parts.

    asked: the largest cluster of --project; further machines have as many devices as its machines.
    """
    counts = [basis.batch // size for size in basis.steps if basis.batch % size == 0]
    inside = asked.devices if asked.machines > 1 else max(counts)
    clusters = [Cluster(-(-count // inside), min(count, inside)) for count in counts if count % min(count, inside) == 0]
    best = min(clusters, key=lambda cluster: basis.step(cluster).milliseconds)
    if best == ALONE:
        return Finding("one is fastest")
    most = Finding("most computed" if best.total == max(counts) else "longer")
    return Finding("fastest", {"n": best.total, "b": basis.batch // best.total, "most": most})
