"""Child processes: start, wait, stop with all descendants, and explain a failure."""

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, USAGE, SuiteError, describe_exit, remedy
from common.machine.lifetime import TAG, end_with_parent, guard, kill_tagged, own_tag, temporary_directory
from comparison.methods import PROJECT, python
from comparison.run.forked import Child, fork, python_path

TIMED_OUT = 124  # the exit code of timeout(1)
GRACE = 3.0  # seconds between SIGTERM and SIGKILL
STDERR = 2  # of this process
LONGEST_TMPDIR = 70  # a socket's path has at most 107 bytes (unix(7)), of which multiprocessing needs 32


class HelperFailed(SystemExit):
    """A helper process failed with this exit code, and has printed the cause to stderr."""


def run_child(command: tuple[str, ...], log: Path, timeout: float | None = None) -> int:
    """Run `command` as started() does. Return its exit code, -n for signal n, or TIMED_OUT after `timeout` seconds."""
    with started(command, log) as child:
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMED_OUT


@contextlib.contextmanager
def started(
    command: tuple[str, ...], log: Path, environment: dict[str, str] | None = None, forks: bool = True
) -> Iterator[Child]:
    """Start `command` with stdout and stderr in the file `log`, and stop it at the end of the `with`.

    environment: additional variables. forks: fork it if possible. None of its descendants outlives the
    `with`, even if this process is killed.
    """
    tag = own_tag(uuid.uuid4().hex)
    guard()
    with temporary_directory() as temporary, _new_file(log) as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        variables = {**_environment(temporary, tag), **(environment or {})}
        child = fork(command, variables, 2 * (file.fileno(),)) if forks else None
        if not child:
            # end_with_parent covers the case that the guard is killed too
            process = subprocess.Popen(
                command, **streams, env=variables, start_new_session=True, preexec_fn=end_with_parent
            )
            process.returncode = 0  # Popen need not wait for it
            child = Child(process.pid)
        try:
            yield child
        finally:
            end_together([child])
            child.wait()
            # torchrun starts every rank in its own session, out of reach of a signal to the child's group
            kill_tagged(tag)


def _new_file(path):
    """Create a file. Whatever had its name (a link, a FIFO) is deleted first and not written to."""
    try:
        path.unlink(missing_ok=True)
        return open(path, "xb")
    except OSError as error:
        advice = remedy(error, "free it, or name another --output-dir")
        raise SuiteError(f"cannot write {path}", error.strerror or str(error), advice, USAGE) from None


def _environment(temporary, tag):
    return {**os.environ, **({"TMPDIR": temporary} if len(temporary) < LONGEST_TMPDIR else {}), TAG: tag}


def ask(module: str, *flags: str, fine: tuple[int, ...] = (0,), launcher: tuple[str, ...] = ()) -> str:
    """Run a module of common as a child, as this process must not import torch. Return its stdout.

    fine: exit codes of success. launcher: words before the command. Raises HelperFailed for another exit code, or
    SuiteError if the child was killed before it could print a cause.
    """
    guard()
    command = (*launcher, python(), "-m", module, *flags)
    with temporary_directory() as temporary, open(Path(temporary, "stdout"), "w+b") as stdout:
        environment = {**_environment(temporary, own_tag(uuid.uuid4().hex)), "PYTHONPATH": python_path(PROJECT)}
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", temporary)  # see begin_one(); TMPDIR may be too long a name
        if child := fork(command, environment, (stdout.fileno(), STDERR)):
            try:
                code = child.wait()
            finally:
                end_together([child])
        else:
            code = subprocess.run(command, stdout=stdout, env=environment, preexec_fn=end_with_parent).returncode
        stdout.seek(0)
        printed = stdout.read().decode()
    if code < 0:
        found, advice = describe_exit(code), "try it again, or with a smaller --batch-size"
        raise SuiteError(f"{module} exited without an error message", found, advice, FAILED)
    if code not in fine:
        raise HelperFailed(code)
    return printed


def end_together(children: Sequence[Child]) -> None:
    """End children and their process groups, even stopped ones: SIGTERM, GRACE seconds for all, then SIGKILL."""
    deadline = time.monotonic() + GRACE
    alive = [child for child in children if child.poll() is None]
    for child in alive:
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.killpg(child.pid, number)
    for child in alive:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # nothing is left of the group
            os.killpg(child.pid, signal.SIGKILL)


def ran_out_of_memory(line: str) -> bool:
    """Return whether an error line, without its `error: `, reports a lack of memory."""
    return bool(re.match(rf"([^;]*: )?{OUT_OF_MEMORY};", line))


def cause(exit_code: int, log: Path) -> str:
    """Return why a child failed: the first `error:` line of its log, torchrun's root cause, or the exit code."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{describe_exit(exit_code)}, and its log is gone: {error.strerror}"
    for line in text.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    if root_cause := re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL):
        return f"rank {root_cause[1]} exited without an error message; {describe_exit(int(root_cause[2]))}"
    return describe_exit(exit_code) if exit_code else "it ended without writing a result"
