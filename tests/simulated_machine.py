"""A simulated machine for whole comparisons: its clock, processes, signals and disk are those of this module.

compare_parallel.py runs unchanged in this process. What it asks the operating system for (time, subprocess, os.kill,
os.fsync, select, CPU times) is answered by a Machine, so hours pass in milliseconds. Files are real, in a directory of
their own; so are the FIFOs by which runs take turns. A training is a generator that yields the seconds it computes.

Everything is determined by the Machine's arguments. An Event happens at a call of the machine, or some lines of Python
later, so that a signal may arrive anywhere.
"""

import contextlib
import io
import itertools
import json
import math
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import psutil
from filelock import FileLock

import compare_parallel
from common.errors import INTERRUPTED, OUT_OF_MEMORY
from common.files.results import write_result
from common.files.writing import write_text
from common.machine import lifetime
from common.machine.entry import run_script
from common.machine.turns import IDLE, OBSERVE, START, TURNS
from comparison import results_file
from comparison.run import cards, forked, launch, turns
from comparison.run.observed import OBSERVED
from comparison.show import report as shown
from tests.reports import ENVIRONMENT, PROBE, make_result

STARTUP = 0.5  # seconds
LOOK_EVERY = 0.1  # instead of 0.02 s, so that there are fewer looks
LONGEST = 400.0  # simulated seconds after which a session hangs
MOST_BLOCKS = 18  # more than any budget allows
GIB = 2**30


class HangError(BaseException):
    """The program waits for something that never happens."""


@dataclass(frozen=True)
class Event:
    """What happens at the `number`-th call of a kind in a session, and `lines` of Python later if it is a signal.

    what: a signal's name, "disk full" (from then on), "paused" (SIGSTOP, and SIGCONT after two seconds), "second" (the
    same command is typed in another terminal), or "helper killed".
    """

    what: str
    call: str
    number: int
    lines: int = 0


@dataclass(frozen=True)
class Load:
    """What other programs, or another virtual machine if `stolen`, use from `start` to `end`: a number of cores."""

    start: float
    end: float
    cores: float
    stolen: bool = False

    def seconds(self, start: float, end: float) -> float:
        """Return the CPU seconds that it uses between two times."""
        return self.cores * max(0.0, min(end, self.end) - max(start, self.start))


@dataclass(frozen=True)
class Fate:
    """How a run goes: the seconds of an epoch, and what happens in epoch `at`.

    what: ok, exit, killed, out of memory, killed for memory, stalls. stubborn: it ignores SIGTERM. leaves: it has a
    worker in a session of its own, and does not end it.
    """

    what: str = "ok"
    at: int = 1
    seconds: tuple[float, ...] = ()
    stubborn: bool = False
    leaves: bool = False

    def seconds_of(self, epoch: int) -> float:
        """Return how long an epoch takes, of which it trains half if it fails there, and none after that."""
        return self.seconds[epoch - 1] * (1.0 if self.what == "ok" or epoch < self.at else 0.5 * (epoch == self.at))

    def fails_in(self, epoch: int) -> bool:
        return self.what != "ok" and epoch == self.at

    @property
    def step_seconds(self) -> float:
        """The seconds of a step, if the run is that of a user's script."""
        return self.seconds[0] / 20


class Training(NamedTuple):
    """A run that a comparison started."""

    row: str
    block: int
    seed: int | None
    fate: Fate
    process: "Process"

    @property
    def is_script(self) -> bool:
        """Whether it is that of a user's script, which has no seed."""
        return self.seed is None

    def __str__(self) -> str:
        return f"{self.row} in block {self.block}, {self.fate}"


