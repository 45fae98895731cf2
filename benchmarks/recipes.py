"""How long do the recipes of docs/comparison.md take here?

    python benchmarks/recipes.py
    python benchmarks/recipes.py --only fit-batch --output figures/benchmark/recipes-fit-batch.json

Runs every row of its table of questions that has a time, as it stands there, and writes the seconds into
figures/benchmark/recipes.json; the page rounds them up to minutes.
"""

import math
import re
import shlex
import tempfile
import time

from measure import PROJECT, Witness, arguments_of, call, write

from common.machine.entry import run_script

PAGE = PROJECT / "docs" / "comparison.md"
ROW = re.compile(r"^\| [^|]+ \| `(--[^`]+)`[^|]* \| (\d+) min \|$", re.MULTILINE)


def recipes(page: str) -> dict[str, int]:
    """Return the flags of compare_parallel.py of every recipe with a time, and that time in minutes."""
    return {flags: int(minutes) for flags, minutes in ROW.findall(page)}


def minutes(seconds: float) -> int:
    """Return how the page shows a recipe's seconds."""
    return math.ceil(seconds / 60)


def main() -> None:
    def more(parser):
        parser.add_argument("--only", default="", metavar="WORD", help="run the recipes in which it stands (all)")

    arguments, seconds = arguments_of(__doc__, more=more), {}
    with Witness() as witness:
        for flags in filter(lambda flags: arguments.only in flags, recipes(PAGE.read_text(encoding="utf-8"))):
            command, start = ["compare_parallel.py", *shlex.split(flags)], time.perf_counter()
            with tempfile.TemporaryDirectory() as place:
                call(*command, "--data-root", arguments.data_root, "--output-dir", place)
            seconds[flags] = time.perf_counter() - start
            print(f"{seconds[flags]:6.0f} s, {minutes(seconds[flags])} min: {flags}", flush=True)
    write(arguments.output, {"seconds": seconds}, witness)


if __name__ == "__main__":
    run_script(main)
