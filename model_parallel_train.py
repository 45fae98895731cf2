"""Train one model that is cut over two devices: the first blocks on device 0, the rest on device 1.

    python model_parallel_train.py --dataset mnist --loader resident --epochs 3 --use-model-parallel
    python model_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-model-parallel --micro-batches 4

While one device works, the other waits; with --micro-batches the batch goes through in parts, so that device 0 can work
on the next part meanwhile. Without --use-model-parallel both stages stay on one device, as a control. Lines marked MP
belong to the method. The loop around train_step is common.engine.loop.train_one_epoch; the same loop in
nine lines, without measuring, is train_by_hand() in benchmarks/overhead.py.
"""

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
from common.engine.timing import SampledTimers, block_seconds
from common.errors import USAGE, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import block_names, build_model, refuse_uncut, split_index
from common.models.cuts import balanced_cut
from common.settings.arguments import positive_int
from common.settings.config import parse, script_parser


class TwoStage(nn.Module):  # MP:
    """Two stages with one transfer between them; cuts a batch into `micro_batches` parts, whose outputs it joins."""

    def __init__(self, stage0: nn.Module, stage1: nn.Module, devices: list[torch.device], micro_batches: int):
        super().__init__()
        self.stage0, self.stage1 = stage0.to(devices[0]), stage1.to(devices[1])
        self.device1, self.micro_batches = devices[1], micro_batches
        self.timers = SampledTimers(devices[:1], devices[1:])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        timer0, timer1 = self.timers.of_batch(self.training)
        outputs = []
        for part in images.tensor_split(min(self.micro_batches, len(images))):  # M x (B/M, C, H, W) on device 0
            # On GPUs these calls only queue work: device 0 turns to the next part while device 1 does this one.
            timer0.start()
            features = self.stage0(part)
            timer0.mark("stage 0")
            features = features.to(self.device1, non_blocking=True)
            timer1.start()
            outputs.append(self.stage1(features))
            timer1.mark("stage 1")
        return torch.cat(outputs)  # (B, classes) on device 1


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--use-model-parallel", action="store_true", help="put the stages on two devices")  # MP:
    parser.add_argument(
        "--micro-batches",
        type=positive_int,
        default=1,
        metavar="M",  # MP:
        help="cut every batch into M parts (%(default)s)",
    )  # MP:
    parser.add_argument(
        "--split-at",
        metavar="BLOCK",  # MP:
        help="first block of the second stage (balances measured time)",
    )  # MP:
    config, options = parse(parser)
    train(config, options)


def train(config, options) -> None:
    devices = choose_devices(config, options)  # MP: two, or the same one twice
    device = devices[0]  # MP: it gets the images
    config = prepare_process(config, device)  # MP:
    image_set = load_image_set(config)
    sampler = DistributedSampler(image_set.train_labels, num_replicas=1, rank=0, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, device, sampler)

    classes = len(image_set.classes)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision, classes)
    model.to(device)
    cut = choose_cut(model, torch.zeros(config.batch_size, *image_set.image_shape, device=device), options)  # MP:
    parallel = TwoStage(model[:cut], model[cut:], devices, options.micro_batches)  # MP:

    optimizer = build_optimizer(model.parameters(), config)
    loss_function = build_loss(config)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32; labels: (B,) int64
        images, labels = to_device(images, device), labels.to(devices[1], non_blocking=True)  # MP: stage 1
        mark("transfer")
        loss = loss_function(parallel(images), labels)
        mark("forward")
        loss.backward()
        mark("backward")
        return loss

    context = ParallelContext(
        model=parallel,
        devices=tuple(dict.fromkeys(devices)),
        input_device=device,
        output_device=devices[1],  # MP:
        before_epoch=sampler.set_epoch,
        **traits(parallel, model, cut, devices, options),  # MP:
    )
    run(context, train_step, model, optimizer, loaders, image_set, config, options)


def choose_devices(config, options) -> list[torch.device]:  # MP:
    """Return the devices of the two stages: the first one twice where there is one, or only a control is wanted."""
    if options.micro_batches > config.batch_size:
        raise SuiteError(
            "a micro-batch needs an image",
            f"--micro-batches {options.micro_batches}, --batch-size {config.batch_size}",
            "give fewer micro-batches",
            USAGE,
        )
    devices = available_devices(config.device)
    return devices[:2] if options.use_model_parallel and len(devices) > 1 else [devices[0], devices[0]]


def choose_cut(model: nn.Sequential, images: torch.Tensor, options) -> int:  # MP:
    """Return the index of the second stage's first block: --split-at, or where the stages' times are most equal."""
    refuse_uncut(model)
    cut = split_index(model, options.split_at) if options.split_at else balanced_cut(block_seconds(model, images), 2)[0]
    if {*model[:cut].parameters()} & {*model[cut:].parameters()}:
        raise SuiteError(
            "both stages would have the same weights",
            f"it is cut before {block_names(model)[cut]}",
            "give each part weights of its own, or another --split-at",
            USAGE,
        )
    return cut


def traits(parallel: TwoStage, model: nn.Sequential, cut: int, devices: list[torch.device], options) -> dict:  # MP:
    """Return what the ParallelContext says of the method."""
    alone, parts = devices[0] == devices[1], options.micro_batches
    place = "both stages on one device" if alone else "one stage per device"
    first = block_names(model)[cut]
    return {
        "method": ("mp-micro" if parts > 1 else "mp") if options.use_model_parallel else "mp-control",
        "simulated": options.use_model_parallel and alone,
        "method_milliseconds": parallel.timers.milliseconds,
        "note": f"{place}, second stage from {first}, {parts} micro-batch{'es' if parts > 1 else ''}",
    }


if __name__ == "__main__":
    run_script(main)
