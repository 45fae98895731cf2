"""How long do the README's recipes take here?

    python benchmarks/recipes.py
    python benchmarks/recipes.py --only fit-batch --output figures/benchmark/recipes-fit-batch.json

Runs every row of the README's table of questions that has a time, as it stands there, and writes the seconds into
figures/benchmark/recipes.json; the README rounds them up to minutes.
"""

import math
import re
import shlex
import subprocess
import sys
import tempfile
import time

from measure import PROJECT, Witness, arguments_of, write

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script

README = PROJECT / "README.md"
ROW = re.compile(r"^\| [^|]+ \| `(--[^`]+)`[^|]* \| (\d+) min \|$", re.MULTILINE)


def recipes(readme: str) -> dict[str, int]:
    """Return the flags of compare_parallel.py of every recipe with a time, and that time in minutes."""
    return {flags: int(minutes) for flags, minutes in ROW.findall(readme)}


def minutes(seconds: float) -> int:
    """Return how the README shows a recipe's seconds."""
    return math.ceil(seconds / 60)


def main() -> None:
    arguments = arguments_of(
        __doc__,
        more=lambda parser: parser.add_argument(
            "--only", default="", metavar="WORD", help="run the recipes in which it stands (all)"
        ),
    )
    seconds = {}
    with Witness() as witness:
        for flags in filter(lambda flags: arguments.only in flags, recipes(README.read_text(encoding="utf-8"))):
            command = [sys.executable, "compare_parallel.py", *shlex.split(flags), "--data-root", arguments.data_root]
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as place:
                done = subprocess.run([*command, "--output-dir", place], cwd=PROJECT, capture_output=True, text=True)
            if done.returncode:
                raise SuiteError(f"a recipe failed: {flags}", done.stderr.strip(), "try it alone", FAILED)
            seconds[flags] = time.perf_counter() - start
            print(f"{seconds[flags]:6.0f} s, {minutes(seconds[flags])} min: {flags}", flush=True)
    write(arguments.output, {"seconds": seconds}, witness)


if __name__ == "__main__":
    run_script(main)
