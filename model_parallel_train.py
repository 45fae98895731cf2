"""Train one model that is cut over two devices: the first blocks on device 0, the rest on device 1.

    python model_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-model-parallel
    python model_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-model-parallel --micro-batches 4

While one device works, the other waits; with --micro-batches the batch goes through in parts, so that device 0 can work
on the next part meanwhile. Without --use-model-parallel both stages stay on one device, as a control. Lines marked MP
belong to the method; the loop over the batches is common.engine.train_one_epoch.
"""

import common.requirements  # noqa: F401 - before any package that may be missing

import torch
from torch import nn

from common.arguments import positive_int
from common.config import parse, script_parser
from common.data import load_image_set
from common.engine import ParallelContext, build_optimizer
from common.environment import available_devices
from common.errors import USAGE, SuiteError, run_script
from common.loaders import make_loaders
from common.models import balanced_split, build_model, split_index
from common.process import prepare_process
from common.run import run
from common.timing import SampledTimers


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
        return torch.cat(outputs)  # (B, 10) on device 1


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--use-model-parallel", action="store_true", help="put the stages on two devices")  # MP:
    parser.add_argument("--micro-batches", type=positive_int, default=1, metavar="M",
                        help="cut every batch into M parts (%(default)s)")  # MP:
    parser.add_argument("--split-at", metavar="BLOCK",
                        help="first block of the second stage (balances measured forward time)")  # MP:
    config, options = parse(parser)
    if options.micro_batches > config.batch_size:  # MP:
        raise SuiteError("a micro-batch needs an image", f"--micro-batches {options.micro_batches}, --batch-size "
                         f"{config.batch_size}", "give fewer micro-batches", USAGE)
    found = available_devices(config.device)
    devices = found[:2] if options.use_model_parallel and len(found) > 1 else [found[0], found[0]]  # MP:
    simulated = options.use_model_parallel and devices[0] == devices[1]  # MP:
    prepare_process(config, devices[0])
    image_set = load_image_set(config)
    loaders = make_loaders(image_set, config, devices[0])

    model = build_model(config.model, image_set.image_shape, config.seed, config.precision).to(devices[0])
    if options.split_at:  # MP:
        cut = split_index(model, options.split_at)  # MP:
    else:  # MP:
        cut = balanced_split(model, torch.zeros(config.batch_size, *image_set.image_shape, device=devices[0]))  # MP:
    parallel = TwoStage(model[:cut], model[cut:], devices, options.micro_batches)  # MP:
    place = "both stages on one device" if devices[0] == devices[1] else "one stage per device"  # MP:
    first = [name for name, _ in model.named_children()][cut]  # MP:
    note = f"{place}, second stage from {first}, {options.micro_batches} micro-batch(es)"  # MP:

    optimizer = build_optimizer(model.parameters(), config)
    context = ParallelContext(
        method=("mp-micro" if options.micro_batches > 1 else "mp") if options.use_model_parallel else "mp-control",
        model=parallel, evaluation_model=parallel, devices=tuple(dict.fromkeys(devices)), input_device=devices[0],
        output_device=devices[1], simulated=simulated, note=note, method_milliseconds=parallel.timers.milliseconds,
    )
    run(context, model, optimizer, loaders, image_set, config, options)


if __name__ == "__main__":
    run_script(main)
