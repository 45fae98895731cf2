"""Train on one device, or on all GPUs of this machine with nn.DataParallel.

    python data_parallel_train.py --epochs 10 --batch-size 128 --device gpu
    python data_parallel_train.py --epochs 10 --batch-size 128 --device gpu --use-parallel
    python data_parallel_train.py --dataset mnist --model lenet --device cpu --simulate-devices 4

One process feeds all devices: in every step it cuts the batch into one part per device (scatter), copies the model to
each (replicate), runs the replicas in threads, and collects their outputs on the first device (gather), where the loss
is computed. Lines marked DP belong to the method; the loop over the batches is common.engine.train_one_epoch.
"""

import common.requirements  # noqa: F401 - before any package that may be missing

import torch
from torch import nn

from common.arguments import positive_int
from common.config import parse, script_parser
from common.data import load_image_set
from common.data_parallel import SimulatedDataParallel, TimedDataParallel
from common.engine import ParallelContext, build_optimizer
from common.environment import available_devices
from common.errors import MACHINE, USAGE, SuiteError, run_script
from common.loaders import make_loaders
from common.models import build_model
from common.process import prepare_process
from common.run import run

UNTUNED = "cuDNN's tuning is off: its cache is thread-local and DataParallel starts new threads in every step"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--use-parallel", type=positive_int, nargs="?", const=0, metavar="N",
                        help="nn.DataParallel on N GPUs (all)")  # DP:
    parser.add_argument("--simulate-devices", type=positive_int, metavar="N",
                        help="go through DataParallel's steps for N devices on the one that there is")  # DP:
    config, options = parse(parser)
    devices = choose_devices(config, options)
    prepare_process(config, devices[0], tune=len(devices) == 1)  # DP: see UNTUNED
    image_set = load_image_set(config)
    loaders = make_loaders(image_set, config, devices[0])

    model = build_model(config.model, image_set.image_shape, config.seed, config.precision).to(devices[0])
    parallel, method, note, extra = model, "single", "", {}
    if options.use_parallel is not None:  # DP:
        parallel, method = TimedDataParallel(model, devices), "dp"  # DP: nn.DataParallel that times its own work
        note = UNTUNED if len(devices) > 1 else "not parallel: 1 device"  # DP:
    elif options.simulate_devices:  # DP:
        parallel, method = SimulatedDataParallel(model, options.simulate_devices, devices[0]), "dp"  # DP:
        note, extra = f"{options.simulate_devices} replicas take turns on one device", {"simulated": True}  # DP:
    if method == "dp":  # DP:
        extra |= {"method_milliseconds": parallel.timers.milliseconds, "compilable": False}  # DP:
    if method == "dp" and not config.quiet:  # DP:
        show_replicas(parallel, model, torch.zeros(config.batch_size, *image_set.image_shape, device=devices[0]))  # DP:

    optimizer = build_optimizer(model.parameters(), config)
    context = ParallelContext(
        method=method, model=parallel, evaluation_model=parallel, devices=tuple(devices), input_device=devices[0],
        output_device=devices[0], data_parallel_size=options.simulate_devices or len(devices), note=note, **extra,
    )
    run(context, model, optimizer, loaders, image_set, config, options)


def choose_devices(config, options) -> list[torch.device]:
    """Return the devices to train on: one, unless --use-parallel asks for more. Never a GPU where --device is cpu."""
    devices = available_devices(config.device)
    if options.use_parallel is None:
        return devices[:1]
    if options.simulate_devices:
        raise SuiteError("--use-parallel and --simulate-devices exclude each other", "found both",
                         "leave one out", USAGE)
    if devices[0].type != "cuda":
        raise SuiteError("--use-parallel needs GPUs", "the run is on the CPU",
                         "type --simulate-devices 4 to go through the same steps there", USAGE)
    if options.use_parallel > len(devices):
        raise SuiteError(f"--use-parallel {options.use_parallel} needs as many GPUs", f"found {len(devices)}",
                         "ask for fewer", MACHINE)
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
