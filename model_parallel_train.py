"""Train one model split over two devices: the first blocks on device 0, the rest on device 1.

    python model_parallel_train.py --dataset mnist --loader resident --epochs 3 --use-model-parallel
    python model_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-model-parallel --micro-batches 4

While one device computes, the other waits. --micro-batches splits each batch into parts, so that device 0 can start the
next part while device 1 computes the last one. Without --use-model-parallel both stages run on one device, as a
control. The loop around train_step, with its timing, is common.engine.loop.train_one_epoch; train_by_hand() in
benchmarks/overhead.py is the same loop in nine lines, without timing.
"""

from common.settings.command import begin_one, switch, value

FLAGS = {
    "--use-model-parallel": switch("put the stages on two devices"),
    "--micro-batches": value("cut every batch into M parts (%(default)s)", metavar="M", default=1),
    "--split-at": value("first block of the second stage (balances measured time)", str, "BLOCK"),
}
typed = begin_one(__name__, __doc__, FLAGS)  # before torch is imported

import torch
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.stages import TwoStage, choose_stage_devices, describe_two, split_in_two
from common.ranks.start import start_one


def train(config, options, place):
    image_set = load_image_set(config)
    sampler = DistributedSampler(image_set.train_labels, place.ranks, place.rank, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, place.device, sampler)

    model = build_model(config, image_set)
    model.to(place.device)
    images = torch.zeros(config.batch_size, *image_set.image_shape, device=place.device)
    cut = split_in_two(model, images, options.split_at)
    parallel = TwoStage(model[:cut], model[cut:], place.devices, options.micro_batches)

    optimizer = build_optimizer(model.parameters(), config)
    loss_function = build_loss(config, model)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.devices[-1], non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    about = describe_two(parallel, model, cut, place.devices, options)
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    run(context, train_step, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    start_one(train, typed, choose_stage_devices)
