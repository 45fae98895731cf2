"""Every table of a report, as tabulate lays it out. A number that was not measured is a dash."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tabulate import tabulate

from comparison.judge.analysis import Analysis
from comparison.judge.choice import Sweep
from comparison.judge.fairness import EFFECTIVE, effective
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Excess
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import words_of
from comparison.record import Report
from comparison.rows import SWEEPS, CardUse, trials_of
from comparison.show.sentences import efficiency, longer, mebibytes
from comparison.words import count, join, named, narrowed, render, say, widened

DASH = "–"


def cell(value: Any, pattern: str = "") -> str:
    """Return `value` in a format, or a dash for None."""
    return DASH if value is None else value if isinstance(value, str) else format(value, pattern)


@dataclass(frozen=True)
class Column:
    """A column of a table. find: from what a row is about, its value, None for a dash; `pattern` formats it."""

    heading: str
    find: Callable[[Any], Any]
    pattern: str = ""
    left: bool = False


def number(heading: str, path: str, pattern: str = "") -> Column:
    """Return the column of an attribute of an attribute …, in a format."""
    return Column(heading, attrgetter(path), pattern)


METHOD = Column("Method", lambda entry: entry.label, left=True)
RESULT = Column("Result", lambda entry: entry.result, left=True)
EPOCH = number("Time per epoch (s)", "summary.epoch_seconds", ".2f")
RATE = number("Images/s", "summary.images_per_second", ",.0f")
TOTAL = number("Total time (s)", "summary.total_seconds", ".1f")
ACCURACY = Column("Accuracy (%)", lambda entry: accuracy(entry.summary.accuracies))


def cells_of(items: Iterable, columns: Sequence[Column]) -> list[list[str]]:
    """Return the header of a table, and the cells of a row for each of `items`."""
    rows = [[cell(column.find(item), column.pattern) for column in columns] for item in items]
    return [[column.heading for column in columns], *rows]


def table_of(items: Iterable, columns: Sequence[Column], tablefmt: str) -> str:
    """Return a table with a row for each of `items`; nothing where there are none."""
    header, *rows = cells_of(items, columns)
    left = tuple(place for place, column in enumerate(columns) if column.left)
    return lay_out(rows, header, tablefmt, left) if rows else ""


def lay_out(rows: Iterable[Iterable], header: Iterable[str], tablefmt: str, left: tuple[int, ...] = (0,)) -> str:
    """Return a table with the columns `left` aligned to the left and the others to the right."""
    header, *rows = ([widened(render(text)) for text in row] for row in (header, *rows))
    aligned = ["left" if column in left else "right" for column in range(len(header))]
    if tablefmt == "github":  # a bar would end the cell
        header, *rows = ([text.replace("|", "\\|") for text in row] for row in (header, *rows))
    # tabulate 0.9 cannot align the columns of no rows
    return narrowed(tabulate(rows, header, tablefmt, disable_numparse=True, colalign=aligned if rows else None))


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


def _memory(entry):
    return entry.summary.memory and mebibytes(entry.summary.memory.peak)


def main_table(analysis: Analysis, tablefmt: str) -> str:
    """Return one line per row: times, speed-up with its interval, and what that means."""
    report, target = analysis.report, _target(analysis.report)
    swept = [_swept(name) for name in report.swept]
    batch = Column("Largest batch", attrgetter("row.configuration.planned.batch_size"), ",")
    speed_up = say("Speed-up [95 %]") if target is None else say("Speed-up to {n:g} % [95 %]", n=target)
    energy = number("Images/J", "summary.images_per_joule", ".1f")
    columns = [
        Column("Method", lambda entry: named(entry.row.configuration.label), left=True),
        *swept,
        *([batch] if report.fitted else []),
        Column("Data set", lambda entry: report.settings["dataset"], left=True),
        Column("Devices", lambda entry: len(entry.row.results[0].devices) if entry.row.results else None),
        ACCURACY,
        *([] if target is None else [Column(say("Training to {n:g} % (s)", n=target), target_cell)]),
        EPOCH,
        Column("min–max", _range),
        number("Runs", "summary.runs"),
        RATE,
        Column(speed_up, attrgetter("standing.speed_up")),
        Column("Efficiency [95 %]", lambda entry: entry.standing.efficiency and efficiency(entry.standing.efficiency)),
        TOTAL,
        Column("Peak memory (MiB)", _memory),
        *([energy] if any(entry.summary.images_per_joule for entry in analysis.rows) else []),
        *([Column("max |Δ parameter|", lambda entry: _difference(report, entry), ".1e")] if report.equivalence else []),
        RESULT,
    ]
    return table_of(analysis.rows, columns, tablefmt)


def answer_columns(analysis: Analysis, narrow: bool = False) -> list[Column]:
    """Return the columns of the table of what is judged; narrow: with intervals on lines of their own."""
    target = _target(analysis.report)
    time = RATE
    if target is not None:
        time = Column(say("Training to\n{n:g} % (s)", n=target), target_cell)
    elif analysis.same_images:
        time = number("Epoch\n(s)", "summary.epoch_seconds", ".2f")
    before = "\n[" if narrow else " ["
    batch = Column("Largest\nbatch", attrgetter("row.configuration.planned.batch_size"), ",")
    return [
        METHOD,
        *([batch] if analysis.report.fitted else []),
        time,
        number("Total\n(s)", "summary.total_seconds", ".1f"),
        Column("Speed-up\n[95 %]", lambda entry: cell(entry.standing.speed_up).replace(" [", before)),
        Column("Memory\n(MiB)", _memory),
        Column("Accuracy\n(%)", ACCURACY.find),
        RESULT,
    ]


def _target(report):
    """The accuracy in percent that rows are trained to, if so."""
    target = report.settings.get("target_accuracy")
    return None if target is None else 100 * target


def _swept(name):
    return Column(SWEEPS[name], lambda entry: entry.row.configuration.values.get(name))


def _range(entry):
    numbers = entry.summary
    return f"{numbers.fastest_epoch:.2f}–{numbers.slowest_epoch:.2f}" if entry.row.results else None


def target_cell(entry: RowAnalysis) -> str:
    """Return how long the training to the target accuracy took, with its interval, and how many runs missed it."""
    missed = len(entry.row.missed)
    if not entry.row.results:
        return "not reached" if missed else DASH
    mean, interval = f"{entry.summary.training_seconds:.2f}", entry.summary.training_interval
    if interval:
        mean += f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    runs = count(len(entry.row.outcomes), "run")
    return say("{mean} (not reached by {n} of {runs})", mean=mean, n=missed, runs=runs) if missed else mean


def _difference(report, entry):
    check = report.equivalence.get(entry.row.configuration.name)
    return check and check.difference


def settings_table(report: Report, tablefmt: str) -> str:
    """Return what should be equal, as every row's own runs reported it."""
    columns = [METHOD, *map(_setting, EFFECTIVE)]
    return table_of([row for row in report.rows if row.results], columns, tablefmt) or say("No run ended well.")


