"""What other programs used of the machine while runs ran, and when that is too much."""

from collections.abc import Iterable
from dataclasses import dataclass

from common.words import count
from comparison.run.launch import Outcome

MOST_FOREIGN = 0.1  # of the cores, or of a GPU's time, may go to other programs; beyond that, times prove nothing


@dataclass(frozen=True)
class Foreign:
    """The most that other programs used during any of some runs that ended well.

    busy: so many of the `cores`, on average. gpu: the share of the time in which one computed on a GPU of the run's.
    """

    busy: float
    cores: int
    gpu: float

    @property
    def share(self) -> float:
        """The larger of both shares."""
        return max(self.busy / self.cores, self.gpu)

    @property
    def too_much(self) -> bool:
        """Whether times prove nothing beside that."""
        return self.share > MOST_FOREIGN

    def __str__(self) -> str:
        words = [f"kept up to {self.busy:.1f} of {count(self.cores, 'core')} busy"] if self.busy or not self.gpu else []
        words += [f"computed on a GPU for {self.gpu:.0%} of the time"] if self.gpu else []
        return " and ".join(words)


def foreign_of(outcomes: Iterable[Outcome], cores: int) -> Foreign:
    """Return what other programs used during those of some runs that ended well, on so many cores."""
    whole = [outcome for outcome in outcomes if outcome.status == "ok"]
    return Foreign(
        max((outcome.foreign_cores or 0.0 for outcome in whole), default=0.0),
        cores,
        max((card.foreign or 0.0 for outcome in whole for card in outcome.cards), default=0.0),
    )
