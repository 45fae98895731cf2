"""Every table of a report, as tabulate lays it out. A number that was not measured is a dash."""

import statistics

from tabulate import tabulate

from common.results import training_seconds
from comparison.fairness import effective, standing
from comparison.plan import SWEEPS
from comparison.projection import LABEL, project
from comparison.record import Report, Row
from comparison.statistics import DISTURBED, phase_milliseconds, summarize, timed_epochs
from comparison.verdict import longer, sweep_groups

DASH = "–"


def cell(value: object, pattern: str = "") -> str:
    """Return `value` in a format, or a dash for None."""
    return DASH if value is None else format(value, pattern)


def percent(share: float | None) -> str:
    """Return a share in percent with two decimals, or a dash."""
    return DASH if share is None else f"{100 * share:.2f}"


def lay_out(rows: list, header: tuple | list, tablefmt: str, left: tuple[int, ...] = (0,)) -> str:
    """Return a table with the columns `left` aligned to the left and the others to the right."""
    aligned = ["left" if column in left else "right" for column in range(len(header))]
    if tablefmt == "github":  # a bar would end the cell
        header, *rows = ([str(text).replace("|", "\\|") for text in row] for row in (header, *rows))
    # tabulate 0.9 cannot align the columns of no rows
    return tabulate(rows, header, tablefmt=tablefmt, disable_numparse=True, colalign=aligned if rows else None)


def main_table(report: Report, tablefmt: str) -> str:
    """Return one line per row: times, speed-up with its interval, and what that means."""
    swept = [SWEEPS[name] for name in report.swept]
    maths = ["max |Δ parameter|"] if report.maths else []
    target = report.settings.get("target_accuracy")
    reached = [] if target is None else [f"Training to {100 * target:g} % (s)"]
    header = ["Method", *swept, "Data set", "Devices", "Accuracy (%)", *reached, "Time per epoch (s)", "min–max",
              "Runs", "Images/s", "Speed-up [95 %]", "Efficiency", "Total time (s)", *maths, "Result"]
    rows = [_main_cells(report, row) for row in report.rows]
    return lay_out(rows, header, tablefmt, left=(0, len(swept) + 1, len(header) - 1))


def _main_cells(report, row):
    numbers, stands = summarize(row), standing(report, row)
    devices = len(row.results[0].devices) if row.results else None
    measured = numbers.epoch_seconds is not None
    return [
        row.configuration.label, *(cell(row.configuration.values.get(name)) for name in report.swept),
        report.settings["dataset"], cell(devices),
        percent(numbers.accuracy), *([_target_cell(row)] if report.settings.get("target_accuracy") is not None else []),
        cell(numbers.epoch_seconds, ".2f"),
        f"{numbers.fastest_epoch:.2f}–{numbers.slowest_epoch:.2f}" if measured else DASH,
        str(numbers.runs), cell(numbers.images_per_second, ",.0f"), cell(stands.speed_up),
        cell(stands.efficiency(row), ".0%"),
        cell(numbers.total_seconds, ".1f"), *([_maths_cell(report, row)] if report.maths else []),
        result_words(report, row),
    ]


def _target_cell(row):
    missed = sum(outcome.status == "not reached" for outcome in row.outcomes)
    if not row.results:
        return "not reached" if missed else DASH
    median = f"{statistics.median(training_seconds(result) for result in row.results):.2f}"
    return f"{median} (not reached by {missed} of {len(row.outcomes)} runs)" if missed else median


def _maths_cell(report, row):
    found = report.maths.get(row.configuration.name)
    if found is None or found["difference"] is None:
        return DASH
    return f"{found['difference']:.1e}" + (" (BatchNorm)" if found["status"] == "expected" else "")


def result_words(report: Report, row: Row) -> str:
    """Return in words what became of a row: its failures, whether it is comparable, faster or slower."""
    words = []
    if row.configuration.skip:
        return "skipped"
    check = report.maths.get(row.configuration.name, {})
    if check.get("status") == "failed":
        words.append("failed: " + ("computes something else" if check["difference"] else "not checked"))
    if row.troubles:
        words.append(f"{len(row.troubles)} of {len(row.outcomes)} runs {row.troubles[0].status}")
    if not row.results:
        return "; ".join(words) or "not run"
    stands = standing(report, row)
    if stands.unequal and report.settings["allow_unequal"]:
        words.append("UNEQUAL (" + ", ".join(stands.unequal) + ")")
    if stands.baseline is row:
        words += ["baseline", *([DISTURBED] if row.disturbed else [])]
    elif stands.speed_up:
        words.append(stands.speed_up.words)
    elif row.simulated:
        words.append("simulated")
    elif stands.unequal and not report.settings["allow_unequal"]:
        words.append(stands.reason)
    if row.all_cores:
        words.append(f"{row.results[0].threads_per_process} threads")
    return "; ".join(words) or "ok"


