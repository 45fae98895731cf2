"""One child process: start it, wait for it, stop all of it if need be, and read the result file that it wrote."""

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, USAGE, SuiteError, describe_exit
from common.files.results import read_result
from common.machine.environment import available_cores
from common.machine.lifetime import TAG, end_with_parent, guard, kill_tagged, own_tag, temporary_directory
from common.machine.turns import Gate
from comparison.methods import PROJECT, python
from comparison.plan.plan import file_name
from comparison.rows import Configuration, Outcome
from comparison.run.cards import CardWatch
from comparison.run.usage import busy_seconds, children_seconds, oom_kills

TIMED_OUT = 124  # the exit code of timeout(1)
LOOK_EVERY = 0.02  # seconds, for the end of a child; that it waits for its turn is seen at once
GRACE = 3.0  # seconds, for children to end after SIGTERM
LONGEST_LOOK = 0.5  # seconds; one that took longer was stopped on the way
MOST_OF_A_SOCKET = 70  # a socket's path has at most 107 bytes (unix(7)); multiprocessing adds 32 to its directory


class Run:
    """A run of a configuration, which goes on in turns: each lasts until it waits for the next, or has ended.

    Its result file and its log go into `directory`. timeout: seconds of its own turns after which it is
    stopped. To be used in a `with`: whatever ends that also stops the run, and nothing that it started outlives it.
    """

    def __init__(
        self, configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
    ):
        self._file = directory / f"{file_name(configuration.name)}-{block}.json"
        self._log = self._file.with_suffix(".log")
        self._command = (
            *configuration.launched,
            "--seed",
            str(seed),
            "--output",
            str(self._file),
            "--figure-dir",
            str(directory),
            "--no-curves",
        )
        self._planned, self._here = configuration.planned, configuration.nodes == 1
        self._known = {
            "configuration": configuration.name,
            "block": block,
            "command": shlex.join(self._command),
            "log": str(self._log),
        }
        self._timeout, self._wall_seconds, self._busy_seconds, self._unseen_seconds = timeout, 0.0, 0.0, 0.0
        self._child, self._gate, self._resources, self._cards = None, None, contextlib.ExitStack(), CardWatch()
        self._oom_kills = 0  # when it began

    @property
    def running(self) -> list[subprocess.Popen]:
        """Its process, as long as it runs."""
        return [self._child] if self._child and self._child.poll() is None else []

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_) -> None:
        self._resources.close()

    def take_turn(self) -> Outcome | None:
        """Start the run, or let it go on; return None once it waits for its next turn, and its Outcome at its end."""
        start, busy, own = time.perf_counter(), busy_seconds() if self._here else None, children_seconds()
        with self._cards.watching():
            if self._child is None:
                self._begin()
            else:
                self._gate.start_turn()
            exit_code = self._exit_code()
        if exit_code is not None:
            self._resources.close()  # what it left behind would use the others' time
        self._wall_seconds += time.perf_counter() - start
        if busy is not None:
            self._busy_seconds += busy_seconds() - busy
        if exit_code is None:
            return None
        foreign = None
        if busy is not None:  # its own seconds are known, all at once, as soon as it has ended
            foreign = max(0.0, self._busy_seconds - (children_seconds() - own)) / self._wall_seconds
            foreign += self._unseen_seconds / self._wall_seconds * available_cores()
        return self._outcome(exit_code, foreign)

    def _begin(self):
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)  # or an old result would pass for this run's
        self._oom_kills = oom_kills()
        directory = self._resources.enter_context(temporary_directory())
        self._gate = self._resources.enter_context(contextlib.closing(Gate(directory)))
        turns = self._gate.environment if self._here else {}  # other nodes do not see the gate
        self._child = self._resources.enter_context(started(self._command, self._log, turns))

    def _exit_code(self):
        """The child's exit code, TIMED_OUT if the run has used up its time, None as soon as it waits for its turn."""
        end = time.perf_counter() + (math.inf if self._timeout is None else self._timeout - self._wall_seconds)
        while self._child.poll() is None:
            look = time.perf_counter()
            if look > end:
                return TIMED_OUT
            idle = self._gate.is_idle(LOOK_EVERY)
            seconds = time.perf_counter() - look
            if seconds > LONGEST_LOOK:
                self._unseen_seconds += seconds
            if idle:
                return None
        return self._child.returncode

    def _outcome(self, exit_code, foreign_cores):
        known = {
            **self._known,
            "exit_code": exit_code,
            "wall_seconds": self._wall_seconds,
            "foreign_cores": foreign_cores,
        }
        timed_out = exit_code == TIMED_OUT and self._timeout and self._wall_seconds >= self._timeout
        status, why = "failed", cause(exit_code, self._log)
        if timed_out:
            status, why = "timed out", f"stopped after {self._timeout:g} s"
        elif ran_out_of_memory(why):
            status, why = OUT_OF_MEMORY, f"{self._planned.batch}: {why}"
        elif re.search("SIGKILL|Killed", why) and oom_kills() > self._oom_kills:  # of a rank, or of a loader's worker
            status, why = OUT_OF_MEMORY, f"{self._planned.batch}: the kernel killed a process for its memory: {why}"
        if not self._log.exists():
            print(f"warning: {self._log} has vanished while its run wrote it", file=sys.stderr, flush=True)
        if not self._file.exists():
            return Outcome(status=status, reason=f"{why}, before its first epoch (log: {self._log})", **known)
        try:
            result = read_result(self._file)
        except SuiteError as error:
            return Outcome(status="failed", reason=f"{error} (log: {self._log})", **known)
        if result.status == "failed" or (result.status == "ok" and exit_code != 0):
            after = f"after {len(result.epochs)} of {result.config['epochs']} epochs"
            return Outcome(status=status, reason=f"{why}, {after} (log: {self._log})", **known)
        return Outcome(
            status=result.status, reason=result.reason, result=result, cards=self._cards.uses(result), **known
        )


