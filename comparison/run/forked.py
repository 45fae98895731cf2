"""Children forked from a template (common/programs/template.py): they start sooner, as torch is imported already.

Only on Linux. Each fork's allocations lie elsewhere (shift_allocations), as those of new processes do.
"""

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.machine.lifetime import TAG, adopt_orphans, end_with_parent, guard, own_tag
from common.machine.turns import OBSERVE, TURNS
from comparison.methods import PROJECT, python

OWN = {TAG, TURNS, "TMPDIR", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"}  # variables that may differ from the template's
START_TIMEOUT, FORK_TIMEOUT = 120.0, 10.0  # seconds
ROOM = "-" * 1000  # for the commands of forks in `ps`
LOOK_EVERY = 0.01  # seconds between checks whether a child has ended
COMPILER = "torch._dynamo"  # spawn_ranks() imports it before it forks ranks


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
    """A process that has imported torch. If it fails, fork() returns None from then on.

    base: the template to fork it from, which then also imports the compiler.
    """

    def __init__(self, base: "Template | None" = None) -> None:
        guard()
        self._circumstances = _circumstances(os.environ)
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, TAG: own_tag(uuid.uuid4().hex), "PYTHONPATH": python_path(PROJECT)}
        command = (sys.executable, "-m", "common.programs.template")
        with other, open(os.devnull, "r+b") as nothing:
            if base:
                streams = (other.fileno(), nothing.fileno())
                self._process = base.fork((*command, "", "1", COMPILER), environment, streams)
            else:
                process = subprocess.Popen(
                    (*command, ROOM, str(other.fileno())),
                    stdin=nothing,
                    stdout=nothing,
                    stderr=nothing,
                    env=environment,
                    pass_fds=[other.fileno()],
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )
                process.returncode = 0  # Popen need not wait for it
                self._process = Child(process.pid)
        atexit.register(self.close)
        self._seconds = 0.0
        self._ready: bool | None = None  # until it has answered

    def wait(self) -> None:
        """Wait until it has started."""
        if self._ready is None:
            self._seconds = float(self._answer(START_TIMEOUT) or 0)
            self._ready = bool(self._seconds)

    def fork(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> Child | None:
        """Do what the function fork() does, for a program of the suite."""
        self.wait()
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
        if self._process and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
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


def can_be_forked(command: Sequence[str]) -> bool:
    """Return whether this is a program of the suite, run by this Python. Compiled rows start compilers."""
    if not can_fork():
        return False
    if command[0] not in (python(), sys.executable) or "--compile" in command:
        return False
    if command[1] == "-m":
        return command[2].startswith("common.programs.")
    return Path(command[1]).suffix == ".py" and Path(command[1]).resolve().parent == PROJECT


templates: dict[bool, Template] = {}  # the current ones, by whether they have imported the compiler


def template(compiler: bool) -> Template:
    """Return a current template. If there is none, start it, but do not wait for it."""
    if compiler not in templates:
        templates[compiler] = Template(template(False) if compiler else None)
    return templates[compiler]


def start_template() -> None:
    """Start the template that every comparison needs, but do not wait for it."""
    if can_fork():
        template(False)


def prepare(commands: Iterable[Sequence[str]], wait: bool = True) -> None:
    """Start the templates that forks of these commands need, and wait until they can be forked."""
    needed = {"--spawn" in command for command in commands if can_be_forked(command)}
    for current in [template(compiler) for compiler in sorted(needed)]:
        if wait:
            current.wait()


def seconds_saved() -> float:
    """Return how much sooner a fork starts than a new process: as long as its template took. 0 without one."""
    return templates[False]._seconds if False in templates else 0.0


def close_templates() -> None:
    """End all templates, so that the next forks come from new ones, which measure the start-up again."""
    while templates:
        templates.popitem()[1].close()


def fork(command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> Child | None:
    """Start `command` in a session of its own. None if it must be started afresh.

    environment: has a TAG by own_tag() of a uuid4().hex. streams: the descriptors of its stdout and stderr.
    """
    if OBSERVE in environment or not can_be_forked(command):
        return None
    return template("--spawn" in command).fork(command, environment, streams)
