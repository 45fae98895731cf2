"""How often does the comparison claim a difference where there is none, and how often does it find one?

    python benchmarks/false_alarms.py --simulated 2000 --real 10

Simulated: six rows in blocks, in the order that the comparison would choose and judged by its own statistics, with a
fixed number of blocks and with looks at the data that end it early. Noise of one run after another, which is harder
than that of rows that take turns. Real: one device, the same short training twice under two names, run and judged as
the comparison does it. Writes every raw time to --output, and summary.md beside it.
"""

import argparse
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from measure import PLANNED, as_table
from runs import Runs, arguments_of, benchmark

from common.errors import FAILED, SuiteError
from common.files.writing import write_text
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from common.settings.arguments import non_negative_int, positive_int
from comparison.judge.blocks import adjusted_means, ratios
from comparison.judge.statistics import (
    CONFIDENCE,
    EQUAL,
    EQUAL_WITHIN,
    FASTER,
    SLOWER,
    UNDECIDED,
    Ratio,
    look_confidence,
)
from comparison.judge.summaries import run_seconds
from comparison.methods import Machine
from comparison.plan.plan import make_order, make_plan
from comparison.rows import Row
from comparison.run.turns import run_once
from comparison.show.tables import DASH

ROWS = 6  # the first is the baseline
DRIFT = 0.10  # the machine's times grow by this share from the first run to the last
BLOCKS, MOST = (2, 3, 5, 10), 10
FIRST_LOOK = 3
EFFECTS = (1.05, 1.10, 1.20)
MIXED = (1.05, 1.10, 1.20, 1.0, 1 / 1.10)  # how many times as fast the rows are where they differ
TRAINING = "--dataset synthetic-mnist --train-size 2560 --epochs 3".split()


def unequal(*deviations):
    """Return normal noise of so much for each row."""
    return lambda random, rows: random.normal(0, np.array(deviations)[rows])


def autocorrelated(random, rows):
    """15% that change slowly, over about 8 runs, and 3% of every run's own."""
    state, kept, states = random.normal(0, 0.15), math.exp(-1 / 8), []
    for _ in rows:
        state = kept * state + random.normal(0, 0.15 * math.sqrt(1 - kept**2))
        states.append(state)
    return np.array(states) + random.normal(0, 0.03, len(rows))


def slow_periods(random, rows):
    """Of about 8 runs, with 24 between them, in which all takes twice as long; and 3% of every run's own."""
    slow, states = random.random() < 0.25, []
    for _ in rows:
        slow = random.random() >= 1 / 8 if slow else random.random() < 1 / 24
        states.append(math.log(2) * slow)
    return np.array(states) + random.normal(0, 0.03, len(rows))


NOISE = {  # of the logarithms of the times of runs, given the row of each
    "normal, 4%": unequal(*6 * [0.04]),
    "exponential, mean 5%": lambda random, rows: np.log1p(random.exponential(0.05, len(rows))),
    "one run in five 30% slower": lambda random, rows: np.log1p(
        random.exponential(0.02, len(rows)) + 0.3 * (random.random(len(rows)) < 0.2)
    ),
    "2%, one row 8%": unequal(0.02, 0.08, 0.02, 0.02, 0.02, 0.02),
    "2%, the baseline 8%": unequal(0.08, 0.02, 0.02, 0.02, 0.02, 0.02),
    "4%, the baseline 1%": unequal(0.01, 0.04, 0.04, 0.04, 0.04, 0.04),
    "1 to 4%, the baseline 8%": unequal(0.08, 0.01, 0.02, 0.04, 0.02, 0.01),
    "autocorrelated, 15% and 3%": autocorrelated,
    "slow periods and 3%": slow_periods,
}


def simulate(noise, seed: int) -> np.ndarray:
    """Return the seconds, (MOST blocks, ROWS), of one comparison of rows that are equally fast."""
    order = make_order(list(range(ROWS)), MOST, seed)
    blocks, rows = np.array(order).T
    drift = np.log1p(DRIFT * np.arange(len(order)) / len(order))
    times = np.empty((MOST, ROWS))
    times[blocks - 1, rows] = 10 * np.exp(drift + noise(np.random.default_rng(seed), rows))
    return times


def judge(times: np.ndarray, confidence: float = CONFIDENCE) -> list[Ratio]:
    """Return the speed-ups of all rows but the first."""
    return ratios(times, 0, list(range(1, ROWS)), confidence)


