"""How often does a comparison claim a difference between equal rows, and how often does it find a real one?

    python benchmarks/false_alarms.py --comparisons 2000

Simulates six rows in the order and with the statistics of a comparison, with a fixed number of blocks and with early
stopping. The noise is that of one run after another, which is worse than that of rows in turns. Writes all results to
--output, and summary.md next to it. twins.py compares real trainings.
"""

import math
from functools import partial

import numpy as np
from measure import as_table
from runs import Runs, benchmark, benchmark_parser

from common.files.writing import write_text
from common.machine.entry import run_script
from common.settings.arguments import positive_int
from comparison.judge.blocks import adjusted_means, ratios
from comparison.judge.statistics import (
    CONFIDENCE,
    EQUAL,
    EQUAL_WITHIN,
    FASTER,
    SLOWER,
    UNDECIDED,
    Ratio,
    any_reference,
    look_confidence,
)
from comparison.plan.plan import make_order
from comparison.show.tables import DASH

ROWS = 6  # the first is the baseline
DRIFT = 0.10  # relative growth of all times from the first run to the last
BLOCKS, MAX_BLOCKS = (2, 3, 5, 10), 10
FIRST_LOOK = 3
EFFECTS = (1.05, 1.10, 1.20)
MIXED = (1.05, 1.10, 1.20, 1.0, 1 / 1.10)  # the true speed-ups of rows that differ
TRAINING = "--dataset synthetic-mnist --train-size 2560 --epochs 3".split()


def unequal(*deviations):
    """Return normal noise with a standard deviation for each row."""
    return lambda random, rows: random.normal(0, np.array(deviations)[rows])


def autocorrelated(random, rows):
    """An AR(1) process of 15% with a correlation time of 8 runs, plus 3% of independent noise."""
    state, decay, states = random.normal(0, 0.15), math.exp(-1 / 8), []
    for _ in rows:
        state = decay * state + random.normal(0, 0.15 * math.sqrt(1 - decay**2))
        states.append(state)
    return np.array(states) + random.normal(0, 0.03, len(rows))


def slow_periods(random, rows):
    """Periods of about 8 runs that take twice as long, 24 runs apart on average, plus 3% of independent noise."""
    slow, states = random.random() < 0.25, []
    for _ in rows:
        slow = random.random() >= 1 / 8 if slow else random.random() < 1 / 24
        states.append(math.log(2) * slow)
    return np.array(states) + random.normal(0, 0.03, len(rows))


NOISE = {  # name → noise of the logarithms of the times, from a random generator and the row of each run
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
    """Return the seconds, shape (MAX_BLOCKS, ROWS), of a comparison of equally fast rows."""
    order = make_order(list(range(ROWS)), MAX_BLOCKS, seed)
    blocks, rows = np.array(order).T
    drift = np.log1p(DRIFT * np.arange(len(order)) / len(order))
    times = np.empty((MAX_BLOCKS, ROWS))
    times[blocks - 1, rows] = 10 * np.exp(drift + noise(np.random.default_rng(seed), rows))
    return times


def judge(times: np.ndarray, confidence: float = CONFIDENCE) -> list[Ratio]:
    """Return the speed-up of each row but the first."""
    return ratios(times, 0, list(range(1, ROWS)), confidence)


def verdict_if(speed_up: Ratio, effect: float) -> str:
    """Return the verdict on a row with a true speed-up of `effect` and the same noise: its interval only shifts."""
    return speed_up.times(effect).words


def is_false(verdict: str, effect: float) -> bool:
    """Return whether a verdict on a row with a true speed-up of `effect` is wrong."""
    if verdict == EQUAL:
        return not 1 / (1 + EQUAL_WITHIN) <= effect <= 1 + EQUAL_WITHIN
    if verdict == FASTER:
        return effect <= 1
    return verdict == SLOWER and effect >= 1


def any_slower(times: np.ndarray) -> bool:
    """Return whether any row is called slower than the fastest, which the times choose."""
    fastest, *others = map(int, np.argsort(adjusted_means(times)))
    found = ratios(times, fastest, others, any_reference(CONFIDENCE, ROWS))
    return any(ratio.words in (FASTER, SLOWER) for ratio in found)


def fixed_rows(name: str, comparisons: int) -> list[dict]:
    """Return the false claims, coverage and power for a kind of noise, for each number of blocks."""
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
                "any_slower": share(any_slower(times[:blocks]) for times in tables),
                "found": [share(verdict_if(speed_up, effect) == FASTER for speed_up in every) for effect in EFFECTS],
            }
        )
    return rows


