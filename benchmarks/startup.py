"""How long do scripts take to start, and how much time does a comparison add to its runs?

    python benchmarks/startup.py

Measures the start-up of a training script, from the start of its process to its training loop, with either loader and
with two ranks, next to a minimal DDP script (bare_ddp.py); all time besides training, including the figure and the
interpreter's exit; and the total time of a comparison relative to the sum of its runs. The decoded data set exists
already. Loader workers start later, in the first epoch.
"""

import os
import time
from functools import partial
from pathlib import Path

from measure import as_table, call, median
from runs import Runs, benchmark, benchmark_parser

from common.files.results import read_result
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.results_file import read_results

SCRIPTS = {
    "one device, workers loader": ("data_parallel_train.py", "--loader", "workers"),
    "one device, resident loader": ("data_parallel_train.py", "--loader", "resident"),
    "DDP x2, resident loader": ("ddp_train.py", "--spawn", "2", "--loader", "resident"),
}
BARE = "DDP x2, nothing but torch: process start to the end of a first step"


def script_seconds(command: tuple[str, ...], data_root: str, directory: str) -> tuple[float, float]:
    """Return the seconds until a script's first step, and all its seconds except training."""
    output, start = Path(directory, "result.json"), time.perf_counter()
    flags = f"--dataset mnist --epochs 1 --max-steps 1 --quiet --output {output} --figure-dir {directory}".split()
    call(*command, *flags, "--data-root", data_root)
    seconds, result = time.perf_counter() - start, read_result(output)
    return result.startup_seconds, seconds - result.epochs[0].train_seconds


def bare_seconds() -> float:
    """Return the seconds from the start of bare_ddp.py to the end of its first step."""
    start = time.monotonic()
    return float(call("benchmarks/bare_ddp.py").stdout) - start


def comparison_cost(data_root: str, directory: str) -> dict:
    """Return the seconds of a small comparison and of its child processes: the runs, the probe and the check.

    The time of the pre-flight check is not recorded, so that it is run again.
    """
    start = time.perf_counter()
    flags = "--dataset mnist --loader resident --epochs 2 --methods single ddp --repeats 3".split()
    call("compare_parallel.py", *flags, "--data-root", data_root, "--output-dir", directory)
    total = time.perf_counter() - start
    report = read_results(Path(directory, "results.json"))
    start = time.perf_counter()
    call("-m", "common.programs.check", "--json", "--data-root", data_root, "--output-dir", directory)
    check = time.perf_counter() - start
    return {
        "total_seconds": total,
        "runs": len(report.outcomes),
        "check_seconds": check,
        "probe_seconds": report.probe.wall_seconds,
        "run_seconds": sum(outcome.wall_seconds for outcome in report.outcomes),
    }


def table(results: dict) -> str:
    rows = [(name, median(values, ".2f")) for name, values in results["startup_seconds"].items()]
    cost = results["comparison"]
    children = cost["run_seconds"] + cost["probe_seconds"] + cost["check_seconds"]
    for what, seconds in (
        ("its children (runs, probe, pre-flight check)", children),
        ("the runs alone", cost["run_seconds"]),
    ):
        name = f"comparison of {cost['runs']} runs: total ÷ sum of {what}"
        rows.append((name, f"{cost['total_seconds'] / seconds:.3f} (a ratio)"))
    return as_table(" | Seconds, median (range)", rows)


def measured(runs: Runs) -> dict:
    """Return the seconds of all starts, measured in turns, and the cost of a comparison."""
    data_root, found = os.path.abspath(runs.arguments.data_root), {}
    with temporary_directory() as directory:
        scripts = {name: partial(script_seconds, command, data_root, directory) for name, command in SCRIPTS.items()}
        seconds = runs.interleave({**scripts, BARE: bare_seconds})
        cost = runs.each({"a comparison": partial(comparison_cost, data_root, directory)})
    for name in SCRIPTS:
        until, around = zip(*seconds[name], strict=True)
        found |= {f"{name}: process start to training": until, f"{name}: all but the training": around}
    return {"startup_seconds": {**found, BARE: seconds[BARE]}, "comparison": cost["a comparison"]}


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__, blocks=5).parse_args(), measured, table))
