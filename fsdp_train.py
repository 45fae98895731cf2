"""Train with FSDP2 (fully_shard): ranks as in ddp_train.py, each with a share of every batch and of every weight.

    torchrun --standalone --nproc_per_node=8 fsdp_train.py --dataset mnist
    python fsdp_train.py --dataset mnist --spawn 2

A rank keeps its share alone of the parameters, their gradients and the optimizer's state, so that a model may be larger
than a device. Each block of the network is put together right before it computes, in the forward and again in the
backward pass (all-gather), and let go right after; of its gradients' mean over the ranks, each takes the part that
belongs to its share (reduce-scatter). Lines marked DDP are those of ddp_train.py, lines marked FSDP stand here alone;
type diff ddp_train.py fsdp_train.py. The loop around train_step is common.engine.loop.train_one_epoch; the
same loop in nine lines, without measuring, is train_by_hand() in benchmarks/overhead.py.
"""

from collections import Counter

from common.machine.begin import begin

begin(__name__)

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.loop import ParallelContext
from common.engine.run import run
from common.engine.setup import prepare_process
from common.engine.step import build_loss, build_optimizer, to_device
from common.machine.entry import run_script
from common.models.build import build_model
from common.ranks.agree import refuse_different_ranks
from common.ranks.group import join_group, rank_traits
from common.ranks.lost import name_lost_ranks
from common.ranks.start import find_ranks, rank_device, refuse_without_ranks, spawn_ranks
from common.settings.arguments import positive_int
from common.settings.config import add_dist_timeout, parse, script_parser


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--spawn", type=positive_int, metavar="N", help="start N ranks here, without torchrun")  # DDP:
    add_dist_timeout(parser)  # DDP:
    config, options = parse(parser)
    refuse_without_ranks(options)  # DDP:
    if options.spawn:  # DDP:
        spawn_ranks(options.spawn, train, config, options)  # DDP:
    else:  # DDP: this process is a rank, which torchrun or somebody else has started
        train(config, options)  # DDP:


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
    shard(model, device, world_size)  # FSDP: before all of it is on the device, where there may be no room for it
    model.to(device)
    parallel = model  # FSDP: its blocks put themselves together

    optimizer = build_optimizer(model.parameters(), config)
    loss_function = build_loss(config)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    context = ParallelContext(
        model=parallel,
        devices=(device,),
        input_device=device,
        output_device=device,  # DDP:
        before_epoch=sampler.set_epoch,
        **rank_traits(model, rank, world_size),  # DDP:
        method="fsdp",
        note="forward and backward contain what the ranks exchange in them",  # FSDP:
        uncompilable="its weights come and go in every step",  # FSDP:
    )
    run(context, train_step, model, optimizer, loaders, image_set, config, options)


def shard(model: nn.Sequential, device: torch.device, world_size: int) -> None:  # FSDP:
    """Cut every parameter of `model` along its first dimension into one share for each rank, block by block.

    Blocks that have a weight in common with another one are put together all at once. Gradients are summed and then
    divided: of a mean, gloo made a sum without a word (github.com/pytorch/pytorch/issues/162338).
    """
    model.to(memory_format=torch.contiguous_format)  # others cannot be cut; the images decide how convolutions compute
    mesh = init_device_mesh(device.type, (world_size,))
    uses = Counter(parameter for block in model for parameter in block.parameters())
    blocks = [block for block in model if {uses[parameter] for parameter in block.parameters()} == {1}]
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh).set_force_sum_reduction_for_comms(True)


if __name__ == "__main__":
    run_script(main, as_rank=True)  # DDP:
