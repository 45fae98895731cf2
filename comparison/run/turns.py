"""Run the rows of a block in turns: one row trains for an epoch while the others wait.

A disturbance of a few seconds then affects all rows alike (L. Bulej et al., "Duet benchmarking", 2020).
"""

import contextlib
import math
import os
import random
import re
import resource
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from common.errors import OUT_OF_MEMORY, SuiteError
from common.files.results import read_result
from common.machine.cores import available_cores, usable_cores
from common.machine.lifetime import temporary_directory
from common.machine.turns import Gate
from comparison.outcomes import Outcome
from comparison.plan.plan import file_name
from comparison.rows import Configuration
from comparison.run.cards import CardWatch
from comparison.run.forked import Child
from comparison.run.launch import TIMED_OUT, cause, end_together, ran_out_of_memory, started

# The next row starts if this many times the memory of the largest row is free. With less, cuDNN would have less work
# space and choose slower algorithms.
ROOM = 1.25
LOOK_EVERY = 0.02  # seconds between checks whether a child has ended; a child that waits is noticed at once
LONGEST_LOOK = 0.5  # seconds; a check that took longer was interrupted: this program was stopped meanwhile


def stolen_seconds() -> dict[int, float]:
    """Return for each core that this process may use how long other virtual machines have had it."""
    times = dict(enumerate(psutil.cpu_times(percpu=True)))
    return {core: getattr(times[core], "steal", 0.0) for core in usable_cores() & times.keys()}


