"""Train with DistributedDataParallel again, written with Hugging Face Accelerate, which hides it behind prepare().

    accelerate launch --num_processes 2 accelerate_train.py --dataset mnist
    torchrun --standalone --nproc_per_node=2 accelerate_train.py --dataset mnist

Without a GPU, `accelerate launch --num_processes 2` starts one process: there, use torchrun. Accelerate is an optional
dependency: pip install accelerate. Lines marked ACC belong to the method; the loop over the batches is
common.engine.train_one_epoch.
"""

import os
from datetime import timedelta

from common.config import add_dist_timeout, parse, script_parser
from common.data import load_image_set
from common.distributed import (
    broadcast_buffers,
    gather,
    group_store,
    leave,
    name_lost_ranks,
    rank_device,
    refuse_different_ranks,
)
from common.engine import ParallelContext, build_optimizer
from common.errors import MACHINE, SuiteError, run_script
from common.lifetime import has_launcher
from common.loaders import make_loaders
from common.models import build_model
from common.process import prepare_process
from common.run import run


@name_lost_ranks
def main() -> None:
    parser = script_parser(__doc__)
    add_dist_timeout(parser)
    config, options = parse(parser)
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs  # ACC:
    except ImportError:
        raise SuiteError("accelerate_train.py needs Hugging Face Accelerate", "the package is not installed",
                         "type: pip install accelerate", MACHINE) from None
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = rank_device(config.device, int(os.environ.get("LOCAL_RANK", 0)), local_world_size)
    # Before the process group: a torchvision imported later keeps gloo's threads alive to the end (torch 2.15), where
    # they can abort the interpreter (github.com/pytorch/pytorch/pull/179291).
    image_set = load_image_set(config)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ACC: or it guesses a thread count; ours is set below
    # ACC: joins the process group that the launcher describes; "no", or a user's own defaults could change the maths
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=options.dist_timeout))  # ACC:
    wrapper = DistributedDataParallelKwargs(gradient_as_bucket_view=True)  # ACC:
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no", kwargs_handlers=[timeout, wrapper])
    rank, world_size = accelerator.process_index, accelerator.num_processes  # ACC:
    if world_size > 1:  # ACC:
        refuse_different_ranks(group_store(), rank, world_size, accelerator.device, config, options, image_set)  # ACC:
    prepare_process(config, accelerator.device, processes=local_world_size)
    # ACC: prepare() could shard the loaders too, but pads the test set; ours are the same as in every other method.
    loaders = make_loaders(image_set, config, accelerator.device, rank, world_size)

    optimizer = build_optimizer(model.parameters(), config)
    parallel, optimizer = accelerator.prepare(model, optimizer)  # ACC: moves the model and wraps it for DDP

    together = {}
    if world_size > 1:
        parallel.broadcast_buffers = False  # ACC: once, before the evaluation, is enough
        together = {"gather": gather, "before_evaluation": lambda: broadcast_buffers(model), "leave": leave}
    context = ParallelContext(
        method="accelerate", model=parallel, evaluation_model=model, devices=(accelerator.device,),
        input_device=accelerator.device, output_device=accelerator.device, rank=rank, world_size=world_size,
        data_parallel_size=world_size, launched=has_launcher(), backward=accelerator.backward, **together,  # ACC:
    )
    run(context, model, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    run_script(main, as_rank=True)  # ACC:
