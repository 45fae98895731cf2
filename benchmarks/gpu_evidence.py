"""Run all tests and benchmarks that need a GPU, the most valuable first.

    python benchmarks/gpu_evidence.py --bundle bundle --missing msgspec
    PYTHONPATH=bundle/site python3 benchmarks/gpu_evidence.py --minutes 9 --pack evidence

The first command needs a network. It packs the missing packages and the data sets in --data-root for the GPU machine.
The second command runs on the GPU machine and needs neither a network nor development tools. It runs the steps that fit
into --minutes, untried ones first, and writes their results and an evidence.md to figures/gpu-NAME/. After every step,
it packs that directory into at most three files of 16 MiB. `python3 -m zipfile -e evidence/evidence-1.zip .` unpacks
one in another copy of the project, where the same command can resume. Stopped steps are resumed, except for the tests.
"""

import json
import os
import platform
import re
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from measure import PROJECT
from offline import has, read_bundle, write_bundle

from common.errors import FAILED, MACHINE, SuiteError
from common.files.writing import atomic_write, write_json, write_text
from common.machine.entry import run_script
from common.settings.arguments import OneLineParser, positive_float
from comparison.run.launch import TIMED_OUT, run_child
from comparison.run.machine import describe
from comparison.show.tables import lay_out
from docs import measured_table

COMPARE = "compare_parallel.py"
SYNTHETIC = f"{COMPARE} --dataset synthetic-cifar10 --loader resident --epochs 3 --repeats 3"
FAST = f"{COMPARE} --recipe fast --methods single"
WIDE = "--dataset cifar10 --model airbench-wide --lr 0.005"
OPTIONS = "single single:cuda-graph single:precision=bf16 single:compile"


class Step(NamedTuple):
    """minutes: expected duration; the step is stopped after twice as long. data: the required data set."""

    minutes: float
    command: str
    data: str = ""


STEPS = {  # the most valuable first
    "tests": Step(3, "-m pytest -m gpu tests/machine/test_gpu.py"),
    "methods": Step(4, f"{SYNTHETIC} --no-twin --check-maths --timeline"),
    "one-device": Step(3, f"{SYNTHETIC} --model resnet8 --methods {OPTIONS} --allow-unequal"),
    "overhead": Step(2, "benchmarks/overhead.py", "mnist"),
    "peers": Step(3, "benchmarks/peers.py", "mnist"),
    "time-to-99-mnist": Step(1, f"{FAST} --dataset mnist --repeats 5 --target-accuracy 0.99", "mnist"),
    "roofline": Step(2, "benchmarks/roofline.py"),
    "fabric": Step(1, "benchmarks/fabric.py"),
    "time-to-94-cifar10": Step(5, f"{FAST} {WIDE} --epochs 20 --repeats 3 --target-accuracy 0.94", "cifar10"),
}
ENDED = {0: "fine", TIMED_OUT: "stopped"}
PACKS, PACK_BYTES, INDEX_BYTES = 3, 2**24, 2**19  # the last is reserved in each pack for its list of files
CLEANUP_SECONDS = 15.0  # to stop a step, write the report and pack


def directory_of(gpus: list[str]) -> Path:
    """Return the output directory for these GPUs, e.g. figures/gpu-nvidia-h200 or figures/gpu-2x-tesla-t4."""
    names = "-".join(dict.fromkeys(re.sub(r"[^a-z0-9]+", "-", gpu.lower()) for gpu in gpus))
    return PROJECT / "figures" / f"gpu-{f'{len(gpus)}x-' if len(gpus) > 1 else ''}{names}"


def write_report(directory: Path, environment: dict, steps: dict[str, dict]) -> None:
    """Write evidence.md: the machine, the exit code of each step, and the tables, including those of stopped steps."""
    ended = [
        (name, str(step["exit_code"]), f"{step['seconds']:.0f}", f"[log]({name}.log)") for name, step in steps.items()
    ]
    parts = [
        f"# What was seen on {', '.join(environment['gpus'])}",
        lay_out([(name, str(value)) for name, value in environment.items() if value], ("what", "found"), "github"),
        lay_out(ended, ("Step", "Exit code", "Seconds", ""), "github", left=(0, 3)),
    ]
    for name in steps:
        if (directory / name / "results.json").exists() or (directory / f"{name}.json").exists():
            try:
                parts += [f"## {name}", measured_table(name, directory)]
            except Exception as error:  # one broken table must not hide the others
                parts += [f"It cannot be shown: {type(error).__name__}: {error}"]
    write_text("\n\n".join(parts) + "\n", directory / "evidence.md")


