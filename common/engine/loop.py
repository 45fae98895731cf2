"""What is equal in every method: the loop over the batches, its clock, the optimizer's step, exact evaluation.

What a method does with one batch is its script's own train_step(images, labels, mark) → loss: images (B, C, H, W)
float32 and labels (B,) int64 come from the loader; mark(phase) ends a phase of the step (see PhaseTimer); the loss is a
scalar tensor on the context's output_device, the mean over the rank's images, with the gradients already in place. A
step may leave a phase out, which is then not known. A rank that has no loss, as the first stage of a pipeline, returns
None.
"""

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from common.engine.optimizer import Muon
from common.engine.shares import Evaluation, Training, merge, once_each
from common.engine.timing import CoreClock, PhaseTimer, Stopwatch
from common.errors import add_error_context
from common.files.results import EpochRecord
from common.machine.ending import told
from common.models.sharded import is_cut
from common.settings.config import RunConfig


@dataclass(frozen=True)
class ParallelContext:
    """How a method places a model, as values. The engine uses them without knowing which method they come from.

    model: what train_step trains; it, or evaluation_model in its place, maps images (B, C, H, W) on input_device to
    logits (B, classes) on output_device (or to None, see above). devices: those of this process. rank, world_size:
    among the processes; data_rank, data_ranks: which share of every batch this process sees, of how many. Of several
    ranks that see the same images the last one's counts are taken, so that every image counts once.
    data_parallel_size: how many parts a global batch is cut into, over all devices of all processes. launched: whether
    a launcher, this process's parent, started it as a rank. simulated, note: see RunResult (`note` becomes its
    `reason`). before_epoch(epoch): shuffles the training images anew. gather(value): the list of all ranks' values, on
    every rank. before_evaluation(): makes all ranks hold the same model. shutdown(): the last thing that the ranks do
    together. whole_states(): where each rank has some of the blocks, the state_dicts of the whole "model" and
    "optimizer"; all ranks call it. load_states(states): puts them back. all_end_after(step): whether all ranks end
    after this step of an epoch; asked after each step by a rank that was told to end. after_batch(): called after each
    batch of a training or an evaluation, by the host, which may be ahead of its GPU. method_milliseconds(): see
    RunResult. uncompilable: why torch.compile may not rewrite the network, if so.
    """

    method: str
    model: nn.Module
    devices: tuple[torch.device, ...]
    input_device: torch.device
    output_device: torch.device
    evaluation_model: nn.Module | None = None  # the same as model
    rank: int = 0
    world_size: int = 1
    data_rank: int = 0
    data_ranks: int = 1
    data_parallel_size: int = 1
    launched: bool = False
    simulated: bool = False
    note: str = ""
    before_epoch: Callable[[int], None] = lambda epoch: None
    gather: Callable[[object], list] = lambda value: [value]
    before_evaluation: Callable[[], None] = lambda: None
    shutdown: Callable[[], None] = lambda: None
    whole_states: Callable[[], dict[str, dict]] | None = None
    load_states: Callable[[dict[str, dict]], None] | None = None
    all_end_after: Callable[[int], bool] = lambda step: True
    after_batch: Callable[[], None] = lambda: None
    method_milliseconds: Callable[[], dict[str, float] | None] = lambda: None
    uncompilable: str = ""


def build_optimizer(parameters, config: RunConfig) -> torch.optim.Optimizer:
    """Return Muon, Adam, or SGD with (Nesterov's) momentum 0.9, at the learning rate and weight decay of `config`.

    The last two are fused: one kernel updates all parameters; torch has none for SGD where ranks hold shares of them
    (2.15).
    """
    parameters = list(parameters)
    if config.optimizer == "muon":
        return uncompiled(Muon)(parameters, config.lr, config.weight_decay)
    fused = config.optimizer == "adam" or not any(map(is_cut, parameters))
    common = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": fused}
    if config.optimizer == "adam":
        return uncompiled(torch.optim.Adam)(parameters, **common)
    return uncompiled(torch.optim.SGD)(parameters, momentum=0.9, nesterov=config.optimizer == "nesterov", **common)


