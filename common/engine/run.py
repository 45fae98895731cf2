"""One run of a training script, from what it announces to the result file, the weights and the curves it leaves."""

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
from common.engine.checkpoint import Checkpoints, content_of, place_of
from common.engine.compiled import replace_network
from common.engine.loop import fit, is_finite, reached, steps_of
from common.engine.memory import held_to, memory_parts, peak_memory
from common.engine.place import ParallelContext
from common.engine.progress import Progress
from common.engine.setup import SharedCores, may_share
from common.engine.step import in_parts
from common.engine.tensorboard import EpochLog
from common.engine.timing import command_start, warm_clocks
from common.engine.tracing import spans_of, trace_steps, write_trace
from common.errors import FAILED, SuiteError
from common.files.checksums import CODE, code_checksum
from common.files.describe import describe_end, describe_epoch, describe_start, result_name
from common.files.plots import draw_curves
from common.files.results import RunResult, write_result
from common.files.writing import replacing
from common.machine.entry import end_after_step
from common.machine.environment import command_line, describe_environment, device_name, gpu_uuid
from common.machine.memory import free_memory, hold_to
from common.machine.sharing import TRAINING, computing
from common.machine.turns import Turns
from common.models.build import plain_state
from common.settings.schedules import build_schedule
from common.settings.totals import total_workers
from common.words import count

PRECISIONS = {
    **{"fp32": "float32", "tf32": "float32 as TF32", "fp64": "float64"},
    **{"bf16": "bfloat16 autocast", "fp16": "float16 autocast"},
}
UNFINISHED = {"status": "failed", "reason": "it ended early"}  # what a result file says should the run be killed


def run(context: ParallelContext, train_step, optimizer, loaders, image_set: ImageSet, config, options) -> RunResult:
    """Announce, train, and let rank 0 print, write and draw what was found; return it.

    train_step: see common.engine.loop. options: the script's own flags. Raises SuiteError (FAILED), after the result
    file is written, if training diverged; SystemExit if a signal told it to end, after the checkpoint is.
    """
    with end_after_step(ctrl_c=config.checkpoint is not None), computing(TRAINING):
        this = _Run(context, train_step, optimizer, loaders, image_set, config, options)
        begun = this.resume()
        this.announce()
        this.train(begun)
        this.save()
        if this.result.status != "diverged":
            if config.profile:
                this.trace()
            this.show()
        context.place.leave()
        this.complain()
        return this.result


