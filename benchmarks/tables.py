"""The tables of docs/performance.md, each made from the JSON file of one benchmark."""

import json
from pathlib import Path

import loaders
import options
import overhead
import peers
import planted_causes
import roofline
import scaling
import sharding
import shortest
import startup

from comparison.judge.analysis import analyse
from comparison.plan.counterparts import BEFORE
from comparison.results_file import read_results
from comparison.show.tables import before_table, main_table

SCRIPTS = (overhead, loaders, options, peers, scaling, roofline, startup, planted_causes, sharding, shortest)
TABLES = {module.__name__: module.table for module in SCRIPTS}  # what a JSON file holds → Markdown
DDP_LENET = (
    "--dataset mnist --model lenet --batch-size 128 --loader resident --epochs 2 --max-steps 200 "
    "--methods single single-all-cores ddp fsdp"
)
FAST_CIFAR10 = "--dataset cifar10 --recipe fast --baseline single-all-cores"
COMPARISONS = {  # directory → flags of compare_parallel.py; CORES: of this machine
    "time-to-99-mnist": "--dataset mnist --recipe fast --methods single --threads-per-device CORES --repeats 5 "
    "--target-accuracy 0.99",
    "time-to-90-cifar10": f"{FAST_CIFAR10} --methods single-all-cores ddp pipeline --repeats 3 --target-accuracy 0.9",
    "time-to-90-batches": f"{FAST_CIFAR10} --methods single-all-cores ddp --batch-size 512 1024 --repeats 3 "
    "--target-accuracy 0.9",
    "zero-muon": f"{FAST_CIFAR10} --epochs 2 --max-steps 12 --repeats 4 --methods single-all-cores ddp ddp-zero",
    "ddp-lenet": f"{DDP_LENET} --repeats 5",
    "bind-lenet": f"{DDP_LENET} --repeats 8 --bind --against figures/benchmark/ddp-lenet/results.json",
    "pipeline-resnet8": "--dataset cifar10 --model resnet8 --loader resident --epochs 2 --max-steps 15 --repeats 10 "
    "--methods pipeline-1 pipeline pipeline-1f1b --micro-batches 8 --baseline pipeline-1",
}


def table(name: str, directory: Path) -> str:
    """Return the table of one benchmark, and the machine it was measured on, as Markdown."""
    if (directory / name / "results.json").exists():
        report = read_results(directory / name / "results.json")
        busy = [run.foreign_cores for run in report.outcomes if run.foreign_cores is not None]
        analysis = analyse(report)
        table = main_table(analysis, "github")
        if analysis.pairs[BEFORE]:
            table += "\n\nEach row beside the same one, but for what the last column says:\n\n"
            table += before_table(analysis, "github")
        return _with_origin(table, report.command, report.environment, max(busy, default=None))
    results = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
    where = results["environment"]
    if results.get("device") == "cpu":  # it had too few GPUs
        where = {**where, "gpus": []}
    return _with_origin(TABLES[name](results), results["command"], where, results["foreign_cores"])


def _with_origin(text, command, where, foreign):
    machine = ", ".join([*where["gpus"], f"{where['cores']} cores of {where['cpu']}"])
    busy = "" if foreign is None else f"; other programs kept {foreign:.2f} cores busy"
    return f"{text}\n\n`{command}` on {machine}, torch {where['torch']}{busy}."
