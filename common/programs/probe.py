"""What one device can do alone, measured in seconds before a comparison starts: step times, loader, link.

    python -m common.programs.probe --dataset mnist --sizes 32 64 128 --threads 1 --ceiling --link

prints JSON. For each model and size: the time of a training step on so many images on one device, without a loader.
--cut: the time of each of its blocks. How many images/s the resident loader delivers to nobody; --ceiling: also the
loader in question, and how much of the cores it takes. --link: how fast ranks that train exchange gradients. Last,
how much memory all that took. It also puts the data set in place, for all runs.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace

import common.requirements  # noqa: F401 - before torch

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DistributedSampler

from common.arguments import OneLineParser, positive_int
from common.config import add_training_flags, default_model, parse_with_recipe
from common.data.image_set import ImageSet, load_image_set
from common.data.loaders import make_loaders
from common.distributed import shutdown
from common.engine import build_optimizer, to_device
from common.entry import run_script
from common.errors import SuiteError, is_out_of_memory, suppress_out_of_memory
from common.machine.environment import available_devices, free_memory, gpus_can_be_shared
from common.machine.lifetime import end_with_parent
from common.machine.memory import peak_resident_bytes
from common.machine.setup import prepare_process
from common.models import block_names, block_seconds, build_model
from common.probe import BlockTime, LoaderSpeed, MemoryUse, ModelLink, Probe, StepTime
from common.timing import CALLS, Stopwatch, command_start, synchronize

SECONDS_PER_MEASUREMENT = 1.0


def random_step(model: nn.Module, optimizer, image_set: ImageSet, batch: int, device) -> Callable[[], None]:
    """Return what trains `model` for a step on `batch` random images like those of a data set, always the same ones."""
    images = torch.randn(batch, *image_set.image_shape, device=device)  # (B, C, H, W)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(len(image_set.classes), (batch,), device=device)

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def wants_more(steps: int, seconds: float) -> bool:
    """Return whether to measure again: 2 times to warm up, then at least 5, and up to 50 as time allows."""
    return steps < 7 or (steps < 52 and seconds < SECONDS_PER_MEASUREMENT)


def step_milliseconds(model: nn.Module, optimizer, image_set: ImageSet, sizes: list[int], device) -> dict[int, float]:
    """Return batch → the median time of a training step on so many random images, for each of `sizes`.

    Of a GPU, each time is that of 20 steps. The first two times of each do not count. The sizes take turns, so that
    whatever slows the machine down for a while slows all alike. One that does not fit into memory is left out.
    """
    calls = CALLS[device.type]
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    steps = {}
    while left := [size for size, times in seconds.items() if wants_more(len(times), calls * sum(times))]:
        for size in left:
            try:
                if size not in steps:
                    steps[size] = random_step(model, optimizer, image_set, size, device)
                with Stopwatch([device]) as watch:
                    for _ in range(calls):
                        steps[size]()
                seconds[size].append(watch.seconds / calls)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                del seconds[size]
    return {size: 1000 * statistics.median(times[2:]) for size, times in seconds.items()}


def loader_speed(loader, workers: int, device: torch.device) -> LoaderSpeed:
    """Return what a training loader delivers to `device` while nothing else works, and what that takes of the cores.

    Its start, up to the first batch, is left out. Goes through the data again until SECONDS_PER_MEASUREMENT are over.
    """
    count, start = 0, None
    while True:
        for images, _ in loader:
            if start is None:
                synchronize([device])
                start, computed = time.perf_counter(), cpu_seconds()
                continue
            count += len(images)
            if time.perf_counter() - start > SECONDS_PER_MEASUREMENT:
                synchronize([device])
                seconds = time.perf_counter() - start
                return LoaderSpeed(workers, count / seconds, (cpu_seconds() - computed) / count)


def cpu_seconds() -> float:
    """Return for how long this process and the living ones that it started, as a loader's workers, have computed."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in children)


def link_gbps(arguments, model: str, size: int, image_set: ImageSet, kind: str) -> float | None:
    """Return the bandwidth of an all-reduce of `size` bytes between ranks that train, in gigabits per second.

    Those are one for each GPU, or two on a CPU. Each trains `model` on its share of a batch before every exchange,
    because an exchange between idle ranks is several times as fast. It lasts as long as DistributedDataParallel would
    wait for it on average over the ranks, the slower ranks' last moments included: a step pays for them too. It is the
    "bus bandwidth" of NCCL's tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), bytes ÷ seconds x 2 (N-1)/N.
    None where there is only one GPU, and so no link.
    """
    ranks = torch.cuda.device_count() if kind == "cuda" else 2
    if ranks < 2:
        return None
    if kind == "cuda":
        torch.cuda.empty_cache()  # one of the ranks computes on this process's GPU
    like = SimpleNamespace(image_shape=image_set.image_shape, classes=image_set.classes)  # without the images
    with tempfile.TemporaryDirectory() as directory:
        spawn(_exchange, (ranks, directory, arguments, model, size, like, kind), ranks)
        with open(os.path.join(directory, "seconds")) as file:
            return 8e-9 * size * 2 * (ranks - 1) / ranks / float(file.read())


