"""One child process: start it, wait for it, stop all of it if need be, and read the result file that it wrote."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from common.errors import SuiteError
from common.lifetime import end_with_parent
from common.results import RunResult, read_result
from comparison.methods import PROJECT, python
from comparison.plan import Configuration

TAG = "PARALLEL_TRAINING_RUN"  # environment variable that all processes of one run carry
TIMED_OUT = 124  # the exit code of timeout(1)
MOST_OF_A_SOCKET = 70  # a socket's path has at most 107 bytes (unix(7)); multiprocessing adds 32 to its directory


@dataclass(frozen=True)
class Outcome:
    """What became of one run. `result` is None if it left none; `wall_seconds` lie between its start and its exit.

    configuration: the Configuration's name; block: which repetition. status and reason are the RunResult's, where
    there is one; else "failed" with the cause. load_average: the system's, over the last minute, when the run ended.
    """

    configuration: str
    block: int
    status: str
    reason: str
    command: str
    log: str
    exit_code: int
    wall_seconds: float
    load_average: float | None = None
    result: RunResult | None = None


def run_once(
    configuration: Configuration, block: int, seed: int, directory: Path, timeout: float | None = None
) -> Outcome:
    """Run a configuration to its end; its result file, its log and its curves go into `directory`.

    timeout: seconds after which the run is stopped.
    """
    file = directory / f"{configuration.name}-{block}.json"
    log = file.with_suffix(".log")
    command = (*configuration.command, "--seed", str(seed), "--output", str(file), "--figure-dir", str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # or an old result would pass for this run's
    start = time.perf_counter()
    exit_code = run_child(command, log, timeout=timeout)
    known = {"configuration": configuration.name, "block": block, "command": shlex.join(command), "log": str(log),
             "exit_code": exit_code, "wall_seconds": time.perf_counter() - start}
    if hasattr(os, "getloadavg"):
        known["load_average"] = os.getloadavg()[0]
    if exit_code == TIMED_OUT and timeout and known["wall_seconds"] >= timeout:
        return Outcome(status="timed out", reason=f"it was stopped after {timeout:g} s (log: {log})", **known)
    if not file.exists():
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", **known)
    try:
        result = read_result(file)
    except SuiteError as error:
        return Outcome(status="failed", reason=str(error), **known)
    if exit_code != 0 and result.status == "ok":
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", result=result, **known)
    return Outcome(status=result.status, reason=result.reason, result=result, **known)


def run_child(
    command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None, timeout: float | None = None
) -> int:
    """Run `command` with stdout and stderr in the file `log`; return its exit code, -n for signal n, or TIMED_OUT.

    environment: variables besides this process's own. Whatever ends the wait (Ctrl-C, SIGTERM, `timeout` seconds) also
    stops the child; nothing that it started outlives it, its temporary files are deleted; and should this process be
    killed, the child dies with it.
    """
    tag = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary, open(log, "wb") as file:
        own = {**(environment or {}), TAG: tag}
        if len(temporary) < MOST_OF_A_SOCKET:
            own["TMPDIR"] = temporary
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **own}, preexec_fn=end_with_parent,
        )
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            stop(child, tag)


class HelperFailed(SystemExit):
    """A helper process ended with this exit code; it has said why on stderr."""


def ask(module: str, *flags: str) -> str:
    """Run one of common's modules as a child, because this process must not import torch; return its stdout.

    Raises HelperFailed if it fails.
    """
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run((python(), "-m", module, *flags), stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
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
    deadline = time.monotonic() + 5
    while (left := _tagged(tag)) and time.monotonic() < deadline:  # again: one may start another meanwhile
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _tagged(tag: str) -> list[int]:
    """Return the processes whose environment carries `tag`; a zombie, which only waits to be asked for, has none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            if f"{TAG}={tag}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def cause(exit_code: int, log: Path) -> str:
    """Return why a child failed: the first `error:` line in its log (others follow from it), or its code or signal."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if said:
        return said[0]
    if exit_code < 0:
        hint = ", probably out of memory" if exit_code == -signal.SIGKILL else ""
        return f"{signal.Signals(-exit_code).name}{hint}"
    return f"exit code {exit_code}" if exit_code else "it ended without writing a result"
