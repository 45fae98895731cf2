"""What is spent before the first step, and by the comparison around its runs?

    python benchmarks/startup.py

Start-up of a training script, from the process's start to its training loop, with either loader (the data set's
decoded copy is there; workers start later, with the first epoch), and with two ranks, beside the least that a script
with DDP can do (bare_ddp.py); all that a person waits for besides the training, figure and the interpreter's end
included; its heaviest imports (python -X importtime); how long compare_parallel.py takes to start its first child; and
how much longer a comparison takes than the sum of its runs.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import PROJECT, Witness, arguments_of, interleave, write

from common.errors import FAILED, SuiteError
from common.files.results import read_result
from common.machine.entry import run_script
from comparison.results_file import read_results

SCRIPTS = {
    "one device, workers loader": ("data_parallel_train.py", "--loader", "workers"),
    "one device, resident loader": ("data_parallel_train.py", "--loader", "resident"),
    "DDP x2, resident loader": ("ddp_train.py", "--spawn", "2", "--loader", "resident"),
}
OF_SCRIPTS = ("process start to training", "all but the training")  # what script_seconds() returns
BARE = "DDP x2, nothing but torch: process start to the end of a first step"
FIRST_CHILD = "comparison: process start to its first child"


def call(*command: str, **options) -> subprocess.CompletedProcess:
    """Run a command of this Python in the project; raise SuiteError (FAILED) with its last words if it fails."""
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, **options)
    if done.returncode:
        raise SuiteError(f"{' '.join(command)} failed", done.stderr.strip().splitlines()[-1], "try it alone", FAILED)
    return done


def script_seconds(command: tuple[str, ...], data_root: str, directory: str) -> tuple[float, float]:
    """Return the seconds from the start of a script to its first step, and those from its start to its end, less the
    training's."""
    output = Path(directory, "result.json")
    start = time.perf_counter()
    call(
        *command,
        "--dataset",
        "mnist",
        "--data-root",
        data_root,
        "--epochs",
        "1",
        "--max-steps",
        "1",
        "--quiet",
        "--output",
        str(output),
        "--figure-dir",
        directory,
    )
    seconds, result = time.perf_counter() - start, read_result(output)
    return result.startup_seconds, seconds - result.epochs[0].train_seconds


def bare_seconds() -> float:
    """Return the seconds from the start of bare_ddp.py to the end of its first step."""
    start = time.monotonic()
    return float(call("benchmarks/bare_ddp.py").stdout) - start


def first_child_seconds(data_root: str, directory: str) -> float:
    """Return the seconds from the start of compare_parallel.py to that of its first child, as the kernel saw both.

    The child, the pre-flight check, is watched for in /proc, every millisecond.
    """
    command = [
        sys.executable,
        "compare_parallel.py",
        "--dataset",
        "mnist",
        "--data-root",
        data_root,
        "--methods",
        "single",
        "--repeats",
        "1",
        "--output-dir",
        directory,
    ]
    start = time.perf_counter()
    parent = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        while parent.poll() is None:
            if any(is_helper(child) for child in children.read_text().split()):
                return time.perf_counter() - start
            time.sleep(0.001)
        raise SuiteError(
            "compare_parallel.py ended without a child", f"exit code {parent.returncode}", "try it alone", FAILED
        )
    finally:
        parent.terminate()
        parent.wait()


def is_helper(pid: str) -> bool:
    """Return whether a process is one of the comparison's helpers or runs."""
    try:
        return b"common." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def heaviest_imports(count: int = 6) -> list[tuple[str, float]]:
    """Return the top-level packages that take longest to import, in seconds, of all that a script imports."""
    done = call("-X", "importtime", "data_parallel_train.py", "--help")
    packages: dict[str, float] = {}
    for line in done.stderr.splitlines():
        if match := re.match(r"import time: *(\d+) \| *\d+ \| *([\w.]+)", line):
            package = match[2].split(".")[0]
            packages[package] = packages.get(package, 0.0) + int(match[1]) / 1e6
    return sorted(packages.items(), key=lambda item: -item[1])[:count]


def comparison_cost(data_root: str, directory: str) -> dict:
    """Return how long a small comparison took, and how long its children did: the runs, the probe, the check.

    The pre-flight check leaves no time of its own, and is called once more for it.
    """
    start = time.perf_counter()
    call(
        "compare_parallel.py",
        "--dataset",
        "mnist",
        "--data-root",
        data_root,
        "--loader",
        "resident",
        "--epochs",
        "2",
        "--methods",
        "single",
        "ddp",
        "--repeats",
        "3",
        "--output-dir",
        directory,
    )
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


def main() -> None:
    arguments = arguments_of(__doc__, blocks=5)
    data_root = os.path.abspath(arguments.data_root)
    with tempfile.TemporaryDirectory() as directory, Witness() as witness:
        seconds = interleave(
            {
                **{
                    name: lambda command=command: script_seconds(command, data_root, directory)
                    for name, command in SCRIPTS.items()
                },
                BARE: bare_seconds,
                FIRST_CHILD: lambda: first_child_seconds(data_root, directory),
            },
            arguments.blocks,
        )
        both = {
            f"{name}: {what}": values
            for name in SCRIPTS
            for what, values in zip(OF_SCRIPTS, zip(*seconds[name], strict=True), strict=True)
        }
        seconds = {**both, BARE: seconds[BARE], FIRST_CHILD: seconds[FIRST_CHILD]}
        measured = {
            "startup_seconds": seconds,
            "imports": heaviest_imports(),
            "comparison": comparison_cost(data_root, directory),
        }
    write(arguments.output, measured, witness)
    for name, values in seconds.items():
        print(f"{name}: {sorted(values)[len(values) // 2]:.2f} s")
    cost = measured["comparison"]
    print(f"comparison of {cost['runs']} runs: {cost['total_seconds'] / cost['run_seconds']:.3f} times its runs alone")


if __name__ == "__main__":
    run_script(main)
