"""Project the speed-up with more devices than there are. Projections are never mixed with measurements."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from common.files.probe import Bucket, ModelLink, Probe
from comparison.judge.summaries import Finding, Summary
from comparison.methods import method_of, projected_method
from comparison.record import Report
from comparison.rows import Planned
from comparison.words import say

LABEL = say("projected, not measured")
TESTED = 4  # devices in benchmarks/links.py


@dataclass(frozen=True)
class Link:
    """The connection of the devices. A message takes some milliseconds to start, and 8e-6 ÷ gigabit/s for each byte.

    start, gbps: of two devices on this machine. cores: CPU ranks copy messages themselves, which takes longer if more
    ranks than cores share them; None on GPUs. delay (milliseconds), wire (gigabit/s): of a given link, in addition, as
    a message is copied completely before it is sent. segments: the number of consecutive messages in each step of the
    ring: 2 with gloo (seen on a link of known delay, benchmarks/links.py), 1 with NCCL. at_once: the number of
    concurrent exchanges: 2 with gloo, which has two threads (torch, ProcessGroupGloo.hpp), 1 with NCCL.
    """

    start: float
    gbps: float
    segments: int
    at_once: int
    cores: float | None = None
    delay: float = 0.0
    wire: float = math.inf

    def message(self, devices: int) -> float:
        """Return the milliseconds to start a message between this number of devices."""
        return self.start * self._slowdown(devices) + self.delay

    def byte(self, devices: int) -> float:
        """Return the milliseconds for each byte between this number of devices."""
        return 8e-6 * (self._slowdown(devices) / self.gbps + 1 / self.wire)

    def _slowdown(self, devices: int) -> float:
        return max(1.0, devices / self.cores) if self.cores else 1.0

    def ring(self, size: float, devices: int) -> tuple[float, float]:
        """Return the milliseconds for message starts and for the bytes in a ring all-reduce of `size` bytes.

        It has 2 (N-1) steps with 1/N of the bytes each: P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009.
        """
        steps = 2 * (devices - 1)
        return steps * self.segments * self.message(devices), steps * size / devices * self.byte(devices)

    def tree(self, size: float, devices: int) -> tuple[float, float]:
        """Return the same for two trees, up and down, each with half of the bytes and a depth of log2 N.

        P. Sanders, J. Speck, J. L. Träff, Parallel Computing 35, 2009. The bytes take as long as in a ring at best.
        """
        return 2 * (devices - 1).bit_length() * self.message(devices), self.ring(size, devices)[1]

    def waited_for(self, buckets: Sequence[Bucket], step: float, devices: int, along: "Along" = ring) -> float:
        """Return the milliseconds for which ranks still exchange gradients after their backward pass.

        step: the milliseconds of the rest of the step. An exchange begins when its bucket is full and fewer than
        `at_once` earlier ones are running; the link transfers bytes one after the other. along: ring or tree.
        """
        free, ends = -math.inf, [-math.inf] * self.at_once  # times relative to the end of the backward pass
        for bucket in buckets:
            starting, sending = along(self, bucket.size, devices)
            free = max(free, min(ends), -(bucket.left or 0.0) * step) + sending
            ends[ends.index(min(ends))] = free + starting
        return max(0.0, *ends)


Along = Callable[[Link, float, int], tuple[float, float]]
WAYS: dict[str, Along] = {"ring": Link.ring, "tree": Link.tree}


@dataclass(frozen=True)
class ModelledStep:
    """The milliseconds of a step of N devices with one process each.

    compute: one device's step on its part of the batch. all_reduce: the part of the gradients' exchange after the
    backward pass. loading: until the loader's workers deliver a batch or, without workers, until each process has
    loaded its part. workers: whether the loader has any. cores: the CPU time of all processes and workers, divided by
    the cores; None on GPUs.
    """

    compute: float
    all_reduce: float
    loading: float
    workers: bool
    cores: float | None

    @property
    def milliseconds(self) -> float:
        """The step: as long as the slowest of devices, loader and cores. Without workers, processes load first."""
        device = self.compute + (0.0 if self.workers else self.loading)
        return max(max(device, self.cores or 0.0) + self.all_reduce, self.loading)


@dataclass(frozen=True)
class Projected:
    """The projection for one number of devices. error: projected ÷ measured - 1, if measured and not an input.

    tree: the speed-up if gradients were exchanged along trees instead of a ring.
    """

    devices: int
    step: ModelledStep
    epoch_seconds: float
    speed_up: float
    tree: float
    measured_seconds: float | None
    error: float | None


@dataclass(frozen=True)
class Projection:
    """The projections for one device and each number of --project, their assumptions, and the most devices that pay."""

    points: tuple[Projected, ...]
    assumptions: tuple[Finding, ...]
    stops: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Basis:
    """Measurements with the first value of every sweep. steps: images → milliseconds, with the row's threads.

    ranks: the number that exchanged gradients here. wait: milliseconds that a rank waits for others before an exchange.
    loading, cpu: milliseconds per batch until the loader delivers it, and CPU time for it. cores: of the machine; None
    on GPUs, as the CPU time of their processes was not measured and the loader alone is not slowed down by sharing the
    cores. factor: measured ÷ modelled time of one device.
    """

    planned: Planned
    cores: float | None
    steps: dict[int, float]
    buckets: tuple[Bucket, ...]
    ranks: int
    link: Link
    wait: float
    loading: float
    cpu: float
    factor: float | None = None

    def step(self, devices: int, along: Along = Link.ring) -> ModelledStep:
        """Return the modelled step for this number of devices."""
        planned, factor = self.planned, self.factor or 1.0
        compute, loading = factor * self.steps[planned.batch_size // devices], factor * self.loading
        cores = self.cores and (factor * self.cpu + devices * planned.threads * compute) / self.cores
        all_reduce = self.link.waited_for(self.buckets, max(compute, cores or 0.0), devices, along)
        all_reduce += self.wait if devices > 1 else 0.0
        workers = planned.num_workers > 0
        return ModelledStep(compute, all_reduce, loading if workers else loading / devices, workers, cores)


def project(report: Report, summaries: dict[str, Summary]) -> Projection:
    """Return the projections for one device and each number of --project.

    The step without the exchange of gradients, which was measured separately, is scaled by a common factor: measured ÷
    modelled time of one device with its loader, or 1 if that row was not run. Of each sweep, the first value is used.
    There are no points without --project, if a necessary step did not fit into memory, or if other programs disturbed a
    row. summaries: of all rows, by configuration's name.
    """
    if any(row.disturbed for row in report.rows):
        return Projection((), (Finding("projection disturbed"),))
    probe, batch = report.probe, report.first.batch_size
    basis = _basis(report, probe) if report.settings["project"] and probe else None
    counts = (1, *sorted(set(report.settings["project"]) - {1}))
    if not probe or not basis or not all(batch // devices in basis.steps for devices in counts):
        return Projection((), (Finding("nothing to project"),))
    steps = math.ceil(probe.train_images / batch)
    steps = min(steps, report.settings["max_steps"] or steps)
    alone = _measured(report, 1, summaries)
    basis = replace(basis, factor=1000 * alone / steps / basis.step(1).milliseconds if alone else None)
    points = []
    for devices in counts:
        step, measured = basis.step(devices), _measured(report, devices, summaries)
        ring, tree = (
            basis.step(1).milliseconds / basis.step(devices, along).milliseconds for along in (Link.ring, Link.tree)
        )
        seconds = step.milliseconds / 1000 * steps
        error = seconds / measured - 1 if measured and devices > 1 else None
        points.append(Projected(devices, step, seconds, ring, tree, measured, error))
    return Projection(tuple(points), tuple(_assumptions(basis)), tuple(_most_that_pay(basis, way) for way in WAYS))


def _basis(report: Report, probe: Probe) -> _Basis | None:
    planned = report.first
    model = next((model for model in probe.models if model.model == planned.model), None)
    loader = next((loader for loader in probe.loaders if loader.num_workers == planned.num_workers), None)
    if not model or not loader:
        return None
    ranks = max(2, len(report.environment["gpus"])) if planned.device == "gpu" else 2
    waiting = 8e-6 * model.gradient_bytes * 2 * (ranks - 1) / ranks / (model.link_gbps or math.nan)
    return _Basis(
        planned=planned,
        cores=report.environment["cores"] if planned.device == "cpu" else None,
        steps=probe.step_milliseconds(planned.model),
        buckets=model.buckets or (Bucket(model.gradient_bytes, None),),
        ranks=ranks,
        link=_link(report, model, ranks, waiting),
        wait=max(0.0, waiting - model.long_milliseconds) if model.long_milliseconds else 0.0,
        loading=1000 * planned.batch_size / loader.images_per_second,
        cpu=1000 * planned.batch_size * loader.cpu_seconds_per_image,
    )


def _link(report: Report, model: ModelLink, ranks: int, waiting: float) -> Link:
    """Return the link measured between ranks on this machine, extended by the settings of a given link.

    For GPUs, a given speed replaces the measured one, as they copy nothing themselves. waiting: milliseconds of the
    exchange with which link_gbps was measured.
    """
    on_cpu, given, short = report.first.device == "cpu", report.settings["link_gbps"], model.short_milliseconds or 0.0
    segments = at_once = 2 if on_cpu else 1
    gbps = math.inf
    if on_cpu or not given:
        rest = (model.long_milliseconds or waiting) - short  # a long exchange contains the time of a short one
        gbps = (model.link_gbps or math.nan) * waiting / rest if rest > 0 else math.inf
    return Link(
        start=short / (2 * (ranks - 1) * segments),
        gbps=gbps,
        segments=segments,
        at_once=at_once,
        cores=report.environment["cores"] if on_cpu else None,
        delay=report.settings.get("link_ms") or 0.0,
        wire=given or math.inf,
    )


def _measured(report: Report, devices: int, summaries: dict[str, Summary]) -> float | None:
    """Return the seconds per epoch of the row with this number of devices and the first row's plan, if it was run."""
    part = report.first.per_device_batch_size  # depends on the number of devices
    for row in report.rows:
        method = method_of(row.configuration.method)
        if (
            (method.baseline if devices == 1 else method.projected)
            and row.results
            and len(row.results[0].devices) == devices
            and replace(row.configuration.planned, per_device_batch_size=part) == report.first
        ):
            return summaries[row.configuration.name].epoch_seconds
    return None


