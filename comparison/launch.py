"""One child process: start it, wait for it, stop all of it if need be, and read the result file that it wrote."""

import contextlib
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from common.errors import SuiteError, describe_exit
from common.machine.environment import available_cores
from common.machine.lifetime import TAG, TEMPORARY, guard, kill_tagged
from common.results import RunResult, read_result
from comparison.methods import PROJECT, python
from comparison.plan import Configuration

TIMED_OUT = 124  # the exit code of timeout(1)
MOST_OF_A_SOCKET = 70  # a socket's path has at most 107 bytes (unix(7)); multiprocessing adds 32 to its directory


@dataclass(frozen=True)
class Outcome:
    """What became of one run. `result` is None if it left none; `wall_seconds` lie between its start and its exit.

    configuration: the Configuration's name; block: which repetition. status and reason are the RunResult's, where
    it is whole; else "failed" with the cause. foreign_cores: how many cores processes other than the run's kept busy,
    on average, where that is known (see busy_seconds).
    """

    configuration: str
    block: int
    status: str
    reason: str
    command: str
    log: str
    exit_code: int
    wall_seconds: float
    foreign_cores: float | None = None
    result: RunResult | None = None


def run_once(
    configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
) -> Outcome:
    """Run a configuration to its end; its result file, its log and its curves go into `directory`.

    timeout: seconds after which the run is stopped.
    """
    file = directory / f"{file_name(configuration.name)}-{block}.json"
    log = file.with_suffix(".log")
    command = (*configuration.command, "--seed", str(seed), "--output", str(file), "--figure-dir", str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # or an old result would pass for this run's
    start, busy, own = time.perf_counter(), busy_seconds(), children_seconds()
    exit_code = run_child(command, log, timeout=timeout)
    known = {"configuration": configuration.name, "block": block, "command": shlex.join(command), "log": str(log),
             "exit_code": exit_code, "wall_seconds": time.perf_counter() - start}
    if busy is not None:
        foreign = busy_seconds() - busy - (children_seconds() - own)
        known["foreign_cores"] = max(0.0, foreign / known["wall_seconds"])
    timed_out = exit_code == TIMED_OUT and timeout and known["wall_seconds"] >= timeout
    status, why = ("timed out", f"stopped after {timeout:g} s") if timed_out else ("failed", cause(exit_code, log))
    if not file.exists():
        return Outcome(status=status, reason=f"{why}, before its first epoch (log: {log})", **known)
    try:
        result = read_result(file)
    except SuiteError as error:
        return Outcome(status="failed", reason=f"{error} (log: {log})", **known)
    if result.status == "failed" or (result.status == "ok" and exit_code != 0):
        after = f"after {len(result.epochs)} of {result.config['epochs']} epochs"
        return Outcome(status=status, reason=f"{why}, {after} (log: {log})", **known)
    return Outcome(status=result.status, reason=result.reason, result=result, **known)


def file_name(name: str) -> str:
    """Return a Configuration's name without what has a meaning in a path: --model takes paths."""
    return re.sub(r"[^\w.=-]+", "-", name)


def busy_seconds() -> float | None:
    """Return the CPU seconds that all processes used since this machine started, also those lost to other machines.

    None where the machine has more cores than this process may use, so that it would say nothing about them.
    """
    if available_cores() != os.cpu_count():
        return None
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def children_seconds() -> float:
    """Return the CPU seconds that this process's children used which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_child(
    command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None, timeout: float | None = None
) -> int:
    """Run `command` with stdout and stderr in the file `log`; return its exit code, -n for signal n, or TIMED_OUT.

    environment: variables besides this process's own. Whatever ends the wait (Ctrl-C, SIGTERM, `timeout` seconds) also
    stops the child; nothing that it started outlives it, its temporary files are deleted; and should this process be
    killed, the child dies with it.
    """
    tag = f"{os.getpid()}-{uuid.uuid4().hex}"
    guard()
    with temporary_directory() as temporary, open(log, "wb") as file:
        own = {**(environment or {}), **_use(temporary), TAG: tag}
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **own},
        )
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            stop(child, tag)


def temporary_directory() -> tempfile.TemporaryDirectory:
    """Return a new directory that is deleted at the end of a `with`, or of this process, whatever ends it."""
    return tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{os.getpid()}-", ignore_cleanup_errors=True)


def _use(temporary):
    return {"TMPDIR": temporary} if len(temporary) < MOST_OF_A_SOCKET else {}


class HelperFailed(SystemExit):
    """A helper process ended with this exit code; it has said why on stderr."""


def ask(module: str, *flags: str, fine: tuple[int, ...] = (0,)) -> str:
    """Run one of common's modules as a child, because this process must not import torch; return its stdout.

    Raises HelperFailed if its exit code is none of `fine`.
    """
    guard()
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    with temporary_directory() as temporary:
        own = {"PYTHONPATH": path, TAG: f"{os.getpid()}-{module}", **_use(temporary)}
        done = subprocess.run((python(), "-m", module, *flags), stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **own})
    if done.returncode not in fine:
        raise HelperFailed(done.returncode if done.returncode > 0 else 128 - done.returncode)
    return done.stdout


def stop(child: subprocess.Popen, tag: str) -> None:
    """End a child, if it runs, and all that it started: SIGTERM, 35 s (torchrun gives its ranks 30), then SIGKILL.

    torchrun puts every rank into a session of its own, which no signal to the child's process group reaches: those are
    found by the tag in their environment.
    """
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(35)
    with contextlib.suppress(ProcessLookupError):  # which says that nothing is left
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    kill_tagged(tag)


def cause(exit_code: int, log: Path) -> str:
    """Return why a child failed: the first `error:` line in its log (others follow from it), or its code or signal.

    If a rank died without a word, torchrun's report names it.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    causes = [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    if causes:
        return causes[0]
    if root_cause := re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL):
        return f"rank {root_cause[1]} ended without a word; {describe_exit(int(root_cause[2]))}"
    return describe_exit(exit_code) if exit_code else "it ended without writing a result"