def _setting(name):
    return Column(words_of(name).capitalize(), lambda row: str(effective(row.results[0])[name]))


def sweep_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return one table for each swept setting and method: waiting and the rest of a step, times, accuracy."""
    return [_sweep_table(analysis, sweep, tablefmt) for sweep in analysis.sweeps]


def _sweep_table(analysis: Analysis, sweep: Sweep, tablefmt):
    ratios = dict(zip([entry.label for entry in sweep.rows[1:]], map(longer, sweep.ratios), strict=True))
    of_first = {"time": analysis.report.asked.capital, "value": sweep.value(sweep.rows[0])}
    if sweep.name == "model":  # another training
        ratios = {}
    columns = [
        Column("Method", lambda entry: entry.row.label_without(sweep.name), left=True),
        _swept(sweep.name),
        number("Waiting for data (ms/step)", "summary.phases.data", ".1f"),
        Column("Rest of the step (ms)", lambda some: some.summary.step_milliseconds - some.summary.phases.data, ".1f"),
        EPOCH,
        RATE,
        TOTAL,
        ACCURACY,
        Column(say("{time} ÷ that at {value} [95 %]", **of_first), lambda entry: ratios.get(entry.label), left=True),
    ]
    return table_of(sweep.rows, columns, tablefmt)


BEFORE_COLUMNS = (
    Column("Method", lambda pair: pair.row.label, left=True),
    number("Before (s per epoch)", "summary.epoch_seconds", ".2f"),
    number("Now (s per epoch)", "row.summary.epoch_seconds", ".2f"),
    number("Times as fast [95 %]", "ratio"),
    Column(
        "Result",
        lambda pair: pair.ratio.words if pair.ratio else say("not compared: they train other numbers of images"),
        left=True,
    ),
    Column("Now differs in", lambda pair: join("; ", pair.differences), left=True),
)


def before_table(analysis: Analysis, tablefmt: str) -> str:
    """Return how fast every row is beside the same one before, and what differs between the two besides the code."""
    return table_of(analysis.pairs[BEFORE], BEFORE_COLUMNS, tablefmt)


def account_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return where a step takes longer than an even share of the baseline's, and a run than the baseline's own."""
    compared = [entry for entry in analysis.rows if entry.accounts.steps]
    kinds = (("steps", "Step (ms)", "Even share (ms)"), ("runs", "Start to end (s)", "Baseline's (s)"))
    return [_account_table(compared, *kind, tablefmt) for kind in kinds] if compared else []