def uncompiled(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return the same optimizer, without what torch wraps around its methods for those who compile it.

    That imports the compiler, which takes nearly as long as torch itself (2.15). Of what the wrappers do otherwise, one
    thing matters: the step computes no gradients.
    """
    methods = {
        name: inspect.unwrap(getattr(optimizer, name))
        for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    }
    return type(optimizer.__name__, (optimizer,), {**methods, "step": torch.no_grad()(inspect.unwrap(optimizer.step))})


def build_loss(config: RunConfig) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what maps logits (B, classes) and labels (B,) to the mean cross-entropy, in float32 at least."""
    wide = torch.float64 if config.precision == "fp64" else torch.float32
    return lambda logits, labels: F.cross_entropy(logits.to(wide), labels, label_smoothing=config.label_smoothing)


def build_schedule(optimizer, config: RunConfig, steps_per_epoch: int):
    """Return the learning rate's schedule, to be stepped after every training step.

    steps: multiply it by 0.1 after each epoch of `config.lr_milestones`. one-cycle: rise to it over the first quarter
    of the training, then fall to almost nothing, in straight lines (L. Smith, "Super-convergence", 2018). linear: fall
    in a straight line to 0.
    """
    if config.schedule == "linear":
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=config.epochs * steps_per_epoch)
    if config.schedule == "one-cycle":
        steps = max(5, config.epochs * steps_per_epoch)  # OneCycleLR divides by 0 at 4
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, config.lr, total_steps=steps, pct_start=0.25, anneal_strategy="linear", cycle_momentum=False
        )
    milestones = [epoch * steps_per_epoch for epoch in config.lr_milestones]
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)


def length_of(schedule: dict) -> int | None:
    """Return after how many steps a schedule, by its state_dict, has ended; None for one that does not depend on it.

    A training that goes on cannot change that: its rates so far are those of a schedule of this length.
    """
    return schedule.get("total_iters", schedule.get("total_steps"))


def steps_of(loader, config: RunConfig) -> int:
    """Return how many training steps an epoch has."""
    return min(len(loader), config.max_steps or len(loader))


def train_one_epoch(
    context: ParallelContext,
    train_step,
    optimizer,
    schedule,
    loader,
    config: RunConfig,
    begun: Training | None = None,
    timer: PhaseTimer | None = None,
) -> Training:
    """Train on every batch of `loader`, or on its first `config.max_steps`. Nothing in the loop waits for a GPU.

    begun: what was done of this epoch when a signal ended the run, which this one resumes; it is part of what is
    returned. timer: what tells the phases, for who wants to see each. Fewer steps than there are if a signal has ended
    this one.
    """
    context.model.train(not config.eval_mode)
    start = None if begun else time.monotonic()
    begun = begun or Training(context.data_rank, 0.0, 0.0, 0, 0, {}, 0.0, None)
    step, steps = begun.steps, steps_of(loader, config)
    timer = timer or PhaseTimer(context.devices)
    loss_sum, samples = torch.full((), begun.loss_sum, device=context.output_device), begun.samples
    rest = _after(loader, step) if step else None
    with CoreClock() as cores, Stopwatch(context.devices) as watch:
        timer.start()
        batches = rest or iter(loader)
        for step in range(begun.steps + 1, steps + 1):
            images, labels = next(batches)  # images: (B, C, H, W) float32; labels: (B,) int64
            timer.mark("data")
            loss = train_step(images, labels, timer.mark)
            timer.mark("rest")
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if loss is not None:
                loss_sum += loss.detach() * len(labels)
                samples += len(labels)
            timer.mark("update")
            context.after_batch()
            if told() and context.all_end_after(step):
                break
    now = timer.milliseconds()
    milliseconds = {
        name: begun.phase_milliseconds.get(name, 0.0) + now.get(name, 0.0)
        for name in {**begun.phase_milliseconds, **now}
    }
    queue_seconds = cores.queue_seconds
    if begun.queue_seconds is not None and queue_seconds is not None:
        queue_seconds += begun.queue_seconds
    return Training(
        context.data_rank,
        begun.seconds + watch.seconds,
        loss_sum.item(),
        samples,
        step,
        milliseconds,
        begun.cpu_seconds + cores.cpu_seconds,
        queue_seconds,
        start,
    )


