"""The largest batch with which each row trains: --batch-size, doubled until memory, or the data set, does not suffice.

A batch is tried by the row's own script, which trains a few steps and evaluates, alone on the machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.config import option
from common.errors import OUT_OF_MEMORY
from common.probe import Probe
from comparison.launch import run_once
from comparison.plan import Configuration

STEPS = 3  # the first makes gradients and the optimizer's state, which the next have all the time


@dataclass(frozen=True)
class Trial:
    """A batch that a row was tried with. status, reason: as in Outcome.

    images: how many were trained on in STEPS steps; peak_bytes: of the device that needed most. None where it does not
    fit, or failed otherwise.
    """

    configuration: str
    batch_size: int
    status: str
    reason: str
    images: int | None = None
    peak_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether memory sufficed: it may have diverged, or missed a target accuracy."""
        return self.images is not None


def trials_of(row: Configuration, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of a row, or of the one that it is a counterpart of, in their order."""
    return [trial for trial in trials if trial.configuration == (row.against or row.name)]


def next_batch(row: Configuration, trials: Sequence[Trial]) -> int | None:
    """Return which batch to try a row with next; None where its largest is known.

    Twice the last one as long as that fits and the data set fills it; if not even the first fits, half, as long as it
    divides among the devices.
    """
    own = trials_of(row, trials)
    if not own:
        return row.planned.batch_size
    last = own[-1]
    if last.fits:
        halved = len(own) > 1 and last.batch_size < own[-2].batch_size
        return None if halved or last.images < 2 * last.batch_size else 2 * last.batch_size
    if last.status != OUT_OF_MEMORY or any(trial.fits for trial in own):
        return None
    return None if last.batch_size % (2 * row.planned.shares) else last.batch_size // 2


def try_batch(row: Configuration, batch_size: int, seed: int, directory: Path, timeout: float | None) -> Trial:
    """Let a row train STEPS steps of a batch and evaluate; its files go into `directory`."""
    fitted = with_batch(row, batch_size)
    command = (*fitted.command, "--epochs", "1", "--max-steps", str(STEPS))
    outcome = run_once(replace(fitted, name=f"{row.name}-fit", command=command), batch_size, seed, directory, timeout)
    if outcome.result is None:
        return Trial(row.name, batch_size, outcome.status, outcome.reason)
    return Trial(row.name, batch_size, outcome.status, outcome.reason, outcome.result.epochs[-1].samples,
                 max(outcome.result.peak_memory_bytes))


def with_batch(row: Configuration, batch_size: int) -> Configuration:
    """Return a row with another global batch."""
    command = list(row.command)
    if command:  # what was read from a file has none
        command[command.index(option("batch_size")) + 1] = str(batch_size)
    planned = replace(row.planned, batch_size=batch_size, per_device_batch_size=-(-batch_size // row.planned.shares))
    return replace(row, planned=planned, command=tuple(command))


def with_largest(plan: Sequence[Configuration], trials: Sequence[Trial]) -> tuple[Configuration, ...]:
    """Return the rows with the largest batch that fits; one that fits with none keeps the smallest that was tried."""
    return tuple(_with_largest(row, trials_of(row, trials)) for row in plan)


def _with_largest(row, own):
    if not own:
        return row
    return with_batch(row, max((trial.batch_size for trial in own if trial.fits),
                               default=min(trial.batch_size for trial in own)))


def with_peaks(probe: Probe, trials: Sequence[Trial]) -> Probe:
    """Return a probe which has needed as much memory, of the device that trains, as the largest of the trials."""
    if not probe.memory or not any(trial.fits for trial in trials):
        return probe
    *others, own = probe.memory
    peak = max(own.peak_bytes, *(trial.peak_bytes for trial in trials if trial.fits))
    return replace(probe, memory=(*others, replace(own, peak_bytes=peak)))
