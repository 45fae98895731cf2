"""What the runs of one row show by themselves: times, throughput, phases, memory, and reasons to doubt the times."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.files.results import EpochRecord, PhaseTimes, RunResult
from comparison.judge.ranks import critical_phases, means_by_name
from comparison.judge.statistics import Array, mean_interval
from comparison.outcomes import Outcome
from comparison.rows import Row

A_THOUSAND = 1000  # samples: scripts are compared by the time for these, as they have no epochs in common

# Thresholds of the warnings.
UNSTEADY = 0.06  # standard deviation of a row's runs, as a share
STALLED = 0.05  # relative difference between a run's mean and median epoch
LONG_FIRST = 1.5  # length of the first epoch, relative to the others
RAGGED = 0.1  # relative difference from which the most frequent batch size does not describe the steps
MOST_HELD_DOWN = 0.1  # share of the time in which heat or a power limit held a GPU's clocks down

# Peak TFLOP/s without sparsity, by the driver's name of a card and RunResult.precision. Those of 16 bits and of TF32
# are the tensor cores', which accumulate in float32. Other cards and parts of a card (MIG) are unknown. Sources: the
# data sheets "NVIDIA H100 Tensor Core GPU" and "H200" (2024; with sparsity, so halved), "A100 80GB" (2022), "L40S"
# (2023), "L4" (2023; halved), "A10" (2021), "T4" (2019), "Tesla V100" (2018) and "Tesla P100" (2016); for the RTX 4090,
# "NVIDIA Ada GPU Architecture", 2023.
FP32, TF32, BF16, FP16 = "float32", "float32 as TF32", "bfloat16 autocast", "float16 autocast"
_H100 = {FP32: 67.0, TF32: 494.5, BF16: 989.5, FP16: 989.5}
_A100 = {FP32: 19.5, TF32: 156.0, BF16: 312.0, FP16: 312.0}
_V100, _V100_PCIE = {FP32: 15.7, FP16: 125.0}, {FP32: 14.0, FP16: 112.0}
PEAKS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H200"), _H100),
    "NVIDIA H100 NVL": {FP32: 60.0, TF32: 417.5, BF16: 835.5, FP16: 835.5},
    "NVIDIA H100 PCIe": {FP32: 51.0, TF32: 378.0, BF16: 756.5, FP16: 756.5},
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), _A100),
    **dict.fromkeys(("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), _A100),
    "NVIDIA L40S": {FP32: 91.6, TF32: 183.0, BF16: 362.0, FP16: 362.0},
    "NVIDIA L4": {FP32: 30.3, TF32: 60.0, BF16: 121.0, FP16: 121.0},
    "NVIDIA A10": {FP32: 31.2, TF32: 62.5, BF16: 125.0, FP16: 125.0},
    "NVIDIA GeForce RTX 4090": {FP32: 82.6, TF32: 82.6, BF16: 165.2, FP16: 165.2},
    "Tesla T4": {FP32: 8.1, FP16: 65.0},
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), _V100),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _V100_PCIE),
    "Tesla P100-PCIE-16GB": {FP32: 9.3, FP16: 18.7},
}


@dataclass(frozen=True)
class Finding:
    """Something that the measurements show. values: those of its sentence, whose words comparison.show.sentences has.

    of: "step" or "run" if its sentence is a clause in the account of one; "machine" if the machine lacks something.
    wording: which sentence, if the kind has several.
    """

    kind: str
    values: Mapping[str, object] = field(default_factory=dict)
    of: str = ""
    wording: str = ""


@dataclass(frozen=True)
class Memory:
    """Peak memory in bytes, the median over the runs. peak: of the device with the most; together: of all devices.

    parts: the known parts of the peak.
    """

    peak: float
    together: float
    parts: dict[str, int]

    @property
    def rest(self) -> float:
        """The peak without its known parts."""
        return self.peak - sum(self.parts.values())


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured.

    Times are geometric means over the runs, adjusted to all blocks if a row has fewer runs, so that the quotient of two
    rows' times is their ratio. For the time per epoch, each run counts with its mean over the epochs without the
    warm-up; fastest and slowest are over all those epochs; a script has none of the three. asked_seconds: the time that
    rows are judged by (see Measures). accuracies: of the runs' last epochs, 0..1; empty for a method that trains
    something else on purpose.
    phases: the critical rank's milliseconds per step, mean over the timed epochs of all runs.
    """

    runs: int = 0
    asked_seconds: float | None = None
    epoch_seconds: float | None = None
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracies: tuple[float, ...] = ()
    total_seconds: float | None = None  # from start to exit of the command
    training_seconds: float | None = None  # of all epochs
    training_interval: tuple[float, float] | None = None  # 95%, around training_seconds
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    memory: Memory | None = None
    images_per_joule: float | None = None  # energy of its GPUs only, in the timed epochs
    mfu: float | None = None  # model FLOPs utilisation, 0..1: see utilisation()
    warnings: tuple[Finding, ...] = ()  # reasons to doubt its times

    @property
    def accuracy(self) -> float | None:
        """The mean over the runs."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def step_milliseconds(self) -> float:
        """The sum of all phases of a step; needs a result."""
        return sum(self.phases.known.values())

    @property
    def waiting_share(self) -> float:
        """The share of a step spent waiting for data, 0..1; needs a result."""
        return self.phases.known.get("data", 0.0) / self.step_milliseconds


def image_seconds(_: Outcome, result: RunResult) -> float:
    """Return a run's mean seconds per image: rows may differ in the number of images of an epoch."""
    epochs = result.timed_epochs
    return sum(epoch.train_seconds for epoch in epochs) / sum(epoch.samples for epoch in epochs)


