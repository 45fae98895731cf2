"""Does --script find what is planted in training scripts that nobody here wrote, and nothing where nothing is?

    python benchmarks/own_scripts.py "mnist=python main.py" "gpt=python train.py --device=cpu" --seeds 1 2 --blocks 6

For each command, typed where its files are, and each seed, one comparison: the script, the same again, the same with an
update that takes longer by 5% of a step, with a loader that does, and, of several ranks, with a rank whose update
takes 10% longer. Each is planted in the script's process, before its first line; how long a step takes without it, one
run beforehand tells. `--output` gets what was said of each row, and keeps what it has of other scripts, as not all may
be typed in one place; what another program disturbed is left out.
"""

import contextlib
import itertools
import json
import os
import shlex
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from measure import SETTINGS, as_table
from runs import Runs, arguments_of, benchmark

from common.errors import FAILED, SuiteError
from common.machine.entry import run_script
from common.machine.environment import describe_environment
from common.machine.lifetime import temporary_directory
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.judge.statistics import FASTER, SLOWER
from comparison.judge.steps import step_time
from comparison.methods import Machine
from comparison.plan.flags import SLICE, WARM_UP
from comparison.plan.plan import make_order
from comparison.plan.scripts import parse_script, script_rows
from comparison.record import Report
from comparison.rows import Configuration
from comparison.run.scripts import ScriptRun, slices_of
from comparison.run.session import run_comparison
from comparison.run.turns import run_whole

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
    """What one comparison of so many blocks said. command: the script's; step: its own, in milliseconds; planted: in
    each other row.

    told_apart: whether the same again was called faster or slower. slower: which planted rows were proved to be slower;
    causes: what was named first in each; found: how long it is, in milliseconds.
    """

    script: str
    command: str
    seed: int
    blocks: int
    cpu: str
    step: float
    planted: dict[str, float]
    told_apart: bool
    slower: tuple[str, ...]
    causes: dict[str, str]
    found: dict[str, float]


def planted_row(row: Configuration, kind: str, seconds: float, directory: Path) -> Configuration:
    """Return a row whose script has something planted before its first line, by a file in front of it."""
    file = directory / f"{kind}.py"
    file.write_text(RUN.format(plant=PLANTED[kind].replace("sleep(S)", f"sleep({seconds})")), encoding="utf-8")
    place = next(n for n, word in enumerate(row.command) if word.endswith(".py"))
    command = (*row.command[:place], str(file), *row.command[place:])
    return replace(row, name=f"{row.name}-{kind}", label=f"slow {kind}", command=command)


def compare(text: str, seed: int, blocks: int) -> Comparison | None:
    """Run one comparison, and return what it says; None if another program disturbed it."""
    with temporary_directory() as directory:
        return _compare(text, seed, blocks, Path(directory))


def _compare(text, seed, blocks, directory):
    (plain,), environment = script_rows([parse_script(text)], Machine(gpus=0, cores=2)), describe_environment()
    settings = {**SETTINGS, "epochs": 1, "warmup": WARM_UP, "steps": SLICE, "repeats": blocks, "seed": 1000 * seed}
    outcome = run_whole(ScriptRun(plain, 1, directory, None, slices_of(settings), environment))
    if outcome.result is None:
        raise SuiteError(f"{plain.label} cannot be measured", outcome.reason, "run it by itself", FAILED)
    alone, step = outcome.result, step_time(outcome.result)
    able = {"update": True, "data": step.parts.get("data"), "straggler": alone.world_size > 1}
    kinds = [kind for kind in PLANTED if able[kind]]  # what is no DataLoader has no loader that could be slow
    rows = [plain, replace(plain, name=f"{plain.name}-again", label="again")]
    rows += [planted_row(plain, kind, SHARES[kind] * step.whole / 1000, directory) for kind in kinds]
    order = tuple(make_order([row.name for row in rows], blocks, seed))
    report = Report("", settings, environment, None, tuple(rows), order, in_turns=True)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        analysis = analyse(run_comparison(report, [], output_to(directory)))
    if any(row.disturbed for row in analysis.report.all_rows):
        return None
    _, again, *slow = analysis.rows
    claims = {kind: entry.standing.speed_up for kind, entry in zip(kinds, slow, strict=True)}
    parts = {
        kind: {part.name: part for part in entry.accounts.steps.parts} for kind, entry in zip(kinds, slow, strict=True)
    }
    causes = {
        kind: next((cause.kind for cause in e.causes if cause.of), "") for kind, e in zip(kinds, slow, strict=True)
    }
    return Comparison(
        plain.label,
        shlex.join(plain.command),
        seed,
        blocks,
        environment["cpu"],
        step.whole,
        {kind: SHARES[kind] * step.whole for kind in kinds},
        again.standing.speed_up.words in (FASTER, SLOWER),
        tuple(kind for kind, claim in claims.items() if claim.words == SLOWER),
        causes,
        {kind: parts[kind][kind].value for kind in kinds if kind in parts[kind]},
    )


def scores(comparisons: list[Comparison]) -> dict:
    """Return how many of the equal rows were told apart, of the planted rows proved slower, and rightly explained."""
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
    rows = []
    for name, cpu in dict.fromkeys((entry["script"], entry["cpu"]) for entry in results["comparisons"]):
        own = [entry for entry in results["comparisons"] if (entry["script"], entry["cpu"]) == (name, cpu)]
        planted = [(entry, kind) for entry in own for kind in entry["causes"]]
        slower, named = (
            f"{sum(values)} of {len(planted)}"
            for values in (
                [kind in entry["slower"] for entry, kind in planted],
                [entry["causes"][kind] == kind for entry, kind in planted],
            )
        )
        step = f"{sum(entry['step'] for entry in own) / len(own):.1f}"
        rows.append((name, cpu, step, f"{sum(entry['told_apart'] for entry in own)} of {len(own)}", slower, named))
    return as_table("Script | CPU | Step (ms) | Equal rows told apart | Planted: slower | named first", rows)


def measured(runs: Runs) -> dict:
    """Return what was said of these scripts, and what --output has of others."""
    given, cases = runs.arguments, {}
    for seed in given.seeds:
        for text, blocks in zip(given.scripts, itertools.cycle(given.blocks_of_each)):
            cases[f"{text}, seed {seed}"] = partial(compare, text, seed, blocks)
    found = list(runs.each(cases).values())
    if runs.output.exists():
        kept = json.loads(runs.output.read_text(encoding="utf-8"))["comparisons"]
        found = [
            entry for entry in kept if entry["script"] not in {text.partition("=")[0] for text in given.scripts}
        ] + found
    comparisons = [Comparison(**{**entry, "slower": tuple(entry["slower"])}) for entry in found]
    return {"comparisons": list(map(asdict, comparisons)), "scores": scores(comparisons)}


def main() -> None:
    def more(parser):
        parser.add_argument("scripts", type=parse_script, nargs="+", metavar="NAME=COMMAND")
        parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(1 2)")

        what = "runs of each row, in one comparison of all scripts or of each (6)"
        kept = {"dest": "blocks_of_each", "type": int, "nargs": "+", "default": [6], "metavar": "N"}
        parser.add_argument("--blocks", **kept, help=what)

    benchmark(arguments_of(__doc__, more=more, timeout=1800), measured, table)


if __name__ == "__main__":
    run_script(main)
