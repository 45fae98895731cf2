"""How far a long epoch has come, as it is printed."""

import time
from collections.abc import Callable

from common.words import duration

FIRST = 10.0  # seconds; the next word comes after twice as many, and so on


class Progress:
    """Says where an epoch of training is, ten seconds after its begin, 20 after that, 40 after that."""

    def __init__(self, epochs: int, steps: int, say: Callable[[str], None]):
        self._epochs, self._steps, self._say = epochs, steps, say

    def begin(self, epoch: int) -> None:
        self._epoch, self._done, self._begun, self._wait = epoch, 0, time.monotonic(), FIRST
        self._next = self._begun + FIRST

    def after_step(self) -> None:
        self._done += 1
        if self._done >= self._steps or (now := time.monotonic()) < self._next:
            return
        left = duration((now - self._begun) / self._done * (self._steps - self._done))
        self._say(f"Epoch [{self._epoch}/{self._epochs}], step {self._done} of {self._steps}, about {left} left")
        self._wait *= 2
        self._next = now + self._wait
