"""How often does the comparison claim a difference where there is none?

    python benchmarks/false_alarms.py --simulated 2000 --real 10 --output-dir figures/false-alarms

Simulated: the same row twice, with skewed noise and 10 % drift over the comparison, in the order that the comparison
would choose and judged by its own statistics. Real: one device, the same short training twice under two names, run and
judged as the comparison does it. Writes results.json, with every raw time, and summary.md.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.arguments import OneLineParser, positive_int
from common.config import RunConfig
from common.entry import run_script
from common.errors import FAILED, SuiteError
from common.writing import check_writable, write_json
from comparison.launch import run_once
from comparison.measures import run_seconds
from comparison.methods import Machine
from comparison.plan import make_order, make_plan
from comparison.record import Row
from comparison.statistics import Ratio, ratio
from comparison.tables import lay_out

DRIFT = 0.10  # the machine's times grow by this share from the first run to the last
REPEATS = (2, 3, 5, 10)
EFFECT = 1.2  # the true speed-up where there is one
NOISE = {  # relative, skewed to the right, as interruptions are: most runs near the fastest, some much slower
    "exponential, mean 5 %": lambda random: random.exponential(0.05),
    "log-normal, sigma 0.1": lambda random: random.lognormal(0, 0.1) - 1,
    "one run in five 30 % slower": lambda random: random.exponential(0.02) + 0.3 * (random.random() < 0.2),
}
TRAINING = ["--dataset", "synthetic-mnist", "--train-size", "2560", "--epochs", "3"]


def simulate(comparisons: int, repeats: int, noise, effect: float) -> list[Ratio]:
    """Return the judged speed-up of b over a in each of `comparisons` of four rows; b is truly `effect` as fast."""
    speed_ups = []
    for seed in range(comparisons):
        random = np.random.default_rng(seed)
        seconds: dict[str, list[float]] = {name: [] for name in "abcd"}
        order = make_order(list(seconds), repeats, seed)
        for position, (_, name) in enumerate(order):
            true = 10.0 / effect if name == "b" else 10.0
            seconds[name].append(true * (1 + DRIFT * position / len(order)) * (1 + noise(random)))
        speed_ups.append(ratio(seconds["a"], seconds["b"]))
    return speed_ups


def simulated_table(comparisons: int) -> list[dict]:
    """Return false alarms and coverage for every kind of noise and number of repeats."""
    rows = []
    for name, noise in NOISE.items():
        for repeats in REPEATS:
            same, other = (simulate(comparisons, repeats, noise, effect) for effect in (1.0, EFFECT))
            rows.append({
                "noise": name, "repeats": repeats, "comparisons": comparisons,
                "false_faster": sum(speed_up.words == "faster" for speed_up in same) / comparisons,
                "false_slower": sum(speed_up.words == "slower" for speed_up in same) / comparisons,
                "coverage": sum(speed_up.low <= 1 <= speed_up.high for speed_up in same) / comparisons,
                "effect_found": sum(speed_up.words == "faster" for speed_up in other) / comparisons,
            })
    return rows


def real_comparisons(count: int, directory: Path) -> list[dict]:
    """Run one device twice under two names, three blocks, `count` times; return every comparison with its raw times."""
    shared = {**vars(RunConfig()), "model": ["lenet"], "batch_size": [128], "num_workers": [0]}
    arguments = argparse.Namespace(**shared, methods=[("single", {})], nproc=[2], micro_batches=[1],
                                   threads_per_device=1, scaling="strong")
    (single,) = make_plan(arguments, Machine(gpus=0, cores=2), TRAINING)
    twins = {name: replace(single, name=name) for name in ("first", "second")}
    comparisons = []
    for seed in range(count):
        order = make_order(list(twins), 3, seed)
        outcomes = [run_once(twins[name], block, 41 + block, directory) for block, name in order]
        if trouble := next((outcome for outcome in outcomes if outcome.status != "ok"), None):
            raise SuiteError("a run failed", trouble.reason, f"see {trouble.log}", FAILED)
        first, second = (run_seconds(Row(twin, tuple(outcome for outcome in outcomes if outcome.configuration == name)))
                         for name, twin in twins.items())
        judged = ratio(first, second)
        print(f"[{seed + 1}/{count}] {judged}: {judged.words}", flush=True)
        comparisons.append({"first_seconds": first, "second_seconds": second, "ratio": judged.value, "low": judged.low,
                            "high": judged.high, "words": judged.words, "command": outcomes[0].command})
    return comparisons


def summary(simulated: list[dict], real: list[dict]) -> str:
    """Return both as Markdown."""
    rows = [[row["noise"], row["repeats"], *(f"{100 * row[name]:.1f}" for name in (
        "false_faster", "false_slower", "coverage", "effect_found"))] for row in simulated]
    header = ("Noise (simulated)", "Repeats", "False “faster” (%)", "False “slower” (%)",
              "Interval holds the truth (%)", f"True {EFFECT} found (%)")
    count = simulated[0]["comparisons"]
    claims = sum(row["words"] in ("faster", "slower") for row in real)
    pairs = [[number, f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]", row["words"]]
             for number, row in enumerate(real, start=1)]
    return "\n\n".join([
        f"Simulated: {count} comparisons for each line, with {DRIFT:.0%} drift.",
        lay_out(rows, header, "github"),
        f"Real: the same training twice under two names; a difference was claimed in {claims} of {len(real)} "
        "comparisons.",
        lay_out(pairs, ("Comparison", "First ÷ second [95 %]", "Claim"), "github", left=(2,)),
    ]) + "\n"


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=positive_int, default=2000, metavar="N", help="comparisons (%(default)s)")
    parser.add_argument("--real", type=positive_int, default=10, metavar="N", help="comparisons (%(default)s)")
    parser.add_argument("--output-dir", default="figures/false-alarms", metavar="DIR", help="(%(default)s)")
    arguments = parser.parse_args()
    directory = Path(arguments.output_dir)
    check_writable(directory)
    simulated = simulated_table(arguments.simulated)
    real = real_comparisons(arguments.real, directory / "runs")
    write_json({"drift": DRIFT, "simulated": simulated, "real": real}, directory / "results.json")
    (directory / "summary.md").write_text(summary(simulated, real), encoding="utf-8")
    print(summary(simulated, real), end="")


if __name__ == "__main__":
    run_script(main)
