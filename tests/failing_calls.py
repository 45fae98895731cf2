"""Let one call of a program fail: its n-th open, write, fsync, rename or mkdir of a file in its own directory, or start
of a process. Each attempt is a fork of this process, which has imported everything, so it takes a fraction of a second.

Ranks that the program forks count their own calls. Writes are counted as the system would see them, after buffering.
"""

import builtins
import errno
import faulthandler
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from common.errors import DATA, FAILED, MACHINE, USAGE
from common.machine.lifetime import temporary_directory

FULL, BROKEN, DESCRIPTORS, MISSING = errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOENT
ERRORS = {  # kind of call → what it may fail with
    "read": (BROKEN, DESCRIPTORS, MISSING),
    "open": (FULL, BROKEN, DESCRIPTORS, MISSING),
    "write": (FULL, BROKEN),
    "fsync": (FULL, BROKEN),
    "rename": (FULL, BROKEN, MISSING),
    "mkdir": (FULL, BROKEN, MISSING),
    "start": (errno.EAGAIN, DESCRIPTORS),
}
EVENTS = {"os.rename": "rename", "os.mkdir": "mkdir", "os.fork": "start", "subprocess.Popen": "start"}  # audit events
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Call:
    """The number-th call of a process, by its RANK ("" without one). path: of its file, or of the program it starts."""

    rank: str
    number: int
    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" in rank {self.rank}" if self.rank else "")


@dataclass(frozen=True)
class Ended:
    """How an attempt ended. calls: all that it made, in order."""

    code: int
    out: str
    err: str
    calls: tuple[Call, ...]


def attempt(program: Callable[[], object], place: Path, failing: Call | None = None, error: int = 0) -> Ended:
    """Run `program` in a fork, with its calls below `place` counted, and with `error` in the one that is `failing`."""
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed below
    if not (pid := os.fork()):
        os._exit(_run(program, files, _Calls(place, files[2].fileno(), failing, error)))
    _, status = os.waitpid(pid, 0)
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read().decode())
        file.close()
    calls = (line.split(" ", 3) for line in texts[2].splitlines())
    made = tuple(Call(rank, int(number), kind, path) for rank, number, kind, path in calls)
    return Ended(os.waitstatus_to_exitcode(status), *texts[:2], made)


