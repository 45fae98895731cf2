"""Program exit: each failure prints one line on stderr and has an exit code for its kind. A signal ends a program at
once, with its temporary files deleted, or after the current step while it trains."""

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
import tempfile
import time
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any

from common.errors import (
    FAILED,
    INTERRUPTED,
    MACHINE,
    NO_SPACE,
    OUT_OF_MEMORY,
    READER_GONE,
    USAGE,
    SuiteError,
    is_out_of_memory,
    remedy,
)
from common.machine.lifetime import PREFIX, TAG
from common.words import printable

_exit_code: int | str | None = None  # of run_script(), once it has finished
_pending_signal = 0
RESOURCE_SHARER = os.path.join("multiprocessing", "resource_sharer.py")
BATCH_LOST = "No space left|AF_UNIX path too long"  # errors when a loader worker hands over a batch
AFTER_STEP = (signal.SIGTERM, signal.SIGHUP)  # sent by a cluster and by a closing terminal
SAME_CTRL_C_SECONDS = 1  # a SIGINT so soon after another may be the launcher's copy of the same Ctrl-C


def run_script(main: Callable[[], object], as_rank: bool = False) -> None:
    """Call `main()`; on failure print one `error:` line, or the traceback with --debug, and exit with its code.

    as_rank: heed RANK in the environment, which a cluster may set for any process. The line then names the rank and is
    also written to the launcher's error file. A rank keeps the default action of signals, as Python cannot handle them
    while it waits in a collective.
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
    """Call `function()` before run_script(), with the same error handling; return its result."""
    _prepare()
    return _call(function, as_rank)


def skip_teardown() -> None:
    """Exit at once with run_script()'s exit code, if it has finished. Register it with atexit first, so it runs last.

    Torch's teardown takes a quarter of its import time, and may abort a rank with running gloo threads (torch 2.15,
    github.com/pytorch/pytorch/pull/179291).
    """
    if isinstance(_exit_code, int):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def _handle_signals(as_rank):
    is_rank = as_rank and "RANK" in os.environ  # if forked, it has its parent's handlers
    for number in (*AFTER_STEP, signal.SIGQUIT):
        _handle(number, signal.SIG_DFL if is_rank else _exit)  # SystemExit unwinds every `with`
    sys.unraisablehook = sys.__unraisablehook__ if is_rank else _raise_again


def _prepare():
    if os.path.expanduser("~") == "~":  # a user without a home directory
        os.environ["HOME"] = os.devnull  # libraries cope better with a bad HOME than with none
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if HOME is not writable
    os.environ["MPLBACKEND"] = "agg"  # figures are only saved; a GUI backend may not work here
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; otherwise the next opened file gets its descriptor
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - stays open until exit
    sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows question marks


def _call(main, as_rank):
    try:
        result = main()
        sys.stdout.flush()
        return result
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            sys.exit(READER_GONE)
        if "--debug" in sys.argv:
            raise
        print_error(error, as_rank)
        sys.exit(explained(error).exit_code)


def _is_stdout_closed():
    """Return whether the reader of stdout is gone, as after `| head -1`; if so, redirect stdout to /dev/null."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    closed = any(event & select.POLLERR for _, event in pipe.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush would fail
    return closed


