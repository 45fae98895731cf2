"""Does a comparison name planted causes first and with the right size, and no others?

    python benchmarks/planted_causes.py
    python benchmarks/planted_causes.py --plants "slow loader" straggler --seeds 1

For each plant, two equal rows run in turns, one of which is slowed down in a known place (by benchmarks/plants or in
the machine), and are judged like any comparison. Writes the planted and the named causes for each plant and seed to
--output, and a figure next to it. Trials disturbed by another program are left out. Every cause that a comparison can
name needs a plant. The plants do not all fit into --minutes; the same command resumes.
"""

import argparse
import contextlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from measure import PLANNED, PROJECT, SETTINGS
from runs import Runs, benchmark, benchmark_parser

from common.errors import FAILED, MACHINE, SuiteError
from common.files.plots import new_figure, save_figure
from common.files.probe import Probe
from common.machine.entry import run_script
from common.machine.lifetime import temporary_directory
from common.settings.arguments import one_of
from common.settings.config import RunConfig
from comparison.judge.analysis import analyse
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess
from comparison.judge.steps import LATE
from comparison.judge.summaries import Finding
from comparison.methods import Machine
from comparison.plan.plan import make_order, make_plan
from comparison.record import Report
from comparison.rows import Configuration
from comparison.run.forecast import run_probe
from comparison.run.turns import Run, take_turns

BATCH, EPOCH_STEPS, EPOCHS, LONGER = 64, 50, 4, 9
TEST_BATCHES = 16  # of an evaluation
BLOCKS = 4
WITHIN = 0.15  # allowed relative error of a size
GROWTH = 0.00004  # seconds added to each step of "growing slowness"
QUOTA = 1.5  # cores
GROUPS = Path("/sys/fs/cgroup")
PROGRAMS = {  # run next to the planted row
    "all the time": "while True: pass",
    "a third of the time": "import time\nwhile True:\n  if time.time() % 0.3 > 0.1: time.sleep(0.2)",
    "memory traffic": "import numpy\na, b = numpy.zeros((2, 1 << 25))\nwhile True: b[:] = a",
}


@dataclass(frozen=True)
class Plant:
    """A cause of slowness planted in one of two equal rows.

    method: of both rows. first: name of the expected first cause, as returned by named(). also: kinds of causes that
    follow from it and may be named after it. size: planted size in the unit of the first cause (milliseconds per step,
    seconds per run, or a share), or None if unknown. variables, prefix: environment variables and words before the
    planted row's command. settings: of both rows. workers: of the planted row. beside: key of PROGRAMS to run next to
    it. quota: limit it to QUOTA cores. everywhere: plant into the probe and both rows, the first of which trains on one
    device. epochs: per run, the first of which is not timed.
    """

    method: str = "single"
    first: str = ""
    also: tuple[str, ...] = ()
    size: float | None = None
    variables: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    settings: tuple[tuple[str, object], ...] = ()
    workers: int | None = None
    beside: str = ""
    quota: bool = False
    everywhere: bool = False
    epochs: int = EPOCHS

    @property
    def batch(self) -> int:
        """The global batch size."""
        return BATCH if self.method == "single" else 2 * BATCH

    @property
    def data_flags(self) -> list[str]:
        return ["--dataset", "synthetic-mnist", "--train-size", str(EPOCH_STEPS * self.batch)]

    @property
    def rows(self) -> list[Configuration]:
        """The plain and the planted row."""
        methods = [("single", {}), (self.method, {})] if self.everywhere else [(self.method, {})]
        given = {**PLANNED, "loader": "resident", "batch_size": [self.batch], "methods": methods, **dict(self.settings)}
        flags = [*self.data_flags, "--epochs", str(self.epochs), "--loader", given["loader"]]
        plan = make_plan(argparse.Namespace(**given), Machine(gpus=0, cores=2), flags)
        before = ("env", *self.variables, *self.prefix)
        if self.everywhere:
            return [replace(row, command=(*before, *row.command)) for row in plan]
        command = list(plan[0].command)
        if self.workers is not None:
            command[command.index("--num-workers") + 1] = str(self.workers)
        return [plan[0], replace(plan[0], name="planted", label="planted", command=(*before, *command))]

    def probe(self, report: Report) -> Probe | None:
        """Run the probe with the same plant, if it is planted everywhere."""
        if not self.everywhere:
            return None
        with patch.dict(os.environ, (variable.split("=", 1) for variable in self.variables)):
            return run_probe(report, self.data_flags)