def _run(program, files, calls):
    """Run `program` as if it were this process's only one. Return its exit code."""
    for number, file in enumerate(files[:2], start=1):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    faulthandler.dump_traceback_later(100, exit=True, file=sys.stderr)  # of a fork that hangs
    try:
        calls.count()
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class _Calls:
    """Counts this process's calls, writes them to a log, and lets one of them fail."""

    def __init__(self, place, log, failing, error):
        self.place, self.log, self.failing, self.error = str(place), log, failing, error
        self.numbers = Counter()

    def count(self):
        for module, name, counted in (
            (builtins, "open", self.open),
            (io, "open", self.open),
            (os, "fsync", self.fsync),
        ):
            setattr(module, name, counted(getattr(module, name)))
        sys.addaudithook(self.audit)  # cannot be removed, which is why this is a fork

    def audit(self, event, arguments):
        if event == "open":
            self.made("open" if arguments[2] & WRITES else "read", arguments[0], named=True)
        elif event in EVENTS:
            self.made(EVENTS[event], *(arguments[:1] or ("",)), named=event != "os.fork")

    def made(self, kind, path, named=False):
        """Count a call, and raise its error. named: the system's error names the path."""
        if isinstance(path, int) or path is None:
            return
        path = os.fsdecode(path)
        if kind != "start" and not os.path.abspath(path).startswith(self.place):
            return
        rank = os.environ.get("RANK", "")
        self.numbers[rank] += 1
        os.write(self.log, os.fsencode(f"{rank} {self.numbers[rank]} {kind} {path}\n"))
        if self.failing and (rank, self.numbers[rank]) == (self.failing.rank, self.failing.number):
            raise OSError(self.error, os.strerror(self.error), *([path] if named else []))

    def fsync(self, fsync):
        def counted(descriptor):
            self.made("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        return counted

    def open(self, open):
        def counted(file, mode="r", *rest, **options):
            inside = not isinstance(file, int) and os.path.abspath(os.fsdecode(file)).startswith(self.place)
            if not inside or options or not {*mode} & {*"wax+"}:
                return open(file, mode, *rest, **options)
            buffered = io.BufferedWriter(_File(file, mode.replace("b", "").replace("t", ""), self.made))
            return _Written(buffered if "b" in mode else io.TextIOWrapper(buffered, options.get("encoding")))

        return counted


class _File(io.FileIO):
    def __init__(self, name, mode, made):
        super().__init__(name, mode)
        self.made = made

    def write(self, data):
        self.made("write", self.name)
        return super().write(data)


class _Written:
    """An open file that NumPy does not recognise as one, or it would write past it."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def go_through(
    program: Callable[[], object], check: Callable[[Call, Ended], object], place: Path, step: int = 1
) -> tuple[int, list[str]]:
    """Let every step-th call of a program fail, each in a copy of what `place` contains now.

    Each fails with one of its errors, in turn. check(call, ended) asserts what must hold. Returns the number of
    attempts, and what was wrong with them.
    """
    with tempfile.TemporaryDirectory() as kept:
        shutil.copytree(place, kept, dirs_exist_ok=True)
        calls, wrong, attempts = attempt(program, place).calls[::step], [], 0
        for number, call in enumerate(calls):
            error = ERRORS[call.kind][number % len(ERRORS[call.kind])]
            while place.exists():  # processes of the attempt before may still be ending, and write
                shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(kept, place)
            ended = attempt(program, place, call, error)
            failed = next((own for own in ended.calls if (own.rank, own.number) == (call.rank, call.number)), None)
            if not (failed or ended.code):
                continue  # a comparison draws fewer figures where less was disturbed
            attempts += 1
            try:
                assert failed, "it ended before that call"
                check_line(failed, error, ended)
                check(failed, ended)
                check_left(failed, place)
            except Exception as problem:
                found = f"{type(problem).__name__}: {problem}".splitlines()[0]
                how = f"{call}, {errno.errorcode[error]}: exit code {ended.code}; {ended.err.strip()}; {found}"
                wrong.append(how.replace(str(place), "PLACE"))
    return attempts, wrong


def check_line(call: Call, error: int, ended: Ended) -> None:
    """Assert that a failed call was survived in silence, or reported by one line with its path and a remedy.

    A comparison may also go on without a row, which its table calls failed.
    """
    if not ended.code or (ended.code == FAILED and ": failed, " in ended.out):
        assert not ended.err, "it went on with a message"
        return
    assert ended.code in (FAILED, USAGE, MACHINE, DATA)
    line = ended.err.removesuffix("\n")
    assert "\n" not in line and line.startswith("error: ") and line.count("; ") >= 2, "it is no error line"
    assert not re.search(r"unexpected|Traceback|\.part\b", line), "nobody expected that"
    path = re.sub(r"[0-9a-f]{8}\.part$", "", call.path)
    assert path in line or os.path.dirname(path) in line, "the path is missing"
    assert error != DESCRIPTORS or "ulimit -n" in line, "the remedy is another one's"


def check_left(call: Call, place: Path) -> None:
    """Assert that no temporary file is left, at the latest when the next program starts, if deleting it failed."""
    deadline = time.monotonic() + 3  # a comparison's guard ends after it
    while left := [path for path in place.rglob("*") if path.suffix == ".part" or path.parent == place / "tmp"]:
        if call.kind == "read" and time.monotonic() > deadline - 2:
            with mock.patch("tempfile.tempdir", str(place / "tmp")), temporary_directory():
                pass
        assert time.monotonic() < deadline, f"left: {', '.join(map(str, left))}"
        time.sleep(0.02)
