"""Does --script find slowdowns planted in other people's training scripts, and no difference between equal rows?

    python benchmarks/own_scripts.py "mnist=python main.py" "gpt=python train.py --device=cpu" --seeds 1 2

Run it in the directory of the scripts. For each command and seed, it compares the script, the same again, the same with
an update or a loader that takes 5% of a step longer, and for several ranks the same with one rank whose update takes
10% longer, as with --margin 3 and --budget 10m. The delays are planted before the script's first line; their length
comes from a run before. Writes the verdict on each row to --output, and keeps the results of other scripts and budgets
there. Comparisons disturbed by another program are left out.
"""

import json
import shlex
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import SETTINGS, as_table, quiet_comparison
from runs import Runs, benchmark, benchmark_parser

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import describe_environment
from common.machine.lifetime import temporary_directory
from common.settings.arguments import positive_float
from common.settings.config import RunConfig
from comparison.judge.statistics import FASTER, SLOWER
from comparison.judge.steps import step_time
from comparison.methods import Machine
from comparison.plan.flags import SLICE
from comparison.plan.plan import make_order
from comparison.plan.scripts import parse_script, script_rows
from comparison.record import FIRST_STAGE, Report
from comparison.rows import Configuration
from comparison.run.scripts import ScriptRun, Slices
from comparison.run.turns import run_whole

MARGIN = 0.03  # --margin 3
SHARES = {"update": 0.05, "data": 0.05, "straggler": 0.10}
PLANTED = {
    "update": "from torch.optim.optimizer import register_optimizer_step_pre_hook as hook\nhook(lambda *_: sleep(S))",
    "data": "from torch.utils.data._utils.fetch import _MapDatasetFetcher as F\nfetch = F.fetch\n"
    "F.fetch = lambda self, places: (sleep(S), fetch(self, places))[1]",
}
PLANTED["straggler"] = f"import os\nif os.environ.get('RANK') == '1':\n    exec({PLANTED['update']!r})"
RUN = "import runpy, sys\nfrom time import sleep\n{plant}\ndel sys.argv[0]\nsys.path[0] = ''\n"
RUN += "runpy.run_path(sys.argv[0], run_name='__main__')"


@dataclass(frozen=True)
class Comparison:
    """The outcome of one comparison.

    budget: in seconds. blocks: that ran. step: milliseconds of the plain script. planted, found: true and measured
    milliseconds of each planted row. told_apart: whether the equal row was called faster or slower. slower: planted
    rows proved to be slower. causes: the first cause named for each planted row.
    """

    script: str
    command: str
    seed: int
    budget: float
    blocks: int
    cpu: str
    step: float
    planted: dict[str, float]
    told_apart: bool
    slower: list[str]
    causes: dict[str, str]
    found: dict[str, float]


def planted_row(row: Configuration, kind: str, seconds: float, directory: Path) -> Configuration:
    """Return a row that runs a file with the plant first, which then runs the script."""
    file = directory / f"{kind}.py"
    file.write_text(RUN.format(plant=PLANTED[kind].replace("sleep(S)", f"sleep({seconds})")), encoding="utf-8")
    position = next(n for n, word in enumerate(row.command) if word.endswith(".py"))
    command = (*row.command[:position], str(file), *row.command[position:])
    return replace(row, name=f"{row.name}-{kind}", label=f"slow {kind}", command=command)


def compare(text: str, seed: int, budget: float) -> Comparison | None:
    """Run one comparison. budget: in seconds. None if another program disturbed it."""
    with temporary_directory() as directory:
        return _compare(text, seed, budget, Path(directory))


