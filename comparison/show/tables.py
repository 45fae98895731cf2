"""Every table of a report, as tabulate lays it out. A number that was not measured is a dash."""

import math
import statistics
from dataclasses import fields

from tabulate import tabulate

from common.words import count
from comparison.judge.analysis import Analysis
from comparison.judge.fairness import EFFECTIVE, effective
from comparison.judge.projection import LABEL
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.steps import Excess
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import words_of
from comparison.record import Report
from comparison.rows import SWEEPS, CardUse, trials_of
from comparison.show.language import narrowed, say, widened
from comparison.show.phrases import efficiency, longer, mebibytes

DASH = "–"


def cell(value: object, pattern: str = "") -> str:
    """Return `value` in a format, or a dash for None."""
    return DASH if value is None else format(value, pattern)


def accuracy(accuracies: tuple[float, ...]) -> str:
    """Return the mean over the runs in percent, with the digits and the standard deviation that they deserve.

    The last digit is the first of the standard deviation, of two decimals at most; of one run, a tenth of a percent.
    """
    if not accuracies:
        return DASH
    mean = 100 * statistics.mean(accuracies)
    if len(accuracies) == 1:
        return f"{mean:.1f}"
    deviation = 100 * statistics.stdev(accuracies)
    digits = min(2, max(0, -math.floor(math.log10(deviation)))) if deviation else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def lay_out(rows: list, header: tuple | list, tablefmt: str, left: tuple[int, ...] = (0,)) -> str:
    """Return a table with the columns `left` aligned to the left and the others to the right."""
    header, *rows = ([say(str(text)) for text in row] for row in (header, *rows))
    aligned = ["left" if column in left else "right" for column in range(len(header))]
    if tablefmt == "github":  # a bar would end the cell
        header, *rows = ([text.replace("|", "\\|") for text in row] for row in (header, *rows))
    header, *rows = ([widened(text) for text in row] for row in (header, *rows))
    # tabulate 0.9 cannot align the columns of no rows
    table = tabulate(rows, header, tablefmt=tablefmt, disable_numparse=True, colalign=aligned if rows else None)
    return narrowed(table)


def main_table(analysis: Analysis, tablefmt: str) -> str:
    """Return one line per row: times, speed-up with its interval, and what that means."""
    report = analysis.report
    swept = [*(SWEEPS[name] for name in report.swept), *(["Largest batch"] if report.fitted else [])]
    difference = ["max |Δ parameter|"] if report.equivalence else []
    target = report.settings.get("target_accuracy")
    energy = ["Images/J"] if _energy_known(analysis) else []
    reached = [] if target is None else [f"Training to {100 * target:g} % (s)"]
    header = [
        "Method",
        *swept,
        "Data set",
        "Devices",
        "Accuracy (%)",
        *reached,
        "Time per epoch (s)",
        "min–max",
        "Runs",
        "Images/s",
        f"Speed-up{'' if target is None else f' to {100 * target:g} %'} [95 %]",
        "Efficiency [95 %]",
        "Total time (s)",
        "Peak memory (MiB)",
        *energy,
        *difference,
        "Result",
    ]
    rows = [_main_cells(analysis, entry) for entry in analysis.rows]
    return lay_out(rows, header, tablefmt, left=(0, len(swept) + 1, len(header) - 1))


def _energy_known(analysis):
    return any(entry.summary.images_per_joule for entry in analysis.rows)


def _main_cells(analysis, entry):
    report, row, numbers, standing = analysis.report, entry.row, entry.summary, entry.standing
    return [
        row.configuration.label,
        *(cell(row.configuration.values.get(name)) for name in report.swept),
        *([f"{row.configuration.planned.batch_size:,}"] if report.fitted else []),
        report.settings["dataset"],
        cell(len(row.results[0].devices) if row.results else None),
        accuracy(numbers.accuracies),
        *([target_cell(entry)] if report.settings.get("target_accuracy") is not None else []),
        cell(numbers.epoch_seconds, ".2f"),
        f"{numbers.fastest_epoch:.2f}–{numbers.slowest_epoch:.2f}" if row.results else DASH,
        str(numbers.runs),
        cell(numbers.images_per_second, ",.0f"),
        cell(standing.speed_up),
        cell(standing.efficiency and efficiency(standing.efficiency)),
        cell(numbers.total_seconds, ".1f"),
        cell(numbers.memory and mebibytes(numbers.memory.peak)),
        *([cell(numbers.images_per_joule, ".1f")] if _energy_known(analysis) else []),
        *([_difference_cell(report, row)] if report.equivalence else []),
        entry.result,
    ]


