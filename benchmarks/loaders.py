"""How many images per second does each loader deliver, and are its defaults as fast as the best flags in training?

    python benchmarks/loaders.py

Alone: `--loader workers` with 0, 1 and 2 workers and `--loader resident` with one and all threads, in turns, with
augmented batches of 128 from MNIST and CIFAR-10. In training: epochs of one device and DDP with default flags, in turns
with every sensible choice of loader, threads and workers, on 1, 2 and 4 cores if the machine has them. The larger
networks train on a folder of synthetic images with few test images.
"""

import itertools
import os
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from measure import as_table, config_of, median, paired, run_of, sampler_of
from runs import Runs, benchmark, benchmark_parser

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.data.synthetic import synthetic_cifar10
from common.engine.setup import prepare_process
from common.engine.timing import synchronize
from common.errors import FAILED, SuiteError
from common.machine.cores import available_cores, whole_cores
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.machine.lifetime import temporary_directory
from common.settings.arguments import positive_int
from common.words import count
from comparison.methods import python, script
from comparison.run.turns import take_turns

SIZE = {"workers": 41 * 128, "resident": None}  # training images of an epoch; None: all
NETWORKS = {"lenet": (128, 60), "vgg": (128, 8), "resnet18": (16, 8)}  # batch, steps of an epoch
EPOCHS = 6  # the first of them warms up
DEFAULT = "default"


def images_per_second(config, device, threads: int):
    """Return a callable that loads one whole epoch, so that no worker stays busy, and returns the images per second.

    For workers, the first batch is not timed, as it includes their start. The resident loader's shuffling is timed.
    """
    image_set = load_image_set(config)
    sampler = sampler_of(image_set, config)
    loader, _ = make_loaders(image_set, config, device, sampler)

    def measure():
        torch.set_num_threads(threads)
        sampler.set_epoch(sampler.epoch + 1)
        synchronize([device])
        start, delivered = time.perf_counter(), 0
        source = iter(loader)
        if config.loader == "workers":
            next(source)
            start = time.perf_counter()
        for images, _ in source:
            delivered += len(images)
        synchronize([device])
        return delivered / (time.perf_counter() - start)

    return measure


def alone(runs: Runs) -> dict[str, dict[str, list[float]]]:
    """Return data set → loader → images per second, one for each block."""
    device, cores, found = available_devices("auto")[0], whole_cores(), {}
    prepare_process(config_of(), device)
    ways = {f"{workers} workers": ("workers", workers, 1) for workers in (0, 1, 2)}
    ways |= {f"resident, {count(threads, 'thread')}": ("resident", 0, threads) for threads in (1, cores)}
    for dataset in ("mnist", "cifar10"):
        rivals = {}
        for name, (loader, workers, threads) in ways.items():
            values = {"loader": loader, "num_workers": workers, "train_size": SIZE[loader]}
            config = config_of(dataset=dataset, data_root=runs.arguments.data_root, **values)
            rivals[name] = images_per_second(config, device, threads)
        found[dataset] = runs.interleave(rivals, f"{dataset}, ")
        rivals.clear()  # ends the workers, so that their CPU time counts as this process's
    return found


def draw_folder(directory: Path, size: int) -> None:
    """Write `size` synthetic training images and 64 test images as a folder of images."""
    from PIL import Image

    drawn = synthetic_cifar10(size, 64)
    for part, images, labels in (("train", *drawn[:2]), ("test", *drawn[2:])):
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = directory / part / str(label) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)


