"""Train one model that is cut over several processes: one stage of its blocks, on one device, in each rank.

    torchrun --standalone --nproc_per_node=2 pipeline_train.py --dataset mnist
    python pipeline_train.py --dataset mnist --spawn 2 --micro-batches 4 --pipeline-schedule 1f1b

Every batch goes through the stages in micro-batches, so that a stage can work on the next one while the following stage
has the last. gpipe: the forward passes of all of them, then all backward passes (Y. Huang et al., "GPipe", 2019); 1f1b:
forward and backward passes in turn, so that a stage holds the features of fewer micro-batches (D. Narayanan et al.,
"Memory-Efficient Pipeline-Parallel DNN Training", 2021: PipeDream-Flush). With both, all passes of a batch are over
before the weights change, and the gradients are those of one device that goes through the same micro-batches. BatchNorm
normalises each micro-batch by itself. With one rank, this is that one device: the control. Lines marked Pipeline belong
to the method. The loop around train_step is common.engine.loop.train_one_epoch; the same loop in nine
lines, without measuring, is train_by_hand() in benchmarks/overhead.py.
"""

import copy
import functools
import itertools
import math

from common.machine.begin import begin

begin(__name__)

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DistributedSampler

from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine.checkpoint import join_states, load_states, part_of_states, states_on_cpu
from common.engine.loop import ParallelContext
from common.engine.run import run
from common.engine.setup import prepare_process
from common.engine.step import build_loss, build_optimizer, to_device
from common.engine.timing import block_seconds
from common.errors import USAGE, SuiteError
from common.machine.entry import run_script
from common.models.build import block_names, build_model, refuse_uncut, split_index
from common.models.cuts import balanced_cut
from common.ranks.agree import refuse_different_ranks
from common.ranks.group import gather, group_traits, join_group
from common.ranks.lost import name_lost_ranks
from common.ranks.start import Place, find_ranks, rank_device, refuse_without_ranks, spawn_ranks
from common.settings.arguments import one_of, positive_int
from common.settings.config import add_dist_timeout, parse, script_parser
from common.words import count

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}  # Pipeline:


