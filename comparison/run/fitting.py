"""What fits into memory: the rows of a block together, and the largest batch of each row (--fit-batch).

For the largest batch, the batch is doubled until memory, or the data set, is too small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import OUT_OF_MEMORY
from common.files.probe import Probe
from common.settings.config import option
from comparison.outcomes import TRIAL_MARGIN, TRIAL_STEPS, Outcome, Trial
from comparison.plan.plan import type_flags
from comparison.rows import Configuration, trials_of
from comparison.run.turns import run_once

GIB = 2**30
# GPU memory of a row in addition to its tensors, until it is measured: the CUDA context, the libraries' work space and
# NCCL's buffers.
GPU_BASE = 2 * GIB


def why_not_in_turns(plan: Iterable[Configuration], probe: Probe | None, trials: Iterable[Trial] = ()) -> str:
    """Return why the rows of a block should not take turns, or "" if they may.

    All must fit into the machine's memory together. Each device counts with the peak of the probe or, on a CPU, of a
    trial; each loader worker and each launcher of several devices counts half. The memory of GPUs does not matter, as
    take_turns() checks it. Scripts do not count, as their memory is unknown.
    """
    able = [row for row in plan if not row.skip and not row.is_script]
    if not able:
        return ""
    if any(row.nodes > 1 for row in able):
        return "some run on several nodes"
    if not (probe and probe.memory):
        return "how much memory they need is not known"
    cpu, *gpu = probe.memory
    if any(memory.free_bytes is None for memory in gpu):
        return "the GPU's compute mode lets one process use it at a time (nvidia-smi -c DEFAULT would let all)"
    devices = [max(row.stages, row.planned.shares) for row in able]
    workers = sum(row.planned.num_workers for row in able)
    launchers = sum(count > 1 for count in devices)
    peaks = [cpu.peak_bytes, *(trial.peak_bytes or 0 for trial in trials if not gpu)]
    needed = (sum(devices) + (workers + launchers) / 2) * max(peaks) / GIB
    free = (cpu.free_bytes or 0) / GIB
    return "" if needed <= free else f"together they could need {needed:.1f} GiB of memory, {free:.1f} are free"


def gpu_need(probe: Probe | None, trials: Iterable[Trial] = ()) -> int:
    """Return how many bytes of a GPU a row may take: PyTorch's peak in the probe or a trial, plus GPU_BASE."""
    peaks = [memory.peak_bytes for memory in probe.memory[1:]] if probe else []
    return max([*peaks, *(trial.peak_bytes or 0 for trial in trials)], default=0) + GPU_BASE


def next_batch(row: Configuration, trials: Sequence[Trial]) -> int | None:
    """Return the batch to try next, or None if the largest is known.

    That is twice the largest batch that fits. If none fits, it is half the smallest that was tried, as long as the
    devices can share it.
    """
    results = _last_trials(row, trials)
    if not results:
        return row.planned.batch_size
    if fitting := [batch for batch, trial in results.items() if trial.fits]:
        largest = max(fitting)
        too_few_images = (results[largest].images or 0) < 2 * largest
        return None if 2 * largest in results or too_few_images else 2 * largest
    smallest = min(results)
    if results[smallest].status != OUT_OF_MEMORY or smallest % (2 * row.planned.shares):
        return None
    return smallest // 2


def _last_trials(row, trials):
    """Return the last trial with each batch."""
    return {trial.batch_size: trial for trial in trials_of(row, trials)}


def try_batch(row: Configuration, batch_size: int, settings: Mapping[str, Any], directory: Path) -> Trial:
    """Train a row for TRIAL_STEPS steps and evaluate, with TRIAL_MARGIN of the memory limit kept free."""
    flags = ["--epochs", "1", "--max-steps", str(TRIAL_STEPS)]
    if limit := settings.get("memory_limit"):
        flags += type_flags({"memory_limit": round((1 - TRIAL_MARGIN) * limit)})
    fitted = with_batch(row, batch_size)
    tried = replace(fitted, name=f"{row.name}-fit", command=(*fitted.command, *flags))
    outcome = run_once(tried, batch_size, settings["seed"], directory, settings["timeout"])
    trial = Trial(row.name, batch_size, outcome.status, outcome.reason)
    if (result := outcome.result) is None:
        return trial
    return replace(trial, images=result.epochs[-1].samples, peak_bytes=max(result.peak_memory_bytes))


def with_batch(row: Configuration, batch_size: int) -> Configuration:
    """Return a row with another global batch."""
    command = list(row.command)
    if command:  # empty if the row was read from a file
        command[command.index(option("batch_size")) + 1] = str(batch_size)
    planned = replace(row.planned, batch_size=batch_size, per_device_batch_size=-(-batch_size // row.planned.shares))
    return replace(row, planned=planned, command=tuple(command))


def with_largest(plan: Sequence[Configuration], trials: Sequence[Trial]) -> tuple[Configuration, ...]:
    """Return the rows with their largest batch that fits, or the smallest that was tried if none fits."""

    def fitted(row):
        results = _last_trials(row, trials)
        if not results:
            return row
        fitting = [batch for batch, trial in results.items() if trial.fits]
        return with_batch(row, max(fitting, default=min(results)))

    return tuple(map(fitted, plan))


def failed_runs(plan: Sequence[Configuration], outcomes: Sequence[Outcome]) -> list[Trial]:
    """Return the runs that ran out of memory, as trials."""
    rows = {row.name: row for row in plan}
    failed = [(rows[run.configuration], run) for run in outcomes if run.status == OUT_OF_MEMORY]
    return [Trial(row.against or row.name, row.planned.batch_size, run.status, run.reason) for row, run in failed]