class _Run:
    """A run and what is known of it by now. All ranks take each step together; rank 0 alone prints and writes."""

    def __init__(self, context, train_step, optimizer, loaders, image_set, config, options):
        self.context, self.place, self.optimizer, self.loaders = context, context.place, optimizer, loaders
        self.image_set, self.config, self.options = image_set, config, options
        held = held_to(config.memory_limit, train_step) if config.memory_limit else train_step
        self.train_step = in_parts(held, context.model, config.accumulate)
        context.network.scaler.scale(torch.zeros((), device=self.place.device))  # a stage without a loss has one too
        self.first, self.steps = self.place.rank == 0, steps_of(loaders[0], config)
        self.says = self.first and not config.quiet
        self.cores = SharedCores(self.say)
        if may_share(config, self.place.device):
            self.train_step = self.cores.before(self.train_step)
        content = content_of(config, image_set)
        self.result = _before(context, config, options, content)
        self.schedule = build_schedule(optimizer, config, self.steps)
        torch.manual_seed(config.seed + 1 + self.place.rank)  # ranks that draw random numbers draw different ones
        self.checkpoints = Checkpoints(context, optimizer, self.schedule, config, options, content)
        self.log = EpochLog(config.tensorboard) if config.tensorboard and self.first else None

    def say(self, text):
        if self.says:
            print(text, flush=True)

    def write(self, **changes):
        """Write the result file: what is known by now, with these changes."""
        if self.first and self.config.output:
            write_result(replace(self.result, **changes), self.config.output)

    def resume(self):
        """Go back to where --resume says; return what this rank had done of an epoch that was not over."""
        records, begun, found = self.checkpoints.resume(self._settle)
        if found:
            times = "are sums of both runs' parts; those before are" if begun else "and those before are"
            notes = (self.result.reason, f"resumed {found}, whose times {times} of the earlier run")
            self.result = replace(self.result, reason="; ".join(filter(None, notes)), epochs=tuple(records))
        return begun

    def _settle(self):
        """Go through a backward pass for nothing: after its first, DDP sums gradients in another order."""
        if self.context.sampler.num_replicas == 1:
            return
        self.context.model.train()
        images = torch.zeros(2, *self.image_set.image_shape)
        self.train_step(images, torch.zeros(2, dtype=torch.int64), lambda *_, **__: None)
        self.optimizer.zero_grad()

    def announce(self):
        images = min(self.config.batch_size, len(self.image_set.train_labels))
        replace_network(self.context, (images, *self.image_set.image_shape), self.config)
        self._reset_peaks()  # what came before training does not count
        self.result = replace(self.result, startup_seconds=time.time() - command_start(self.place.launched))
        if self.says:
            self.say(describe_start(self.result))
        self.write(**UNFINISHED)

    def _reset_peaks(self):
        for device in self.checkpoints.gpus:
            torch.cuda.reset_peak_memory_stats(device)

    def train(self, begun):
        """Train, and put together what was found."""
        turns = Turns(self.place.rank, self.place.ranks)
        progress = Progress(self.config.epochs, self.steps, self.say)
        after_step = progress.after_step if self.says else None
        first, gpus = len(self.result.epochs) + 1, self.checkpoints.gpus

        def before_epoch(epoch):
            if turns.wait(free_memory(self.place.device) if gpus else None) and epoch > first:
                turns.waited_seconds += warm_clocks(gpus)
            if epoch == first + 1:
                self._reset_peaks()  # cuDNN has tried its algorithms by now, with more work space than any step takes
            progress.begin(epoch)

        training = (self.context, self.train_step, self.optimizer, self.schedule, self.loaders, self.config)
        with end_workers_of(self.loaders[0]):
            records, evaluations = fit(
                *training, self.result.epochs, self._after_epoch, begun, before_epoch, after_step, self._end
            )
        found = _after(self.context, self.optimizer, self.image_set, evaluations, turns, self.config.accumulate)
        if self.cores.fewest < self.cores.all:
            shared = f"it had {self.cores.fewest} of {self.cores.all} threads while other programs used its cores"
            self.result = replace(self.result, reason="; ".join(filter(None, (self.result.reason, shared))))
        self.result = replace(self.result, epochs=tuple(records), **found, **_judged(records, self.config))

    def _after_epoch(self, records):
        """Say what the epoch was, and put on disk what would be needed if it was the last."""
        self.result = replace(self.result, epochs=tuple(records))
        if self.config.memory_limit:
            hold_to(self.config.memory_limit)  # evaluation needs some too
        self.say(describe_epoch(records[-1], self.config.epochs))
        if not is_finite(records[-1]):
            return
        self.write(**UNFINISHED)
        if self.log:
            self.log.add(records[-1])
        if self.config.checkpoint:
            self.checkpoints.keep(records)

    def _end(self, number, begun):
        """Put on disk what is needed to go on from this step, and end; begun: every rank's Training of the epoch."""
        name, where = signal.Signals(number).name, place_of(len(self.result.epochs), begun)
        kept = self.config.checkpoint and all(math.isfinite(training.loss_sum) for training in begun)
        if kept:
            self.checkpoints.keep(self.result.epochs, begun)
        self.write(status="failed", reason=f"{name} ended it {where}")
        if self.first:
            advice = (
                f"continue with --resume {self.config.checkpoint}"
                if kept
                else "there is no checkpoint to continue from"
            )
            with contextlib.suppress(OSError):  # its terminal is gone
                print(f"Ended by {name} {where}; {advice}", file=sys.stderr, flush=True)
        self.place.leave()
        sys.exit(128 + number)

    def save(self):
        """Write the result and the weights: what rank 0 is to do concerns all, as each may hold a share of these."""
        saves, weights = self.place.gather(self.config.save)[0], None
        if saves and self.result.status != "diverged":
            weights = plain_state(self.context.network, self.context.states and self.context.states.whole()["model"])
        self.write()
        if self.first and weights:
            with replacing(self.config.save) as file:
                torch.save(weights, file)

    def trace(self):
        """Trace the steps that --profile asks for."""
        with end_workers_of(self.loaders[0]):
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

    def complain(self):
        """Raise SuiteError (FAILED), on rank 0, for a training that did not do what was asked for."""
        if self.first and self.result.status == "diverged":
            raise SuiteError("training diverged", self.result.reason, "try a smaller --lr", FAILED)
        if self.first and self.result.status == "not reached":
            what = f"--target-accuracy {self.config.target_accuracy} was not reached"
            raise SuiteError(what, self.result.reason, "give more --epochs, or a lower target", FAILED)


