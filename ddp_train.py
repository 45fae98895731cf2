"""Train with DistributedDataParallel: one process (rank) per device, each with a share of every batch.

    torchrun --standalone --nproc_per_node=8 ddp_train.py --dataset mnist
    python ddp_train.py --dataset mnist --spawn 2
    torchrun --nnodes=2 --nproc_per_node=1 --node_rank=0 --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 ddp_train.py

Whatever else sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT can start the ranks too.

Every rank holds the whole model and steps its own optimizer; during the backward pass the ranks average their gradients
(all-reduce, by NCCL between GPUs and by gloo between CPU processes), so that the models stay equal. Lines marked DDP
belong to the method; the loop over the batches is common.engine.train_one_epoch.
"""

import contextlib
import os
from datetime import timedelta

import common.requirements  # noqa: F401 - before any package that may be missing

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from common.arguments import positive_int
from common.config import add_dist_timeout, parse, script_parser
from common.data import load_image_set
from common.distributed import (
    broadcast_buffers,
    gather,
    leave,
    meet,
    name_lost_ranks,
    rank_device,
    refuse_different_ranks,
    spawn_ranks,
)
from common.engine import ParallelContext, build_optimizer
from common.errors import USAGE, SuiteError, run_script
from common.lifetime import has_launcher
from common.loaders import make_loaders
from common.models import build_model
from common.process import prepare_process
from common.run import run


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--spawn", type=positive_int, metavar="N", help="start N ranks here, without torchrun")  # DDP:
    parser.add_argument("--no-sync", action="store_true",
                        help="never exchange gradients: each rank trains a model of its own, to see the time")  # DDP:
    add_dist_timeout(parser)  # DDP:
    config, options = parse(parser)
    if options.no_sync and config.checkpoint:  # DDP:
        raise SuiteError("--no-sync trains a model in every rank, a checkpoint holds one", "found both",
                         "leave out --checkpoint", USAGE)
    if options.spawn:  # DDP:
        spawn_ranks(options.spawn, train, config, options)  # DDP:
    elif "RANK" in os.environ:  # DDP: this is a rank, which torchrun or somebody else has started
        train(config, options)
    else:  # DDP:
        raise SuiteError("ddp_train.py runs one process per device", "found neither torchrun nor --spawn",
                         "type torchrun --standalone --nproc_per_node=2 ddp_train.py, or python ddp_train.py --spawn 2",
                         USAGE)


@name_lost_ranks  # DDP:
def train(config, options, init_method: str = "env://") -> None:
    """Train as one rank of the group that meets at `init_method`."""
    timeout = timedelta(seconds=options.dist_timeout)  # DDP:
    rank, local_rank, world_size, local_world_size, store = meet(init_method, timeout)  # DDP:
    device = rank_device(config.device, local_rank, local_world_size)  # DDP:
    on_gpu = device.type == "cuda"
    prepare_process(config, device, processes=local_world_size)
    # Before the process group: a torchvision imported later keeps gloo's threads alive to the end (torch 2.15), where
    # they can abort the interpreter (github.com/pytorch/pytorch/pull/179291).
    image_set = load_image_set(config)
    refuse_different_ranks(store, rank, world_size, device, config, options, image_set)  # DDP:
    loaders = make_loaders(image_set, config, device, rank, world_size)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision)

    if on_gpu:
        torch.cuda.set_device(device)  # DDP: collectives of objects use the current device
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world_size,
                            timeout=timeout, device_id=device if on_gpu else None)  # DDP:
    model.to(device)
    # DDP: the gradients lie where the all-reduce wants them, which saves a copy
    parallel = DistributedDataParallel(model, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True)
    parallel.broadcast_buffers = False  # DDP: once, before the evaluation, is enough

    optimizer = build_optimizer(model.parameters(), config)
    context = ParallelContext(
        method="ddp-no-sync" if options.no_sync else "ddp", model=parallel, evaluation_model=model, devices=(device,),
        input_device=device, output_device=device, rank=rank, world_size=world_size, data_parallel_size=world_size,
        launched=has_launcher(), gather=gather, before_evaluation=lambda: broadcast_buffers(model), leave=leave,  # DDP:
        note="gradients are not exchanged, every rank trains a model of its own" if options.no_sync else "",
    )
    with parallel.no_sync() if options.no_sync else contextlib.nullcontext():  # DDP:
        run(context, model, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    run_script(main, as_rank=True)  # DDP:
