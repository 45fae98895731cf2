"""The learning rate's schedules: one record each, which is all that a new one takes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    about: str  # what --help says
    make: Callable  # (torch.optim.lr_scheduler, optimizer, config, steps of an epoch) → one of torch's


def _steps(torch, optimizer, config, steps):
    return torch.MultiStepLR(optimizer, [epoch * steps for epoch in config.lr_milestones], gamma=0.1)


def _one_cycle(torch, optimizer, config, steps):
    """In straight lines (L. Smith, "Super-convergence", 2018)."""
    lines = {"pct_start": 0.25, "anneal_strategy": "linear", "cycle_momentum": False}
    total = max(5, config.epochs * steps)  # OneCycleLR divides by 0 at 4
    return torch.OneCycleLR(optimizer, config.lr, total_steps=total, **lines)


def _linear(torch, optimizer, config, steps):
    return torch.LinearLR(optimizer, 1.0, 0.0, total_iters=config.epochs * steps)


SCHEDULES = {
    "steps": Schedule("of the learning rate, at --lr-milestones", _steps),
    "one-cycle": Schedule("up to --lr in the first quarter, then to 0", _one_cycle),
    "linear": Schedule("from --lr straight to 0", _linear),
}


def build_schedule(optimizer, config, steps_per_epoch: int):
    """Return the schedule that `config` (a RunConfig) names, to be stepped after every training step."""
    from torch.optim import lr_scheduler

    return SCHEDULES[config.schedule].make(lr_scheduler, optimizer, config, steps_per_epoch)


def length_of(schedule: dict) -> int | None:
    """Return after how many steps a schedule, by its state_dict, has ended: a resumed one cannot change that."""
    return schedule.get("total_iters", schedule.get("total_steps"))