class Rows(nn.Module):  # Pipeline:
    """The blocks of one stage, between contiguous rows: one row is what one image is there.

    Gloo sends nothing that is not contiguous, and features are channels-last: a row holds them as they lie in memory,
    (H, W, C). A stage's buffers have the size of the first micro-batch, and torch 2.15 fills them only in part with a
    smaller one, without a word: so all micro-batches of a batch travel as equally many rows, of which the last may
    stand for no image.
    """

    def __init__(self, blocks: nn.Module, shape_in: tuple[int, ...]):
        super().__init__()
        self.blocks, self.shape_in = blocks, shape_in

    def expect(self, sizes: tuple[int, ...], mark) -> None:
        """Say how many images the coming micro-batches have, and what to call with a phase's name at its end."""
        self.sizes, self.mark = iter(sizes), mark

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map rows (R, features) to rows (R, features behind this stage)."""
        self.size = next(self.sizes)
        return to_rows(self.blocks(from_rows(rows, self.size, self.shape_in)), (self.size,), len(rows))


def to_rows(features: torch.Tensor, sizes: tuple[int, ...], count: int) -> torch.Tensor:  # Pipeline:
    """Return micro-batches of these sizes, one after the other, as `count` contiguous rows each, filled up with zeros.

    features: (B, C, H, W), or any other shape (B, …).
    """
    if features.dim() == 4:
        features = features.permute(0, 2, 3, 1)  # of what is channels-last, nothing is copied
    rows = features.flatten(1).contiguous()
    if min(sizes) == count:
        return rows
    return torch.cat([F.pad(part, (0, 0, 0, count - len(part))) for part in rows.split(sizes)])


def from_rows(rows: torch.Tensor, size: int, shape: tuple[int, ...]) -> torch.Tensor:  # Pipeline:
    """Return the first `size` rows as features (size, *shape), channels-last where the shape is (C, H, W)."""
    rows = rows if len(rows) == size else rows[:size]
    if len(shape) != 3:
        return rows.unflatten(1, shape)
    channels, height, width = shape
    return rows.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


class Stage(PipelineStage):  # Pipeline:
    """A stage that marks the ends of its phases: what is in none of its own passes, it waits for the other stages."""

    def forward_one_chunk(self, *arguments, **options):
        self._mark_waiting()
        try:
            outputs = super().forward_one_chunk(*arguments, **options)
        except RuntimeError as error:
            raise (error.__cause__ or error) from None  # the library hides it, and that memory ran out
        self.submod.mark("forward")
        return outputs

    def backward_one_chunk(self, *arguments, **options):
        self._mark_waiting()
        super().backward_one_chunk(*arguments, **options)
        self.submod.mark("backward")

    def _mark_waiting(self):
        if self.num_stages > 1:
            self.submod.mark("exchange")


class Pipeline(nn.Module):  # Pipeline:
    """This rank's stage, and the library's schedule for every size of a batch. As a module, it classifies images.

    borders: (shape, dtype) of what one image is in front of the stage, and behind it.
    """

    def __init__(self, blocks: nn.Module, borders: tuple, place: Place, device: torch.device, options):
        super().__init__()
        self.rows = Rows(blocks, borders[0][0])
        self.borders, self.place, self.device, self.options = borders, place, device, options
        self.first, self.last = place.rank == 0, place.rank == place.world_size - 1
        self.schedule = functools.cache(self._make_schedule)

    def begin(self, images: torch.Tensor, labels: torch.Tensor | None, loss_function, mark):
        """Return the schedule that a batch goes through, and what this stage puts in: (images,) or (), labels or None.

        images: (B, C, H, W), put in at the first stage. labels: (B,), put in at the last; None, with no loss_function,
        to classify only. mark: see PhaseTimer.
        """
        self.sizes = sizes = tuple(map(len, images.tensor_split(min(self.options.micro_batches, len(images)))))
        self.rows.expect(sizes, mark)
        inputs = (to_rows(images, sizes, max(sizes)),) if self.first else ()
        target = to_rows(labels[:, None], sizes, max(sizes))[:, 0] if self.last and labels is not None else None
        return self.schedule(sizes, loss_function), inputs, target

    def forward(self, images: torch.Tensor) -> torch.Tensor | None:
        """Map images (B, C, H, W) at the first stage to logits (B, classes) at the last; None at the others."""
        schedule, inputs, _ = self.begin(images, None, None, lambda phase: None)
        outputs = schedule.step(*inputs)
        if not self.last:
            return None
        parts = zip(outputs.split(max(self.sizes)), self.sizes, strict=True)
        return torch.cat([part[:size] for part, size in parts])

    def _make_schedule(self, sizes, loss_function):
        """One for batches of this size; shapes are given, or torch 2.11 finds them out with a step of BatchNorm's."""
        before, behind = (
            torch.empty(max(sizes), math.prod(shape), dtype=dtype, device="meta", requires_grad=True)
            for shape, dtype in self.borders
        )
        stage = Stage(
            self.rows,
            self.place.rank,
            self.place.world_size,
            self.device,
            input_args=before.requires_grad_(not self.first),
            output_args=behind,
        )

        def loss_of_part(rows, labels):
            """Return a micro-batch's share of the mean over the batch: a mean of means weighs unequal ones wrongly."""
            size = self.rows.size
            loss = loss_function(rows[:size], labels[:size]) * size / sum(sizes)
            self.rows.mark("forward")
            return loss

        kind = SCHEDULES[self.options.pipeline_schedule if len(sizes) >= self.place.world_size else "gpipe"]
        return kind(stage, len(sizes), loss_fn=loss_function and loss_of_part, scale_grads=False)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--spawn",
        type=positive_int,
        metavar="N",  # Pipeline:
        help="start N ranks here, without torchrun",
    )  # Pipeline:
    parser.add_argument(
        "--micro-batches",
        type=positive_int,
        default=4,
        metavar="M",  # Pipeline:
        help="cut every batch into M parts (%(default)s)",
    )  # Pipeline:
    parser.add_argument(
        "--pipeline-schedule",
        type=one_of(SCHEDULES),
        default="gpipe",
        metavar="NAME",  # Pipeline:
        help="gpipe: all forward passes, then all backward passes | 1f1b: in turn",
    )  # Pipeline:
    parser.add_argument(
        "--split-at",
        nargs="+",
        metavar="BLOCK",  # Pipeline:
        help="first blocks of all stages but the first (balances measured time)",
    )  # Pipeline:
    add_dist_timeout(parser)  # Pipeline:
    config, options = parse(parser)
    refuse_without_ranks(options)  # Pipeline:
    if options.spawn:  # Pipeline:
        image_set = load_image_set(config)  # Pipeline: what all ranks would refuse, is refused once
        model = build_model(
            config.model,
            image_set.image_shape,
            config.seed,  # Pipeline:
            classes=len(image_set.classes),
        )  # Pipeline:
        refuse_stages(model, options.spawn, config, options)  # Pipeline:
        spawn_ranks(options.spawn, train, config, options, data_ranks=1)  # Pipeline: all see the same batches
    else:  # Pipeline: this process is a rank, which torchrun or somebody else has started
        train(config, options)  # Pipeline:


