"""How long do scripts take to start, and does a fork of a template train like a new process?

    python benchmarks/startup.py

Runs training scripts, each as a new process and as a fork of one template (comparison/run/forked.py), next to a
minimal DDP script (bare_ddp.py). Measures the start-up, which of a fork includes that of its template; the rest of the
time besides training, with the figure and the interpreter's exit; a training step; the peak memory; and how much time a
comparison adds to its runs. The decoded data set exists already.
"""

import os
import shlex
import statistics
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

from measure import PROJECT, as_table, call, median, paired
from runs import Runs, benchmark, benchmark_parser

from common.errors import FAILED, SuiteError
from common.files.results import read_result
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.methods import python
from comparison.results_file import read_results
from comparison.run import forked
from comparison.run.launch import run_child

STEPS, EPOCHS = 25, 9  # the first epoch is not timed; the median of the others is little affected by other programs
SCRIPTS = {"one device": "data_parallel_train.py", "DDP x2": "ddp_train.py --spawn 2"}
BARE = "DDP x2, nothing but torch: process start to the end of a first step"
NEW, FORK = "new process", "fork"


def run(script: str, how: str, data_root: str, directory: str) -> dict[str, float]:
    """Train. Return the seconds of start-up and of the rest besides training, milliseconds per step, and peak MiB."""
    os.chdir(PROJECT)
    output, log = Path(directory, "result.json"), Path(directory, "log")
    training = f"--dataset mnist --model lenet --loader resident --epochs {EPOCHS} --max-steps {STEPS} --device cpu"
    files = ("--output", str(output), "--figure-dir", directory, "--data-root", data_root)
    with patch.object(forked, "can_fork", lambda: how == FORK):
        command = (python(), *shlex.split(f"{script} {training}"), *files)
        forked.prepare([command])
        start = time.time()
        if run_child(command, log):
            raise SuiteError(f"{script} failed", log.read_text().strip(), "try it alone", FAILED)
        seconds, result = time.time() - start, read_result(output)
    timed = result.timed_epochs
    trained = sum(epoch.train_seconds + epoch.evaluate_seconds for epoch in result.epochs)
    return {
        "startup": result.startup_seconds,
        "rest": seconds - trained,
        "step": 1000 * statistics.median(epoch.train_seconds for epoch in timed) / STEPS,
        "memory": sum(result.peak_memory_bytes) / 2**20,
    }


def bare_seconds() -> float:
    """Return the seconds from the start of bare_ddp.py to the end of its first step."""
    start = time.monotonic()
    return float(call("benchmarks/bare_ddp.py").stdout) - start


def comparison_cost(data_root: str, directory: str) -> dict:
    """Return the seconds of a small comparison, of its runs, and of its probe."""
    start = time.perf_counter()
    flags = "--dataset mnist --loader resident --epochs 2 --methods single ddp --repeats 3 --no-tips".split()
    call("compare_parallel.py", *flags, "--data-root", data_root, "--output-dir", directory)
    report = read_results(Path(directory, "results.json"))
    return {
        "total_seconds": time.perf_counter() - start,
        "runs": len(report.outcomes),
        "probe_seconds": report.probe.wall_seconds,
        "run_seconds": sum(outcome.wall_seconds for outcome in report.outcomes),
    }


def table(results: dict) -> str:
    rows = []
    for script, runs in results["scripts"].items():
        for what, unit in (("startup", "s"), ("step", "ms"), ("memory", "MiB")):
            new, fork = ([each[what] for each in runs[how]] for how in (NEW, FORK))
            ratio, pattern = paired(fork, new), ".0f" if what == "memory" else ".2f"
            spreads = " ÷ ".join(f"{statistics.stdev(values) / statistics.mean(values):.1%}" for values in (fork, new))
            agrees = f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"
            rows.append((f"{script}: {what} ({unit})", median(new, pattern), median(fork, pattern), agrees, spreads))
        new, fork = ([each["rest"] for each in runs[how]] for how in (NEW, FORK))
        rows.append(
            (f"{script}: all that it takes besides training (s)", median(new, ".2f"), median(fork, ".2f"), "", "")
        )
    rows.append((BARE + " (s)", median(results["bare_seconds"], ".2f"), "", "", ""))
    cost = results["comparison"]
    name = f"comparison of {cost['runs']} runs: total ÷ sum of the runs"
    rows.append((name, "", f"{cost['total_seconds'] / cost['run_seconds']:.2f}", "", ""))
    return as_table(" | New process, median (range) | Fork | Fork ÷ new (95% CI) | Standard deviations", rows)


def measured(runs: Runs) -> dict:
    """Return all runs, measured in turns, and the cost of a comparison."""
    data_root = os.path.abspath(runs.arguments.data_root)
    with temporary_directory() as directory:
        ways = {
            (name, how): partial(run, script, how, data_root, directory)
            for name, script in SCRIPTS.items()
            for how in (NEW, FORK)
        }
        found = runs.interleave({**{f"{name}, {how}": work for (name, how), work in ways.items()}, BARE: bare_seconds})
        cost = runs.each({"a comparison": partial(comparison_cost, data_root, directory)})
    scripts = {name: {how: found[f"{name}, {how}"] for how in (NEW, FORK)} for name in SCRIPTS}
    return {"scripts": scripts, "bare_seconds": found[BARE], "comparison": cost["a comparison"]}


if __name__ == "__main__":
    run_script(lambda: benchmark(benchmark_parser(__doc__, blocks=20).parse_args(), measured, table))
