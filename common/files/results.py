"""The result of a run: RunResult and its parts, written to and read from JSON. Does not import torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict, get_type_hints

from msgspec import Meta

from common.errors import FAILED, SuiteError, remedy
from common.files.checksums import json_checksum
from common.files.reading import as_record, read_json, to_json_types
from common.files.writing import write_json

SCHEMA_VERSION: Literal[7] = 7
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
if TYPE_CHECKING:
    Measured = float
else:
    Measured = float | None  # null stands for NaN in a file
EXCHANGE = (
    "from a rank's own last gradient until the mean over all ranks is there; "
    "of a pipeline's stage, sending features and gradients, and waiting for the others'"
)


class Environment(TypedDict):
    """The machine and its software, from describe_environment(). nodes: one description each, if there are several."""

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
    """A part of a step. color: from a colour-blind safe palette with a contrast of 3 to white."""

    meaning: str
    color: str


@dataclass(frozen=True)
class PhaseTimes:
    """Mean milliseconds per step of one rank in one epoch. None: a phase that the method does not measure."""

    data: Annotated[float | None, Phase("waiting for the next batch", "#CB6300")] = None
    transfer: Annotated[float | None, Phase("host to device", "#710029")] = None
    forward: Annotated[float | None, Phase("forward pass, with the loss", "#0A84DE")] = None
    backward: Annotated[float | None, Phase("backward pass", "#132D76")] = None
    exchange: Annotated[float | None, Phase(EXCHANGE, "#B01C1C")] = None
    update: Annotated[float | None, Phase("optimizer's step", "#005F76")] = None
    rest: Annotated[float | None, Phase("what the method's step does in none of these", "#848484")] = None

    @property
    def known(self) -> dict[str, float]:
        """The measured phases: name → milliseconds."""
        return {name: value for name, value in vars(self).items() if value is not None}


PHASES: dict[str, Phase] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(PhaseTimes, include_extras=True).items()
}


@dataclass(frozen=True)
class Waits:
    """Milliseconds per step over the last 500 steps of an epoch. waited: in the exchange, until the last rank entered
    it. caused: by phase, how long the others waited for this rank when it was the last."""

    waited: float
    caused: dict[str, float]


@dataclass(frozen=True)
class LongSteps:
    """Steps in which a phase takes much longer than in the others, among the last 500 of an epoch.

    share: of the steps, 0..1. milliseconds: added to the mean step. period: steps from one to the next; None if it
    varies.
    """

    share: float
    milliseconds: float
    period: int | None


@dataclass(frozen=True)
class RankTimes:
    """The training times of one rank in one epoch, in seconds. cpu_seconds: of all its threads, without loader workers.
    queue_seconds: how long its threads were ready to run but had no core; None if the kernel does not report it. waits:
    None if the exchange is not measured, or if stages wait for one another. long_steps: by phase, if there are any.
    throttled_seconds: how long its control group was throttled, summed over cores; None if it has no quota."""

    train_seconds: float
    phases: PhaseTimes
    cpu_seconds: float
    queue_seconds: float | None
    waits: Waits | None = None
    long_steps: dict[str, LongSteps] = field(default_factory=dict)
    throttled_seconds: float | None = None


@dataclass(frozen=True)
class EpochRecord:
    """One epoch. Seconds and phases are the slowest rank's; counts and losses are over all ranks; accuracy is in 0..1.

    ranks: the times of each rank, if they were kept. start: when its training began, by rank 0's time.monotonic(); None
    if unknown, or if the epoch belongs to an earlier run that this one resumes.
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
    """An activity of a rank in the traced steps, in milliseconds from their start. lane: "step", if name is a phase;
    "link", for communication between ranks; or the GPU that ran a kernel."""

    rank: int
    lane: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class RunResult:
    """One run of one training script. Times are in seconds, memory in bytes, accuracies in 0..1.

    status: ok, skipped, failed, timed out, diverged, not reached (the target accuracy) or invalid; reason: why.
    simulated: one device stood in for the devices that the method needs, so the times say nothing about speed.
    startup_seconds: from the start of the command (for ranks, of their launcher) to the first step of an epoch.
    total_seconds: to the end of the last evaluation, without the time spent waiting for turns.
    timed_from: the first epoch that is timed: 1 if discarded steps warmed the run up, 2 if its first epoch does.
    method_milliseconds: time per training batch that only this method needs, e.g. {"scatter": 0.1, "gather": 0.2}.
    peak_memory_bytes: of each device. On a GPU, the peak allocated by PyTorch while training, after the first epoch if
    there are others; on a CPU, the peak resident memory of the process since its start, without its loader workers.
    reserved_memory_bytes: on a GPU, the peak reserved by PyTorch in the same time. memory_parts: on the device with the
    largest peak.
    data_ranks: the number of ranks that share the images, each with workers_per_process.
    checksums: of the code, the data set and the user's own network; empty in older results.
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
    timed_from: int = 2
    checksums: dict[str, str] = field(default_factory=dict)
    schema_version: Literal[7] = SCHEMA_VERSION

    @property
    def note(self) -> str:
        """The reason, with a prefix if devices were simulated."""
        return f"{'SIMULATED: ' if self.simulated else ''}{self.reason}"

    @property
    def timed_epochs(self) -> tuple[EpochRecord, ...]:
        """The epochs used for times: those from `timed_from` on or, if there are none, all."""
        return self.epochs[self.timed_from - 1 :] or self.epochs

    @property
    def loader_workers(self) -> int:
        """The number of loader processes over all ranks."""
        return self.workers_per_process * self.data_ranks


def write_result(result: RunResult, path: str | Path) -> None:
    """Write a result with a checksum of its values."""
    values = to_json_types(result)
    write_json({**values, "sha256": json_checksum(values)}, path)


def read_result(path: str | Path) -> RunResult:
    """Read a file of write_result(). Raises SuiteError if it is missing, damaged or has another schema version.

    Files from before there was a checksum have none.
    """
    try:
        values = read_json(path)
        if isinstance(values, dict) and values.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {values.get('schema_version')!r}, not {SCHEMA_VERSION}")
        signed = values.pop("sha256", None) if isinstance(values, dict) else None
        result = as_record(values, RunResult)
        if signed not in (None, json_checksum(values)):
            raise ValueError("its content does not match its checksum")
        return result
    except (OSError, ValueError, RecursionError) as error:
        found, advice = f"{type(error).__name__}: {error}", remedy(error, "run it again")
        raise SuiteError(f"cannot read the result file {path}", found, advice, FAILED) from None
