"""A run, whole or in turns: each row of a block trains one epoch at a time, while the others wait.

Whatever makes the machine slower for seconds then meets all rows alike: L. Bulej et al., "Duet benchmarking", 2020.
"""

import contextlib
import math
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from common.errors import OUT_OF_MEMORY, SuiteError
from common.files.probe import Probe
from common.files.results import read_result
from common.machine.cores import available_cores, usable_cores
from common.machine.lifetime import temporary_directory
from common.machine.turns import Gate
from comparison.plan.plan import file_name
from comparison.rows import Configuration, Outcome, Trial
from comparison.run.cards import CardWatch
from comparison.run.launch import TIMED_OUT, cause, end_together, ran_out_of_memory, started

GIB = 2**30
# Of a GPU: a process's CUDA context, the libraries' work space and NCCL's buffers, until a row's are measured; and how
# many times what the largest row had must be free for another, or cuDNN would find less work space and slower plans.
GPU_BASE, ROOM = 2 * GIB, 1.25
LOOK_EVERY = 0.02  # seconds, for the end of a child; that it waits for its turn is seen at once
LONGEST_LOOK = 0.5  # seconds; one that took longer was stopped on the way


def stolen_seconds() -> dict[int, float]:
    """Return how long other virtual machines have had each core on which this process may run."""
    times = dict(enumerate(psutil.cpu_times(percpu=True)))
    return {core: getattr(times[core], "steal", 0.0) for core in usable_cores() & times.keys()}


def busy_seconds() -> float | None:
    """Return the CPU seconds that all processes, and other machines, used here; None if some cores are not ours."""
    if available_cores() != os.cpu_count():
        return None
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def own_seconds() -> float:
    """Return the CPU seconds that this process used, and its children which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def oom_kills() -> int:
    """Return how many processes Linux has killed for lack of memory, in all control groups; 0 if it is silent."""
    with contextlib.suppress(OSError):
        if kills := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(kills[1])
    return 0


class Run(contextlib.ExitStack):
    """A run of a configuration, which goes on in turns: each lasts until it waits for the next, or has ended.

    Its result file and log go into `directory`. timeout: seconds of its own turns. In a `with`, which stops it.
    """

    def __init__(
        self, configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
    ):
        super().__init__()  # of what ends with it
        self.configuration, self._block, self._timeout = configuration, block, timeout
        self._file = directory / f"{file_name(configuration.name)}-{block}.json"
        self._log = self._file.with_suffix(".log")
        own = ("--seed", str(seed), "--output", str(self._file), "--figure-dir", str(directory), "--no-curves")
        self._command = (*configuration.launched, *own)
        self._here = configuration.nodes == 1
        self._wall_seconds = self._foreign_seconds = 0.0
        self._orphans_seconds = 0.0  # of the run's processes for which nobody waited, since that was last asked
        self._stolen_seconds = dict.fromkeys(usable_cores(), 0.0)
        self._cards = CardWatch()
        self._child: subprocess.Popen | None = None

    @property
    def free(self) -> int | None:
        """Bytes that were free on its first GPU when it began to wait; None on a CPU, or where it does not tell."""
        return self._gate.free

    @property
    def running(self) -> list[subprocess.Popen]:
        """Its process, as long as it runs."""
        return [self._child] if self._child and self._child.poll() is None else []

    def take_turn(self) -> Outcome | None:
        """Start the run, or let it go on; return None once it waits for its next turn, and its Outcome at its end."""
        start, busy, own = time.perf_counter(), busy_seconds() if self._here else None, own_seconds()
        stolen = stolen_seconds()
        with self._cards.watching(self._processes):
            if self._child is None:
                self._begin()
            else:
                self._go_on()
            exit_code = self._exit_code()
        if exit_code is not None:
            self.close()  # what it left behind would use the others' time
        self._wall_seconds += time.perf_counter() - start
        for core, now in stolen_seconds().items():
            self._stolen_seconds[core] = self._stolen_seconds.get(core, 0.0) + now - stolen.get(core, now)
        if busy is not None:  # the run's own seconds are known, all at once, as soon as it has ended
            self._foreign_seconds += (busy_seconds() or 0.0) - busy - (own_seconds() - own) - self._orphans_seconds
            self._orphans_seconds = 0.0
        if exit_code is None:
            return None
        return self._outcome(exit_code, None if busy is None else max(0.0, self._foreign_seconds) / self._wall_seconds)

    def _processes(self):
        """The PIDs of the run's processes."""
        with contextlib.suppress(psutil.Error, AttributeError):  # it has ended, or could not be started
            process = psutil.Process(self._child.pid)
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
        return ()

    def _begin(self):
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)  # or an old result would pass for this run's
        self._oom_kills = oom_kills()
        directory = self.enter_context(temporary_directory())
        self._gate = self.enter_context(contextlib.closing(Gate(directory)))
        turns = self._gate.environment if self._here else {}  # other nodes do not see the gate
        self._child = self.enter_context(started(self._command, self._log, turns))

    def _go_on(self):
        self._gate.start_turn()

    def _exit_code(self):
        """The child's exit code, TIMED_OUT if the run has used up its time, None as soon as it waits for its turn."""
        end = time.perf_counter() + (math.inf if self._timeout is None else self._timeout - self._wall_seconds)
        while self._child.poll() is None:
            look = time.perf_counter()
            if look > end:
                return TIMED_OUT
            idle = self._gate.is_idle(LOOK_EVERY)
            if (unseen := time.perf_counter() - look) > LONGEST_LOOK:  # as if others had had all cores
                self._foreign_seconds += unseen * available_cores()
            if idle:
                return None
        return self._child.returncode

    def _outcome(self, exit_code, foreign_cores):
        """What became of it: what its result says, if there is one, else how its process ended."""
        (status, reason), result = self._end(exit_code), None
        if not self._log.exists():
            print(f"warning: {self._log} has vanished while its run wrote it", file=sys.stderr, flush=True)
        try:
            result, when = self._found(exit_code)
            reason += when
        except SuiteError as error:
            status, reason = "failed", f"{error} (log: {self._log})"
        if result:
            status, reason = result.status, result.reason
        how = (self.configuration.name, self._block, status, reason, shlex.join(self._command), str(self._log))
        cards = self._cards.uses(result) if result else ()
        stolen = max(self._stolen_seconds.values()) / self._wall_seconds if self._here else None
        return Outcome(*how, exit_code, self._wall_seconds, foreign_cores, result, cards, stolen)

    def _found(self, exit_code):
        """What its result file says, None if that is not whole, and then when it ended."""
        log = f" (log: {self._log})"
        if not self._file.exists():
            return None, f", before its first epoch{log}"
        result = read_result(self._file)
        if result.status == "failed" or (result.status == "ok" and exit_code != 0):
            return None, f", after {len(result.epochs)} of {result.config['epochs']} epochs{log}"
        return result, ""

    def _end(self, exit_code):
        """Status and reason of a run that leaves no whole result."""
        if exit_code == TIMED_OUT and self._timeout and self._wall_seconds >= self._timeout:
            return "timed out", f"stopped after {self._timeout:g} s"
        why, batch = cause(exit_code, self._log), self.configuration.planned.batch
        if ran_out_of_memory(why):
            return OUT_OF_MEMORY, f"{batch}: {why}"
        if re.search("SIGKILL|Killed", why) and oom_kills() > self._oom_kills:  # of a rank, or of a loader's worker
            return OUT_OF_MEMORY, f"{batch}: the kernel killed a process for its memory: {why}"
        return "failed", why