def run_once(
    configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
) -> Outcome:
    """Go through a Run to its end, in one turn after the other."""
    with Run(configuration, block, seed, directory, timeout) as run:
        while not (outcome := run.take_turn()):
            pass
    return outcome


def run_child(
    command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None, timeout: float | None = None
) -> int:
    """Run `command` (see started()); return its exit code, -n for signal n, or TIMED_OUT after `timeout` seconds."""
    with started(command, log, environment) as child:
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT


@contextlib.contextmanager
def started(
    command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Start `command` with stdout and stderr in the file `log`; at the end of the `with`, stop it if it still runs.

    environment: variables besides this process's own. Whatever ends the `with` (Ctrl-C, SIGTERM), nothing that the
    child started outlives it, its temporary files are deleted; and should this process be killed, it dies too.
    """
    tag = own_tag(uuid.uuid4().hex)
    guard()
    with temporary_directory() as temporary, _new_file(log) as file:
        own = {**(environment or {}), **_use(temporary), TAG: tag}
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **own},
            preexec_fn=end_with_parent,  # should the guard be killed too
        )
        try:
            yield child
        finally:
            stop(child, tag)


def _new_file(path):
    """Open a file that is written by nobody else, and to nowhere else: what had its name is no file of this run's."""
    try:
        path.unlink(missing_ok=True)
        return open(path, "xb")
    except OSError as error:
        raise SuiteError(
            f"cannot write {path}", error.strerror or str(error), "free it, or name another --output-dir", USAGE
        ) from None


def _use(temporary):
    return {"TMPDIR": temporary} if len(temporary) < MOST_OF_A_SOCKET else {}


class HelperFailed(SystemExit):
    """A helper process ended with this exit code; it has said why on stderr."""


def ask(module: str, *flags: str, fine: tuple[int, ...] = (0,), launcher: tuple[str, ...] = ()) -> str:
    """Run one of common's modules as a child, because this process must not import torch; return its stdout.

    launcher: what is typed before the command, if anything.

    Raises HelperFailed if its exit code is none of `fine`, SuiteError if it was killed, and could not say why.
    """
    guard()
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    with temporary_directory() as temporary:
        own = {"PYTHONPATH": path, TAG: own_tag(module), **_use(temporary)}
        done = subprocess.run(
            (*launcher, python(), "-m", module, *flags),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **own},
            preexec_fn=end_with_parent,
        )
    if done.returncode < 0:
        raise SuiteError(
            f"{module} ended without a word",
            describe_exit(done.returncode),
            "try it again, or with a smaller --batch-size",
            FAILED,
        )
    if done.returncode not in fine:
        raise HelperFailed(done.returncode)
    return done.stdout


def stop(child: subprocess.Popen, tag: str) -> None:
    """End a child, if it runs, and all that it started (see end_together).

    torchrun puts every rank into a session of its own, which no signal to the child's process group reaches: those are
    found by the tag in their environment.
    """
    end_together([child])
    child.wait()
    kill_tagged(tag)


def end_together(children: Sequence[subprocess.Popen]) -> None:
    """End children and their process groups: SIGTERM, GRACE seconds for all of them together, then SIGKILL.

    A child that was stopped goes on, in order to end. Who ends a comparison may not wait for long: docker kills after
    10 s.
    """
    alive, deadline = [child for child in children if child.poll() is None], time.monotonic() + GRACE
    for child in alive:
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.killpg(child.pid, number)
    for child in alive:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # which says that nothing is left
            os.killpg(child.pid, signal.SIGKILL)


def ran_out_of_memory(line: str) -> bool:
    """Return whether an error line, without its `error: `, says that memory did not suffice."""
    return bool(re.match(rf"([^;]*: )?{OUT_OF_MEMORY};", line))


def cause(exit_code: int, log: Path) -> str:
    """Return why a child failed: the first `error:` line in its log (others follow from it), or its code or signal.

    If a rank died without a word, torchrun's report names it.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{describe_exit(exit_code)}, and its log is gone: {error.strerror}"
    causes = [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    if causes:
        return causes[0]
    if root_cause := re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL):
        return f"rank {root_cause[1]} ended without a word; {describe_exit(int(root_cause[2]))}"
    return describe_exit(exit_code) if exit_code else "it ended without writing a result"
