"""Pipeline parallelism: one stage of a network per rank, using torch.distributed.pipelining."""

import copy
import functools
import itertools
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from common.engine.place import States
from common.errors import USAGE, SuiteError
from common.files.results import RunResult
from common.models.build import Network, block_names, out_of_place, refuse_uncut, split_index
from common.ranks.group import Rank
from common.ranks.stages import cut_model, where_cut
from common.settings.contradictions import check_micro_batches
from common.words import count

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}  # all but gpipe need a micro-batch per stage


class Rows(nn.Module):
    """The blocks of one stage, with contiguous rows as inputs and outputs: one image's features in (H, W, C) order.

    Gloo only sends contiguous tensors, and torch 2.15 silently fills a stage's buffers only in part if a micro-batch is
    smaller. So all micro-batches of a batch have the same number of rows, padded with zeros.
    """

    def __init__(self, blocks: nn.Module, shape_in: tuple[int, ...]):
        super().__init__()
        self.blocks, self.shape_in = out_of_place(blocks), shape_in

    def expect(self, sizes: tuple[int, ...], mark) -> None:
        """Set the sizes of the next micro-batches, and the function to call at the end of each phase with its name."""
        self.sizes, self.mark = iter(sizes), mark

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map rows (R, input features) to rows (R, output features)."""
        self.size = next(self.sizes)
        return to_rows(self.blocks(from_rows(rows, self.size, self.shape_in)), (self.size,), len(rows))


def to_rows(features: torch.Tensor, sizes: tuple[int, ...], count: int) -> torch.Tensor:
    """Return micro-batches of these sizes, (B, C, H, W) or (B, …), as `count` contiguous rows each, zero-padded."""
    if features.dim() == 4:
        features = features.permute(0, 2, 3, 1)  # no copy if channels-last
    rows = features.flatten(1).contiguous()
    if min(sizes) == count:
        return rows
    return torch.cat([F.pad(part, (0, 0, 0, count - len(part))) for part in rows.split(sizes)])


def from_rows(rows: torch.Tensor, size: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first `size` rows as features (size, *shape), channels-last if the shape is (C, H, W)."""
    rows = rows if len(rows) == size else rows[:size]  # the gradient of a slice is a copy
    if len(shape) != 3:
        return rows.unflatten(1, shape)
    channels, height, width = shape
    return rows.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


class Stage(PipelineStage):
    """A stage that marks its phases. Time outside its forward and backward passes is spent waiting for other stages."""

    def forward_one_chunk(self, *arguments, **options):
        self._mark_waiting()
        try:
            outputs = super().forward_one_chunk(*arguments, **options)
        except RuntimeError as error:
            raise (error.__cause__ or error) from None  # torch wraps it, which would hide an out-of-memory error
        self.submod.mark("forward")
        return outputs

    def backward_one_chunk(self, *arguments, **options):
        self._mark_waiting()
        super().backward_one_chunk(*arguments, **options)
        self.submod.mark("backward")

    def _mark_waiting(self):
        if self.num_stages > 1:
            self.submod.mark("exchange")


class CommonScaler(torch.amp.GradScaler):
    """Make all stages skip the same steps, as ShardedGradScaler does, which does not support fused optimizers."""

    def _unscale_grads_(self, *arguments):
        found = super()._unscale_grads_(*arguments)
        for infinite in found.values():
            dist.all_reduce(infinite, dist.ReduceOp.MAX)
        return found


class Pipeline(nn.Module):
    """This rank's stage, and a schedule for every batch size. As a module, it maps images to logits.

    model: on the CPU; blocks of other stages are moved to the meta device. options: pipeline_train.py's flags.
    """

    def __init__(self, model: Network, image_shape: tuple[int, ...], place: Rank, config, options):
        super().__init__()
        self.place, self.options = place, options
        self.first, self.last = place.rank == 0, place.rank == place.ranks - 1
        self.cut = _choose_cut(model, image_shape, place, config, options)
        self.borders = _find_borders(model, self.cut, image_shape, place)[place.rank : place.rank + 2]
        start, end = self.cut[place.rank : place.rank + 2]
        for block in (*model[:start], *model[end:]):
            block.to("meta")
        self.rows = Rows(model[start:end].to(place.device), self.borders[0][0])
        self.schedule = functools.cache(self._make_schedule)
        if place.ranks > 1 and model.scaler.is_enabled():
            model.scaler = CommonScaler(place.device.type)

    def begin(self, images: torch.Tensor, labels: torch.Tensor | None, loss_function, mark):
        """Return the schedule for a batch, and this stage's arguments for it: (images,) or (), and labels or None.

        images: (B, C, H, W), used by the first stage. labels: (B,), used by the last. To get logits, pass None for
        labels and loss_function.
        """
        self.sizes = sizes = tuple(map(len, images.tensor_split(min(self.options.micro_batches, len(images)))))
        self.rows.expect(sizes, mark)
        inputs = (to_rows(images, sizes, max(sizes)),) if self.first else ()
        target = to_rows(labels[:, None], sizes, max(sizes))[:, 0] if self.last and labels is not None else None
        return self.schedule(sizes, loss_function), inputs, target

    def forward(self, images: torch.Tensor) -> torch.Tensor | None:
        """Map images (B, C, H, W) on the first stage to logits (B, classes) on the last. Other stages return None."""
        schedule, inputs, _ = self.begin(images, None, None, lambda phase: None)
        outputs = schedule.step(*inputs)
        if not self.last:
            return None
        parts = zip(outputs.split(max(self.sizes)), self.sizes, strict=True)
        return torch.cat([part[:size] for part, size in parts])

    def _make_schedule(self, sizes, loss_function):
        # Without given shapes, torch 2.11 infers them with a step that updates BatchNorm's statistics.
        inputs, outputs = (
            torch.empty(max(sizes), math.prod(shape), dtype=dtype, device="meta", requires_grad=True)
            for shape, dtype in self.borders
        )
        inputs.requires_grad_(not self.first)
        place = self.place
        stage = Stage(self.rows, place.rank, place.ranks, place.device, input_args=inputs, output_args=outputs)

        def loss_of_part(rows, labels):
            """Return a micro-batch's contribution to the batch mean. Micro-batches may differ in size."""
            size = self.rows.size
            loss = loss_function(rows[:size], labels[:size]) * size / sum(sizes)
            self.rows.mark("forward")
            return loss

        kind = ScheduleGPipe if len(sizes) < place.ranks else SCHEDULES[self.options.pipeline_schedule]
        return kind(stage, len(sizes), loss_fn=loss_function and loss_of_part, scale_grads=False)


