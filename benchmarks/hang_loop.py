"""Does a pipeline ever hang, on a machine that has other things to do?

    python benchmarks/hang_loop.py --starts 20 --steps 500 --load 11 --at-once 4

Keeps so many processes busy beside it, and starts a pipeline of LeNet again and again, with GPipe and 1F1B and with two
and three stages in turn; with --at-once, several are load for one another besides. Its micro-batches are small, so that
almost all of it is sending and receiving. A rank that waits for another longer than --dist-timeout ends its start, with
its number. Writes hang-loop.json.
"""

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.errors import FAILED, SuiteError  # noqa: E402
from common.files.writing import write_json  # noqa: E402
from common.machine.entry import run_script  # noqa: E402
from common.machine.environment import describe_environment  # noqa: E402
from common.machine.lifetime import end_with_parent  # noqa: E402
from common.settings.arguments import non_negative_int, positive_float, positive_int  # noqa: E402


@dataclass(frozen=True)
class Start:
    """One training: what was started, how it ended, and how long it took."""

    schedule: str
    stages: int
    exit_code: int
    message: str
    seconds: float


def keep_busy() -> None:
    """Compute for nothing, until the parent ends."""
    end_with_parent()
    while True:
        pass


def start(number: int, steps: int, dist_timeout: float, directory: Path) -> Start:
    """Train for so many steps in two epochs; the schedule and the number of stages change with `number`."""
    schedule, stages = ("gpipe", "1f1b")[number % 2], (2, 3)[number // 2 % 2]
    begun = time.perf_counter()
    flags = (
        f"--spawn {stages} --pipeline-schedule {schedule} --dataset synthetic-mnist --loader resident --threads 1 "
        f"--batch-size 16 --epochs 2 --max-steps {-(-steps // 2)} --dist-timeout {dist_timeout} --quiet"
    ).split()
    command = [sys.executable, "pipeline_train.py", *flags, "--data-root", directory / "data"]
    done = subprocess.run([*command, "--figure-dir", directory], cwd=PROJECT, capture_output=True, text=True)
    return Start(schedule, stages, done.returncode, done.stderr.strip(), time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=positive_int, default=4, metavar="N", help="(%(default)s)")
    parser.add_argument("--steps", type=positive_int, default=100, metavar="N", help="of each (%(default)s)")
    parser.add_argument("--load", type=non_negative_int, default=11, metavar="N", help="busy processes (%(default)s)")
    parser.add_argument("--at-once", type=positive_int, default=1, metavar="N", help="starts (%(default)s)")
    parser.add_argument("--dist-timeout", type=positive_float, default=120.0, metavar="S", help="(%(default)g)")
    parser.add_argument("--output-dir", type=Path, default=Path("figures/faults"), metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    starts: list[Start] = []
    output, typed = arguments.output_dir / "hang-loop.json", ("starts", "steps", "load", "at_once")
    flags = " ".join(f"--{name.replace('_', '-')} {getattr(arguments, name)}" for name in typed)
    found = {"command": f"benchmarks/hang_loop.py {flags}", "environment": describe_environment()}
    load = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(arguments.load)]
    for process in load:
        process.start()
    try:
        with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.at_once) as pool:
            trainings = (range(arguments.starts), repeat(arguments.steps), repeat(arguments.dist_timeout))
            for training in pool.map(start, *trainings, repeat(Path(directory))):
                starts.append(training)
                print(f"[{len(starts)}/{arguments.starts}] {training}", flush=True)
                write_json({**found, "starts": [asdict(training) for training in starts]}, output)
    finally:
        for process in load:
            process.kill()
    if failed := [training for training in starts if training.exit_code]:
        what = f"{len(failed)} of {len(starts)} starts did not end well"
        raise SuiteError(what, failed[0].message, "see hang-loop.json", FAILED)


if __name__ == "__main__":
    run_script(main)
