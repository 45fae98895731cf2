"""How many images a second does each loader deliver to nobody?

    python benchmarks/loaders.py

Per-image loading with 0, 1 and 2 workers, as `--loader workers` does it, and `--loader resident`, in turn; batches of
128, augmented and normalised, MNIST and CIFAR-10; the resident loader also with all threads of this machine.
"""

import time

import torch
from measure import Witness, arguments_of, config_of, interleave, paired, write
from one_device import sampler_of

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.entry import run_script
from common.machine.environment import available_cores, available_devices
from common.machine.setup import prepare_process
from common.timing import synchronize

SIZE = {"workers": 41 * 128, "resident": None}  # training images of an epoch; None: all


def images_per_second(loader, sampler, resident: bool, device, threads: int) -> float:
    """Return the speed of one whole epoch, so that no worker is still busy when the next rival's turn comes.

    Workers: without the first batch, and so without their start. Resident: all of it, with the shuffling.
    """
    torch.set_num_threads(threads)
    sampler.set_epoch(sampler.epoch + 1)
    synchronize([device])
    start, count = time.perf_counter(), 0
    source = iter(loader)
    if not resident:
        next(source)
        start = time.perf_counter()
    for images, _ in source:
        count += len(images)
    synchronize([device])
    return count / (time.perf_counter() - start)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=11)
    device, cores = available_devices("auto")[0], available_cores()
    prepare_process(config_of(dataset="mnist", model="lenet"), device)
    measured = {"images_per_second": {}}
    with Witness() as witness:
        for dataset in ("mnist", "cifar10"):
            rivals = {}

            def add(name, threads, loader, workers=0, dataset=dataset, rivals=rivals):
                config = config_of(dataset=dataset, model="lenet", data_root=arguments.data_root, loader=loader,
                                   num_workers=workers, train_size=SIZE[loader])
                image_set = load_image_set(config)
                sampler = sampler_of(image_set, config)
                made, _ = make_loaders(image_set, config, device, sampler)
                rivals[name] = lambda: images_per_second(made, sampler, loader == "resident", device, threads)

            for workers in (0, 1, 2):
                add(f"{workers} workers", 1, "workers", workers)
            add("resident, 1 thread", 1, "resident")
            if cores > 1:
                add(f"resident, {cores} threads", cores, "resident")
            measured["images_per_second"][dataset] = speeds = interleave(rivals, arguments.blocks)
            rivals.clear()  # ends the workers: what they used then counts as this process's
            for name, values in speeds.items():
                print(f"{dataset}, {name}: {sorted(values)[len(values) // 2]:,.0f} images/s, "
                      f"{paired(values, speeds['0 workers'])} times as fast as 0 workers", flush=True)
    write(arguments.output, measured, witness)


if __name__ == "__main__":
    run_script(main)