def print_error(error: Exception, as_rank: bool) -> None:
    """Print the line about an error; as a rank, also write it to the launcher's error file."""
    line = printable(f"{_location(error, as_rank)}{explained(error)}")
    print(f"error: {line}\n", end="", file=sys.stderr, flush=True)  # one write: other ranks share stderr
    if as_rank and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        message = {"message": line, "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError), open(file, "w", encoding="utf-8") as opened:
            json.dump({"message": message}, opened)


def _location(error, as_rank):
    """Return e.g. "rank 1, epoch 2: ". A SuiteError of rank 0 holds for all ranks, so it names none."""
    places, rank = [*getattr(error, "__notes__", [])], os.environ.get("RANK") if as_rank else None
    if rank and not (rank == "0" and isinstance(error, SuiteError)):
        places.insert(0, f"rank {rank}")
    return f"{', '.join(places)}: " if places else ""


def explained(error: Exception) -> SuiteError:
    """Return an error as a SuiteError, with a remedy if it is a known one, else with the advice to use --debug."""
    if isinstance(error, SuiteError):
        return error
    if isinstance(error, OSError) and (known := _explain_os_error(error)):
        return known
    message = f"{type(error).__name__}: {error}"
    if _is_lost_worker(error, message):
        found, advice = message.splitlines()[-1], "free memory, enlarge /dev/shm (in docker: --shm-size=1g)"
        if "AF_UNIX" in message:
            advice = "let TMPDIR name a directory of at most 75 characters"
        return SuiteError("a loader worker died", found, f"{advice}, or type --num-workers 0", FAILED)
    if "finished reduction in the prior iteration" in message:  # of DistributedDataParallel
        what, found = "the ranks wait for a gradient that never comes", "a weight takes no part in the loss"
        return SuiteError(what, found, "remove it from the network, or give it requires_grad=False", FAILED)
    if "Expected more than 1 value per channel" in message:  # of BatchNorm; the warm-up has the smallest batches
        what, found = "the network does not train on an image alone", "BatchNorm has one value per channel of it"
        advice = "type another --batch-size or --train-size, or fewer devices, micro-batches or parts"
        return SuiteError(what, found, advice, USAGE)
    if is_out_of_memory(error):
        return SuiteError(OUT_OF_MEMORY, message, "try a smaller --batch-size, or fewer --num-workers", FAILED)
    found = str(error) or "no message"
    return SuiteError(f"unexpected {type(error).__name__}", found, "add --debug to see where it happened", FAILED)


def _explain_os_error(error):
    path, found = error.filename, error.strerror or str(error)
    named = f"{found}: {path}" if path else found
    if limit := remedy(error, ""):
        what = "another process" if error.errno == errno.EAGAIN else "to open another file"
        return SuiteError(f"the system refuses {what}", named, limit, FAILED)
    if error.errno == errno.ENAMETOOLONG:
        return SuiteError("this name is too long for a file", str(path), "give it another", USAGE)
    if "No usable temporary directory" in found or (path and _is_temporary(path)):
        what, advice = "there is no place for temporary files", "set TMPDIR to a writable directory"
        return SuiteError(what, named, advice, MACHINE)
    if path or error.errno in NO_SPACE:
        what, mend = f"cannot read or write {path or 'a file'}", "check its directory and disk"
        mend = "free some space" if error.errno in NO_SPACE else mend
        return SuiteError(what, found, f"{mend}, or add --debug to see where it happened", FAILED)
    return None


def _is_temporary(path):
    """Return whether a file is directly in the temporary directory, or in one of temporary_directory()'s."""
    return tempfile.tempdir in (path, os.path.dirname(path)) or PREFIX.partition("{")[0] in os.path.dirname(path)


def _is_lost_worker(error, message):
    """Return whether a loader worker died, including during the handover of a batch, before its DataLoader notices."""
    if "DataLoader worker" in message:
        return "Caught" not in message or re.search(BATCH_LOST, message)
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, (OSError, EOFError)) and any(file.endswith(RESOURCE_SHARER) for file in files)


def pending_signal() -> int:
    """Return the signal that asked this process to end after the step, or 0."""
    return _pending_signal


@contextlib.contextmanager
def end_after_step(pass_on: Callable[[int], None] = lambda number: None, ctrl_c: bool = False) -> Iterator[None]:
    """Record SIGTERM and SIGHUP for pending_signal() during the `with`, and call `pass_on` with the signal.

    ctrl_c: record SIGINT as well; a second one ends the process at once. A run of a comparison records no signal.
    """
    global _pending_signal
    _pending_signal, received_at = 0, math.inf

    def record(number, _):
        global _pending_signal
        nonlocal received_at
        if number == signal.SIGINT and time.monotonic() > received_at + SAME_CTRL_C_SECONDS:
            raise KeyboardInterrupt
        _pending_signal, received_at = number, min(received_at, time.monotonic())
        pass_on(number)

    numbers = (*AFTER_STEP, signal.SIGINT) if ctrl_c else AFTER_STEP
    handlers = {} if TAG in os.environ else {signal.SIGQUIT: _exit, **dict.fromkeys(numbers, record)}
    previous = {number: _handle(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if not _pending_signal:  # otherwise the process is about to end; another signal must not interrupt that
                _handle(number, handler)


def _handle(number, handler):
    """Install a signal handler, unless the signal is ignored, as under nohup; return the previous handler."""
    previous = signal.getsignal(number)
    if previous != signal.SIG_IGN and handler is not None:  # None: the previous handler was not installed by Python
        signal.signal(number, handler)
    return previous


def _exit(number, _):
    sys.exit(128 + number)


def _raise_again(unraisable):
    """Raise a signal's SystemExit or KeyboardInterrupt again if Python dropped it in a fork hook or in __del__."""
    error = unraisable.exc_value
    if not isinstance(error, (SystemExit, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)
        return

    def raise_error(*_):
        raise error

    signal.signal(signal.SIGALRM, raise_error)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