def target_cell(entry: RowAnalysis) -> str:
    """Return how long the training to the target accuracy took, with its interval, and how many runs missed it."""
    missed = len(entry.row.missed)
    if not entry.row.results:
        return "not reached" if missed else DASH
    mean, interval = f"{entry.summary.training_seconds:.2f}", entry.summary.training_interval
    if interval:
        mean += f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    return f"{mean} (not reached by {missed} of {count(len(entry.row.outcomes), 'run')})" if missed else mean


def _difference_cell(report, row):
    check = report.equivalence.get(row.configuration.name)
    if check is None or check.difference is None:
        return DASH
    return f"{check.difference:.1e}"


def settings_table(report: Report, tablefmt: str) -> str:
    """Return what should be equal, as every row's own runs reported it."""
    done = [row for row in report.rows if row.results]
    if not done:
        return "No run ended well."
    header = ["Method", *(words_of(name).capitalize() for name in EFFECTIVE)]
    rows = [[row.label, *map(str, effective(row.results[0]).values())] for row in done]
    return lay_out(rows, header, tablefmt)


def sweep_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return one table for each swept setting and method: waiting and the rest of a step, times, accuracy."""
    return [_sweep_table(analysis, sweep, tablefmt) for sweep in analysis.sweeps]


def _sweep_table(analysis, sweep, tablefmt):
    ratios = [DASH] * len(sweep.rows) if sweep.name == "model" else [DASH, *map(longer, sweep.ratios)]
    rows = []
    for entry, ratio in zip(sweep.rows, ratios, strict=True):
        numbers = entry.summary
        rows.append(
            [
                entry.row.configuration.label + entry.row.values(without=sweep.name),
                str(sweep.value(entry)),
                f"{numbers.phases.data:.1f}",
                f"{numbers.step_milliseconds - numbers.phases.data:.1f}",
                f"{numbers.epoch_seconds:.2f}",
                f"{numbers.images_per_second:,.0f}",
                f"{numbers.total_seconds:.1f}",
                accuracy(numbers.accuracies),
                ratio,
            ]
        )
    header = (
        "Method",
        SWEEPS[sweep.name],
        "Waiting for data (ms/step)",
        "Rest of the step (ms)",
        "Time per epoch (s)",
        "Images/s",
        "Total time (s)",
        "Accuracy (%)",
        f"{analysis.report.asked.capitalize()} ÷ that at {sweep.value(sweep.rows[0])} [95 %]",
    )
    return lay_out(rows, header, tablefmt, left=(0, 8))


def before_rows(analysis: Analysis) -> list[list[str]]:
    """Return how fast every row is beside the same one before, and what differs between the two besides the code."""
    return [
        [
            pair.row.label,
            cell(pair.summary.epoch_seconds, ".2f"),
            cell(pair.row.summary.epoch_seconds, ".2f"),
            cell(pair.ratio),
            pair.ratio.words if pair.ratio else "not compared: they train other numbers of images",
            "; ".join(pair.differences),
        ]
        for pair in analysis.pairs[BEFORE]
    ]


def before_table(analysis: Analysis, tablefmt: str) -> str:
    """Return before_rows() as a table."""
    header = ("Method", "Before (s per epoch)", "Now (s per epoch)", "Times as fast [95 %]", "Result", "Now differs in")
    return lay_out(before_rows(analysis), header, tablefmt, left=(0, 4, 5))


def account_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return where a step takes longer than an even share of the baseline's, and a run than the baseline's own."""
    compared = [entry for entry in analysis.rows if entry.accounts.steps]
    if not compared:
        return []
    return [
        _account_table(
            [(entry.label, entry.accounts.steps) for entry in compared],
            ("Method", "Step (ms)", "Even share (ms)", "Difference [95 %]"),
            tablefmt,
        ),
        _account_table(
            [(entry.label, entry.accounts.runs) for entry in compared],
            ("Method", "Start to end (s)", "Baseline's (s)", "Difference [95 %]"),
            tablefmt,
        ),
    ]


