"""The largest batch with which each row trains: --batch-size, doubled until memory, or data, do not suffice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import OUT_OF_MEMORY
from common.settings.config import option
from comparison.plan.plan import type_flags
from comparison.rows import TRIAL_MARGIN, TRIAL_STEPS, Configuration, Outcome, Trial, trials_of
from comparison.run.turns import run_once


def next_batch(row: Configuration, trials: Sequence[Trial]) -> int | None:
    """Return which batch to try a row with next; None where its largest is known.

    Twice the largest that fits, or half of the smallest, if none does and the devices can share it.
    """
    results = _results(row, trials)
    if not results:
        return row.planned.batch_size
    if fitting := [batch for batch, trial in results.items() if trial.fits]:
        double = 2 * max(fitting)
        return None if double in results or (results[max(fitting)].images or 0) < double else double
    smallest = min(results)
    if results[smallest].status != OUT_OF_MEMORY or smallest % (2 * row.planned.shares):
        return None
    return smallest // 2


def _results(row, trials):
    """Batch → the last trial with it."""
    return {trial.batch_size: trial for trial in trials_of(row, trials)}


def try_batch(row: Configuration, batch_size: int, settings: Mapping[str, Any], directory: Path) -> Trial:
    """Let a row train TRIAL_STEPS steps of a batch, under a limit of memory with TRIAL_MARGIN left, and evaluate."""
    fitted, flags = with_batch(row, batch_size), ["--epochs", "1", "--max-steps", str(TRIAL_STEPS)]
    if limit := settings.get("memory_limit"):
        flags += type_flags({"memory_limit": round((1 - TRIAL_MARGIN) * limit)})
    tried = replace(fitted, name=f"{row.name}-fit", command=(*fitted.command, *flags))
    outcome = run_once(tried, batch_size, settings["seed"], directory, settings["timeout"])
    trial, result = Trial(row.name, batch_size, outcome.status, outcome.reason), outcome.result
    if result is None:
        return trial
    return replace(trial, images=result.epochs[-1].samples, peak_bytes=max(result.peak_memory_bytes))


def with_batch(row: Configuration, batch_size: int) -> Configuration:
    """Return a row with another global batch."""
    command = list(row.command)
    if command:  # what was read from a file has none
        command[command.index(option("batch_size")) + 1] = str(batch_size)
    planned = replace(row.planned, batch_size=batch_size, per_device_batch_size=-(-batch_size // row.planned.shares))
    return replace(row, planned=planned, command=tuple(command))


def with_largest(plan: Sequence[Configuration], trials: Sequence[Trial]) -> tuple[Configuration, ...]:
    """Return the rows with the largest batch that fits; one that fits with none keeps the smallest that was tried."""

    def fitted(row):
        results = _results(row, trials)
        fitting = [batch for batch, trial in results.items() if trial.fits]
        return with_batch(row, max(fitting, default=min(results))) if results else row

    return tuple(map(fitted, plan))


def failed_runs(plan: Sequence[Configuration], outcomes: Sequence[Outcome]) -> list[Trial]:
    """Return as trials the runs that memory did not suffice for."""
    rows = {row.name: row for row in plan}
    failed = [(rows[run.configuration], run) for run in outcomes if run.status == OUT_OF_MEMORY]
    return [Trial(row.against or row.name, row.planned.batch_size, run.status, run.reason) for row, run in failed]
