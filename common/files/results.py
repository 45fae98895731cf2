"""What a run found: RunResult and its parts, raw values only, as JSON out and in. Never imports torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict, get_type_hints

from msgspec import Meta

from common.errors import FAILED, SuiteError
from common.files.reading import as_record, read_json
from common.files.writing import write_json

SCHEMA_VERSION: Literal[6] = 6
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
if TYPE_CHECKING:
    Measured = float
else:
    Measured = float | None  # in a file, where null stands for NaN
EXCHANGE = (
    "from a rank's own last gradient until the mean over all ranks is there; "
    "of a pipeline's stage, sending features and gradients, and waiting for the others'"
)


class Environment(TypedDict):
    """The machine and its software, as describe_environment() says. nodes: the same in words, of each of several."""

    python: str
    torch: str
    torchvision: str | None
    numpy: str | None
    system: str
    cpu: str
    cores: int | float
    gpus: list[str]
    cuda: str | None
    cudnn: int | None
    nccl: str | None
    driver: str | None
    links: list[str]
    nodes: NotRequired[list[str]]


@dataclass(frozen=True)
class Phase:
    """A part of a step. color: of a palette that the colour-blind can tell apart, with a contrast of 3 to white."""

    meaning: str
    color: str


@dataclass(frozen=True)
class PhaseTimes:
    """Milliseconds per step, the mean over one epoch of one rank; None: what a method's step does not tell apart."""

    data: Annotated[float | None, Phase("waiting for the next batch", "#CB6300")] = None
    transfer: Annotated[float | None, Phase("host to device", "#C22F7A")] = None
    forward: Annotated[float | None, Phase("forward pass, with the loss", "#0A84DE")] = None
    backward: Annotated[float | None, Phase("backward pass", "#132D76")] = None
    exchange: Annotated[float | None, Phase(EXCHANGE, "#B01C1C")] = None
    update: Annotated[float | None, Phase("optimizer's step", "#0A7360")] = None
    rest: Annotated[float | None, Phase("what the method's step does in none of these", "#848484")] = None

    @property
    def known(self) -> dict[str, float]:
        """The phases that were told apart, by their names."""
        return {name: value for name, value in vars(self).items() if value is not None}


PHASES: dict[str, Phase] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(PhaseTimes, include_extras=True).items()
}


@dataclass(frozen=True)
class Waits:
    """What a rank waited in the exchange until the last of all came to it, and by phase what the others waited for it
    because it was the last: milliseconds per step, over the last 500 steps of an epoch."""

    waited: float
    caused: dict[str, float]


@dataclass(frozen=True)
class LongSteps:
    """The steps of an epoch in which a phase takes much longer than in the others, of the last 500.

    share: how many of the steps, 0..1. milliseconds: by what they lengthen the mean step. period: from each to the
    next, in steps; None where that differs.
    """

    share: float
    milliseconds: float
    period: int | None


@dataclass(frozen=True)
class RankTimes:
    """One rank's training in one epoch, in seconds. cpu_seconds: of all its threads, without loader workers;
    queue_seconds: how long they were ready to run and had no core, None where the kernel does not tell; waits: None
    where no exchange is told apart, or stages wait for one another. long_steps: by phase, where some take much longer.
    throttled_seconds: how long its control group was stopped for its quota, summed over cores; None without one."""

    train_seconds: float
    phases: PhaseTimes
    cpu_seconds: float
    queue_seconds: float | None
    waits: Waits | None = None
    long_steps: dict[str, LongSteps] = field(default_factory=dict)
    throttled_seconds: float | None = None


@dataclass(frozen=True)
class EpochRecord:
    """One epoch. Seconds and phases are the slowest rank's; counts and losses over all ranks; accuracy is in 0..1.

    ranks: each rank's own times, where they were kept. start: when its training began, by rank 0's time.monotonic();
    None where that is not known, or was in the run that this one resumes.
    """

    epoch: Count
    train_seconds: Measured
    evaluate_seconds: Measured
    samples: Count
    steps: Count
    train_loss: Measured
    test_loss: Measured
    test_accuracy: Measured
    phases: PhaseTimes
    ranks: tuple[RankTimes, ...] = ()
    start: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name != "start":
                object.__setattr__(self, name, math.nan)


@dataclass(frozen=True)
class Span:
    """Something that a rank did in the traced steps, in milliseconds from their begin. lane: "step", of which name is a
    phase; "link", for exchanges; or the GPU that ran a kernel."""

    rank: int
    lane: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class RunResult:
    """One run of one training script. Times are in seconds, memory in bytes, accuracies in 0..1.

    status: ok, skipped, failed, timed out, diverged, not reached (the target accuracy) or invalid; reason: why.
    simulated: one device stood in for those that the method needs; the times say nothing about speed.
    startup_seconds: from the command's start (of a rank, its launcher's) to the first step; total_seconds: to the end
    of the last evaluation, without what it waited for its turns.
    method_milliseconds: what only this method spends, per training batch, e.g. {"scatter": 0.1, "gather": 0.2}.
    peak_memory_bytes: of each device: on a GPU the most that PyTorch allocated while training, after the first epoch if
    there is another; on a CPU the most that the process had in memory since its start, without its loader workers.
    reserved_memory_bytes: on a GPU, the most that PyTorch kept for itself then. memory_parts: on the device with the
    largest peak.
    data_ranks: among how many ranks the images are divided, each with workers_per_process.
    checksums: of the code, the data set and the user's own network; empty where the result is older.
    """

    method: str
    status: str
    reason: str
    simulated: bool
    command: str
    config: dict
    environment: Environment
    world_size: int
    devices: Annotated[tuple[str, ...], Meta(min_length=1)]
    parameters: int
    global_batch_size: int
    per_device_batch_size: int
    workers_per_process: int
    threads_per_process: int
    startup_seconds: float = 0.0
    total_seconds: float = 0.0
    class_accuracy: dict[str, Measured] | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    method_milliseconds: dict[str, float] | None = None
    epochs: tuple[EpochRecord, ...] = ()
    precision: str = "float32"
    memory_parts: dict[str, int] = field(default_factory=dict)
    data_ranks: int = 1
    gpu_uuids: tuple[str, ...] = ()
    reserved_memory_bytes: tuple[int, ...] = ()
    timeline: tuple[Span, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)
    schema_version: Literal[6] = SCHEMA_VERSION

    @property
    def note(self) -> str:
        """The reason, in front of it whether devices were simulated."""
        return f"{'SIMULATED: ' if self.simulated else ''}{self.reason}"

    @property
    def timed_epochs(self) -> tuple[EpochRecord, ...]:
        """The epochs that count for times: all but the first, which warms up, unless it is the only one."""
        return self.epochs[1:] or self.epochs

    @property
    def loader_workers(self) -> int:
        """How many processes load images, over all ranks."""
        return self.workers_per_process * self.data_ranks


def write_result(result: RunResult, path: str | Path) -> None:
    """Write a RunResult as JSON (temporary file, fsync, rename)."""
    write_json(result, path)


def read_result(path: str | Path) -> RunResult:
    """Read what write_result wrote. Raises SuiteError if the file is missing, damaged or of another schema."""
    try:
        values = read_json(path)
        if isinstance(values, dict) and values.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {values.get('schema_version')!r}, not {SCHEMA_VERSION}")
        return as_record(values, RunResult)
    except (OSError, ValueError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise SuiteError(f"cannot read the result file {path}", found, "run it again", FAILED) from None
