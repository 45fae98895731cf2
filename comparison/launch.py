"""One child process: start it, wait for it, stop all of it if need be, and read the result file that it wrote."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from common.errors import SuiteError
from common.results import RunResult, read_result
from comparison.methods import PROJECT, python
from comparison.plan import Configuration


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


def run_once(configuration: Configuration, block: int, seed: int, directory: Path) -> Outcome:
    """Run a configuration to its end; its result file, its log and its curves go into `directory`."""
    file = directory / f"{configuration.name}-{block}.json"
    log = file.with_suffix(".log")
    command = (*configuration.command, "--seed", str(seed), "--output", str(file), "--figure-dir", str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # or an old result would pass for this run's
    start = time.perf_counter()
    exit_code = run_child(command, log)
    known = {"configuration": configuration.name, "block": block, "command": shlex.join(command), "log": str(log),
             "exit_code": exit_code, "wall_seconds": time.perf_counter() - start}
    if hasattr(os, "getloadavg"):
        known["load_average"] = os.getloadavg()[0]
    if not file.exists():
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", **known)
    try:
        result = read_result(file)
    except SuiteError as error:
        return Outcome(status="failed", reason=str(error), **known)
    if exit_code != 0 and result.status == "ok":
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", result=result, **known)
    return Outcome(status=result.status, reason=result.reason, result=result, **known)


def run_child(command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None) -> int:
    """Run `command` with stdout and stderr in the file `log`; return its exit code, -n for signal n.

    environment: variables besides this process's own. Whatever ends the wait (Ctrl-C, SIGTERM) also stops the child,
    and nothing of its process group outlives it.
    """
    with open(log, "wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        return child.wait()
    finally:
        stop(child)


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


def stop(child: subprocess.Popen) -> None:
    """End a child, if it runs, and its process group: SIGTERM, 35 s (torchrun gives its ranks 30), then SIGKILL."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(35)
    with contextlib.suppress(ProcessLookupError):  # which says that nothing is left
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


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
