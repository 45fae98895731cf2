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
from comparison.plan import Row


@dataclass(frozen=True)
class Outcome:
    """What became of one row. `result` is None if the run left none; `wall_seconds` lie between start and exit.

    status and reason are the RunResult's, where there is one; else "skipped", or "failed" with the cause.
    """

    method: str
    label: str
    status: str
    reason: str
    command: str
    log: str
    exit_code: int | None = None
    wall_seconds: float | None = None
    result: RunResult | None = None


def run_row(row: Row) -> Outcome:
    """Run one row to its end, with its output in a log beside its result file."""
    log = row.result_file.with_suffix(".log")
    outcome = {"method": row.method, "label": row.label, "command": shlex.join(row.command), "log": str(log)}
    if row.skip:
        return Outcome(status="skipped", reason=row.skip, **outcome)
    row.result_file.parent.mkdir(parents=True, exist_ok=True)
    row.result_file.unlink(missing_ok=True)  # or an old result would pass for this run's
    start = time.perf_counter()
    exit_code = run_child(row.command, log)
    outcome |= {"exit_code": exit_code, "wall_seconds": time.perf_counter() - start}
    if not row.result_file.exists():
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", **outcome)
    try:
        result = read_result(row.result_file)
    except SuiteError as error:
        return Outcome(status="failed", reason=str(error), **outcome)
    if exit_code != 0 and result.status == "ok":
        return Outcome(status="failed", reason=f"{cause(exit_code, log)} (log: {log})", result=result, **outcome)
    return Outcome(status=result.status, reason=result.reason, result=result, **outcome)


def run_child(command: tuple[str, ...], log: Path) -> int:
    """Run `command` with stdout and stderr in the file `log`; return its exit code, -n for signal n.

    Whatever ends the wait (Ctrl-C, SIGTERM) also stops the child, and nothing of its process group outlives it.
    """
    with open(log, "wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return child.wait()
    finally:
        stop(child)


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