def slowed(
    name: str, seconds: float, first: str, *also: str, size: float | None = 0.0, how: str = "", **others
) -> Plant:
    """Return a plant of benchmarks/plants that adds `seconds` each time.

    size: 0 means `seconds` in every step. how: affected steps and ranks, as words NAME=VALUE that set PLANT_NAME.
    """
    path = f"PYTHONPATH={PROJECT / 'benchmarks' / 'plants'}"
    variables = (path, f"PLANT={name}", f"PLANT_SECONDS={seconds}", *(f"PLANT_{word}" for word in how.split()))
    return Plant(first=first, also=also, size=1000 * seconds if size == 0 else size, variables=variables, **others)


def delayed_share(share: float) -> float:
    """Return the share of timed steps that PLANT_SHARE delays on rank 0: see seconds_in() in benchmarks/plants."""
    timed = range(RunConfig.warmup, RunConfig.warmup + EPOCHS * EPOCH_STEPS)
    return sum(random.Random(1000 * step).random() < share for step in timed) / len(timed)


PHASES = ("data", "transfer", "forward", "backward", "exchange", "update", "outside")
WAITING = ("exchange", "late ranks")  # consequences of a slow rank
RUN = ("start-up", "warm-up", "evaluation")
PLANTS = {
    "nothing": Plant(),
    "nothing, two ranks": Plant("ddp"),
    "slow loader": slowed("loader", 0.004, "data"),
    "disk": slowed("disk", 0.004, "data"),
    "slow transfer": slowed("transfer", 0.004, "transfer"),
    "slow forward": slowed("forward", 0.006, "forward", *WAITING, method="ddp"),
    "slow backward": slowed("backward", 0.004, "backward"),
    "slow update": slowed("update", 0.004, "update"),
    "slow all-reduce": slowed("all-reduce", 0.008, "exchange", method="ddp"),
    "every second step": slowed("forward", 0.008, "forward, 1 step of 2", size=4.0, how="EVERY=2"),
    "every seventh step": slowed("loader", 0.028, "data, 1 step of 7", size=4.0, how="EVERY=7"),
    "garbage collector": slowed("collector", 0.08, "update, 1 step of 20", size=4.0, how="EVERY=20"),
    "some steps": slowed("forward", 0.04, "forward, some steps", size=40 * delayed_share(0.1), how="SHARE=0.1"),
    "growing slowness": slowed(
        *("update", GROWTH, "update", "growing"),
        how="GROWS=1",
        epochs=LONGER,
        size=1000 * GROWTH * EPOCH_STEPS * LONGER / 2,
    ),
    "straggler": slowed("forward", 0.006, "forward of rank 1", *WAITING, how="RANK=1", method="ddp"),
    "slow loader of a rank": slowed("loader", 0.006, "data of rank 0", *WAITING, how="RANK=0", method="ddp"),
    "slow update of a rank": slowed("update", 0.006, "update of rank 1", *WAITING, how="RANK=1", method="ddp"),
    "twice the images": slowed(
        "twice", 0.0, "backward of rank 1", "forward of rank 1", *WAITING, size=None, how="RANK=1", method="ddp"
    ),
    "pauses in turns": slowed(
        *("forward", 0.024, "late ranks, 1 step of 2", "forward", "exchange"), size=12.0, how="TURNS=1", method="ddp"
    ),
    "pauses at random": slowed(
        *("backward", 0.04, "late ranks, some steps", "backward", "exchange"), size=None, how="SHARE=0.1", method="ddp"
    ),
    "ranks on one core": Plant("ddp", "shared cores", (*PHASES, *RUN, *WAITING), prefix=("taskset", "--cpu-list", "0")),
    "quota": Plant("ddp", "throttled", (*PHASES, *RUN, *WAITING), quota=True),
    "too few threads": replace(
        slowed("few-threads", 0.0, "idle threads", *PHASES, *RUN, size=1.0), settings=(("threads_per_device", 2),)
    ),
    "too many workers": replace(
        slowed("rude-workers", 0.0, "too many workers", *PHASES, *RUN, size=None),
        workers=8,
        settings=(("loader", "workers"), ("num_workers", [1]), ("threads_per_device", 2)),
    ),
    "foreign program": Plant(first="disturbed", beside="all the time"),
    "foreign program now and then": Plant("ddp", "disturbed", beside="a third of the time"),
    "memory traffic": Plant(first="disturbed", beside="memory traffic"),
    "every row slower": slowed(
        *("update", 0.008, "small batch", "update", "exchange", "forward", "backward", *RUN, *WAITING),
        size=None,
        method="ddp",
        everywhere=True,
    ),
    "slow start": slowed("start", 2.0, "start-up", size=2.0),
    "slow evaluation": slowed("evaluation", 0.1, "evaluation", size=0.1 * TEST_BATCHES * EPOCHS),
}


