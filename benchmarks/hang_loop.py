"""Do pipelines hang on a busy machine?

    python benchmarks/hang_loop.py --starts 20 --steps 500 --load 11 --at-once 4

Starts a LeNet pipeline repeatedly next to --load busy processes, alternating between GPipe and 1F1B and between two and
three stages. Micro-batches are small, so it mostly sends and receives. A start fails if a rank waits for another longer
than --dist-timeout.
"""

import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from measure import PROJECT
from runs import Runs, benchmark, benchmark_parser

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.lifetime import end_with_parent, temporary_directory
from common.settings.arguments import non_negative_int, positive_float, positive_int


def keep_busy() -> None:
    end_with_parent()
    while True:
        pass


def start(arguments, directory: str, number: int) -> dict:
    """Train --steps steps in two epochs. `number` selects the schedule and the number of stages."""
    schedule, stages = ("gpipe", "1f1b")[number % 2], (2, 3)[number // 2 % 2]
    began = time.perf_counter()
    flags = (
        f"--spawn {stages} --pipeline-schedule {schedule} --dataset synthetic-mnist --loader resident --threads 1 "
        f"--batch-size 16 --epochs 2 --max-steps {-(-arguments.steps // 2)} --dist-timeout {arguments.dist_timeout} "
        f"--quiet --data-root {directory}/data --figure-dir {directory}"
    )
    command = [sys.executable, "pipeline_train.py", *flags.split()]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    return {
        "schedule": schedule,
        "stages": stages,
        "exit_code": done.returncode,
        "message": done.stderr.strip(),
        "seconds": time.perf_counter() - began,
    }


def start_together(arguments, directory: str, numbers: range) -> list[dict]:
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(partial(start, arguments, directory), numbers))


def measured(runs: Runs) -> dict:
    given = runs.arguments
    load = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(given.load)]
    for process in load:
        process.start()
    try:
        with temporary_directory() as directory:
            rounds = {}
            for first in range(0, given.starts, given.at_once):
                numbers = range(first, min(first + given.at_once, given.starts))
                rounds[f"starts {numbers}"] = partial(start_together, given, directory, numbers)
            return {"starts": [training for starts in runs.each(rounds).values() for training in starts]}
    finally:
        for process in load:
            process.kill()


def main() -> None:
    parser = benchmark_parser(__doc__, timeout=900)
    parser.add_argument("--starts", type=positive_int, default=4, metavar="N", help="(%(default)s)")
    parser.add_argument("--steps", type=positive_int, default=100, metavar="N", help="of each (%(default)s)")
    help = "busy processes (%(default)s)"
    parser.add_argument("--load", type=non_negative_int, default=11, metavar="N", help=help)
    parser.add_argument("--at-once", type=positive_int, default=1, metavar="N", help="starts (%(default)s)")
    parser.add_argument("--dist-timeout", type=positive_float, default=120.0, metavar="S", help="(%(default)g)")
    arguments = parser.parse_args()
    starts = benchmark(arguments, measured)["starts"]
    if failed := [training for training in starts if training["exit_code"]]:
        what = f"{len(failed)} of {len(starts)} starts did not end well"
        raise SuiteError(what, failed[0]["message"], f"see {arguments.output}", FAILED)


if __name__ == "__main__":
    run_script(main)