def successful_runs(row: Row) -> list[tuple[Outcome, RunResult]]:
    """Return the successful runs with their results."""
    return [(run, run.result) for run in row.outcomes if run.result and run.status == "ok"]


def summarise(
    row: Row, trainings: Array, flop: float | None, asked: float, per_image: float, training: float, total: float
) -> Summary:
    """Return one row's derived numbers.

    trainings: the seconds of each run's training. flop: per image, if known. asked, per_image, training, total:
    adjusted mean seconds of what rows are judged by, of an image, of the training and of the command.
    """
    if not row.results:
        return Summary()
    epochs = [epoch for result in row.results for epoch in result.timed_epochs]
    phases = [epoch.known for result in row.results for epoch in critical_phases(result)]
    return Summary(
        runs=len(row.results),
        asked_seconds=asked,
        **({} if row.configuration.is_script else _epoch_times(epochs, per_image)),
        images_per_second=1 / per_image,
        accuracies=tuple(result.epochs[-1].test_accuracy for result in row.results) if row.learns else (),
        total_seconds=total,
        training_seconds=training,
        training_interval=mean_interval(trainings, training),
        phases=PhaseTimes(**means_by_name(phases, [epoch.steps for epoch in epochs])),
        memory=_memory(row.results),
        images_per_joule=_images_per_joule(row),
        mfu=utilisation(row, 1 / per_image, flop),
        warnings=tuple(unsteadiness(row)),
    )


def _epoch_times(epochs: Sequence[EpochRecord], per_image: float) -> dict[str, float]:
    seconds = [epoch.train_seconds for epoch in epochs]
    mean = per_image * statistics.fmean(epoch.samples for epoch in epochs)
    return {"epoch_seconds": mean, "fastest_epoch": min(seconds), "slowest_epoch": max(seconds)}


def _memory(results: Sequence[RunResult]) -> Memory | None:
    devices = [result.peak_memory_bytes for result in results if result.peak_memory_bytes]
    if not devices:
        return None
    peak, together = (statistics.median(map(combine, devices)) for combine in (max, sum))
    parts = results[0].memory_parts or {}
    known = parts if any(parts.values()) else {}  # every network has parameters
    return Memory(peak, together, known)


