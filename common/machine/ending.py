"""Being told to end: at once, with whatever was made on the way deleted, or, while training, after the step."""

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from common.machine.lifetime import TAG

AFTER_STEP = (signal.SIGTERM, signal.SIGHUP)  # how a cluster and a terminal take a machine back
AT_ONCE = (*AFTER_STEP, signal.SIGQUIT)
SAME_SECONDS = 1  # a launcher passes on what a terminal has told all: so long after it, a Ctrl-C counts as the same one

_told = 0


def told() -> int:
    """Return the number of the signal by which this process was told to end after the step, or 0."""
    return _told


def end_at_once() -> None:
    """Let signals raise SystemExit from now on, with 128 + their number, so that every `with` is left in good order."""
    for number in AT_ONCE:
        _handle(number, _exit)
    sys.unraisablehook = _raise_later


@contextlib.contextmanager
def end_after_step(pass_on: Callable[[int], None] = lambda number: None, ctrl_c: bool = False) -> Iterator[None]:
    """In the `with`, a process that gets SIGTERM or SIGHUP is told() to end, and goes on until it asks.

    pass_on(number): called at each. ctrl_c: SIGINT is one of them too, but a second one ends at once. Not in a run of a
    comparison, which does not wait for the end of a step.
    """
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
