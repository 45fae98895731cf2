"""What do DDP's options and FSDP save in memory, and what do they cost or save in time, over a slow link too?

    sudo python benchmarks/sharding.py

resnet18 on random images, Adam, two ranks with one CPU thread each: on this machine, and on two that are network
namespaces with a link between them (network.py), whose speed changes. All ways take turns at every speed. Without the
superuser of Linux, only what no link limits is measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import network
import torch
import torch.distributed as dist
import torch.nn.functional as F
from measure import PROJECT, Witness, arguments_of, as_table, config_of, interleave, paired, write
from torch.nn.parallel import DistributedDataParallel

from common.engine.memory import memory_parts
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer, to_device
from common.errors import FAILED, SuiteError
from common.files.writing import write_json
from common.machine.entry import run_script
from common.machine.lifetime import end_with_parent
from common.models.build import build_network
from common.ranks.exchange import COMPRESS, share_out
from common.ranks.group import gather, join_group, shutdown
from common.ranks.meet import find_ranks
from fsdp_train import shard

MODEL, SHAPE, BATCH, STEPS, RANKS, PORT = "resnet18", (3, 32, 32), 16, 2, 2, 29555
RATES = {"no limit": None, "1 Gbit/s": 1.0, "100 Mbit/s": 0.1}


def ddp(compress=None, zero=False):
    """Return what wraps a model: (model, device, config) → (what to call, its optimizer)."""

    def wrap(model, device, config):
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
        parallel.broadcast_buffers = False
        if compress:
            parallel.register_comm_hook(None, COMPRESS[compress])
        optimizer = build_optimizer(model.parameters(), config)
        return parallel, share_out(optimizer, model) if zero else optimizer

    return wrap


def fsdp(model, device, config):
    shard(model, SimpleNamespace(device=device, ranks=dist.get_world_size()))
    return model, build_optimizer(model.parameters(), config)


WAYS = {
    "DDP": ddp(),
    "DDP, --compress bf16": ddp("bf16"),
    "DDP, --compress fp16": ddp("fp16"),
    "DDP, --zero": ddp(zero=True),
    "FSDP": fsdp,
}


def train_as_rank(arguments) -> None:
    """Measure every way; rank 0 writes the slowest rank's seconds of STEPS steps, and memory_parts() of each."""
    end_with_parent()
    place, device = find_ranks("env://", 300), torch.device("cpu")
    config = config_of(model=MODEL, optimizer="adam", threads=1)
    prepare_process(config, device)
    join_group(place.store, place.rank, place.world_size, device, place.timeout)
    torch.manual_seed(place.rank)
    size, rivals, models = BATCH // place.world_size, {}, {}
    images, labels = torch.randn(size, *SHAPE), torch.randint(10, (size,))
    for name, wrap in WAYS.items():
        model = build_network(config.model, SHAPE, config.seed)
        parallel, optimizer = wrap(model, device, config)
        models[name] = model, optimizer

        def train(parallel=parallel, optimizer=optimizer):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                F.cross_entropy(parallel(to_device(images, device)), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            return max(gather(time.perf_counter() - start))

        rivals[name] = train
    seconds = interleave(rivals, arguments.blocks)
    parts = {name: memory_parts(*pair, device) for name, pair in models.items()}
    if place.rank == 0:
        write_json({"seconds": seconds, "memory_parts": parts}, arguments.output)
    shutdown()


def measure(gbps: float | None, blocks: int, output: str) -> dict:
    """Return what the ranks found, over a link of so many gigabits per second, or without one."""
    command = (sys.executable, __file__, "--blocks", str(blocks), "--output", output, "--as-rank")
    if gbps is None:
        command = (sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", *command[1:])
        code = subprocess.run(command, cwd=PROJECT).returncode
    else:
        with network.machines(RANKS, gbps) as machines:
            code = subprocess.run(machines.on_each(RANKS, PORT, command), cwd=PROJECT).returncode
    if code or not Path(output).exists():
        raise SuiteError("a rank failed", f"exit code {code}", "see its line above", FAILED)
    return json.loads(Path(output).read_text(encoding="utf-8"))


def table(results: dict) -> str:
    rows, steps = [], results["steps"]
    for name, parts in results["memory_parts"].items():
        cells = [f"{size / 2**20:.1f}" for size in parts.values()]
        for seconds in results["seconds"].values():
            milliseconds = 1000 * statistics.median(seconds[name]) / steps
            cells += [f"{milliseconds:,.0f}", paired(seconds[name], seconds["DDP"])]
        rows.append((name, *cells))
    parts = [f"{part} (MiB)" for part in next(iter(results["memory_parts"].values()))]
    times = [text for rate in results["seconds"] for text in (f"{rate}: step (ms)", "÷ DDP [95 %]")]
    return as_table(" | ".join([f"{results['model']}, {results['ranks']} ranks", *parts, *times]), rows)


def main() -> None:
    def more(parser):
        parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)

    arguments = arguments_of(__doc__, 5, more)
    if arguments.as_rank:
        train_as_rank(arguments)
        return
    lacking, seconds = network.missing(), {}
    if lacking:
        print(f"A slow link {lacking}: measured without a limit alone", file=sys.stderr)
    with Witness() as witness, tempfile.TemporaryDirectory() as directory:
        for number, (rate, gbps) in enumerate(RATES.items()):
            if gbps is None or not lacking:
                found = measure(gbps, arguments.blocks, str(Path(directory, f"{number}.json")))
                seconds[rate] = found["seconds"]
    measured = {"model": MODEL, "global_batch": BATCH, "steps": STEPS, "ranks": RANKS, "device": "cpu"}
    measured |= {"seconds": seconds, "memory_parts": found["memory_parts"]}
    write(arguments.output, measured, witness)
    print(table(measured))


if __name__ == "__main__":
    run_script(main)
