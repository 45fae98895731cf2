"""How much memory do DDP's options and FSDP save, and how do they change the time of a step, also over slow links?

    sudo python benchmarks/sharding.py

resnet18 with Adam on two ranks with one CPU thread each, on two simulated machines (network.py). All options take turns
at every speed of the link.
"""

import statistics
from functools import partial
from pathlib import Path

from links import all_epochs, train_over
from loaders import draw_folder
from measure import as_table, paired
from runs import Runs, benchmark, benchmark_parser

from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory

MODEL, BATCH, STEPS, RANKS = "resnet18", 16, 2, 2
LINKS = ((10.0, 0.0), (1.0, 0.0), (0.1, 0.0))  # Gbit/s, milliseconds
OPTIONS = {
    "DDP": ("ddp_train.py", (), RANKS),
    "DDP, --compress bf16": ("ddp_train.py", ("--compress", "bf16"), RANKS),
    "DDP, --compress fp16": ("ddp_train.py", ("--compress", "fp16"), RANKS),
    "DDP, --zero": ("ddp_train.py", ("--zero",), RANKS),
    "FSDP": ("fsdp_train.py", (), RANKS),
}


def table(results: dict) -> str:
    rows, steps = [], results["steps"]
    for name, parts in results["memory_parts"].items():
        cells = [f"{size / 2**20:.1f}" for size in parts.values()]
        for seconds in results["seconds"].values():
            milliseconds = 1000 * statistics.median(seconds[name]) / steps
            cells += [f"{milliseconds:,.0f}", paired(seconds[name], seconds["DDP"])]
        rows.append((name, *cells))
    parts = [f"{part} (MiB)" for part in next(iter(results["memory_parts"].values()))]
    times = [text for rate in results["seconds"] for text in (f"{rate}: step (ms)", "÷ DDP [95%]")]
    return as_table(" | ".join([f"{results['model']}, {results['ranks']} ranks", *parts, *times]), rows)


def measured(runs: Runs) -> dict:
    """Return the seconds of every option over every link, and its memory by part."""
    with temporary_directory() as directory:
        draw_folder(Path(directory, "images"), STEPS * BATCH)  # with few test images
        flags = f"--dataset folder:{directory}/images --data-root {directory} --image-size 32 --model {MODEL}"
        train = partial(train_over, LINKS, OPTIONS, f"{flags} --batch-size {BATCH}")
        numbers = range(1, runs.arguments.blocks + 1)
        blocks = list(runs.each({f"block {number}": partial(train, number) for number in numbers}).values())
    seconds = {
        f"{gbps:g} Gbit/s": {
            name: [trained for *link, trained, _ in epochs if link == [gbps, delay]]
            for name, epochs in all_epochs(blocks).items()
        }
        for gbps, delay in LINKS
    }
    parts = {name: trained["memory_parts"] for name, trained in blocks[0].items()}
    fixed = {"model": MODEL, "global_batch": BATCH, "steps": STEPS, "ranks": RANKS, "device": "cpu"}
    return {**fixed, "seconds": seconds, "memory_parts": parts}


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__, blocks=5, timeout=600).parse_args(), measured, table))
