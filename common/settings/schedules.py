"""The learning rate's schedules: one record each, which is all that a new one takes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """about: what --help says. make(optimizer, config, steps): one of torch's; steps: of an epoch."""

    about: str
    make: Callable


def _steps(optimizer, config, steps):
    from torch.optim.lr_scheduler import MultiStepLR

    return MultiStepLR(optimizer, [epoch * steps for epoch in config.lr_milestones], gamma=0.1)


def _one_cycle(optimizer, config, steps):
    """In straight lines (L. Smith, "Super-convergence", 2018)."""
    from torch.optim.lr_scheduler import OneCycleLR

    total = max(5, config.epochs * steps)  # OneCycleLR divides by 0 at 4
    return OneCycleLR(
        optimizer, config.lr, total_steps=total, pct_start=0.25, anneal_strategy="linear", cycle_momentum=False
    )


def _linear(optimizer, config, steps):
    from torch.optim.lr_scheduler import LinearLR

    return LinearLR(optimizer, 1.0, 0.0, total_iters=config.epochs * steps)


SCHEDULES = {
    "steps": Schedule("of the learning rate, at --lr-milestones", _steps),
    "one-cycle": Schedule("up to --lr in the first quarter, then to 0", _one_cycle),
    "linear": Schedule("from --lr straight to 0", _linear),
}


def build_schedule(optimizer, config, steps_per_epoch: int):
    """Return the schedule that `config` (a RunConfig) names, to be stepped after every training step."""
    return SCHEDULES[config.schedule].make(optimizer, config, steps_per_epoch)


def length_of(schedule: dict) -> int | None:
    """Return after how many steps a schedule, by its state_dict, has ended; None for one that does not depend on it.

    A training that goes on cannot change that: its rates so far are those of a schedule of this length.
    """
    return schedule.get("total_iters", schedule.get("total_steps"))
