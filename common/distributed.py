"""Starting ranks, and the few things that ranks do together besides averaging gradients."""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from common.config import RunConfig, per_process, total_workers
from common.data import load_image_set
from common.environment import available_devices
from common.errors import FAILED, MACHINE, SuiteError, run_script


def rank_device(kind: str, local_rank: int, local_world_size: int) -> torch.device:
    """Return the device of one rank: the GPU of that number, or the CPU that all ranks of this machine share.

    Raises SuiteError (MACHINE) if this machine has fewer GPUs than ranks.
    """
    devices = available_devices(kind)
    if devices[0].type == "cpu":
        return devices[0]
    if local_world_size > len(devices):
        raise SuiteError("every rank needs a GPU of its own", f"{local_world_size} ranks, {len(devices)} GPU(s)",
                         "start fewer ranks, or type --device cpu", MACHINE)
    return devices[local_rank]


def spawn_ranks(world_size: int, train: Callable, config: RunConfig, options) -> None:
    """Call `train(config, options, init_method)` in `world_size` new processes, with torchrun's environment variables.

    What all ranks would complain about, and a download, comes first and only once. Exits with the code of the first
    rank that fails; its siblings are stopped then.
    """
    rank_device(config.device, 0, world_size)
    per_process("--batch-size", config.batch_size, world_size)
    per_process("--num-workers", total_workers(config.num_workers, world_size), world_size)
    load_image_set(config)
    os.environ.update(WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the failing rank's line is enough
    with tempfile.TemporaryDirectory() as directory:  # the ranks meet in a file: no port that could be taken
        ranks = spawn(_start_rank, (train, config, options, f"file://{directory}/rendezvous"), world_size, join=False)
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # unwinds, and so stops the ranks
        try:
            while not ranks.join():
                pass
        except ProcessExitedException as error:
            if error.signal_name is None:
                sys.exit(error.exit_code)  # the rank has said why
            raise SuiteError(f"rank {error.error_index} was killed", error.signal_name,
                             "SIGKILL mostly means out of memory: try a smaller --batch-size", FAILED) from None
        finally:
            for process in ranks.processes:
                process.terminate()
                process.join()


def _start_rank(rank, train, config, options, init_method):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    run_script(lambda: train(config, options, init_method))


def gather(value) -> list:
    """Return every rank's `value` (anything that can be pickled), in the order of the ranks, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def leave_group() -> None:
    """Wait until every rank is done, then take the process group down.

    Gloo's threads need the interpreter's lock to drop the tensors of the last collectives, which a thread that takes
    the group down holds: without the pause, a rank now and then hung there (torch 2.11), or aborted at the
    interpreter's end (torch 2.15, github.com/pytorch/pytorch/pull/179291). All measuring is over by now.
    """
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


def broadcast_buffers(model: nn.Module) -> None:
    """Give all ranks rank 0's buffers: BatchNorm's statistics differ by rank, and all must test one and the same model.

    DistributedDataParallel does this before each training step, but not after the last.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
