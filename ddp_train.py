"""Train with DistributedDataParallel: one process (rank) per device, each with a share of every batch.

    torchrun --standalone --nproc_per_node=8 ddp_train.py --dataset mnist
    python ddp_train.py --dataset mnist --spawn 2
    torchrun --nnodes=2 --nproc_per_node=1 --node_rank=0 --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 ddp_train.py
    srun --nodes=2 --ntasks-per-node=4 python ddp_train.py

Whatever else sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT can start the ranks too.

Every rank holds the whole model and steps its own optimizer; during the backward pass the ranks average their gradients
(all-reduce, by NCCL between GPUs and by gloo between CPU processes), so that the models stay equal. Two options are for
large models: with --compress, gradients travel in 16 bits, which a slow link has done sooner; with --zero, a rank keeps
the optimizer's state for its share of the weights alone, updates them, and sends them to the others. Lines marked DDP
belong to the method. The loop around train_step is common.engine.loop.train_one_epoch; the same loop in
nine lines, without measuring, is train_by_hand() in benchmarks/overhead.py.
"""

import contextlib

from common.machine.begin import begin

begin(__name__)

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.loop import ParallelContext
from common.engine.run import run
from common.engine.setup import prepare_process
from common.engine.step import LastGradient, build_loss, build_optimizer, to_device
from common.errors import USAGE, SuiteError
from common.machine.entry import run_script
from common.models.build import build_model
from common.ranks.agree import refuse_different_ranks
from common.ranks.group import join_group, rank_traits
from common.ranks.lost import name_lost_ranks
from common.ranks.start import find_ranks, rank_device, refuse_without_ranks, spawn_ranks
from common.settings.arguments import one_of, positive_int
from common.settings.config import add_dist_timeout, parse, script_parser

COMPRESS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}  # DDP: round, average, and round back


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--spawn", type=positive_int, metavar="N", help="start N ranks here, without torchrun")  # DDP:
    parser.add_argument(
        "--no-sync",
        action="store_true",  # DDP:
        help="never exchange gradients: each rank trains a model of its own, to see the time",
    )  # DDP:
    parser.add_argument(
        "--compress",
        type=one_of(("none", *COMPRESS)),
        default="none",
        metavar="TYPE",  # DDP:
        help="none | bf16 | fp16: exchange gradients rounded to 16 bits",
    )  # DDP:
    parser.add_argument(
        "--zero",
        action="store_true",  # DDP:
        help="ZeroRedundancyOptimizer: each rank updates its share of the weights for all",
    )  # DDP:
    add_dist_timeout(parser)  # DDP:
    config, options = parse(parser)
    refuse_contradictions(config, options)  # DDP:
    refuse_without_ranks(options)  # DDP:
    if options.spawn:  # DDP:
        spawn_ranks(options.spawn, train, config, options)  # DDP:
    else:  # DDP: this process is a rank, which torchrun or somebody else has started
        train(config, options)  # DDP:


def refuse_contradictions(config, options) -> None:  # DDP:
    """Raise SuiteError (USAGE) for flags that do not go together."""
    if options.no_sync and config.checkpoint:
        raise SuiteError(
            "--no-sync trains a model in every rank, a checkpoint holds one",
            "found both",
            "leave out --checkpoint",
            USAGE,
        )
    if options.no_sync and (options.zero or options.compress != "none"):
        raise SuiteError(
            "--no-sync exchanges nothing",
            "found --zero or --compress, which are about the exchange",
            "leave out --no-sync",
            USAGE,
        )
    if options.zero and (config.checkpoint or config.resume):
        raise SuiteError(
            "--zero leaves every rank a share of the optimizer's state, a checkpoint holds all of it",
            "found --zero and --checkpoint or --resume",
            "leave --zero out, or use fsdp_train.py",
            USAGE,
        )


@name_lost_ranks  # DDP:
def train(config, options, init_method: str = "env://") -> None:  # DDP:
    place = find_ranks(init_method, options.dist_timeout)  # DDP: which rank this is, of how many
    rank, world_size = place.rank, place.world_size  # DDP:
    device = rank_device(config.device, place.local_rank, place.local_world_size)  # DDP:
    config = prepare_process(config, device, *place.sharing)  # DDP:
    image_set = load_image_set(config)
    refuse_different_ranks(place.store, rank, world_size, device, config, options, image_set)  # DDP:
    sampler = DistributedSampler(
        image_set.train_labels,
        num_replicas=world_size,
        rank=rank,
        seed=config.seed,  # DDP:
        drop_last=True,
    )  # DDP: a share of every batch to each rank
    loaders = make_loaders(image_set, config, device, sampler)

    classes = len(image_set.classes)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision, classes)
    join_group(place, device, config.bind)  # DDP:
    model.to(device)
    # DDP: the gradients lie where the all-reduce wants them, which saves a copy
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)  # DDP:
    parallel.broadcast_buffers = False  # DDP: once, before the evaluation, is enough
    if options.compress != "none":  # DDP:
        parallel.register_comm_hook(None, COMPRESS[options.compress])  # DDP:

    optimizer = build_optimizer(model.parameters(), config)
    if options.zero:  # DDP:
        optimizer = share_out(optimizer, model)  # DDP:
    loss_function = build_loss(config)
    last_gradient = LastGradient(model)  # DDP: when it is there, what is left of the exchange begins

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        last_gradient.will_mark(mark, "backward")  # DDP:
        loss.backward()  # DDP: the ranks' gradients are averaged meanwhile
        mark("exchange")  # DDP:
        return loss

    context = ParallelContext(
        model=parallel,
        devices=(device,),
        input_device=device,
        output_device=device,  # DDP:
        before_epoch=sampler.set_epoch,
        **rank_traits(model, rank, world_size),  # DDP:
        **names(options),  # DDP:
    )
    with parallel.no_sync() if options.no_sync else contextlib.nullcontext():  # DDP:
        run(context, train_step, model, optimizer, loaders, image_set, config, options)  # DDP:


def share_out(optimizer, model):  # DDP:
    """Return a ZeroRedundancyOptimizer that does to every weight what `optimizer` would do."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes most of a second

    return ZeroRedundancyOptimizer(model.parameters(), type(optimizer), **optimizer.defaults)


def names(options) -> dict:  # DDP:
    """Return what the method is called, and what a reader must know of it."""
    if options.no_sync:
        return {"method": "ddp-no-sync", "note": "gradients are not exchanged, every rank trains a model of its own"}
    notes = {}
    if options.compress != "none":
        notes[options.compress] = f"gradients are exchanged in {options.compress}"
    if options.zero:
        notes["zero"] = "each rank updates its share of the weights and sends it to the others, as part of the update"
    return {"method": "-".join(["ddp", *notes]), "note": ", ".join(notes.values())}


if __name__ == "__main__":
    run_script(main, as_rank=True)  # DDP:
