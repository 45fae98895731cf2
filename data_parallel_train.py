"""Train on one device, or on all GPUs of this machine with nn.DataParallel.

    python data_parallel_train.py --dataset mnist --loader resident --epochs 3
    python data_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-parallel
    python data_parallel_train.py --dataset mnist --loader resident --simulate-devices 4

One process feeds all devices: in every step it cuts the batch into one part per device (scatter), copies the model to
each (replicate), runs the replicas in threads, and collects their outputs on the first device (gather), where the loss
is computed. Lines marked DP belong to the method. The loop around train_step, with its clocks, is
common.engine.loop.train_one_epoch; the same loop in nine lines, without measuring: train_by_hand() in
benchmarks/overhead.py.
"""

import copy

from common.machine.begin import begin

begin(__name__)

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.loop import ParallelContext
from common.engine.run import run
from common.engine.setup import prepare_process
from common.engine.step import build_loss, build_optimizer, to_device
from common.engine.timing import SampledTimers
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_model
from common.settings.arguments import positive_int
from common.settings.config import parse, script_parser

UNTUNED = "cuDNN's tuning is off: its cache is thread-local and DataParallel starts new threads in every step"  # DP:


class TimedDataParallel(nn.DataParallel):  # DP:
    """nn.DataParallel that measures what it does besides the replicas' forward passes, on training batches.

    That is scatter, replicate and gather. What the backward pass adds, summing the replicas' gradients on the first
    device, is part of the phase "backward".
    """

    def __init__(self, module: nn.Module, devices: list[torch.device]):
        super().__init__(module, devices)
        self.timers = SampledTimers(devices)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) on the first device to logits (B, classes) on it."""
        (self._timer,) = self.timers.of_batch(self.training)
        return super().forward(images)

    def scatter(self, *arguments):
        return self._timed("scatter", super().scatter, *arguments)

    def replicate(self, *arguments):
        return self._timed("replicate", super().replicate, *arguments)

    def gather(self, *arguments):
        return self._timed("gather", super().gather, *arguments)

    def _timed(self, name, step, *arguments):
        self._timer.mark("", join=True)  # not before the replicas on all devices are done: gather would wait for them
        value = step(*arguments)
        self._timer.mark(name, join=True)
        return value


class SimulatedDataParallel(nn.Module):  # DP:
    """Scatter, replicate, N forward passes, gather: one after the other on `device`. Says nothing about speed.

    Replicas share the module's weights, so that one backward pass adds up their gradients. Each has BatchNorm
    statistics of its own, and only the first one's are kept, as nn.DataParallel does it.
    """

    def __init__(self, module: nn.Module, replicas: int, device: torch.device):
        super().__init__()
        self.module, self.replicas = module, replicas
        self.timers = SampledTimers([device])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, C, H, W) to logits (B, classes); each replica sees about B ÷ N images."""
        (timer,) = self.timers.of_batch(self.training)
        timer.start()
        parts = [part.clone() for part in images.chunk(self.replicas)]  # N x (B/N, C, H, W)
        timer.mark("scatter")
        weights = {id(weight): weight for weight in self.module.parameters()}
        replicas = [self.module, *(copy.deepcopy(self.module, dict(weights)) for _ in parts[1:])]
        timer.mark("replicate")
        outputs = [replica(part) for replica, part in zip(replicas, parts, strict=True)]  # N x (B/N, classes)
        timer.start()  # the computation is no overhead
        logits = torch.cat(outputs)  # (B, classes)
        timer.mark("gather")
        return logits


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--use-parallel",
        type=positive_int,
        nargs="?",
        const=0,
        metavar="N",  # DP:
        help="nn.DataParallel on N GPUs (all)",
    )  # DP:
    parser.add_argument(
        "--simulate-devices",
        type=positive_int,
        metavar="N",  # DP:
        help="go through DataParallel's steps for N devices on the one that there is",
    )  # DP:
    config, options = parse(parser)
    train(config, options)


def train(config, options) -> None:
    devices = choose_devices(config, options)  # DP:
    device = devices[0]  # DP: it gets the whole batch, and collects the outputs
    config = prepare_process(config, device, tune=len(devices) == 1)  # DP: see UNTUNED
    image_set = load_image_set(config)
    sampler = DistributedSampler(image_set.train_labels, num_replicas=1, rank=0, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, device, sampler)

    classes = len(image_set.classes)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision, classes)
    model.to(device)
    parallel = model  # DP: unless it is wrapped
    if options.use_parallel is not None:  # DP:
        parallel = TimedDataParallel(model, devices)  # DP: nn.DataParallel
    elif options.simulate_devices:  # DP:
        parallel = SimulatedDataParallel(model, options.simulate_devices, device)  # DP:
    if parallel is not model and not config.quiet:  # DP:
        show_replicas(parallel, model, torch.zeros(config.batch_size, *image_set.image_shape, device=device))  # DP:

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
        devices=tuple(devices),
        input_device=device,
        output_device=device,
        before_epoch=sampler.set_epoch,
        **traits(parallel, len(devices), options),  # DP:
    )
    run(context, train_step, model, optimizer, loaders, image_set, config, options)


def traits(parallel: nn.Module, devices: int, options) -> dict:  # DP:
    """Return what the ParallelContext says of the method: of one device, nothing but its name."""
    if options.use_parallel is not None:
        own = {"data_parallel_size": devices, "note": UNTUNED if devices > 1 else "not parallel: 1 device"}
    elif options.simulate_devices:
        own = {
            "data_parallel_size": options.simulate_devices,
            "simulated": True,
            "note": f"{options.simulate_devices} replicas take turns on one device",
        }
    else:
        return {"method": "single"}
    return {
        "method": "dp",
        "method_milliseconds": parallel.timers.milliseconds,
        "uncompilable": "it copies the network in every step",
        **own,
    }


def choose_devices(config, options) -> list[torch.device]:  # DP:
    """Return the devices to train on: one, unless --use-parallel asks for more. Never a GPU where --device is cpu."""
    if options.use_parallel is None:
        return available_devices(config.device)[:1]
    if options.simulate_devices:
        raise SuiteError(
            "--use-parallel and --simulate-devices exclude each other", "found both", "leave one out", USAGE
        )
    instead = f"--device cpu --simulate-devices {options.use_parallel or 2} instead of --use-parallel"
    devices = available_devices(config.device, instead)
    if devices[0].type != "cuda":
        raise SuiteError(
            "--use-parallel needs GPUs",
            "the run is on the CPU",
            f"type {instead} to go through the same steps there",
            USAGE,
        )
    if options.use_parallel > len(devices):
        raise SuiteError(
            f"--use-parallel {options.use_parallel} needs as many GPUs",
            f"found {len(devices)}",
            "ask for fewer",
            MACHINE,
        )
    return devices[: options.use_parallel or len(devices)]


@torch.no_grad()
def show_replicas(parallel: nn.Module, model: nn.Module, images: torch.Tensor) -> None:  # DP:
    """Print the shape that each replica sees, from one forward pass that leaves the model as it was."""
    seen = []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append((str(inputs[0].device), inputs[0].shape)))
    parallel.eval()(images)
    hook.remove()
    for device, shape in sorted(seen):
        print(f"A replica on {device} sees images of shape {tuple(shape)}")


if __name__ == "__main__":
    run_script(main)
