"""What the benchmarks share: rivals measured in turn, in blocks of shuffled order, and the ratio of two of them."""

import argparse
import random
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.files.writing import write_json  # noqa: E402
from common.machine.environment import available_cores, describe_environment  # noqa: E402
from common.settings.arguments import OneLineParser, positive_int  # noqa: E402
from common.settings.config import RunConfig, script_parser  # noqa: E402
from comparison.judge.statistics import Ratio, ratios  # noqa: E402
from comparison.run.usage import busy_seconds, children_seconds  # noqa: E402


def arguments_of(description: str, blocks: int | None = None, more=lambda parser: None) -> argparse.Namespace:
    """Parse the flags that every benchmark has, and those that more(parser) adds.

    blocks: how often each rival is measured, unless --blocks says otherwise; None if there are no rivals.
    """
    parser = OneLineParser(description=description)
    if blocks:
        parser.add_argument("--blocks", type=positive_int, default=blocks, metavar="N", help="(%(default)s)")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--output", default=f"figures/benchmark/{Path(sys.argv[0]).stem}.json", metavar="FILE", help="(%(default)s)"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    more(parser)
    return parser.parse_args()


def config_of(**values) -> RunConfig:
    """Return the RunConfig of a training script without flags, with `values` in the place of its defaults."""
    defaults = vars(script_parser("").parse_args([]))
    return RunConfig(**{**defaults, "lr_milestones": (), "num_workers": 0, **values})


def interleave(rivals: dict[str, Callable[[], float]], blocks: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Call every rival once per block, in shuffled order, and return what each returned (seconds, mostly).

    warm_up: one more block before the first does not count. Whatever drifts with time hits all alike; compare by
    paired().
    """
    shuffle, values = random.Random(0), {name: [] for name in rivals}
    for block in range(-warm_up, blocks):
        for name in shuffle.sample(list(rivals), len(rivals)):
            value = rivals[name]()
            if block >= 0:
                values[name].append(value)
    return values


def paired(numerator: list[float], denominator: list[float]) -> Ratio:
    """Return the geometric mean of the blocks' ratios, with Student's 95 % interval on their logarithms."""
    return ratios(np.column_stack([numerator, denominator]), 0, [1])[0]


class Witness:
    """`with Witness() as witness: ...`: how many cores other programs kept busy meanwhile (None if not known)."""

    foreign_cores: float | None = None

    def __enter__(self):
        self._start, self._busy, self._own = time.perf_counter(), busy_seconds(), self._own_seconds()
        return self

    def __exit__(self, *_):
        if self._busy is not None:
            used = busy_seconds() - self._busy - (self._own_seconds() - self._own)
            self.foreign_cores = max(0.0, used / (time.perf_counter() - self._start))

    @staticmethod
    def _own_seconds():
        return time.process_time() + children_seconds()


def write(path: str, measured: dict, witness: Witness) -> None:
    """Write what was found beside the command and the machine, and warn if something else used the CPU."""
    cores = available_cores()
    if witness.foreign_cores is not None and witness.foreign_cores > 0.1 * cores:
        print(
            f"warning: other programs kept {witness.foreign_cores:.1f} of {cores} cores busy: run it again",
            file=sys.stderr,
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    write_json(
        {"command": command, "environment": describe_environment(), "foreign_cores": witness.foreign_cores, **measured},
        path,
    )
