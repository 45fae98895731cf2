"""Everything that is to be seen on a machine with a GPU, or several, in steps of at most eight minutes.

    python benchmarks/gpu_evidence.py
    python benchmarks/gpu_evidence.py --step 2

runs every step that has not come to its end yet, or this one alone. Tables, figures, JSON and what was printed go into
figures/gpu-NAME/, with a report.md. A comparison for which a step's time did not suffice goes on at the next call, and
so do the options; any other benchmark starts anew. No network is needed; the data sets have to lie in --data-root.
"""

import contextlib
import json
import re
import sys
import time
from pathlib import Path

from measure import PROJECT

from common.errors import FAILED, MACHINE, USAGE, SuiteError
from common.files.writing import write_json, write_text
from common.machine.entry import run_script
from common.machine.environment import describe_environment
from common.settings.arguments import OneLineParser, positive_float, positive_int
from comparison.run.launch import TIMED_OUT, run_child
from comparison.show.tables import lay_out
from docs import SCRIPTS, measured_table

COMPARE, OPTIONS = "compare_parallel.py", "benchmarks/options.py"
RESIDENT, FAST = "--loader resident --epochs 3", "--recipe fast --methods single"
STEPS = {
    "tests": "-m pytest -m gpu -q",
    "mnist": f"{COMPARE} --dataset mnist {RESIDENT} --check-maths",
    "cifar10": f"{COMPARE} --dataset cifar10 {RESIDENT}",
    "one-device": f"{COMPARE} --dataset cifar10 {RESIDENT} --nproc 1 --methods single dp ddp fsdp accelerate",
    "worker-study": f"{COMPARE} --dataset mnist --methods single --num-workers 0 2 4 8 --epochs 3",
    "options": f"{OPTIONS} --blocks 3",
    "loaders": "benchmarks/loaders.py --blocks 5 --cores 4",
    "peers": "benchmarks/peers.py",
    "roofline": "benchmarks/roofline.py",
    "time-to-99-mnist": f"{COMPARE} --dataset mnist {FAST} --repeats 5 --target-accuracy 0.99",
    "time-to-94-cifar10": f"{COMPARE} --dataset cifar10 {FAST} --model airbench-wide --lr 0.005 --epochs 20 "
    "--repeats 3 --target-accuracy 0.94",
}
SECONDS, ENDED = 480.0, {0: "fine", TIMED_OUT: "stopped"}


def directory_of(gpus: list[str]) -> Path:
    """Return where what these GPUs show is kept, e.g. figures/gpu-nvidia-h200, or figures/gpu-2x-tesla-t4."""
    names = "-".join(dict.fromkeys(re.sub(r"[^a-z0-9]+", "-", gpu.lower()) for gpu in gpus))
    return PROJECT / "figures" / f"gpu-{f'{len(gpus)}x-' if len(gpus) > 1 else ''}{names}"


def command_of(name: str, directory: Path, data_root: str) -> tuple[str, ...]:
    """Return the command of a step, without the interpreter; what can go on where it was stopped is to do so."""
    command, place = tuple(STEPS[name].split()), directory / name
    if command[0] == "-m":
        return command
    flag, output, found = "--output", place.with_suffix(".json"), place.with_suffix(".json")
    if command[0] == COMPARE:
        flag, output, found = "--output-dir", place, place / "results.json"
    resume = ("--resume",) if command[0] in (COMPARE, OPTIONS) and found.exists() else ()
    return *command, "--data-root", data_root, flag, str(output.relative_to(PROJECT)), *resume


def write_report(directory: Path, environment: dict, steps: dict[str, dict]) -> None:
    """Write report.md: the machine, how each step ended, and its table."""
    ended = [
        (name, f"`{step['command']}`", str(step["exit_code"]), f"{step['seconds']:.0f}", f"[log]({name}.log)")
        for name, step in steps.items()
    ]
    parts = [
        f"# What was seen on {', '.join(environment['gpus'])}",
        lay_out([(name, str(value)) for name, value in environment.items() if value], ("what", "found"), "github"),
        lay_out(ended, ("Step", "Command", "Exit code", "Seconds", ""), "github", left=(0, 1, 4)),
    ]
    for name, step in steps.items():
        compared = (directory / name / "results.json").exists()
        if step["exit_code"] == 0 and (compared or name in SCRIPTS):
            parts += [f"## {name}", measured_table(name, directory)]
    write_text("\n\n".join(parts) + "\n", directory / "report.md")


def main() -> None:
    parser = OneLineParser(description=__doc__)
    names = " | ".join(f"{number} {name}" for number, name in enumerate(STEPS, start=1))
    parser.add_argument("--step", type=positive_int, metavar="N", help=names)
    parser.add_argument("--limit", type=positive_float, default=SECONDS, metavar="S", help="of a step (%(default)g)")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    if arguments.step and arguments.step > len(STEPS):
        raise SuiteError(f"there is no step {arguments.step}", f"there are {len(STEPS)}", "see --help", USAGE)
    environment = describe_environment()
    if not environment["gpus"]:
        raise SuiteError("this needs a GPU", "PyTorch sees none", "run it on a machine that has one", MACHINE)
    directory = directory_of(environment["gpus"])
    directory.mkdir(parents=True, exist_ok=True)
    record = directory / "steps.json"
    steps = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for number, name in enumerate(STEPS, start=1):
        if arguments.step not in (None, number) or (not arguments.step and steps.get(name, {}).get("exit_code") == 0):
            continue
        command, log = command_of(name, directory, arguments.data_root), directory / f"{name}.log"
        typed = f"python {' '.join(command)}"
        print(f"{number} {name}: {typed}; what it prints is in {log.relative_to(PROJECT)}", flush=True)
        start = time.perf_counter()
        with contextlib.chdir(PROJECT):
            code = run_child((sys.executable, *command), log, timeout=arguments.limit)
        steps[name] = {"command": typed, "exit_code": code, "seconds": time.perf_counter() - start}
        print(f"{number} {name}: {ENDED.get(code, code)}, after {steps[name]['seconds']:.0f} s", flush=True)
        write_json(steps, record)
        write_report(directory, environment, steps)
    if failed := [name for name, step in steps.items() if step["exit_code"]]:
        what = f"these did not come to a good end: {', '.join(failed)}"
        found = f"their logs are in {directory.relative_to(PROJECT)}"
        raise SuiteError(what, found, "the same command tries them again", FAILED)


if __name__ == "__main__":
    run_script(main)
