"""Measure how fast the suite is: all benchmarks in turn, and their tables in docs/performance.md.

    python benchmarks/benchmark.py --example ../examples/mnist/main.py
    python benchmarks/benchmark.py --only overhead loaders
    python benchmarks/benchmark.py --tables

Each is a script of its own beside this one, and leaves a JSON file in figures/benchmark/; --tables only makes the
tables of those files again. Takes about four hours on 2 CPU cores, three of them those that train to an accuracy.
"""

import subprocess
import sys

from measure import PROJECT

from common.errors import FAILED, SuiteError
from common.machine.cores import whole_cores
from common.machine.entry import run_script
from common.settings.arguments import OneLineParser, one_of
from docs import COMPARISONS, SCRIPTS, write


def commands(arguments) -> dict[str, list[str]]:
    """Return the command of every benchmark, without the interpreter."""
    data = ["--data-root", arguments.data_root]
    lines = {name: [f"benchmarks/{name}.py", *data] for name in SCRIPTS}
    if arguments.example:
        lines["peers"] += ["--example", arguments.example]
    for directory, flags in COMPARISONS.items():
        typed = flags.replace("CORES", str(whole_cores())).split()
        place = ["--output-dir", f"figures/benchmark/{directory}"]
        lines[directory] = ["compare_parallel.py", *typed, *data, *place]
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
    write()
    print(f"Tables: docs/performance.md ({', '.join(names)})")
    if failed:
        found, advice = "see above; a target that was not reached counts as failed", f"--only {' '.join(failed)}"
        raise SuiteError(f"failed: {', '.join(failed)}", found, f"run them again with {advice}", FAILED)


if __name__ == "__main__":
    run_script(main)
