"""The comparison as a table for the terminal, and as report.md, results.json and results.csv."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

from common.results import write_json
from comparison.launch import Outcome
from comparison.statistics import Summary, summarize, timed_epochs

SCHEMA_VERSION = 1
BASELINE = "single"
DASH = "–"
COLUMNS = ("Method", "Data set", "Devices", "Accuracy (%)", "Time per epoch (s)", "Total time (s)", "Images/s",
           "Speed-up", "Status")


@dataclass(frozen=True)
class Report:
    """A comparison: the command that made it, the settings that all rows share, the machine, and each row's outcome."""

    command: str
    settings: dict
    environment: dict
    outcomes: tuple[Outcome, ...]

    @property
    def baseline(self) -> Outcome | None:
        """The row that speed-ups refer to, if it was asked for."""
        return next((outcome for outcome in self.outcomes if outcome.method == BASELINE), None)

    @property
    def title(self) -> str:
        """Model, data set and batch in one line."""
        settings = self.settings
        return f"{settings['model']} on {settings['dataset']}, global batch {settings['batch_size']}, " \
               f"{settings['epochs']} epoch(s)"


def write_results(report: Report, directory: Path) -> None:
    """Write results.json: all that is known so far, raw."""
    write_json({"schema_version": SCHEMA_VERSION, **asdict(report)}, directory / "results.json")


def table(report: Report, tablefmt: str) -> str:
    """Return the table in one of tabulate's formats."""
    from tabulate import tabulate

    rows = [_cells(outcome, summarize(outcome, report.baseline), report.settings["dataset"])
            for outcome in report.outcomes]
    aligned = ["left", "left", *["right"] * 6, "left"]
    return tabulate(rows, COLUMNS, tablefmt=tablefmt, disable_numparse=True, colalign=aligned)


def _cells(outcome: Outcome, summary: Summary, dataset: str) -> list[str]:
    def cell(value, pattern):
        return DASH if value is None else format(value, pattern)

    accuracy = None if summary.accuracy is None else 100 * summary.accuracy
    devices = DASH if outcome.result is None else str(len(outcome.result.devices))
    simulated = outcome.status == "ok" and outcome.result.simulated
    return [
        outcome.label, dataset, devices, cell(accuracy, ".2f"), cell(summary.epoch_seconds, ".2f"),
        cell(outcome.wall_seconds, ".1f"), cell(summary.images_per_second, ",.0f"), cell(summary.speed_up, ".2f"),
        "simulated" if simulated else outcome.status,
    ]


def notes(report: Report) -> list[str]:
    """Return what a reader must know beside the table, one sentence or row's reason each."""
    found = [f"{outcome.label}: {outcome.status}: {outcome.reason}" if outcome.status != "ok"
             else f"{outcome.label}: {outcome.reason}" for outcome in report.outcomes if outcome.reason]
    baseline = report.baseline
    if baseline is None:
        found.append(f"No speed-ups: the baseline, {BASELINE}, is not among the methods.")
    elif baseline.status != "ok":
        found.append(f"No speed-ups: the baseline, {BASELINE}, is {baseline.status}.")
    else:
        found.append(f"Speed-up: the median time per epoch of “{baseline.label}” divided by that of the row. "
                     "One run of each row: there is no interval, and a small difference may be chance.")
    if any(outcome.result and outcome.result.simulated for outcome in report.outcomes):
        found.append("Simulated rows stand in for devices that are not there: they show that the method computes "
                     "the same, not how fast it would be, and have no speed-up.")
    if report.settings["dataset"].startswith("synthetic"):
        found.append(f"{report.settings['dataset']} is synthetic: its accuracies say nothing about real images.")
    return found


def definitions(report: Report) -> list[str]:
    """Return how the numbers are defined."""
    warm_up = "the first epoch warms up and is left out" if report.settings["epochs"] > 1 else "of the only epoch"
    return [
        "Time per epoch: training only, from asking for the first batch until all devices are idle, of the slowest "
        f"rank; the median over the epochs ({warm_up}). Evaluation is not in it.",
        "Total time: from starting the command to its end, with imports, start-up, evaluation and figures.",
        "Batch size and workers are totals over all devices, equal in every row. On a CPU, a device is "
        f"{_threads(report)} thread(s).",
        "Accuracies need not coincide between methods: ranks augment with streams of their own, the order of additions "
        "differs, and BatchNorm, where the model has it, keeps statistics per device (and per micro-batch).",
    ]


def _threads(report):
    return next((outcome.result.threads_per_process for outcome in report.outcomes if outcome.result), DASH)


def write_csv(report: Report, path: Path) -> None:
    """Write one line per row: settings that matter, status, derived numbers; empty where nothing was measured."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = None
        for outcome in report.outcomes:
            row = {
                "method": outcome.method, "label": outcome.label, "dataset": report.settings["dataset"],
                "model": report.settings["model"], "status": outcome.status, "reason": outcome.reason,
                "simulated": bool(outcome.result and outcome.result.simulated),
                "devices": len(outcome.result.devices) if outcome.result else None,
                "total_seconds": outcome.wall_seconds, **asdict(summarize(outcome, report.baseline)),
                "command": outcome.command,
            }
            if writer is None:
                writer = csv.DictWriter(file, row)
                writer.writeheader()
            writer.writerow(row)


def write_markdown(report: Report, path: Path, figures: list[Path]) -> None:
    """Write the report for people."""
    from tabulate import tabulate

    environment = [(name, ", ".join(value) if isinstance(value, list) else value)
                   for name, value in report.environment.items() if value]
    parts = [
        f"# {report.title}", f"Made by `{report.command}`.",
        table(report, "github"), _bullets(notes(report)),
        "## How the numbers are defined", _bullets(definitions(report)),
        "## Figures", *(f"![{figure.stem}]({figure.name})" for figure in figures),
        "## Accuracy per class (%)", _class_table(report),
        "## Every epoch", _epoch_table(report),
        "## Machine", tabulate(environment, ("what", "found"), tablefmt="github", disable_numparse=True),
        "## Commands", "```\n" + "\n".join(outcome.command for outcome in report.outcomes) + "\n```",
    ]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _bullets(sentences):
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _class_table(report):
    from tabulate import tabulate

    done = [outcome for outcome in report.outcomes if outcome.status == "ok"]
    if not done:
        return "No run ended well."
    rows = [(name, *(f"{100 * outcome.result.class_accuracy[name]:.1f}" for outcome in done))
            for name in done[0].result.class_accuracy]
    return tabulate(rows, ("class", *(outcome.label for outcome in done)), tablefmt="github", disable_numparse=True)


def _epoch_table(report):
    from tabulate import tabulate

    rows = [(outcome.label, epoch.epoch, f"{epoch.train_seconds:.2f}", f"{epoch.train_loss:.4f}",
             f"{100 * epoch.test_accuracy:.2f}", "" if epoch in timed_epochs(outcome) else "warm-up")
            for outcome in report.outcomes if outcome.result for epoch in outcome.result.epochs]
    header = ("method", "epoch", "training (s)", "training loss", "test accuracy (%)", "")
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)
