"""How many images a second does each loader deliver to nobody, and does the default keep up beside a training?

    python benchmarks/loaders.py

Alone: per-image loading with 0, 1 and 2 workers, as `--loader workers` does it, and `--loader resident`, in turn;
batches of 128, augmented and normalised, MNIST and CIFAR-10; the resident loader also with all threads of this machine.
Beside a training: epochs of the scripts with `--loader workers` and no other flag, one device and DDP, in turns with
those of everything that a person could set by hand (threads, workers, niceness), on 1, 2 and 4 cores of this machine as
far as it has them. The images of the larger networks are drawn ones, in a folder, so that few have to be tested.
"""

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from measure import Witness, arguments_of, config_of, interleave, paired, write
from one_device import sampler_of

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.data.synthetic import synthetic_cifar10
from common.engine.setup import prepare_process
from common.engine.timing import synchronize
from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_cores, available_devices
from common.settings.arguments import positive_int
from common.settings.config import RunConfig
from common.words import count
from comparison.methods import python, script
from comparison.rows import Configuration, Planned
from comparison.run.turns import Run, take_turns

SIZE = {"workers": 41 * 128, "resident": None}  # training images of an epoch; None: all
NETWORKS = {"lenet": (128, 60), "vgg": (128, 8), "resnet18": (16, 8)}  # batch, steps of an epoch
EPOCHS = 6  # the first of them warms up
DEFAULT = "default"


def images_per_second(loader, sampler, resident: bool, device, threads: int) -> float:
    """Return the speed of one whole epoch, so that no worker is still busy when the next rival's turn comes.

    Workers: without the first batch, and so without their start. Resident: all of it, with the shuffling.
    """
    torch.set_num_threads(threads)
    sampler.set_epoch(sampler.epoch + 1)
    synchronize([device])
    start, delivered = time.perf_counter(), 0
    source = iter(loader)
    if not resident:
        next(source)
        start = time.perf_counter()
    for images, _ in source:
        delivered += len(images)
    synchronize([device])
    return delivered / (time.perf_counter() - start)


def alone(data_root: str, blocks: int) -> dict[str, dict[str, list[float]]]:
    """Return data set → loader → images per second."""
    device, cores, found = available_devices("auto")[0], available_cores(), {}
    prepare_process(config_of(dataset="mnist", model="lenet"), device)
    for dataset in ("mnist", "cifar10"):
        rivals = {}

        def add(name, threads, loader, workers=0, dataset=dataset, rivals=rivals):
            config = config_of(
                dataset=dataset,
                model="lenet",
                data_root=data_root,
                loader=loader,
                num_workers=workers,
                train_size=SIZE[loader],
            )
            image_set = load_image_set(config)
            sampler = sampler_of(image_set, config)
            made, _ = make_loaders(image_set, config, device, sampler)
            rivals[name] = lambda: images_per_second(made, sampler, loader == "resident", device, threads)

        for workers in (0, 1, 2):
            add(f"{workers} workers", 1, "workers", workers)
        add("resident, 1 thread", 1, "resident")
        if cores > 1:
            add(f"resident, {cores} threads", cores, "resident")
        found[dataset] = speeds = interleave(rivals, blocks)
        rivals.clear()  # ends the workers: what they used then counts as this process's
        for name, values in speeds.items():
            print(
                f"{dataset}, {name}: {sorted(values)[len(values) // 2]:,.0f} images/s, "
                f"{paired(values, speeds['0 workers'])} times as fast as 0 workers",
                flush=True,
            )
    return found


def draw_folder(directory: Path) -> None:
    """Write enough training images for every network, and 64 test images, as a folder of images."""
    from PIL import Image

    drawn = synthetic_cifar10(max(batch * steps for batch, steps in NETWORKS.values()), 64)
    for part, images, labels in (("train", *drawn[:2]), ("test", *drawn[2:])):
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = directory / part / str(label) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)


