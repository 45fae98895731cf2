"""Measure how fast the suite is: all benchmarks in turn, and their tables in docs/performance.md.

    python benchmarks/benchmark.py --example ../examples/mnist/main.py
    python benchmarks/benchmark.py --only overhead loaders
    python benchmarks/benchmark.py --tables

Each is a script of its own beside this one, and leaves a JSON file in figures/benchmark/; --tables only makes the
tables of those files again. Takes about four hours on 2 CPU cores: those that train to an accuracy three of them.
"""

import subprocess
import sys
from pathlib import Path

from measure import PROJECT
from tables import TABLES, update

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_cores
from common.settings.arguments import OneLineParser, one_of

SCRIPTS = (
    "overhead",
    "loaders",
    "options",
    "peers",
    "scaling",
    "roofline",
    "startup",
    "turns",
    "planted_causes",
    "sharding",
    "shortest",
)
DDP_LENET = (
    "--dataset",
    "mnist",
    "--model",
    "lenet",
    "--batch-size",
    "128",
    "--loader",
    "resident",
    "--epochs",
    "2",
    "--max-steps",
    "200",
    "--methods",
    "single",
    "single-all-cores",
    "ddp",
    "fsdp",
)
COMPARISONS = {  # directory → flags of compare_parallel.py
    "time-to-99-mnist": (
        "--dataset",
        "mnist",
        "--recipe",
        "fast",
        "--methods",
        "single",
        "--threads-per-device",
        str(available_cores()),
        "--repeats",
        "5",
        "--target-accuracy",
        "0.99",
    ),
    "time-to-90-cifar10": (
        "--dataset",
        "cifar10",
        "--recipe",
        "fast",
        "--methods",
        "single-all-cores",
        "ddp",
        "pipeline",
        "--baseline",
        "single-all-cores",
        "--repeats",
        "3",
        "--target-accuracy",
        "0.9",
    ),
    "time-to-90-batches": (
        "--dataset",
        "cifar10",
        "--recipe",
        "fast",
        "--methods",
        "single-all-cores",
        "ddp",
        "--baseline",
        "single-all-cores",
        "--batch-size",
        "512",
        "1024",
        "--repeats",
        "3",
        "--target-accuracy",
        "0.9",
    ),
    "zero-muon": (
        "--dataset",
        "cifar10",
        "--recipe",
        "fast",
        "--epochs",
        "2",
        "--max-steps",
        "12",
        "--repeats",
        "4",
        "--methods",
        "single-all-cores",
        "ddp",
        "ddp-zero",
        "--baseline",
        "single-all-cores",
    ),
    "ddp-lenet": (*DDP_LENET, "--repeats", "5"),
    "bind-lenet": (*DDP_LENET, "--repeats", "8", "--bind", "--against", "figures/benchmark/ddp-lenet/results.json"),
    "pipeline-resnet8": (
        "--dataset",
        "cifar10",
        "--model",
        "resnet8",
        "--loader",
        "resident",
        "--epochs",
        "2",
        "--max-steps",
        "15",
        "--repeats",
        "10",
        "--methods",
        "pipeline-1",
        "pipeline",
        "pipeline-1f1b",
        "--micro-batches",
        "8",
        "--baseline",
        "pipeline-1",
    ),
}


def commands(arguments) -> dict[str, list[str]]:
    """Return the command of every benchmark, without the interpreter."""
    lines = {name: [f"benchmarks/{name}.py", "--data-root", arguments.data_root] for name in SCRIPTS}
    if arguments.example:
        lines["peers"] += ["--example", arguments.example]
    for directory, flags in COMPARISONS.items():
        lines[directory] = [
            "compare_parallel.py",
            *flags,
            "--data-root",
            arguments.data_root,
            "--output-dir",
            f"figures/benchmark/{directory}",
        ]
    return lines


def main() -> None:
    parser = OneLineParser(description=__doc__)
    names = (*SCRIPTS, *COMPARISONS)
    parser.add_argument("--only", type=one_of(names), nargs="+", metavar="NAME", help=f"{' | '.join(names)} (all)")
    parser.add_argument("--tables", action="store_true", help="measure nothing, only make the tables again")
    parser.add_argument("--example", metavar="FILE", help="main.py of PyTorch's MNIST example, for peers")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    failed = []
    for name in () if arguments.tables else arguments.only or names:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, *commands(arguments)[name]], cwd=PROJECT).returncode:
            failed.append(name)
    page = PROJECT / "docs" / "performance.md"
    update(page, PROJECT / "figures" / "benchmark")
    print(f"Tables: {Path(page).relative_to(PROJECT)} ({', '.join(TABLES)})")
    if failed:
        raise SuiteError(
            f"failed: {', '.join(failed)}",
            "see above; a target that was not reached counts as failed",
            f"run them again with --only {' '.join(failed)}",
            FAILED,
        )


if __name__ == "__main__":
    run_script(main)
