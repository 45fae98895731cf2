"""How far from the best of all combinations of options is what a comparison's tips find?

    python benchmarks/tips.py --network lenet --output figures/benchmark/tips-lenet.json

The first call writes what tips of one process with all cores pick in a minute, as after a comparison; the second one
launches every combination of the same options once in each of --blocks, in turns.
"""

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from measure import Witness, arguments_of, write

import compare_parallel
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.judge.analysis import best_tip, find_tips
from comparison.plan.tips import options_for, that_go_together, with_options
from comparison.run.session import run_comparison
from comparison.run.tips import LONGEST, Clock, run_block, try_options

MADE = ("command", "environment", "foreign_cores")  # by write()
DATA = {"lenet": "mnist", "vgg": "cifar10"}


def measured(network: str, data_root: str, place: Path):
    """Return a comparison of one row, after a run of it."""
    typed = f"--dataset {DATA[network]} --model {network} --loader resident --epochs 2 --max-steps 20 --no-augment"
    rows = "--methods single-all-cores --baseline single-all-cores --threads-per-device 1 --repeats 1"
    sys.argv = ["compare_parallel.py", *typed.split(), *rows.split(), "--data-root", data_root]
    report, shared_flags = compare_parallel.plan_comparison(*compare_parallel.parse(), place)
    return run_comparison(report, shared_flags, compare_parallel.output_to(place))


def exhaustive(report, blocks: int, place: Path) -> dict[str, float]:
    """Return how many times as fast as the plain row each combination of options is."""
    names = options_for(report.plan[0], report)
    sets = [some for size in range(1, len(names) + 1) for some in combinations(names, size)]
    able = [some for some in sets if that_go_together(list(some)) == some]
    plain, cores = report.plan[0], report.environment["cores"]
    tried = replace(report, plan=(plain,), outcomes=(), order=())
    with temporary_directory() as compiled:
        for _ in range(blocks):
            rows = [plain, *(with_options(plain, some, cores) for some in able)]
            tried = run_block(tried, rows, place, Clock(3600.0), compiled)
    return {" + ".join(tip.options): tip.speed for tip in find_tips(tried)}


def main() -> None:
    def more(parser):
        parser.add_argument("--network", choices=sorted(DATA), default="lenet", help="(%(default)s)")

    arguments = arguments_of(__doc__, 2, more)
    typed, file = [*sys.argv], Path(arguments.output)
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    with ExitStack() as stack:
        witness, place = stack.enter_context(Witness()), Path(stack.enter_context(temporary_directory()))
        report = measured(arguments.network, arguments.data_root, place)
        if "picked" not in found:
            tried = try_options(report, report.rows[0], place, LONGEST)
            best = best_tip(find_tips(tried))
            found = {"picked": " + ".join(best.options if best else ())}
        else:
            speeds = {"": 1.0, **exhaustive(report, arguments.blocks, place)}
            most = max(speeds, key=lambda name: speeds[name])
            found |= {"best": most, "picked_of_best": speeds[found["picked"]] / speeds[most], "times_as_fast": speeds}
    sys.argv = typed
    write(file, {name: found[name] for name in found if name not in MADE}, witness)
    print(found["picked"], found.get("best", ""), found.get("picked_of_best", ""))


if __name__ == "__main__":
    run_script(main)
