"""One process that trains replicas of a network on several devices: nn.DataParallel with clocks, and its stand-in."""

import copy

import torch
from torch import nn

from common.engine.timing import SampledTimers
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.environment import available_devices

UNTUNED = "cuDNN's tuning is off: its cache is thread-local and DataParallel starts new threads in every step"


class TimedDataParallel(nn.DataParallel):
    """nn.DataParallel that measures what it does besides the replicas' forward passes, on training batches.

    Summing the replicas' gradients on the first device is part of the phase "backward".
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
        self._timer.start()  # not before the replicas on all devices are done: gather would wait for them
        value = step(*arguments)
        self._timer.mark(name)
        return value


class SimulatedDataParallel(nn.Module):
    """Scatter, replicate, N forward passes, gather: one after the other on `device`. Says nothing about speed.

    Replicas share the module's weights, so that one backward pass adds up their gradients. Each has BatchNorm
    statistics of its own, and only the first one's are kept, as nn.DataParallel does it.
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
        timer.start()  # the computation is no overhead
        logits = torch.cat(outputs)  # (B, classes)
        timer.mark("gather")
        return logits


def choose_devices(config, options) -> list[torch.device]:
    """Return the devices to train on: one, unless --use-parallel asks for more. Never a GPU where --device is cpu."""
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
    """Return what a ParallelContext says of the method; of a network that is not wrapped, its name alone."""
    if not isinstance(parallel, TimedDataParallel | SimulatedDataParallel):
        return {"method": "single"}
    known = {name: getattr(parallel, name) for name in ("replicas", "timers", "simulated", "note")}
    return {"method": "dp", **known, "uncompilable": "it copies the network in every step"}


@torch.no_grad()
def show_replicas(parallel: nn.Module, config, images: torch.Tensor) -> None:
    """Print the shape that each replica sees of images (B, C, H, W), by a forward pass that leaves the model alone."""
    if config.quiet or not isinstance(parallel, TimedDataParallel | SimulatedDataParallel):
        return
    seen = []
    hook = parallel.module.register_forward_pre_hook(
        lambda _, inputs: seen.append((str(inputs[0].device), inputs[0].shape))
    )
    parallel.eval()(images)
    hook.remove()
    for device, shape in sorted(seen):
        print(f"A replica on {device} sees images of shape {tuple(shape)}")
