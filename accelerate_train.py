"""Train with DistributedDataParallel again, written with Hugging Face Accelerate, which hides it behind prepare().

    accelerate launch --num_processes 2 accelerate_train.py --dataset mnist
    torchrun --standalone --nproc_per_node=2 accelerate_train.py --dataset mnist

Without a GPU, `accelerate launch --num_processes 2` starts one process: there, use torchrun. Accelerate is an optional
dependency: pip install accelerate. Lines marked ACC belong to the method. The loop around train_step, with its clocks,
is common.engine.loop.train_one_epoch; the same loop in nine lines, without measuring, is train_by_hand() in
benchmarks/overhead.py.
"""

import os
from datetime import timedelta

from common.machine.begin import begin

begin(__name__)

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.loop import ParallelContext
from common.engine.run import run
from common.engine.setup import prepare_process
from common.engine.step import LastGradient, build_loss, build_optimizer, to_device
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.cores import short_slices
from common.machine.entry import run_script
from common.models.build import build_model
from common.ranks.agree import refuse_different_ranks
from common.ranks.group import group_store, group_timeout, rank_traits
from common.ranks.lost import name_lost_ranks
from common.ranks.slurm import become_rank
from common.ranks.start import rank_device, sharing_cores
from common.settings.config import add_dist_timeout, parse, script_parser


def main() -> None:
    parser = script_parser(__doc__)
    add_dist_timeout(parser)  # ACC:
    config, options = parse(parser)
    train(config, options)


@name_lost_ranks  # ACC:
def train(config, options) -> None:
    become_rank()  # ACC: where srun started it
    accelerator = make_accelerator(config, options)  # ACC: joins the process group that the launcher describes
    rank, world_size = accelerator.process_index, accelerator.num_processes  # ACC:
    device = numbered(accelerator.device)  # ACC:
    sharing = sharing_cores(group_store(), rank, world_size) if world_size > 1 else ()  # ACC:
    config = prepare_process(config, device, *sharing)  # ACC:
    image_set = load_image_set(config)
    if world_size > 1:  # ACC:
        refuse_different_ranks(group_store(), rank, world_size, device, config, options, image_set)  # ACC:
    # ACC: prepare() could shard the loaders too, but pads the test set; ours are the same as in every other method
    sampler = DistributedSampler(
        image_set.train_labels,
        num_replicas=world_size,
        rank=rank,
        seed=config.seed,  # ACC:
        drop_last=True,
    )  # ACC:
    loaders = make_loaders(image_set, config, device, sampler)

    classes = len(image_set.classes)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision, classes)
    model.to(device)
    optimizer = build_optimizer(model.parameters(), config)
    parallel, optimizer = accelerator.prepare(model, optimizer)  # ACC: wraps the model for DDP
    parallel.broadcast_buffers = False  # ACC: once, before the evaluation, is enough
    loss_function = build_loss(config)
    last_gradient = LastGradient(model)  # ACC: when it is there, what is left of the exchange begins

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        last_gradient.will_mark(mark, "backward")  # ACC:
        accelerator.backward(loss)  # ACC: the ranks' gradients are averaged meanwhile
        mark("exchange")  # ACC:
        return loss

    context = ParallelContext(
        model=parallel,
        devices=(device,),
        input_device=device,
        output_device=device,  # ACC:
        before_epoch=sampler.set_epoch,
        method="accelerate",
        **(rank_traits(model, rank, world_size) if dist.is_initialized() else {}),  # ACC:
    )
    run(context, train_step, model, optimizer, loaders, image_set, config, options)


def numbered(device: torch.device) -> torch.device:  # ACC:
    """Return a GPU with its number, which Accelerate leaves out without a launcher, and a CPU without one.

    Accelerate numbers a launcher's CPUs, and no tensor is on "cpu:0".
    """
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def place_here() -> tuple[int, int]:  # ACC:
    """Return which rank of this machine this process is, of how many, as its launcher says."""
    return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def make_accelerator(config, options):  # ACC:
    """Return an Accelerator on the device that --device and the launcher ask for.

    "no": a user's own defaults could change the maths. Raises SuiteError (MACHINE) where Accelerate is not installed.
    """
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    except ImportError:
        raise SuiteError(
            "accelerate_train.py needs Hugging Face Accelerate",
            "the package is not installed",
            "type: pip install accelerate",
            MACHINE,
        ) from None
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
        raise SuiteError(
            "Accelerate did not join the other ranks",
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, and it counts {accelerator.num_processes}",
            "start it with torchrun, or set LOCAL_RANK too",
            USAGE,
        )
    return accelerator


if __name__ == "__main__":
    run_script(main, as_rank=True)  # ACC:
