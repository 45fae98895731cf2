"""What do DDP's options and FSDP save in memory, and what do they cost or save in time, over a slow link too?

    sudo python benchmarks/sharding.py

resnet18 on random images, Adam, two ranks with one CPU thread each, in two network namespaces of this machine, joined
by a link whose rate each rank limits for what it sends. All ways take turns at every rate. Namespaces need Linux and
root; without them, only what no link limits is measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

from measure import PROJECT, Witness, arguments_of, config_of, interleave, paired, write

from common.machine.begin import begin

begin(__name__)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from common.engine.memory import memory_parts
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer, to_device
from common.errors import FAILED, SuiteError
from common.files.writing import write_json
from common.machine.entry import run_script
from common.machine.lifetime import end_with_parent
from common.models.build import build_model
from common.ranks.group import gather, join_group, shutdown
from common.ranks.start import find_ranks
from ddp_train import COMPRESS, share_out
from fsdp_train import shard

MODEL, SHAPE, BATCH, STEPS, RANKS = "resnet18", (3, 32, 32), 16, 2, 2
NAMESPACES, ADDRESSES, INTERFACE, PORT = ("ranks0", "ranks1"), ("10.77.0.1", "10.77.0.2"), "wire", 29555
# kbit/s; what the filter lets through at once must be small beside a message, or it hides a part of it
RATES = {"no limit": None, "1 Gbit/s": 1_000_000, "100 Mbit/s": 100_000}
BURST = "70kb"


@contextmanager
def linked_namespaces():
    """Two network namespaces with one link between them, for as long as the block lasts."""
    remove_namespaces()  # of a run that was killed
    try:
        for name in NAMESPACES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "link",
            "add",
            INTERFACE,
            "netns",
            NAMESPACES[0],
            "type",
            "veth",
            "peer",
            "name",
            INTERFACE,
            "netns",
            NAMESPACES[1],
        )
        for name, address in zip(NAMESPACES, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
        yield
    finally:
        remove_namespaces()


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def remove_namespaces():
    for name in NAMESPACES:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def limit(rate: int) -> None:
    """Limit what this rank sends to `rate` kbit/s."""
    subprocess.run(
        [
            "tc",
            "qdisc",
            "replace",
            "dev",
            INTERFACE,
            "root",
            "tbf",
            "rate",
            f"{rate}kbit",
            "burst",
            BURST,
            "latency",
            "100ms",
        ],
        check=True,
    )


def rivals_of(config, device, images, labels):
    """Return name → a callable that trains STEPS steps and returns the slowest rank's seconds, and what is held.

    The latter is a callable that returns name → memory_parts(), to be called after a step.
    """
    models = {}

    def way(name, wrap):
        model = build_model(config.model, SHAPE, config.seed)
        parallel, optimizer = wrap(model)
        models[name] = model, optimizer

        def train():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                F.cross_entropy(parallel(to_device(images, device)), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            return max(gather(time.perf_counter() - start))

        return train

    def ddp(compress=None, zero=False):
        def wrap(model):
            parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
            parallel.broadcast_buffers = False
            if compress:
                parallel.register_comm_hook(None, COMPRESS[compress])
            optimizer = build_optimizer(model.parameters(), config)
            return parallel, share_out(optimizer, model) if zero else optimizer

        return wrap

    def fsdp(model):
        shard(model, device, dist.get_world_size())
        return model, build_optimizer(model.parameters(), config)

    ways = {
        "DDP": ddp(),
        "DDP, --compress bf16": ddp("bf16"),
        "DDP, --compress fp16": ddp("fp16"),
        "DDP, --zero": ddp(zero=True),
        "FSDP": fsdp,
    }
    rivals = {name: way(name, wrap) for name, wrap in ways.items()}
    return rivals, lambda: {name: memory_parts(*pair, device) for name, pair in models.items()}


def train_as_rank(arguments) -> None:
    end_with_parent()
    place, device = find_ranks("env://", 300), torch.device("cpu")
    config = config_of(model=MODEL, optimizer="adam", threads=1)
    prepare_process(config, device)
    join_group(place, device, config.bind)
    torch.manual_seed(place.rank)
    images, labels = torch.randn(BATCH // place.world_size, *SHAPE), torch.randint(10, (BATCH // place.world_size,))
    rivals, parts = rivals_of(config, device, images, labels)
    seconds = {}
    for name in arguments.rates:
        dist.barrier()
        if RATES[name]:
            limit(RATES[name])
        seconds[name] = interleave(rivals, arguments.blocks)
    if place.rank == 0:
        write_json({"seconds": seconds, "memory_parts": parts()}, arguments.output)
    shutdown()


def start_rank(rank, linked, rates, output, arguments):
    known = {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": ADDRESSES[0] if linked else "127.0.0.1",
        "MASTER_PORT": str(PORT),
        **({"GLOO_SOCKET_IFNAME": INTERFACE} if linked else {}),
    }
    inside = ["ip", "netns", "exec", NAMESPACES[rank]] if linked else []
    flags = ["--blocks", str(arguments.blocks), "--output", output, "--rates", *rates]
    return subprocess.Popen([*inside, sys.executable, __file__, *flags], cwd=PROJECT, env={**os.environ, **known})


def main() -> None:
    arguments = arguments_of(
        __doc__,
        blocks=5,
        more=lambda parser: parser.add_argument("--rates", choices=RATES, nargs="+", help=argparse.SUPPRESS),
    )  # given to a rank
    if arguments.rates:
        train_as_rank(arguments)
        return
    linked = os.geteuid() == 0 and bool(shutil.which("ip") and shutil.which("tc"))
    rates = [*RATES] if linked else ["no limit"]
    if not linked:
        print("Without root, ip and tc there is no slow link: measured without a limit alone", file=sys.stderr)
    with Witness() as witness, tempfile.TemporaryDirectory() as directory:
        output = str(Path(directory, "measured.json"))
        with linked_namespaces() if linked else nullcontext():
            ranks = [start_rank(rank, linked, rates, output, arguments) for rank in range(RANKS)]
            try:
                codes = [rank.wait() for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        if any(codes):
            raise SuiteError("a rank failed", f"exit codes {codes}", "see its line above", FAILED)
        measured = json.loads(Path(output).read_text(encoding="utf-8"))
    write(
        arguments.output,
        {"model": MODEL, "global_batch": BATCH, "steps": STEPS, "ranks": RANKS, "device": "cpu", **measured},
        witness,
    )
    for rate, seconds in measured["seconds"].items():
        for name, values in seconds.items():
            print(f"{rate}, {name}: {paired(values, seconds['DDP'])} times as long as DDP")


if __name__ == "__main__":
    run_script(main)