def _images_per_joule(row: Row) -> float | None:
    """Return the images per joule; None unless the energy of every GPU of every run is known."""
    runs = [
        (statistics.fmean(epoch.samples for epoch in result.timed_epochs), [card.joules or 0.0 for card in run.cards])
        for run, result in successful_runs(row)
    ]
    if not all(joules and all(joules) for _, joules in runs):
        return None
    return statistics.geometric_mean(samples / sum(joules) for samples, joules in runs)


def utilisation(row: Row, images_per_second: float, flop: float | None) -> float | None:
    """Return the share of its devices' peak that a row computes, 0..1; None if the peak of one is unknown.

    Model FLOPs utilisation (A. Chowdhery et al., "PaLM", 2022, appendix B): recomputation to save memory does not
    count. flop: of the forward and backward pass of one image.
    """
    if not flop or row.simulated:
        return None
    result = row.results[0]
    names = [device.partition(" (")[2].removesuffix(")") for device in result.devices]
    peaks = [PEAKS.get(name, {}).get(result.precision) for name in names]
    known = [1e12 * peak for peak in peaks if peak]
    return images_per_second * flop / sum(known) if len(known) == len(peaks) else None


def unsteadiness(row: Row) -> list[Finding]:
    """Return reasons to doubt a row's times. Needs a result."""
    is_script = row.configuration.is_script
    reasons = []
    seconds = [statistics.fmean(_comparable_seconds(row, result.timed_epochs)) for result in row.results]
    spread = statistics.stdev(map(math.log, seconds)) if len(seconds) > 1 else 0.0
    if spread > UNSTEADY:
        values = {"n": spread, "fastest": min(seconds), "slowest": max(seconds)}
        reasons.append(Finding("spread", values, wording="spread of slices" if is_script else ""))
    for outcome, result in successful_runs(row):
        reasons += _odd_epochs(row, outcome.block, result.timed_epochs)
    runs = zip(row.results, seconds, strict=True)
    first = [result.epochs[0].train_seconds / mean for result, mean in runs if result.timed_epochs != result.epochs]
    if first and statistics.median(first) > LONG_FIRST and not is_script:
        reasons.append(Finding("long first epoch", {"x": statistics.median(first)}))
    held = max((card.held_down or 0.0 for run, _ in successful_runs(row) for card in run.cards), default=0.0)
    if held > MOST_HELD_DOWN:
        reasons.append(Finding("held down", {"n": held}))
    return reasons


def _odd_epochs(row: Row, block: int, epochs: Sequence[EpochRecord]) -> list[Finding]:
    """Return the epochs or slices that pull a run's mean away from its median, if any."""
    seconds = _comparable_seconds(row, epochs)
    mean, median = statistics.fmean(seconds), statistics.median(seconds)
    if abs(mean / median - 1) <= STALLED:
        return []
    sign = 1 if mean > median else -1
    odd = [(epoch, own) for epoch, own in zip(epochs, seconds, strict=True) if sign * (own / median - 1) > STALLED]
    numbers, times = tuple(epoch.epoch for epoch, _ in odd), tuple(own for _, own in odd)
    noun = ("slice" if row.configuration.is_script else "epoch") + ("" if len(odd) == 1 else "s")
    found = Finding(f"odd {noun}", {"n": numbers, "s": times, "median": median})
    return [Finding("stalled", {"n": block, "epochs": found}, wording="" if sign > 0 else "fast period")]


def _comparable_seconds(row: Row, epochs: Sequence[EpochRecord]) -> list[float]:
    """Return the seconds of each epoch; of a script's slices, which differ in length, those of A_THOUSAND samples."""
    if not row.configuration.is_script:
        return [epoch.train_seconds for epoch in epochs]
    return [A_THOUSAND * epoch.train_seconds / epoch.samples for epoch in epochs]


def usual_batch(results: Sequence[RunResult]) -> int:
    """Return the most frequent number of samples in a step of a row or, if the mean is far from it, the mean."""
    epochs = [epoch for result in results for epoch in result.timed_epochs]
    mean = sum(epoch.samples for epoch in epochs) / sum(epoch.steps for epoch in epochs)
    batch = results[0].global_batch_size
    return batch if abs(mean / batch - 1) <= RAGGED else round(mean)
