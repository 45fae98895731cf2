"""A run of the user's own training script, observed from inside (common/observer) in slices of steps."""

import contextlib
import json
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from common.errors import OUT_OF_MEMORY
from common.files.checksums import CODE, file_checksum
from common.files.results import Environment
from common.machine.lifetime import temporary_directory
from common.machine.turns import Gate
from common.words import count
from comparison.methods import PROJECT
from comparison.rows import Configuration
from comparison.run.launch import started
from comparison.run.observed import Start, read_start, result_of, step_seconds, with_batch
from comparison.run.turns import Run, own_seconds

OBSERVER = PROJECT / "common" / "observer"  # on PYTHONPATH, so that Python imports its sitecustomize
OBSERVE = "PARALLEL_TRAINING_OBSERVE"  # environment variable: see common/observer
LONGEST = 900.0  # seconds, the default timeout of a run, which may never make a step
SLICES = 4  # timed slices of a run
ALONE = 0.5  # seconds to time a script's loader alone, after the last slice
NO_SAMPLES = "its samples cannot be counted: it has no DataLoader, and calls no network with a tensor"
NOTHING_SEEN = "no step of a torch optimizer was seen (python -I and -E keep the observer out)"


@dataclass(frozen=True)
class Slices:
    """The slices of a run: `warmup` steps, an untimed slice, and SLICES timed slices. steps: per slice; None: use
    `seconds`."""

    warmup: int
    steps: int | None
    seconds: float

    def steps_of(self, first: list[dict[str, Any]]) -> int:
        """Return the number of steps per slice. first: the first slice."""
        return self.steps or max(1, math.ceil(self.seconds / max(step_seconds(first), 1e-6)))


def slices_of(settings: Mapping[str, Any]) -> Slices:
    """Return the Slices of --warmup and --steps."""
    length = settings["steps"]
    steps, seconds = (length, 0.0) if isinstance(length, int) else (None, length)
    return Slices(settings["warmup"], steps, seconds)


class Ranks(Gate):
    """A Gate for ranks that report one by one that they are idle. world(): the number of ranks; 0 if not yet known."""

    def __init__(self, directory: Path, world: Callable[[], int]):
        directory.mkdir()
        super().__init__(str(directory))
        self._world, self._told = world, b""

    def is_idle(self, seconds: float) -> bool:
        if super().is_idle(seconds):
            self._told += self._ranks
        if not self._told or len(self._told) < self._world():
            return False
        self._ranks, self._told = self._told, b""
        return True


class ScriptRun(Run):
    """A run of a script. It is started again if it ends before all slices are measured, and then ended."""

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
        self._starts: list[Start] = []  # finished starts
        self._place = directory
        self._start = Start([])  # the current one
        self._startup: float | None = None
        file = configuration.script
        self._checksums = {CODE: file_checksum(file)} if file else {}

    def _begin(self):
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._place = Path(self.enter_context(temporary_directory()))
        self._tell(self._slices.warmup)
        self._gate = Ranks(self._place / "turns", lambda: read_start(self._place).world)
        self.callback(self._gate.close)
        path = os.pathsep.join(filter(None, [str(OBSERVER), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path, OBSERVE: str(self._place), **self._gate.environment}
        self._launched = time.time()
        self._child = self.enter_context(started(self._command, self._log, variables))

    def _go_on(self):
        start = read_start(self._place)
        self._tell(self._slices.steps_of(start.all_slices[0]), ALONE * (self._measured(start) == SLICES - 1))
        super()._go_on()

    def _measured(self, start):
        """Return the number of timed slices so far."""
        return sum(len(some.slices) for some in (*self._starts, start))

    def _tell(self, steps, alone=0.0):
        """Write the plan of the next slice atomically, because ranks may be reading."""
        new = self._place / "plan.new"
        new.write_text(json.dumps({"steps": steps, "alone": alone}), encoding="utf-8")
        new.rename(self._place / "plan.json")

    def _exit_code(self):
        """Return 0 once all slices are measured. A script that ended earlier is started again in its next turn."""
        code = super()._exit_code()
        self._start = start = read_start(self._place)
        if self._startup is None and start.ranks:
            self._startup = start.first_step - self._launched
        measured = self._measured(start)
        if measured >= SLICES or (code == 0 and start.slices):
            self._starts.append(start)
            used, before = self._cpu_seconds(), own_seconds()
            self.close()  # kills the loader's workers too
            self._orphans_seconds += max(0.0, used - (own_seconds() - before))
            self._child = None
            return 0 if measured >= SLICES else None
        return code

    def _cpu_seconds(self):
        """Return the CPU time of this start's living processes and of the children they waited for."""
        seconds = 0.0
        with contextlib.suppress(psutil.Error):
            script = psutil.Process(self._child.pid)
            for process in (script, *script.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    seconds += used.user + used.system + used.children_user + used.children_system
        return seconds

    def _found(self, exit_code):
        if exit_code == 0 and sum(len(start.slices) for start in self._starts) >= SLICES:
            typed, seconds = shlex.join(self._command), self._startup or 0.0
            result = replace(result_of(self._starts, typed, seconds, self._environment), checksums=self._checksums)
            if not result.global_batch_size and not self.configuration.is_script:
                result = with_batch(result, self.configuration.planned.batch_size)
            return (result, "") if result.global_batch_size else (None, f"; {NO_SAMPLES} (log: {self._log})")
        start, log = self._start, f" (log: {self._log})"
        if not start.ranks:
            return None, f"; {NOTHING_SEEN}{log}"
        steps = sum(ranks[0]["steps"] for ranks in start.all_slices)
        if len(start.ranks) < start.world:
            return None, f"; of {count(start.world, 'rank')} {len(start.ranks)} trained{log}"
        short = f"; it needs {count(self._slices.warmup, 'step')} and two slices: type e.g. --warmup 2 --steps 4"
        needed = short * (exit_code == 0)
        return None, f", after {count(1 + steps, 'step')}{needed}{log}"

    def _end(self, exit_code):
        status, why = super()._end(exit_code)
        if exit_code == 0:
            return "failed", "it ended too soon"
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        errors = re.findall(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Interrupt)\b.*)$", text, re.MULTILINE)
        errors = [error for error in errors if not error.startswith("torch.distributed.elastic")]  # torchrun's own
        if status != "failed" or not errors:
            return status, why
        if re.search("OutOfMemoryError|MemoryError|can't allocate memory", errors[-1]):
            return OUT_OF_MEMORY, errors[-1]
        return status, errors[-1]
