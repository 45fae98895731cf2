"""Does a comparison survive being killed at any moment?

    python benchmarks/kill_loop.py --kills 100

Starts a small comparison (one device and DDP, two runs each), kills it with SIGKILL after a random time, waits 2
seconds, looks for live processes of it and reads its results.json; then goes on with --resume, and kills that. A
comparison that ends before its time is up counts as completed and is followed by a new one; the last one is not killed.
Writes kill-loop.json. Takes about 15 seconds per kill.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.errors import FAILED, SuiteError  # noqa: E402
from common.files.writing import write_json  # noqa: E402
from common.machine.entry import run_script  # noqa: E402
from common.machine.environment import describe_environment  # noqa: E402
from common.settings.arguments import non_negative_int, positive_int  # noqa: E402
from comparison.results_file import read_results  # noqa: E402

SECONDS_AFTER = 2.0  # by then nothing of a killed comparison may be alive
RUNS = 4


def live_processes(marker: str) -> list[str]:
    """Return the commands of all processes whose environment holds `marker`; zombies have none."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                commands.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass  # gone meanwhile, or somebody else's
    return commands


def start(directory: Path, marker: str) -> subprocess.Popen:
    """Start the comparison in `directory`, or go on with it if it has begun."""
    resume = ["--resume"] if (directory / "results.json").exists() else []
    flags = (
        f"--methods single ddp --repeats {RUNS // 2} --dataset synthetic-mnist --model mlp --train-size 960 "
        "--batch-size 48 --epochs 2"
    ).split()
    command = [sys.executable, "compare_parallel.py", *flags, *resume, "--output-dir", directory]
    name, value = marker.split("=")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = ["--data-root", directory.parent / "data"]
    return subprocess.Popen([*command, *data], cwd=PROJECT, env={**os.environ, name: value}, **silent)


def runs_on_disk(directory: Path) -> int | None:
    """Return how many finished runs results.json holds, 0 if there is none yet, None if it cannot be read whole."""
    file = directory / "results.json"
    try:
        return len(read_results(file).outcomes) if file.exists() else 0
    except SuiteError:
        return None


def main() -> None:
    """Kill, look, resume, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=positive_int, default=100, metavar="N", help="(%(default)s)")
    help = "kill at a random time up to so many seconds after the start (%(default)s)"
    parser.add_argument("--latest", type=positive_int, default=30, metavar="S", help=help)
    parser.add_argument("--seed", type=non_negative_int, default=42, help="(%(default)s)")
    parser.add_argument("--output-dir", type=Path, default=Path("figures/faults"), metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    moments, marker = random.Random(arguments.seed), f"KILL_LOOP={uuid.uuid4().hex}"
    kills, completed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "comparison"
        while len(kills) < arguments.kills or not completed or completed[-1]["after_kills"] < len(kills):
            last = len(kills) == arguments.kills
            seconds = None if last else moments.uniform(0, arguments.latest)
            process = start(directory, marker)
            try:
                exit_code, runs = process.wait(seconds), runs_on_disk(directory)
                completed.append({"after_kills": len(kills), "exit_code": exit_code, "runs": runs})
                print(f"completed: exit code {exit_code}, {runs} of {RUNS} runs", flush=True)
                shutil.rmtree(directory)
                if last and (exit_code, runs) != (0, RUNS):
                    break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                time.sleep(SECONDS_AFTER)
                runs, alive = runs_on_disk(directory), live_processes(marker)
                kills.append({"seconds": seconds, "runs_on_disk": runs, "live_processes": alive})
                print(f"kill {len(kills)} after {seconds:.1f} s: {runs} runs on disk, {len(alive)} alive", flush=True)
    broken = sum(kill["runs_on_disk"] is None for kill in kills)
    alive = sum(bool(kill["live_processes"]) for kill in kills)
    unfinished = sum((comparison["exit_code"], comparison["runs"]) != (0, RUNS) for comparison in completed)
    found = {"environment": describe_environment(), "kills": kills, "completed": completed}
    write_json(found, arguments.output_dir / "kill-loop.json")
    print(
        f"{len(kills)} kills: results.json whole {len(kills) - broken}/{len(kills)}, processes alive after "
        f"{SECONDS_AFTER:g} s {alive}/{len(kills)}, completed after --resume {len(completed) - unfinished}/"
        f"{len(completed)}"
    )
    if broken or alive or unfinished:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
