"""Ranks that Hugging Face Accelerate brings together."""

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from common.engine.place import Place
from common.engine.setup import prepare_process
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.cores import short_slices
from common.machine.entry import run_script
from common.ranks.group import Rank, group_store, group_timeout
from common.ranks.lost import name_lost_ranks
from common.ranks.meet import rank_device, sharing_cores
from common.ranks.slurm import become_rank
from common.ranks.start import DIST_TIMEOUT, parse_flags


def start_accelerated(train: Callable, description: str) -> None:
    """Parse the command line and call train(config, options, place), where place.accelerator has joined all ranks."""

    def main():
        config, options = parse_flags(description, {"--dist-timeout": DIST_TIMEOUT})
        with name_lost_ranks(options.dist_timeout):
            become_rank()  # where srun started it
            accelerator = make_accelerator(config, options)
            rank, ranks = accelerator.process_index, accelerator.num_processes
            device = numbered(accelerator.device)
            sharing = sharing_cores(group_store(), rank, ranks) if ranks > 1 else ()
            config = prepare_process(config, device, *sharing)
            place = Place([device])
            if dist.is_initialized():
                place = Rank(rank, ranks, device, group_store(), config, options)
                place.tell()
            place.accelerator = accelerator
            train(config, options, place)

    run_script(main, as_rank=True)


def numbered(device: torch.device) -> torch.device:
    """Return a GPU with its number, which Accelerate leaves out without a launcher, and a CPU without one.

    Accelerate numbers a launcher's CPUs, and no tensor is on "cpu:0".
    """
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def place_here() -> tuple[int, int]:
    """Return which rank of this machine this process is, of how many, as its launcher says."""
    return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def make_accelerator(config, options):
    """Return an Accelerator on the device that --device and the launcher ask for; it joins the other ranks.

    "no": a user's own defaults could change the maths. Raises SuiteError (MACHINE) where Accelerate is not installed.
    """
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    except ImportError:
        what, advice = "accelerate_train.py needs Hugging Face Accelerate", "type: pip install accelerate"
        raise SuiteError(what, "the package is not installed", advice, MACHINE) from None
    on_cpu = rank_device(config.device, *place_here(), all_visible=True).type == "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or it guesses a thread count; ours is set by prepare_process
    timeout = timedelta(seconds=options.dist_timeout)
    group = InitProcessGroupKwargs(timeout=group_timeout(timeout, not on_cpu))
    wrapper = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    with short_slices(config.bind and on_cpu):
        accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", kwargs_handlers=[group, wrapper])
    if dist.is_initialized():
        group_store().set_timeout(timeout)  # it has the group's
    if accelerator.num_processes != int(os.environ.get("WORLD_SIZE", 1)):
        found = f"WORLD_SIZE={os.environ['WORLD_SIZE']}, and it counts {accelerator.num_processes}"
        advice = "start it with torchrun, or set LOCAL_RANK too"
        raise SuiteError("Accelerate did not join the other ranks", found, advice, USAGE)
    return accelerator
