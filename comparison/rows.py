"""A row of a comparison: its planned settings, and the outcomes of its runs."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import OUT_OF_MEMORY
from common.files.results import RunResult
from common.ranks.launchers import srun
from common.settings.config import FLAGS
from comparison.methods import SCRIPT, method_of
from comparison.outcomes import Foreign, Outcome, Trial, foreign_of
from comparison.words import count, join, named, say, valued

# Flags that make a sweep when given several values, with the heading of their column.
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
IN_LABEL: tuple[str, ...] = ("nodes", "nproc", "micro_batches")  # swept settings that a method's label contains
IN_DIRECTORY = ("sh", "-c", 'cd "$0" && exec "$@"')  # before a directory and a command that runs there
TRIED = ("ranks", "bf16")  # values of Configuration.what_if that change the training, so its accuracy is unknown


@dataclass(frozen=True)
class Planned:
    """The settings of a row that are equal in a fair comparison, named as in RunConfig.

    As there, `batch_size` and `num_workers` are totals over all devices; `threads` are per device. The method
    determines `per_device_batch_size`.
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
        """The batch in words, with the size per device if that is smaller."""
        if self.per_device_batch_size == self.batch_size:
            return say("at a batch of {n:,}", n=self.batch_size)
        return say("at a batch of {n:,}, {part:,} per device", n=self.batch_size, part=self.per_device_batch_size)

    @property
    def shares(self) -> int:
        """The number of devices that the batch is divided among."""
        return -(-self.batch_size // self.per_device_batch_size)

    @property
    def flags(self) -> dict[str, object]:
        """The values passed to a training script, by RunConfig's fields."""
        values = {name: value for name, value in vars(self).items() if name in FLAGS}
        if self.accumulate == 1:  # the default need not be typed
            del values["accumulate"]
        return values


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a method with one value of every swept setting, run several times.

    values: the swept settings that this method has. command: without the flags that name the output; empty if the row
    was read from a file. skip: why it cannot run here, if it cannot. stages: number of parts that its network is cut
    into. role: the purpose of a row that accompanies another row and is in no table of methods (see
    comparison.plan.counterparts); against: the name of that other row. nodes: number of machines of a SLURM job that it
    runs on; tasks: how often the command starts on each of them, if there are several.
    """

    name: str
    method: str
    label: str
    values: dict[str, Any]
    planned: Planned
    command: tuple[str, ...] = field(compare=False)
    skip: str = ""
    stages: int = 1
    role: str = ""
    against: str = ""
    nodes: int = 1
    tasks: int = 1

    @property
    def script(self) -> str | None:
        """The Python file that its command runs; None if the command names none, as `python -m MODULE`."""
        file = next((word for word in self.command if word.endswith(".py")), None)
        inside = self.command[: len(IN_DIRECTORY)] == IN_DIRECTORY
        return os.path.join(self.command[len(IN_DIRECTORY)], file) if file and inside else file

    @property
    def is_script(self) -> bool:
        """Whether it is a user's own training script, whose settings are unknown."""
        return self.method == SCRIPT

    @property
    def what_if(self) -> str:
        """The change that was made to a user's script, if any: see comparison.plan.scripts."""
        if not self.is_script or self.role or self.name == f"{SCRIPT}-{self.label}":
            return ""
        return self.name.rpartition("-")[2]

    @property
    def launched(self) -> tuple[str, ...]:
        """The command, started by srun if it runs on several nodes."""
        return self.command if self.nodes == 1 else (*srun(self.nodes, self.tasks), *self.command)


def baseline_of(configuration: Configuration, plan: list[Configuration], baseline: str) -> Configuration | None:
    """Return the row to compare a row with: the row of the method `baseline` with the same swept values.

    If there are several (`--methods single:num-workers=4 single`), return one with the same planned settings, of these
    one with the same own values, of these one with the same batch, and of these the first.
    """
    candidates = [
        other
        for other in plan
        if other.method == baseline
        and all(configuration.values.get(name, value) == value for name, value in other.values.items())
    ]
    plain = next((other for other in candidates if other.name == row_name(other.method, other.values)), None)
    if configuration.method == baseline and plain:  # a variant of the baseline, e.g. single:num-workers=4
        return plain
    planned, own = configuration.planned, configuration.name.removeprefix(configuration.method)

    def differences(other: Configuration) -> tuple[bool, ...]:
        batch, part = planned.batch_size, planned.per_device_batch_size  # they follow from the number of devices
        like = replace(other.planned, batch_size=batch, per_device_batch_size=part) == planned
        typed_alike = other is not configuration and other.name == baseline + own
        return not like, not typed_alike, other.planned.batch_size != batch

    return min(candidates, key=differences, default=None)


def row_name(method: str, values: dict[str, Any]) -> str:
    """Return the name that identifies a row: its method, then its swept values and those set for it alone.

    Of a user's own model file it holds only the file name, as the path may contain the user's name.
    """
    parts = [f"{name}={Path(value).name if name == 'model' else value}" for name, value in values.items()]
    return "-".join([method, *parts])


def trials_of(row: Configuration, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of a row, or of the row that it is a counterpart of, in order."""
    return [trial for trial in trials if trial.configuration == (row.against or row.name)]


@dataclass(frozen=True)
class Row:
    """One row of the table: a configuration and the outcomes of its runs, in the order in which they ran."""

    configuration: Configuration
    outcomes: tuple[Outcome, ...]

    @property
    def name(self) -> str:
        return self.configuration.name

    @property
    def label(self) -> str:
        """The row's name in texts, with the swept values that the method's label does not contain."""
        return self.label_without("")

    def label_without(self, name: str) -> str:
        """Return the label among rows that differ only in the swept setting `name`."""
        return say("{name}{values}", name=named(self.configuration.label), values=self.values(without=name))

    def values(self, without: str = "", known: Sequence[str] = IN_LABEL) -> str:
        """Return in brackets the swept values, except `without` and those of `known`, by default what the label has."""
        values = [
            valued(SWEEPS[name].lower(), value)
            for name, value in self.configuration.values.items()
            if name not in (*known, without)
        ]
        return say(" ({values})", values=join(", ", values)) if values else ""

    def series(self, name: str) -> str:
        """Return a name shared by all rows that differ only in the swept setting `name`."""
        value = row_name(name, {name: self.configuration.values.get(name)}).removeprefix(name)
        return re.sub(rf"{re.escape(value)}(?=-|$)", "", self.name)

    @property
    def results(self) -> list[RunResult]:
        """The results of the runs that ended well. Only these count."""
        return [outcome.result for outcome in self.outcomes if outcome.result and outcome.status == "ok"]

    @property
    def troubles(self) -> list[Outcome]:
        """The runs that did not end well."""
        return [outcome for outcome in self.outcomes if outcome.status != "ok"]

    @property
    def trouble(self) -> str:
        """How many runs ended badly, and how, in words; empty if all ended well."""
        runs = count(len(self.outcomes), "run")
        statuses = Counter(outcome.status for outcome in self.troubles)
        parts = [say("{n} of {runs} {status}", n=n, runs=runs, status=status) for status, n in statuses.items()]
        return join(", ", parts)

    @property
    def out_of_memory(self) -> bool:
        """Whether any run ran out of memory."""
        return any(outcome.status == OUT_OF_MEMORY for outcome in self.outcomes)

    @property
    def missed(self) -> list[Outcome]:
        """The runs that trained to their end without reaching the target accuracy."""
        return [outcome for outcome in self.outcomes if outcome.status == "not reached"]

    @property
    def cores(self) -> float:
        """The number of CPU cores that the runs could use, on all nodes. Needs a result."""
        return self.results[0].environment["cores"] * self.configuration.nodes

    @property
    def foreign(self) -> Foreign:
        """The most that other programs used during the runs. Needs a result."""
        return foreign_of(self.outcomes, self.cores)

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so much of the machine that the row's times prove nothing."""
        return bool(self.results) and self.foreign.too_much

    @property
    def all_cores(self) -> bool:
        """Whether the row has all CPU cores, while each device of the other rows has a share of them."""
        return method_of(self.configuration.method).all_cores

    @property
    def simulated(self) -> bool:
        """Whether one device simulated several, so that its times say nothing about the method's speed."""
        return any(result.simulated for result in self.results)

    @property
    def times_only(self) -> bool:
        """Whether the method deliberately trains something else, so that its accuracy means nothing."""
        return bool(method_of(self.configuration.method).differs)

    @property
    def learns(self) -> bool:
        """Whether its accuracy is known and meaningful."""
        return not self.times_only and not self.configuration.is_script
