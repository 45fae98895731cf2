"""Learning rate schedules. To add one, add its record to SCHEDULES."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    about: str  # for --help
    make: Callable  # (torch.optim.lr_scheduler, optimizer, config, steps_per_epoch) → scheduler
    warms_up: bool = False


# The learning rate grows with this power of the batch size. linear: P. Goyal et al., "Accurate, Large Minibatch SGD",
# 2017; sqrt, for Adam: S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022.
LR_SCALINGS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def _steps(lr_scheduler, optimizer, config, steps_per_epoch):
    return lr_scheduler.MultiStepLR(optimizer, [epoch * steps_per_epoch for epoch in config.lr_milestones], gamma=0.1)


def _one_cycle(lr_scheduler, optimizer, config, steps_per_epoch):
    """The one-cycle schedule with straight lines (L. Smith, "Super-convergence", 2018)."""
    lines = {"pct_start": 0.25, "anneal_strategy": "linear", "cycle_momentum": False}
    total = max(5, config.epochs * steps_per_epoch)  # OneCycleLR divides by 0 at 4
    return lr_scheduler.OneCycleLR(optimizer, config.highest_lr, total_steps=total, **lines)


def _linear(lr_scheduler, optimizer, config, steps_per_epoch):
    return lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=config.epochs * steps_per_epoch)


SCHEDULES = {
    "steps": Schedule("of the learning rate, at --lr-milestones", _steps),
    "one-cycle": Schedule("up to --lr in the first quarter, then to 0", _one_cycle, warms_up=True),
    "linear": Schedule("from --lr straight to 0", _linear),
}


def default_milestones(epochs: int) -> tuple[int, ...]:
    """Return the epochs after which the learning rate of the schedule "steps" drops if none are typed."""
    return (epochs * 4 // 5,) if epochs >= 5 else ()


def build_schedule(optimizer, config, steps_per_epoch: int):
    """Return the scheduler for `config` (a RunConfig), to be stepped after every training step.

    The optimizer has --lr, which is multiplied by --lr-scaling here. A larger rate is reached in an epoch of warm-up
    (Goyal et al.: 5 of 90).
    """
    from torch.optim import lr_scheduler

    warnings.filterwarnings("ignore", "Detected call of .lr_scheduler")  # a GradScaler may skip the first step
    schedule = SCHEDULES[config.schedule]
    for group in optimizer.param_groups:
        group["lr"] *= config.lr_factor
    main = schedule.make(lr_scheduler, optimizer, config, steps_per_epoch)
    if config.lr_factor <= 1 or schedule.warms_up:
        return main
    warm_up = lr_scheduler.LinearLR(optimizer, 1 / config.lr_factor, total_iters=steps_per_epoch)
    return lr_scheduler.ChainedScheduler([warm_up, main])


def length_of(schedule: dict) -> int | None:
    """Return the number of steps after which a schedule ends, from its state_dict; None if it never ends."""
    main = schedule.get("_schedulers", [schedule])[-1]  # after the warm-up
    return main.get("total_iters", main.get("total_steps"))
