"""Measure how fast the suite is: all benchmarks in turn, and their tables in docs/performance.md.

    python benchmarks/benchmark.py --example ../examples/mnist/main.py
    python benchmarks/benchmark.py --only overhead loaders
    python benchmarks/benchmark.py --tables

Each is a script of its own beside this one, and leaves a JSON file in figures/benchmark/; --tables only makes the
tables of those files again. Takes about an hour on 2 CPU cores.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from measure import PROJECT
from tables import TABLES, update

from common.arguments import OneLineParser, one_of
from common.environment import available_cores
from common.errors import FAILED, SuiteError, run_script

SCRIPTS = ("overhead", "loaders", "options", "peers", "scaling", "roofline", "startup")
TARGETS = {  # data set → accuracy, repeats, name of the directory
    "mnist": ("0.99", "5", "time-to-99-mnist"),
    "cifar10": ("0.9", "1", "time-to-90-cifar10"),
}


def commands(arguments) -> dict[str, list[str]]:
    """Return the command of every benchmark, without the interpreter."""
    found = {name: [f"benchmarks/{name}.py", "--data-root", arguments.data_root] for name in SCRIPTS}
    if arguments.example:
        found["peers"] += ["--example", arguments.example]
    for dataset, (accuracy, repeats, directory) in TARGETS.items():
        found[directory] = [
            "compare_parallel.py", "--dataset", dataset, "--data-root", arguments.data_root, "--recipe", "fast",
            "--methods", "single", "--threads-per-device", str(available_cores()), "--repeats", repeats,
            "--target-accuracy", accuracy, "--output-dir", f"figures/benchmark/{directory}"]
    return found


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*SCRIPTS, *(directory for _, _, directory in TARGETS.values()))
    parser.add_argument("--only", type=one_of(names), nargs="+", default=names, metavar="NAME", help=" | ".join(names))
    parser.add_argument("--tables", action="store_true", help="measure nothing, only make the tables again")
    parser.add_argument("--example", metavar="FILE", help="main.py of PyTorch's MNIST example, for peers")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    for name in () if arguments.tables else arguments.only:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, *commands(arguments)[name]], cwd=PROJECT).returncode:
            raise SuiteError(f"the benchmark {name} failed", "see above", f"try it alone with --only {name}", FAILED)
    page = PROJECT / "docs" / "performance.md"
    update(page, PROJECT / "figures" / "benchmark")
    print(f"Tables: {Path(page).relative_to(PROJECT)} ({', '.join(TABLES)})")


if __name__ == "__main__":
    run_script(main)
