"""How many images a second does each loader deliver to nobody?

    python benchmarks/loaders.py

Per-image loading with 0, 1 and 2 workers, as `--loader workers` does it, and `--loader resident`, in turn; batches of
128, augmented and normalised, MNIST and CIFAR-10; the resident loader also with all threads of this machine.
"""

import itertools
import time

import torch
from measure import Witness, arguments_of, config_of, interleave, paired, write

from common.data import load_image_set
from common.environment import available_cores, available_devices
from common.errors import run_script
from common.loaders import make_loaders
from common.process import prepare_process
from common.timing import synchronize

BATCHES = {"workers": 40, "resident": 400}  # of a measurement


def images_per_second(loader, batches: int, device, threads: int) -> float:
    """Return the speed of `batches` batches, without the start of the workers, that is, without the first batch."""
    torch.set_num_threads(threads)
    loader.sampler.set_epoch(loader.sampler.epoch + 1)
    source = iter(loader)
    next(source)
    synchronize([device])
    start, count = time.perf_counter(), 0
    for images, _ in itertools.islice(source, batches):
        count += len(images)
    synchronize([device])
    return count / (time.perf_counter() - start)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=11)
    device, cores = available_devices("auto")[0], available_cores()
    prepare_process(config_of(dataset="mnist", model="lenet"), device)
    found = {"images_per_second": {}}
    with Witness() as witness:
        for dataset in ("mnist", "cifar10"):
            rivals = {}

            def add(name, threads, loader, workers=0, dataset=dataset, rivals=rivals):
                config = config_of(dataset=dataset, model="lenet", data_root=arguments.data_root, loader=loader,
                                   num_workers=workers)
                made, _ = make_loaders(load_image_set(config), config, device)
                rivals[name] = lambda: images_per_second(made, BATCHES[loader], device, threads)

            for workers in (0, 1, 2):
                add(f"{workers} workers", 1, "workers", workers)
            add("resident, 1 thread", 1, "resident")
            if cores > 1:
                add(f"resident, {cores} threads", cores, "resident")
            found["images_per_second"][dataset] = speeds = interleave(rivals, arguments.blocks)
            for name, values in speeds.items():
                print(f"{dataset}, {name}: {sorted(values)[len(values) // 2]:,.0f} images/s, "
                      f"{paired(values, speeds['0 workers'])} times as fast as 0 workers", flush=True)
    write(arguments.output, found, witness)


if __name__ == "__main__":
    run_script(main)
