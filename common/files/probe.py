"""What one device can do alone, as common.programs.probe measures it: Probe and its parts. Never imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTime:
    """The median time of a training step of a model on `batch` images, without a loader."""

    model: str
    batch: int
    milliseconds: float


@dataclass(frozen=True)
class BlockTime:
    """The time of the forward and backward pass of one block of a model, by which it is cut into stages."""

    model: str
    block: str
    milliseconds: float


@dataclass(frozen=True)
class Bucket:
    """Gradients that DistributedDataParallel exchanges at once, in bytes; left: the share of a step's time that the
    backward pass still takes when the last of them is computed, None if not known."""

    size: int
    left: float | None


@dataclass(frozen=True)
class ModelLink:
    """A model's gradients in bytes, and the gigabits per second at which ranks that train exchange them.

    short_milliseconds, long_milliseconds: of an exchange of a kilobyte, and of all gradients, between ranks of which
    none waits for another. buckets: in the order of their exchange. flop: floating-point operations of convolutions and
    matrix products in the forward and backward pass, per image; None where PyTorch cannot count them.
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
    """What a training loader delivers while nothing else works; cpu_seconds_per_image: with those of its workers."""

    num_workers: int
    images_per_second: float
    cpu_seconds_per_image: float


@dataclass(frozen=True)
class MemoryUse:
    """Of a device, "cpu" or "cuda": the most that the probe's process had (on a GPU, that PyTorch reserved), and what
    is free besides; None for a GPU that is one process's alone."""

    device: str
    peak_bytes: int
    free_bytes: int | None


@dataclass(frozen=True)
class Probe:
    """All that was measured; a step that did not fit into memory is missing. resident_images_per_second: None where the
    resident loader is the one in question, or did not fit; wall_seconds: of the whole, from outside."""

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
        """Return batch → milliseconds of a model's training step."""
        return {step.batch: step.milliseconds for step in self.steps if step.model == model}
