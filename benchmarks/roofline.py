"""How much of what this machine can compute does each network's training use?

    python benchmarks/roofline.py

A network's FLOP are those of the forward and backward pass of convolutions and matrix products, counted by PyTorch;
over the time of a training step (with all threads, batch 128, without a loader) they are its FLOP/s. The peaks beside
them are the best rates of a product of two square matrices and of the forward pass of a 3 x 3 convolution, found by
trying some sizes. Draws roofline.png beside the JSON file.
"""

import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Witness, arguments_of, config_of, interleave, write
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common.engine import build_optimizer
from common.environment import available_devices
from common.errors import SuiteError, run_script
from common.models import CLASSES, build_model
from common.plots import new_figure, save_figure
from common.process import check_bf16, prepare_process
from common.timing import Stopwatch

BATCH = 128
NETWORKS = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "strided": (1, 28, 28), "vgg": (3, 32, 32),
            "resnet8": (3, 32, 32), "resnet18": (3, 32, 32)}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COLOURS = {"fp32": "#0072B2", "bf16": "#E69F00"}  # Okabe and Ito


def seconds_of(work, device, repeats: int = 5) -> float:
    """Return the shortest of a few times, after one that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        with Stopwatch([device]) as watch:
            work()
        seconds.append(watch.seconds)
    return min(seconds[1:])


def peaks(dtype, device) -> dict[str, float]:
    """Return the highest rates in FLOP/s: of a product of matrices, and of a convolution."""
    products, convolutions = [], []
    for size in (512, 1024, 2048):
        matrix = torch.randn(size, size, device=device).to(dtype)
        products.append(2 * size**3 / seconds_of(lambda matrix=matrix: matrix @ matrix, device))
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(device, dtype)
        layer = layer.to(memory_format=torch.channels_last)
        images = torch.randn(BATCH, channels, side, side, device=device).to(dtype, memory_format=torch.channels_last)
        with torch.no_grad():
            seconds = seconds_of(lambda layer=layer, images=images: layer(images), device)
        convolutions.append(2 * 9 * channels**2 * side**2 * BATCH / seconds)
    return {"matrix product": max(products), "convolution": max(convolutions)}


def step_of(name: str, precision: str, device):
    """Return (a callable that measures one training step in seconds, the step's FLOP)."""
    config = config_of(dataset="mnist", model=name, precision=precision)
    model = build_model(name, NETWORKS[name], 0, precision).to(device)
    optimizer = build_optimizer(model.parameters(), config)
    images = torch.randn(BATCH, *NETWORKS[name], device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (BATCH,), device=device)

    def step():
        F.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    with FlopCounterMode(display=False) as counter:
        step()
    return lambda: seconds_of(step, device, repeats=3), counter.get_total_flops()


def draw(found: dict, path: Path) -> None:
    """Bars of each network's FLOP/s, and the peaks as lines."""
    figure, (axis,) = new_figure(width=8.0, height=5.0)
    names = list(found["networks"])
    height = 0.8 / len(found["peaks"])
    for number, (precision, peak) in enumerate(found["peaks"].items()):
        rates = [found["networks"][name][precision]["rates"] for name in names]
        middle = [statistics.median(one) / 1e9 for one in rates]
        spread = [[centre - min(one) / 1e9 for centre, one in zip(middle, rates, strict=True)],
                  [max(one) / 1e9 - centre for centre, one in zip(middle, rates, strict=True)]]
        places = [place + (number - (len(found["peaks"]) - 1) / 2) * height for place in range(len(names))]
        axis.barh(places, middle, height, xerr=spread, capsize=3, color=COLOURS[precision], label=f"{precision}, step",
                  hatch="" if precision == "fp32" else "///", edgecolor="white")
        for kind, line in (("matrix product", "--"), ("convolution", ":")):
            axis.axvline(peak[kind] / 1e9, color=COLOURS[precision], linestyle=line, linewidth=2,
                         label=f"{precision}, best {kind}: {peak[kind] / 1e9:,.0f}")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("GFLOP/s of a training step, batch 128 (median; whiskers: fastest and slowest)")
    figure.legend(loc="outside lower center", ncols=2)
    save_figure(figure, path)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=5)
    device = available_devices("auto")[0]
    prepare_process(config_of(dataset="mnist", model="lenet"), device)
    types = dict(TYPES)
    try:
        check_bf16(device)
    except SuiteError as error:
        del types["bf16"]
        print(f"left out: {error}")
    found = {"batch": BATCH, "threads": torch.get_num_threads(), "networks": {}}
    with Witness() as witness:
        found["peaks"] = {name: peaks(dtype, device) for name, dtype in types.items()}
        steps = {(name, precision): step_of(name, precision, device) for name in NETWORKS for precision in types}
        seconds = interleave({key: measure for key, (measure, _) in steps.items()}, arguments.blocks)
    for (name, precision), (_, flops) in steps.items():
        rates = [flops / one for one in seconds[name, precision]]
        found["networks"].setdefault(name, {})[precision] = {"flop_per_step": flops, "rates": rates}
        share = statistics.median(rates) / max(found["peaks"][precision].values())
        print(f"{name}, {precision}: {statistics.median(rates) / 1e9:,.0f} GFLOP/s, {share:.0%} of the peak")
    write(arguments.output, found, witness)
    draw(found, Path(arguments.output).with_suffix(".png"))


if __name__ == "__main__":
    run_script(main)