def refuse_stages(model: nn.Sequential, stages: int, config, options) -> None:  # Pipeline:
    """Raise SuiteError (USAGE) if the network cannot be cut into so many stages, or the batch for them."""
    if stages > 1:
        refuse_uncut(model)
    if stages > len(model):
        raise SuiteError(
            "every stage needs a block",
            f"{count(stages, 'rank')}, and {config.model} has {count(len(model), 'block')}",
            "start fewer ranks",
            USAGE,
        )
    if options.micro_batches > config.batch_size:
        raise SuiteError(
            "a micro-batch needs an image",
            f"--micro-batches {options.micro_batches}, --batch-size {config.batch_size}",
            "give fewer micro-batches",
            USAGE,
        )
    if options.pipeline_schedule == "1f1b" and options.micro_batches < stages:
        raise SuiteError(
            "1f1b needs a micro-batch for every stage",
            f"--micro-batches {options.micro_batches}, {count(stages, 'stage')}",
            "give more --micro-batches, or type --pipeline-schedule gpipe",
            USAGE,
        )
    if options.split_at:
        cut = [split_index(model, block) for block in options.split_at]
        if len(cut) != stages - 1 or cut != sorted({*cut}):
            raise SuiteError(
                "--split-at names the first block of every stage but the first, in their order",
                f"found {' '.join(options.split_at)} for {count(stages, 'stage')}",
                f"choose {stages - 1} of {', '.join(block_names(model)[1:])}",
                USAGE,
            )


@name_lost_ranks  # Pipeline:
def train(config, options, init_method: str = "env://") -> None:  # Pipeline:
    place = find_ranks(init_method, options.dist_timeout)  # Pipeline: which rank this is, of how many
    rank, world_size = place.rank, place.world_size  # Pipeline:
    device = rank_device(config.device, place.local_rank, place.local_world_size)  # Pipeline:
    config = prepare_process(config, device, *place.sharing)  # Pipeline:
    image_set = load_image_set(config)
    refuse_different_ranks(place.store, rank, world_size, device, config, options, image_set)  # Pipeline:
    sampler = DistributedSampler(image_set.train_labels, num_replicas=1, rank=0, seed=config.seed, drop_last=True)
    loaders = make_loaders(image_set, config, device, sampler, labels_only=rank > 0)  # Pipeline: stage 0 has images

    classes = len(image_set.classes)
    model = build_model(config.model, image_set.image_shape, config.seed, config.precision, classes)
    refuse_stages(model, world_size, config, options)  # Pipeline:
    join_group(place, device, config.bind)  # Pipeline:
    cut = choose_cut(model, image_set.image_shape, device, rank, world_size, config, options)  # Pipeline:
    borders = find_borders(model, cut, image_set.image_shape, device)[rank : rank + 2]  # Pipeline:
    own = model[cut[rank] : cut[rank + 1]]  # Pipeline: the blocks of this rank's stage
    own.to(device)  # Pipeline:
    for block in (*model[: cut[rank]], *model[cut[rank + 1] :]):  # Pipeline:
        block.to("meta")  # Pipeline: the other stages' blocks are names and shapes, without memory
    parallel = Pipeline(own, borders, place, device, options)  # Pipeline:

    optimizer = build_optimizer(own.parameters(), config)  # Pipeline:
    loss_function = build_loss(config)

    def train_step(images, labels, mark):  # images: (B, C, H, W) float32, at stage 0; labels: (B,) int64  # Pipeline:
        images, labels = to_device(images, device), labels.to(device, non_blocking=True)
        mark("transfer")
        losses = []  # Pipeline: of all micro-batches, at the last stage
        schedule, inputs, target = parallel.begin(images, labels, loss_function, mark)  # Pipeline:
        schedule.step(*inputs, target=target, losses=losses)  # Pipeline: the forward and backward passes of all
        mark("exchange" if world_size > 1 else "backward")  # Pipeline: the last gradients are sent
        loss = torch.stack(losses).sum() if losses else None  # Pipeline:
        return loss

    context = ParallelContext(
        model=parallel,
        devices=(device,),
        input_device=device,
        output_device=device,  # Pipeline:
        before_epoch=sampler.set_epoch,
        **traits(model, own, optimizer, cut, rank, world_size, device, options),  # Pipeline:
    )
    result = run(context, train_step, model, optimizer, loaders, image_set, config, options)  # Pipeline:
    if rank == 0 < world_size - 1 and not config.quiet:  # Pipeline:
        print(f"Bubble:        {describe_bubble(result)}")  # Pipeline:


