"""The rows of a block in turns: all are started, then each trains one epoch at a time, while the others wait.

Whatever makes the machine faster or slower for seconds then meets all rows alike: L. Bulej et al., "Duet benchmarking:
improving measurement accuracy in the cloud", ICPE 2020.
"""

import contextlib
import random
from collections.abc import Iterable, Iterator

from common.files.probe import Probe
from comparison.rows import Configuration, Outcome
from comparison.run.launch import Run, end_together

GIB = 2**30
GPU_BASE = 2 * GIB  # a process's CUDA context, the libraries' work space and NCCL's buffers, and a margin


def why_not_in_turns(plan: Iterable[Configuration], probe: Probe) -> str:
    """Return why the rows of a block should not all be started at once, or "" if they fit into memory together.

    On a CPU, each of a row's devices counts with the most that the probe's process had, which held all images and
    trained each model; each loader worker, and what launches several devices, with half of that. On a GPU, each row
    counts with the most that PyTorch had there in the probe, and GPU_BASE.
    """
    able = [row for row in plan if not row.skip]
    if any(row.nodes > 1 for row in able):
        return "some run on several nodes"
    rows = [row.planned for row in able]
    devices = [max(row.stages, row.planned.shares) for row in able]
    helpers = sum(row.num_workers for row in rows) + sum(count > 1 for count in devices)
    processes = sum(devices) + helpers / 2
    for memory in probe.memory:
        on_cpu = memory.device == "cpu"
        needed = processes * memory.peak_bytes if on_cpu else len(rows) * (memory.peak_bytes + GPU_BASE)
        if needed > memory.free_bytes:
            place = "the machine's memory" if on_cpu else "a GPU's memory"
            return f"together they could need {needed / GIB:.1f} GiB of {place}, {memory.free_bytes / GIB:.1f} are free"
    return "" if probe.memory else "how much memory they need is not known"


def take_turns(runs: list[Run], seed: int) -> Iterator[Outcome]:
    """Go through Runs to their ends, one turn of one of them at a time; yield what became of each as it ends.

    They start in the order given, each in a turn of its own, and go on in an order that is shuffled for every epoch
    from `seed`. One that fails, or is stopped for taking too long, leaves the others as they are.
    """
    shuffle = random.Random(seed)
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.enter_context(run)
        every = runs
        stack.callback(lambda: end_together([child for run in every for child in run.running]))
        while runs:
            waiting = []
            for run in runs:
                if outcome := run.take_turn():
                    yield outcome
                else:
                    waiting.append(run)
            runs = shuffle.sample(waiting, len(waiting))