def busy_seconds() -> float | None:
    """Return the CPU seconds used by all processes and other virtual machines; None if we may not use every core."""
    if available_cores() != os.cpu_count():
        return None
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def own_seconds() -> float:
    """Return the CPU seconds used by this process and its children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def oom_kills() -> int:
    """Return how many processes Linux has killed for lack of memory, in all control groups; 0 if not reported."""
    with contextlib.suppress(OSError):
        if kills := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(kills[1])
    return 0


class Run(contextlib.ExitStack):
    """A run of a configuration that goes on in turns. A turn lasts until the run waits for the next one, or ends.

    Its result file and log go into `directory`. timeout: in seconds of its own turns. forks: see started(). As a
    context manager, it stops the run at the end.
    """

    def __init__(
        self,
        configuration: Configuration,
        block: int,
        seed: int,
        directory: Path,
        timeout: float | None = None,
        forks: bool = True,
    ):
        super().__init__()
        self.configuration, self._block, self._timeout, self._forks = configuration, block, timeout, forks
        self._file = directory / f"{file_name(configuration.name)}-{block}.json"
        self._log = self._file.with_suffix(".log")
        own = ("--seed", str(seed), "--output", str(self._file), "--figure-dir", str(directory), "--no-curves")
        self._command = (*configuration.launched, *own)
        self._one_node = configuration.nodes == 1
        self._wall_seconds = self._foreign_seconds = self._warmed = 0.0
        self._orphans_seconds = 0.0  # of this turn's processes without a waiting parent, which own_seconds() misses
        self._stolen_seconds = dict.fromkeys(usable_cores(), 0.0)
        self._cards = CardWatch()
        self._child: Child | None = None

    @property
    def free(self) -> int | None:
        """Free bytes of its first GPU when it began to wait; None on a CPU or if unknown."""
        return self._gate.free

    @property
    def running(self) -> list[Child]:
        """Its process if that is still running."""
        return [self._child] if self._child and self._child.poll() is None else []

    def take_turn(self) -> Outcome | None:
        """Start or continue the run. Return None if it waits for its next turn, or its Outcome if it has ended."""
        start, busy, own = time.perf_counter(), busy_seconds() if self._one_node else None, own_seconds()
        stolen = stolen_seconds()
        with self._cards.watching(lambda: [process.pid for process in self._processes()]):
            if self._child is None:
                self._oom_kills = oom_kills()
                self._begin()
            else:
                self._go_on()
            self._notice_pause(start)
            exit_code = self._exit_code()
        if exit_code is not None:
            self._warmed = self._gate.warmed()  # seconds; a row that runs alone has nothing like it
            self.close()  # processes left behind would disturb the other rows
        self._wall_seconds += time.perf_counter() - start
        for core, now in stolen_seconds().items():
            self._stolen_seconds[core] = self._stolen_seconds.get(core, 0.0) + now - stolen.get(core, now)
        if busy is not None:  # own_seconds() counts all turns of the run, but only once it has ended
            self._foreign_seconds += (busy_seconds() or 0.0) - busy - (own_seconds() - own) - self._orphans_seconds
            self._orphans_seconds = 0.0
        if exit_code is None:
            return None
        return self._outcome(exit_code, None if busy is None else max(0.0, self._foreign_seconds) / self._wall_seconds)

    def _processes(self):
        """Return the run's processes."""
        with contextlib.suppress(psutil.Error, AttributeError):  # it has ended or was never started
            process = psutil.Process(self._child.pid)
            return [process, *process.children(recursive=True)]
        return []

    def _begin(self):
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)  # an old result must not pass for that of this run
        directory = self.enter_context(temporary_directory())
        self._gate = self.enter_context(contextlib.closing(Gate(directory)))
        turns = self._gate.environment if self._one_node else {}  # other nodes cannot see the gate
        self._child = self.enter_context(started(self._command, self._log, turns, self._forks))

    def _go_on(self):
        self._gate.start_turn()

    def _exit_code(self):
        """Return the child's exit code, TIMED_OUT if the time is used up, or None once it waits for its next turn."""
        end = time.perf_counter() + (math.inf if self._timeout is None else self._timeout - self._wall_seconds)
        while self._child.poll() is None:
            look = time.perf_counter()
            if look > end:
                return TIMED_OUT
            idle = self._gate.is_idle(LOOK_EVERY)
            self._notice_pause(look)
            if idle:
                return None
        return self._child.returncode

    def _notice_pause(self, since):
        """If this program was stopped, count that as if others had had all cores."""
        if (stopped := time.perf_counter() - since) > LONGEST_LOOK:
            self._foreign_seconds += stopped * available_cores()

    def _outcome(self, exit_code, foreign_cores):
        status, reason = self._failure(exit_code)
        result = None
        if not self._log.exists():
            print(f"warning: {self._log} has vanished while its run wrote it", file=sys.stderr, flush=True)
        try:
            result, when = self._read_result(exit_code)
            reason += when
        except SuiteError as error:
            status, reason = "failed", f"{error} (log: {self._log})"
        if result:
            status, reason = result.status, result.reason
        earlier = self._child.earlier if self._child else 0.0
        return Outcome(
            self.configuration.name,
            self._block,
            status,
            reason,
            shlex.join(self._command),
            str(self._log),
            exit_code,
            self._wall_seconds - self._warmed + earlier,
            foreign_cores,
            result,
            self._cards.uses(result) if result else (),
            max(self._stolen_seconds.values()) / self._wall_seconds if self._one_node else None,
        )

    def _read_result(self, exit_code):
        """Return (result, ""), or (None, when the run ended) if it left no complete result."""
        log = f" (log: {self._log})"
        if not self._file.exists():
            return None, f", before its first epoch{log}"
        result = read_result(self._file)
        if result.status == "failed" or (result.status == "ok" and exit_code != 0):
            return None, f", after {len(result.epochs)} of {result.config['epochs']} epochs{log}"
        return result, ""

    def _failure(self, exit_code):
        """Return the status and reason of a run that leaves no complete result."""
        if exit_code == TIMED_OUT and self._timeout and self._wall_seconds >= self._timeout:
            return "timed out", f"stopped after {self._timeout:g} s"
        why, batch = cause(exit_code, self._log), self.configuration.planned.batch
        if ran_out_of_memory(why):
            return OUT_OF_MEMORY, f"{batch}: {why}"
        if re.search("SIGKILL|Killed", why) and oom_kills() > self._oom_kills:  # a rank or a loader worker was killed
            return OUT_OF_MEMORY, f"{batch}: the kernel killed a process for its memory: {why}"
        return "failed", why


def run_once(configuration: Configuration, *how: Any, **more: Any) -> Outcome:
    """Run a configuration to its end. how, more: the other arguments of Run."""
    return run_whole(Run(configuration, *how, **more))


def run_whole(run: Run) -> Outcome:
    """Take all turns of a run that has not started yet."""
    (outcome,) = take_turns([run], 0)
    return outcome


def take_turns(runs: list[Run], seed: int, need: int = 0) -> Iterator[Outcome]:
    """Run several Runs to their ends in turns, and yield the outcome of each as it ends.

    They start in the given order and continue in an order that is shuffled from `seed` in every epoch. On a GPU a run
    trains its first epoch when it starts, to measure the memory that it takes. Another run starts only if there is room
    for it, otherwise when all that have started have ended. need: a guess of the bytes that a row needs.
    """
    shuffle, left, wave = random.Random(seed), [*runs], 0
    measured: list[int] = []  # bytes of a GPU that each started row took
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
    """Return the outcome with a note added to the reason of its result, if it is ok."""
    if not outcome.result or outcome.status != "ok":
        return outcome
    reason = "; ".join(filter(None, (outcome.result.reason, f"in block {outcome.block} {note}")))
    return replace(outcome, result=replace(outcome.result, reason=reason))