def pack(directory: Path, target: Path) -> None:
    """Write all files of a directory into at most PACKS archives of PACK_BYTES, the smallest files first."""
    sizes = {file: len(zlib.compress(file.read_bytes())) for file in directory.rglob("*") if file.is_file()}
    files = sorted(sizes, key=lambda file: sizes[file])
    for number in range(1, PACKS + 1):
        with (
            atomic_write(target / f"evidence-{number}.zip") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            while files and file.tell() + sizes[files[0]] < PACK_BYTES - INDEX_BYTES:
                archive.write(files[0], files.pop(0).relative_to(PROJECT))
        if not files:
            return
    print(f"too large to be packed: {', '.join(str(file.relative_to(PROJECT)) for file in files)}")


def command_of(name: str, directory: Path, data_root: Path, resume: bool, minutes: float) -> tuple[str, ...]:
    """Return the command of a step, without the interpreter. resume: continue from earlier results, if any.

    minutes: the time left. A benchmark begins no run after half of it, so that it can write its table.
    """
    command, place = tuple(STEPS[name].command.split()), (directory / name).relative_to(PROJECT)
    if command[0] == "-m":
        return command
    command = *command, "--data-root", str(data_root)
    if command[0] == COMPARE:
        resume_flag = ["--resume"] if resume and (directory / name / "results.json").exists() else []
        return *command, "--output-dir", str(place), *resume_flag
    limit = f"{min(STEPS[name].minutes, minutes / 2):.2g}"
    return *command, "--minutes", limit, "--output", str(place.with_suffix(".json"))


def run_steps(arguments, directory: Path, environment: dict, end: float) -> dict[str, dict]:
    """Run the steps that fit before `end`, by time.monotonic(). Return the outcome of every step tried so far."""
    record = directory / "steps.json"
    steps = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for name in [arguments.step] if arguments.step else sorted(STEPS, key=lambda name: name in steps):
        step, earlier, left = STEPS[name], steps.get(name, {}).get("exit_code"), end - time.monotonic()
        if not arguments.step and (earlier == 0 or 60 * step.minutes > left):
            continue
        if step.data and not has(step.data, arguments.data_root):
            print(f"{name}: left out, as {step.data} is not in {arguments.data_root}", flush=True)
            continue
        command = command_of(name, directory, arguments.data_root, earlier in (None, TIMED_OUT), left / 60)
        log, began, code = directory / f"{name}.log", time.monotonic(), TIMED_OUT  # if this program is stopped
        print(f"{name}: python {' '.join(command)}; what it prints is in {log.relative_to(PROJECT)}", flush=True)
        try:
            code = run_child((sys.executable, *command), log, timeout=min(left, 120 * step.minutes))
        finally:
            seconds = time.monotonic() - began
            steps[name] = {"command": f"python {' '.join(command)}", "exit_code": code, "seconds": seconds}
            write_json(steps, record)
            write_report(directory, environment, steps)
            if arguments.pack:
                pack(directory, arguments.pack)
        print(f"{name}: {ENDED.get(code, f'exit code {code}')}, after {seconds:.0f} s", flush=True)
    return steps


def main() -> None:
    start, parser = time.monotonic(), OneLineParser(description=__doc__)
    parser.add_argument("--minutes", type=positive_float, default=float("inf"), metavar="N", help="end before (never)")
    parser.add_argument("--step", choices=STEPS, metavar="NAME", help=f"this one alone: {', '.join(STEPS)}")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="for the packs (none)")
    parser.add_argument(
        "--from-bundle", type=Path, default="bundle", metavar="DIR", help="that came along (%(default)s)"
    )
    parser.add_argument("--data-root", type=Path, default="data", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="run nothing; write here what a machine lacks")
    parser.add_argument("--missing", nargs="+", default=[], metavar="NAME", help="packages that it lacks (none)")
    parser.add_argument("--python", default=platform.python_version(), metavar="X.Y", help="that it has (%(default)s)")
    arguments = parser.parse_args()
    os.chdir(PROJECT)
    if arguments.bundle:
        return write_bundle(arguments.bundle, arguments.missing, arguments.python, arguments.data_root)
    read_bundle(arguments.from_bundle, arguments.data_root)
    found = describe(str(arguments.data_root))  # in a child process, so that this one holds no GPU memory
    environment = found["environment"]
    if not environment or not environment["gpus"]:
        raise SuiteError("this needs a GPU", "PyTorch sees none", "run it on a machine that has one", MACHINE)
    directory = directory_of(environment["gpus"])
    directory.mkdir(parents=True, exist_ok=True)
    write_json(found, directory / "check.json")
    steps = run_steps(arguments, directory, environment, start + 60 * arguments.minutes - CLEANUP_SECONDS)
    if failed := [name for name, step in steps.items() if step["exit_code"]]:
        what = f"these steps failed or were cut off: {', '.join(failed)}"
        where = f"their logs are in {directory.relative_to(PROJECT)}"
        raise SuiteError(what, where, "the same command tries them again, after those not tried yet", FAILED)


if __name__ == "__main__":
    run_script(main)
