"""How a program ends: every failure is one line on stderr, with an exit code that names the kind; a signal ends it at
once, with whatever was made on the way deleted, or, while it trains, after the step."""

import contextlib
import errno
import json
import logging
import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any

from common.errors import FAILED, INTERRUPTED, MACHINE, OUT_OF_MEMORY, READER_GONE, USAGE, SuiteError, is_out_of_memory
from common.machine.lifetime import TAG
from common.words import printable

_exit_code: int | str | None = None  # of run_script(), once it is through
_told = 0
HANDED_OVER_IN = os.path.join("multiprocessing", "resource_sharer.py")
NOT_HANDED_OVER = "No space left|AF_UNIX path too long"  # what a loader's worker had loaded
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
AFTER_STEP = (signal.SIGTERM, signal.SIGHUP)  # how a cluster and a terminal take a machine back
SAME_SECONDS = 1  # a launcher passes on what a terminal has told all: so long after it, a Ctrl-C counts as the same one


def run_script(main: Callable[[], object], as_rank: bool = False) -> None:
    """Call `main()`; on failure print one `error:` line, or with --debug the traceback, and exit with its code.

    as_rank: RANK in the environment, which a cluster may give to all processes, counts: then the line names it, and the
    launcher finds the line where it looks for it. No signal is handled, as a rank may wait where Python sees none.
    """
    global _exit_code
    try:
        _prepare()
        _handle_signals(as_rank)
        _call(main, as_rank)
        _exit_code = 0
    except SystemExit as ended:
        _exit_code = ended.code or 0
        raise


def call_early(function: Callable[[], Any], as_rank: bool) -> Any:
    """Return what `function()` returns, before run_script() is called; its errors end the program as they do there."""
    _prepare()
    return _call(function, as_rank)


def skip_teardown() -> None:
    """Leave with run_script()'s exit code, if it is through: registered with atexit first, it is called last.

    Else torch is taken apart, which takes a quarter as long as its import, and may abort a rank in which gloo's threads
    are alive (torch 2.15, github.com/pytorch/pytorch/pull/179291).
    """
    if isinstance(_exit_code, int):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def _handle_signals(as_rank):
    is_rank = as_rank and "RANK" in os.environ  # it may be a fork, which has what its parent set
    for number in (*AFTER_STEP, signal.SIGQUIT):
        _handle(number, signal.SIG_DFL if is_rank else _exit)  # so that every `with` is left in good order
    sys.unraisablehook = sys.__unraisablehook__ if is_rank else _raise_later


def _prepare():
    if os.path.expanduser("~") == "~":  # a user whom the system does not know
        os.environ["HOME"] = os.devnull  # with which libraries do better than without one
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # or it says so where it cannot write to HOME
    os.environ["MPLBACKEND"] = "agg"  # figures become files; what is set for windows may be wrong here
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed, and the next file that is opened would get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the end
    sys.stdout.reconfigure(errors="replace")  # a terminal that knows only ASCII gets a question mark for the rest


def _call(main, as_rank):
    try:
        returned = main()
        sys.stdout.flush()
        return returned
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            sys.exit(READER_GONE)
        if "--debug" in sys.argv:
            raise
        tell(error, as_rank)
        sys.exit(explained(error).exit_code)


