"""Train one model split over several processes: each rank has one stage, a few consecutive blocks, on one device.

    torchrun --standalone --nproc_per_node=2 pipeline_train.py --dataset mnist
    python pipeline_train.py --dataset mnist --spawn 2 --micro-batches 4 --pipeline-schedule 1f1b

Every batch passes through the stages in micro-batches, so a stage can work on the next micro-batch while the following
stage works on the last one. The schedule gpipe runs all forward passes, then all backward passes (Y. Huang et al.,
"GPipe", 2019). 1f1b alternates forward and backward passes, so a stage holds the activations of fewer micro-batches (D.
Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021: PipeDream-Flush). With both, all passes of a
batch finish before the weights change, so the gradients are those of one device that processes the same micro-batches.
BatchNorm normalises each micro-batch separately. With one rank, the script is that one device: the control. The loop
around train_step, with its timing, is common.engine.loop.train_one_epoch; train_by_hand() in benchmarks/overhead.py is
the same loop in nine lines, without timing.
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
    if options.spawn:  # one error message instead of one per rank
        refuse_stages(build_model(config, load_image_set(config)), options.spawn, config, options)


def train(config, options, place):
    image_set = load_image_set(config)
    place.check_same_settings(image_set)  # fail if the ranks differ in flags, data or code
    sampler = DistributedSampler(image_set.train_labels, 1, 0, seed=config.seed, drop_last=True)  # same on all ranks
    loaders = make_loaders(image_set, config, place.device, sampler, labels_only=place.rank > 0)  # images on rank 0

    model = build_model(config, image_set)
    refuse_stages(model, place.ranks, config, options)
    place.join()  # from here on, the ranks can exchange tensors
    parallel = Pipeline(model, image_set.image_shape, place, config, options)  # only this rank's stage is allocated

    optimizer = build_optimizer(parallel.parameters(), config)
    loss_function = build_loss(config, model)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32, on rank 0; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.device, non_blocking=True)
        mark("transfer")
        losses = []  # one per micro-batch, on the last stage only
        schedule, inputs, target = parallel.begin(images, labels, loss_function, mark)
        schedule.step(*inputs, target=target, losses=losses)  # all forward and backward passes
        mark("exchange" if place.ranks > 1 else "backward")  # includes sending the last gradients
        return torch.stack(losses).sum() if losses else None

    about = describe_stages(parallel, model, optimizer)
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    result = run(context, train_step, optimizer, loaders, image_set, config, options)
    say_bubble(result, place, config)


if __name__ == "__main__":
    start_ranks(train, typed, refuse, share_batches=False)
