"""Replicas of a network in one process: nn.DataParallel with timers, and a simulation of it on one device."""

import copy

import torch
from torch import nn

from common.engine.timing import SampledTimers
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.environment import available_devices

UNTUNED = "cuDNN's tuning is off: its cache is thread-local and DataParallel starts new threads in every step"


class TimedDataParallel(nn.DataParallel):
    """nn.DataParallel that times scatter, replicate and gather on training batches.

    Summing the replicas' gradients on the first device counts as "backward".
    """

    simulated = False

    def __init__(self, module: nn.Module, devices: list[torch.device]):
        super().__init__(module, devices)
        self.timers, self.replicas = SampledTimers(devices), len(devices)
        self.note = UNTUNED if self.replicas > 1 else "not parallel: 1 device"
        torch.backends.cudnn.benchmark = self.replicas == 1  # UNTUNED; github.com/pytorch/pytorch/pull/191744

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        (self._timer,) = self.timers.of_batch(self.training)
        return super().forward(images)

    def scatter(self, *arguments):
        return self._timed("scatter", super().scatter, *arguments)

    def replicate(self, *arguments):
        return self._timed("replicate", super().replicate, *arguments)

    def gather(self, *arguments):
        return self._timed("gather", super().gather, *arguments)

    def _timed(self, name, step, *arguments):
        self._timer.start()  # once all replicas are done, or gather's time would include waiting for them
        value = step(*arguments)
        self._timer.mark(name)
        return value


class SimulatedDataParallel(nn.Module):
    """The steps of nn.DataParallel, run one after the other on one device. Its speed is meaningless.

    Replicas share the module's weights, so one backward pass sums their gradients. Each replica has its own BatchNorm
    statistics, and only the first one's are kept, as in nn.DataParallel.
    """

    simulated = True

    def __init__(self, module: nn.Module, replicas: int, device: torch.device):
        super().__init__()
        self.module, self.replicas = module, replicas
        self.timers, self.note = SampledTimers([device]), f"{replicas} replicas take turns on one device"

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
        timer.start()  # excludes the forward passes
        logits = torch.cat(outputs)  # (B, classes)
        timer.mark("gather")
        return logits


def choose_devices(config, options) -> list[torch.device]:
    """Return the devices to train on: one, unless --use-parallel asks for more.

    Raises SuiteError (USAGE) if --use-parallel contradicts other flags, (MACHINE) if there are too few GPUs.
    """
    if options.use_parallel is None:
        return available_devices(config.device)[:1]
    if options.simulate_devices:
        what = "--use-parallel and --simulate-devices exclude each other"
        raise SuiteError(what, "found both", "leave one out", USAGE)
    instead = f"--device cpu --simulate-devices {options.use_parallel or 2} instead of --use-parallel"
    devices = available_devices(config.device, instead)
    if devices[0].type != "cuda":
        advice = f"type {instead} to go through the same steps there"
        raise SuiteError("--use-parallel needs GPUs", "the run is on the CPU", advice, USAGE)
    if options.use_parallel > len(devices):
        what = f"--use-parallel {options.use_parallel} needs as many GPUs"
        raise SuiteError(what, f"found {len(devices)}", "ask for fewer", MACHINE)
    return devices[: options.use_parallel or len(devices)]


def describe_replicas(parallel: nn.Module) -> dict:
    """Return the fields of the ParallelContext that depend on the method."""
    if not isinstance(parallel, TimedDataParallel | SimulatedDataParallel):
        return {"method": "single"}
    fields = {name: getattr(parallel, name) for name in ("replicas", "timers", "simulated", "note")}
    return {"method": "dp", **fields, "uncompilable": "it copies the network in every step"}


@torch.no_grad()
def show_replicas(parallel: nn.Module, config, images: torch.Tensor) -> None:
    """Print the shape of each replica's part of images (B, C, H, W), using a forward pass in evaluation mode."""
    if config.quiet or not isinstance(parallel, TimedDataParallel | SimulatedDataParallel):
        return
    parts: list[torch.Tensor] = []
    with parallel.module.register_forward_pre_hook(lambda _, inputs: parts.append(inputs[0])):
        parallel.eval()(images)
    for device, shape in sorted((str(part.device), tuple(part.shape)) for part in parts):
        print(f"A replica on {device} sees images of shape {shape}")