def _after(loader, steps):
    """An iterator over a loader's batches, the first `steps` of which an earlier run has trained on."""
    batches = iter(loader)
    with torch.random.fork_rng(devices=[]):  # without workers, images draw from the generator that training uses
        for _ in range(steps):
            next(batches, None)
    return batches


def to_device(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return images (B, C, H, W) on `device`, channels-last, as the weights are, whichever loader they come from.

    Where a method copies the network to other devices, nn.DataParallel's replicate() does not keep the weights' layout:
    there the images' decides how convolutions compute, the same way on every device.
    """
    return images.to(device, non_blocking=True, memory_format=torch.channels_last)


@torch.no_grad()
def evaluate(context: ParallelContext, loader) -> Evaluation:
    """Classify every image of this rank's `loader` once. Nothing in the loop waits for a GPU.

    That is why images are counted by scatter_add_: what a boolean index or bincount returns has a size that the host
    must ask the GPU for.
    """
    model = (context.evaluation_model or context.model).eval()
    loss_sum = torch.zeros((), device=context.output_device)
    correct = counts = torch.zeros(0, dtype=torch.int64, device=context.output_device)  # as long as the logits are wide
    with Stopwatch(context.devices) as watch:
        for images, labels in loader:
            labels = labels.to(context.output_device, non_blocking=True)
            logits = model(to_device(images, context.input_device))  # (B, classes)
            context.after_batch()
            if logits is None:
                continue
            if not len(counts):
                correct, counts = counts.new_zeros(2, logits.shape[1])
            loss_sum += F.cross_entropy(logits.float(), labels, reduction="sum")
            correct.scatter_add_(0, labels, (logits.argmax(1) == labels).long())
            counts.scatter_add_(0, labels, torch.ones_like(labels))
    return Evaluation(context.data_rank, watch.seconds, loss_sum.item(), correct.tolist(), counts.tolist())


def fit(
    context: ParallelContext,
    train_step,
    optimizer,
    schedule,
    loaders,
    config: RunConfig,
    earlier: list[EpochRecord],
    after_epoch,
    wait_for_turn: Callable[[], None] = lambda: None,
    begun: Training | None = None,
    when_told=None,
) -> tuple[list[EpochRecord], list[Evaluation]]:
    """Train and evaluate until there were `config.epochs`; return all epochs' records and the last Evaluations.

    earlier: the records of the epochs that lie behind a resumed training. after_epoch(records): called after each
    epoch. wait_for_turn(): called before each epoch, when all ranks have come so far. begun: what this rank has done of
    the epoch after those. when_told(number, records, begun): called, on all ranks after the same step, where any was
    told to end by this signal, and never returns; begun: every rank's Training in an epoch that is not over. Ends
    early, after the first epoch whose training or test loss is not finite, or whose test accuracy is
    `config.target_accuracy`.
    """
    train_loader, test_loader = loaders
    records, evaluations = [*earlier], None

    def end_if_told(training):
        """Return every rank's Training, unless any of them was told to end."""
        numbers, trainings = zip(*context.gather((told(), training)), strict=True)
        if max(numbers):
            when_told(max(numbers), records, [part for part in trainings if part])
        return trainings

    for epoch in range(len(earlier) + 1, config.epochs + 1):
        if records and (not is_finite(records[-1]) or reached(records[-1], config)):
            break
        with add_error_context(f"epoch {epoch}"):
            end_if_told(begun)  # this also waits for rank 0, or its writing would count as the others' epoch
            wait_for_turn()
            context.before_epoch(epoch)
            trainings = end_if_told(
                train_one_epoch(context, train_step, optimizer, schedule, train_loader, config, begun)
            )
            begun = None
            context.before_evaluation()
            evaluations = context.gather(evaluate(context, test_loader))
            records.append(merge(epoch, trainings, evaluations))
            after_epoch(records)
    return records, once_each(evaluations or context.gather(evaluate(context, test_loader)))


def is_finite(record: EpochRecord) -> bool:
    """Return whether an epoch's losses are numbers: training that diverged has NaN or infinity there."""
    return math.isfinite(record.train_loss + record.test_loss)


def reached(record: EpochRecord, config: RunConfig) -> bool:
    """Return whether an epoch's test accuracy is what was asked for; never, if nothing was."""
    return config.target_accuracy is not None and record.test_accuracy >= config.target_accuracy
