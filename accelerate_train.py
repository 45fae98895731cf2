"""Train with DistributedDataParallel through Hugging Face Accelerate, which wraps the model in prepare().

    accelerate launch --num_processes 2 accelerate_train.py --dataset mnist
    torchrun --standalone --nproc_per_node=2 accelerate_train.py --dataset mnist

Without GPUs, use torchrun, because `accelerate launch --num_processes 2` starts only one process there. Accelerate is
optional: pip install accelerate. The loop around train_step, with its timing, is common.engine.loop.train_one_epoch;
train_by_hand() in benchmarks/overhead.py is the same loop in nine lines, without timing.
"""

from common.settings.command import begin_ranks

typed = begin_ranks(__name__, __doc__)  # before torch is imported

from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.run import ParallelContext, run
from common.engine.step import LastGradient, build_loss, build_optimizer, to_device
from common.models.build import build_model
from common.ranks.exchange import check_accelerate, make_accelerator
from common.ranks.start import start_ranks


def train(config, options, place):
    image_set = load_image_set(config)
    place.check_same_settings(image_set)  # fail if the ranks differ in flags, data or code
    # not passed to prepare(), which would pad the test set; all methods use the same loaders
    sampler = DistributedSampler(image_set.train_labels, place.ranks, place.rank, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, place.device, sampler)

    model = build_model(config, image_set)
    place.join()  # from here on, the ranks can exchange tensors
    model.to(place.device)
    accelerator = make_accelerator(place)  # uses the process group this rank has joined
    parallel, optimizer = accelerator.prepare(model, build_optimizer(model.parameters(), config))
    parallel.broadcast_buffers = False  # they are broadcast once, before the evaluation
    if config.precision == "fp16":
        optimizer = optimizer.optimizer  # skips steps on the GPU; for the wrapper, the host would wait in each

    loss_function = build_loss(config, model)
    last_gradient = LastGradient(model)  # ends the backward phase; the rest of the exchange follows

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, place.device), labels.to(place.device, non_blocking=True)
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        last_gradient.will_mark(mark, "backward")
        accelerator.backward(loss)  # also averages the gradients over the ranks
        mark("exchange")
        return loss

    about = {"method": "accelerate", "evaluation_model": model}
    context = ParallelContext(place=place, sampler=sampler, network=model, model=parallel, **about)
    run(context, train_step, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    start_ranks(train, typed, refuse=check_accelerate, alone=True)
