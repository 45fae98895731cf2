"""One run of a training script: announcement, training, result file, weights, and curves."""

import contextlib
import math
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from common.data.image_set import ImageSet
from common.data.loaders import end_workers_of
from common.engine.checkpoint import Checkpoints, content_of, describe_position
from common.engine.compiled import replace_network
from common.engine.loop import fit, is_finite, reached, steps_of, warm_up
from common.engine.memory import PeakMemory, memory_parts, with_memory_limit
from common.engine.place import ParallelContext
from common.engine.progress import Progress
from common.engine.setup import SharedCores, may_share
from common.engine.step import accumulate_gradients
from common.engine.tensorboard import EpochLog
from common.engine.timing import command_start, synchronize, warm_clocks
from common.engine.tracing import spans_of, trace_steps, write_trace
from common.errors import FAILED, SuiteError, add_error_context
from common.files.checksums import CODE, code_checksum
from common.files.describe import describe_end, describe_epoch, describe_start, result_name
from common.files.plots import draw_curves
from common.files.results import RunResult, write_result
from common.files.writing import atomic_write
from common.machine.entry import end_after_step
from common.machine.environment import command_line, describe_environment, device_name, gpu_uuid
from common.machine.memory import free_memory, hold_to
from common.machine.sharing import TRAINING, register_program
from common.machine.turns import Turns
from common.models.build import plain_state
from common.settings.schedules import build_schedule
from common.settings.totals import total_workers
from common.words import count

PRECISIONS = {"fp32": "float32", "tf32": "float32 as TF32", "fp64": "float64"}
PRECISIONS |= {"bf16": "bfloat16 autocast", "fp16": "float16 autocast"}
UNFINISHED = {"status": "failed", "reason": "it ended early"}  # for the result file, in case the process is killed


def run(context: ParallelContext, train_step, optimizer, loaders, image_set: ImageSet, config, options) -> RunResult:
    """Announce, train, and let rank 0 print, write and plot the result; return it.

    train_step: see common.engine.loop. options: the script's own flags. Raises SuiteError (FAILED) after writing the
    result file if training diverged or missed its target; SystemExit after writing the checkpoint if a signal ended it.
    """
    with end_after_step(ctrl_c=config.checkpoint is not None), register_program(TRAINING), end_workers_of(loaders[0]):
        training = _Run(context, train_step, optimizer, loaders, image_set, config, options)
        partial_epoch = training.resume()
        training.announce()
        training.train(partial_epoch)
        training.save()
        if training.result.status != "diverged":
            if config.profile:
                training.trace()
            training.show()
        context.place.leave()
        training.raise_if_failed()
        return training.result


class _Run:
    """A run and its result so far. All ranks call each method together; only rank 0 prints and writes."""

    def __init__(self, context, train_step, optimizer, loaders, image_set, config, options):
        self.context, self.place, self.optimizer, self.loaders = context, context.place, optimizer, loaders
        self.image_set, self.config = image_set, config
        if config.memory_limit:
            train_step = with_memory_limit(train_step, config.memory_limit)
        self.train_step = accumulate_gradients(train_step, context.model, config.accumulate)
        # create the scaler's tensor, also on pipeline stages without a loss
        context.network.scaler.scale(torch.zeros((), device=self.place.device))
        self.first, self.steps = self.place.rank == 0, steps_of(loaders[0], config)
        self.verbose = self.first and not config.quiet
        self.cores = SharedCores(self.say)
        if may_share(config, self.place.device):
            self.train_step = self.cores.before(self.train_step)
        content = content_of(config, image_set)
        self.result = _before(context, config, options, content)
        self.schedule = build_schedule(optimizer, config, self.steps)
        torch.manual_seed(config.seed + 1 + self.place.rank)  # each rank draws different random numbers
        self.checkpoints = Checkpoints(context, optimizer, self.schedule, config, options, content)
        self.log = EpochLog(config.tensorboard) if config.tensorboard and self.first else None

    def say(self, text):
        if self.verbose:
            print(text, flush=True)

    def add_reason(self, text):
        self.result = replace(self.result, reason=_join_notes(self.result.reason, text))

    def write(self, **changes):
        """Write the result file with what is known so far and these changes."""
        if self.first and self.config.output:
            write_result(replace(self.result, **changes), self.config.output)

    def resume(self):
        """Restore --resume; return what this rank had trained of an unfinished epoch."""
        records, partial_epoch, position = self.checkpoints.resume()
        if position:
            times = "are sums of both runs' parts; those before are" if partial_epoch else "and those before are"
            self.add_reason(f"resumed {position}, whose times {times} of the earlier run")
            self.result = replace(self.result, epochs=tuple(records))
        return partial_epoch

    def announce(self):
        batch = min(self.config.batch_size, len(self.image_set.train_labels))
        replace_network(self.context, (batch, *self.image_set.image_shape), self.config)
        self.write(**UNFINISHED)
        with add_error_context("warm-up"):
            warm_up(self.context, self.train_step, self.optimizer, self.loaders[0], self.config)
        synchronize(self.place.devices)
        self.result = replace(self.result, startup_seconds=time.time() - command_start(self.place.launched))
        if self.verbose:
            self.say(describe_start(self.result))

    def train(self, partial_epoch):
        turns = Turns(self.place.rank, self.place.ranks)
        peaks, progress = PeakMemory(self.place.devices), Progress(self.config.epochs, self.steps, self.say)
        after_step = progress.after_step if self.verbose else None
        first, gpus = len(self.result.epochs) + 1, self.checkpoints.gpus

        def before_epoch(epoch):
            if turns.wait(free_memory(self.place.device) if gpus else None) and epoch > first and gpus:
                turns.add(warm_clocks(gpus))
            peaks.reset()
            progress.begin(epoch, partial_epoch.steps if partial_epoch and epoch == first else 0)

        training = (self.context, self.train_step, self.optimizer, self.schedule, self.loaders, self.config)
        called = before_epoch, after_step, self._end, peaks.keep
        records, evaluations = fit(*training, self.result.epochs, self._after_epoch, partial_epoch, *called)
        found = _after(self.context, self.optimizer, self.image_set, evaluations, turns, self.config.accumulate, peaks)
        if self.cores.fewest < self.cores.all:
            threads = f"{self.cores.fewest} of {self.cores.all} threads"
            self.add_reason(f"it had {threads} while other processes used its cores")
        self.result = replace(self.result, epochs=tuple(records), **found, **_failure(records, self.config))

    def _after_epoch(self, records):
        """Report the epoch, and write everything to disk in case it is the last."""
        self.result = replace(self.result, epochs=tuple(records))
        if self.config.memory_limit:
            hold_to(self.config.memory_limit)  # evaluation uses memory too
        self.say(describe_epoch(records[-1], self.config.epochs))
        if not is_finite(records[-1]):
            return
        self.write(**UNFINISHED)
        if self.log:
            self.log.add(records[-1])
        if self.config.checkpoint:
            self.checkpoints.keep(records)

    def _end(self, number, partial_epoch):
        """Write the checkpoint and exit, after signal `number`. partial_epoch: every rank's Training."""
        name, position = signal.Signals(number).name, describe_position(len(self.result.epochs), partial_epoch)
        advice = "there is no checkpoint to continue from"
        if self.config.checkpoint and all(math.isfinite(training.loss_sum) for training in partial_epoch):
            self.checkpoints.keep(self.result.epochs, partial_epoch)
            advice = f"continue with --resume {self.config.checkpoint}"
        self.write(status="failed", reason=f"{name} ended it {position}")
        if self.first:
            with contextlib.suppress(OSError):  # the terminal is gone
                print(f"Ended by {name} {position}; {advice}", file=sys.stderr, flush=True)
        self.place.leave()
        sys.exit(128 + number)

    def save(self):
        """Write the result file and the weights. Ranks that hold shards take part if rank 0 has --save."""
        saves, weights = self.place.gather(self.config.save)[0], None
        if saves and self.result.status != "diverged":
            weights = plain_state(self.context.network, self.context.states and self.context.states.whole()["model"])
        self.write()
        if self.first and weights:
            with atomic_write(self.config.save) as file:
                torch.save(weights, file)

    def trace(self):
        """Trace the steps that --profile asks for."""
        traces = trace_steps(self.context, self.train_step, self.optimizer, self.loaders[0], self.config)
        self.result = replace(self.result, timeline=spans_of(traces))
        self.write()
        if self.first:
            file = Path(self.config.figure_dir, f"{result_name(self.result)}.trace.json.gz")
            self.say(f"Trace:         {write_trace(traces, file)}")

    def show(self):
        self.say(describe_end(self.result))
        if self.first and self.config.curves:
            self.say(f"Curves:        {draw_curves(self.result, self.config.figure_dir)}")

    def raise_if_failed(self):
        """Raise SuiteError (FAILED) on rank 0 if training diverged or missed its target."""
        if self.first and self.result.status == "diverged":
            raise SuiteError("training diverged", self.result.reason, "try a smaller --lr", FAILED)
        if self.first and self.result.status == "not reached":
            what = f"--target-accuracy {self.config.target_accuracy} was not reached"
            raise SuiteError(what, self.result.reason, "give more --epochs, or a lower target", FAILED)


def _join_notes(*notes):
    return "; ".join(filter(None, notes))


def _before(context, config, options, content):
    """Return the RunResult before training."""
    place, ranks = context.place, context.sampler.num_replicas
    workers = total_workers(config.num_workers, ranks)
    own = [(device_name(device), gpu_uuid(device) if device.type == "cuda" else "") for device in place.devices]
    names, uuids = zip(*(device for devices in place.gather(own) for device in devices), strict=True)
    return RunResult(
        method=context.method,
        timed_from=2 if place.device.type == "cuda" else 1,
        status="ok",
        reason=_join_notes(context.note, _describe_mixed(names), _describe_batch(context, config)),
        simulated=context.simulated,
        command=command_line(),
        config={**asdict(config), "num_workers": workers, **vars(options)},
        environment=describe_environment() if place.rank == 0 else {},  # nvidia-smi is slow
        world_size=place.ranks,
        devices=names,
        parameters=sum(parameter.numel() for parameter in context.network.parameters()),
        global_batch_size=config.batch_size,
        per_device_batch_size=math.ceil(config.batch_size / (ranks * context.replicas)),
        workers_per_process=workers // ranks,
        data_ranks=ranks,
        gpu_uuids=tuple(filter(None, uuids)),
        threads_per_process=torch.get_num_threads(),
        precision=PRECISIONS[context.network.precision],
        checksums={CODE: code_checksum(sys.argv[0]), **content} if place.rank == 0 else {},
    )


def _describe_mixed(devices):
    """Return a note if the devices, named by device_name(), are of several kinds."""
    kinds = list(dict.fromkeys(device.partition(" (")[2].removesuffix(")") for device in devices))
    return f"its devices differ ({', '.join(kinds)}), and the slowest decides" if len(kinds) > 1 else ""


def _describe_batch(context, config):
    """Return a note if --batch-size is more than all images, or if --lr-scaling changed the learning rate."""
    images = len(context.sampler) * context.sampler.num_replicas
    few = f"its only batch has {images} images, fewer than --batch-size" if images < config.batch_size else ""
    rate = config.highest_lr
    scaled = f"learning rate up to {rate:.4g}, {rate / config.lr:.3g} times --lr, for its batch"
    return _join_notes(few, scaled if config.lr_factor != 1 else "")


def _after(context, optimizer, image_set, evaluations, turns, batches, peaks):
    """Return the fields of RunResult that are known after training, except epochs, status and reason."""
    correct = torch.tensor([part.correct for part in evaluations]).sum(0)  # (classes,)
    counts = torch.tensor([part.counts for part in evaluations]).sum(0)  # (classes,)
    if counts.sum() != len(image_set.test_labels):
        raise RuntimeError(f"{counts.sum()} of {len(image_set.test_labels)} test images were evaluated")
    devices = zip(context.place.devices, peaks.largest(), strict=True)
    own = [(*peak, memory_parts(context.network, optimizer, device)) for device, peak in devices]
    memory = [of_device for of_rank in context.place.gather(own) for of_device in of_rank]
    peaks, reserved, parts = zip(*memory, strict=True)
    return {
        "total_seconds": time.time() - command_start(context.place.launched) - turns.waited_seconds,
        "class_accuracy": dict(zip(image_set.classes, (correct / counts).tolist(), strict=True)),
        "peak_memory_bytes": peaks,
        "reserved_memory_bytes": tuple(filter(None, reserved)),
        "memory_parts": parts[peaks.index(max(peaks))],
        "method_milliseconds": context.timers.milliseconds(batches) if context.timers else None,
    }


def _failure(epochs, config):
    """Return status and reason of a training that diverged or missed its target; nothing if it succeeded."""
    last, best = epochs[-1], max(record.test_accuracy for record in epochs)
    if not is_finite(last):
        reason = f"in epoch {last.epoch} the training loss was {last.train_loss}, the test loss {last.test_loss}"
        return {"status": "diverged", "reason": reason}
    if config.target_accuracy is not None and not reached(last, config):
        reason = f"the best test accuracy of {count(len(epochs), 'epoch')} was {best:.2%}"
        return {"status": "not reached", "reason": reason}
    return {}
