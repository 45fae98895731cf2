"""What one device can do alone, measured in seconds before a comparison starts: step times, loader, link.

    python -m common.programs.probe --dataset mnist --sizes 32 64 128 --threads 1 --ceiling --link

prints a common.files.probe.Probe as JSON. It also puts the data set in place, for all runs.
"""

import contextlib
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common.machine.begin import begin
from common.settings.arguments import OneLineParser, positive_int
from common.settings.config import add_training_flags, default_model, parse_with_recipe


def parse() -> Any:
    parser = OneLineParser(prog="-m common.programs.probe", description=__doc__)
    add_training_flags(parser, several=True)
    what = "time steps on N images"
    parser.add_argument("--sizes", type=positive_int, nargs="+", default=[128], metavar="N", help=what)
    parser.add_argument("--threads", type=positive_int, metavar="N")
    parser.add_argument("--cut", type=positive_int, metavar="N", help="time each block, on N images")
    parser.add_argument("--ceiling", action="store_true", help="the loader's speed, and what it takes of the cores")
    parser.add_argument("--link", action="store_true", help="how fast ranks that train exchange gradients")
    parser.set_defaults(num_workers=[0], loader="workers", quiet=False)
    return parse_with_recipe(parser, several=True)


typed = begin(__name__, parse)

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DistributedSampler

from common.data.image_set import ImageSet, load_image_set
from common.data.loaders import make_loaders
from common.engine.compiled import compile_network
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer, to_device
from common.engine.timing import CALLS, Stopwatch, command_start, synchronize
from common.errors import SuiteError, suppress_out_of_memory
from common.files.probe import BlockTime, LoaderSpeed, MemoryUse, ModelLink, Probe, StepTime
from common.machine.cores import short_slices
from common.machine.entry import run_script
from common.machine.environment import available_devices, gpus_can_be_shared
from common.machine.lifetime import end_with_parent
from common.machine.memory import free_memory, peak_resident_bytes
from common.models.build import Network, block_names, build_network
from common.ranks.buckets import gradient_buckets
from common.ranks.group import shutdown
from common.ranks.stages import measure_parts

SECONDS_PER_MEASUREMENT = 1.0
SHORT = 1024  # bytes; for a single number, gloo's all-reduce would send half as many messages


def random_step(model: nn.Module, optimizer, image_set: ImageSet, batch: int, device) -> Callable[[], None]:
    """Return a function that trains `model` for a step, on `batch` fixed random images shaped like the data set's."""
    images = torch.randn(batch, *image_set.image_shape, device=device)  # (B, C, H, W)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(len(image_set.classes), (batch,), device=device)

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def wants_more(steps: int, seconds: float) -> bool:
    """Return whether to measure again: 2 warm-up steps, then at least 5 and up to 15 as time allows."""
    return steps < 7 or (steps < 17 and seconds < SECONDS_PER_MEASUREMENT)


def step_milliseconds(model: nn.Module, optimizer, image_set: ImageSet, sizes: list[int], device) -> dict[int, float]:
    """Return the median time of a training step for each batch size, without the first two times.

    On a GPU, each time is the mean of 20 steps. The sizes take turns, so that a temporary slowdown of the machine
    affects all of them. A size that does not fit into memory is left out.
    """
    calls = CALLS[device.type]
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    steps: dict[int, Callable[[], None]] = {}
    while left := [size for size, times in seconds.items() if wants_more(len(times), calls * sum(times))]:
        for size in left:
            with suppress_out_of_memory():
                if size not in steps:
                    steps[size] = random_step(model, optimizer, image_set, size, device)
                with Stopwatch([device]) as watch:
                    for _ in range(calls):
                        steps[size]()
                seconds[size].append(watch.seconds / calls)
                continue
            del seconds[size]
    return {size: 1000 * statistics.median(times[2:]) for size, times in seconds.items()}


