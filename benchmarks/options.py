"""How much does each option for one device save, for which network and batch size?

    python benchmarks/options.py

Training steps on random images with the defaults and with one option changed, in turns within a process: weights not
channels-last, optimizer not fused, bfloat16 with and without channels-last, torch.compile if available, and on a GPU a
recorded CUDA graph. Two options cannot be changed within a process, so that processes take turns: glibc keeping freed
memory and, on a GPU, the tuning of cuDNN, which keeps the plans it finds.
"""

import argparse
import contextlib
import json
import random
import statistics
from functools import partial
from types import SimpleNamespace

import torch
from measure import as_table, config_of, paired, printed_by, repeated_seconds, training_step
from runs import Runs, benchmark, benchmark_parser

from common.engine import setup as process
from common.engine.compiled import replace_network
from common.engine.place import Place
from common.engine.step import build_optimizer
from common.machine.cores import whole_cores
from common.machine.entry import run_script
from common.machine.environment import available_devices
from common.models.build import build_network

SHAPES = {"lenet": (1, 28, 28), "strided": (1, 28, 28), "vgg": (3, 32, 32)}
CASES = (("lenet", 32), ("lenet", 128), ("lenet", 512), ("strided", 256), ("vgg", 128))
STEPS = 5  # per measurement, of which the median counts


def steps_of(model_name, batch, device, optimizer_of=build_optimizer, layout=torch.channels_last, **values):
    """Return a callable that trains STEPS steps and returns the median milliseconds per step."""
    config = config_of(model=model_name, **values)
    model = build_network(model_name, SHAPES[model_name], 0, config.precision).to(device, memory_format=layout)
    images = torch.randn(batch, *SHAPES[model_name], device=device).to(memory_format=layout)
    labels = torch.randint(10, (batch,), device=device)
    one_device = SimpleNamespace(method="single", model=model, place=Place([device]), uncompilable="")
    replace_network(one_device, images.shape, config)
    step = training_step(model, optimizer_of(model.parameters(), config), images, labels)
    return lambda: 1000 * statistics.median(repeated_seconds(step, device, STEPS))


def run_one(arguments) -> dict:
    """Return the milliseconds of every option for one case, measured in this process."""
    device = available_devices("auto")[0]
    if arguments.glibc_defaults:
        process.keep_freed_memory = lambda: None
    process.prepare_process(config_of(), device)
    torch.backends.cudnn.benchmark = not arguments.untuned
    case, plain = (arguments.case[0], int(arguments.case[1]), device), {"layout": torch.contiguous_format}
    rivals = {"defaults": steps_of(*case)}
    if arguments.glibc_defaults or arguments.untuned:
        return in_turns(rivals)
    rivals |= {
        "not channels-last": steps_of(*case, **plain),
        "not fused": steps_of(*case, lambda weights, config: torch.optim.Adam(weights, lr=config.lr)),
        "bf16": steps_of(*case, precision="bf16"),
        "bf16, not channels-last": steps_of(*case, **plain, precision="bf16"),
    }
    for name, flags in {"compile": {"compile": True}, "cuda graph": {"cuda_graph": True}}.items():
        with contextlib.suppress(Exception):  # left out without a compiler or a GPU, or if the network is not recorded
            measure = steps_of(*case, **flags)
            measure()
            rivals[name] = measure
    return in_turns(rivals)


def in_turns(rivals: dict) -> dict[str, list[float]]:
    """Return the values of each rival in three rounds, in shuffled order, after a warm-up round."""
    shuffle, values = random.Random(0), {name: [] for name in rivals}
    for _ in range(4):
        for name in shuffle.sample([*rivals], len(rivals)):
            values[name].append(rivals[name]())
    return {name: measured[1:] for name, measured in values.items()}


def table(results: dict) -> str:
    cases = results["milliseconds_per_step"]
    names = list(dict.fromkeys(name for times in cases.values() for name in times if name != "defaults"))
    rows = []
    for case, times in cases.items():
        ratios = [paired(times[name], times["defaults"]) if name in times else "–" for name in names]
        rows.append((case, f"{statistics.median(times['defaults']):.3g}", *ratios))
    return as_table(" | ".join(["Network, batch", "Defaults (ms)", *(f"{name} ÷ defaults" for name in names)]), rows)


def measured(runs: Runs) -> dict:
    """Return case → option → milliseconds, one for each process."""
    flags, cases = {"usual": (), "memory returned": ["--glibc-defaults"]}, {}
    if available_devices("auto")[0].type == "cuda":
        flags["cuDNN not tuned"] = ["--untuned"]
    for network, batch in CASES:
        command, case = ("benchmarks/options.py", "--case", network, str(batch)), f"{network}, {batch}"
        processes = {name: partial(printed_by, *command, *some) for name, some in flags.items()}
        usual, *others = runs.interleave(processes, f"{case}: ", warm_up=False).values()
        cases[case] = {name: [statistics.median(times[name]) for times in usual] for name in usual[0]}
        for name, found in zip([*flags][1:], others, strict=True):
            cases[case][name] = [statistics.median(times["defaults"]) for times in found]
    return {"threads": whole_cores(), "milliseconds_per_step": cases}


def main() -> None:
    parser = benchmark_parser(__doc__, blocks=5)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    for flag in ("--glibc-defaults", "--untuned"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_one(arguments)))
    else:
        benchmark(arguments, measured, table)


if __name__ == "__main__":
    run_script(main)
