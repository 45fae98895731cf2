"""One child process: start it, wait for it, stop all of it if need be, and say why it failed."""

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import FAILED, OUT_OF_MEMORY, USAGE, SuiteError, describe_exit
from common.machine.lifetime import TAG, end_with_parent, guard, kill_tagged, own_tag, temporary_directory
from comparison.methods import PROJECT, python

TIMED_OUT = 124  # the exit code of timeout(1)
GRACE = 3.0  # seconds, for children to end after SIGTERM
MOST_OF_A_SOCKET = 70  # a socket's path has at most 107 bytes (unix(7)); multiprocessing adds 32 to its directory


class HelperFailed(SystemExit):
    """A helper process ended with this exit code; it has said why on stderr."""


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

    environment: more variables. Nothing that it started outlives the `with`, or this process should that be killed.
    """
    tag = own_tag(uuid.uuid4().hex)
    guard()
    with temporary_directory() as temporary, _new_file(log) as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        variables = {**_environment(temporary, tag), **(environment or {})}  # end_with_parent: if the guard dies too
        child = subprocess.Popen(command, **streams, env=variables, start_new_session=True, preexec_fn=end_with_parent)
        try:
            yield child
        finally:
            end_together([child])
            child.wait()
            # torchrun puts every rank into a session of its own, which no signal to the child's group reaches
            kill_tagged(tag)


def _new_file(path):
    """Open a file that is written by nobody else, and to nowhere else: what had its name is no file of this run's."""
    try:
        path.unlink(missing_ok=True)
        return open(path, "xb")
    except OSError as error:
        advice = "free it, or name another --output-dir"
        raise SuiteError(f"cannot write {path}", error.strerror or str(error), advice, USAGE) from None


def _environment(temporary, tag):
    return {**os.environ, **({"TMPDIR": temporary} if len(temporary) < MOST_OF_A_SOCKET else {}), TAG: tag}


def ask(module: str, *flags: str, fine: tuple[int, ...] = (0,), launcher: tuple[str, ...] = ()) -> str:
    """Run one of common's modules as a child, for this process imports no torch, behind `launcher`; return its stdout.

    Raises HelperFailed if its exit code is none of `fine`, SuiteError if it was killed, and could not say why.
    """
    guard()
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    command = (*launcher, python(), "-m", module, *flags)
    with temporary_directory() as temporary:
        environment = {**_environment(temporary, own_tag(module)), "PYTHONPATH": path}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=end_with_parent)
    if done.returncode < 0:
        found, advice = describe_exit(done.returncode), "try it again, or with a smaller --batch-size"
        raise SuiteError(f"{module} ended without a word", found, advice, FAILED)
    if done.returncode not in fine:
        raise HelperFailed(done.returncode)
    return done.stdout


def end_together(children: Sequence[subprocess.Popen]) -> None:
    """End children and their groups, stopped ones too: SIGTERM, GRACE seconds for all together, then SIGKILL."""
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
    """Return why a child failed: the first `error:` line in its log, a rank in torchrun's report, or its exit code."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{describe_exit(exit_code)}, and its log is gone: {error.strerror}"
    for line in text.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    if root_cause := re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", text, re.DOTALL):
        return f"rank {root_cause[1]} ended without a word; {describe_exit(int(root_cause[2]))}"
    return describe_exit(exit_code) if exit_code else "it ended without writing a result"