class Process:
    """A simulated process in a session of its own, with the parts of Popen and Child that the suite uses.

    work(process): a generator of the seconds until it goes on. cores: how many it uses, unless it waits for its turn.
    turn: the FIFO that it waits at, or -1. code: its exit code once it has ended; returncode: once its parent knows.
    """

    earlier = 0.0

    def __init__(self, machine: "Machine", command, environment, work, cores: float):
        self.machine, self.command, self.environment, self.cores = machine, command, environment, cores
        self.pid = 100 + len(machine.processes)
        machine.processes.append(self)
        self.code: int | None = None
        self.returncode: int | None = None
        self.stubborn, self.turn, self.cpu = False, -1, 0.0
        self.foreign = {False: 0.0, True: 0.0}  # CPU seconds of others while it computed, by Load.stolen
        self.work, self.wakes = work(self), machine.now

    def go_on(self) -> None:
        """Compute until the next yield. The seconds that it yields are CPU time, unless it waits."""
        try:
            self.wakes = self.machine.now + next(self.work)
        except StopIteration as ended:
            self.end(ended.value or 0)
        except OSError:  # the program has deleted its files
            self.end(1)

    def end(self, code: int) -> None:
        if self.code is None:
            self.code, self.wakes = code, math.inf
            if self.turn >= 0:
                os.close(self.turn)

    def poll(self) -> int | None:
        if self.returncode is None and self.code is not None:
            self.returncode = self.code
            self.machine.reaped_cpu += self.cpu
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.machine.call("wait")
        self.machine.run_until(math.inf if timeout is None else self.machine.now + timeout, lambda: self.ended)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.command, timeout or 0.0)
        return self.returncode

    @property
    def ended(self) -> bool:
        return self.code is not None

    @property
    def computes(self) -> bool:
        return not self.ended and self.turn < 0 and self.cores > 0


