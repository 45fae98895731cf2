"""Does the comparison name the cause where there is one, with the right number, and none where there is none?

    python benchmarks/planted_causes.py
    python benchmarks/planted_causes.py --plants "slow loader" straggler --seeds 1

For each plant, two rows that are equal but for what is planted in one of them (benchmarks/plants) run in blocks, and
are judged as every comparison is. `--output` gets what was named, beside what was planted, for each plant and seed:
those that are in it already are kept and not run again, and what another program disturbed is left out. The figure
beside it has a line for each plant.
"""

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from measure import PLANNED, PROJECT, SETTINGS, Witness, arguments_of, as_table, write

from common.errors import FAILED, SuiteError
from common.files.plots import new_figure, save_figure
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from common.settings.arguments import one_of
from comparison.judge.analysis import analyse
from comparison.judge.measures import run_seconds
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess
from comparison.methods import Machine
from comparison.plan.plan import make_order, make_plan
from comparison.record import Report
from comparison.rows import Configuration, Outcome
from comparison.run.turns import run_once

TRAINING = "--dataset synthetic-mnist --train-size 6400".split()
EPOCH_STEPS, EPOCHS, LONGER = 50, 5, 10
BLOCKS = 5
PLANTED = f"PYTHONPATH={PROJECT / 'benchmarks' / 'plants'}"
WITHIN = 0.05  # of what was planted
SLOWER_STEP = 0.00004  # seconds by which a step of "growing slowness" is slower than the one before
ANY_PHASE = ("data", "transfer", "forward", "backward", "exchange", "update", "outside")
ANY_STAGE = ("start-up", "warm-up", "evaluation")


@dataclass(frozen=True)
class Plant:
    """What is planted in one of two equal rows.

    method: of both rows. causes: all that may rightly be named then; the first must be. size: what is planted, as the
    first cause counts it (milliseconds per step, seconds per run, or a share); None where it is not known beforehand.
    variables, prefix: what comes before the row's command. settings: of both rows; workers: of the planted one alone.
    burner: another program computes while the row runs. epochs: of a run, the first of which is
    not timed.
    """

    method: str = "single"
    causes: tuple[str, ...] = ()
    size: float | None = None
    variables: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    settings: tuple[tuple[str, object], ...] = ()
    workers: int | None = None
    burner: bool = False
    epochs: int = EPOCHS

    @property
    def rows(self) -> list[Configuration]:
        """The two rows' configurations, the plain one first."""
        given = {**PLANNED, "loader": "resident", "methods": [(self.method, {})], **dict(self.settings)}
        flags = [*TRAINING, "--epochs", str(self.epochs), "--loader", given["loader"]]
        (plain,) = make_plan(argparse.Namespace(**given), Machine(gpus=0, cores=2), flags)
        command = list(plain.command)
        if self.workers is not None:
            command[command.index("--num-workers") + 1] = str(self.workers)
        planted = ("env", *self.variables, *self.prefix, *command)
        return [plain, replace(plain, name="planted", label="planted", command=planted)]


def slowed(name: str, seconds: float, *causes: str, size: float | None = None, **others) -> Plant:
    """Return a plant of benchmarks/plants that takes so many seconds each time; by default it does so in every step."""
    return Plant(
        causes=causes,
        size=1000 * seconds if size is None else size,
        variables=(PLANTED, f"PLANT={name}", f"SECONDS={seconds}"),
        **others,
    )


PLANTS = {
    "nothing": Plant(),
    "nothing, two ranks": Plant("ddp"),
    "slow loader": slowed("slow-loader", 0.004, "data"),
    "slow transfer": slowed("slow-transfer", 0.004, "transfer"),
    "slow update": slowed("slow-update", 0.004, "update"),
    "slow all-reduce": slowed("slow-all-reduce", 0.008, "exchange", method="ddp"),
    "straggler": slowed("straggler", 0.006, "straggler", "forward", method="ddp"),
    "pauses out of step": slowed("out-of-step", 0.012, "late ranks", "forward", size=6.0, method="ddp"),
    "ranks on one core": Plant("ddp", ("shared cores", *ANY_PHASE, *ANY_STAGE), prefix=("taskset", "--cpu-list", "0")),
    "too few threads": Plant(
        causes=("idle threads", *ANY_PHASE, *ANY_STAGE),
        size=1.0,
        variables=(PLANTED, "PLANT=few-threads"),
        settings=(("threads_per_device", 2),),
    ),
    "too many workers": Plant(
        causes=("too many workers", *ANY_PHASE, *ANY_STAGE),
        workers=8,
        settings=(("loader", "workers"), ("num_workers", [1]), ("threads_per_device", 2)),
        variables=(PLANTED, "PLANT=rude-workers"),
    ),
    "foreign load": Plant(causes=("disturbed",), burner=True),
    "slow start": slowed("slow-start", 2.0, "start-up", size=2.0),
    "slow evaluation": slowed("slow-evaluation", 0.05, "evaluation", size=1.0),
    "growing slowness": slowed(
        "growing", SLOWER_STEP, "growing", "update", epochs=LONGER, size=SLOWER_STEP * EPOCH_STEPS**2 * (LONGER - 2)
    ),
}