def _account_table(accounts, header, tablefmt):
    parts = [{part.name: part for part in account.parts} for _, account in accounts]
    names = list(dict.fromkeys(name for row in sorted(parts, key=len, reverse=True) for name in row))
    rows = [
        [
            label,
            f"{account.value:.2f}",
            f"{account.expected:.2f}",
            signed(account.total),
            *(signed(row[name]) if name in row else DASH for name in names),
        ]
        for (label, account), row in zip(accounts, parts, strict=True)
    ]
    return lay_out(rows, [*header, *(name.capitalize() for name in names)], tablefmt)


def signed(excess: Excess) -> str:
    """Return how much more or less something takes, and half of the interval."""
    return f"{excess.value:+.2f}" + ("" if excess.margin is None else f" ± {excess.margin:.2f}")


def rank_table(analysis: Analysis, tablefmt: str) -> str:
    """Return every rank's mean step, and what it had of the cores; nothing where that was not kept."""
    rows = [
        [
            entry.label,
            str(rank),
            f"{means.step:.2f}",
            f"{means.work:.2f}",
            f"{means.exchange:.2f}",
            f"{means.cpu / means.step:.2f}",
            cell(means.queued and 100 * means.queued / means.step, ".2f"),
        ]
        for entry in analysis.rows
        for rank, means in enumerate(entry.accounts.ranks)
    ]
    header = (
        "Method",
        "Rank",
        "Step (ms)",
        "Its own work (ms)",
        "Exchange (ms)",
        "Cores it kept busy",
        "Without a core (%)",
    )
    return lay_out(rows, header, tablefmt) if rows else ""


def memory_table(analysis: Analysis, tablefmt: str) -> str:
    """Return what all devices of each row and one of them hold, beside the row's time; nothing where no row tells."""
    held = [(entry, entry.summary.memory) for entry in analysis.done if entry.summary.memory]
    names = next((tuple(memory.parts) for _, memory in held if memory.parts), ())
    rows = [
        [
            entry.label,
            cell(entry.summary.epoch_seconds, ".2f"),
            mebibytes(memory.together),
            mebibytes(memory.peak),
            *(map(mebibytes, (*memory.parts.values(), memory.rest)) if memory.parts else [DASH] * (len(names) + 1)),
        ]
        for entry, memory in held
    ]
    header = (
        "Method",
        "Time per epoch (s)",
        "All devices (MiB)",
        "Peak (MiB)",
        *(name.capitalize() for name in names),
        "The rest",
    )
    return lay_out(rows, header, tablefmt) if names else ""


def card_table(analysis: Analysis, tablefmt: str) -> str:
    """Return what every GPU did in the timed epochs, means over the runs; nothing where NVML was not there to tell."""
    rows = []
    for entry in analysis.done:
        runs = [outcome for outcome in entry.row.outcomes if outcome.status == "ok" and outcome.cards]
        reserved = zip(*(outcome.result.reserved_memory_bytes for outcome in runs), strict=True)
        for cards, kept in zip(zip(*(outcome.cards for outcome in runs), strict=True), reserved, strict=True):
            known = {
                field.name: [getattr(card, field.name) for card in cards if getattr(card, field.name) is not None]
                for field in fields(CardUse)
            }
            means = {
                name: statistics.mean(values) if values else None for name, values in known.items() if name != "device"
            }
            rows.append(
                [
                    entry.label,
                    cards[0].device,
                    cell(means["busy"], ".0%"),
                    mebibytes(statistics.mean(kept)),
                    cell(means["memory_bytes"] and mebibytes(means["memory_bytes"])),
                    cell(means["watts"], ".0f"),
                    cell(means["joules"], ",.1f"),
                    cell(means["megahertz"], ",.0f"),
                    cell(means["held_down"], ".0%"),
                    cell(means["foreign"], ".0%"),
                ]
            )
    header = (
        "Method",
        "GPU",
        "Any kernel runs",
        "Reserved by PyTorch (MiB)",
        "In use by all (MiB)",
        "Power (W)",
        "Energy (J per epoch)",
        "Clock (MHz)",
        "Held down by heat or power",
        "Another program computes",
    )
    return lay_out(rows, header, tablefmt, left=(0, 1)) if rows else ""


