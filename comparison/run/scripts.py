"""A run of a user's own training script, observed from inside (common/observer) in slices of steps."""

import contextlib
import json
import math
import os
import re
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from common.errors import NO_MEMORY, OUT_OF_MEMORY
from common.files.checksums import CODE, file_checksum
from common.files.results import Environment
from common.machine.lifetime import temporary_directory
from common.machine.turns import OBSERVE, Gate
from common.words import count
from comparison.methods import PROJECT, SCRIPT
from comparison.outcomes import Outcome
from comparison.plan.scripts import THREAD, WORKERS
from comparison.record import Report
from comparison.rows import Configuration
from comparison.run.forked import python_path
from comparison.run.launch import TIMED_OUT, started
from comparison.run.observed import Start, read_start, result_of, with_batch
from comparison.run.turns import Run, own_seconds

OBSERVER = PROJECT / "common" / "observer"  # on PYTHONPATH, so that every Python process imports its sitecustomize
LONGEST = 900.0  # seconds of its own turns, without --timeout: a script may never make a step
# Timed slices of a run: the square root of (cost of a launch ÷ that of a slice) x (variance between slices ÷ that
# between launches), by T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", 2013. In
# figures/own-script/results.json, the costs have a ratio of 6, and the standard deviations are 7% and 5%: 3 to 4.
SLICES = 3
ALIKE = 3  # launches whose slices would differ at most threefold in steps get the same number of steps
ALONE = 0.5  # seconds for which the script's loader is timed alone, after the last slice
COUNTS = {  # what a variant of a script changes
    THREAD: ("thread", "threads_per_process"),
    WORKERS: ("loader worker", "workers_per_process"),
}
NO_SAMPLES = "its samples cannot be counted: it has no DataLoader, and calls no network with a tensor"
NOTHING_SEEN = "no step of a torch optimizer was seen (python -I, -E or another PYTHONPATH keeps the observer out)"


@dataclass(frozen=True)
class Slices:
    """The plan of a script's measurement: `warmup` steps and one slice untimed, then SLICES timed slices.

    length: of each slice, in steps or, if no integer, in seconds. known: the steps of earlier launches' slices, by row.
    """

    warmup: int
    length: float
    known: dict[str, int] = field(default_factory=dict)

    def steps_of(self, name: str, first: list[dict[str, Any]]) -> int:
        """Return the steps of a row's slices, given what the ranks wrote about the first one.

        Launches of a row, and of rows with similar steps, get the same number: their batches may differ in size.
        """
        if isinstance(self.length, int):
            return self.length
        step = statistics.median(map(sum, first[0]["series"])) / 1000  # of rank 0, in seconds
        wanted = max(1, math.ceil(self.length / max(step, 1e-6)))
        known = [self.known[other] for other in sorted(self.known, key=lambda other: other != name)]
        self.known[name] = next((steps for steps in known if wanted / ALIKE <= steps <= wanted * ALIKE), wanted)
        return self.known[name]


