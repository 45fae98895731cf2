"""Progress lines within a long epoch."""

import time
from collections.abc import Callable

from common.words import duration

FIRST = 10.0  # seconds until the first line; the pause doubles after each line


class Progress:
    """Prints the position in an epoch 10 s after its start, 20 s later, 40 s after that, and so on."""

    def __init__(self, epochs: int, steps: int, say: Callable[[str], None]):
        self._epochs, self._steps, self._say = epochs, steps, say

    def begin(self, epoch: int, done: int = 0) -> None:
        """Begin an epoch, of which an earlier run has done some steps."""
        self._epoch, self._first, self._done, self._pause = epoch, done + 1, done, FIRST
        self._next = time.monotonic() + FIRST

    def after_step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if self._done == self._first:  # it may compile the network
            self._warm = now
        if self._done >= self._steps or now < self._next:
            return
        left = ""
        if self._done > self._first:
            seconds = (now - self._warm) / (self._done - self._first) * (self._steps - self._done)
            left = f", about {duration(seconds)} left"
        self._say(f"Epoch [{self._epoch}/{self._epochs}], step {self._done} of {self._steps}{left}")
        self._pause *= 2
        self._next = now + self._pause
