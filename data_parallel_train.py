"""Train on one device, or on all GPUs of this machine with nn.DataParallel.

    python data_parallel_train.py --dataset mnist --loader resident --epochs 3
    python data_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-parallel
    python data_parallel_train.py --dataset mnist --loader resident --simulate-devices 4

One process feeds all devices. In every step it splits the batch into one part per device (scatter), copies the model to
each device (replicate), runs the replicas in threads, and collects their outputs on the first device (gather), where
the loss is computed. The loop around train_step, with its timing, is common.engine.loop.train_one_epoch;
train_by_hand() in benchmarks/overhead.py is the same loop in nine lines, without timing.
"""

from common.settings.command import begin_one, value

FLAGS = {
    "--use-parallel": value("nn.DataParallel on N GPUs (all)", nargs="?", const=0),
    "--simulate-devices": value("go through DataParallel's steps for N devices on a single one"),
}
typed = begin_one(__name__, __doc__, FLAGS)  # before torch is imported

import torch
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.replicas import (
    SimulatedDataParallel,
    TimedDataParallel,
    choose_devices,
    describe_replicas,
    show_replicas,
)
from common.ranks.start import start_one


def train(config, options, place):
    image_set = load_image_set(config)
    sampler = DistributedSampler(image_set.train_labels, place.ranks, place.rank, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, place.device, sampler)

    model = build_model(config, image_set)
    model.to(place.device)
    parallel = model
    if options.use_parallel is not None:
        parallel = TimedDataParallel(model, place.devices)  # nn.DataParallel with timers
    elif options.simulate_devices:
        parallel = SimulatedDataParallel(model, options.simulate_devices, place.device)
    show_replicas(parallel, config, torch.zeros(config.batch_size, *image_set.image_shape, device=place.device))

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

    about = describe_replicas(parallel)
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    run(context, train_step, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    start_one(train, typed, choose_devices)