def looks_rows(name: str, comparisons: int) -> list[dict]:
    """Return the same for comparisons that stop once every row is decided, at the latest after MAX_BLOCKS.

    A decided row is not run again, unless it is the baseline.
    """
    confidences, rows = {}, []
    for last in range(FIRST_LOOK, MAX_BLOCKS + 1):
        looks = tuple(range(FIRST_LOOK, last + 1))
        confidences[last] = look_confidence(looks, tuple(look / MAX_BLOCKS for look in looks), ROWS)
    tables = [simulate(NOISE[name], seed) for seed in range(comparisons)]
    for effects in ((1.0,) * (ROWS - 1), MIXED):
        blocks, runs, verdicts = zip(*(stop_early(times.copy(), confidences, effects) for times in tables), strict=True)
        found = [
            share(each[effects.index(effect)] == FASTER for each in verdicts) if effect in effects else None
            for effect in EFFECTS
        ]
        rows.append(
            {
                "noise": name,
                "effects": effects,
                "comparisons": comparisons,
                "blocks": sum(blocks) / comparisons,
                "runs": sum(runs) / comparisons,
                "any_false": share(any(map(is_false, each, effects)) for each in verdicts),
                "found": found,
            }
        )
    return rows


def stop_early(times: np.ndarray, confidences: dict[int, float], effects) -> tuple[int, int, list[str]]:
    """Return the number of blocks and runs of a comparison with early stopping, and the verdicts on its rows.

    times: of all possible runs; those that are skipped become nan.
    """
    for look, confidence in confidences.items():
        verdicts = [*map(verdict_if, judge(times[:look], confidence), effects)]
        decided = [column for column, verdict in enumerate(verdicts, start=1) if verdict != UNDECIDED]
        times[look:, decided] = np.nan
        if len(decided) == len(effects):
            break
    return look, int(np.isfinite(times[:look]).sum()), verdicts


def share(answers) -> float:
    """Return the share of true answers."""
    return float(np.mean(list(answers)))


def summary(fixed: list[dict], looks: list[dict]) -> str:
    """Return all tables as Markdown."""

    def percent(part):
        return DASH if part is None else f"{100 * part:.1f}"

    effects = [f"{effect:.2f} found (%)" for effect in EFFECTS]
    shares = "any_false", "coverage", "any_slower"
    fixed_rows = [
        (row["noise"], row["blocks"], *(percent(row[name]) for name in shares), *map(percent, row["found"]))
        for row in fixed
    ]
    look_rows = []
    for row in looks:
        differ = "differ" if tuple(row["effects"]) == MIXED else "are equal"
        found = percent(row["any_false"]), *map(percent, row["found"])
        look_rows.append((row["noise"], differ, f"{row['blocks']:.1f}", f"{row['runs']:.1f}", *found))
    fixed_header = "Noise | Blocks | Any false claim (%) | Coverage (%) | Any slower than the fastest (%)"
    parts = [
        f"Simulated: {fixed[0]['comparisons']} comparisons of {ROWS} rows for each line, with {DRIFT:.0%} drift. "
        "A comparison with any false claim counts once; coverage counts intervals one by one.",
        as_table(" | ".join([fixed_header, *effects]), fixed_rows),
        "The same with a look after every block from the third on, which ends the comparison once all rows are "
        f"decided, at the latest after {MAX_BLOCKS} blocks; a row that is decided is not run again. Rows that differ "
        f"are {', '.join(map('{:.2f}'.format, MIXED))} times as fast as the baseline.",
        as_table(
            " | ".join(["Noise | Rows | Mean blocks | Mean runs | Any false claim (%)", *effects]), look_rows, (0, 1)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def measured(runs: Runs) -> dict:
    """Return the results of the simulated comparisons, and write summary.md."""
    cases = {
        f"{name}, {what}": partial(simulated, name, runs.arguments.comparisons)
        for name in NOISE
        for what, simulated in (("fixed", fixed_rows), ("looks", looks_rows))
    }
    found = runs.each(cases)
    fixed, looks = ([row for name in NOISE for row in found[f"{name}, {what}"]] for what in ("fixed", "looks"))
    write_text(summary(fixed, looks), runs.output.with_name("summary.md"))
    return {"drift": DRIFT, "fixed": fixed, "looks": looks}


def table(results: dict) -> str:
    return summary(results["fixed"], results["looks"])


def main() -> None:
    parser = benchmark_parser(__doc__, output="figures/false-alarms/results.json")
    parser.add_argument("--comparisons", type=positive_int, default=2000, metavar="N", help="(%(default)s)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
