"""Train with FSDP2 (fully_shard): ranks as in ddp_train.py, each with its share of every batch and of every weight.

    torchrun --standalone --nproc_per_node=8 fsdp_train.py --dataset mnist
    python fsdp_train.py --dataset mnist --spawn 2

Each rank stores only its share of the parameters, their gradients and the optimizer state, so a model can be larger
than one device. The weights of a block are gathered right before it computes, once in the forward and again in the
backward pass (all-gather), and freed right after. Each rank then gets its share of the block's averaged gradients
(reduce-scatter). To see what changes compared to DDP, type diff ddp_train.py fsdp_train.py. The loop around train_step,
with its timing, is common.engine.loop.train_one_epoch; train_by_hand() in benchmarks/overhead.py is the same loop in
nine lines, without timing.
"""

from collections import Counter

from common.settings.command import begin_ranks

typed = begin_ranks(__name__, __doc__)  # before torch is imported

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.start import start_ranks


def train(config, options, place):
    image_set = load_image_set(config)
    place.check_same_settings(image_set)  # fail if the ranks differ in flags, data or code
    sampler = DistributedSampler(image_set.train_labels, place.ranks, place.rank, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, place.device, sampler)

    model = build_model(config, image_set)
    place.join()  # from here on, the ranks can exchange tensors
    shard(model, place)  # before .to(): the whole model may not fit on the device
    model.to(place.device)
    parallel = model  # fully_shard has added hooks that gather and free each block

    optimizer = build_optimizer(model.parameters(), config)
    loss_function = build_loss(config, model)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    about = {"method": "fsdp", "note": "forward and backward contain what the ranks exchange in them"}
    about["uncompilable"] = "its weights come and go in every step"
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    run(context, train_step, optimizer, loaders, image_set, config, options)


def shard(model, place):
    """Shard every parameter of `model` along its first dimension over the ranks, block by block.

    Blocks that share a weight with another block are gathered together. On CPUs, FSDP divides the sum of the gradients
    itself, as gloo silently returned the sum where FSDP asked for the mean (github.com/pytorch/pytorch/issues/162338).
    """
    model.to(memory_format=torch.contiguous_format)  # required for sharding; convolutions use the layout of the images
    mesh = init_device_mesh(place.device.type, (place.ranks,))
    uses = Counter(parameter for block in model for parameter in block.parameters())
    blocks = [block for block in model if {uses[parameter] for parameter in block.parameters()} == {1}]
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh).set_force_sum_reduction_for_comms(place.device.type == "cpu")


if __name__ == "__main__":
    start_ranks(train, typed)
