"""Does the comparison find 5% where there are 5%, and nothing between two equal rows?

    python benchmarks/twins.py

Ten comparisons as a person runs them (in turns, within a budget, disturbed blocks again) of three rows: one device, the
same again, and the same with an update that takes longer by 5% of a step. That is planted in the script's process
(benchmarks/plants); how long a step takes without it, one run beforehand tells. `--output` gets every comparison's
ratios as they were judged; what another program disturbed is left out. Each lasts for --budget: the same command goes
on after --minutes.
"""

import argparse
import contextlib
import os
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import PLANNED, PROJECT, SETTINGS, as_table
from runs import Runs, arguments_of, benchmark

from common.files.probe import Probe
from common.machine.entry import run_script
from common.machine.environment import describe_environment
from common.machine.lifetime import temporary_directory
from common.settings.arguments import positive_int
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.judge.statistics import SLOWER
from comparison.judge.summaries import run_seconds
from comparison.methods import Machine
from comparison.plan.counterparts import TWIN, twin_of
from comparison.plan.plan import make_order, make_plan
from comparison.record import FEWEST_BLOCKS, Report
from comparison.rows import Configuration
from comparison.run.session import run_comparison
from comparison.run.turns import run_once
from comparison.show.advice import told_apart

STEPS, EPOCHS, SHARE = 25, 7, 0.05
TRAINING = f"--dataset synthetic-mnist --train-size {128 * STEPS} --epochs {EPOCHS} --loader resident".split()


@dataclass(frozen=True)
class Comparison:
    """The outcome of one comparison: how many times as fast each of the other rows is as one device, as it was judged.

    planted: milliseconds per step; true: one device's time ÷ that with so many more, computed from its time there.
    """

    seed: int
    blocks: int
    planted: float
    true: float
    twin: tuple[float, float, float]
    slower: tuple[float, float, float]
    told_apart: bool
    found: bool


def rows_of(seconds: float) -> list[Configuration]:
    """Return one device, the same again, and the same with an update that takes so many seconds longer."""
    (plain,) = make_plan(argparse.Namespace(**PLANNED | {"loader": "resident"}), Machine(gpus=0, cores=2), TRAINING)
    plant = ("env", f"PYTHONPATH={PROJECT / 'benchmarks' / 'plants'}", "PLANT=update", f"PLANT_SECONDS={seconds}")
    slower = replace(plain, name="slower", label="slower", command=(*plant, *plain.command))
    return [plain, *twin_of([plain], "single"), slower]


def compare(seed: int, budget: float) -> Comparison | None:
    """Run one comparison, and return what it says; None if another program disturbed it."""
    with temporary_directory() as directory:
        alone = run_once(rows_of(0.0)[0], 1, 0, Path(directory)).result
    planted = SHARE * statistics.median(epoch.train_seconds for epoch in alone.epochs[1:]) / STEPS
    plan = rows_of(planted)
    order = make_order([row.name for row in plan], FEWEST_BLOCKS, seed)
    settings, probe = (
        {**SETTINGS, "epochs": EPOCHS, "budget": budget, "seed": 1000 * seed},
        Probe(128 * STEPS, 10_000, 5.0, (), (), ()),
    )
    report = Report("", settings, describe_environment(), probe, tuple(plan), tuple(order), in_turns=True)
    with temporary_directory() as directory, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        analysis = analyse(run_comparison(report, [], output_to(Path(directory))))
    if any(row.disturbed for row in analysis.report.all_rows):
        return None
    single, slower = analysis.rows
    (pair,) = analysis.pairs[TWIN]
    speed_up, seconds = slower.standing.speed_up, statistics.geometric_mean(run_seconds(single.row))
    ratios = [(ratio.value, ratio.low, ratio.high) for ratio in (pair.ratio, speed_up)]
    true, found = 1 / (1 + planted * STEPS / seconds), speed_up.words == SLOWER
    return Comparison(seed, single.summary.runs, 1000 * planted, true, *ratios, told_apart(pair.ratio), found)


def scores(comparisons: list[Comparison]) -> dict:
    """Return how many comparisons told the twins apart, and how many found the 5%."""
    return {
        "comparisons": len(comparisons),
        "twins_told_apart": sum(entry.told_apart for entry in comparisons),
        "slower_found": sum(entry.found for entry in comparisons),
        "true_in_interval": sum(entry.slower[1] <= entry.true <= entry.slower[2] for entry in comparisons),
    }


def measured(runs: Runs) -> dict:
    """Return all comparisons, and their scores."""
    seeds = range(1, runs.arguments.comparisons + 1)
    found = runs.each({f"seed {seed}": partial(compare, seed, runs.arguments.budget) for seed in seeds})
    comparisons = [Comparison(**entry) for entry in found.values()]
    return {"comparisons": list(map(vars, comparisons)), "scores": scores(comparisons)}


def table(results: dict) -> str:
    names = [name.replace("_", " ") for name in results["scores"]]
    return as_table(" | ".join(names), [tuple(results["scores"].values())], left=())


def main() -> None:
    def more(parser):
        parser.add_argument("--comparisons", type=positive_int, default=10, metavar="N", help="(%(default)s)")
        parser.add_argument("--budget", type=float, default=360.0, metavar="S", help="of each, seconds (%(default)s)")

    benchmark(arguments_of(__doc__, more=more, timeout=900), measured, table)


if __name__ == "__main__":
    run_script(main)
