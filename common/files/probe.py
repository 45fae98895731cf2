"""Measurements of one device by common.programs.probe: Probe and its parts. Does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTime:
    """The median time of a training step of a model on `batch` images, without a loader."""

    model: str
    batch: int
    milliseconds: float


@dataclass(frozen=True)
class BlockTime:
    """The time of the forward and backward pass of a block and of those after it that belong to it, used to cut a model
    into stages."""

    model: str
    block: str
    milliseconds: float


@dataclass(frozen=True)
class Bucket:
    """Gradients that DistributedDataParallel exchanges together, in bytes. left: the part of the backward pass that
    remains once all of them are computed, as a share of the step's time; None if unknown."""

    size: int
    left: float | None


@dataclass(frozen=True)
class ModelLink:
    """A model's gradients in bytes, and the gigabits per second at which ranks exchange them while training.

    short_milliseconds, long_milliseconds: for an exchange of a kilobyte, and of all gradients, if no rank waits for
    another. buckets: in the order of their exchange. flop: floating-point operations per image of convolutions and
    matrix products in the forward and backward pass; None if PyTorch cannot count them.
    """

    model: str
    gradient_bytes: int
    link_gbps: float | None
    short_milliseconds: float | None = None
    long_milliseconds: float | None = None
    buckets: tuple[Bucket, ...] = ()
    flop: float | None = None


@dataclass(frozen=True)
class LoaderSpeed:
    """The speed of a training loader while nothing else runs. cpu_seconds_per_image: including its workers."""

    num_workers: int
    images_per_second: float
    cpu_seconds_per_image: float


@dataclass(frozen=True)
class MemoryUse:
    """The peak memory of the probe's process on a device, "cpu" or "cuda" (on a GPU, reserved by PyTorch), and the
    memory still free; None if only one process may use a GPU."""

    device: str
    peak_bytes: int
    free_bytes: int | None


@dataclass(frozen=True)
class Probe:
    """All measurements. steps: without those that did not fit into memory. resident_images_per_second: None if the
    comparison uses the resident loader anyway, or if it did not fit. wall_seconds: of the probe's process."""

    train_images: int
    test_images: int
    startup_seconds: float
    steps: tuple[StepTime, ...]
    models: tuple[ModelLink, ...]
    loaders: tuple[LoaderSpeed, ...]
    resident_images_per_second: float | None = None
    wall_seconds: float | None = None
    memory: tuple[MemoryUse, ...] = ()
    blocks: tuple[BlockTime, ...] = ()

    def step_milliseconds(self, model: str) -> dict[int, float]:
        """Return batch size → milliseconds of a model's training step."""
        return {step.batch: step.milliseconds for step in self.steps if step.model == model}