@dataclass(frozen=True)
class Trial:
    """The outcome of one plant with one seed.

    planted: the size of what was planted, found: the same as it was measured, with its interval low to high; None where
    there is no such number. named: the causes that the comparison names, in its order.
    """

    plant: str
    seed: int
    named: tuple[str, ...]
    planted: float | None
    found: float | None
    low: float | None
    high: float | None

    @property
    def right(self) -> bool:
        """Whether the cause that was planted is named, or none where none was."""
        causes = PLANTS[self.plant].causes
        return causes[0] in self.named if causes else not self.named

    @property
    def wrong(self) -> list[str]:
        """The causes that are named and were not planted, nor follow from what was."""
        return [name for name in self.named if name not in PLANTS[self.plant].causes]


def try_plant(name: str, seed: int) -> Trial | None:
    """Run both rows of a plant, BLOCKS times each, in shuffled order, and judge them.

    None if another program than a planted one disturbed them.
    """
    plant = PLANTS[name]
    rows = {row.name: row for row in plant.rows}
    order = make_order(list(rows), BLOCKS, seed)
    with temporary_directory() as directory:
        outcomes = tuple(
            run_planted(plant, rows[row], block, 100 * seed + block, Path(directory)) for block, row in order
        )
    own = {"allow_unequal": True, "epochs": plant.epochs, "baseline": plant.method, "repeats": BLOCKS, "seed": seed}
    settings = {**SETTINGS, **own}
    report = Report("", settings, outcomes[0].result.environment, None, tuple(rows.values()), tuple(order), outcomes)
    plain, entry = analyse(report).rows
    if plain.row.disturbed or (entry.row.disturbed and not plant.burner):
        return None
    named = tuple(cause.kind for cause in entry.causes if cause.kind not in ("noise", "unequal"))
    named = ("disturbed",) if entry.row.disturbed else named
    size = measured_size(entry, plant.causes[0]) if plant.causes else None
    found = (size.value, size.low, size.high) if size else (None, None, None)
    return Trial(name, seed, named, plant.size, *found)


def run_planted(plant: Plant, row: Configuration, block: int, seed: int, directory: Path) -> Outcome:
    """Run a row once, beside a program that burns a core if that is planted in it."""
    with burning() if plant.burner and row.name == "planted" else contextlib.nullcontext():
        outcome = run_once(row, block, seed, directory)
    if outcome.status != "ok":
        raise SuiteError("a run failed", outcome.reason, "read its log", FAILED)
    return outcome


