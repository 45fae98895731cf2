"""What is equal in every method: the loop over the batches, its clock, the optimizer's step, exact evaluation.

What a method does with one batch is its script's own train_step(images, labels, mark) → loss: images (B, C, H, W)
float32, labels (B,) int64; mark(phase) ends a phase of the step (see PhaseTimer); the loss is a scalar tensor, the mean
over the rank's images, with the gradients already in place, or None on a rank that has none, as in a pipeline.
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from common.engine.place import ParallelContext
from common.engine.shares import Evaluation, Training, merge, once_each, series_of
from common.engine.step import to_device
from common.engine.timing import CoreClock, PhaseTimer, Stopwatch
from common.errors import add_error_context
from common.files.results import EpochRecord
from common.machine.entry import told
from common.settings.config import RunConfig


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
    after_step: Callable[[], None] | None = None,
    timer: PhaseTimer | None = None,
) -> Training:
    """Train on every batch of `loader`, or on its first `config.max_steps`, unless a signal ends it early.

    Nothing in the loop waits for a GPU. begun: an earlier run's part of the epoch, which is part of what is returned.
    """
    context.model.train(not config.eval_mode)
    place, timer, start = context.place, timer or PhaseTimer(context.place.devices), time.monotonic()
    timer.forget()
    done, scaler = begun or Training(context.sampler.rank), context.network.scaler
    step, loss_sum, samples = done.steps, None, done.samples
    rest = _after(loader, step) if step else None
    with CoreClock() as cores, Stopwatch(place.devices) as watch:
        timer.start()
        batches = rest or iter(loader)
        for step in range(done.steps + 1, steps_of(loader, config) + 1):
            images, labels = next(batches)  # images: (B, C, H, W) float32; labels: (B,) int64
            timer.mark("data")
            loss = train_step(images, labels, timer.mark)
            timer.mark("rest")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)  # not where fp16's gradients are infinite: the scale is halved then
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            if loss is not None:
                if loss_sum is None:
                    loss_sum = torch.full((), done.loss_sum, device=loss.device)
                loss_sum += loss.detach() * len(labels)
                samples += len(labels)
            timer.mark("update")
            if after_step:
                after_step()
            place.after_batch()
            if told() and place.all_end_after(step):
                break
    loss = done.loss_sum if loss_sum is None else loss_sum.item()
    training = Training(
        done.data_rank,
        watch.seconds,
        loss,
        samples,
        step,
        timer.milliseconds(),
        cores.cpu_seconds,
        cores.queue_seconds,
        cores.throttled_seconds,
        start,
        series_of(timer.phases()),
    )
    return training.after(begun) if begun else training


def _after(loader, steps):
    """An iterator over a loader's batches, the first `steps` of which an earlier run has trained on."""
    batches = iter(loader)
    with torch.random.fork_rng(devices=[]):  # without workers, images draw from the generator that training uses
        for _ in range(steps):
            next(batches, None)
    return batches


@torch.no_grad()
def evaluate(context: ParallelContext, loader) -> Evaluation:
    """Classify every image of this rank's `loader` once. Nothing in the loop waits for a GPU, as bincount() would."""
    model, place = (context.evaluation_model or context.model).eval(), context.place
    loss_sum, correct, counts = torch.zeros(()), torch.zeros(0), torch.zeros(0)
    with Stopwatch(place.devices) as watch:
        for images, labels in loader:
            logits = model(to_device(images, place.device))  # (B, classes)
            place.after_batch()
            if logits is None:
                continue
            labels = labels.to(logits.device, non_blocking=True)
            if not len(counts):
                loss_sum = torch.zeros((), device=logits.device)
                correct, counts = torch.zeros(2, logits.shape[1], dtype=torch.int64, device=logits.device)
            loss_sum += F.cross_entropy(logits.float(), labels, reduction="sum")
            correct.scatter_add_(0, labels, (logits.argmax(1) == labels).long())
            counts.scatter_add_(0, labels, torch.ones_like(labels))
    return Evaluation(context.sampler.rank, watch.seconds, loss_sum.item(), correct.tolist(), counts.tolist())


def fit(
    context: ParallelContext,
    train_step,
    optimizer,
    schedule,
    loaders,
    config: RunConfig,
    earlier: Sequence[EpochRecord],
    after_epoch: Callable[[list[EpochRecord]], None],
    begun: Training | None = None,
    before_epoch: Callable[[int], None] = lambda epoch: None,
    after_step: Callable[[], None] | None = None,
    when_told=None,
) -> tuple[list[EpochRecord], list[Evaluation]]:
    """Train and evaluate until there were `config.epochs`; return all epochs' records and the last Evaluations.

    Ends early, after the first epoch whose training or test loss is not finite, or that reached the target accuracy.
    earlier: the epochs that lie behind a resumed training; begun: what this rank has done of the next. before_epoch():
    called when all ranks have come so far. when_told(number, trainings): called, on all ranks after the same step,
    where this signal told any to end; trainings: of an epoch that is not over. It never returns.
    """
    train_loader, test_loader = loaders
    place, records, evaluations = context.place, [*earlier], None
    timer = PhaseTimer(place.devices)

    def end_if_told(training):
        """Return every rank's Training, unless any of them was told to end."""
        numbers, trainings = zip(*place.gather((told(), training)), strict=True)
        if max(numbers):
            when_told(max(numbers), [part for part in trainings if part])
        return trainings

    for epoch in range(len(earlier) + 1, config.epochs + 1):
        if records and (not is_finite(records[-1]) or reached(records[-1], config)):
            break
        with add_error_context(f"epoch {epoch}"):
            end_if_told(begun)  # this also waits for rank 0, or its writing would count as the others' epoch
            before_epoch(epoch)
            context.sampler.set_epoch(epoch)
            training = train_one_epoch(
                context, train_step, optimizer, schedule, train_loader, config, begun, after_step, timer
            )
            trainings, begun = end_if_told(training), None
            if context.sampler.num_replicas > 1:  # BatchNorm's statistics differ by rank, and all must test one model
                place.share_buffers(context.network)
            evaluations = place.gather(evaluate(context, test_loader))
            records.append(merge(epoch, trainings, evaluations))
            after_epoch(records)
    return records, once_each(evaluations or place.gather(evaluate(context, test_loader)))


def is_finite(record: EpochRecord) -> bool:
    """Return whether an epoch's losses are numbers: those of a training that diverged are not."""
    return math.isfinite(record.train_loss + record.test_loss)


def reached(record: EpochRecord, config: RunConfig) -> bool:
    """Return whether an epoch's test accuracy is what was asked for; never, if nothing was."""
    return config.target_accuracy is not None and record.test_accuracy >= config.target_accuracy