def known_steps(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how many steps the slices of each row's last launch had, of scripts."""
    results = [(run.configuration, run.result) for run in outcomes if run.result and run.result.method == SCRIPT]
    return {name: max(epoch.steps for epoch in result.epochs) for name, result in results}


class Ranks(Gate):
    """A gate for ranks that become idle one by one. world: returns the number of ranks, 0 while unknown."""

    def __init__(self, directory: Path, world: Callable[[], int]):
        directory.mkdir()
        super().__init__(str(directory))
        self._world, self._idle_ranks = world, b""

    def is_idle(self, seconds: float) -> bool:
        if super().is_idle(seconds):
            self._idle_ranks += self._ranks
        if not self._idle_ranks or len(self._idle_ranks) < self._world():
            return False
        self._ranks, self._idle_ranks = self._idle_ranks, b""
        return True


class ScriptRun(Run):
    """A run of a script, restarted until all slices are measured and then stopped."""

    def __init__(
        self,
        configuration: Configuration,
        block: int,
        directory: Path,
        timeout: float | None,
        slices: Slices,
        environment: Environment,
    ):
        super().__init__(configuration, block, 0, directory, timeout or LONGEST)
        self._command, self._slices, self._environment = configuration.command, slices, environment
        self._starts: list[Start] = []  # finished
        self._start = Start([])  # the latest
        self._place = directory  # where the ranks write
        self._startup: float | None = None
        file = configuration.script
        self._checksums = {CODE: file_checksum(file)} if file else {}

    def _begin(self):
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._place = Path(self.enter_context(temporary_directory()))
        self._tell(self._slices.warmup)
        self._gate = Ranks(self._place / "turns", lambda: read_start(self._place).world)
        self.callback(self._gate.close)
        variables = {"PYTHONPATH": python_path(OBSERVER), OBSERVE: str(self._place), **self._gate.environment}
        self._launched = time.time()
        command = [re.sub("^PYTHONPATH=", f"PYTHONPATH={OBSERVER}{os.pathsep}", word) for word in self._command]
        self._child = self.enter_context(started(command, self._log, variables))

    def _go_on(self):
        start = read_start(self._place)
        steps = self._slices.steps_of(self.configuration.name, start.all_slices[0])
        self._tell(steps, ALONE * (self._measured(start) == SLICES - 1))
        super()._go_on()

    def _measured(self, start):
        """Return the number of timed slices of the finished starts and of `start`."""
        return sum(len(each.slices) for each in (*self._starts, start))

    def _tell(self, steps, alone=0.0):
        """Tell the ranks the length of the next slice. The file is replaced at once, as they may be reading it."""
        new = self._place / "plan.new"
        new.write_text(json.dumps({"steps": steps, "alone": alone}), encoding="utf-8")
        new.rename(self._place / "plan.json")

    def _exit_code(self):
        """Return 0 once all slices are measured. A script that ends earlier starts again in the next turn."""
        code = super()._exit_code()
        self._start = start = read_start(self._place)
        if self._startup is None and start.ranks:
            self._startup = start.ranks[0][0]["first_step"] - self._launched
        measured = self._measured(start)
        if measured >= SLICES or (code == 0 and start.slices):
            self._starts.append(start)
            used, before = self._cpu_seconds(), own_seconds()
            self.close()  # kills the loader workers, and then no parent waits for them
            self._orphans_seconds += max(0.0, used - (own_seconds() - before))
            self._child = None
            return 0 if measured >= SLICES else None
        return code

    def _cpu_seconds(self):
        """Return the CPU seconds of this start's living processes and of the children they waited for."""
        seconds = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):  # it has ended
                used = process.cpu_times()
                seconds += used.user + used.system + used.children_user + used.children_system
        return seconds

    def _read_result(self, exit_code):
        log = f" (log: {self._log})"
        if exit_code == 0 and sum(len(start.slices) for start in self._starts) >= SLICES:
            typed, seconds = shlex.join(self._command), self._startup or 0.0
            result = replace(result_of(self._starts, typed, seconds, self._environment), checksums=self._checksums)
            if not result.global_batch_size and not self.configuration.is_script:
                result = with_batch(result, self.configuration.planned.batch_size)
            return (result, "") if result.global_batch_size else (None, f"; {NO_SAMPLES}{log}")
        start = self._start
        if not start.ranks:
            seen = self.configuration.is_script and exit_code in (0, TIMED_OUT)
            return None, (f"; {NOTHING_SEEN}" if seen else ", before its first step") + log
        steps = sum(ranks[0]["steps"] for ranks in start.all_slices)
        if len(start.ranks) < start.world:
            return None, f"; of {count(start.world, 'rank')} {len(start.ranks)} trained{log}"
        needed = ""
        if exit_code == TIMED_OUT and len({*map(len, start.ranks)}) > 1:
            needed = "; some ranks waited for others to make as many steps, as with uneven inputs"
        if exit_code == 0:
            needed = f"; it needs {count(self._slices.warmup, 'step')} and two slices: type e.g. --warmup 2 --steps 4"
        return None, f", after {count(1 + steps, 'step')}{needed}{log}"

    def _failure(self, exit_code):
        status, why = super()._failure(exit_code)
        if exit_code == 0:
            return "failed", "it ended too soon"
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        errors = re.findall(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Interrupt)\b.*)$", text, re.MULTILINE)
        errors = [error for error in errors if not error.startswith("torch.distributed.elastic")]  # by torchrun
        if status != "failed" or not errors:
            return status, why
        if re.search(f"MemoryError|{NO_MEMORY}", errors[-1]):
            return OUT_OF_MEMORY, errors[-1]
        return status, errors[-1]


def leave_out(report: Report, reasons: Mapping[str, str]) -> Report:
    """Return the report with these rows (name → reason) skipped, and without their runs."""
    return replace(
        report,
        plan=tuple(replace(row, skip=reasons.get(row.name, row.skip)) for row in report.plan),
        order=tuple(run for run in report.order if run[1] not in reasons),
        outcomes=tuple(outcome for outcome in report.outcomes if outcome.configuration not in reasons),
    )


def useless_variants(report: Report) -> dict[str, str]:
    """Return why variants of a script do not count: they never ran well, or have as many threads or workers as it."""
    reasons = {}
    plain = next((row.results[0] for row in report.rows if row.results and not row.configuration.what_if), None)
    for row in report.rows:
        kind = row.configuration.what_if
        if kind and row.troubles and not row.results:
            reasons[row.name] = row.troubles[0].reason.removeprefix("RuntimeError: ")
        elif kind in COUNTS and row.results and plain:
            what, name = COUNTS[kind]
            if (number := getattr(plain, name)) == getattr(row.results[0], name):
                reasons[row.name] = f"the script keeps {count(number, what)}"
    return reasons