def _before(context, config, options, content):
    place, ranks = context.place, context.sampler.num_replicas
    workers = total_workers(config.num_workers, ranks)
    own = [(device_name(device), gpu_uuid(device) if device.type == "cuda" else "") for device in place.devices]
    names, uuids = zip(*(device for devices in place.gather(own) for device in devices), strict=True)
    return RunResult(
        method=context.method,
        status="ok",
        reason="; ".join(filter(None, (context.note, _unlike(names), _scaled(config)))),
        simulated=context.simulated,
        command=command_line(),
        config={**asdict(config), "num_workers": workers, **vars(options)},
        environment=describe_environment() if place.rank == 0 else {},  # it asks nvidia-smi, which takes its time
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


def _unlike(devices):
    """What a reader must know where devices, named as device_name() does, are of several kinds; "" else."""
    kinds = list(dict.fromkeys(device.partition(" (")[2].removesuffix(")") for device in devices))
    return f"its devices are not alike ({', '.join(kinds)}), and the slowest decides" if len(kinds) > 1 else ""


def _scaled(config):
    """What --lr-scaling made of the learning rate; "" if nothing."""
    if config.lr_factor == 1:
        return ""
    return f"learning rate up to {config.highest_lr:.4g}, {config.lr_factor:.3g} times --lr, for its batch"


def _after(context, optimizer, image_set, evaluations, turns, batches):
    """What RunResult says of a training that is over, besides its epochs and whether it did what was asked for."""
    correct = torch.tensor([part.correct for part in evaluations]).sum(0)  # (classes,)
    counts = torch.tensor([part.counts for part in evaluations]).sum(0)  # (classes,)
    if counts.sum() != len(image_set.test_labels):
        raise RuntimeError(f"{counts.sum()} of {len(image_set.test_labels)} test images were evaluated")
    devices = context.place.devices
    own = [(*peak_memory(device), memory_parts(context.network, optimizer, device)) for device in devices]
    peaks, reserved, parts = zip(*(numbers for every in context.place.gather(own) for numbers in every), strict=True)
    return {
        "total_seconds": time.time() - command_start(context.place.launched) - turns.waited_seconds,
        "class_accuracy": dict(zip(image_set.classes, (correct / counts).tolist(), strict=True)),
        "peak_memory_bytes": peaks,
        "reserved_memory_bytes": tuple(filter(None, reserved)),
        "memory_parts": parts[peaks.index(max(peaks))],
        "method_milliseconds": context.timers.milliseconds(batches) if context.timers else None,
    }


def _judged(epochs, config):
    """The status of a training that did not do what was asked for, and its reason."""
    last, best = epochs[-1], max(record.test_accuracy for record in epochs)
    if not is_finite(last):
        reason = f"in epoch {last.epoch} the training loss was {last.train_loss}, the test loss {last.test_loss}"
        return {"status": "diverged", "reason": reason}
    if config.target_accuracy is not None and not reached(last, config):
        reason = f"the best test accuracy of {count(len(epochs), 'epoch')} was {best:.2%}"
        return {"status": "not reached", "reason": reason}
    return {}
