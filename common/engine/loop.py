"""The training loop that all methods share: batches, clocks, optimizer steps, and exact evaluation.

A method provides train_step(images, labels, mark) → loss. images: (B, C, H, W) float32; labels: (B,) int64; mark(phase)
ends a phase of the step (see PhaseTimer). When it returns, the gradients are in place. The loss is a scalar tensor, the
mean over the rank's images, or None on a rank that has no loss, such as the first stage of a pipeline.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from common.engine.place import ParallelContext
from common.engine.shares import Evaluation, Training, merge, one_per_share, series_of
from common.engine.step import to_device
from common.engine.timing import CoreClock, PhaseTimer, Stopwatch
from common.errors import add_error_context
from common.files.results import EpochRecord
from common.machine.entry import pending_signal
from common.settings.config import RunConfig


def steps_of(loader, config: RunConfig) -> int:
    """Return the number of training steps per epoch."""
    return min(len(loader), config.max_steps or len(loader))


def train_one_epoch(
    context: ParallelContext,
    train_step,
    optimizer,
    schedule,
    loader,
    config: RunConfig,
    partial_epoch: Training | None = None,
    after_step: Callable[[], None] | None = None,
    timer: PhaseTimer | None = None,
) -> Training:
    """Train on all batches of `loader`, or on the first `config.max_steps`, unless a signal ends the epoch early.

    Nothing in the loop waits for a GPU. partial_epoch: the part that an earlier run trained; the result includes it.
    """
    context.model.train(not config.eval_mode)
    place, timer, start = context.place, timer or PhaseTimer(context.place.devices), time.monotonic()
    timer.forget()
    done, scaler = partial_epoch or Training(context.sampler.rank), context.network.scaler
    step, loss_sum, samples = done.steps, None, done.samples
    remaining = _skip_batches(loader, step) if step else None
    with CoreClock() as cores, Stopwatch(place.devices) as watch:
        timer.start()
        batches = remaining or iter(loader)
        for step in range(done.steps + 1, steps_of(loader, config) + 1):
            images, labels = next(batches)  # images: (B, C, H, W) float32; labels: (B,) int64
            timer.mark("data")
            loss = train_step(images, labels, timer.mark)
            timer.mark("rest")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)  # skips the step if fp16 gradients are infinite; update() then halves the scale
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            if loss is not None:
                if loss_sum is None:
                    loss_sum = torch.full((), done.loss_sum, device=loss.device)
                loss_sum.add_(loss.detach(), alpha=len(labels))  # one kernel on a GPU
                samples += len(labels)
            timer.mark("update")
            if after_step:
                after_step()
            place.after_batch()
            if (pending_signal() or place.others_end()) and place.all_stop_after(step):
                break
    training = Training(
        data_rank=done.data_rank,
        seconds=watch.seconds,
        loss_sum=done.loss_sum if loss_sum is None else loss_sum.item(),
        samples=samples,
        steps=step,
        phase_milliseconds=timer.milliseconds(),
        cpu_seconds=cores.cpu_seconds,
        queue_seconds=cores.queue_seconds,
        throttled_seconds=cores.throttled_seconds,
        start=start,
        series=series_of(timer.phases()),
    )
    return training.with_earlier_part(partial_epoch) if partial_epoch else training


def warm_up(context: ParallelContext, train_step, optimizer, loader, config: RunConfig) -> None:
    """Compute the gradients of a few batches, and of one as small as an epoch's last, and discard them.

    The first steps are slower: loader workers start, memory is allocated, torch.compile compiles each size of batch,
    and DDP arranges its buckets anew. The training that follows is not changed: weights, BatchNorm's statistics and
    random numbers stay as they are.
    """
    context.model.train(not config.eval_mode)
    buffers = [(buffer, buffer.clone()) for buffer in context.model.buffers()]
    steps = steps_of(loader, config)
    length, batch = len(context.sampler), loader.batch_size
    last = length % batch if steps * batch > length else 0

    def step(images, labels):
        train_step(images, labels, lambda *_, **__: None)
        optimizer.zero_grad()
        context.place.after_batch()

    with torch.random.fork_rng(device for device in context.place.devices if device.type == "cuda"):
        for number, (images, labels) in enumerate(itertools.islice(loader, min(config.warmup, steps))):
            if last and number == 0:
                step(images[:last], labels[:last])
            step(images, labels)
    for buffer, before in buffers:
        buffer.copy_(before)


def _skip_batches(loader, steps):
    """Return an iterator over the loader's batches without the first `steps`."""
    batches = iter(loader)
    with torch.random.fork_rng(devices=[]):  # loading without workers draws from the generator that training uses
        for _ in range(steps):
            next(batches, None)
    return batches


@torch.no_grad()
def evaluate(context: ParallelContext, loader) -> Evaluation:
    """Classify all images of this rank's `loader`. Nothing in the loop waits for a GPU, as bincount() would."""
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
    partial_epoch: Training | None = None,
    before_epoch: Callable[[int], None] = lambda epoch: None,
    after_step: Callable[[], None] | None = None,
    on_signal=None,
    after_training: Callable[[], None] = lambda: None,
) -> tuple[list[EpochRecord], list[Evaluation]]:
    """Train and evaluate up to `config.epochs` epochs; return all epoch records and the last Evaluations.

    Stops early after an epoch whose training or test loss is not finite, or that reaches the target accuracy.
    earlier: the finished epochs of a resumed training; partial_epoch: this rank's part of the next one.
    before_epoch(epoch): called when all ranks have arrived. on_signal(number, trainings): called on all ranks after
    the same step if any of them received the signal; trainings: all ranks' parts of an unfinished epoch. It must not
    return. after_training(): called before each evaluation.
    """
    train_loader, test_loader = loaders
    place, records, evaluations = context.place, [*earlier], None
    timer = PhaseTimer(place.devices)

    def gather_or_end(training):
        """Return every rank's Training, unless one of them received a signal."""
        signals, trainings = zip(*place.gather((pending_signal(), training)), strict=True)
        if max(signals):
            on_signal(max(signals), [part for part in trainings if part])
        return trainings

    for epoch in range(len(earlier) + 1, config.epochs + 1):
        if records and (not is_finite(records[-1]) or reached(records[-1], config)):
            break
        with add_error_context(f"epoch {epoch}"):
            gather_or_end(partial_epoch)  # also waits for rank 0, whose writing would count as the others' epoch time
            before_epoch(epoch)
            context.sampler.set_epoch(epoch)
            training = train_one_epoch(
                context, train_step, optimizer, schedule, train_loader, config, partial_epoch, after_step, timer
            )
            trainings, partial_epoch = gather_or_end(training), None
            after_training()
            if context.sampler.num_replicas > 1:  # BatchNorm's statistics differ by rank, but all must test one model
                place.share_buffers(context.network)
            evaluations = place.gather(evaluate(context, test_loader))
            records.append(merge(epoch, trainings, evaluations))
            after_epoch(records)
    return records, one_per_share(evaluations or place.gather(evaluate(context, test_loader)))


def is_finite(record: EpochRecord) -> bool:
    """Return whether both losses of an epoch are finite, which they are not if the training diverged."""
    return math.isfinite(record.train_loss + record.test_loss)


def reached(record: EpochRecord, config: RunConfig) -> bool:
    """Return whether an epoch reached --target-accuracy; False without one."""
    return config.target_accuracy is not None and record.test_accuracy >= config.target_accuracy