def choices(cores: int, ranks: int) -> dict[str, list[str]]:
    """Return name → flags: the defaults and every sensible choice of loader, threads and workers."""
    found: dict[str, list[str]] = {DEFAULT: []}
    threads, workers = {1, max(1, cores // ranks)}, {0, ranks, 2 * ranks, max(cores, ranks)}
    for thread, worker in itertools.product(sorted(threads), sorted(workers)):
        name = f"{count(thread, 'thread')}, {count(worker, 'worker')}"
        found[name] = f"--threads {thread} --num-workers {worker}".split()
    for thread in sorted(threads):
        found[f"{count(thread, 'thread')}, resident"] = f"--threads {thread} --loader resident".split()
    return found


def in_training(model: str, ranks: int, cores: int, images: Path, directory: Path) -> dict[str, list[float]]:
    """Return choice → milliseconds per step of each epoch, of trainings on the first `cores` cores."""
    (batch, steps), mine = NETWORKS[model], os.sched_getaffinity(0)
    dataset = ["synthetic-mnist"] if model == "lenet" else [f"folder:{images}", "--image-size", "32"]
    flags = f"--model {model} --batch-size {batch} --epochs {EPOCHS} --max-steps {steps} --quiet".split()
    command = ["data_parallel_train.py"] if ranks == 1 else ["ddp_train.py", "--spawn", str(ranks)]
    command = [python(), script(command[0]), "--dataset", *dataset, *flags, *command[1:]]
    runs = [
        run_of(choice, number, (*command, *chosen), directory)
        for number, (choice, chosen) in enumerate(choices(cores, ranks).items())
    ]
    labels, milliseconds = {run.configuration.name: run.configuration.label for run in runs}, {}
    try:
        os.sched_setaffinity(0, sorted(mine)[:cores])  # inherited by child processes
        for outcome in take_turns(runs, 1):
            label = labels[outcome.configuration]
            if outcome.status != "ok":
                raise SuiteError(f"{model}, {label}", outcome.reason, "try it alone", FAILED)
            epochs = outcome.result.epochs[1:]
            milliseconds[label] = [1000 * epoch.train_seconds / epoch.steps for epoch in epochs]
    finally:
        os.sched_setaffinity(0, mine)
    return milliseconds


def best_by_hand(milliseconds: dict[str, list[float]]) -> str:
    """Return the choice with the smallest median, other than the default."""
    return min(milliseconds.keys() - {DEFAULT}, key=lambda choice: statistics.median(milliseconds[choice]))


def all_in_training(runs: Runs) -> list[dict]:
    """Return the results of in_training() for every network, number of cores and number of ranks."""
    devices = available_devices("auto")
    ranks = (1, 2) if devices[0].type == "cpu" or len(devices) > 1 else (1,)
    cases = {
        f"{model}, {count(number, 'rank')}, {count(cores, 'core')}": (model, number, cores)
        for model, cores, number in itertools.product(NETWORKS, runs.arguments.cores, ranks)
        if number <= cores <= available_cores()
    }
    with temporary_directory() as directory:
        draw_folder(images := Path(directory, "images"), max(batch * steps for batch, steps in NETWORKS.values()))
        found = runs.each({key: partial(in_training, *case, images, Path(directory)) for key, case in cases.items()})
    return [
        {"model": model, "ranks": number, "cores": cores, "milliseconds": found[key]}
        for key, (model, number, cores) in cases.items()
        if key in found
    ]


def table(results: dict) -> str:
    rows = [
        (dataset, name, median(values, ",.0f"), paired(values, speeds["0 workers"]))
        for dataset, speeds in results["images_per_second"].items()
        for name, values in speeds.items()
    ]
    alone = as_table("Data set | Loader | Images/s, median (range) | ÷ 0 workers [95%]", rows, (0, 1))
    rows = []
    for case in results["beside_training"]:
        times, by_hand = case["milliseconds"], best_by_hand(case["milliseconds"])
        default, best = times[DEFAULT], times[by_hand]
        about = case["model"], case["cores"], case["ranks"]
        rows.append((*about, median(default, ".0f"), by_hand, median(best, ".0f"), paired(default, best)))
    header = (
        "Network | Cores | Processes | Default (ms per step) | Best set by hand | (ms per step) | Default ÷ best [95%]"
    )
    return f"{alone}\n\nWhile training:\n\n{as_table(header, rows, (0, 4))}"


def measured(runs: Runs) -> dict:
    return {"images_per_second": alone(runs), "beside_training": all_in_training(runs)}


def main() -> None:
    parser, help = benchmark_parser(__doc__, blocks=11), "beside a training (1 2 4)"
    parser.add_argument("--cores", type=positive_int, nargs="+", default=[1, 2, 4], metavar="N", help=help)
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
