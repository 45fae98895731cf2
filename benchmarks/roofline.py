"""How much of this machine's peak performance does training each network reach?

    python benchmarks/roofline.py

The FLOP/s of a network are the FLOP of convolutions and matrix products in its forward and backward pass, counted by
PyTorch, divided by the time of a training step with all threads, batch 128 and no loader. The peaks are the best rates
of a product of two square matrices and of the forward pass of a 3 x 3 convolution, over several sizes, measured in
turns with the steps.
"""

import statistics
from functools import partial

import torch
from measure import as_table, config_of, median, paired, repeated_seconds, training_step
from runs import Runs, benchmark, benchmark_parser
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common.engine.setup import check_precision, prepare_process
from common.engine.step import build_optimizer
from common.errors import SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_network

BATCH = 128
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
NETWORKS = {"mlp": GREY, "lenet": GREY, "strided": GREY, "vgg": COLOUR, "resnet8": COLOUR, "resnet18": COLOUR}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # rows and columns
CONVOLUTIONS = {"cpu": ((64, 32), (128, 16), (256, 8)), "cuda": ((128, 32), (256, 32), (512, 16))}  # channels, side


def shortest(work, device) -> float:
    """Return the shortest of three times of work() in seconds, after a warm-up."""
    return min(repeated_seconds(work, device, repeats=4)[1:])


def peaks(precision: str, device) -> dict[tuple, tuple]:
    """Return (precision, kind, size) → (work, its FLOP)."""
    works, dtype = {}, TYPES[precision]
    for size in PRODUCTS[device.type]:
        matrix = torch.randn(size, size, device=device).to(dtype)
        works[precision, "matrix product", size] = partial(torch.mm, matrix, matrix), 2 * size**3
    for channels, side in CONVOLUTIONS[device.type]:
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        layer = layer.to(device, dtype, memory_format=torch.channels_last)
        images = torch.randn(BATCH, channels, side, side, device=device).to(dtype, memory_format=torch.channels_last)
        works[precision, "convolution", channels] = partial(layer, images), 2 * 9 * channels**2 * side**2 * BATCH
    return works


def step_of(name: str, precision: str, device) -> tuple:
    """Return a training step as a callable, and its FLOP."""
    config = config_of(model=name, precision=precision)
    model = build_network(name, NETWORKS[name], 0, precision).to(device)
    optimizer = build_optimizer(model.parameters(), config)
    images = torch.randn(BATCH, *NETWORKS[name], device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), device=device)
    step = training_step(model, optimizer, images, labels)
    with FlopCounterMode(display=False) as flop:
        step()
    return step, flop.get_total_flops()


def rates(measured: dict, work: str = "work") -> list[float]:
    """Return the rates in GFLOP/s."""
    return [measured[work] / seconds / 1e9 for seconds in measured["seconds"]]


def rate_of(peak: dict) -> float:
    return statistics.median(rates(peak))


def table(results: dict) -> str:
    types = list(results["peaks"])
    best = {precision: max(peaks.values(), key=rate_of) for precision, peaks in results["peaks"].items()}
    rows, header = [], ["Network", "MFLOP per image, forward and backward"]
    for name, measured in results["networks"].items():
        cells = [f"{measured[types[0]]['flop'] / results['batch'] / 1e6:,.0f}"]
        for precision in types:
            reached = rates(measured[precision], "flop")
            share = paired(reached, rates(best[precision])).value
            cells += [f"{statistics.median(reached):,.0f}", f"{share:.0%}"]
        rows.append((name, *cells))
    for precision in types:
        header += [f"{precision} (GFLOP/s)", "of the peak"]
    texts = [
        f"{precision} {kind} {median(rates(peak), ',.0f')} GFLOP/s"
        for precision in types
        for kind, peak in results["peaks"][precision].items()
    ]
    return f"{as_table(' | '.join(header), rows)}\n\nPeaks, median (range): {', '.join(texts)}."


def measured(runs: Runs) -> dict:
    """Return the seconds of every network's step and of the fastest peak of each kind."""
    device = available_devices("auto")[0]
    prepare_process(config_of(), device)
    types = list(TYPES)
    try:
        check_precision(config_of(precision="bf16"), device)
    except SuiteError as error:
        types.remove("bf16")
        print(f"left out: {error}")
    limits = {key: work for precision in types for key, work in peaks(precision, device).items()}
    steps = {(name, precision): step_of(name, precision, device) for name in NETWORKS for precision in types}
    seconds = runs.interleave({key: partial(shortest, work, device) for key, (work, _) in (limits | steps).items()})
    results = {
        "batch": BATCH,
        "threads": torch.get_num_threads(),
        "networks": {},
        "peaks": {precision: {} for precision in types},
    }
    found = {key: {"work": work, "seconds": seconds[key]} for key, (_, work) in limits.items()}
    for (precision, kind, size), peak in sorted(found.items(), key=lambda item: rate_of(item[1])):
        results["peaks"][precision][kind] = {"size": size, **peak}  # the last one is the fastest
    for (name, precision), (_, flop) in steps.items():
        results["networks"].setdefault(name, {})[precision] = {"flop": flop, "seconds": seconds[name, precision]}
    return results


def main() -> None:
    benchmark(benchmark_parser(__doc__, blocks=5).parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
