"""Children forked from a template (common/programs/template.py): they start sooner, as torch is imported already.

Only on Linux. Each block has a template of its own: where a process's memory lies affects its speed, and differs from
start to start, but is the same in all forks of a template.
"""

import atexit
import contextlib
import functools
import json
import math
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.machine.lifetime import TAG, adopt_orphans, end_with_parent, guard, own_tag
from common.machine.turns import OBSERVE, TURNS
from comparison.methods import PROJECT, python

OWN = {TAG, TURNS, "TMPDIR", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"}  # variables that may differ from the template's
START_TIMEOUT, FORK_TIMEOUT = 120.0, 10.0  # seconds
ROOM = "-" * 1000  # for the commands of forks in `ps`
LOOK_EVERY = 0.01  # seconds between checks whether a child has ended


class Child:
    """A child process, with two methods of subprocess.Popen. If a signal's handler raises in Popen.poll(), a lock may
    stay locked, and wait() never returns.

    earlier: the seconds that its template took to start, which a new process would have taken too.
    """

    def __init__(self, pid: int, earlier: float = 0.0):
        self.pid, self.earlier = pid, earlier
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, -n for signal n, or None while it runs. Like Popen, 0 if SIGCHLD is ignored."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(LOOK_EVERY)
        return code


class Template:
    """A process that has imported torch. If it fails, fork() returns None from then on."""

    def __init__(self) -> None:
        guard()
        self._circumstances = _circumstances(os.environ)
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, open(os.devnull, "r+b") as nothing:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "common.programs.template", str(other.fileno()), ROOM),
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                env={**os.environ, TAG: own_tag(uuid.uuid4().hex), "PYTHONPATH": python_path(PROJECT)},
                pass_fds=[other.fileno()],
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        atexit.register(self.close)
        seconds = self._answer(START_TIMEOUT)
        self._ready, self._seconds = bool(seconds), float(seconds or 0)

    def fork(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> Child | None:
        """Do what the function fork() does, for a program of the suite."""
        if not self._ready or _circumstances(environment) != self._circumstances:
            return None
        request = {"words": command[1:], "environment": dict(environment), "parent": os.getpid()}
        with adopt_orphans(), contextlib.suppress(OSError):
            socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
            if pid := self._answer(FORK_TIMEOUT):
                return Child(int(pid), self._seconds)
        self._ready = False
        return None

    def close(self) -> None:
        """End the template, but not its forks."""
        atexit.unregister(self.close)
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _answer(self, timeout):
        self._connection.settimeout(timeout)
        with contextlib.suppress(OSError):
            return self._connection.recv(100)
        return b""


def python_path(first: Path) -> str:
    """Return PYTHONPATH with a directory before all others."""
    return os.pathsep.join(filter(None, [str(first), os.environ.get("PYTHONPATH")]))


def _circumstances(environment):
    """Return what a fork has from its template, and must not differ."""
    return os.getcwd(), {name: value for name, value in environment.items() if name not in OWN}


def can_fork() -> bool:
    """Return whether this system allows it."""
    return sys.platform == "linux"


def _is_program(command):
    """Return whether this is a program of the suite, run by this Python. Compiled rows start compilers."""
    if command[0] not in (python(), sys.executable) or "--compile" in command:
        return False
    if command[1] == "-m":
        return command[2].startswith("common.programs.")
    return Path(command[1]).suffix == ".py" and Path(command[1]).resolve().parent == PROJECT


@functools.cache
def template() -> Template:
    """Return the current template, and start it first if there is none."""
    return Template()


def renew_template() -> None:
    """Replace the template, if there is one, by a new one."""
    if template.cache_info().currsize:
        template().close()
        template.cache_clear()
        template()


def fork(command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> Child | None:
    """Start `command` in a session of its own. None if it must be started afresh.

    environment: has a TAG by own_tag() of a uuid4().hex. streams: the descriptors of its stdout and stderr.
    """
    if OBSERVE in environment or not _is_program(command) or not can_fork():
        return None
    return template().fork(command, environment, streams)