def loader_speed(loader, workers: int, device: torch.device) -> LoaderSpeed:
    """Measure a training loader's images per second on `device` and its CPU time, after the first batch."""
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
                images_per_second = count / (time.perf_counter() - start)
                return LoaderSpeed(workers, images_per_second, (cpu_seconds() - computed) / count)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its running descendants, such as loader workers."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in children)


def exchange(arguments: Any, model: str, size: int, image_set: ImageSet, kind: str) -> tuple[float | None, ...]:
    """Measure the all-reduce of `size` bytes for a ModelLink, with one rank per GPU, or two on a CPU.

    Before each exchange, every rank trains `model` on its share of a batch: an exchange between idle ranks is several
    times as fast. Returns the bus bandwidth in Gbit/s (bytes ÷ seconds x 2 (N-1)/N: github.com/NVIDIA/nccl-tests,
    doc/PERFORMANCE.md), and the milliseconds of two exchanges right after it, of SHORT bytes and of `size` bytes. All
    are None with one GPU, if processes may not share a GPU with this one, or without NCCL.
    """
    ranks = torch.cuda.device_count() if kind == "cuda" else 2
    if ranks < 2 or (kind == "cuda" and not (gpus_can_be_shared() and dist.is_nccl_available())):
        return None, None, None
    if kind == "cuda":
        torch.cuda.empty_cache()  # a rank uses this process's GPU as well
    shapes = SimpleNamespace(image_shape=image_set.image_shape, classes=image_set.classes)  # without the images
    with tempfile.TemporaryDirectory() as directory:
        spawn(_exchange, (ranks, directory, arguments, model, size, shapes, kind), ranks)
        trained, short, whole = json.loads(Path(directory, "seconds").read_text())
    return 8e-9 * size * 2 * (ranks - 1) / ranks / trained, 1000 * short, 1000 * whole