def _account_table(entries, kind, value, expected, tablefmt):
    parts = [{part.name: part for part in getattr(entry.accounts, kind).parts} for entry in entries]
    names = dict.fromkeys(name for row in sorted(parts, key=len, reverse=True) for name in row)
    columns = [
        METHOD,
        number(value, f"accounts.{kind}.value", ".2f"),
        number(expected, f"accounts.{kind}.expected", ".2f"),
        Column("Difference [95 %]", lambda entry: signed(getattr(entry.accounts, kind).total)),
        *(_part(kind, name) for name in names),
    ]
    return table_of(entries, columns, tablefmt)


def _part(kind, name):
    def find(entry):
        return next((signed(part) for part in getattr(entry.accounts, kind).parts if part.name == name), None)

    return Column(name.capitalize(), find)


def signed(excess: Excess) -> str:
    """Return how much more or less something takes, and half of the interval."""
    return f"{excess.value:+.2f}" + ("" if excess.margin is None else f" ± {excess.margin:.2f}")


def rank_table(analysis: Analysis, tablefmt: str) -> str:
    """Return every rank's mean step, and what it had of the cores; nothing where that was not kept."""
    ranks = [(entry.label, *rank) for entry in analysis.rows for rank in enumerate(entry.accounts.ranks)]
    columns = (
        Column("Method", lambda item: item[0], left=True),
        Column("Rank", lambda item: item[1]),
        Column("Step (ms)", lambda item: item[2].step, ".2f"),
        Column("Its own work (ms)", lambda item: item[2].work, ".2f"),
        Column("Exchange (ms)", lambda item: item[2].exchange, ".2f"),
        Column("Cores it kept busy", lambda item: item[2].cpu / item[2].step, ".2f"),
        Column("Without a core (%)", lambda item: item[2].queued and 100 * item[2].queued / item[2].step, ".2f"),
    )
    return table_of(ranks, columns, tablefmt)


def memory_table(analysis: Analysis, tablefmt: str) -> str:
    """Return what all devices of each row and one of them hold, beside the row's time; nothing where no row tells."""
    held = [entry for entry in analysis.done if entry.summary.memory]
    names = next((tuple(entry.summary.memory.parts) for entry in held if entry.summary.memory.parts), ())
    columns = [
        METHOD,
        EPOCH,
        Column("All devices (MiB)", lambda entry: mebibytes(entry.summary.memory.together)),
        Column("Peak (MiB)", _memory),
        *map(_held, names),
        Column("The rest", lambda entry: mebibytes(entry.summary.memory.rest) if entry.summary.memory.parts else None),
    ]
    return table_of(held, columns, tablefmt) if names else ""


def _held(name):
    def find(entry):
        return mebibytes(entry.summary.memory.parts[name]) if entry.summary.memory.parts else None

    return Column(name.capitalize(), find)


def card_table(analysis: Analysis, tablefmt: str) -> str:
    """Return what every GPU did in the timed epochs, means over the runs; nothing where NVML was not there to tell."""
    cards = []
    for entry in analysis.done:
        runs = [outcome for outcome in entry.row.outcomes if outcome.status == "ok" and outcome.cards]
        uses = zip(*(outcome.cards for outcome in runs), strict=True)
        reserved = zip(*(outcome.result.reserved_memory_bytes for outcome in runs), strict=True)
        cards += [(entry.label, *both) for both in zip(uses, reserved, strict=True)]
    columns = (
        Column("Method", lambda card: card[0], left=True),
        Column("GPU", lambda card: card[1][0].device, left=True),
        _card("Any kernel runs", "busy", ".0%"),
        Column("Reserved by PyTorch (MiB)", lambda card: mebibytes(statistics.mean(card[2]))),
        Column("In use by all (MiB)", lambda card: (size := _mean(card, "memory_bytes")) and mebibytes(size)),
        _card("Power (W)", "watts", ".0f"),
        _card("Energy (J per epoch)", "joules", ",.1f"),
        _card("Clock (MHz)", "megahertz", ",.0f"),
        _card("Held down by heat or power", "held_down", ".0%"),
        _card("Another program computes", "foreign", ".0%"),
    )
    return table_of(cards, columns, tablefmt)


