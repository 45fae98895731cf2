"""How far an epoch is, for who watches one that takes long."""

import time
from collections.abc import Callable

from common.words import duration

FIRST = 10.0  # seconds; the next word comes after twice as many, and so on


class Progress:
    """Says where an epoch of training is, ten seconds after its begin, 20 after that, 40 after that."""

    def __init__(self, epochs: int, steps: int, say: Callable[[str], None]):
        self._epochs, self._steps, self._say = epochs, steps, say
        self._step = steps  # a training that is resumed at its end only evaluates

    def begin(self, epoch: int) -> None:
        """To be called before an epoch."""
        self._epoch, self._step, self._begun = epoch, 0, time.monotonic()
        self._next, self._wait = self._begun + FIRST, FIRST

    def after_batch(self) -> None:
        """To be called after every batch of it; what comes after its last step, as evaluation, is not counted."""
        self._step += 1
        if self._step >= self._steps or (now := time.monotonic()) < self._next:
            return
        left = (now - self._begun) / self._step * (self._steps - self._step)
        self._say(
            f"Epoch [{self._epoch}/{self._epochs}], step {self._step} of {self._steps}, about {duration(left)} left"
        )
        self._wait *= 2
        self._next = now + self._wait
