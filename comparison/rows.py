"""A row of a comparison as data: its plan and the outcomes of its runs."""

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

# Flags that make a sweep if they have several values, and the headings of their columns.
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
MOST_FOREIGN = 0.1  # the share of the cores, or of a GPU's time, that other programs may use; above, times are invalid
TRIAL_STEPS = 3  # the first step allocates gradients and optimizer state
TRIAL_MARGIN = 0.05  # the share of --memory-limit that a trial leaves, because peaks of equal runs vary by some percent
UNCUT = ("accumulate", 1)  # need not be typed


@dataclass(frozen=True)
class Planned:
    """The planned values of a row's flags, which are equal in a fair comparison. Names are as in RunConfig.

    `batch_size` and `num_workers` are totals over all devices, `threads` is per device.
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
        """The batch in words, with the part per device if that is smaller."""
        if self.per_device_batch_size == self.batch_size:
            return say("at a batch of {n:,}", n=self.batch_size)
        return say("at a batch of {n:,}, {part:,} per device", n=self.batch_size, part=self.per_device_batch_size)

    @property
    def shares(self) -> int:
        """The number of devices among which the batch is divided."""
        return -(-self.batch_size // self.per_device_batch_size)

    @property
    def flags(self) -> dict[str, object]:
        """The values for a training script, by RunConfig's fields."""
        return {name: value for name, value in vars(self).items() if name in FLAGS and (name, value) != UNCUT}


TRIED = ("ranks", "bf16")  # values of Configuration.what_if that change the training, with unknown accuracy


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a method with one value of every swept setting, to be run several times.

    values: the swept settings that this method has. command: without the flags for output files. skip: why it cannot
    run here, if so. stages: into which its network is cut. role: the purpose of a counterpart, which accompanies
    another row and is not in the table of methods (see comparison.plan.counterparts); against: the name of that row.
    nodes: of a SLURM job on which it runs; tasks: if there are several nodes, how often the command runs on each.
    """

    name: str
    method: str
    label: str
    values: dict[str, Any]
    planned: Planned
    command: tuple[str, ...] = field(compare=False)  # empty if read from a file, from which no command is run
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
        """Whether it is the user's own training script, with an empty plan."""
        return self.method == SCRIPT

    @property
    def what_if(self) -> str:
        """What is changed in the user's script, if anything (see comparison.plan.scripts)."""
        return self.name.split("-", 2)[2] if self.is_script and self.name.count("-") > 1 and not self.role else ""

    @property
    def launched(self) -> tuple[str, ...]:
        """The command, preceded by srun if it runs on several nodes."""
        return self.command if self.nodes == 1 else (*srun(self.nodes, self.tasks), *self.command)


def baseline_of(configuration: Configuration, plan: list[Configuration], baseline: str) -> Configuration | None:
    """Return a row's baseline: the row of the method `baseline` with the same swept values.

    Of several (`--methods single:num-workers=4 single`), the first with an equal plan, or else the first.
    """
    candidates = [
        other
        for other in plan
        if other.method == baseline
        and all(configuration.values.get(name, value) == value for name, value in other.values.items())
    ]
    plain = next((other for other in candidates if other.name == row_name(other.method, other.values)), None)
    if configuration.method == baseline and plain:  # the baseline's method with a value of its own
        return plain
    part = configuration.planned.per_device_batch_size  # depends on the number of devices
    equal = (
        other for other in candidates if replace(other.planned, per_device_batch_size=part) == configuration.planned
    )
    return next(equal, candidates[0] if candidates else None)


def row_name(method: str, values: dict[str, Any]) -> str:
    """Return a row's unique name: its method and its values, in a sweep or of its own.

    Of a user's own file only the name, because the path may contain the user's name.
    """
    return "-".join(
        [method, *(f"{name}={Path(value).name if name == 'model' else value}" for name, value in values.items())]
    )


@dataclass(frozen=True)
class CardUse:
    """One GPU during the timed epochs of a run. None: not reported by the card or its driver.

    device: the run's name for it. busy: the share of the time in which any kernel ran. memory_bytes: the peak of the
    run's processes, with their contexts. joules: mean per epoch, by the card's counter; watts: joules per second.
    megahertz: mean clock of the multiprocessors. held_down: the share of the time in which heat or a power limit
    reduced the clocks; foreign: in which another program computed there.
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
    """The outcome of one run. `result` is None if it left none.

    configuration: the Configuration's name; block: the repetition. status, reason: those of a complete RunResult;
    otherwise "failed" with the cause, or "out of memory" with the batch. wall_seconds: from start to exit, without
    waiting for turns. foreign_cores: the mean number of cores that other programs kept busy during its turns, if known
    (see busy_seconds); while the comparison itself was stopped, all cores count. Not on several nodes. cards: its GPUs,
    if NVML is available. stolen: the largest share of its turns in which another virtual machine had one of the cores,
    if the hypervisor reports it.
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
    """The most that other programs used during any of several successful runs.

    busy: the mean number of `cores` in use. gpu: the share of the time in which another program computed on the run's
    GPU. taken: the share of a core that the run's own threads needed but did not get; stolen: that another virtual
    machine had.
    """

    busy: float
    cores: float
    gpu: float
    taken: float
    stolen: float

    @property
    def share(self) -> float:
        """The largest share. A rank that has to share one core delays all others."""
        return max(self.busy / self.cores, self.gpu, self.taken, self.stolen)

    @property
    def too_much(self) -> bool:
        """Whether the times are invalid."""
        return self.share > MOST_FOREIGN

    @property
    def words(self) -> str:
        """What those programs did, to follow "other programs"."""
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
    """Return what other programs used during the successful ones of these runs, on a machine with `cores` cores."""
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
    """Return how many cores a run needs at once: one per thread, or one per process that feeds a GPU."""
    if not result:
        return 0
    return result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1)