def if_true(speed_up: Ratio, effect: float) -> str:
    """Return what would have been said of a row that is truly `effect` times as fast: its interval only moves."""
    return speed_up.times(effect).words


def is_false(words: str, effect: float) -> bool:
    """Whether that is wrong of a row that is truly `effect` times as fast."""
    if words == EQUAL:
        return not 1 / (1 + EQUAL_WITHIN) <= effect <= 1 + EQUAL_WITHIN
    return effect <= 1 if words == FASTER else effect >= 1 if words == SLOWER else False


def is_kept(times: np.ndarray) -> bool:
    """Whether the first of equal rows may be the fastest, as it is not proved to be slower than who seems to be."""
    first, *others = np.argsort(adjusted_means(times))
    return first == 0 or ratios(times, first, others)[others.index(0)].words not in (FASTER, SLOWER)


def fixed_rows(name: str, comparisons: int) -> list[dict]:
    """Return false claims, coverage and what is found, for a kind of noise and every number of blocks."""
    rows, tables = [], [simulate(NOISE[name], seed) for seed in range(comparisons)]
    for blocks in BLOCKS:
        judged = [judge(times[:blocks]) for times in tables]
        every = [speed_up for group in judged for speed_up in group]
        rows.append(
            {
                "noise": name,
                "blocks": blocks,
                "comparisons": comparisons,
                "any_false": share(any(is_false(speed_up.words, 1.0) for speed_up in group) for group in judged),
                "coverage": share(speed_up.low <= 1 <= speed_up.high for speed_up in every),
                "best_kept": share(is_kept(times[:blocks]) for times in tables),
                "found": [share(if_true(speed_up, effect) == FASTER for speed_up in every) for effect in EFFECTS],
            }
        )
    return rows


def looks_rows(name: str, comparisons: int) -> list[dict]:
    """Return the same for comparisons that end as soon as every row is decided, at the latest after MOST blocks.

    A row that is decided is not run again, unless it is the baseline.
    """
    looks, rows = range(FIRST_LOOK, MOST + 1), []
    confidences = {
        last: look_confidence(
            tuple(looks[: last - FIRST_LOOK + 1]), tuple(look / MOST for look in looks[: last - FIRST_LOOK + 1])
        )
        for last in looks
    }
    tables = [simulate(NOISE[name], seed) for seed in range(comparisons)]
    for effects in ((1.0,) * (ROWS - 1), MIXED):
        ends = [end_of(times.copy(), confidences, effects) for times in tables]
        said = [words for _, _, words in ends]
        row = {"noise": name, "effects": effects, "comparisons": comparisons}
        row["blocks"] = sum(blocks for blocks, _, _ in ends) / comparisons
        row["runs"] = sum(runs for _, runs, _ in ends) / comparisons
        row["any_false"] = share(any(map(is_false, words, effects)) for words in said)
        row["found"] = [None] * len(EFFECTS)
        for place, effect in enumerate(EFFECTS):
            if effect in effects:
                row["found"][place] = share(words[effects.index(effect)] == FASTER for words in said)
        rows.append(row)
    return rows


def end_of(times: np.ndarray, confidences: dict[int, float], effects) -> tuple[int, int, list[str]]:
    """Return the blocks and runs of a comparison that ends when every row is decided, and what is said of the rows.

    times: of all blocks that could be run; those that are not run become nan.
    """
    for look, confidence in confidences.items():
        words = [*map(if_true, judge(times[:look], confidence), effects)]
        decided = [column for column, said in enumerate(words, start=1) if said != UNDECIDED]
        times[look:, decided] = np.nan
        if len(decided) == len(effects):
            break
    return look, int(np.isfinite(times[:look]).sum()), words


def share(answers) -> float:
    """Return which part of the answers is yes."""
    return float(np.mean(list(answers)))


def real_comparison(seed: int) -> dict:
    """Run one device twice under two names, three blocks; return the comparison's raw times."""
    (single,) = make_plan(argparse.Namespace(**PLANNED), Machine(gpus=0, cores=2), TRAINING)
    twins = {name: replace(single, name=name) for name in ("first", "second")}
    order = make_order(list(twins), 3, seed)
    with temporary_directory() as directory:
        outcomes = [run_once(twins[name], block, 41 + block, Path(directory)) for block, name in order]
    if trouble := next((outcome for outcome in outcomes if outcome.status != "ok"), None):
        raise SuiteError("a run failed", trouble.reason, "try it alone", FAILED)
    first, second = (
        run_seconds(Row(twin, tuple(outcome for outcome in outcomes if outcome.configuration == name)))
        for name, twin in twins.items()
    )
    return {"first_seconds": list(first), "second_seconds": list(second), "command": outcomes[0].command}


