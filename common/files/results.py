"""What a run found: RunResult and its parts, as JSON out and in.

Raw values only: whatever can be derived (medians, speed-ups) is derived where it is shown. Never imports torch.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypedDict

from common.errors import FAILED, SuiteError
from common.files.reading import as_tuple, check_types, read_text
from common.files.writing import write_json

# 2 added precision; a result of version 1 was always float32; 3 added memory_parts; 4 each epoch's ranks, and the phase
# "exchange", which was part of "backward"; 5 added data_ranks; 6 gpu_uuids, reserved_memory_bytes,
# each epoch's start and timeline
SCHEMA_VERSION = 6


class Environment(TypedDict):
    """The machine and its software: of all that describe_environment() says, what is asked for later."""

    torch: str
    cores: int
    gpus: list[str]


@dataclass(frozen=True)
class PhaseTimes:
    """Where a step's time went, in milliseconds per step: the mean over one epoch of one rank.

    None: a phase that the method's step does not tell apart.
    """

    data: float | None = None  # waiting for the next batch
    transfer: float | None = None  # host to device
    forward: float | None = None  # with the loss
    backward: float | None = None
    exchange: float | None = None  # from a rank's own last gradient until the mean over all ranks is there; of a stage
    # of a pipeline, all that it waits for the others' features and gradients, and to send its own
    update: float | None = None  # optimizer step
    rest: float | None = None  # what the method's step does in none of these

    @property
    def known(self) -> dict[str, float]:
        """The phases that were told apart, by their names."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class RankTimes:
    """One rank's training in one epoch, in seconds.

    cpu_seconds: of the CPU, all threads of the rank together, without its loader workers. queue_seconds: how long those
    threads were ready to run and had no core, because something else had it; None where the kernel does not tell.
    """

    train_seconds: float
    phases: PhaseTimes
    cpu_seconds: float
    queue_seconds: float | None


@dataclass(frozen=True)
class EpochRecord:
    """One epoch. Seconds and phases are the slowest rank's; counts and losses over all ranks; accuracy is in 0..1.

    ranks: each rank's own times, by its number; empty in an older result. start: when its training began, on rank 0's
    machine's time.monotonic(); None in an older result, and where it had begun in the run that this one resumes.
    """

    epoch: int
    train_seconds: float
    evaluate_seconds: float
    samples: int
    steps: int
    train_loss: float
    test_loss: float
    test_accuracy: float
    phases: PhaseTimes
    ranks: tuple[RankTimes, ...] = ()
    start: float | None = None


@dataclass(frozen=True)
class Span:
    """Something that a rank did in the traced steps, in milliseconds from their begin.

    lane: "step", of which name is a phase; "link", of what ranks exchange; or the name of a GPU that ran a kernel.
    """

    rank: int
    lane: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class RunResult:
    """One run of one training script. Times are in seconds, memory in bytes, accuracies in 0..1.

    status: ok, skipped, failed, timed out, diverged, not reached (the target accuracy) or invalid; `reason` says why
    where it is not ok.
    simulated: the devices that the method needs were stood in for by one device; the times say nothing about speed.
    startup_seconds: from the command's start (of a rank, its launcher's) to the first step; total_seconds: to the end
    of the last evaluation, without what it waited for its turns.
    method_milliseconds: what only this method spends, per training batch, e.g. {"scatter": 0.1, "gather": 0.2}.
    precision: the type that the arithmetic is done in.
    peak_memory_bytes: one for each of `devices`: on a GPU the most that PyTorch allocated while training; on a CPU the
    most that the process had in memory since its start, with the interpreter, the libraries and the data, but without
    its loader workers. reserved_memory_bytes: on a GPU, the most that PyTorch kept for itself, which is more.
    memory_parts: bytes of "parameters", "gradients" and "optimizer state" on the device with the largest peak.
    data_ranks: among how many ranks the images are divided, each with workers_per_process; None in an older result,
    where these are all ranks. gpu_uuids: of each of `devices`; none on a CPU. timeline: what
    was traced, with --profile.
    """

    method: str
    status: str
    reason: str
    simulated: bool
    command: str
    config: dict
    environment: Environment
    world_size: int
    devices: tuple[str, ...]
    parameters: int
    global_batch_size: int
    per_device_batch_size: int
    workers_per_process: int
    threads_per_process: int
    startup_seconds: float = 0.0
    total_seconds: float = 0.0
    class_accuracy: dict[str, float] | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    method_milliseconds: dict[str, float] | None = None
    epochs: tuple[EpochRecord, ...] = ()
    precision: str = "float32"
    memory_parts: dict[str, int] | None = None
    data_ranks: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    reserved_memory_bytes: tuple[int, ...] = ()
    timeline: tuple[Span, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def loading_ranks(self) -> int:
        """How many ranks load images: the stages of a pipeline see the same ones, which the first loads."""
        return self.data_ranks or self.world_size

    @property
    def timed_epochs(self) -> tuple[EpochRecord, ...]:
        """The epochs that count for times: all but the first, which warms up, unless it is the only one."""
        return self.epochs[1:] or self.epochs

    @property
    def loader_workers(self) -> int:
        """How many processes load images, over all ranks."""
        return self.workers_per_process * self.loading_ranks


def write_result(result: RunResult, path: str | Path) -> None:
    """Write a RunResult as JSON (temporary file, fsync, rename)."""
    write_json(asdict(result), path)


def read_result(path: str | Path) -> RunResult:
    """Read what write_result wrote. Raises SuiteError if the file is missing, damaged or of another schema."""
    try:
        return result_from_dict(json.loads(read_text(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SuiteError(
            f"cannot read the result file {path}", f"{type(error).__name__}: {error}", "run it again", FAILED
        ) from None


def result_from_dict(values: dict) -> RunResult:
    """Return the RunResult that `dataclasses.asdict` (and JSON) made `values` from.

    Raises ValueError for a schema_version that is not known yet, TypeError for fields that are missing, unknown or of
    another type.
    """
    if values.get("schema_version") not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(f"schema_version is {values.get('schema_version')!r}, not one of 1 to {SCHEMA_VERSION}")
    epochs = tuple(epoch_from_dict(epoch) for epoch in as_tuple(values["epochs"]))
    tuples = {
        key: as_tuple(values.get(key, ()))
        for key in ("devices", "peak_memory_bytes", "gpu_uuids", "reserved_memory_bytes")
    }
    result = RunResult(**{**values, **tuples, "epochs": epochs, "timeline": spans_from(values)})
    check_types(result, RunResult, "result")
    if not result.devices:
        raise ValueError("result.devices are none")
    return result


def spans_from(values: dict) -> tuple[Span, ...]:
    """Return the Spans in values["timeline"], as JSON has them; none in an older result."""
    return tuple(Span(**span) for span in as_tuple(values.get("timeline", ())))


def epoch_from_dict(values: dict) -> EpochRecord:
    """Return the EpochRecord that `dataclasses.asdict` (and JSON) made `values` from."""
    numbers = {
        key: float("nan") if value is None and key != "start" else value for key, value in values.items()
    }  # NaN became null
    ranks = tuple(
        RankTimes(**{**rank, "phases": PhaseTimes(**rank["phases"])}) for rank in as_tuple(values.get("ranks", ()))
    )
    return EpochRecord(**{**numbers, "phases": PhaseTimes(**values["phases"]), "ranks": ranks})


def phase_names() -> tuple[str, ...]:
    """The phases of a step, in their order."""
    return tuple(field.name for field in fields(PhaseTimes))
