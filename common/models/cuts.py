"""Where to cut a network into stages; without torch."""

import functools
import itertools
from collections.abc import Sequence


def balanced_cut(times: Sequence[float], stages: int) -> list[int]:
    """Return the first block of every stage but the first, such that the slowest stage is as fast as possible.

    times: of the blocks, in any unit; at least one block for each stage.
    """

    @functools.cache
    def best(start, stages):
        """Return (time of the slowest stage, cuts) for the blocks from `start` on."""
        if stages == 1:
            return sum(times[start:]), ()
        rests = ((end, *best(end, stages - 1)) for end in range(start + 1, len(times) - stages + 2))
        return min((max(sum(times[start:end]), slowest), (end, *cuts)) for end, slowest, cuts in rests)

    return list(best(0, stages)[1])


def stage_starts(times: Sequence[float], trains: Sequence[bool]) -> list[int]:
    """Return the first block and others that may begin a stage, such that all stages have weights to train.

    times, trains: of each block its time and whether it has weights to train. If fewer than two have, all are returned.
    Of the blocks after one that trains, up to the next, it is the one before which a cut into two is the most balanced.
    """
    training = [index for index, own in enumerate(trains) if own]
    if len(training) < 2:
        return list(range(len(times)))

    def slowest(start):
        return max(sum(times[:start]), sum(times[start:]))

    between = (range(before + 1, after + 1) for before, after in itertools.pairwise(training))
    return [0, *(min(starts, key=slowest) for starts in between)]
