"""How much of what this machine can compute, and can move, does each network's training use?

    python benchmarks/roofline.py

A network's FLOP are those of the forward and backward pass of convolutions and matrix products, counted by PyTorch; its
bytes are those of the tensors that every operation of the step reads and writes. Over the time of a training step (with
all threads, batch 128, without a loader) they are its FLOP/s and its bytes/s. The peaks beside them are the best rates
of a product of two square matrices and of the forward pass of a 3 x 3 convolution, of some sizes, and of a copy of
256 MiB; they take turns with the steps. What a cache holds is moved without the memory, so that a step may show more
bytes/s than the copy. One network's step is also taken apart into its operations. Draws roofline.png beside the JSON
file.
"""

import statistics
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Witness, arguments_of, as_table, config_of, interleave, median, paired, write
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from common.engine.setup import check_bf16, prepare_process
from common.engine.step import build_optimizer
from common.engine.timing import CALLS, Stopwatch
from common.errors import SuiteError
from common.files.plots import new_figure, save_figure
from common.machine.entry import run_script
from common.machine.environment import available_devices, rounds_to_tf32
from common.models.build import build_network

BATCH = 128
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
NETWORKS = {"mlp": GREY, "lenet": GREY, "strided": GREY, "vgg": COLOUR, "resnet8": COLOUR, "resnet18": COLOUR}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # rows and columns
CONVOLUTIONS = {"cpu": ((64, 32), (128, 16), (256, 8)), "cuda": ((128, 32), (256, 32), (512, 16))}  # channels, side
COPIED = 2**28  # bytes
TAKEN_APART, STEPS = "vgg", 20  # the network whose operations are measured one by one, and in how many steps
COLOURS = {"fp32": "#0072B2", "bf16": "#E69F00"}  # Okabe and Ito


class Meter(TorchDispatchMode):
    """Adds up of each operation, by its name, the `bytes` of the tensors that it reads and writes, and its `seconds`.

    Views move nothing. A fused optimizer returns nothing: what it writes is what its schema says, but for the
    gradients, which it would only write to unscale them.
    """

    def __init__(self, device):
        super().__init__()
        self.device, self.bytes, self.seconds = device, Counter(), Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        with Stopwatch([self.device]) as watch:
            result = written = operation(*args, **(kwargs or {}))
        schema, name = operation._schema, str(operation.overloadpacket)
        self.seconds[name] += watch.seconds
        if not schema.returns:
            written = [
                value
                for argument, value in zip(schema.arguments, args, strict=False)
                if argument.alias_info and argument.alias_info.is_write and argument.name != "grads"
            ]
        if not operation.is_view:
            self.bytes[name] += sum(
                leaf.nbytes for leaf in tree_leaves((args, kwargs, written)) if torch.is_tensor(leaf)
            )
        return result


def shortest(work, device, repeats: int = 3) -> float:
    """Return the shortest of a few times of work(), in seconds, after one that does not count."""
    seconds, calls = [], CALLS[device.type]
    for _ in range(repeats + 1):
        with Stopwatch([device]) as watch:
            for _ in range(calls):
                work()
        seconds.append(watch.seconds / calls)
    return min(seconds[1:])


def peaks(precision: str, device) -> dict[tuple, tuple]:
    """Return {(precision, kind, size): (work, its FLOP)}."""
    works, dtype = {}, TYPES[precision]
    for size in PRODUCTS[device.type]:
        matrix = torch.randn(size, size, device=device).to(dtype)
        works[precision, "matrix product", size] = (lambda matrix=matrix: matrix @ matrix), 2 * size**3
    for channels, side in CONVOLUTIONS[device.type]:
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).requires_grad_(False)
        layer = layer.to(device, dtype, memory_format=torch.channels_last)
        images = torch.randn(BATCH, channels, side, side, device=device).to(dtype, memory_format=torch.channels_last)
        flop = 2 * 9 * channels**2 * side**2 * BATCH
        works[precision, "convolution", channels] = (lambda layer=layer, images=images: layer(images)), flop
    return works


def step_of(name: str, precision: str, device):
    """Return (one training step as a callable, its FLOP, its bytes)."""
    config = config_of(model=name, precision=precision)
    model = build_network(name, NETWORKS[name], 0, precision).to(device)
    optimizer = build_optimizer(model.parameters(), config)
    images = torch.randn(BATCH, *NETWORKS[name], device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), device=device)

    def step():
        F.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    with FlopCounterMode(display=False) as flop:
        step()
    with Meter(device) as meter:
        step()
    return step, flop.get_total_flops(), meter.bytes.total()


