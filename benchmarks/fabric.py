"""How fast do the GPUs of this machine exchange data, and does all of it arrive?

    python benchmarks/fabric.py

Copies of one float32 and of 256 MiB between the host and each GPU, between any two GPUs, and within each; all-reduces
of several sizes between all GPUs (NCCL). What arrives is compared with what was sent. Without GPUs, only all-reduces
are measured, between two ranks on the CPU (gloo).
"""

import functools
import itertools
import json
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from measure import as_table, median
from runs import Runs, benchmark, benchmark_parser
from torch.multiprocessing.spawn import ProcessException, spawn

from common.engine.timing import Stopwatch, synchronize
from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_devices, gpus_can_be_shared
from common.machine.lifetime import end_with_parent, temporary_directory
from common.ranks.group import shutdown

HOST = torch.device("cpu")
SHORT, LONG = 4, 2**28  # bytes of a copy
COPIES = {SHORT: 100, LONG: 5}  # per measurement
MESSAGES = {"cuda": (2**10, 2**16, 2**20, 2**24, 2**28), "cpu": (2**10, 2**16, 2**20, 2**24)}  # bytes of an all-reduce
CALLS = 20  # all-reduces per measurement


@functools.cache
def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(2**62, (-(-size // 8),)).view(torch.uint8)[:size]


def microseconds(source: torch.device, target: torch.device, size: int) -> float:
    """Return the time of a copy of `size` bytes. The next copy begins when the last one has arrived.

    The host's memory is pinned. Raises SuiteError (FAILED) if other bytes arrive.
    """
    sent = random_bytes(size)
    before, after = (
        data.pin_memory() if place == HOST else data.to(place)
        for data, place in ((sent, source), (torch.zeros_like(sent), target))
    )
    gpus = [place for place in (source, target) if place != HOST]
    with Stopwatch(gpus) as watch:
        for _ in range(COPIES[size]):
            after.copy_(before, non_blocking=True)
            synchronize(gpus[-1:])  # the target, if it is a GPU
    if not torch.equal(after.cpu(), sent):
        found = f"{int((after.cpu() != sent).sum()):,} of {size:,} bytes are others"
        raise SuiteError(f"a copy from {source} to {target} is wrong", found, "python -m common.programs.check", FAILED)
    return 1e6 * watch.seconds / COPIES[size]


def all_reduces(devices: list[torch.device]) -> dict[str, float]:
    """Return the microseconds of an all-reduce between these devices, by its bytes."""
    with temporary_directory() as directory:
        try:
            spawn(_rank, ([*map(str, devices)], directory), len(devices))
        except ProcessException as error:
            found = str(error).strip().splitlines()[-1]
            raise SuiteError("an all-reduce failed", found, "NCCL_DEBUG=INFO tells more", FAILED) from error
        return json.loads(Path(directory, "microseconds").read_text(encoding="utf-8"))


def _rank(rank, names, directory):
    """Time all-reduces as one rank. Raises RuntimeError if a sum is wrong."""
    end_with_parent()
    device, ranks, found = torch.device(names[rank]), len(names), {}
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if device_id:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, f"file://{directory}/rendezvous", rank=rank, world_size=ranks, device_id=device_id)
    for size in MESSAGES[device.type]:
        numbers = torch.arange(size // 4, dtype=torch.int32)
        sums = (numbers + rank).to(device)
        dist.all_reduce(sums)  # the first one connects the ranks
        if not torch.equal(sums.cpu(), ranks * numbers + sum(range(ranks))):
            raise RuntimeError(f"sums of {size:,} bytes are wrong on {device}")
        message = torch.zeros(size // 4, device=device)
        dist.barrier()
        with Stopwatch([device]) as watch:
            for _ in range(CALLS):
                dist.all_reduce(message)
        found[size] = 1e6 * watch.seconds / CALLS
    if rank == 0:
        Path(directory, "microseconds").write_text(json.dumps(found), encoding="utf-8")
    shutdown()


def table(results: dict) -> str:
    """Return the tables: copies, from rows to columns, and all-reduces."""
    texts, places = [], results["places"]
    for title, size, text in (
        ("Copy of 256 MiB (GB/s)", LONG, lambda times: f"{LONG / 1e3 / statistics.median(times):,.1f}"),
        ("Copy of one number (µs)", SHORT, lambda times: f"{statistics.median(times):,.1f}"),
    ):
        copies = results["copies"].get(str(size), {})
        rows = [
            (source, *(text(copies[pair]) if (pair := f"{source} → {target}") in copies else "–" for target in places))
            for source in places
        ]
        if copies:
            texts.append(as_table(" | ".join([f"{title}, from", *(f"to {place}" for place in places)]), rows))
    ranks, rows = results["ranks"], []
    for size, times in results["all_reduces"].items():  # github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md
        bus = [2 * (ranks - 1) / ranks * int(size) / 1e3 / each for each in times]
        rows.append((f"{int(size):,}", median(times, ",.0f"), median(bus, ".3g")))
    if rows:
        texts.append(as_table(f"All-reduce, {ranks} ranks (bytes) | µs (range) | bus bandwidth, GB/s (range)", rows))
    links = ", ".join(results["links"])
    return "\n\n".join([*texts, *([f"Links (`nvidia-smi topo -m`): {links}."] if links else [])])


def measured(runs: Runs) -> dict:
    """Return the microseconds of all copies and all-reduces in every block."""
    gpus = [device for device in available_devices("auto") if device != HOST]
    pairs = [pair for pair in itertools.product([HOST, *gpus], repeat=2) if pair != (HOST, HOST)]
    copies = runs.interleave(
        {f"{size}: {one} → {other}": partial(microseconds, one, other, size) for size in COPIES for one, other in pairs}
    )
    ranks = gpus or [HOST, HOST]
    able = not gpus or (len(gpus) > 1 and gpus_can_be_shared() and dist.is_nccl_available())
    blocks = runs.interleave({"all-reduces": partial(all_reduces, ranks)}, warm_up=False) if able else {}
    exchanges = blocks.get("all-reduces", [])
    found: dict[str, dict] = {}
    for name, times in copies.items():
        size, _, pair = name.partition(": ")
        found.setdefault(size, {})[pair] = times
    return {
        "places": [*map(str, [HOST, *gpus])],
        "links": runs.environment["links"],
        "copies": found,
        "ranks": len(ranks),
        "all_reduces": {size: [block[size] for block in exchanges] for size in (exchanges or [{}])[0]},
    }


def main() -> None:
    benchmark(benchmark_parser(__doc__, blocks=5).parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
