"""Train for hours beside random faults, and check that nothing grows: processes, memory, descriptors, files.

    make soak HOURS=1

One training of two ranks with loader workers and a checkpoint per epoch runs all the time. Beside it, trials of fuzz.py
come and go. All run in their own namespaces, with an empty /dev/shm, so that whatever is left there is theirs. At the
end, the training is asked to stop, goes on from its checkpoint, and is asked to stop again.
"""

import argparse
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
from fuzz import PROJECT, FindingError, Fuzz, draw

from common.errors import FAILED
from common.files.results import read_result
from common.files.writing import write_json
from common.machine.entry import run_script
from common.settings.arguments import positive_float
from tests.fixtures import child_environment

NAMESPACES = ("unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "--mount-proc", "--kill-child")
SHM = Path("/dev/shm")
LONG = (
    "ddp_train.py --spawn 2 --num-workers 2 --dataset synthetic-mnist --model mlp --train-size 9600 --batch-size 96 "
    "--epochs 1000000 --quiet"
)
ALLOWED = {"processes": 0, "descriptors": 16, "memory_mib": 32, "tmp_files": 0, "shm_files": 0}  # growth after a third
SECONDS_PER_SAMPLE = 20
STOPPED = 128 + signal.SIGTERM


def own_namespaces() -> None:
    """Run this program again in namespaces of its own, with an empty /dev/shm."""
    mount = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && "$@"; exit $?'  # the shell reaps orphans
    os.environ["SOAK_NAMESPACES"] = "1"
    os.execvp(NAMESPACES[0], [*NAMESPACES, "sh", "-c", mount, "sh", sys.executable, *sys.argv])


class Training:
    """The training that runs all the time."""

    def __init__(self, place: Path):
        self.result, self.tmp, checkpoint = place / "long.json", place / "tmp", place / "long.pt"
        self.tmp.mkdir(exist_ok=True)
        files = ["--checkpoint", checkpoint, "--resume", checkpoint, "--output", self.result, "--figure-dir", place]
        command = [*map(str, [sys.executable, *LONG.split(), *files])]
        environment = {**child_environment(), "TMPDIR": str(self.tmp)}
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment)

    def stop(self) -> tuple[int, int]:
        """Ask it to stop after its step. Return the exit code and the number of its epochs."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        return code, len(read_result(self.result).epochs) if self.result.exists() else 0


def sample(training: Training) -> dict[str, float]:
    """Return what the training uses, and the number of files in its TMPDIR and in /dev/shm."""
    own = psutil.Process(training.process.pid)
    family = [own, *own.children(recursive=True)]
    return {
        "processes": len(family),
        "descriptors": sum(process.num_fds() for process in family),
        "memory_mib": sum(process.memory_full_info().pss for process in family) / 2**20,
        "tmp_files": sum(1 for _ in training.tmp.iterdir()),
        "shm_files": sum(1 for _ in SHM.iterdir()),
    }


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return how much each value grew from the second third of the samples to the last, by their medians."""
    third = len(samples) // 3
    parts = samples[third : 2 * third], samples[2 * third :]
    before, after = ({name: statistics.median(one[name] for one in part) for name in ALLOWED} for part in parts)
    return {name: after[name] - before[name] for name in ALLOWED}


def soak(seconds: float, directory: Path) -> dict:
    """Run the training and trials for some time. Return the samples, the trials and the findings."""
    fuzz, training, start, samples, trials, findings = Fuzz(directory), Training(directory), time.monotonic(), [], 0, []
    for number in itertools.count(1):
        if time.monotonic() > start + seconds or training.process.poll() is not None:
            break
        try:
            fuzz.go_through(draw(number, kills=False), directory / "trial")
        except FindingError as finding:
            findings.append(f"trial {number}: {finding.args[0]}")
        finally:
            fuzz.clean_up(directory / "trial")
        trials += 1
        if time.monotonic() > start + len(samples) * SECONDS_PER_SAMPLE and training.process.poll() is None:
            samples.append({"seconds": time.monotonic() - start, **sample(training)})
    findings += ending(training, directory)
    grown = growth(samples) if len(samples) > 5 else {}
    findings += [f"{name} grew by {grown[name]:g}" for name in grown if grown[name] > ALLOWED[name]]
    return {"seconds": seconds, "trials": trials, "growth": grown, "findings": findings, "samples": samples}


def ending(training: Training, directory: Path) -> list[str]:
    """Stop the training, go on from its checkpoint for a while, and stop it again. Return what went wrong."""
    code, epochs = training.stop()
    again = Training(directory)
    time.sleep(30)
    code_again, more = again.stop()
    left = [process.info["name"] for process in psutil.process_iter(["name"]) if process.pid not in (1, os.getpid())]
    wrong = [f"the training ended with exit code {found}" for found in (code, code_again) if found != STOPPED]
    if not 0 < epochs < more:
        wrong.append(f"{epochs} epochs, and {more} after going on from the checkpoint")
    return [*wrong, *(f"left alive: {name}" for name in left)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=positive_float, default=1.0, metavar="H", help="(%(default)g)")
    parser.add_argument("--output", default="figures/faults/soak.json", metavar="FILE", help="(%(default)s)")
    arguments = parser.parse_args()
    if "SOAK_NAMESPACES" not in os.environ:
        own_namespaces()
    directory = Path(f"/tmp/soak-{time.time_ns()}")
    directory.mkdir()
    try:
        found = soak(3600 * arguments.hours, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    write_json({"command": f"make soak HOURS={arguments.hours:g}", **found}, arguments.output)
    samples, trials = len(found["samples"]), found["trials"]
    print(f"{trials} trials, {samples} samples; growth {found['growth']}", *found["findings"], sep="\n")
    if found["findings"]:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
