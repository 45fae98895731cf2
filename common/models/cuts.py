"""Where to cut a network into stages: pure mathematics, without torch."""

import functools
from collections.abc import Sequence


def balanced_cut(times: Sequence[float], stages: int) -> list[int]:
    """Return the indices of the first blocks of all stages but the first: so that the slowest stage is the fastest.

    times: of each block, in any unit; there must be a block for every stage.
    """

    @functools.cache
    def best(start, stages):
        """The time of the slowest of so many stages that share the blocks from `start` on, and where they begin."""
        if stages == 1:
            return sum(times[start:]), ()
        rests = ((end, *best(end, stages - 1)) for end in range(start + 1, len(times) - stages + 2))
        return min((max(sum(times[start:end]), slowest), (end, *cut)) for end, slowest, cut in rests)

    return list(best(0, stages)[1])
