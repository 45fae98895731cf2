"""Whether the rows of a block fit into memory together, by what the probe and trials of batches needed."""

from collections.abc import Iterable

from common.files.probe import Probe
from comparison.outcomes import Trial
from comparison.rows import Configuration

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
