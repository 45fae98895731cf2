"""What more devices than there are would give: computed from measurements on one device, and never mixed with them."""

import math
from dataclasses import dataclass, replace

from common.files.probe import Bucket
from comparison.judge.link import Link
from comparison.judge.measures import Summary
from comparison.methods import method_of, projected_method
from comparison.record import Report
from comparison.words import count, say

LABEL = say("projected, not measured")
TESTED = 4  # devices, by benchmarks/links.py


@dataclass(frozen=True)
class ModelledStep:
    """What takes how many milliseconds in a step of N devices, each of which has a process of its own.

    compute: one device's step on its part of the batch. all_reduce: of the gradients, as far as the backward pass is
    over by then. loading: until the loader's workers deliver a batch, or, without workers, until each process has
    loaded its part. workers: whether it has any. cores: all that those processes and workers compute, divided among the
    cores; None where GPUs train.
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
    """One number of devices. error: projected ÷ measured - 1, where that was measured and is not itself a premise.

    tree: the speed-up if gradients went along trees, not round a ring.
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
    """The projection for one device and each number of --project, and in words where it stops and what it assumes."""

    points: tuple[Projected, ...]
    assumptions: tuple[str, ...]
    stops: tuple[str, ...] = ()


def project(report: Report, summaries: dict[str, Summary]) -> Projection:
    """Return the projection for one device and for each number of --project; without points if none was asked.

    All of a step but the exchange of gradients, which was measured by itself, is multiplied by the same factor: what
    one device was measured to take, with loader and all, ÷ what the model gives for it; by 1 if no such row was run. Of
    a sweep, the first value counts. Also without points where a step that it needs did not fit into memory, or other
    programs disturbed a row. summaries: of all rows, by their configuration's name.
    """
    if any(row.disturbed for row in report.rows):
        return Projection((), (say("Not computed: other programs disturbed the comparison."),))
    basis = _basis(report) if report.settings["project"] and report.probe else None
    counts = (1, *sorted(set(report.settings["project"]) - {1}))
    if basis is None or not all(basis.batch // devices in basis.steps for devices in counts):
        why = say("Not computed: a step on one device did not fit into memory, or nothing was measured.")
        return Projection((), (why,))
    steps, measured_alone = _steps(report, basis.batch), _measured(report, 1, summaries)
    factor = measured_alone and 1000 * measured_alone / steps / _step(basis, 1).milliseconds
    basis = replace(basis, factor=factor or 1.0)
    points = []
    for devices in counts:
        step, measured = _step(basis, devices), _measured(report, devices, summaries)
        speed_up, tree = (
            _step(basis, 1).milliseconds / _step(basis, devices, along).milliseconds for along in (Link.ring, Link.tree)
        )
        seconds = step.milliseconds / 1000 * steps
        error = seconds / measured - 1 if measured and devices > 1 else None
        points.append(Projected(devices, step, seconds, speed_up, tree, measured, error))
    ways = ((Link.ring, say("round a ring")), (Link.tree, say("along trees")))
    stops = tuple(_most_that_pay(basis, *way) for way in ways)
    return Projection(tuple(points), _assumptions(report, basis, factor), stops)


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
    buckets: tuple[Bucket, ...]
    link: Link
    wait: float
    loading: float
    cpu: float
    old: bool
    factor: float = 1.0


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
        planned.model,
        planned.batch_size,
        planned.num_workers,
        planned.threads,
        cores if planned.device == "cpu" else None,
        probe.step_milliseconds(planned.model),
        model.buckets or (Bucket(model.gradient_bytes, None),),
        _link(report, model),
        _wait(report, model),
        1000 * planned.batch_size / loader.images_per_second,
        1000 * planned.batch_size * per_image,
        old,
    )


def _link(report, model):
    """The link between two devices: what ranks measured here and, of other machines, what settings say comes on top.

    Of GPUs, a given speed is all of it: they copy nothing themselves.
    """
    ranks, on_cpu = _ranks_here(report), report.first.device == "cpu"
    segments = at_once = 2 if on_cpu else 1
    short, given = model.short_milliseconds or 0.0, report.settings["link_gbps"]
    gbps = math.inf
    if on_cpu or not given:
        waiting = _bus_milliseconds(model, ranks)
        rest = (model.long_milliseconds or waiting) - short  # what a short exchange takes, a long one does too
        gbps = model.link_gbps * waiting / rest if rest > 0 else math.inf
    return Link(
        short / (2 * (ranks - 1) * segments),
        gbps,
        segments,
        at_once,
        report.environment["cores"] if on_cpu else None,
        report.settings.get("link_ms") or 0.0,
        given or math.inf,
    )


def _wait(report, model):
    """Milliseconds that a rank here waited for others before an exchange began; 0 if an older probe did not tell."""
    if not model.long_milliseconds:
        return 0.0
    return max(0.0, _bus_milliseconds(model, _ranks_here(report)) - model.long_milliseconds)


def _bus_milliseconds(model, ranks):
    """What the exchange took by which link_gbps was measured."""
    return 8e-6 * model.gradient_bytes * 2 * (ranks - 1) / ranks / model.link_gbps


def _ranks_here(report):
    return max(2, len(report.environment["gpus"])) if report.first.device == "gpu" else 2


