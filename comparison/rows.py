"""A row of a comparison as data: what is planned for it, what became of its runs."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import OUT_OF_MEMORY
from common.files.results import RunResult
from common.ranks.launchers import srun
from common.settings.config import FLAGS
from comparison.methods import SCRIPT, method_of
from comparison.words import count, join, named, say, valued

# Flags that make a sweep when they get several values, and how their column is headed.
SWEEPS = {
    "model": "Model",
    "batch_size": "Batch size",
    "num_workers": "Workers",
    "nodes": "Nodes",
    "nproc": "--nproc",
    "micro_batches": "Micro-batches",
    "bucket_mb": "--bucket-mb",
}
IN_EVERY_METHOD = tuple(name for name in SWEEPS if name in FLAGS)
MOST_FOREIGN = 0.1  # of the cores, or of a GPU's time, may go to other programs; beyond that, times prove nothing
TRIAL_STEPS = 3  # the first makes gradients and the optimizer's state, which the next have all the time
TRIAL_MARGIN = 0.05  # of --memory-limit that a trial leaves: peaks of equal runs differ by some percent, few by more


UNCUT = ("accumulate", 1)  # which need not be typed


@dataclass(frozen=True)
class Planned:
    """What is planned for a row, and equal in a fair comparison: the values of its flags, called as in RunConfig.

    As there, `batch_size` and `num_workers` count all devices together; `threads` are a device's. What a device gets of
    the batch follows from the method.
    """

    model: str
    batch_size: int
    num_workers: int
    device: str
    threads: int
    per_device_batch_size: int
    precision: str = "fp32"
    compile: bool = False
    cuda_graph: bool = False
    recompute: bool = False
    accumulate: int = 1

    @property
    def batch(self) -> str:
        """The batch in words, with a device's part where that is smaller."""
        if self.per_device_batch_size == self.batch_size:
            return say("at a batch of {n:,}", n=self.batch_size)
        return say("at a batch of {n:,}, {part:,} per device", n=self.batch_size, part=self.per_device_batch_size)

    @property
    def shares(self) -> int:
        """Among how many devices the batch is divided."""
        return -(-self.batch_size // self.per_device_batch_size)

    @property
    def flags(self) -> dict[str, object]:
        """The values that a training script is given, by RunConfig's fields."""
        return {name: value for name, value in vars(self).items() if name in FLAGS and (name, value) != UNCUT}


TRIED = ("ranks", "bf16")  # of Configuration.what_if: what changes a training, so that nobody knows what it learns


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a method with one value of every swept setting, to be run several times.

    values: the swept settings that this method has. command: all but where the result goes. skip: why it cannot run
    here, if so. stages: into how many its network is cut. role: what a counterpart of another row, which runs beside it
    and is in no table of methods, is there for (see comparison.plan.counterparts); against: the name of that other row.
    nodes: on how many machines of a SLURM job it runs; tasks: if several, how many times the command, on each.
    """

    name: str
    method: str
    label: str
    values: dict[str, Any]
    planned: Planned
    command: tuple[str, ...] = field(compare=False)  # empty in what was read from a file: nothing to be run
    skip: str = ""
    stages: int = 1
    role: str = ""
    against: str = ""
    nodes: int = 1
    tasks: int = 1

    @property
    def script(self) -> str | None:
        """The Python file that its command runs; None if the command names none, as `python -m MODULE`."""
        return next((word for word in self.command if word.endswith(".py")), None)

    @property
    def is_script(self) -> bool:
        """Whether it is somebody's own training script, of which nothing is planned."""
        return self.method == SCRIPT

    @property
    def what_if(self) -> str:
        """What is otherwise than in the script as it is typed, if anything: see comparison.plan.scripts."""
        return self.name.split("-", 2)[2] if self.is_script and self.name.count("-") > 1 and not self.role else ""

    @property
    def launched(self) -> tuple[str, ...]:
        """The command with what starts it on several nodes, if it runs on several."""
        return self.command if self.nodes == 1 else (*srun(self.nodes, self.tasks), *self.command)


def baseline_of(configuration: Configuration, plan: list[Configuration], baseline: str) -> Configuration | None:
    """Return what a row is compared with: the row of the method `baseline` with the same swept values.

    Of several (`--methods single:num-workers=4 single`), the first that is planned equal, or else the first.
    """
    candidates = [
        other
        for other in plan
        if other.method == baseline
        and all(configuration.values.get(name, value) == value for name, value in other.values.items())
    ]
    plain = next((other for other in candidates if other.name == row_name(other.method, other.values)), None)
    if configuration.method == baseline and plain:  # a row of the baseline's method with a value of its own
        return plain
    part = configuration.planned.per_device_batch_size  # which follows from the number of devices
    equal = (
        other for other in candidates if replace(other.planned, per_device_batch_size=part) == configuration.planned
    )
    return next(equal, candidates[0] if candidates else None)


def row_name(method: str, values: dict[str, Any]) -> str:
    """Return what identifies a row: its method and the values that it has in a sweep, or of its own.

    Of a reader's own file the name alone: its path may name the user.
    """
    return "-".join(
        [method, *(f"{name}={Path(value).name if name == 'model' else value}" for name, value in values.items())]
    )


@dataclass(frozen=True)
class CardUse:
    """One GPU during the timed epochs of a run; None: the card or its driver does not tell.

    device: the run's name for it. busy: the share of the time in which any kernel ran. memory_bytes: the most that the
    run's processes had, with their contexts. joules: in an epoch, mean, by the card's counter; watts: joules per
    second. megahertz: of the multiprocessors, mean. held_down: the share of the time in which heat or a limit of the
    power held the clocks down; foreign: in which another program computed there.
    """

    device: str
    busy: float | None = None
    memory_bytes: int | None = None
    watts: float | None = None
    joules: float | None = None
    megahertz: float | None = None
    held_down: float | None = None
    foreign: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one run. `result` is None if it left none.

    configuration: the Configuration's name; block: which repetition. status and reason are the RunResult's, where
    it is whole; else "failed" with the cause, or "out of memory" with the batch at which memory did not suffice.
    wall_seconds: from its start to its exit, without what it waited for its turns. foreign_cores: how many cores
    processes other than the run's kept busy during its turns, on average, where that is known (see busy_seconds), and
    not on several nodes; for as long as the comparison itself was stopped, they count as having had all. cards: what
    its GPUs did, where NVML is there to tell. stolen: the largest share of its turns in which another virtual machine
    had one of the cores, where the hypervisor tells.
    """

    configuration: str
    block: int
    status: str
    reason: str
    command: str
    log: str
    exit_code: int
    wall_seconds: float
    foreign_cores: float | None = None
    result: RunResult | None = None
    cards: tuple[CardUse, ...] = ()
    stolen: float | None = None


@dataclass(frozen=True)
class Foreign:
    """The most that other programs used during any of some runs that ended well.

    busy: so many of the `cores`, on average. gpu: the share of the time in which one computed on a GPU of the run's.
    taken: of a core that the run's own threads need, as others left it none; stolen: that another virtual machine had.
    """

    busy: float
    cores: float
    gpu: float
    taken: float
    stolen: float

    @property
    def share(self) -> float:
        """The largest share: a rank that has to share one core delays all the others."""
        return max(self.busy / self.cores, self.gpu, self.taken, self.stolen)

    @property
    def too_much(self) -> bool:
        """Whether times prove nothing beside that."""
        return self.share > MOST_FOREIGN

    @property
    def words(self) -> str:
        """What those programs did, behind "other programs"."""
        template = "kept up to {n:.1f} of {cores} busy"
        if self.gpu:
            template = "computed on a GPU for {m:.0%} of the time"
        if self.gpu and self.busy:
            template = "kept up to {n:.1f} of {cores} busy and computed on a GPU for {m:.0%} of the time"
        taken = max(self.taken, self.stolen)
        if taken > MOST_FOREIGN >= max(self.busy / self.cores, self.gpu):
            template = "took a core for {t:.0%} of the time"
            if self.stolen > self.taken:
                template = "or another virtual machine took a core for {t:.0%} of the time"
        return say(template, n=self.busy, cores=count(self.cores, "core"), m=self.gpu, t=taken)


def foreign_of(outcomes: Iterable[Outcome], cores: float) -> Foreign:
    """Return what other programs used during those of some runs that ended well, on so many cores."""
    whole = [outcome for outcome in outcomes if outcome.status == "ok"]
    beyond = [(outcome.foreign_cores or 0.0) - max(0.0, cores - _needed(outcome.result)) for outcome in whole]
    return Foreign(
        max((outcome.foreign_cores or 0.0 for outcome in whole), default=0.0),
        cores,
        max((card.foreign or 0.0 for outcome in whole for card in outcome.cards), default=0.0),
        min(1.0, max([0.0, *beyond])),
        max((outcome.stolen or 0.0 for outcome in whole), default=0.0),
    )


def _needed(result: RunResult | None) -> int:
    """How many cores a run's threads need at once; of a GPU's process, the one that feeds it."""
    if not result:
        return 0
    return result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1)


@dataclass(frozen=True)
class Trial:
    """A batch that a row was tried with. status, reason: as in Outcome.

    images: how many were trained on in TRIAL_STEPS steps; peak_bytes: of the device that needed most. None where it
    does not fit, or failed otherwise.
    """

    configuration: str
    batch_size: int
    status: str
    reason: str
    images: int | None = None
    peak_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether memory sufficed: it may have diverged, or missed a target accuracy."""
        return self.images is not None


def trials_of(row: Configuration, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of a row, or of the one that it is a counterpart of, in their order."""
    return [trial for trial in trials if trial.configuration == (row.against or row.name)]


@dataclass(frozen=True)
class Row:
    """One row of the table: a configuration and what became of its runs, in the order in which they ran."""

    configuration: Configuration
    outcomes: tuple[Outcome, ...]

    @property
    def label(self) -> str:
        """What the row is called; with sweeps, with its values that the method's label does not name already."""
        return self.label_without("")

    def label_without(self, name: str) -> str:
        """Return what the row is called beside those that differ from it in the swept setting `name` alone."""
        return say("{name}{values}", name=named(self.configuration.label), values=self.values(without=name))

    def values(self, without: str = "") -> str:
        """Return the swept values that the method's label does not name, and not that of `without`, in brackets."""
        values = [
            valued(SWEEPS[name].lower(), value)
            for name, value in self.configuration.values.items()
            if name in IN_EVERY_METHOD and name != without
        ]
        return say(" ({values})", values=join(", ", values)) if values else ""

    def series(self, name: str) -> str:
        """Return what identifies the rows that differ from this one in the swept setting `name` alone."""
        value = row_name(name, {name: self.configuration.values.get(name)}).removeprefix(name)
        return re.sub(rf"{re.escape(value)}(?=-|$)", "", self.configuration.name)

    @property
    def results(self) -> list[RunResult]:
        """The results of the runs that ended well: all that is counted."""
        return [outcome.result for outcome in self.outcomes if outcome.result and outcome.status == "ok"]

    @property
    def troubles(self) -> list[Outcome]:
        """The runs that did not end well."""
        return [outcome for outcome in self.outcomes if outcome.status != "ok"]

    @property
    def trouble(self) -> str:
        """How many of the runs ended in which other way, in words; empty where all ended well."""
        runs = count(len(self.outcomes), "run")
        statuses = Counter(outcome.status for outcome in self.troubles)
        parts = [say("{n} of {runs} {status}", n=n, runs=runs, status=status) for status, n in statuses.items()]
        return join(", ", parts)

    @property
    def out_of_memory(self) -> bool:
        """Whether memory did not suffice in any run."""
        return any(outcome.status == OUT_OF_MEMORY for outcome in self.outcomes)

    @property
    def missed(self) -> list[Outcome]:
        """The runs that trained to their end without the target accuracy."""
        return [outcome for outcome in self.outcomes if outcome.status == "not reached"]

    @property
    def cores(self) -> float:
        """How many CPU cores the runs could use; needs a result."""
        return self.results[0].environment["cores"]

    @property
    def foreign(self) -> Foreign:
        """What other programs used during the runs; needs a result."""
        return foreign_of(self.outcomes, self.cores)

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so much of the machine that nothing can be claimed from the row's times."""
        return bool(self.results) and self.foreign.too_much

    @property
    def all_cores(self) -> bool:
        """Whether the row has all cores of the CPU, where a device of the other rows has a share of them."""
        return method_of(self.configuration.method).all_cores

    @property
    def simulated(self) -> bool:
        """Whether one device stood in for several: such times say nothing about the method's speed."""
        return any(result.simulated for result in self.results)

    @property
    def times_only(self) -> bool:
        """Whether the method trains something else on purpose, so that its accuracy says nothing."""
        return method_of(self.configuration.method).times_only

    @property
    def learns(self) -> bool:
        """Whether its accuracy is known, and says something."""
        return not self.times_only and not self.configuration.is_script