def operations(step, device) -> dict[str, dict[str, float]]:
    """Return the FLOP, bytes and seconds of each operation of a training step, one after the other: means of some."""
    with FlopCounterMode(display=False) as flop:
        step()
    flops = {str(operation): count for operation, count in flop.get_flop_counts()["Global"].items()}
    with Meter(device) as meter:
        for _ in range(STEPS):
            step()
    return {
        name: {"flop": flops.get(name, 0), "bytes": meter.bytes[name] / STEPS, "seconds": seconds / STEPS}
        for name, seconds in meter.seconds.most_common()
    }


def rates(measured: dict, work: str = "work") -> list[float]:
    """Return the measured rates in 10^9 FLOP or bytes per second."""
    return [measured[work] / seconds / 1e9 for seconds in measured["seconds"]]


def rate_of(peak: dict) -> float:
    """Return the median rate of a measured peak."""
    return statistics.median(rates(peak))


def draw(results: dict, path: Path, logarithmic: bool) -> None:
    """Bars of each network's FLOP/s and bytes/s, with whiskers from slowest to fastest, and the peaks as lines."""
    figure, axes = new_figure(columns=2, width=10.0, height=5.0)
    names, height = list(results["networks"]), 0.8 / len(results["peaks"])
    for number, precision in enumerate(results["peaks"]):
        places = [place + (number - (len(results["peaks"]) - 1) / 2) * height for place in range(len(names))]
        look = {"color": COLOURS[precision], "hatch": "" if precision == "fp32" else "///", "edgecolor": "white"}
        for axis, work in zip(axes, ("flop", "bytes"), strict=True):
            found = [rates(results["networks"][name][precision], work) for name in names]
            middle = [statistics.median(values) for values in found]
            below = [centre - min(values) for centre, values in zip(middle, found, strict=True)]
            above = [max(values) - centre for centre, values in zip(middle, found, strict=True)]
            label = f"{precision}, step" if work == "flop" else None
            axis.barh(places, middle, height, xerr=[below, above], capsize=3, label=label, **look)
        for kind, line in (("matrix product", "--"), ("convolution", ":")):
            rate = rate_of(results["peaks"][precision][kind])
            label = f"{precision}, best {kind}: {rate:,.0f} GFLOP/s"
            axes[0].axvline(rate, color=COLOURS[precision], linestyle=line, linewidth=2, label=label)
    rate = rate_of(results["copy"])
    axes[1].axvline(rate, color="black", linestyle="-.", linewidth=2, label=f"copy: {rate:,.0f} GB/s")
    axes[0].set_xlabel(f"GFLOP/s of a training step, batch {BATCH}")
    axes[1].set_xlabel("GB/s that its operations read and write")
    for axis, labels in zip(axes, (names, [""] * len(names)), strict=True):
        axis.set_yticks(range(len(names)), labels)
        axis.invert_yaxis()
        if logarithmic:
            axis.set_xscale("log")
    figure.suptitle(finding(results))
    figure.legend(loc="outside lower center", ncols=2)
    save_figure(figure, path)


def finding(results: dict) -> str:
    """Return which network comes closest to the machine's best rate in each type, in words."""
    parts = []
    for precision, peaks in results["peaks"].items():
        peak = max(peaks.values(), key=rate_of)
        reached = {}
        for name, steps in results["networks"].items():
            measured = steps[precision]
            reached[name] = measured["flop"] / peak["work"] * paired(peak["seconds"], measured["seconds"]).value
        best = max(reached, key=reached.get)
        parts.append(f"{reached[best]:.0%} in {precision} ({best})")
    return f"Of what the machine can compute, a training step uses at most {' and '.join(parts)}"


