"""Cutting a network into stages, and two stages in one process."""

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import nn

from common.engine.timing import SampledTimers, block_seconds
from common.errors import USAGE, SuiteError
from common.machine.environment import available_devices
from common.models.build import block_names, refuse_uncut, split_index
from common.models.cuts import balanced_cut, stage_starts
from common.settings.contradictions import check_micro_batches
from common.words import count


def measure_parts(model: nn.Sequential, images: torch.Tensor) -> dict[int, float]:
    """Return index of the first block → seconds, of all parts of a network that can be stages.

    seconds: of the forward and backward pass, measured with images (B, C, H, W). Blocks that share a weight or pass
    anything but a tensor belong to one part. All parts have weights to train, if two can: see stage_starts().
    """
    firsts = [*_find_firsts(model, images), len(model)]
    parts = [model[start:end] for start, end in itertools.pairwise(firsts)]  # they keep the precision
    trains = [any(weight.requires_grad for weight in part.parameters()) for part in parts]
    times = block_seconds(parts, images)
    ends = itertools.pairwise([*stage_starts(times, trains), len(parts)])
    return {firsts[start]: sum(times[start:end]) for start, end in ends}


@torch.no_grad()
def _find_firsts(model, images):
    """Return the indices of the blocks that get one tensor, and before which no weight is in use that is used again."""
    dtype, firsts = torch.float64 if getattr(model, "precision", "") == "fp64" else None, []
    features = torch.zeros(2, *images.shape[1:], dtype=dtype, device=images.device)
    for index in range(len(model)):
        shared = {*model[:index].parameters()} & {*model[index:].parameters()}
        if isinstance(features, torch.Tensor) and not shared:
            firsts.append(index)
        part = copy.deepcopy(model[index : index + 1]).to(images.device).eval()
        part.precision = "fp32"  # the others convert tensors, and would fail with anything else
        features = part(features)
    return firsts


def cut_model(model: nn.Sequential, stages: int, split_at: Sequence[str], images: torch.Tensor) -> list[int]:
    """Return the index of each stage's first block, followed by the number of blocks.

    split_at: the first block of every stage but the first. If empty, balance the stages' times, measured with images
    (B, C, H, W). Raises SuiteError (USAGE) if stages would share a weight, or pass anything but a tensor.
    """
    if stages == 1:
        return [0, len(model)]
    inner = [split_index(model, block) for block in split_at] or _balance(model, stages, images)
    cut = [0, *inner, len(model)]
    weights = [{*model[start:end].parameters()} for start, end in itertools.pairwise(cut)]
    if len(set.union(*weights)) < sum(map(len, weights)):
        advice = "give each part weights of its own, or another --split-at"
        raise SuiteError("two stages would have the same weights", where_cut(model, cut), advice, USAGE)
    if split_at and not {*inner} <= {*_find_firsts(model, images)}:
        advice = "give another --split-at, or fix the model"
        raise SuiteError("a stage must return one tensor", where_cut(model, cut), advice, USAGE)
    return cut


def _balance(model, stages, images):
    parts = measure_parts(model, images)
    if len(parts) < stages:
        names = ", ".join(block_names(model)[first] for first in parts if first)
        found = f"it has places to cut before {names}" if names else "it has no place to cut"
        advice = "let each part return one tensor and have weights of its own"
        raise SuiteError(f"this model cannot make {stages} stages", found, advice, USAGE)
    return [list(parts)[index] for index in balanced_cut(list(parts.values()), stages)]


def where_cut(model: nn.Sequential, cut: list[int]) -> str:
    """Return e.g. "it is cut before conv2, full1"."""
    return f"it is cut before {', '.join(block_names(model)[index] for index in cut[1:-1])}"


class TwoStage(nn.Module):
    """Two stages on one or two devices. A batch goes through them in `micro_batches` parts."""

    def __init__(self, stage0: nn.Module, stage1: nn.Module, devices, micro_batches: int):
        super().__init__()
        self.stage0, self.stage1 = stage0.to(devices[0]), stage1.to(devices[-1])
        self.device1, self.micro_batches = devices[-1], micro_batches
        self.timers = SampledTimers(devices[:1], devices[-1:])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        timer0, timer1 = self.timers.of_batch(self.training)
        outputs = []
        for part in images.tensor_split(min(self.micro_batches, len(images))):  # M x (B/M, C, H, W) on device 0
            # On GPUs these calls only queue work: device 0 starts on the next part while device 1 runs this one.
            timer0.start()
            features = self.stage0(part)
            timer0.mark("stage 0")
            features = features.to(self.device1, non_blocking=True)
            timer1.start()
            outputs.append(self.stage1(features))
            timer1.mark("stage 1")
        return torch.cat(outputs)  # (B, classes) on device 1


def choose_stage_devices(config, options) -> list[torch.device]:
    """Return the devices of the two stages: one device without --use-model-parallel, or if there is only one."""
    check_micro_batches(options.micro_batches, config.batch_size, config.accumulate)
    return available_devices(config.device)[: 2 if options.use_model_parallel else 1]


def split_in_two(model: nn.Sequential, images: torch.Tensor, block: str | None) -> int:
    """Return the index of the second stage's first block, as chosen by cut_model()."""
    refuse_uncut(model)
    return cut_model(model, 2, [block] if block else (), images)[1]


def describe_two(parallel: TwoStage, model: nn.Sequential, cut: int, devices, options) -> dict:
    """Return the fields of the ParallelContext that depend on the method."""
    parts, place = options.micro_batches, "one stage per device" if len(devices) > 1 else "both stages on one device"
    return {
        "method": ("mp-micro" if parts > 1 else "mp") if options.use_model_parallel else "mp-control",
        "simulated": options.use_model_parallel and len(devices) == 1,
        "timers": parallel.timers,
        "note": f"{place}, second stage from {block_names(model)[cut]}, {count(parts, 'micro-batch', 'es')}",
    }
