"""How long a comparison will take: a guess from a step's time before the first run, corrected by every run."""

import shlex
import statistics

from common.files.probe import Probe
from common.words import duration
from comparison.record import Report
from comparison.rows import Configuration, Outcome

LONG, SHORT = 1800.0, 600.0  # seconds: a shorter command is named where more is expected, and takes so few if it can
SHORTER = (100, 50, 20)  # training steps of an epoch


def guess_seconds(configuration: Configuration, settings: dict, probe: Probe) -> float:
    """Return how long one run of a configuration may take, from what was measured on one device.

    Start-up, then per epoch the steps of one device and a third of a step (its forward pass) per test batch. Loader,
    other devices and the method itself are not in it: it is a guess.
    """
    batch = configuration.planned.batch_size
    times = probe.step_milliseconds(configuration.planned.model)
    if not times:
        return probe.startup_seconds
    nearest = min(times, key=lambda size: abs(size - batch))
    seconds_per_image = times[nearest] / nearest / 1000
    trained = min(probe.train_images, (settings["max_steps"] or probe.train_images) * batch)
    return probe.startup_seconds + settings["epochs"] * seconds_per_image * (trained + probe.test_images / 3)


def seconds_left(left, outcomes: tuple[Outcome, ...], guesses: dict[str, float]) -> float:
    """Return how long the runs that are left, (block, name) pairs, may take, after the given outcomes.

    A configuration that has run takes as long as before; the others their guess times the mean error of the guesses.
    """
    seen: dict[str, list[float]] = {}
    for outcome in outcomes:
        seen.setdefault(outcome.configuration, []).append(outcome.wall_seconds)
    error = 1.0
    if outcomes:
        error = sum(outcome.wall_seconds for outcome in outcomes) / sum(
            guesses[outcome.configuration] for outcome in outcomes
        )
    return sum(statistics.mean(seen[name]) if name in seen else error * guesses[name] for _, name in left)


def guesses_of(report: Report, **settings) -> dict[str, float]:
    """Return how long one run of every row may take, by its name; settings: of the comparison, that are others now."""
    return {row.name: guess_seconds(row, {**report.settings, **settings}, report.probe) for row in report.plan}


def shorter_command(report: Report) -> str | None:
    """Return, as a sentence, the command that answers the same question in fewer epochs and steps.

    None where the comparison is not long, goes on with what was measured, or is about whole trainings.
    """
    whole_trainings = report.settings.get("target_accuracy") is not None or report.settings.get("fit_batch")
    if whole_trainings or report.outcomes or (expected := _seconds_in_all(report)) <= LONG:
        return None
    epochs = min(2, report.settings["epochs"])
    times = {steps: _seconds_in_all(report, epochs=epochs, max_steps=steps) for steps in SHORTER}
    steps = next((steps for steps, seconds in times.items() if seconds <= SHORT), SHORTER[-1])
    if times[steps] > expected / 2:
        return None
    typed = [word for word in shlex.split(report.command) if word not in ("--dry-run", "--resume")]
    command = shlex.join([*typed, "--epochs", str(epochs), "--max-steps", str(steps)])
    return f"Which row is fastest, this tells in about {duration(times[steps])}:\n{command}"


def _seconds_in_all(report, **settings):
    guesses = guesses_of(report, **settings)
    return sum(guesses[name] for _, name in report.order)