def settings_table(report: Report, tablefmt: str) -> str:
    """Return what should be equal, as every row's own runs reported it."""
    done = [row for row in report.rows if row.results]
    if not done:
        return "No run ended well."
    header = ["Method", *effective(done[0].results[0])]
    rows = [[row.label, *map(str, effective(row.results[0]).values())] for row in done]
    return lay_out(rows, [header[0], *(name.capitalize() for name in header[1:])], tablefmt)


def sweep_tables(report: Report, tablefmt: str) -> list[str]:
    """Return one table for each swept setting and method: waiting and the rest of a step, times, accuracy."""
    tables = []
    for name in report.swept:
        for rows in sweep_groups(report, name):
            lines = []
            for row in rows:
                numbers, phases = summarize(row), phase_milliseconds(row)
                first = row is rows[0]
                lines.append([
                    row.configuration.label + row.values(without=name), str(row.configuration.values[name]),
                    f"{phases['data']:.1f}",
                    f"{sum(phases.values()) - phases['data']:.1f}", f"{numbers.epoch_seconds:.2f}",
                    f"{numbers.total_seconds:.1f}", percent(numbers.accuracy),
                    DASH if first or name == "model" else longer(row, rows[0])])
            header = ("Method", SWEEPS[name], "Waiting for data (ms/step)", "Rest of the step (ms)",
                      "Time per epoch (s)", "Total time (s)", "Accuracy (%)",
                      f"Times as long as at {rows[0].configuration.values[name]} [95 %]")
            tables.append(lay_out(lines, header, tablefmt, left=(0, 7)))
    return tables


def projection_table(report: Report, tablefmt: str) -> str:
    """Return the projection beside what was measured; the heading says that it is none."""
    header = ("Devices", f"Step, {LABEL} (ms)", "All-reduce (ms)", "Loader's limit (ms)", f"Epoch, {LABEL} (s)",
              "Speed-up, projected", "Epoch, measured (s)", "Error of the projection")
    rows = [[str(one.devices), f"{one.step_milliseconds:.1f}", f"{one.all_reduce_milliseconds:.2f}",
             f"{one.loader_milliseconds:.1f}", f"{one.epoch_seconds:.2f}", f"{one.speed_up:.2f}",
             cell(one.measured_seconds, ".2f"), cell(one.error, "+.0%")] for one in project(report)]
    return lay_out(rows, header, tablefmt, left=())


def class_table(report: Report, tablefmt: str) -> str:
    """Return the accuracy per class in percent, mean over the runs."""
    done = [row for row in report.rows if row.results and not row.times_only
            and all(None not in (result.class_accuracy or {"": None}).values() for result in row.results)]
    if not done:
        return "Not known for any row."
    rows = [(name, *(f"{100 * statistics.mean(result.class_accuracy[name] for result in row.results):.1f}"
                     for row in done)) for name in done[0].results[0].class_accuracy]
    return lay_out(rows, ("class", *(row.label for row in done)), tablefmt)


def epoch_table(report: Report, tablefmt: str) -> str:
    """Return every epoch of every run, in the order in which they ran."""
    labels = {row.configuration.name: row.label for row in report.rows}
    rows = [(outcome.block, labels[outcome.configuration], epoch.epoch, f"{epoch.train_seconds:.2f}",
             f"{epoch.train_loss:.4f}", f"{100 * epoch.test_accuracy:.2f}",
             outcome.status.replace("ok", "" if epoch in timed_epochs(outcome.result) else "warm-up"))
            for outcome in report.outcomes if outcome.result for epoch in outcome.result.epochs]
    header = ("block", "method", "epoch", "training (s)", "training loss", "test accuracy (%)", "")
    return lay_out(rows, header, tablefmt, left=(1, 6))
