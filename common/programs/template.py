"""Fork programs of the suite from a process that has imported torch, which is most of the time that they take to start.

    python -m common.programs.template ROOM FD [MODULE ...]

Imports the modules too. Sends how many seconds it took to start over the socket FD, imports included, or ends if forks
cannot use GPUs. Then, for each request, a fork becomes that program, as a child of the process that asked
(comparison/run/forked.py). ROOM is for the program's command, which a fork shows in place of the template's. A template
may itself be a fork of another.
"""

import ctypes
import importlib
import json
import os
import runpy
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from common.machine.begin import begin
from common.machine.lifetime import TAG, end_with_parent
from common.machine.memory import mapped_files, populate, shift_allocations

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())  # see begin_one()
begin(__name__)

from common.machine.environment import ASK_NVML, forks_can_use_gpus

if __name__ == "__main__":
    os.environ[ASK_NVML] = "1"  # until become()

import common.engine.run
import common.models.build
import common.ranks.replicas
import common.ranks.start  # noqa: F401 - with the lines above, what every script imports
from common.engine.timing import EARLIER, command_start, process_start


def adopted(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for requests, and return each in a fork that the asking process has adopted.

    Returns the request, and the file descriptors of stdout and stderr. Ends this process if no more can come.
    """
    while True:
        message, streams, *_ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            os._exit(0)
        request, child = json.loads(message), os.fork()
        if child:
            os.waitpid(child, 0)
            for stream in streams:
                os.close(stream)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)  # the kernel gives its child to the asking process, a subreaper
        while os.getppid() == between:
            time.sleep(0.0002)
        end_with_parent()
        if os.getppid() != request["parent"]:
            os._exit(0)
        os.setsid()
        _show(request["words"], request["environment"][TAG])  # and then others may look for it
        connection.send(str(os.getpid()).encode())
        connection.close()
        return request, streams


def become(words: list[str], environment: dict[str, str], streams: list[int]) -> None:
    """Run a script or, after -m, a module, as if `python` had been started with these words."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def _show(words, tag):
    """Overwrite this process's command and TAG in /proc, where people and programs read them.

    All tags of a comparison have the same length. The command may be as long as the template's, ROOM included.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, variables, last = map(int, fields[45:49])  # from arg_start to env_end of proc_pid_stat(5)
    command = b"".join(os.fsencode(word) + b"\0" for word in (sys.executable, *words))
    ctypes.memmove(start, command[: end - start - 1].ljust(end - start, b"\0"), end - start)
    shown = ctypes.string_at(variables, last - variables)
    name = f"{TAG}=".encode()
    ctypes.memmove(variables + shown.index(name) + len(name), tag.encode(), len(tag))


def main() -> None:
    """Serve requests; in a fork, return once the program has ended."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # BLAS can be forked
    if not forks_can_use_gpus():
        return
    _, descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    seconds = time.time() - command_start()
    populate(files := mapped_files())  # fails before Linux 5.14
    connection = socket.socket(fileno=int(descriptor))
    connection.send(str(seconds).encode())
    request, streams = adopted(connection)
    populate(files)
    shift_allocations()
    forking = time.time() - process_start(os.getpid())  # a new process has nothing like it
    become(request["words"], {**request["environment"], EARLIER: str(seconds - forking)}, streams)


if __name__ == "__main__":
    main()