def _step(basis, devices, along=Link.ring):
    compute, loading = basis.factor * basis.steps[basis.batch // devices], basis.factor * basis.loading
    cores = basis.cores and (basis.factor * basis.cpu + devices * basis.threads * compute) / basis.cores
    exchange = basis.link.waited_for(basis.buckets, max(compute, cores or 0.0), devices, along)
    return ModelledStep(
        compute,
        exchange + (basis.wait if devices > 1 else 0.0),
        loading if basis.workers else loading / devices,
        basis.workers > 0,
        cores,
    )


def _steps(report, batch):
    steps = -(-report.probe.train_images // batch)
    return min(steps, report.settings["max_steps"] or steps)


def _measured(report, devices, summaries):
    """Seconds per epoch of the row on so many devices that is planned as the first row is, if it was run."""
    part = report.first.per_device_batch_size  # which follows from the number of devices
    for row in report.rows:
        method = method_of(row.configuration.method)
        wanted = method.baseline if devices == 1 else method.projected
        if (
            wanted
            and row.results
            and len(row.results[0].devices) == devices
            and replace(row.configuration.planned, per_device_batch_size=part) == report.first
        ):
            return summaries[row.configuration.name].epoch_seconds
    return None


def _assumptions(report, basis, factor):
    link, speed = basis.link, basis.link.gbps
    how = say("measured here between {n} ranks that train", n=_ranks_here(report))
    if basis.old:
        how = say("measured here by an older probe, between two idle ranks: more than ranks that train have")
    given = ()
    if speed == math.inf and link.wire < math.inf:
        speed, how = link.wire, say("as given")
    elif link.wire < math.inf:
        given = (say("Besides, each message goes over a link of {g:.2f} Gbit/s, as given.", g=link.wire),)
    start = say("That messages take time to start is not in it.")
    if link.message(1):
        start = say(
            "A ring's {k} (N-1) messages follow one another, and each takes {x:.2f} ms to start.",
            k=2 * link.segments,
            x=link.message(1),
        )
    crowd = say("Where ranks share a core, what each does for the exchange takes as many times as long.")
    wait = say("Besides, ranks wait {x:.2f} ms for one another, as measured here.", x=basis.wait)
    scale = say("No row shows what one device takes, to adjust this to.")
    if factor:
        scale = say(
            "One device was measured to take {x:.2f} times what this makes of its own step and loader; both are "
            "multiplied by that here.",
            x=factor,
        )
    return (
        say(
            "projected, not measured: {model}, global batch {n}; {name} with the batch divided by the number of "
            "devices.",
            model=basis.model,
            n=basis.batch,
            name=projected_method().called,
        ),
        say(
            "A step takes what one device alone was measured to need for its part of the batch, then the all-reduce; "
            "every further device is as fast."
        ),
        _loader(basis),
        _sharing(basis),
        say(
            "An all-reduce moves 2 (N-1)/N x {b:,} bytes of gradients per step at {g:.2f} Gbit/s ({how}), round a "
            "ring.",
            b=sum(bucket.size for bucket in basis.buckets),
            g=speed,
            how=how,
        ),
        *given,
        start,
        *([crowd] if link.cores else ()),
        *([wait] if basis.wait else ()),
        _overlap(basis.buckets),
        say(
            "What this makes of up to {n} devices was set beside measurements over links of known speed; of more, "
            "nothing was.",
            n=TESTED,
        ),
        scale,
    )


def _loader(basis):
    rate = 1000 * basis.batch / basis.loading
    if not basis.workers:
        return say(
            "Without workers, each process loads its own part before every step, at the measured {r:,.0f} images/s.",
            r=rate,
        )
    return say(
        "{workers} can deliver at most {r:,.0f} images/s, measured with no training beside them: with as many workers, "
        "a step takes no less on any number of devices.",
        workers=count(basis.workers, "loader worker"),
        r=rate,
    )


def _sharing(basis):
    if not basis.cores:
        return say("The devices take nothing from one another (power, the cores that feed them).")
    how = say("measured")
    if basis.old:
        how = say("its workers being busy all the time, which an older probe did not measure")
    return say(
        "All processes share {cores}: before the all-reduce, a step takes what they compute, divided by that, or more: "
        "{x:.1f} ms of a core for the loader's work on a batch ({how}), and every device's own step on {threads}. The "
        "devices take nothing else from one another (memory, power).",
        cores=count(basis.cores, "core"),
        x=basis.cpu,
        how=how,
        threads=count(basis.threads, "thread"),
    )


def _overlap(buckets):
    if len(buckets) > 1:
        return say(
            "The exchange begins in the backward pass, when the first {b:,} bytes are computed: {x:.0%} of a step "
            "before that pass ends.",
            b=buckets[0].size,
            x=buckets[0].left,
        )
    if buckets[0].left is None:
        return say("All of it comes after the backward pass: overlap would make it cheaper.")
    return say("All of it comes after the backward pass, as the gradients fit into the first bucket.")


def _most_that_pay(basis, along, way):
    """With how many devices a step is shortest, of those that divide the batch into parts that were measured."""
    counts = [basis.batch // size for size in basis.steps if basis.batch % size == 0]
    best = min(counts, key=lambda devices: _step(basis, devices, along).milliseconds)
    if best == 1:
        return say("If gradients go {way}, no number of devices is faster than one.", way=way)
    most = say("as many as were computed" if best == max(counts) else "with more, a step takes longer")
    return say(
        "If gradients go {way}, {n} devices are fastest, of {b} images each: {most}.",
        way=way,
        n=best,
        b=basis.batch // best,
        most=most,
    )