def choices(cores: int, ranks: int) -> dict[str, list[str]]:
    """Return name → flags: none, and all that a person could set by hand."""
    found = {DEFAULT: []}
    threads, workers = {1, max(1, cores // ranks)}, {0, ranks, 2 * ranks, max(cores, ranks)}
    for thread, worker, nice in itertools.product(sorted(threads), sorted(workers), (0, RunConfig.worker_nice)):
        if worker or nice:  # without workers, niceness says nothing
            niceness = f", niceness {nice}" if worker else ""
            found[f"{count(thread, 'thread')}, {count(worker, 'worker')}{niceness}"] = [
                "--threads",
                str(thread),
                "--num-workers",
                str(worker),
                "--worker-nice",
                str(nice),
            ]
    return found


def beside_training(model: str, ranks: int, cores: int, images: Path, directory: Path) -> dict[str, list[float]]:
    """Return choice → milliseconds of a step, one for each epoch, of trainings on the first cores of this process."""
    batch, steps = NETWORKS[model]
    dataset = ["synthetic-mnist"] if model == "lenet" else [f"folder:{images}", "--image-size", "32"]
    flags = [
        "--dataset",
        *dataset,
        "--model",
        model,
        "--batch-size",
        str(batch),
        "--epochs",
        str(EPOCHS),
        "--max-steps",
        str(steps),
        "--quiet",
    ]
    name, more = ("data_parallel_train.py", []) if ranks == 1 else ("ddp_train.py", ["--spawn", str(ranks)])
    planned, mine, milliseconds = Planned(model, batch, 0, "cpu", 1, batch), os.sched_getaffinity(0), {}
    rows = [
        Configuration(
            f"choice-{number}", "single", choice, {}, planned, (python(), script(name), *flags, *more, *chosen)
        )
        for number, (choice, chosen) in enumerate(choices(cores, ranks).items())
    ]
    labels = {row.name: row.label for row in rows}
    try:
        os.sched_setaffinity(0, sorted(mine)[:cores])  # of whatever is started from now on
        for outcome in take_turns([Run(row, 1, 1, directory) for row in rows], 1):
            if outcome.status != "ok":
                raise SuiteError(f"{model}, {labels[outcome.configuration]}", outcome.reason, "try it alone", FAILED)
            milliseconds[labels[outcome.configuration]] = [
                1000 * epoch.train_seconds / epoch.steps for epoch in outcome.result.epochs[1:]
            ]
    finally:
        os.sched_setaffinity(0, mine)
    return milliseconds


def best_by_hand(milliseconds: dict[str, list[float]]) -> str:
    """Return which of the choices that are not the default has the smallest median."""
    return min(milliseconds.keys() - {DEFAULT}, key=lambda choice: statistics.median(milliseconds[choice]))


def all_beside_training(cores: list[int]) -> list[dict]:
    """Return of every network, number of ranks and of cores: these, and what beside_training() found."""
    found, devices = [], available_devices("auto")
    ranks = (1, 2) if devices[0].type == "cpu" or len(devices) > 1 else (1,)
    with tempfile.TemporaryDirectory() as directory:
        images = Path(directory, "images")
        draw_folder(images)
        for model, some, number in itertools.product(NETWORKS, cores, ranks):
            if number <= some <= available_cores():
                milliseconds = beside_training(model, number, some, images, Path(directory))
                found.append({"model": model, "ranks": number, "cores": some, "milliseconds": milliseconds})
                best = best_by_hand(milliseconds)
                print(
                    f"{model}, {count(number, 'rank')}, {count(some, 'core')}: the default takes "
                    f"{paired(milliseconds[DEFAULT], milliseconds[best])} times as long as {best}",
                    flush=True,
                )
    return found


def main() -> None:
    arguments = arguments_of(
        __doc__,
        blocks=11,
        more=lambda parser: parser.add_argument(
            "--cores", type=positive_int, nargs="+", default=[1, 2, 4], metavar="N", help="beside a training (1 2 4)"
        ),
    )
    with Witness() as witness:
        measured = {
            "images_per_second": alone(arguments.data_root, arguments.blocks),
            "beside_training": all_beside_training(arguments.cores),
        }
    write(arguments.output, measured, witness)


if __name__ == "__main__":
    run_script(main)