def choose_cut(model, image_shape, device, rank, world_size, config, options) -> list[int]:  # Pipeline:
    """Return the indices at which the stages begin, and the number of blocks: --split-at, or what rank 0 measures."""
    inner = [split_index(model, block) for block in options.split_at or ()]
    if not inner and rank == 0:
        images = torch.zeros(math.ceil(config.batch_size / options.micro_batches), *image_shape, device=device)
        inner = balanced_cut(block_seconds(model, images), world_size)
    if rank == 0:  # who says for all what is wrong with it
        refuse_cut(model, [0, *inner, len(model)])
    return [0, *gather(inner)[0], len(model)]


def refuse_cut(model, cut: list[int]) -> None:  # Pipeline:
    """Raise SuiteError (USAGE) if stages would share weights, or one has none to train."""
    stages = [model[start:end] for start, end in itertools.pairwise(cut)]
    weights = [{*stage.parameters()} for stage in stages]
    where = f"it is cut before {', '.join(block_names(model)[index] for index in cut[1:-1])}"
    if len(set.union(*weights)) < sum(map(len, weights)):
        raise SuiteError(
            "two stages would have the same weights",
            where,
            "give each part weights of its own, or another --split-at",
            USAGE,
        )
    if not all(any(weight.requires_grad for weight in some) for some in weights):
        raise SuiteError(
            "every stage needs weights to train", where, "start fewer ranks, or give another --split-at", USAGE
        )


@torch.no_grad()
def find_borders(model, cut, image_shape, device) -> list[tuple]:  # Pipeline:
    """Return (shape, dtype) of what one image is in front of each stage and behind the last.

    Found out with copies, in evaluation mode: BatchNorm's statistics stay, and one stage at a time is on the device.
    """
    features = torch.zeros(2, *image_shape, device=device)
    borders = [(tuple(image_shape), features.dtype)]
    for start, end in itertools.pairwise(cut):
        features = copy.deepcopy(model[start:end]).to(device).eval()(features)
        if not isinstance(features, torch.Tensor) or features.dim() < 2 or len(features) != 2:
            found = getattr(features, "shape", type(features).__name__)
            raise SuiteError(
                "stages hand on one tensor, with a row for each image",
                f"two images come out of block {block_names(model)[end - 1]} as {found}",
                "give another --split-at, or mend the model",
                USAGE,
            )
        borders.append((tuple(features.shape[1:]), features.dtype))
    return borders


def traits(model, own, optimizer, cut, rank, world_size, device, options) -> dict:  # Pipeline:
    """Return what the ParallelContext says of the method: all ranks see the same images."""
    before = sum(1 for _ in model[: cut[rank]].parameters())
    names = block_names(model)
    stages = count(world_size, "stage") + "".join(f", from {names[index]}" for index in cut[1:-1])
    return {
        "method": "pipeline",
        **group_traits(rank, world_size, device),
        "whole_states": lambda: join_states(gather(states_on_cpu(own, optimizer))),
        "load_states": lambda states: load_states(own, optimizer, part_of_states(states, own, before)),
        "note": f"{stages}; {count(options.micro_batches, 'micro-batch', 'es')}, {options.pipeline_schedule}",
    }


def describe_bubble(result) -> str:  # Pipeline:
    """Return which part of the schedule's time the stages did not compute, in the last epoch, beside the formula."""
    phases = [rank.phases for rank in result.epochs[-1].ranks]
    busy = sum(times.forward + times.backward for times in phases)
    waiting = sum(times.exchange or 0.0 for times in phases)
    stages, parts = len(phases), result.config["micro_batches"]
    return (
        f"{waiting / (busy + waiting):.0%} of the stages' time was measured to be idle or spent on sending; "
        f"(P-1)/(M+P-1) with P = {stages} and M = {parts} is {(stages - 1) / (parts + stages - 1):.0%}"
    )


if __name__ == "__main__":
    run_script(main, as_rank=True)  # Pipeline:
