"""One run of a training script, from what it announces to the result file, the weights and the curves it leaves."""

import contextlib
import math
import signal
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from common.data.image_set import ImageSet
from common.data.loaders import end_workers_of
from common.engine.checkpoint import (
    content_of,
    load_states,
    place_of,
    random_state,
    read_checkpoint,
    restore,
    save_checkpoint,
)
from common.engine.compiled import replace_network
from common.engine.loop import ParallelContext, fit, is_finite, reached, steps_of
from common.engine.memory import held_to, memory_parts, peak_memory, reserved_memory
from common.engine.progress import Progress
from common.engine.tensorboard import EpochLog
from common.engine.timing import command_start
from common.engine.tracing import spans_of, trace_steps, write_trace
from common.errors import FAILED, USAGE, SuiteError
from common.files.describe import describe_end, describe_epoch, describe_start, result_name
from common.files.plots import draw_curves
from common.files.results import RunResult, write_result
from common.files.writing import replacing
from common.machine.ending import end_after_step
from common.machine.environment import command_line, describe_environment, device_name, gpu_uuid, rounds_to_tf32
from common.machine.memory import hold_to
from common.machine.turns import Turns
from common.models.build import plain_state
from common.models.sharded import whole
from common.settings.schedules import build_schedule
from common.settings.totals import total_workers
from common.words import count


def run(
    context: ParallelContext, train_step, model: nn.Module, optimizer, loaders, image_set: ImageSet, config, options
) -> RunResult:
    """Announce, train, and let rank 0 print, write and draw what was found; return it.

    train_step: what the method does with one batch (see common.engine.loop). model: the plain network inside
    `context.model`; its weights are what `--save` writes. options: the Namespace of the script's own flags, kept in the
    result beside the shared ones. Raises SuiteError (FAILED), after the result file is written, if training diverged;
    SystemExit if a signal told it to end, after the checkpoint is.
    """
    with end_after_step(ctrl_c=config.checkpoint is not None):
        return _run(context, train_step, model, optimizer, loaders, image_set, config, options)


def _run(context, train_step, model, optimizer, loaders, image_set, config, options):
    say = partial(print, flush=True) if context.rank == 0 and not config.quiet else lambda *_: None
    if config.memory_limit:
        train_step = held_to(config.memory_limit, train_step)
    result = _before(context, model, config, options)
    schedule = build_schedule(optimizer, config, steps_of(loaders[0], config))
    torch.manual_seed(config.seed + 1 + context.rank)  # ranks that draw random numbers in training draw different ones
    gpus = [device for device in context.devices if device.type == "cuda"]
    content = content_of(config, image_set) if config.checkpoint or config.resume else {}
    records, begun, state = [], None, read_checkpoint(config, options, content, context.world_size)
    place = place_of(len(state["records"]), state["begun"]) if state else "missing"
    if len(set(context.gather(place))) > 1:
        raise SuiteError(
            "the ranks found different checkpoints",
            f"{config.resume} on rank {context.rank} is {place}",
            "put the file where all machines see it",
            USAGE,
        )
    if state:
        if context.data_ranks > 1:
            _settle(context, train_step, image_set.image_shape, optimizer)
        load = context.load_states or partial(load_states, model, optimizer)
        records, begun = restore(config, state, context.rank, gpus, load, schedule)
        note = f"resumed {place}, whose times and those before are of the earlier run"
        if begun:
            note = f"resumed {place}, whose times are sums of both runs' parts; those before are of the earlier run"
        result = replace(result, reason="; ".join(filter(None, (result.reason, note))))
    if context.rank == 0 and not config.quiet:
        context = _with_progress(context, Progress(config.epochs, steps_of(loaders[0], config), say))
    images = min(config.batch_size, len(image_set.train_labels))
    replace_network(context, (images, *image_set.image_shape), config)
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)  # what came before training does not count
    result = replace(result, startup_seconds=time.time() - command_start(context.launched))
    if context.rank == 0:
        say(describe_start(result))
        _write_unfinished(result, records, config)

    log = config.tensorboard and EpochLog(config.tensorboard)

    def keep(records, begun=()):
        """Write what is needed to go on from here; all ranks have to take part."""
        random_states = context.gather(random_state(gpus))
        first = context.rank == 0
        if context.whole_states:
            states = context.whole_states()
        else:
            states = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, keep=first)
        if first:
            save_checkpoint(config, options, content, states, schedule, records, random_states, begun)

    def after_epoch(records):
        """Say what the epoch was, and put on disk what would be needed if it was the last."""
        if config.memory_limit:
            hold_to(config.memory_limit)  # evaluation needs some too
        say(describe_epoch(records[-1], config.epochs))
        if not is_finite(records[-1]):
            return
        if context.rank == 0:
            _write_unfinished(result, records, config)
            if log:
                log.add(records[-1])
        if config.checkpoint:
            keep(records)

    def when_told(number, records, begun):
        """Put on disk what is needed to go on from this step, and end."""
        name, place = signal.Signals(number).name, place_of(len(records), begun)
        kept = config.checkpoint and all(math.isfinite(training.loss_sum) for training in begun)
        if kept:
            keep(records, begun)
        if context.rank == 0:
            _write_unfinished(result, records, config, f"{name} ended it {place}")
            advice = f"go on with --resume {config.checkpoint}" if kept else "there is no checkpoint to go on from"
            with contextlib.suppress(OSError):  # its terminal is gone
                print(f"Ended by {name} {place}; {advice}", file=sys.stderr, flush=True)
        context.shutdown()
        sys.exit(128 + number)

    turns = Turns(context.rank, context.world_size)
    with end_workers_of(loaders[0]):
        records, evaluations = fit(
            context,
            train_step,
            optimizer,
            schedule,
            loaders,
            config,
            records,
            after_epoch,
            turns.wait,
            begun,
            when_told,
        )
    result = _after(context, model, optimizer, image_set, evaluations, turns, result)
    result = replace(result, epochs=tuple(records))
    if not is_finite(records[-1]):
        last = records[-1]
        reason = f"in epoch {last.epoch} the training loss was {last.train_loss}, the test loss {last.test_loss}"
        result = replace(result, status="diverged", reason=reason)
    elif config.target_accuracy is not None and not reached(records[-1], config):
        best = max(record.test_accuracy for record in records)
        reason = f"the best test accuracy of {count(len(records), 'epoch')} was {best:.2%}"
        result = replace(result, status="not reached", reason=reason)
    saves = context.gather(config.save)[0]  # what rank 0 is to do concerns all: each may hold a share of the weights
    weights = None
    if saves and result.status != "diverged":
        weights = plain_state(model, context.whole_states and context.whole_states()["model"])
    if context.rank == 0:
        _keep(result, weights, config)
    if config.profile and result.status != "diverged":
        with end_workers_of(loaders[0]):
            traces = trace_steps(context, train_step, optimizer, loaders[0], config)
        result = replace(result, timeline=spans_of(traces))
        if context.rank == 0:
            _keep(result, None, config)
            file = Path(config.figure_dir, f"{result_name(result)}.trace.json.gz")
            say(f"Trace:         {write_trace(traces, file)}")
    if context.rank == 0 and result.status != "diverged":
        say(describe_end(result))
        if config.curves:
            say(f"Curves:        {draw_curves(result, config.figure_dir)}")
    context.shutdown()
    if context.rank == 0 and result.status == "diverged":
        raise SuiteError("training diverged", result.reason, "try a smaller --lr", FAILED)
    if context.rank == 0 and result.status == "not reached":
        raise SuiteError(
            f"--target-accuracy {config.target_accuracy} was not reached",
            result.reason,
            "give more --epochs, or a lower target",
            FAILED,
        )
    return result


def _settle(context, train_step, image_shape, optimizer):
    """Go through a backward pass for nothing: after its first, DDP sums gradients in another order."""
    context.model.train()
    train_step(torch.zeros(2, *image_shape), torch.zeros(2, dtype=torch.int64), lambda *_, **__: None)
    optimizer.zero_grad()


def _with_progress(context, progress):
    """The same context, but `progress` is told of every epoch and batch."""

    def before_epoch(epoch):
        progress.begin(epoch)
        context.before_epoch(epoch)

    def after_batch():
        progress.after_batch()
        context.after_batch()

    return replace(context, before_epoch=before_epoch, after_batch=after_batch)


def _write_unfinished(result, records, config, reason="it ended early"):
    """Should the run be killed, its result file says so, and which epochs were over."""
    if config.output:
        write_result(replace(result, status="failed", reason=reason, epochs=tuple(records)), config.output)


def _keep(result, weights, config):
    if config.output:
        write_result(result, config.output)
    if weights:
        with replacing(config.save) as file:
            torch.save(weights, file)


def _before(context, model, config, options):
    workers = total_workers(config.num_workers, context.data_ranks)
    own = [(device_name(device), gpu_uuid(device) if device.type == "cuda" else "") for device in context.devices]
    names, uuids = zip(*(place for places in context.gather(own) for place in places), strict=True)
    return RunResult(
        method=context.method,
        status="ok",
        reason="; ".join(filter(None, (context.note, _unlike(names)))),
        simulated=context.simulated,
        command=command_line(),
        config={**asdict(config), "num_workers": workers, **vars(options)},
        environment=describe_environment() if context.rank == 0 else {},  # it asks nvidia-smi, which takes its time
        world_size=context.world_size,
        devices=names,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        global_batch_size=config.batch_size,
        per_device_batch_size=math.ceil(config.batch_size / context.data_parallel_size),
        workers_per_process=workers // context.data_ranks,
        data_ranks=context.data_ranks,
        gpu_uuids=tuple(filter(None, uuids)),
        threads_per_process=torch.get_num_threads(),
        precision=_precision(model, context.devices),
    )


def _unlike(devices):
    """What a reader must know where devices, named as device_name() does, are of several kinds; "" else."""
    kinds = list(dict.fromkeys(device.partition(" (")[2].removesuffix(")") for device in devices))
    return f"its devices are not alike ({', '.join(kinds)}), and the slowest decides" if len(kinds) > 1 else ""


def _precision(model, devices):
    """The arithmetic's type; on a GPU also whether convolutions may round their inputs to TF32."""
    if model.precision != "fp32":
        return {"bf16": "bfloat16 autocast", "fp64": "float64"}[model.precision]
    return "float32, TF32 convolutions" if rounds_to_tf32(devices[0]) else "float32"


def _after(context, model, optimizer, image_set, evaluations, turns, result):
    correct = torch.tensor([part.correct for part in evaluations]).sum(0)  # (classes,)
    counts = torch.tensor([part.counts for part in evaluations]).sum(0)  # (classes,)
    if counts.sum() != len(image_set.test_labels):
        raise RuntimeError(f"{counts.sum()} of {len(image_set.test_labels)} test images were evaluated")
    own = [
        (peak_memory(device), reserved_memory(device), memory_parts(model, optimizer, device))
        for device in context.devices
    ]
    memory = [numbers for every in context.gather(own) for numbers in every]
    peaks, reserved, parts = zip(*memory, strict=True)
    return replace(
        result,
        total_seconds=time.time() - command_start(context.launched) - turns.waited_seconds,
        class_accuracy=dict(zip(image_set.classes, (correct / counts).tolist(), strict=True)),
        peak_memory_bytes=peaks,
        reserved_memory_bytes=tuple(filter(None, reserved)),
        memory_parts=parts[peaks.index(max(peaks))],
        method_milliseconds=context.method_milliseconds(),
    )