def _assumptions(basis: _Basis) -> Iterator[Finding]:
    planned, link, speed = basis.planned, basis.link, basis.link.gbps
    yield Finding("projected", {"model": planned.model, "n": planned.batch_size, "name": projected_method().called})
    yield Finding("even devices")
    rate = {"workers": planned.num_workers, "r": 1000 * planned.batch_size / basis.loading}
    yield Finding("loader" if planned.num_workers else "no loader workers", rate)
    shared = {"cores": basis.cores, "x": basis.cpu, "how": Finding("measured"), "threads": planned.threads}
    yield Finding("all cores", shared) if basis.cores else Finding("own power")
    how = Finding("training ranks", {"n": basis.ranks})
    own_wire = speed == math.inf and link.wire < math.inf
    if own_wire:
        speed, how = link.wire, Finding("given")
    yield Finding("all-reduce", {"b": sum(bucket.size for bucket in basis.buckets), "g": speed, "how": how})
    if link.wire < math.inf and not own_wire:
        yield Finding("wire", {"g": link.wire})
    start = {"k": 2 * link.segments, "x": link.message(1)}
    yield Finding("messages", start) if link.message(1) else Finding("no start")
    if link.cores:
        yield Finding("crowded")
    if basis.wait:
        yield Finding("wait", {"x": basis.wait})
    first = basis.buckets[0]
    if len(basis.buckets) > 1:
        yield Finding("overlap", {"b": first.size, "x": first.left})
    else:
        yield Finding("unknown overlap" if first.left is None else "no overlap")
    yield Finding("tested", {"n": TESTED})
    yield Finding("scaled", {"x": basis.factor}) if basis.factor else Finding("not scaled")


def _most_that_pay(basis: _Basis, way: str) -> Finding:
    """Return the number of devices with the shortest step, among those that divide the batch into measured parts."""
    batch = basis.planned.batch_size
    counts = [batch // size for size in basis.steps if batch % size == 0]
    best = min(counts, key=lambda devices: basis.step(devices, WAYS[way]).milliseconds)
    if best == 1:
        return Finding("one is fastest", {"way": Finding(way)})
    most = Finding("most computed" if best == max(counts) else "longer")
    return Finding("fastest", {"way": Finding(way), "n": best, "b": batch // best, "most": most})
