"""What do DDP's options and FSDP save in memory, and what do they cost or save in time, over a slow link too?

    sudo python benchmarks/sharding.py

resnet18, Adam, two ranks with one CPU thread each, on two machines that are network namespaces with a link between them
(network.py), whose speed changes. All ways take turns at every speed.
"""

import statistics
import tempfile
from pathlib import Path

from links import train_over
from loaders import draw_folder
from measure import Witness, arguments_of, as_table, paired, write

from common.machine.entry import run_script

MODEL, BATCH, STEPS, RANKS = "resnet18", 16, 2, 2
LINKS = ((10.0, 0.0), (1.0, 0.0), (0.1, 0.0))  # Gbit/s, milliseconds
WAYS = {
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


def main() -> None:
    arguments = arguments_of(__doc__, 5)
    with Witness() as witness, tempfile.TemporaryDirectory() as directory:
        draw_folder(Path(directory, "images"), STEPS * BATCH)  # few have to be tested
        flags = f"--dataset folder:{directory}/images --data-root {directory} --image-size 32 --model {MODEL}"
        trained = train_over(LINKS, WAYS, f"{flags} --batch-size {BATCH}", arguments.blocks, Path(directory))
    seconds = {
        f"{gbps:g} Gbit/s": {
            name: [epoch.train_seconds for *link, epoch, _ in epochs if link == [gbps, delay]]
            for name, (_, epochs) in trained.items()
        }
        for gbps, delay in LINKS
    }
    parts = {name: result.memory_parts for name, (result, _) in trained.items()}
    measured = {"model": MODEL, "global_batch": BATCH, "steps": STEPS, "ranks": RANKS, "device": "cpu"}
    measured |= {"seconds": seconds, "memory_parts": parts}
    write(arguments.output, measured, witness)
    print(table(measured))


if __name__ == "__main__":
    run_script(main)