def _compare(text, seed, budget, directory):
    (plain,), environment = script_rows([parse_script(text)], Machine(gpus=0, cores=2)), describe_environment()
    settings = {**SETTINGS, "epochs": 1, "warmup": RunConfig.warmup, "steps": SLICE, "seed": 1000 * seed}
    settings |= {"margin": MARGIN, "budget": budget}
    outcome = run_whole(ScriptRun(plain, 1, directory, None, Slices(RunConfig.warmup, SLICE), environment))
    if outcome.result is None:
        raise SuiteError(f"{plain.label} cannot be measured", outcome.reason, "run it by itself", FAILED)
    alone, step = outcome.result, step_time(outcome.result)
    possible = {"update": True, "data": step.parts.get("data"), "straggler": alone.world_size > 1}
    kinds = [kind for kind in PLANTED if possible[kind]]
    rows = [plain, replace(plain, name=f"{plain.name}-again", label="again")]
    rows += [planted_row(plain, kind, SHARES[kind] * step.whole / 1000, directory) for kind in kinds]
    order = tuple(make_order([row.name for row in rows], FIRST_STAGE, seed))
    report = Report("", settings, environment, None, tuple(rows), order, in_turns=True)
    if not (analysis := quiet_comparison(report, directory)):
        return None
    _, again, *slow = analysis.rows
    slower, causes, found = [], {}, {}
    for kind, entry in zip(kinds, slow, strict=True):
        if entry.standing.speed_up.words == SLOWER:
            slower.append(kind)
        causes[kind] = next((cause.kind for cause in entry.causes if cause.of), "")
        for part in entry.accounts.steps.parts:
            if part.name == kind:
                found[kind] = part.value
    return Comparison(
        plain.label,
        shlex.join(plain.command),
        seed,
        budget,
        len(analysis.report.whole_blocks),
        environment["cpu"],
        step.whole,
        {kind: SHARES[kind] * step.whole for kind in kinds},
        again.standing.speed_up.words in (FASTER, SLOWER),
        slower,
        causes,
        found,
    )


def scores(comparisons: list[Comparison]) -> dict:
    planted = [(entry, kind) for entry in comparisons for kind in entry.causes]
    return {
        "comparisons": len(comparisons),
        "told_apart": sum(entry.told_apart for entry in comparisons),
        "planted": len(planted),
        "slower": sum(kind in entry.slower for entry, kind in planted),
        "named": sum(entry.causes[kind] == kind for entry, kind in planted),
        "named_wrongly": sum(entry.causes[kind] not in (kind, "") for entry, kind in planted),
    }


def table(results: dict) -> str:
    groups, rows = defaultdict(list), []
    for entry in (Comparison(**values) for values in results["comparisons"]):
        groups[entry.script, entry.cpu, entry.budget].append(entry)
    for (script, cpu, budget), own in groups.items():
        found, step = scores(own), statistics.mean(entry.step for entry in own)
        planted = (f"{found[name]} of {found['planted']}" for name in ("slower", "named"))
        told_apart = f"{found['told_apart']} of {len(own)}"
        rows.append((script, cpu, f"{step:.1f}", f"{budget / 60:g}", told_apart, *planted))
    return as_table(
        "Script | CPU | Step (ms) | Budget (min) | Equal rows told apart | Planted: slower | named first", rows
    )


def measured(runs: Runs) -> dict:
    """Return the results of these scripts, and those of other scripts and budgets in --output."""
    given, cases = runs.arguments, {}
    for seed in given.seeds:
        cases |= {f"{text}, seed {seed}": partial(compare, text, seed, 60 * given.budget) for text in given.scripts}
    found = list(runs.each(cases).values())
    if runs.output.exists():
        earlier = json.loads(runs.output.read_text(encoding="utf-8"))
        now = {(entry["script"], entry["budget"]) for entry in found}
        found = [entry for entry in earlier["comparisons"] if (entry["script"], entry["budget"]) not in now] + found
    return {"comparisons": found, "scores": scores([Comparison(**values) for values in found])}


def main() -> None:
    parser = benchmark_parser(__doc__, timeout=1800)
    parser.add_argument("scripts", type=parse_script, nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--budget", type=positive_float, default=10.0, metavar="MINUTES", help="(10)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(1 2)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
