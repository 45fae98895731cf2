"""How much of N machines like this one would DDP use? Simulated, not measured.

    python benchmarks/cluster_size.py

Measured here, for each network: the time of a training step of 32 images on one thread and how it varies, when DDP's
buckets are full, and what a message takes between two ranks (gloo). From these, steps of up to 1,024 ranks are played
through, message by message: every rank's step takes as long as one that was measured, drawn at random, and a message is
sent when its sender and what it passes on are ready. It assumes that every rank has a machine of its own, that every
batch has 32 images for each rank (weak scaling), that links of so many gigabits per second join any two machines
without a queue, that a message starts as fast as here, and that nothing is lost. Draws cluster_size.png beside the JSON
file.
"""

import dataclasses
from pathlib import Path

from measure import Witness, arguments_of, config_of, write

from common.machine.begin import begin

begin(__name__)

import numpy as np
import torch

from common.data.image_set import load_image_set
from common.engine.setup import prepare_process
from common.engine.step import build_optimizer
from common.engine.timing import Stopwatch
from common.files.plots import new_figure, save_figure
from common.files.probe import Bucket
from common.machine.entry import run_script
from common.models.build import build_model
from common.programs.probe import exchange, gradient_buckets, random_step

BATCH, STEPS, PLAYED = 32, 25, 20
NETWORKS = {
    "lenet": "synthetic-mnist",
    "vgg": "synthetic-cifar10",
    "resnet8": "synthetic-cifar10",
    "torchvision:resnet50": "synthetic-cifar10",
}
GBPS = {100.0: "#0072B2", 10.0: "#E69F00", 1.0: "#009E73"}  # Okabe and Ito
RANKS = tuple(2**power for power in range(11))
GLOO = 2  # messages for each step of a ring, and buckets that are exchanged at once (see projection.Link)


def ring(ready: np.ndarray, size: int, start: float, gbps: float) -> np.ndarray:
    """Return when each rank has the sum of what all had at `ready` (milliseconds), of `size` bytes.

    In each of 2 (N-1) steps a rank sends an Nth of it to the next one, in GLOO messages of `start` milliseconds.
    """
    message = GLOO * start + 8e-6 * size / len(ready) / gbps
    for _ in range(2 * (len(ready) - 1)):
        ready = np.maximum(ready, np.roll(ready, 1)) + message
    return ready


def tree(ready: np.ndarray, size: int, start: float, gbps: float) -> np.ndarray:
    """Return the same along a tree, up and down; the bytes follow in a stream, at best as long as round a ring."""
    ranks, depth = len(ready), (len(ready) - 1).bit_length()
    return np.full(ranks, ready.max() + 2 * depth * start + 2 * (ranks - 1) / ranks * 8e-6 * size / gbps)


def efficiency(steps: list[float], buckets: list[Bucket], ranks: int, start: float, gbps: float, along) -> float:
    """Return the ranks' mean step alone ÷ their step together, of steps that are drawn from `steps` (milliseconds).

    A bucket is exchanged once it is full and the last but one is through.
    """
    draw, alone, played = np.random.default_rng(ranks), [], []
    for _ in range(PLAYED):
        own = draw.choice(steps, ranks)
        alone.append(own.mean())
        ends = [own] * GLOO
        for bucket in buckets:
            ends.append(
                along(
                    np.maximum(own * (1 - bucket.left), ends[-GLOO] if len(ends) > GLOO else 0),
                    bucket.size,
                    start,
                    gbps,
                )
            )
        played.append(max(own.max(), *(end.max() for end in ends)))
    return float(np.mean(alone) / np.mean(played))


def measure(name: str, dataset: str, data_root: str) -> dict:
    """Return the milliseconds of STEPS steps, DDP's buckets, and the milliseconds that a message takes to start."""
    config = config_of(dataset=dataset, model=name, data_root=data_root, batch_size=BATCH, threads=1)
    cpu = torch.device("cpu")
    image_set = load_image_set(config)
    model = build_model(name, image_set.image_shape, config.seed, config.precision, len(image_set.classes))
    step, steps = random_step(model, build_optimizer(model.parameters(), config), image_set, BATCH, cpu), []
    for number in range(STEPS + 2):
        with Stopwatch([cpu]) as watch:
            step()
        if number >= 2:
            steps.append(1000 * watch.seconds)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    both = dataclasses.replace(config, batch_size=(2 * BATCH,))  # the probe's flags take several
    _, short, _ = exchange(both, name, size, image_set, "cpu")
    return {
        "parameters": size // 4,
        "steps": steps,
        "start": short / (2 * GLOO),
        "buckets": [dataclasses.asdict(bucket) for bucket in gradient_buckets(model, step, cpu)],
    }


def curves(network: dict) -> dict[tuple[str, float], list[float]]:
    """Return (way, gbps) → the efficiency for each of RANKS."""
    buckets = [Bucket(**bucket) for bucket in network["buckets"]]
    return {
        (along.__name__, gbps): [
            efficiency(network["steps"], buckets, ranks, network["start"], gbps, along) for ranks in RANKS
        ]
        for along in (ring, tree)
        for gbps in GBPS
    }


def draw(networks: dict, path: Path) -> Path:
    """Draw every network's efficiency over the number of ranks, for each link, round a ring and along a tree."""
    figure, axes = new_figure(columns=len(networks), width=13.0, height=4.4)
    for axis, (name, network) in zip(axes, networks.items(), strict=True):
        for (way, gbps), values in curves(network).items():
            axis.plot(
                RANKS,
                [100 * value for value in values],
                color=GBPS[gbps],
                marker="o",
                markersize=3,
                linestyle="-" if way == "ring" else "--",
                label=f"{gbps:g} Gbit/s, {way}",
            )
        title = f"{name.removeprefix('torchvision:')}\n{network['parameters'] / 1e6:.1f} M parameters"
        axis.set(xscale="log", xlabel="ranks", ylim=(0, 105), title=title)
        axis.set_xscale("log", base=4)
        axis.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1,024"])
    axes[0].set_ylabel("efficiency of DDP (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=9)
    figure.suptitle(
        "SIMULATED, not measured: a ring's messages end the scaling of small networks, whatever the link's "
        f"speed\n{BATCH} images for each rank, steps and messages as measured on one machine's CPU"
    )
    return save_figure(figure, path)


def main() -> None:
    arguments = arguments_of(__doc__)
    prepare_process(config_of(threads=1), torch.device("cpu"))
    with Witness() as witness:
        networks = {name: measure(name, dataset, arguments.data_root) for name, dataset in NETWORKS.items()}
    write(arguments.output, {"batch": BATCH, "networks": networks}, witness)
    print(draw(networks, Path(arguments.output).with_suffix(".png")))
    for name, network in networks.items():
        for (way, gbps), values in curves(network).items():
            far = max((ranks for ranks, value in zip(RANKS, values, strict=True) if value >= 0.5), default=0)
            print(f"{name}, {way}, {gbps:g} Gbit/s: half of the machines' time at {far} ranks, simulated")


if __name__ == "__main__":
    run_script(main)