class Machine:
    """See above. place: a directory. fate(row, block, attempt): how a run goes. free: bytes of memory.

    trained: all runs, in the order of their starts; turns: in that of their turns. asked, happened: the helpers and the
    events of the last session. trouble: what must never happen. before_turn() is called before a run starts or goes on.
    """

    def __init__(
        self, place: Path, cores: int, loads: tuple[Load, ...], fate: Callable[[str, int, int], Fate], free: int
    ):
        self.place, self.cores, self.loads, self.fate, self.free = place, cores, loads, fate, free
        self.now = self.started = 1000.0
        self.processes: list[Process] = []
        self.trained: list[Training] = []
        self.turns: list[Training] = []
        self.log: list[tuple] = []
        self.trouble: list[str] = []
        self.asked: list[str] = []
        self.happened: list[tuple[float, str]] = []
        self.events: list[Event] = []
        self.calls: Counter[str] = Counter()
        self.full, self.paused, self.reaped_cpu, self.killed_for_memory, self._inside = False, 0, 0.0, 0, 0
        self.before_turn: Callable[[], None] = lambda: None

    # ---- a session: one command, from its start to its end

    def session(self, words: list[str], events: tuple[Event, ...] = ()) -> tuple[int, str, str]:
        """Run a command of compare_parallel.py. Return its exit code, stdout and stderr."""
        self.events, self.full, self.started, self.asked = [*events], False, self.now, []
        self.calls.clear()
        self.happened.clear()
        lifetime.guard.cache_clear()
        lifetime.own_name.cache_clear()
        with self._installed():
            ended = self._typed(words)
            if (self.place / "taken").exists():
                self._give_back()
            (self._out / ".comparison.lock").unlink(missing_ok=True)  # the end of a process releases its locks
            self.log.append(("session", ended[0]))
            self.events, self.started = [], self.now
            left = [process.command for process in self.alive() if process.environment]
            if left and not any(hasattr(signal, what) for _, what in self.happened):
                self.trouble.append(f"alive at the end: {left}")
            self._clean_up()
        if self.alive():
            self.trouble.append(f"alive after the guard: {[process.command for process in self.alive()]}")
        return ended

    def _clean_up(self):
        """Do what the guard of the program does after its end, if it was started."""
        for guard in [process for process in self.alive() if lifetime.__file__ in process.command]:
            lifetime.kill_tagged(f"{lifetime.own_name()}-")
            for directory in self.place.glob("tmp/*"):
                shutil.rmtree(directory)
            guard.end(0)

    def _typed(self, words):
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with patch.multiple(sys, argv=["compare_parallel.py", *words], stdout=out, stderr=err):
            try:
                run_script(compare_parallel.main)
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
            except KeyboardInterrupt:  # after main()
                code = INTERRUPTED
            except HangError as hang:
                code = -1
                self.trouble.append(f"hangs: {hang}")
            finally:
                sys.settrace(None)
        return code, *(stream.buffer.getvalue().decode() for stream in (out, err))

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """Answer what the program asks the operating system for."""
        clock = dict.fromkeys(("monotonic", "perf_counter", "time"), lambda: self.now)
        with contextlib.ExitStack() as stack:
            for place, names in (
                (time, {**clock, "process_time": lambda: 0.0, "sleep": self._sleep}),
                (subprocess, {"Popen": self._popen, "run": self._run}),
                (os, {"kill": self._kill, "killpg": self._kill, "fsync": self._fsync, "cpu_count": lambda: self.cores}),
                (select, {"select": self._select}),
                (signal, {"setitimer": lambda *_: self._after(signal.SIGALRM, 20)}),
                (psutil, {"cpu_times": self._cpu_times, "Process": self._process}),
                (resource, {"getrusage": lambda _: SimpleNamespace(ru_utime=self.reaped_cpu, ru_stime=0.0)}),
                (lifetime, {"tags": self._tags}),
                (turns, {"available_cores": lambda: self.cores, "usable_cores": lambda: {*range(self.cores)}}),
                (turns, {"oom_kills": lambda: self.killed_for_memory, "LOOK_EVERY": LOOK_EVERY}),
                (forked, {"can_fork": lambda: False}),
                (launch, {"Child": self._child}),
                (cards, {"nvml": lambda: None}),
                (tempfile, {"tempdir": str(self.place / "tmp")}),
                (shown.figures, {"draw_all": lambda *_: []}),
                (shown, dict.fromkeys(("write_html", "write_markdown"), lambda *_: None)),
                (results_file, {"write_json": lambda value, path: write_text(json.dumps(value), path)}),  # faster
                (compare_parallel, {"wait_for_others": lambda _: [], "register_program": contextlib.nullcontext}),
            ):
                stack.enter_context(patch.multiple(place, **names))
            yield

    # ---- what happens at a call

    def call(self, kind: str) -> None:
        """Count a call of the program, and let the events happen that are due."""
        if self._inside:
            return
        if self.now > self.started + LONGEST:
            raise HangError(f"it takes more than {LONGEST:g} s")
        self.calls[kind] += 1
        for event in [event for event in self.events if (event.call, event.number) == (kind, self.calls[kind])]:
            self.events.remove(event)
            self.log.append((round(self.now, 6), event.what, kind, event.number, event.lines))
            self.happened.append((self.now, event.what))
            if event.what == "disk full":
                self.full = True
            elif event.what == "paused":
                self.paused += 1
                self._let(lambda: self.move(self.now + 2.0))
            elif hasattr(signal, event.what):
                self._after(getattr(signal, event.what), event.lines)
            elif self._out.exists() and (act := self._others.get(event.what)):
                self._let(act)

    def _let(self, happen):
        """Do something that is no call of the program."""
        self._inside += 1
        try:
            return happen()
        finally:
            self._inside -= 1

    def _after(self, number, lines):
        """Send a signal to the program after so many lines of Python outside this module.

        Not in shutil: rmtree() closes a descriptor twice if an exception comes between two of its lines (Python 3.11).
        """

        def trace(frame, kind, _):
            nonlocal lines
            if self._inside or frame.f_code.co_filename in (__file__, shutil.__file__):
                return trace
            if kind == "line":
                lines -= 1
                if lines < 0:
                    sys.settrace(None)
                    signal.raise_signal(number)
            return trace

        if not lines:
            signal.raise_signal(number)
        frame = sys._getframe()
        while frame := frame.f_back:
            frame.f_trace = trace
        sys.settrace(trace)

    # ---- what others do to the directory of the comparison

    @property
    def _out(self):
        return self.place / "out"

    @property
    def _others(self):
        return {
            "second": lambda: self._second(sys.argv[1:]),
            "second resumes": lambda: self._second([*sys.argv[1:], "--resume"]),
            "shown": self._show,
            "moved": lambda: self._out.rename(self._out.with_name(f"moved-{self.now}")),
            "deleted": lambda: shutil.rmtree(self._out),
            "taken": self._take,
        }

    def _second(self, words):
        """Type the command again."""
        results = self._out / "results.json"
        if (self._out / ".comparison.lock").exists() and results.exists():  # neither moved nor deleted
            code, err = self._beside("a second comparison", words, results)
            errors = [line for line in err.splitlines() if not line.startswith("warning: ")]
            if code != 2 or [line[:39] for line in errors] != ["error: another comparison is writing to"]:
                self.trouble.append(f"a second comparison: exit code {code}, {err}")

    def _show(self):
        results = self._out / "results.json"
        if results.exists() and json.loads(results.read_bytes())["outcomes"]:
            code, err = self._beside("--from", ["--from", str(results)], results)
            if code not in (0, 1) or err:
                self.trouble.append(f"shown meanwhile: exit code {code}, {err}")

    def _beside(self, what, words, results):
        """Run a command that must not change the results. Return its exit code and stderr."""
        before = results.read_bytes()
        code, _, err = self._typed(words)
        if results.read_bytes() != before:
            self.trouble.append(f"{what} changed results.json")
        return code, err

    def _take(self):
        """Move the directory; another comparison begins in its place."""
        self._out.rename(self.place / "taken")
        self._out.mkdir()
        self._other = FileLock(self._out / ".comparison.lock", timeout=0)
        self._other.acquire()

    def _give_back(self):
        """End the other comparison, delete its directory, and move the directory back."""
        self._other.release()
        shutil.rmtree(self._out)
        (self.place / "taken").rename(self._out)

    # ---- time and processes

    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.ended]

    def run_until(self, end: float, ready: Callable[[], bool]) -> None:
        """Let processes compute until ready() or the end."""
        self._let(self._start_turns)
        while not ready():
            due = min(self.processes, key=lambda process: process.wakes, default=None)
            if due is None or due.wakes > end or due.wakes == math.inf:
                if end == math.inf:
                    raise HangError("; ".join(str(process.command) for process in self.alive()))
                self.move(end)
                return
            self.move(max(self.now, due.wakes))
            self._let(due.go_on)

    def move(self, to: float) -> None:
        """Advance the clock. All processes that do not wait compute."""
        busy = [process for process in self.processes if process.computes]
        if len(busy) > 1:
            self.trouble.append(f"not one after the other: {[process.command for process in busy]}")
        for process in busy:
            process.cpu += process.cores * (to - self.now)
            for load in self.loads:
                process.foreign[load.stolen] += load.seconds(self.now, to)
        self.now = to

    def _start_turns(self):
        for process in self.alive():
            if process.turn >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.read(process.turn, 1)
                    os.close(process.turn)
                    process.turn = -1
                    process.go_on()

    # ---- the operating system

    def _sleep(self, seconds):
        self.call("sleep")
        self.run_until(self.now + seconds, lambda: False)

    def _select(self, files, _writing, _errors, seconds):
        self.call("select")
        self.run_until(self.now + seconds, lambda: bool(readable(files)))
        return readable(files), [], []

    def _cpu_times(self, percpu=False):
        busy = sum(process.cpu for process in self.processes)
        used, stolen = (
            sum(load.seconds(0.0, self.now) for load in self.loads if load.stolen is kind) for kind in (False, True)
        )
        if percpu:  # the other virtual machine takes core 0 first
            return [SimpleNamespace(steal=stolen if core == 0 else 0.0) for core in range(self.cores)]
        return SimpleNamespace(user=busy + used, steal=stolen)

    def _process(self, pid):
        (process,) = (process for process in self.processes if process.pid == pid)
        times = SimpleNamespace(user=process.cpu, system=0.0, children_user=0.0, children_system=0.0)
        return SimpleNamespace(children=lambda recursive: [], cpu_times=lambda: times)

    def _fsync(self, file):
        if self._inside or stat.S_ISDIR(os.fstat(getattr(file, "fileno", lambda: file)()).st_mode):
            return
        self.call("fsync")
        if self.full:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def _tags(self):
        tagged = {process.pid: process.environment.get(lifetime.TAG) for process in self.alive()}
        return {pid: tag for pid, tag in tagged.items() if tag}

    def _kill(self, pid, number):
        self.call("kill")
        process = next((process for process in self.processes if process.pid == pid), None)
        if not process or process.returncode is not None:
            raise ProcessLookupError
        if number == signal.SIGKILL or (number == signal.SIGTERM and not process.stubborn):
            process.end(-number)

    def _popen(self, command, env=None, stdout=None, **_):
        self.call("start")
        if lifetime.__file__ in command:
            process = Process(self, command, {}, lambda _: iter([math.inf]), cores=0)
        else:
            process = Process(self, [*command], env, lambda process: self._train(process, stdout), cores=1)
        self._let(process.go_on)
        self.call("started")
        return process

    def _child(self, pid):
        process = next(process for process in self.processes if process.pid == pid)
        process.returncode = None  # it was set so that Popen does not wait for it
        return process

    def _run(self, command, stdout=None, **_):
        """Run a helper of the suite and return what it prints."""
        self.call("helper")
        if not self._inside:
            self.move(self.now + 1.0)
        if self.happened[-1:] == [(self.now - 1.0, "helper killed")]:
            return subprocess.CompletedProcess(command, -signal.SIGKILL)
        module = command[command.index("-m") + 1].rpartition(".")[2]
        self.asked.append(module)
        if module == "check":
            answer = {"environment": {**ENVIRONMENT, "cores": self.cores}, "checks": [], "bf16_speed_up": 1.0}
            answer["free_memory"] = self.free
        elif module == "probe":
            steps = [{"model": "lenet", "batch": 128, "milliseconds": 20.0}]
            memory = [{"device": "cpu", "peak_bytes": GIB, "free_bytes": self.free}]
            answer = {**PROBE, "steps": steps, "memory": memory}
        else:  # weights: how far each pair of files differs
            answer = [1e-8] * (len(command[command.index("-m") + 2 :]) // 2)
        stdout.write(json.dumps(answer).encode())
        return subprocess.CompletedProcess(command, 0)

    # ---- a training

    def _train(self, process, log):
        """Train as a row's script does: start, wait for a turn before every epoch, and write a result."""
        words, observed = process.command, process.environment.get(OBSERVE)
        if "--output" not in words and not observed:  # for the check of the maths
            yield 1.0
            return 0
        row, _, block = Path(log.name).stem.rpartition("-")
        self.before_turn()
        if int(block) > MOST_BLOCKS:
            raise HangError(f"there are more than {MOST_BLOCKS} blocks")
        fate = self.fate(row, int(block), sum((row, int(block)) == ran[:2] for ran in self.trained))
        process.stubborn = fate.stubborn
        training = Training(row, int(block), None if observed else int(value_of("--seed", words)), fate, process)
        self.trained.append(training)
        self.log.append((round(self.now, 6), "starts", row, block, fate.what))
        if fate.leaves:
            Process(self, ["a worker"], process.environment, lambda _: iter([math.inf]), cores=0)
        yield STARTUP
        if observed:
            return (yield from self._observed(training, Path(observed), log))
        file = Path(value_of("--output", words))
        for epoch in range(1, len(fate.seconds) + 1):
            yield from self._turn(training)
            yield fate.seconds_of(epoch)
            if fate.fails_in(epoch):
                unfinished = result_of(words, row, fate.seconds[:epoch], self.cores)
                write_result(replace(unfinished, status="failed", reason="it ended early"), file)
                return (yield from self._fails(fate, log))
        write_result(result_of(words, row, fate.seconds, self.cores), file)
        return 0

    def _observed(self, training, place, log):
        """Train as a user's script with the observer in it: a slice of steps in every turn, until it is killed."""
        fate, file = training.fate, place / "rank-0.jsonl"
        header = {"first_step": self.now, "world": 1, "torch": "2.11.0", "python": "3.11.7"}
        file.write_text(f"{json.dumps(header)}\n")
        for number in itertools.count(1):
            steps = json.loads((place / "plan.json").read_text())["steps"]
            yield steps * fate.step_seconds
            if fate.fails_in(number):
                return (yield from self._fails(fate, log))
            with file.open("a") as lines:
                lines.write(f"{json.dumps(slice_of(steps, fate.step_seconds))}\n")
            yield from self._turn(training)

    def _turn(self, training):
        """Wait for a turn, if the comparison gives turns."""
        process = training.process
        place = Path(process.environment.get(TURNS, os.devnull))
        if place.is_dir():
            self.log.append((round(self.now, 6), "waits", training.row))
            process.turn = os.open(place / START, os.O_RDONLY | os.O_NONBLOCK)
            (place / IDLE).open("wb", buffering=0).write(b"\0")
            yield math.inf
            self.before_turn()
            self.log.append((round(self.now, 6), "goes on", training.row))
            self.turns.append(training)

    def _fails(self, fate, log):
        if fate.what == "stalls":
            yield math.inf
        if fate.what == "exit":
            say(log, "error: epoch 1: it failed; 42; try again")
            return 3
        if fate.what == OUT_OF_MEMORY:
            say(log, "error: epoch 1: out of memory; RuntimeError: too much; try a smaller --batch-size")
            return 1
        self.killed_for_memory += fate.what == "killed for memory"
        return -signal.SIGKILL


def say(log, line):
    """Append a line to a log, which the program may have closed, as the real one's descriptor is its own."""
    with Path(log.name).open("a") as file:
        print(line, file=file)


def readable(files):
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(0)]


