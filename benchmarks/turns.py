"""How much steadier is a comparison whose rows take turns than one of whole runs, where others use the machine too?

    python benchmarks/turns.py

The same short training under three names, both ways in every block, beside burners that keep all cores busy for 2 to 20
seconds, then rest as long. A comparison finds a difference in what is left of the runs' median epochs beside the means
of rows and blocks; here there is none to be found.
"""

import contextlib
import random
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import Witness, arguments_of, write

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import available_cores
from common.words import count
from comparison.methods import python, script
from comparison.rows import Configuration, Planned
from comparison.run.launch import started
from comparison.run.turns import Run, run_once, take_turns

ROWS = ("first", "second", "third")
TRAINING = (
    "--dataset",
    "synthetic-mnist",
    "--loader",
    "resident",
    "--model",
    "lenet",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--epochs",
    "5",
    "--max-steps",
    "25",
    "--quiet",
)
BURNER = """
import random, sys, time
intervals, busy = random.Random(int(sys.argv[1])), True
while True:
    end, busy = time.monotonic() + intervals.uniform(2, 20), not busy
    while time.monotonic() < end:
        busy or time.sleep(0.1)
"""


def residual(seconds: list[list[float]]) -> float:
    """Return the standard deviation of the logarithms of seconds[row][block] beside the means of rows and blocks."""
    logs = np.log(np.array(seconds))
    left = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    rows, blocks = logs.shape
    return float(np.sqrt((left**2).sum() / ((rows - 1) * (blocks - 1))))


def run_seconds(epochs: list[list[list[float]]]) -> list[list[float]]:
    """Return the median of every run's epochs, of epochs[row][block]."""
    return [[statistics.median(run) for run in row] for row in epochs]


def whole_runs(rows: list[Configuration], block: int, directory: Path):
    """Run the rows one after the other."""
    return [run_once(row, block, block, directory) for row in rows]


def in_turns(rows: list[Configuration], block: int, directory: Path):
    """Run the rows side by side."""
    return take_turns([Run(row, block, block, directory) for row in rows], block)


@contextlib.contextmanager
def burners(block: int, directory: Path):
    """Let others use all cores meanwhile, at times that depend on the block."""
    with contextlib.ExitStack() as stack:
        for core in range(available_cores()):
            stack.enter_context(started((sys.executable, "-c", BURNER, str(block)), directory / f"burner-{core}"))
        yield


def main() -> None:
    arguments = arguments_of(__doc__, blocks=3)
    command = (python(), script("data_parallel_train.py"), *TRAINING, "--data-root", arguments.data_root)
    planned = Planned("lenet", 128, 0, "cpu", 1, 128)
    rows = [Configuration(name, "single", name, {}, planned, command) for name in ROWS]
    shuffle, ways = random.Random(0), {"whole runs": whole_runs, "in turns": in_turns}
    epochs, witnesses = {way: {name: [] for name in ROWS} for way in ways}, []
    for block in range(1, arguments.blocks + 1):
        outcomes = []
        with tempfile.TemporaryDirectory() as directory, Witness() as witness, burners(block, Path(directory)):
            for way in shuffle.sample(list(ways), len(ways)):
                runs = ways[way](shuffle.sample(rows, len(rows)), block, Path(directory))
                outcomes += [(way, outcome) for outcome in runs]
        for way, outcome in outcomes:
            if outcome.status != "ok":
                raise SuiteError("a run failed", outcome.reason, "try it alone", FAILED)
            seconds = [epoch.train_seconds for epoch in outcome.result.timed_epochs]
            epochs[way][outcome.configuration].append(seconds)
        witnesses.append(witness)
        most = max(witnesses, key=lambda witness: witness.foreign_cores or 0.0)
        write(arguments.output, {"epoch_seconds": epochs}, most)  # a block that is whole is kept
        print(f"{block} of {count(arguments.blocks, 'block')}", flush=True)
    for way, of_row in epochs.items():
        print(f"{way}: residual standard deviation {residual(run_seconds([*of_row.values()])):.1%}")


if __name__ == "__main__":
    run_script(main)