@dataclass(frozen=True)
class Trial:
    """A trial of a batch with a row. status, reason: as in Outcome.

    images: trained on in TRIAL_STEPS steps; peak_bytes: of the device that needed most. None if it does not fit or
    failed.
    """

    configuration: str
    batch_size: int
    status: str
    reason: str
    images: int | None = None
    peak_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits into memory, even if it diverged or missed a target accuracy."""
        return self.images is not None


def trials_of(row: Configuration, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of a row, or of the row that it accompanies, in their order."""
    return [trial for trial in trials if trial.configuration == (row.against or row.name)]


@dataclass(frozen=True)
class Row:
    """One row of the table: a configuration and the outcomes of its runs, in the order in which they ran."""

    configuration: Configuration
    outcomes: tuple[Outcome, ...]

    @property
    def label(self) -> str:
        """The row's name for readers, with the swept values that the method's label does not contain."""
        return self.label_without("")

    def label_without(self, name: str) -> str:
        """Return the row's label without the value of the swept setting `name`."""
        return say("{name}{values}", name=named(self.configuration.label), values=self.values(without=name))

    def values(self, without: str = "") -> str:
        """Return the swept values that the method's label does not contain, except for `without`, in parentheses."""
        values = [
            valued(SWEEPS[name].lower(), value)
            for name, value in self.configuration.values.items()
            if name in IN_EVERY_METHOD and name != without
        ]
        return say(" ({values})", values=join(", ", values)) if values else ""

    def series(self, name: str) -> str:
        """Return a key shared by the rows that differ from this one only in the swept setting `name`."""
        value = row_name(name, {name: self.configuration.values.get(name)}).removeprefix(name)
        return re.sub(rf"{re.escape(value)}(?=-|$)", "", self.configuration.name)

    @property
    def results(self) -> list[RunResult]:
        """The results of the successful runs, which are all that counts."""
        return [outcome.result for outcome in self.outcomes if outcome.result and outcome.status == "ok"]

    @property
    def troubles(self) -> list[Outcome]:
        """The unsuccessful runs."""
        return [outcome for outcome in self.outcomes if outcome.status != "ok"]

    @property
    def trouble(self) -> str:
        """How the unsuccessful runs ended, in words; empty if there are none."""
        runs = count(len(self.outcomes), "run")
        statuses = Counter(outcome.status for outcome in self.troubles)
        parts = [say("{n} of {runs} {status}", n=n, runs=runs, status=status) for status, n in statuses.items()]
        return join(", ", parts)

    @property
    def out_of_memory(self) -> bool:
        """Whether any run was out of memory."""
        return any(outcome.status == OUT_OF_MEMORY for outcome in self.outcomes)

    @property
    def missed(self) -> list[Outcome]:
        """The runs that ended without reaching the target accuracy."""
        return [outcome for outcome in self.outcomes if outcome.status == "not reached"]

    @property
    def cores(self) -> float:
        """The number of CPU cores that the runs could use; needs a result."""
        return self.results[0].environment["cores"]

    @property
    def foreign(self) -> Foreign:
        """What other programs used during the runs; needs a result."""
        return foreign_of(self.outcomes, self.cores)

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so much of the machine that the row's times are invalid."""
        return bool(self.results) and self.foreign.too_much

    @property
    def all_cores(self) -> bool:
        """Whether the row has all cores of the CPU, unlike the devices of other rows."""
        return method_of(self.configuration.method).all_cores

    @property
    def simulated(self) -> bool:
        """Whether one device stood in for several, so that the times say nothing about the method's speed."""
        return any(result.simulated for result in self.results)

    @property
    def times_only(self) -> bool:
        """Whether the method trains something different on purpose, so that its accuracy says nothing."""
        return method_of(self.configuration.method).times_only

    @property
    def learns(self) -> bool:
        """Whether its accuracy is known and meaningful."""
        return not self.times_only and not self.configuration.is_script