def refuse_stages(model: nn.Sequential, stages: int, config, options) -> None:
    """Raise SuiteError (USAGE) if the network or the batch cannot be split for this number of stages."""
    if stages > 1:
        refuse_uncut(model)
    if stages > len(model):
        found = f"{count(stages, 'rank')}, and {config.model} has {count(len(model), 'block')}"
        raise SuiteError("every stage needs a block", found, "start fewer ranks", USAGE)
    check_micro_batches(options.micro_batches, config.batch_size, config.accumulate)
    if options.pipeline_schedule != "gpipe" and options.micro_batches < stages:
        what = f"{options.pipeline_schedule} needs a micro-batch for every stage"
        advice = "give more --micro-batches, or type --pipeline-schedule gpipe"
        raise SuiteError(what, f"--micro-batches {options.micro_batches}, {count(stages, 'stage')}", advice, USAGE)
    if options.split_at:
        cut = [split_index(model, block) for block in options.split_at]
        if len(cut) != stages - 1 or cut != sorted({*cut}):
            what = "--split-at names the first block of every stage but the first, in their order"
            advice = f"choose {stages - 1} of {', '.join(block_names(model)[1:])}"
            raise SuiteError(what, f"found {' '.join(options.split_at)} for {count(stages, 'stage')}", advice, USAGE)


def _choose_cut(model, image_shape, place, config, options):
    """Return rank 0's cut_model() on all ranks. Rank 0 alone raises an error about the cut."""
    cut = []
    if place.rank == 0:
        images = torch.zeros(math.ceil(config.batch_size / options.micro_batches), *image_shape, device=place.device)
        cut = cut_model(model, place.ranks, options.split_at or (), images)
        stages = [model[start:end] for start, end in itertools.pairwise(cut)]
        if not all(any(weight.requires_grad for weight in stage.parameters()) for stage in stages):
            advice = "start fewer ranks, or give another --split-at"
            raise SuiteError("every stage needs weights to train", where_cut(model, cut), advice, USAGE)
    return place.gather(cut)[0]


@torch.no_grad()
def _find_borders(model, cut, image_shape, place):
    """Return the (shape, dtype) of one image's features before each stage and after the last, found with copies."""
    features = torch.zeros(2, *image_shape, device=place.device)
    borders = [(tuple(image_shape), features.dtype)]
    for start, end in itertools.pairwise(cut):
        features = copy.deepcopy(model[start:end]).to(place.device).eval()(features)
        if not isinstance(features, torch.Tensor) or features.dim() < 2 or len(features) != 2:
            what = "a stage must return one tensor with a row for each image"
            output = getattr(features, "shape", type(features).__name__)
            found = f"two images come out of block {block_names(model)[end - 1]} as {output}"
            raise SuiteError(what, found, "give another --split-at, or fix the model", USAGE)
        borders.append((tuple(features.shape[1:]), features.dtype))
    return borders


def describe_stages(parallel: Pipeline, model: nn.Sequential, optimizer) -> dict:
    """Return the fields of the ParallelContext that depend on the method."""
    place, options, names = parallel.place, parallel.options, block_names(model)
    before = sum(1 for _ in model[: parallel.cut[place.rank]].parameters())
    stages = count(place.ranks, "stage") + "".join(f", from {names[index]}" for index in parallel.cut[1:-1])
    return {
        "method": "pipeline",
        "states": States(parallel.rows.blocks, optimizer, before, place.gather_in_turn),
        "note": f"{stages}; {count(options.micro_batches, 'micro-batch', 'es')}, {options.pipeline_schedule}",
    }


def say_bubble(result: RunResult, place: Rank, config) -> None:
    """Print the idle share of the stages' time in the last epoch, and the theoretical bubble."""
    if place.rank > 0 or place.ranks == 1 or config.quiet:
        return
    phases = [rank.phases for rank in result.epochs[-1].ranks]
    busy = sum((times.forward or 0.0) + (times.backward or 0.0) for times in phases)
    waiting = sum(times.exchange or 0.0 for times in phases)
    stages, parts = len(phases), result.config["micro_batches"]
    print(
        f"Bubble:        {waiting / (busy + waiting):.0%} of the stages' time was measured to be idle or spent on "
        f"sending; (P-1)/(M+P-1) with P = {stages} and M = {parts} is {(stages - 1) / (parts + stages - 1):.0%}"
    )
