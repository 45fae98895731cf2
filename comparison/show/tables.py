"""Layout of tables, and the two tables with the result. A row is a dictionary from heading to cell."""

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tabulate import tabulate

from comparison.judge.analysis import Analysis
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, WHOLE_RUN
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, Ratio
from comparison.plan.counterparts import BEFORE
from comparison.rows import SWEEPS
from comparison.show.sentences import efficiency, in_seconds, mebibytes, seconds_of_thousand, significant, time_asked
from comparison.words import count, named, narrowed, render, say, widened

DASH = "–"  # not measured
TEXT_COLUMNS = ("Method", "method", "class", "Data set", "GPU", "Result", "Now differs in", "Option", "Typed", "")
TIME_HEADINGS = {WHOLE_RUN: say("Whole run (s)"), PER_EPOCH: say("Epoch (s)"), PER_SAMPLES: say("s/1,000 samples")}
Rows = Iterator[dict[str, Any]]


# ---- layout


def cell(value: Any, how: str | Callable[[Any], str] = "") -> str:
    """Return `value` formatted by a format spec or a function; a string stays as it is, and None becomes a dash."""
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    return format(value, how) if isinstance(how, str) else how(value)


def cells_of(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return the headings and then the cells of each row; an empty list without rows."""
    rows = list(rows)
    return [list(rows[0]), *(list(map(cell, row.values())) for row in rows)] if rows else []


def table_of(rows: Iterable[dict[str, Any]], tablefmt: str) -> str:
    """Return a table in one of tabulate's formats; an empty string without rows."""
    header, *cells = cells_of(rows) or [[]]
    left = [place for place, heading in enumerate(header) if heading in TEXT_COLUMNS or " ÷ that " in heading]
    return lay_out(cells, header, tablefmt, left)


def lay_out(rows: Iterable[Iterable], header: Iterable[str], tablefmt: str, left: Sequence[int] = (0,)) -> str:
    """Return a table whose columns `left` are aligned left and all others right; an empty string without rows."""
    header, *rows = ([widened(render(text)) for text in row] for row in (header, *rows))
    if not rows:
        return ""
    if tablefmt == "github":  # a bar would end the cell
        header, *rows = ([text.replace("|", "\\|") for text in row] for row in (header, *rows))
    aligned = ["left" if column in left else "right" for column in range(len(header))]
    return narrowed(tabulate(rows, header, tablefmt, disable_numparse=True, colalign=aligned))


def table(rows: Callable[[Any], Rows]) -> Callable[[Any, str], str]:
    """Turn a generator of rows into a function that returns the table in one of tabulate's formats."""
    return functools.wraps(rows)(lambda compared, tablefmt: table_of(rows(compared), tablefmt))


def accuracy(accuracies: tuple[float, ...]) -> str:
    """Return the mean over the runs in percent, with the standard deviation.

    The last digit is the first significant one of the standard deviation, with at most two decimals. A single run has
    one decimal.
    """
    if not accuracies or math.isnan(sum(accuracies)):  # a run whose script was observed has none
        return DASH
    mean = 100 * statistics.mean(accuracies)
    if len(accuracies) == 1:
        return f"{mean:.1f}"
    deviation = 100 * statistics.stdev(accuracies)
    digits = min(2, max(0, -math.floor(math.log10(deviation)))) if deviation else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


# ---- the result


def main_rows(analysis: Analysis) -> Rows:
    """Yield each row's times, its speed-up with the interval, and the conclusion."""
    report, target = analysis.report, _target(analysis.report)
    scripts = report.only_scripts
    speed_up = say("Speed-up [95%]") if target is None else say("Speed-up to {n:g}% [95%]", n=target)
    joules = any(entry.summary.images_per_joule for entry in analysis.rows)
    peaks = any(entry.summary.mfu for entry in analysis.rows)
    recommended = any(decision.kind == "use" for decision in analysis.decisions)
    for entry in analysis.rows:
        row, numbers, memory = entry.row, entry.summary, entry.summary.memory
        check, batch = report.equivalence.get(entry.name), row.configuration.planned.batch_size if row.results else None
        if scripts:
            times = {
                "Time per 1,000 samples (s)": significant(seconds_of_thousand(entry)) if row.results else None,
                "Samples per step": row.results[0].global_batch_size if row.results else None,
            }
        else:
            ends = numbers.epoch_seconds, numbers.fastest_epoch, numbers.slowest_epoch
            epoch, fastest, slowest = (cell(time, in_seconds) for time in ends)
            times = {"Time per epoch (s)": epoch, "min–max": f"{fastest}–{slowest}" if numbers.epoch_seconds else None}
        yield {
            "Method": named(row.configuration.label),
            **{SWEEPS[name]: row.configuration.values.get(name) for name in report.swept},
            **({"Largest batch": cell(batch, ",")} if report.fitted else {}),
            "Data set": None if row.configuration.is_script else report.settings["dataset"],
            "Devices": len(row.results[0].devices) if row.results else None,
            "Accuracy (%)": accuracy(numbers.accuracies),
            **({} if target is None else {say("Training to {n:g}% (s)", n=target): _time_to_target(entry)}),
            **times,
            "Runs": numbers.runs,
            "Samples/s" if scripts else "Images/s": cell(numbers.images_per_second, significant),
            speed_up: entry.standing.speed_up,
            **({"Relative time [95%]": analysis.ratio_to_best(entry)} if recommended else {}),
            "Efficiency [95%]": cell(entry.standing.efficiency, efficiency),
            "Total time (s)": cell(numbers.total_seconds, ".1f"),
            "Peak memory (MiB)": memory and mebibytes(memory.peak),
            **({"MFU (%)": cell(numbers.mfu, lambda share: significant(100 * share, 2))} if peaks else {}),
            **({"Samples/J" if scripts else "Images/J": cell(numbers.images_per_joule, significant)} if joules else {}),
            **({"max |Δ parameter|": cell(check and check.difference, ".1e")} if report.equivalence else {}),
            "Result": entry.result,
        }


main_table = table(main_rows)


def answer_rows(analysis: Analysis) -> Rows:
    """Yield what decides, fastest first; an excluded row has the reason instead of numbers."""
    report, decided = analysis.report, bool(analysis.decisions[0].ratios)
    wall_time = analysis.decisions[0].wall_time
    heading = TIME_HEADINGS.get(wall_time.kind) or say("To {n:g}% accuracy (s)", n=_target(report))
    if wall_time.kind == PER_EPOCH and report.cut_steps and report.probe:
        heading = say("Whole epoch (s)")  # extrapolated
    before = {pair.row.name: pair.ratio for pair in analysis.pairs[BEFORE]}
    for entry in fastest_first(analysis):
        numbers, memory = entry.summary, entry.summary.memory
        has = numbers.runs and (wall_time.kind == PER_SAMPLES or not entry.row.configuration.is_script)
        values: dict[str, Any] = {
            **({"Largest batch": f"{entry.row.configuration.planned.batch_size:,}"} if report.fitted else {}),
            heading: significant(wall_time.means[entry.name]) if has else None,
            **({say("Relative [95% CI]"): _ratio_cell(analysis.ratio_to_best(entry))} if decided else {}),
            **({"Speed ÷ before [95% CI]": _ratio_cell(before.get(entry.name))} if before else {}),
            "Memory (MiB)": memory and mebibytes(memory.together),
            **({} if decided else {"Speed-up [95%]": _ratio_cell(entry.standing.speed_up)}),
            **({} if report.only_scripts else {"Accuracy (%)": accuracy(numbers.accuracies)}),
        }
        excluded = _exclusion(analysis, entry)
        shown = dict.fromkeys(values) if excluded else values
        yield {"Method": entry.label, **shown, "Result": excluded or _conclusion(analysis, entry)}


def _conclusion(analysis, entry):
    """Compare a row with the best one by the time that decides; otherwise, return the row's own result."""
    if entry.row.times_only:
        return say("diagnostic: exchanges no gradients")
    decision = next((one for one in analysis.decisions if entry.name in one.ratios), None)
    if not decision:
        return entry.result
    ratio = decision.ratios[entry.name]
    if ratio == Ratio(1.0):
        if entry.row.disturbed:
            return say("disturbed")
        return say("recommended") if entry is decision.best and decision.kind == "use" else say("fastest")
    if ratio.words == FASTER:  # the ratio is of times
        return say("slower")
    return ratio.words if ratio.disturbed or ratio.low is None else say("tied")


def _ratio_cell(ratio):
    """Return a ratio, without its interval if other programs disturbed the runs."""
    return say("{x:.2f} disturbed", x=ratio.value) if ratio and ratio.disturbed else ratio


def _exclusion(analysis, entry):
    """Return why a row has no time or must not be recommended; "" if it may be."""
    row = entry.row
    if row.configuration.skip:
        return say("skipped: {why}", why=named(row.configuration.skip))
    if not row.results:
        failed = row.troubles[:1]
        return say("{trouble}: {why}", trouble=entry.result, why=failed[0].reason) if failed else entry.result
    for decision in analysis.decisions:
        if entry.name in decision.ineligible:
            return say("excluded: {why}", why=decision.ineligible[entry.name])
    if row.configuration.is_script and not analysis.report.only_scripts and not analysis.ratio_to_best(entry):
        return time_asked(analysis, entry)  # in another unit than the column
    simulated = entry.result if row.simulated else ""  # begins with what is wrong, if anything is
    return say("simulated: speed not measured") if simulated.startswith("simulated") else simulated


def fastest_first(analysis: Analysis) -> list[RowAnalysis]:
    """Return the rows training by training, each by the time that decides, and finally the rows without that time."""

    def order(entry):
        for number, decision in enumerate(analysis.decisions):
            if entry.name in decision.ratios:
                return number, decision.ratios[entry.name].value
        timed = entry.row.results and not entry.row.simulated
        return len(analysis.decisions) + (not timed), entry.summary.asked_seconds or math.inf

    return sorted(analysis.rows, key=order)


def _target(report):
    """The target accuracy in percent, or None."""
    target = report.settings.get("target_accuracy")
    return None if target is None else 100 * target


def _time_to_target(entry):
    """The training time to the target accuracy, with its interval and the number of runs that missed the target."""
    missed = len(entry.row.missed)
    if not entry.row.results:
        return "not reached" if missed else DASH
    mean, interval = in_seconds(entry.summary.training_seconds), entry.summary.training_interval
    if interval:
        mean += f" [{', '.join(map(in_seconds, interval))}]"
    runs = count(len(entry.row.outcomes), "run")
    return say("{mean} (not reached by {n} of {runs})", mean=mean, n=missed, runs=runs) if missed else mean