def _reader_has_gone():
    """Whether whoever reads stdout has seen enough, as in `| head -1`; if so, nothing more is written there."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    gone = any(event & select.POLLERR for _, event in pipe.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush complains
    return gone


def tell(error: Exception, as_rank: bool) -> None:
    """Print the line about an error; as a rank, also put it where its launcher looks for the cause."""
    line = printable(f"{_where(error, as_rank)}{explained(error)}")
    print(f"error: {line}\n", end="", file=sys.stderr, flush=True)  # in one piece: other ranks write there too
    if as_rank and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        message = {"message": line, "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError), open(file, "w", encoding="utf-8") as opened:
            json.dump({"message": message}, opened)


def _where(error, as_rank):
    """E.g. "rank 1, epoch 2: "; what rank 0 found out on purpose is true of all ranks."""
    places, rank = [*getattr(error, "__notes__", [])], os.environ.get("RANK") if as_rank else None
    if rank and not (rank == "0" and isinstance(error, SuiteError)):
        places.insert(0, f"rank {rank}")
    return f"{', '.join(places)}: " if places else ""


def explained(error: Exception) -> SuiteError:
    """Return an error as a SuiteError: with the remedy for those that are known, else with a way to find out more."""
    if isinstance(error, SuiteError):
        return error
    for cause in (error, error.__context__):  # torch.save hides it behind an error of its own
        if isinstance(cause, OSError) and (known := _of_the_system(cause)):
            return known
    message = f"{type(error).__name__}: {error}"
    if _lost_worker(error, message):
        remedy = "free memory, enlarge /dev/shm (in docker: --shm-size=1g)"
        if "AF_UNIX" in message:
            remedy = "let TMPDIR name a directory of at most 75 characters"
        advice = f"{remedy}, or type --num-workers 0"
        return SuiteError("a loader worker died", message.splitlines()[-1], advice, FAILED)
    if is_out_of_memory(error):
        return SuiteError(OUT_OF_MEMORY, message, "try a smaller --batch-size, or fewer --num-workers", FAILED)
    found = str(error) or "no message"
    return SuiteError(f"unexpected {type(error).__name__}", found, "add --debug to see where it happened", FAILED)


def _of_the_system(error):
    if error.errno in NO_SPACE:
        what = f"cannot write all of {error.filename or 'a file'}"
        return SuiteError(what, os.strerror(error.errno), "free some space, or write elsewhere", FAILED)
    if error.errno == errno.ENAMETOOLONG:
        return SuiteError("this name is too long for a file", str(error.filename), "give it another", USAGE)
    if "No usable temporary directory" in str(error):
        advice = "set TMPDIR to a writable directory"
        return SuiteError("there is no place for temporary files", error.strerror, advice, MACHINE)
    return None


def _lost_worker(error, message):
    """Whether a loader's worker is gone, also if its DataLoader does not know yet, as it hands over what it loaded."""
    if "DataLoader worker" in message:
        return "Caught" not in message or re.search(NOT_HANDED_OVER, message)
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, (OSError, EOFError)) and any(file.endswith(HANDED_OVER_IN) for file in files)


def told() -> int:
    """Return the number of the signal by which this process was told to end after the step, or 0."""
    return _told


@contextlib.contextmanager
def end_after_step(pass_on: Callable[[int], None] = lambda number: None, ctrl_c: bool = False) -> Iterator[None]:
    """In the `with`, a process that gets SIGTERM or SIGHUP, which it passes on, is told() to end, and goes on until it
    asks. ctrl_c: so it is by SIGINT, but a second one ends it at once. Not in a run of a comparison."""
    global _told
    _told, told_at = 0, math.inf

    def tell(number, _):
        global _told
        nonlocal told_at
        if number == signal.SIGINT and time.monotonic() > told_at + SAME_SECONDS:
            raise KeyboardInterrupt
        _told, told_at = number, min(told_at, time.monotonic())
        pass_on(number)

    numbers = (*AFTER_STEP, signal.SIGINT) if ctrl_c else AFTER_STEP
    handlers = {} if TAG in os.environ else {signal.SIGQUIT: _exit, **dict.fromkeys(numbers, tell)}
    before = {number: _handle(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if not _told:  # else it is about to end, and is not to be disturbed
                _handle(number, handler)


def _handle(number, handler):
    """Set what a signal does, unless it is ignored, as nohup wants it; return what it did before."""
    before = signal.getsignal(number)
    if before != signal.SIG_IGN and handler is not None:  # None: not Python's own
        signal.signal(number, handler)
    return before


def _exit(number, _):
    sys.exit(128 + number)


def _raise_later(unraisable):
    """Raise again, outside, what a signal raised in a fork's hooks or in __del__, where Python drops it."""
    ended = unraisable.exc_value
    if not isinstance(ended, (SystemExit, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)
        return

    def again(*_):
        raise ended

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