@contextlib.contextmanager
def burning():
    """Keep one core busy."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def measured_size(entry: RowAnalysis, cause: str) -> Excess | None:
    """Return what a cause is named from; None where that is no such number."""
    results, accounts = entry.row.results, entry.accounts
    if cause == "straggler":
        return accounts.straggler.longer
    if cause == "growing":
        share = accounts.beside
        seconds = sum(run_seconds(entry.row)) / len(results)
        return replace(share, value=share.value * seconds, low=share.low * seconds, high=share.high * seconds)
    if cause in ("shared cores", "too many workers"):
        return accounts.queued
    if cause == "idle threads":
        return accounts.cores
    if not accounts.steps:
        return None
    return next(part for part in (*accounts.steps.parts, *accounts.runs.parts) if part.name == cause)


def scores(trials: list[Trial]) -> dict:
    """Return how many of the planted causes were named (recall), and how many of the named were planted (precision).

    A size is right if its interval reaches to within 5 % of what was planted: to spin for 4 ms takes a little longer.
    """
    planted = [trial for trial in trials if PLANTS[trial.plant].causes]
    named, wrong = sum(len(trial.named) for trial in trials), sum(len(trial.wrong) for trial in trials)
    sized = [trial for trial in trials if trial.planted is not None and trial.low is not None]
    right = [t for t in sized if t.low <= (1 + WITHIN) * t.planted and t.high >= (1 - WITHIN) * t.planted]
    return {
        **{"trials": len(trials), "planted": len(planted), "planted_named": sum(trial.right for trial in planted)},
        **{"named": named, "named_rightly": named - wrong, "sizes": len(sized), "sizes_right": len(right)},
    }


def draw(trials: list[Trial], path: Path) -> Path:
    """Draw the confusion matrix: a line for each plant, a column for each cause that was named."""
    from matplotlib.patches import Rectangle

    plants = [name for name in PLANTS if any(trial.plant == name for trial in trials)]
    asked = [PLANTS[name].causes[0] for name in plants if PLANTS[name].causes]
    causes = list(dict.fromkeys([*asked, *(cause for trial in trials for cause in trial.named)]))
    figure, (axis,) = new_figure(width=max(9.0, 2.5 + 0.55 * len(causes)), height=2.2 + 0.36 * len(plants))
    for row, plant in enumerate(plants):
        tried = [trial for trial in trials if trial.plant == plant]
        for column, cause in enumerate(causes):
            share = sum(cause in trial.named for trial in tried) / len(tried)
            expected = PLANTS[plant].causes
            color = "#0072B2" if cause in expected[:1] else "#56B4E9" if cause in expected else "#D55E00"
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, alpha=share))
            if share or cause in expected[:1]:
                text, white = f"{round(share * len(tried))}/{len(tried)}", share > 0.5
                axis.text(column, row, text, ha="center", va="center", color="white" if white else "black")
    axis.set(xlim=(-0.5, len(causes) - 0.5), ylim=(len(plants) - 0.5, -0.5))
    axis.set_xticks(range(len(causes)), causes, rotation=45, ha="right")
    axis.set_yticks(range(len(plants)), plants)
    axis.grid(visible=False)
    score = scores(trials)
    axis.set_xlabel(
        "cause that the comparison named, in so many of the trials\ndark: what was planted; pale: what "
        "follows from it; orange: neither"
    )
    figure.suptitle(
        f"{score['planted_named']} of {score['planted']} planted causes were named; "
        f"{score['named_rightly']} of {score['named']} named causes were planted, or follow",
        fontsize=11,
    )
    return save_figure(figure, path)


def read_trials(results: dict) -> list[Trial]:
    """Return the trials in what this program wrote."""
    return [Trial(**{**trial, "named": tuple(trial["named"])}) for trial in results["trials"]]


def table(results: dict) -> str:
    trials, rows = read_trials(results), []
    for plant in PLANTS:
        if not (tried := [trial for trial in trials if trial.plant == plant]):
            continue
        names = Counter(name for trial in tried for name in trial.named)
        named = ", ".join(f"{name} {times}/{len(tried)}" for name, times in names.items()) or "nothing"
        sizes = [f"{trial.found:.3g} [{trial.low:.3g}, {trial.high:.3g}]" for trial in tried if trial.low is not None]
        planted = "–" if tried[0].planted is None else f"{tried[0].planted:.3g}"
        wrong = ", ".join(dict.fromkeys(name for trial in tried for name in trial.wrong))
        rows.append((plant, named, planted, "; ".join(sizes) or "–", wrong or "–"))
    score = scores(trials)
    recall, precision = (
        score[part] / max(1, score[whole]) for part, whole in (("planted_named", "planted"), ("named_rightly", "named"))
    )
    header = "Planted | Named, in so many of the trials | Its size | As it was measured, in each [95 %] | Named wrongly"
    return (
        f"{as_table(header, rows, (0, 1, 3, 4))}\n\n{score['planted_named']} of {score['planted']} planted causes were "
        f"named (recall {recall:.0%}); {score['named_rightly']} of {score['named']} named causes were planted, or "
        f"follow from what was (precision {precision:.0%}); {score['sizes_right']} of {score['sizes']} intervals of "
        "what was planted reach to within 5 % of its size."
    )


def main() -> None:
    def more(parser):
        names = {"type": one_of(PLANTS), "nargs": "+", "default": list(PLANTS), "metavar": "NAME"}
        parser.add_argument("--plants", **names, help="(all)")
        parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="(1 2 3)")

    arguments = arguments_of(__doc__, more=more)
    path = Path(arguments.output)
    trials = read_trials(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
    for seed, name in itertools.product(arguments.seeds, arguments.plants):
        if any((trial.plant, trial.seed) == (name, seed) for trial in trials):
            continue
        with Witness() as witness:
            trial = try_plant(name, seed)
        print(trial or f"{name}, seed {seed}: disturbed by another program, does not count; run it again", flush=True)
        if not trial:
            continue
        trials.append(trial)
        trials.sort(key=lambda trial: (list(PLANTS).index(trial.plant), trial.seed))
        write(path, {"trials": [asdict(trial) for trial in trials], "scores": scores(trials)}, witness)
    print(table({"trials": [asdict(trial) for trial in trials]}))
    print(draw(trials, path.with_suffix(".png")))


if __name__ == "__main__":
    run_script(main)
