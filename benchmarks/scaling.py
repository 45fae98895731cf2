"""How fast is DDP on two devices compared with one device and with a loop by hand, and what do its settings change?

    python benchmarks/scaling.py

vgg on CIFAR-10 with global batch 256, on two GPUs or two ranks with one CPU thread each. One process group measures in
turns: one device, the loop of `fit` around DDP as in ddp_train.py, a loop by hand, the loop without gradient exchange,
and DDP with other settings. All ranks wait for each other in between.
"""

import statistics
from itertools import islice

from measure import as_table, config_of, one_device, paired, sampler_of
from overhead import seconds_of, train_by_hand
from runs import Runs, benchmark, benchmark_parser

from common.machine.begin import begin

begin(__name__)

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.loop import train_one_epoch
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer
from common.machine.entry import run_script
from common.machine.lifetime import end_with_parent, temporary_directory
from common.models.build import build_model
from common.ranks.group import gather, shutdown
from common.settings.schedules import build_schedule

GLOBAL_BATCH, STEPS, RANKS = 256, 4, 2
SETTINGS = {  # ddp_train.py sets gradient_as_bucket_view=True and broadcasts no buffers
    "gradient_as_bucket_view=False": {"gradient_as_bucket_view": False},
    "broadcast_buffers=True": {"broadcast_buffers": True},
    "static_graph=True": {"static_graph": True},
    "bucket_cap_mb=1": {"bucket_cap_mb": 1},
    "bucket_cap_mb=100": {"bucket_cap_mb": 100},
    "find_unused_parameters=True": {"find_unused_parameters": True},
}


def rivals_of(config, image_set, device, rank):
    """Return the DDP model, and name → callable that trains STEPS steps and returns the seconds of the slowest rank."""
    alone, _ = make_loaders(image_set, config, device, sampler_of(image_set, config))
    shared, _ = make_loaders(image_set, config, device, sampler_of(image_set, config, rank, RANKS))

    def network():
        return build_model(config, image_set).to(device)

    def wrapped(broadcast_buffers=False, **settings):
        only = [device] if device.type == "cuda" else None
        settings = {"gradient_as_bucket_view": True, **settings}
        parallel = DistributedDataParallel(network(), device_ids=only, **settings)
        parallel.broadcast_buffers = broadcast_buffers
        return parallel

    def timed(work):
        dist.barrier()
        return max(gather(seconds_of(work, device)))

    def fit_loop(model, loader):
        optimizer = build_optimizer(model.parameters(), config)
        schedule = build_schedule(optimizer, config, STEPS)
        context, train_step = one_device(model, config, device)
        return lambda: timed(lambda: train_one_epoch(context, train_step, optimizer, schedule, loader, config))

    def by_hand(model, loader):
        optimizer = build_optimizer(model.parameters(), config)
        return lambda: timed(lambda: train_by_hand(model, optimizer, islice(loader, STEPS), device))

    single, ddp, silent = fit_loop(network(), alone), wrapped(), wrapped()
    silent_loop = fit_loop(silent, shared)

    def no_sync():
        with silent.no_sync():
            return silent_loop()

    rivals = {
        "one device": single if rank == 0 else lambda: timed(lambda: None),
        "DDP, fit": fit_loop(ddp, shared),
        "DDP, by hand": by_hand(wrapped(), shared),
        "DDP, no exchange": no_sync,
        **{name: fit_loop(wrapped(**settings), shared) for name, settings in SETTINGS.items()},
    }
    return ddp, rivals


def train_as_rank(rank: int, runs: Runs, directory: str, on_gpu: bool) -> dict:
    """Return the seconds of every rival and DDP's own measurements. All ranks measure together."""
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    given = {"data_root": runs.arguments.data_root, "batch_size": GLOBAL_BATCH, "max_steps": STEPS, "threads": 1}
    config = config_of(dataset="cifar10", model="vgg", loader="resident", **given)
    prepare_process(config, device)
    image_set = load_image_set(config)
    if on_gpu:
        torch.cuda.set_device(device)
    backend, bound, place = "nccl" if on_gpu else "gloo", device if on_gpu else None, f"file://{directory}/rendezvous"
    dist.init_process_group(backend, place, rank=rank, world_size=RANKS, device_id=bound)
    runs.as_rank(rank, gather)
    ddp, rivals = rivals_of(config, image_set, device, rank)
    seconds = runs.interleave(rivals)
    logged = ddp._get_ddp_logging_data()  # nanoseconds, of its first and every 100th step
    parts = ("compute", "comm", "compute_comm_overlap")
    communication = {name: logged.get(f"avg_backward_{name}_time", 0) / 1e6 for name in parts}
    shutdown()
    return {"seconds": seconds, "ddp_milliseconds": communication, "device": str(device)}


def train_as_other_rank(number: int, *given) -> None:
    end_with_parent()
    train_as_rank(number + 1, *given)


def table(results: dict) -> str:
    seconds, steps, ranks, clock = (results[name] for name in ("seconds", "steps", "ranks", "ddp_milliseconds"))
    rows = [
        (name, f"{1000 * statistics.median(values) / steps:.0f}", paired(values, seconds["DDP, fit"]))
        for name, values in seconds.items()
    ]
    speed_up = paired(seconds["one device"], seconds["DDP, fit"])
    exchange = paired(seconds["DDP, fit"], seconds["DDP, no exchange"])
    return (
        f"{as_table('vgg, global batch 256 | Step (ms) | ÷ DDP, fit [95%]', rows)}\n\n"
        f"The speed-up of {ranks} ranks is {speed_up}, an efficiency of {speed_up.value / ranks:.0%}. A step takes "
        f"{exchange} times as long with the exchange as without: {1 - 1 / exchange.value:.1%} of it is exposed "
        f"communication. By DDP's own clock, {clock['compute_comm_overlap']:.0f} of {clock['comm']:.0f} ms of "
        f"communication overlap with the {clock['compute']:.0f} ms of the backward pass."
    )


def measured(runs: Runs) -> dict:
    on_gpu = torch.cuda.device_count() >= RANKS
    with temporary_directory() as directory:
        others = spawn(train_as_other_rank, (runs, directory, on_gpu), RANKS - 1, join=False, daemon=True)
        found = train_as_rank(0, runs, directory, on_gpu)
        while not others.join():
            pass
    return {"global_batch": GLOBAL_BATCH, "steps": STEPS, "ranks": RANKS, **found}


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__, blocks=11).parse_args(), measured, table))
