"""How long do the recipes of docs/comparison.md take on this machine?

    python benchmarks/recipes.py
    python benchmarks/recipes.py --only fit-batch --output figures/benchmark/recipes-fit-batch.json

Runs every command in its table of questions that has a time, and writes the seconds to figures/benchmark/recipes.json.
The page rounds them up to minutes.
"""

import math
import re
import shlex
import time
from functools import partial

from measure import PROJECT, as_table, call
from runs import Runs, benchmark, benchmark_parser

from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory

PAGE = PROJECT / "docs" / "comparison.md"
ROW = re.compile(r"^\| [^|]+ \| `(--[^`]+)`[^|]* \| (\d+) min \|$", re.MULTILINE)


def recipes(page: str) -> dict[str, int]:
    """Return flags → minutes of every recipe with a time."""
    return {flags: int(minutes) for flags, minutes in ROW.findall(page)}


def minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)


def seconds_of(flags: str, data_root: str) -> float:
    start = time.perf_counter()
    with temporary_directory() as place:
        call("compare_parallel.py", *shlex.split(flags), "--data-root", data_root, "--output-dir", place)
    return time.perf_counter() - start


def measured(runs: Runs) -> dict:
    wanted = [flags for flags in recipes(PAGE.read_text(encoding="utf-8")) if runs.arguments.only in flags]
    return {"seconds": runs.each({flags: partial(seconds_of, flags, runs.arguments.data_root) for flags in wanted})}


def table(results: dict) -> str:
    return as_table("Recipe | Minutes", [(f"`{flags}`", minutes(value)) for flags, value in results["seconds"].items()])


def main() -> None:
    parser = benchmark_parser(__doc__, timeout=900)
    parser.add_argument("--only", default="", metavar="WORD", help="run the recipes in which it stands (all)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