def judge_real(comparison: dict) -> Ratio:
    """Return the ratio of the first of two rows to the second; their runs are in the order of the blocks."""
    times = np.column_stack([comparison["first_seconds"], comparison["second_seconds"]])
    return ratios(times, 0, [1])[0]


def summary(fixed: list[dict], looks: list[dict], real: list[dict]) -> str:
    """Return all as Markdown."""

    def percent(part):
        return DASH if part is None else f"{100 * part:.1f}"

    effects, judged = [f"{effect:.2f} found (%)" for effect in EFFECTS], [*map(judge_real, real)]
    claims = sum(speed_up.words in (FASTER, SLOWER) for speed_up in judged)
    shares = "any_false", "coverage", "best_kept"
    fixed_rows = [
        (row["noise"], row["blocks"], *(percent(row[name]) for name in shares), *map(percent, row["found"]))
        for row in fixed
    ]
    look_rows = []
    for row in looks:
        differ = "differ" if tuple(row["effects"]) == MIXED else "are equal"
        found = percent(row["any_false"]), *map(percent, row["found"])
        look_rows.append((row["noise"], differ, f"{row['blocks']:.1f}", f"{row['runs']:.1f}", *found))
    real_rows = [(number, speed_up, speed_up.words) for number, speed_up in enumerate(judged, start=1)]
    fixed_header = "Noise | Blocks | Any false claim (%) | Coverage (%) | Fastest not ruled out (%)"
    parts = [
        f"Simulated: {fixed[0]['comparisons']} comparisons of {ROWS} rows for each line, with {DRIFT:.0%} drift. "
        "A comparison with any false claim counts once; coverage counts intervals one by one.",
        as_table(" | ".join([fixed_header, *effects]), fixed_rows),
        "The same with a look after every block from the third on, which ends the comparison once all rows are "
        f"decided, at the latest after {MOST} blocks; a row that is decided is not run again. Rows that differ are "
        f"{', '.join(map('{:.2f}'.format, MIXED))} times as fast as the baseline.",
        as_table(
            " | ".join(["Noise | Rows | Mean blocks | Mean runs | Any false claim (%)", *effects]), look_rows, (0, 1)
        ),
        f"Real: the same training twice under two names; a difference was claimed in {claims} of {len(real)} "
        "comparisons.",
        as_table("Comparison | First ÷ second [95%] | Claim", real_rows, (2,)),
    ]
    return "\n\n".join(parts) + "\n"


def measured(runs: Runs) -> dict:
    """Return all simulated rows, and the real comparisons, or those that were measured; write the summary."""
    given = runs.arguments
    cases = {
        f"{name}, {what}": partial(simulated, name, given.simulated)
        for name in NOISE
        for what, simulated in (("fixed", fixed_rows), ("looks", looks_rows))
    }
    real = {f"real {number}": partial(real_comparison, number) for number in range(given.real)}
    found = runs.each(cases | real)
    fixed, looks = ([row for name in NOISE for row in found[f"{name}, {what}"]] for what in ("fixed", "looks"))
    compared = [found[key] for key in real if key in found]
    if not given.real:
        compared = json.loads(runs.output.read_text(encoding="utf-8"))["real"]
    write_text(summary(fixed, looks, compared), runs.output.with_name("summary.md"))
    return {"drift": DRIFT, "fixed": fixed, "looks": looks, "real": compared}


def table(results: dict) -> str:
    return summary(results["fixed"], results["looks"], results["real"])


def main() -> None:
    def more(parser):
        parser.add_argument(
            "--simulated", type=positive_int, default=2000, metavar="N", help="comparisons (%(default)s)"
        )
        help = "comparisons (%(default)s; 0 keeps those that were measured)"
        parser.add_argument("--real", type=non_negative_int, default=10, metavar="N", help=help)

    benchmark(arguments_of(__doc__, more=more, output="figures/false-alarms/results.json"), measured, table)


if __name__ == "__main__":
    run_script(main)