def named(cause: Finding) -> str:
    """Return a name for a cause: its kind or phase, its rank and its steps; "" if it makes nothing slower."""
    name, place, excess = cause.kind, cause.values.get("place"), cause.values.get("x")
    if name in ("noise", "unequal"):
        return ""
    if cause.of in ("step", "run") and isinstance(excess, Excess) and excess.value < 0:
        return ""
    if not isinstance(place, Finding):
        return name
    if name == LATE:
        place = place.values["ranks"][0].values["place"]
    if place.kind == "of a rank":
        rank, place = place.values["n"], place.values["place"]
        phase = place.values["place"] if place.kind in ("regular steps", "some steps") else place
        name = f"{phase.kind} of rank {rank}"
    elif name == "straggler":
        name = f"{place.kind} of rank {cause.values['n']}"
    if place.kind == "regular steps":
        return f"{name}, 1 step of {place.values['period']}"
    return f"{name}, some steps" if place.kind == "some steps" else name


@dataclass(frozen=True)
class Trial:
    """The outcome of one plant with one seed.

    named: the causes that the comparison names, in its order. planted: true size; found, low, high: measured size and
    its interval. Sizes are None if unknown.
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
        """Whether the planted cause is named first, or none if there is none."""
        first = PLANTS[self.plant].first
        return self.named[:1] == ((first,) if first else ())

    @property
    def wrong(self) -> list[str]:
        """The named causes that neither were planted nor follow from the plant."""
        plant = PLANTS[self.plant]
        return [name for name in self.named if name != plant.first and name.partition(",")[0] not in plant.also]


class PlantedRun(Run):
    """A run with another program running during its turns."""

    program = ""

    def take_turn(self):
        other = subprocess.Popen([sys.executable, "-c", self.program])
        try:
            return super().take_turn()
        finally:
            other.kill()
            other.wait()


@contextlib.contextmanager
def cpu_quota(wanted: bool) -> Iterator[tuple[str, ...]]:
    """Create a control group (v1) with a quota of QUOTA cores. Yield a command prefix that runs a command in it."""
    if not wanted:
        yield ()
        return
    group = GROUPS / "cpu" / "planted"
    if not (GROUPS / "cpu" / "cpu.cfs_quota_us").exists() and not (GROUPS / "cpu" / "cpu.shares").exists():
        raise SuiteError("a quota cannot be planted", f"no {GROUPS / 'cpu'} (cgroup v1)", "leave it out", MACHINE)
    group.mkdir(exist_ok=True)  # it exists if an earlier run was killed
    try:
        (group / "cpu.cfs_quota_us").write_text(str(round(QUOTA * 100_000)))
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"
    finally:
        group.rmdir()


def try_plant(name: str, seed: int) -> Trial | None:
    """Run both rows of a plant BLOCKS times, in turns, and judge them. None if another program disturbed them."""
    plant = PLANTS[name]
    rows = {row.name: row for row in plant.rows}
    order = make_order(list(rows), BLOCKS, seed)
    outcomes = []
    with temporary_directory() as directory, cpu_quota(plant.quota) as prefix:
        for block in range(1, BLOCKS + 1):
            names = [row for number, row in order if number == block]
            runs = [run_of(plant, rows[row], block, Path(directory), prefix) for row in names]
            outcomes += take_turns(runs, 100 * seed + block)
    if bad := [outcome for outcome in outcomes if outcome.status != "ok"]:
        raise SuiteError("a run failed", bad[0].reason, "read its log", FAILED)
    plan, environment = tuple(rows.values()), outcomes[0].result.environment
    changed = {"allow_unequal": True, "epochs": plant.epochs, "repeats": BLOCKS, "seed": seed}
    settings = {**SETTINGS, **changed, "baseline": plan[0].method}
    report = Report("", settings, environment, None, plan, tuple(order), tuple(outcomes))
    plain, entry = analyse(replace(report, probe=plant.probe(report))).rows
    if plain.row.disturbed or (entry.row.disturbed and not plant.beside):
        return None
    found = ("disturbed",) if entry.row.disturbed else tuple(filter(None, map(named, entry.causes)))
    size = measured_size(entry, plant) if plant.first and not entry.row.disturbed else None
    sizes = (size.value, size.low, size.high) if size else (None, None, None)
    return Trial(name, seed, found, plant.size, *sizes)


def run_of(plant: Plant, row: Configuration, block: int, directory: Path, prefix: tuple[str, ...] = ()) -> Run:
    """Return a run of one of a plant's rows. prefix: words before the planted row's command."""
    if row.name != "planted":
        return Run(row, block, block, directory)
    run = (PlantedRun if plant.beside else Run)(replace(row, command=(*prefix, *row.command)), block, block, directory)
    run.program = PROGRAMS.get(plant.beside, "")
    return run


def measured_size(entry: RowAnalysis, plant: Plant) -> Excess | None:
    """Return the measured size of the planted cause, or None if it has none."""
    accounts, cause = entry.accounts, plant.first.partition(",")[0].partition(" of rank")[0]
    if " of rank" in plant.first:
        return accounts.straggler.longer
    if cause in ("shared cores", "too many workers"):
        return accounts.queued
    if cause == "throttled":
        return accounts.throttled
    if cause == "idle threads":
        return accounts.cores
    if not accounts.steps:
        return None
    return next((part for part in (*accounts.steps.parts, *accounts.runs.parts) if part.name == cause), None)


def scores(trials: list[Trial]) -> dict:
    """Count the planted causes, those named first, the named causes, the wrong ones, and the sizes within WITHIN."""
    planted = [trial for trial in trials if PLANTS[trial.plant].first]
    sized = [trial for trial in planted if trial.planted is not None]
    near = [t for t in sized if t.found is not None and abs(t.found - t.planted) <= WITHIN * t.planted]
    return {
        "trials": len(trials),
        "planted": len(planted),
        "first": sum(trial.right for trial in planted),
        "named": sum(len(trial.named) for trial in trials),
        "wrong": sum(len(trial.wrong) for trial in trials),
        "sizes": len(sized),
        "sizes_right": len(near),
    }


def summary(trials: list[Trial]) -> str:
    return (
        "{first} of {planted} planted causes are named first. Neither planted nor a consequence of what was planted: "
        "{wrong} of {named} named causes. {sizes_right} of {sizes} sizes are within {within:.0%} of the planted size."
    ).format(**scores(trials), within=WITHIN)


def draw(trials: list[Trial], path: Path) -> Path:
    """Draw the confusion matrix, with a line for each plant and a column for each named cause."""
    from matplotlib.patches import Rectangle

    plants = [name for name in PLANTS if any(trial.plant == name for trial in trials)]
    asked = [PLANTS[name].first for name in plants if PLANTS[name].first]
    causes = list(dict.fromkeys([*asked, *(cause for trial in trials for cause in trial.named)]))
    figure, (axis,) = new_figure(width=max(9.0, 2.5 + 0.55 * len(causes)), height=2.2 + 0.36 * len(plants))
    for row, plant in enumerate(plants):
        tried = [trial for trial in trials if trial.plant == plant]
        for column, cause in enumerate(causes):
            share = sum(cause in trial.named for trial in tried) / len(tried)
            first, wrong = cause == PLANTS[plant].first, any(cause in trial.wrong for trial in tried)
            color = "#0072B2" if first else "#D55E00" if wrong else "#56B4E9"
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, alpha=share))
            if share or first:
                text, white = f"{round(share * len(tried))}/{len(tried)}", share > 0.5
                axis.text(column, row, text, ha="center", va="center", color="white" if white else "black")
    axis.set(xlim=(-0.5, len(causes) - 0.5), ylim=(len(plants) - 0.5, -0.5))
    axis.set_xticks(range(len(causes)), causes, rotation=45, ha="right")
    axis.set_yticks(range(len(plants)), plants)
    axis.grid(visible=False)
    axis.set_xlabel(
        "cause that the comparison named, in so many of the trials\n"
        "dark: what was planted; pale: what follows from it; orange: neither"
    )
    figure.suptitle(summary(trials), fontsize=11)
    return save_figure(figure, path)


def read_trials(results: dict) -> list[Trial]:
    return [Trial(**{**trial, "named": tuple(trial["named"])}) for trial in results["trials"]]


def table(results: dict) -> str:
    return summary(read_trials(results))


def measured(runs: Runs) -> dict:
    """Return all trials, in the order of the plants, and their scores. Draw the named causes."""
    cases = itertools.product(runs.arguments.seeds, runs.arguments.plants)
    found = runs.each({f"{name}, seed {seed}": partial(try_plant, name, seed) for seed, name in cases})
    trials = read_trials({"trials": found.values()})
    if not trials:
        raise LookupError("no trial counts")
    trials.sort(key=lambda trial: (list(PLANTS).index(trial.plant), trial.seed))
    print(draw(trials, runs.output.with_suffix(".png")))
    return {"trials": [asdict(trial) for trial in trials], "scores": scores(trials)}


def main() -> None:
    parser, plants = benchmark_parser(__doc__), list(PLANTS)
    parser.add_argument("--plants", type=one_of(PLANTS), nargs="+", default=plants, metavar="NAME", help="(all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="(1 2 3)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
