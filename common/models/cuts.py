"""Where to cut a network into stages; without torch."""

import functools
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