def table(results: dict) -> str:
    types = list(results["peaks"])
    best = {precision: max(peaks.values(), key=rate_of) for precision, peaks in results["peaks"].items()}
    rows, header = [], ["Network", "MFLOP per image, forward and backward"]
    for name, measured in results["networks"].items():
        cells = [f"{measured[types[0]]['flop'] / results['batch'] / 1e6:,.0f}"]
        for precision in types:
            for work, limit in (("flop", best[precision]), ("bytes", results["copy"])):
                reached = rates(measured[precision], work)
                share = 100 * paired(reached, rates(limit)).value
                cells += [f"{statistics.median(reached):,.0f}", f"{share:.{0 if share > 9.5 else 1}f}%"]
        rows.append((name, *cells))
    for precision in types:
        header += [f"{precision} (GFLOP/s)", "of the peak", f"{precision} (GB/s)", "of a copy's"]
    texts = [
        f"{precision} {kind} {median(rates(peak), ',.0f')} GFLOP/s"
        for precision in types
        for kind, peak in results["peaks"][precision].items()
    ]
    tf32 = " Convolutions of fp32 round to TF32, matrix products do not." if results["tf32"] else ""
    copied = median(rates(results["copy"]), ",.0f")
    return (
        f"{as_table(' | '.join(header), rows)}\n\nPeaks, median (range): {', '.join(texts)}; copy {copied} GB/s.{tf32}"
        f"\n\n{operations_table(results, rate_of(best[results['operations']['precision']]))}"
    )


def operations_table(results: dict, peak: float) -> str:
    """Return the operations of one network's step that take one per cent of it, and the others together."""
    about, total = results["operations"], sum(taken["seconds"] for taken in results["operations"]["of"].values())
    copy, kept, others, rows = rate_of(results["copy"]), {}, Counter(), []
    for name, taken in about["of"].items():
        if taken["seconds"] >= 0.01 * total:
            kept[f"`{name}`"] = taken
        else:
            others.update(taken)
    for name, taken in {**kept, "all others": others}.items():
        gflops, gigabytes = (taken[work] / taken["seconds"] / 1e9 for work in ("flop", "bytes"))
        computed = (f"{gflops:,.0f}", f"{gflops / peak:.0%}") if taken["flop"] else ("–", "–")
        moved = f"{taken['bytes'] / 1e6:,.0f}", f"{gigabytes:,.0f}", f"{gigabytes / copy:.0%}"
        rows.append((name, f"{1000 * taken['seconds']:.1f}", f"{taken['seconds'] / total:.0%}", *computed, *moved))
    network = f"{about['network']}, {about['precision']}, batch {results['batch']}"
    return as_table(f"{network} | ms | of the step | GFLOP/s | of the peak | MB | GB/s | of a copy's", rows)


def main() -> None:
    arguments = arguments_of(__doc__, blocks=5)
    device = available_devices("auto")[0]
    prepare_process(config_of(), device)
    types = list(TYPES)
    try:
        check_bf16(device)
    except SuiteError as error:
        types.remove("bf16")
        print(f"left out: {error}")
    source = torch.zeros(COPIED // 4, device=device)
    target = torch.empty_like(source)
    limits = {key: work for precision in types for key, work in peaks(precision, device).items()}
    limits["copy"] = (lambda: target.copy_(source)), 2 * COPIED
    steps = {(name, precision): step_of(name, precision, device) for name in NETWORKS for precision in types}
    with Witness() as witness:
        seconds = interleave(
            {key: lambda work=work: shortest(work, device) for key, (work, *_) in {**limits, **steps}.items()},
            arguments.blocks,
        )
        apart = operations(steps[TAKEN_APART, types[-1]][0], device)
    measured = {key: {"work": work, "seconds": seconds[key]} for key, (_, work) in limits.items()}
    results = {
        "batch": BATCH,
        "threads": torch.get_num_threads(),
        "networks": {},
        "copy": measured.pop("copy"),
        "tf32": rounds_to_tf32(device),
        "peaks": {precision: {} for precision in types},
        "operations": {"network": TAKEN_APART, "precision": types[-1], "of": apart},
    }
    for (precision, kind, size), peak in sorted(measured.items(), key=lambda item: rate_of(item[1])):
        results["peaks"][precision][kind] = {"size": size, **peak}  # the fastest comes last and stays
    for (name, precision), (_, flop, moved) in steps.items():
        measured = {"flop": flop, "bytes": moved, "seconds": seconds[name, precision]}
        results["networks"].setdefault(name, {})[precision] = measured
    write(arguments.output, results, witness)
    print(table(results))
    # small networks keep no large GPU busy: on a linear axis they would not be seen
    draw(results, Path(arguments.output).with_suffix(".png"), logarithmic=device.type == "cuda")


if __name__ == "__main__":
    run_script(main)
