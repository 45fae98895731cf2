"""Train with DistributedDataParallel: one process (rank) per device, each with its share of every batch.

    torchrun --standalone --nproc_per_node=8 ddp_train.py --dataset mnist
    python ddp_train.py --dataset mnist --spawn 2
    torchrun --nnodes=2 --nproc_per_node=1 --node_rank=0 --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 ddp_train.py
    srun --nodes=2 --ntasks-per-node=4 python ddp_train.py

Any other launcher works if it sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Every rank holds the whole model and
has its own optimizer. During the backward pass the ranks average their gradients (all-reduce, with NCCL between GPUs
and gloo between CPU processes), so the models stay equal. The loop around train_step, with its timing, is
common.engine.loop.train_one_epoch; train_by_hand() in benchmarks/overhead.py is the same loop in nine lines, without
timing.
"""

import contextlib

from common.settings.command import begin_ranks, bounded_float, choice, switch, value

FLAGS = {
    "--no-sync": switch("never exchange gradients: each rank trains a model of its own, to see the time"),
    "--compress": choice("none | bf16 | fp16: exchange gradients rounded to 16 bits", ("none", "bf16", "fp16"), "TYPE"),
    "--bucket-mb": value("MiB of gradients that travel together (1 for the first, then 25)", bounded_float, "MIB"),
    "--sync-batchnorm": switch("BatchNorm takes mean and variance over all ranks' images"),
    "--zero": switch("ZeroRedundancyOptimizer: each rank updates its share of the weights for all"),
}
typed = begin_ranks(__name__, __doc__, FLAGS)  # before torch is imported

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import LastGradient, build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.exchange import COMPRESS, describe_exchange, refuse_contradictions, shard_optimizer, synchronize
from common.ranks.start import start_ranks


def train(config, options, place):
    image_set = load_image_set(config)
    place.check_same_settings(image_set)  # fail if the ranks differ in flags, data or code
    sampler = DistributedSampler(image_set.train_labels, place.ranks, place.rank, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, place.device, sampler)

    model = build_model(config, image_set)
    place.join()  # from here on, the ranks can exchange tensors
    model.to(place.device)
    if options.sync_batchnorm:
        synchronize(model, place.device)
    # gradients as views of the buckets they are sent in: this saves a copy
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=options.bucket_mb)
    parallel.broadcast_buffers = False  # they are broadcast once, before the evaluation
    if options.compress != "none":
        parallel.register_comm_hook(None, COMPRESS[options.compress])

    optimizer = build_optimizer(model.parameters(), config)
    if options.zero:
        optimizer = shard_optimizer(optimizer, model)
    loss_function = build_loss(config, model)
    last_gradient = LastGradient(model)  # ends the backward phase; the rest of the exchange follows

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        last_gradient.will_mark(mark, "backward")
        loss.backward()  # also averages the gradients over the ranks
        mark("exchange")
        return loss

    about = {"evaluation_model": model, **describe_exchange(options)}
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    with parallel.no_sync() if options.no_sync else contextlib.nullcontext():
        run(context, train_step, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    start_ranks(train, typed, refuse_contradictions)