def value_of(flag, words):
    """Return what follows the last occurrence of a flag, which counts."""
    return words[-words[::-1].index(flag)]


def slice_of(steps, seconds):
    """Return the observer's record of a slice of so many steps, each of which takes so many seconds."""
    phases = {name: 1000 * seconds * (name == "forward") for name in OBSERVED}
    trained = {"optimizer": "SGD", "optimizers": 1, "parameters": 5, "dtype": "float32", "threads": 1, "workers": 0}
    where = {
        "devices": ["cpu"],
        "gpu_uuids": [],
        "peaks": [1],
        "reserved": [],
        "loader": None,
        "batches": 1.0,
        "start": 0.0,
    }
    totals = {name: steps * value for name, value in phases.items()}
    times = {"seconds": steps * seconds, "phases": totals, "series": steps * [list(phases.values())]}
    used = {"evaluated": steps * [0.0], "batch": 10, "cpu_seconds": steps * seconds, "queue_seconds": None}
    return {"steps": steps, "samples": 10 * steps, **times, **used, **trained, **where}


def result_of(words, method, seconds, cores):
    """Return the result of a training with these flags, whose epochs take so long, on a machine with so many cores."""
    ranks = int(value_of("--spawn", words)) if "--spawn" in words else 1
    batch = int(value_of("--batch-size", words))
    return make_result(
        method,
        seconds,
        ("cpu",) * ranks,
        world_size=ranks,
        global_batch_size=batch,
        per_device_batch_size=batch // ranks,
        threads_per_process=int(value_of("--threads", words)),
        environment={**ENVIRONMENT, "cores": cores},
        startup_seconds=STARTUP,
        total_seconds=STARTUP + sum(seconds),
        simulated="--simulate-devices" in words,
    )