def _exchange(rank, ranks, directory, arguments, name, size, image_set, kind):
    end_with_parent()
    on_gpu = kind == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    prepare_process(arguments, device, processes=ranks)
    dist.init_process_group("nccl" if on_gpu else "gloo", f"file://{directory}/rendezvous", rank=rank,
                            world_size=ranks, device_id=device if on_gpu else None)
    model = build_model(name, image_set.image_shape, arguments.seed, arguments.precision, len(image_set.classes))
    model.to(device)
    step = random_step(model, build_optimizer(model.parameters(), arguments), image_set,
                       max(1, arguments.batch_size[0] // ranks), device)
    gradients, exchanges, spent = torch.ones(max(1, size // 4), device=device), [], 0.0
    while wants_more(len(exchanges), spent):
        with Stopwatch([device]) as training:
            step()
        with Stopwatch([device]) as watch:
            dist.all_reduce(gradients)
        exchanges.append(watch.seconds)
        together = torch.tensor([training.seconds + watch.seconds], device=device)
        dist.all_reduce(together)  # so that all ranks end with the same step
        spent += together.item() / ranks
    seconds = torch.tensor(exchanges, device=device)
    dist.all_reduce(seconds)
    if rank == 0:
        with open(os.path.join(directory, "seconds"), "w") as file:
            file.write(str(statistics.median(seconds[2:].tolist()) / ranks))
    shutdown()


@torch.no_grad()
def evaluate_batch(model: nn.Module, test_loader, device: torch.device) -> None:
    """Classify one batch: where training batches are small, that needs the most memory of all."""
    images, _ = next(iter(test_loader))
    model.eval()(to_device(images, device))
    model.train()


def memory_use(device: torch.device) -> tuple[MemoryUse, ...]:
    """Return what this process has had at most, and what is free, of the CPU's memory and of a GPU's: the fullest's."""
    cpu = MemoryUse("cpu", peak_resident_bytes(), free_memory(torch.device("cpu")))
    if device.type == "cpu":
        return (cpu,)
    free = min(map(free_memory, available_devices("gpu"))) if gpus_can_be_shared() else 0
    return cpu, MemoryUse("cuda", torch.cuda.max_memory_reserved(device), free)


def measure(arguments, image_set: ImageSet) -> Probe:
    """Return all that was asked for. A step that does not fit into memory is left out."""
    device = available_devices(arguments.device)[0]
    prepare_process(arguments, device)
    startup_seconds = time.time() - command_start()
    sampler = DistributedSampler(image_set.train_labels, 1, 0, seed=arguments.seed, drop_last=True)

    def loaders_of(kind, workers):
        config = argparse.Namespace(**{**vars(arguments), "batch_size": arguments.batch_size[0], "loader": kind,
                                       "num_workers": workers})
        return make_loaders(image_set, config, device, sampler)

    own_loaders = loaders_of(arguments.loader, 0)  # all the time, so that the peak of the memory contains the images
    steps, models, blocks = [], [], []
    for name in arguments.model or [default_model(arguments.dataset)]:
        model = build_model(name, image_set.image_shape, arguments.seed, arguments.precision, len(image_set.classes))
        model.to(device)
        with suppress_out_of_memory():
            evaluate_batch(model, own_loaders[1], device)
        if arguments.cut:
            images = torch.zeros(arguments.cut, *image_set.image_shape, device=device)
            with suppress_out_of_memory():
                seconds = block_seconds(model, images)
                blocks += [BlockTime(name, block, 1000 * value)
                           for block, value in zip(block_names(model), seconds, strict=True)]
        if arguments.compile:
            model.compile()
        optimizer = build_optimizer(model.parameters(), arguments)
        times = step_milliseconds(model, optimizer, image_set, arguments.sizes, device)
        steps += [StepTime(name, size, milliseconds) for size, milliseconds in times.items()]
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        fits = arguments.batch_size[0] not in set(arguments.sizes) - set(times)  # or half of it may not fit either
        link = link_gbps(arguments, name, size, image_set, device.type) if arguments.link and fits else None
        models.append(ModelLink(name, size, link))

    loaders = [loader_speed(loaders_of(arguments.loader, workers)[0], workers, device)
               for workers in (arguments.num_workers if arguments.ceiling else ())]
    resident = None
    if arguments.loader == "workers":
        with contextlib.suppress(SuiteError):  # it may be too large
            resident = loader_speed(loaders_of("resident", 0)[0], 0, device).images_per_second
    return Probe(len(image_set.train_labels), len(image_set.test_labels), startup_seconds, tuple(steps), tuple(models),
                 tuple(loaders), resident, memory=memory_use(device), blocks=tuple(blocks))


def main() -> None:
    parser = OneLineParser(prog="-m common.programs.probe", description=__doc__)
    add_training_flags(parser, several=True)
    parser.add_argument("--sizes", type=positive_int, nargs="+", default=[128], metavar="N")
    parser.add_argument("--threads", type=positive_int, metavar="N")
    parser.add_argument("--cut", type=positive_int, metavar="N", help="time each block, on N images")
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--link", action="store_true")
    arguments = parse_with_recipe(parser, several=True)
    print(json.dumps(asdict(measure(arguments, load_image_set(arguments)))))


if __name__ == "__main__":
    run_script(main)
