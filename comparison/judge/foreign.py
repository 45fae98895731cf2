"""What other programs used of the machine while runs ran, and when that is too much."""

from collections.abc import Iterable
from dataclasses import dataclass

from comparison.run.launch import Outcome
from comparison.words import count, say

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

    @property
    def words(self) -> str:
        """What those programs did, behind "other programs"."""
        template = "kept up to {n:.1f} of {cores} busy"
        if self.gpu:
            template = "computed on a GPU for {m:.0%} of the time"
        if self.gpu and self.busy:
            template = "kept up to {n:.1f} of {cores} busy and computed on a GPU for {m:.0%} of the time"
        return say(template, n=self.busy, cores=count(self.cores, "core"), m=self.gpu)


def foreign_of(outcomes: Iterable[Outcome], cores: int) -> Foreign:
    """Return what other programs used during those of some runs that ended well, on so many cores."""
    whole = [outcome for outcome in outcomes if outcome.status == "ok"]
    return Foreign(
        max((outcome.foreign_cores or 0.0 for outcome in whole), default=0.0),
        cores,
        max((card.foreign or 0.0 for outcome in whole for card in outcome.cards), default=0.0),
    )
