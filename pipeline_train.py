"""Train one model that is cut over several processes: one stage of its blocks, on one device, in each rank.

    torchrun --standalone --nproc_per_node=2 pipeline_train.py --dataset mnist
    python pipeline_train.py --dataset mnist --spawn 2 --micro-batches 4 --pipeline-schedule 1f1b

Every batch goes through the stages in micro-batches, so that a stage can work on the next one while the following stage
has the last. gpipe: the forward passes of all of them, then all backward passes (Y. Huang et al., "GPipe", 2019); 1f1b:
forward and backward passes in turn, so that a stage holds the features of fewer micro-batches (D. Narayanan et al.,
"Memory-Efficient Pipeline-Parallel DNN Training", 2021: PipeDream-Flush). With both, all passes of a batch are over
before the weights change, and the gradients are those of one device that goes through the same micro-batches. BatchNorm
normalises each micro-batch by itself. With one rank, this is that one device: the control. The loop around train_step
is common.engine.loop.train_one_epoch; the same loop in nine lines, without measuring, is train_by_hand() in
benchmarks/overhead.py.
"""

from common.settings.command import begin_ranks, choice, value

FLAGS = {
    "--micro-batches": value("cut every batch into M parts (%(default)s)", metavar="M", default=4),
    "--pipeline-schedule": choice(
        "gpipe: all forward passes, then all backward passes | 1f1b: in turn", ("gpipe", "1f1b"), "NAME"
    ),
    "--split-at": value("first blocks of all stages but the first (balances measured time)", str, "BLOCK", nargs="+"),
}
typed = begin_ranks(__name__, __doc__, FLAGS)  # before torch is imported

import torch
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.pipeline import Pipeline, describe_stages, refuse_stages, say_bubble
from common.ranks.start import start_ranks


def refuse(config, options):
    if options.spawn:  # what all ranks would refuse, is refused once
        refuse_stages(build_model(config, load_image_set(config)), options.spawn, config, options)


def train(config, options, place):
    image_set = load_image_set(config)
    place.agree(image_set)  # or ranks with other flags or data would train together in silence
    sampler = DistributedSampler(image_set.train_labels, 1, 0, seed=config.seed, drop_last=True)  # all see the same
    loaders = make_loaders(image_set, config, place.device, sampler, labels_only=place.rank > 0)  # stage 0 has images

    model = build_model(config, image_set)
    refuse_stages(model, place.ranks, config, options)
    place.join()  # from here on, ranks can exchange tensors
    parallel = Pipeline(model, image_set.image_shape, place, config, options)  # this rank's stage alone has memory

    optimizer = build_optimizer(parallel.parameters(), config)
    loss_function = build_loss(config, model)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32, at stage 0; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.device, non_blocking=True)
        mark("transfer")
        losses = []  # of all micro-batches, at the last stage
        schedule, inputs, target = parallel.begin(images, labels, loss_function, mark)
        schedule.step(*inputs, target=target, losses=losses)  # the forward and backward passes of all
        mark("exchange" if place.ranks > 1 else "backward")  # the last gradients are sent
        return torch.stack(losses).sum() if losses else None

    about = describe_stages(parallel, model, optimizer)
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    result = run(context, train_step, optimizer, loaders, image_set, config, options)
    say_bubble(result, place, config)


if __name__ == "__main__":
    start_ranks(train, typed, refuse, share_batches=False)
