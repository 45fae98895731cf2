"""The rows of a block in turns: all are started, then each trains one epoch at a time, while the others wait.

Whatever makes the machine faster or slower for seconds then meets all rows alike: L. Bulej et al., "Duet benchmarking:
improving measurement accuracy in the cloud", ICPE 2020.
"""

import contextlib
import random
from collections.abc import Iterator

from comparison.launch import Outcome, Run


def take_turns(runs: list[Run], seed: int) -> Iterator[Outcome]:
    """Go through Runs to their ends, one turn of one of them at a time; yield what became of each as it ends.

    They start in the order given, each in a turn of its own, and go on in an order that is shuffled for every epoch
    from `seed`. One that fails, or is stopped for taking too long, leaves the others as they are.
    """
    shuffle = random.Random(seed)
    with contextlib.ExitStack() as started:
        for run in runs:
            started.enter_context(run)
        while runs:
            waiting = []
            for run in runs:
                if outcome := run.take_turn():
                    yield outcome
                else:
                    waiting.append(run)
            runs = shuffle.sample(waiting, len(waiting))