def _card(heading, name, pattern):
    return Column(heading, lambda card: _mean(card, name), pattern)


def _mean(card: tuple[str, tuple[CardUse, ...], tuple[int, ...]], name):
    known = [getattr(use, name) for use in card[1] if getattr(use, name) is not None]
    return statistics.mean(known) if known else None


PROJECTED = (
    number("Devices", "devices"),
    number("One device's step (ms)", "step.compute", ".1f"),
    number("All-reduce (ms)", "step.all_reduce", ".2f"),
    number("Loader's limit (ms)", "step.loading", ".1f"),
    number("Cores' limit (ms)", "step.cores", ".1f"),
    number("Epoch, projected, not measured (s)", "epoch_seconds", ".2f"),
    number("Speed-up, projected", "speed_up", ".2f"),
    number("Speed-up along trees, projected", "tree", ".2f"),
    number("Epoch, measured (s)", "measured_seconds", ".2f"),
    number("Error of the projection", "error", "+.0%"),
)


def projection_table(analysis: Analysis, tablefmt: str) -> str:
    """Return the projection beside what was measured; the heading says that it is none. Nothing where there is none."""
    return table_of(analysis.projection.points, PROJECTED, tablefmt)


def class_table(report: Report, tablefmt: str) -> str:
    """Return the accuracy per class in percent, mean over the runs."""
    done = [row for row in report.rows if row.results and not row.times_only and _classes_known(row)]
    columns = [Column("class", lambda name: name, left=True), *map(_of_class, done)]
    return table_of(done[0].results[0].class_accuracy, columns, tablefmt) if done else say("Not known for any row.")


def _classes_known(row):
    return all(None not in (result.class_accuracy or {"": None}).values() for result in row.results)


def _of_class(row):
    results = row.results
    return Column(row.label, lambda name: 100 * statistics.mean(one.class_accuracy[name] for one in results), ".1f")


def trial_table(analysis: Analysis, tablefmt: str) -> str:
    """Return every batch that a row was tried with to find its largest; nothing where none was."""
    rows, trials = analysis.report.rows, analysis.report.trials
    columns = (
        Column("Method", lambda item: item[0].label, left=True),
        Column("Batch", lambda item: item[1].batch_size, ","),
        Column("Peak (MiB)", lambda item: item[1].peak_bytes and mebibytes(item[1].peak_bytes)),
        Column("Result", lambda item: say("fits") if item[1].fits else item[1].status, left=True),
    )
    return table_of([(row, trial) for row in rows for trial in trials_of(row.configuration, trials)], columns, tablefmt)


def epoch_table(report: Report, tablefmt: str) -> str:
    """Return every epoch of every run, in the order in which the runs ended."""
    labels = {row.configuration.name: row.label for row in report.all_rows}
    columns = (
        Column("block", lambda item: item[0].block),
        Column("method", lambda item: labels[item[0].configuration], left=True),
        Column("epoch", lambda item: item[1].epoch),
        Column("training (s)", lambda item: item[1].train_seconds, ".2f"),
        Column("training loss", lambda item: item[1].train_loss, ".4f"),
        Column("test accuracy (%)", lambda item: 100 * item[1].test_accuracy, ".2f"),
        Column("", lambda item: _remark(report, *item), left=True),
    )
    runs = [outcome for outcome in report.outcomes if outcome.result]
    return table_of([(outcome, epoch) for outcome in runs for epoch in outcome.result.epochs], columns, tablefmt)


def _remark(report, outcome, epoch):
    if outcome.status != "ok":
        return outcome.status
    if outcome.block in report.set_aside:
        return say("does not count")
    return "" if epoch in outcome.result.timed_epochs else say("warm-up")
