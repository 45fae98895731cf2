"""The probe before the first run: what it is to measure for these rows, and what it says of them beforehand."""

import json
import math
import time
from dataclasses import replace

from common.files.probe import Probe, probe_from_dict
from common.words import count
from comparison.plan.plan import type_flags, with_cut
from comparison.record import Report
from comparison.run.launch import ask


def run_probe(report: Report, shared_flags: list[str]) -> Probe:
    """Measure what one device, the loader and the link can do alone, as far as these rows need it."""
    first, planned = report.first, [row.planned for row in report.plan if not row.skip]
    sizes = {size for row in planned for size in (row.batch_size, row.per_device_batch_size)}
    if report.settings["project"]:
        batch = first.batch_size
        sizes |= {batch // devices for devices in report.settings["project"]}
        sizes |= {batch >> halvings for halvings in range(batch.bit_length()) if not batch % (1 << halvings)}
    lists = {name: list(dict.fromkeys(getattr(row, name) for row in planned)) for name in ("model", "num_workers")}
    flags = [*shared_flags, *type_flags({**first.flags, **lists}), "--sizes", *map(str, sorted(sizes))]
    if any(row.stages > 1 and not row.skip for row in report.plan):
        flags += ["--cut", str(-(-first.batch_size // report.settings["micro_batches"][0]))]
    if report.settings["project"] or (first.device == "gpu" and report.settings["loader"] == "workers"):
        flags.append("--ceiling")
    if report.settings["project"] or (first.device == "gpu" and len(report.environment["gpus"]) > 1):
        flags.append("--link")
    start = time.perf_counter()
    probe = probe_from_dict(json.loads(ask("common.programs.probe", *flags)))
    return replace(probe, wall_seconds=time.perf_counter() - start)


def tell_cuts(report: Report) -> None:
    """Print where networks are cut into stages, and by which times."""
    cuts = {
        (row.planned.model, row.stages): with_cut(row, report.probe).command[1 - row.stages :]
        for row in report.plan
        if row.stages > 1 and not row.skip
    }
    for (model, stages), blocks in cuts.items():
        times = ", ".join(
            f"{block.block} {block.milliseconds:.1f}" for block in report.probe.blocks if block.model == model
        )
        if times:
            print(f"{model} in {stages} stages is cut before {', '.join(blocks)}: its blocks take {times} ms")


def starved(report: Report) -> list[str]:
    """Return for which models the workers deliver fewer images than a row's GPUs train: rows would tell no more.

    As many GPUs train as share a batch, each as fast as one alone.
    """
    delivered = {loader.num_workers: loader.images_per_second for loader in report.probe.loaders}
    sentences = []
    for planned in (row.configuration.planned for row in report.rows if row.configuration.planned.device == "gpu"):
        milliseconds = report.probe.step_milliseconds(planned.model).get(planned.per_device_batch_size, math.inf)
        trained, speed = 1000 * planned.batch_size / milliseconds, delivered.get(planned.num_workers, math.inf)
        if speed < trained:
            train = "one GPU trains" if planned.shares == 1 else f"{planned.shares} GPUs train"
            sentences.append(
                f"{count(planned.num_workers, 'loader worker')} deliver {speed:,.0f} images/s, of which "
                f"{train} {trained:,.0f} ({planned.model}): these rows would compare loaders; "
                "type --loader resident, or more --num-workers"
            )
    return list(dict.fromkeys(sentences))
