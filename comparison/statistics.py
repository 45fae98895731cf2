"""What can be derived from raw times: medians, throughput, speed-ups."""

import statistics
from dataclasses import dataclass

from comparison.launch import Outcome


@dataclass(frozen=True)
class Summary:
    """One row's derived numbers; None where nothing was measured. Seconds per epoch leave out the warm-up epoch."""

    epoch_seconds: float | None = None  # median
    fastest_epoch: float | None = None
    slowest_epoch: float | None = None
    images_per_second: float | None = None
    accuracy: float | None = None  # of the last epoch, 0..1
    speed_up: float | None = None  # the baseline's median seconds per epoch ÷ this row's


def timed_epochs(outcome: Outcome) -> list:
    """Return the epochs that count for times: all but the first, which warms up, unless it is the only one."""
    epochs = outcome.result.epochs
    return list(epochs[1:] or epochs)


def summarize(outcome: Outcome, baseline: Outcome | None) -> Summary:
    """Return the numbers of one row.

    speed_up is None without a baseline that ended well, and for a simulated row: one device that stands in for
    several says nothing about their speed.
    """
    if outcome.status != "ok" or outcome.result is None:
        return Summary()
    seconds = [epoch.train_seconds for epoch in timed_epochs(outcome)]
    median = statistics.median(seconds)
    speed_up = None
    if baseline and baseline.status == "ok" and not outcome.result.simulated:
        speed_up = statistics.median(epoch.train_seconds for epoch in timed_epochs(baseline)) / median
    return Summary(
        epoch_seconds=median,
        fastest_epoch=min(seconds),
        slowest_epoch=max(seconds),
        images_per_second=outcome.result.epochs[-1].samples / median,
        accuracy=outcome.result.epochs[-1].test_accuracy,
        speed_up=speed_up,
    )
