"""Run the benchmarks of docs/performance.md one after the other and update their tables.

    python benchmarks/benchmark.py --example ../examples/mnist/main.py
    python benchmarks/benchmark.py --only overhead loaders
    python benchmarks/benchmark.py --tables

Each benchmark is a script in this directory or a comparison, and writes a JSON file to figures/benchmark/. --tables
only rebuilds the tables from those files. A benchmark stops after --minutes; the same command resumes it
(docs/performance.md lists how long each takes).
"""

import json
import subprocess
import sys

from measure import PROJECT
from runs import Runs

from common.errors import FAILED, SuiteError
from common.machine.cores import whole_cores
from common.machine.entry import run_script
from common.settings.arguments import OneLineParser, one_of, positive_float
from comparison.run.launch import TIMED_OUT
from docs import COMPARISONS, SCRIPTS, write

BEGUN, MEASURED = "begun", "measured"
DIRECTORY = PROJECT / "figures" / "benchmark"
NAMES = (*(name for name in SCRIPTS if name != "own_scripts"), *COMPARISONS)  # that one needs scripts to measure


def commands(arguments) -> dict[str, list[str]]:
    """Return the command of each benchmark, without the interpreter."""
    data, again = ["--data-root", arguments.data_root], ["--anew"] if arguments.anew else []
    lines = {name: [f"benchmarks/{name}.py", *data, "--minutes", f"{arguments.minutes:g}", *again] for name in SCRIPTS}
    if arguments.example:
        lines["peers"] += ["--example", arguments.example]
    for directory, flags in COMPARISONS.items():
        typed = flags.replace("CORES", str(whole_cores())).split()
        place = ["--output-dir", f"figures/benchmark/{directory}"]
        lines[directory] = ["compare_parallel.py", *typed, *data, *place]
    return lines


def measure(name: str, command: list[str], minutes: float, resume: bool) -> int:
    """Run one benchmark. Return its exit code, or TIMED_OUT if some of its runs are left."""
    if name in COMPARISONS:  # compare_parallel.py has no --minutes
        child = subprocess.Popen([sys.executable, *command, *(["--resume"] if resume else [])], cwd=PROJECT)
        try:
            return child.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait()
            return TIMED_OUT
    if code := subprocess.run([sys.executable, *command], cwd=PROJECT).returncode:
        return code
    results = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    return TIMED_OUT if results["left"] else 0


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--only", type=one_of(NAMES), nargs="+", metavar="NAME", help=f"{' | '.join(NAMES)} (all)")
    parser.add_argument("--tables", action="store_true", help="measure nothing, only make the tables again")
    parser.add_argument("--minutes", type=positive_float, default=8.0, metavar="N", help="of each (%(default)g)")
    parser.add_argument("--anew", action="store_true", help="forget what an earlier call has measured")
    parser.add_argument("--example", metavar="FILE", help="main.py of PyTorch's MNIST example, for peers")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    parser.set_defaults(output=DIRECTORY / "benchmark", timeout=0.0)
    arguments = parser.parse_args()
    wanted = [] if arguments.tables else arguments.only or NAMES
    runs, failed, left = Runs(arguments), [], []
    for name in wanted:
        state = runs.lines.get(name, {}).get("value")
        if state == MEASURED:
            print(f"== {name}: measured by an earlier call", flush=True)
            continue
        print(f"== {name}", flush=True)
        runs.save(name, value=BEGUN)
        code = measure(name, commands(arguments)[name], arguments.minutes, resume=state == BEGUN)
        if not code:
            runs.save(name, value=MEASURED)
        elif code == TIMED_OUT:
            left.append(name)
        else:
            failed.append(name)
    write()
    print(f"Tables: docs/performance.md ({', '.join((*SCRIPTS, *COMPARISONS))})")
    if left:
        print(f"something is left of {', '.join(left)}: the same command goes on")
    elif not failed:
        runs.file.unlink(missing_ok=True)
    if failed:
        found, advice = "see above; a target that was not reached counts as failed", f"--only {' '.join(failed)}"
        raise SuiteError(f"failed: {', '.join(failed)}", found, f"run them again with {advice}", FAILED)


if __name__ == "__main__":
    run_script(main)