def _exchange(rank, ranks, directory, arguments, name, size, image_set, kind):
    """Run one rank's exchanges. Rank 0 writes the median seconds of the three exchanges to the directory."""
    end_with_parent()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    prepare_process(arguments, device, rank, ranks)
    with short_slices(arguments.bind and kind == "cpu"):
        backend, own = ("nccl", device) if kind == "cuda" else ("gloo", None)
        dist.init_process_group(backend, f"file://{directory}/rendezvous", rank=rank, world_size=ranks, device_id=own)
    model = _build(name, arguments, image_set, device)
    share = max(1, arguments.batch_size[0] // ranks)
    step = random_step(model, build_optimizer(model.parameters(), arguments), image_set, share, device)
    gradients, message = (torch.ones(max(1, count // 4), device=device) for count in (size, SHORT))
    exchanges, spent = [], 0.0
    while wants_more(len(exchanges), spent):
        watches = [Stopwatch([device]) for _ in range(4)]
        with watches[0]:
            step()
        for watch, sent in zip(watches[1:], (gradients, message, gradients), strict=True):
            with watch:
                dist.all_reduce(sent)
        exchanges.append([watch.seconds for watch in watches[1:]])
        total = torch.tensor([sum(watch.seconds for watch in watches)], device=device)
        dist.all_reduce(total)  # so that all ranks stop after the same step
        spent += total.item() / ranks
    seconds = torch.tensor(exchanges, device=device)  # (exchanges, 3)
    dist.all_reduce(seconds)
    if rank == 0:
        medians = seconds[2:].quantile(0.5, dim=0) / ranks
        Path(directory, "seconds").write_text(json.dumps(medians.tolist()))
    shutdown()


def _build(name, arguments, image_set, device):
    classes = len(image_set.classes)
    return build_network(name, image_set.image_shape, arguments.seed, arguments.precision, classes).to(device)


def flop_per_image(model: Network, image_set: ImageSet) -> float | None:
    """Return ModelLink's flop, counted on meta tensors without computing anything."""
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.empty(2, *image_set.image_shape, device="meta")
    with contextlib.suppress(Exception):  # a user's network may depend on the values
        model = copy.deepcopy(model).to("meta").float()
        model.precision, model.recompute = "fp32", False  # neither changes the network's flop
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
        return counter.get_total_flops() / len(images)
    return None


def memory_use(device: torch.device) -> tuple[MemoryUse, ...]:
    cpu = MemoryUse("cpu", peak_resident_bytes(), free_memory(torch.device("cpu")))
    if device.type == "cpu":
        return (cpu,)
    free = min(map(free_memory, available_devices("gpu"))) if gpus_can_be_shared() else None
    return cpu, MemoryUse("cuda", torch.cuda.max_memory_reserved(device), free)


def measure(arguments: Any, image_set: ImageSet) -> Probe:
    device = available_devices(arguments.device)[0]
    prepare_process(arguments, device)
    startup_seconds = time.time() - command_start()
    own = _loaders(arguments, image_set, device)  # kept until the end, so that the memory peak includes the images
    names = arguments.model or [default_model(arguments.dataset)]
    measured = [_measure_model(name, arguments, image_set, device, own[1]) for name in names]
    loaders, resident = [], None
    for workers in arguments.num_workers if arguments.ceiling else ():
        loader, _ = _loaders(arguments, image_set, device, num_workers=workers)
        loaders.append(loader_speed(loader, workers, device))
    if arguments.loader == "workers":
        with contextlib.suppress(SuiteError):  # the images may not fit
            loader, _ = _loaders(arguments, image_set, device, loader="resident")
            resident = loader_speed(loader, 0, device).images_per_second
    return Probe(
        train_images=len(image_set.train_labels),
        test_images=len(image_set.test_labels),
        startup_seconds=startup_seconds,
        steps=tuple(step for steps, _, _ in measured for step in steps),
        models=tuple(link for _, link, _ in measured),
        loaders=tuple(loaders),
        resident_images_per_second=resident,
        memory=memory_use(device),
        blocks=tuple(block for _, _, blocks in measured for block in blocks),
    )


def _loaders(arguments, image_set, device, **changed):
    config = {**vars(arguments), "batch_size": arguments.batch_size[0], "num_workers": 0, **changed}
    sampler = DistributedSampler(image_set.train_labels, 1, 0, seed=arguments.seed, drop_last=True)
    return make_loaders(image_set, SimpleNamespace(**config), device, sampler)


def _measure_model(name, arguments, image_set, device, test_loader):
    """Return the StepTimes, the ModelLink and the BlockTimes of a network."""
    model, blocks = _build(name, arguments, image_set, device), []
    with suppress_out_of_memory(), torch.no_grad():  # sets the memory peak if training batches are small
        images, _ = next(iter(test_loader))
        model.eval()(to_device(images, device))
    model.train()
    if arguments.cut:
        images = torch.zeros(arguments.cut, *image_set.image_shape, device=device)
        with contextlib.suppress(Exception):  # a row that cuts the network will say why
            names, parts = block_names(model), measure_parts(model, images)
            blocks = [BlockTime(name, names[first], 1000 * seconds) for first, seconds in parts.items()]
    if arguments.compile:
        compile_network(model)
    optimizer, batch = build_optimizer(model.parameters(), arguments), arguments.batch_size[0]
    times = step_milliseconds(model, optimizer, image_set, arguments.sizes, device)
    size = sum(parameter.nbytes for parameter in model.parameters())
    flop = flop_per_image(model, image_set) if device.type == "cuda" else None  # a CPU's peak is unknown
    link = ModelLink(name, size, None, flop=flop)
    fits = batch in times or batch not in arguments.sizes  # otherwise a rank's share may not fit either
    if arguments.link and fits:
        step = random_step(model, optimizer, image_set, batch, device)
        numbers = exchange(arguments, name, size, image_set, device.type)
        link = ModelLink(name, size, *numbers, gradient_buckets(model, step, device), flop)
    return [StepTime(name, size, milliseconds) for size, milliseconds in times.items()], link, blocks


def main(arguments: Any) -> None:
    print(json.dumps(asdict(measure(arguments, load_image_set(arguments)))))


if __name__ == "__main__":
    run_script(lambda: main(typed))
