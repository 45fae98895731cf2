"""Does a comparison find a slowdown of 5%, and no difference between two equal rows?

    python benchmarks/twins.py

Runs ten ordinary comparisons (in turns, within --budget, disturbed blocks repeated) of three rows: one device, the same
again, and the same with an update that takes 5% of a step longer. The delay is planted by benchmarks/plants; its length
comes from a run before. Writes the ratios of each comparison to --output. Comparisons disturbed by another program are
left out. The same command resumes after --minutes.
"""

import argparse
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import PLANNED, PROJECT, SETTINGS, as_table, quiet_comparison
from runs import Runs, benchmark, benchmark_parser

from common.files.probe import Probe
from common.machine.entry import run_script
from common.machine.environment import describe_environment
from common.machine.lifetime import temporary_directory
from common.settings.arguments import positive_int
from comparison.judge.statistics import SLOWER
from comparison.methods import Machine
from comparison.plan.counterparts import TWIN, twin_of
from comparison.plan.plan import make_order, make_plan
from comparison.record import FEWEST_BLOCKS, Report
from comparison.rows import Configuration
from comparison.run.turns import run_once
from comparison.show.advice import told_apart

STEPS, EPOCHS, SHARE = 25, 7, 0.05
TRAINING = f"--dataset synthetic-mnist --train-size {128 * STEPS} --epochs {EPOCHS} --loader resident".split()


@dataclass(frozen=True)
class Comparison:
    """The outcome of one comparison.

    planted: milliseconds per step. true: speed-up of the slower row, computed from the time of one device. twin,
    slower: measured speed-up with its interval. told_apart: whether the twins were. found: whether the slower row was.
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
    """Return one device, its twin, and the same with updates that take `seconds` longer."""
    (plain,) = make_plan(argparse.Namespace(**PLANNED | {"loader": "resident"}), Machine(gpus=0, cores=2), TRAINING)
    plant = ("env", f"PYTHONPATH={PROJECT / 'benchmarks' / 'plants'}", "PLANT=update", f"PLANT_SECONDS={seconds}")
    slower = replace(plain, name="slower", label="slower", command=(*plant, *plain.command))
    return [plain, *twin_of([plain], "single"), slower]


def compare(seed: int, budget: float) -> Comparison | None:
    """Run one comparison. None if another program disturbed it."""
    with temporary_directory() as directory:
        alone = run_once(rows_of(0.0)[0], 1, 0, Path(directory)).result
    planted = SHARE * statistics.median(epoch.train_seconds for epoch in alone.epochs[1:]) / STEPS
    plan = rows_of(planted)
    order = make_order([row.name for row in plan], FEWEST_BLOCKS, seed)
    settings = {**SETTINGS, "epochs": EPOCHS, "budget": budget, "seed": 1000 * seed}
    probe = Probe(128 * STEPS, 10_000, 5.0, (), (), ())
    report = Report("", settings, describe_environment(), probe, tuple(plan), tuple(order), in_turns=True)
    with temporary_directory() as directory:
        analysis = quiet_comparison(report, Path(directory))
    if not analysis:
        return None
    single, slower = analysis.rows
    (pair,) = analysis.pairs[TWIN]
    speed_up, seconds = slower.standing.speed_up, single.summary.epoch_seconds
    ratios = [(ratio.value, ratio.low, ratio.high) for ratio in (pair.ratio, speed_up)]
    true, found = 1 / (1 + planted * STEPS / seconds), speed_up.words == SLOWER
    return Comparison(seed, single.summary.runs, 1000 * planted, true, *ratios, told_apart(pair.ratio), found)


def scores(comparisons: list[Comparison]) -> dict:
    return {
        "comparisons": len(comparisons),
        "twins_told_apart": sum(entry.told_apart for entry in comparisons),
        "slower_found": sum(entry.found for entry in comparisons),
        "true_in_interval": sum(entry.slower[1] <= entry.true <= entry.slower[2] for entry in comparisons),
    }


def measured(runs: Runs) -> dict:
    seeds = range(1, runs.arguments.comparisons + 1)
    found = runs.each({f"seed {seed}": partial(compare, seed, runs.arguments.budget) for seed in seeds})
    comparisons = [Comparison(**entry) for entry in found.values()]
    return {"comparisons": list(map(vars, comparisons)), "scores": scores(comparisons)}


def table(results: dict) -> str:
    names = [name.replace("_", " ") for name in results["scores"]]
    return as_table(" | ".join(names), [tuple(results["scores"].values())], left=())


def main() -> None:
    parser = benchmark_parser(__doc__, timeout=900)
    parser.add_argument("--comparisons", type=positive_int, default=10, metavar="N", help="(%(default)s)")
    parser.add_argument("--budget", type=float, default=360.0, metavar="S", help="of each, seconds (%(default)s)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
