"""How far from the best of all combinations of options is what a comparison's tips find?

    python benchmarks/tips.py

Tips of one process with all cores, for a minute, as after a comparison; then every combination of the same options,
each launched once in each of --blocks, in turns.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean

from measure import as_table
from runs import Runs, arguments_of, benchmark

import compare_parallel
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from comparison.judge.analysis import best_tip, find_tips
from comparison.plan.tips import options_for, that_go_together, with_options
from comparison.run.session import run_comparison
from comparison.run.tips import LONGEST, Clock, run_block, try_options

DATA = {"lenet": "mnist", "vgg": "cifar10"}


def measured(work: Callable, network: str, data_root: str):
    """Return work(comparison, directory) of a comparison of one row that has run."""
    typed = f"--dataset {DATA[network]} --model {network} --loader resident --epochs 2 --max-steps 20 --no-augment"
    rows = "--methods single-all-cores --baseline single-all-cores --threads-per-device 1 --repeats 1"
    before, sys.argv = sys.argv, ["compare_parallel.py", *typed.split(), *rows.split(), "--data-root", data_root]
    with temporary_directory() as place:
        report, shared_flags = compare_parallel.plan_comparison(*compare_parallel.parse(), Path(place))
        sys.argv = before
        return work(run_comparison(report, shared_flags, compare_parallel.output_to(Path(place))), Path(place))


def picked(report, place: Path) -> str:
    tried = try_options(report, report.rows[0], place / "tips", LONGEST)
    best = best_tip(find_tips(tried)) if tried else None
    return " + ".join(best.options) if best else "none"


def combined(report, place: Path) -> dict[str, float]:
    """Return how many times as fast as the plain row each combination of options is, in a launch of each."""
    plain, names, cores = report.plan[0], options_for(report.plan[0], report), report.environment["cores"]
    sets = [some for size in range(1, len(names) + 1) for some in combinations(names, size)]
    rows = [with_options(plain, some, cores) for some in sets if that_go_together(list(some)) == some]
    tried = replace(report, plan=(plain,), outcomes=(), order=())
    tried = run_block(tried, [plain, *rows], place / "all", Clock(1e4), str(place))
    return {"none": 1.0, **{" + ".join(tip.options): tip.speed for tip in find_tips(tried) if tip.ratio}}


def measure(runs: Runs) -> dict:
    root, works = runs.arguments.data_root, {"tips": picked}
    works |= dict.fromkeys(map(str, range(runs.arguments.blocks)), combined)
    cases = {(net, key): partial(measured, work, net, root) for net in DATA for key, work in works.items()}
    found = runs.each({", ".join(case): work for case, work in cases.items()})
    blocks = {net: [found[f"{net}, {block}"] for block in works if block != "tips"] for net in DATA}
    means = {
        net: {name: geometric_mean(one[name] for one in own) for name in own[0] if all(name in one for one in own)}
        for net, own in blocks.items()
    }
    return {"picked": {net: found[f"{net}, tips"] for net in DATA}, "times_as_fast": means}


def table(results: dict) -> str:
    rows = []
    for network, speeds in results["times_as_fast"].items():
        pick, best = results["picked"][network], max(speeds, key=speeds.get)
        rows.append((network, pick, f"{speeds[pick]:.2f}", best, f"{speeds[best]:.2f}"))
    return as_table("Network | Tips pick | Times as fast | Best of all | Times as fast", rows, left=(0, 1, 3))


if __name__ == "__main__":
    run_script(lambda: benchmark(arguments_of(__doc__, 2, timeout=400), measure, table))