def projection_table(analysis: Analysis, tablefmt: str) -> str:
    """Return the projection beside what was measured; the heading says that it is none. Nothing where there is none."""
    header = (
        "Devices",
        "One device's step (ms)",
        "All-reduce (ms)",
        "Loader's limit (ms)",
        "Cores' limit (ms)",
        f"Epoch, {LABEL} (s)",
        "Speed-up, projected",
        "Speed-up along trees, projected",
        "Epoch, measured (s)",
        "Error of the projection",
    )
    rows = [
        [
            str(point.devices),
            f"{point.step.compute:.1f}",
            f"{point.step.all_reduce:.2f}",
            f"{point.step.loading:.1f}",
            cell(point.step.cores, ".1f"),
            f"{point.epoch_seconds:.2f}",
            f"{point.speed_up:.2f}",
            f"{point.tree:.2f}",
            cell(point.measured_seconds, ".2f"),
            cell(point.error, "+.0%"),
        ]
        for point in analysis.projection.points
    ]
    return lay_out(rows, header, tablefmt, left=()) if rows else ""


def class_table(report: Report, tablefmt: str) -> str:
    """Return the accuracy per class in percent, mean over the runs."""
    done = [
        row
        for row in report.rows
        if row.results
        and not row.times_only
        and all(None not in (result.class_accuracy or {"": None}).values() for result in row.results)
    ]
    if not done:
        return "Not known for any row."
    rows = [
        (name, *(f"{100 * statistics.mean(result.class_accuracy[name] for result in row.results):.1f}" for row in done))
        for name in done[0].results[0].class_accuracy
    ]
    return lay_out(rows, ("class", *(row.label for row in done)), tablefmt)


def trial_table(analysis: Analysis, tablefmt: str) -> str:
    """Return every batch that a row was tried with to find its largest; nothing where none was."""
    rows = [
        [
            row.label,
            f"{trial.batch_size:,}",
            cell(trial.peak_bytes and mebibytes(trial.peak_bytes)),
            "fits" if trial.fits else trial.status,
        ]
        for row in analysis.report.rows
        for trial in trials_of(row.configuration, analysis.report.trials)
    ]
    return lay_out(rows, ("Method", "Batch", "Peak (MiB)", "Result"), tablefmt, left=(0, 3)) if rows else ""


def epoch_table(report: Report, tablefmt: str) -> str:
    """Return every epoch of every run, in the order in which the runs ended."""
    labels = {row.configuration.name: row.label for row in report.all_rows}
    rows = [
        (
            outcome.block,
            labels[outcome.configuration],
            epoch.epoch,
            f"{epoch.train_seconds:.2f}",
            f"{epoch.train_loss:.4f}",
            f"{100 * epoch.test_accuracy:.2f}",
            _remark(report, outcome, epoch),
        )
        for outcome in report.outcomes
        if outcome.result
        for epoch in outcome.result.epochs
    ]
    header = ("block", "method", "epoch", "training (s)", "training loss", "test accuracy (%)", "")
    return lay_out(rows, header, tablefmt, left=(1, 6))


def _remark(report, outcome, epoch):
    if outcome.status != "ok":
        return outcome.status
    if outcome.block in report.set_aside:
        return "does not count"
    return "" if epoch in outcome.result.timed_epochs else "warm-up"