def run_once(
    configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
) -> Outcome:
    """Go through a Run to its end, in one turn after the other."""
    return run_whole(Run(configuration, block, seed, directory, timeout))


def run_whole(run: Run) -> Outcome:
    """Go through a run that is not begun yet to its end, in one turn after the other."""
    (outcome,) = take_turns([run], 0)
    return outcome


def take_turns(runs: list[Run], seed: int, need: int = 0) -> Iterator[Outcome]:
    """Go through Runs to their ends, one turn of one of them at a time; yield what became of each as it ends.

    They start in the order given, and go on in one that is shuffled from `seed` for every epoch. On a GPU, each goes
    through its first epoch when it starts, so that what it takes there is measured; the next one starts as long as
    there is room for it, and those that are left when the others have ended. need: bytes of a row, by a guess.
    """
    shuffle, left, wave = random.Random(seed), [*runs], 0
    measured: list[int] = []
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.enter_context(run)
        stack.callback(lambda: end_together([child for run in runs for child in run.running]))
        while left:
            waiting, free, wave = [], None, wave + 1
            while left and (free is None or free > ROOM * max(measured, default=need)):
                run = left.pop(0)
                outcome = run.take_turn()
                if not outcome and run.free is not None:
                    outcome = run.take_turn()
                if outcome:
                    yield _in_wave(outcome, wave)
                    continue
                waiting.append(run)
                if free is not None and run.free is not None:
                    measured.append(free - run.free)
                free = run.free
            while waiting:
                again = []
                for run in shuffle.sample(waiting, len(waiting)):
                    if outcome := run.take_turn():
                        yield _in_wave(outcome, wave)
                    else:
                        again.append(run)
                waiting = again


def _in_wave(outcome, wave):
    if wave == 1:
        return outcome
    return with_note(outcome, "it ran after other rows had ended, as a GPU's memory did not suffice for all at once")


def with_note(outcome: Outcome, note: str) -> Outcome:
    """Return what became of a run, whose result says besides what was special about it."""
    if not outcome.result or outcome.status != "ok":
        return outcome
    reason = "; ".join(filter(None, (outcome.result.reason, f"in block {outcome.block} {note}")))
    return replace(outcome, result=replace(outcome.result, reason=reason))


def why_not_in_turns(plan: Iterable[Configuration], probe: Probe | None, trials: Iterable[Trial] = ()) -> str:
    """Return why the rows of a block should not take turns, or "" if they may.

    All have to fit into the machine's memory together: each device counts with the most that the probe or, on a CPU, a
    trial had; each loader worker, and what launches several devices, with half of that. Of those on a GPU, as many take
    turns as fit there: see take_turns(). What scripts need is not known: they do not count.
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
    helpers = sum(row.planned.num_workers for row in able) + sum(count > 1 for count in devices)
    peaks = [cpu.peak_bytes, *(trial.peak_bytes or 0 for trial in trials if not gpu)]
    needed, free = (sum(devices) + helpers / 2) * max(peaks) / GIB, (cpu.free_bytes or 0) / GIB
    return "" if needed <= free else f"together they could need {needed:.1f} GiB of memory, {free:.1f} are free"


def gpu_need(probe: Probe | None, trials: Iterable[Trial] = ()) -> int:
    """Return how many bytes of a GPU a row may take: what PyTorch had in the probe, or a trial, and GPU_BASE."""
    peaks = [memory.peak_bytes for memory in probe.memory[1:]] if probe else []
    return max([*peaks, *(trial.peak_bytes or 0 for trial in trials)], default=0) + GPU_BASE
