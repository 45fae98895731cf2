"""Every table of a report: its rows, each a dictionary from heading to cell, as tabulate lays them out."""

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tabulate import tabulate

from comparison.judge.analysis import WORTH, Analysis
from comparison.judge.fairness import EFFECTIVE, effective
from comparison.judge.measures import PER_EPOCH, PER_SAMPLES, WHOLE_RUN
from comparison.judge.ranks import hidden_share
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER, Excess, Ratio
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import words_of
from comparison.plan.tips import OPTIONS, effect_of, flags_of
from comparison.record import Report
from comparison.rows import SWEEPS, trials_of
from comparison.show.sentences import efficiency, longer, mebibytes, seconds, seconds_of_thousand
from comparison.words import count, join, named, narrowed, render, say, widened

MOST_EPOCHS = 1000  # in a table
DASH = "–"  # what was not measured
LEFT = (
    "Method",
    "method",
    "class",
    "Data set",
    "GPU",
    "Result",
    "Now differs in",
    "Option",
    "Typed",
    "",
)  # the columns of texts
BESIDE_BEST = say("Relative [95% CI]")
HEADINGS = {
    WHOLE_RUN: say("Whole run (s)"),
    PER_EPOCH: say("Epoch (s)"),
    PER_SAMPLES: say("s/1,000 samples"),
}  # of the time that decides
Rows = Iterator[dict[str, Any]]


def cell(value: Any, how: str | Callable[[Any], str] = "") -> str:
    """Return `value` in a format, or as a function writes it; a dash for None."""
    if value is None or isinstance(value, str):
        return DASH if value is None else value
    return format(value, how) if isinstance(how, str) else how(value)


def cells_of(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return the headings of a table and the cells of each row; nothing of no rows."""
    rows = list(rows)
    return [list(rows[0]), *(list(map(cell, row.values())) for row in rows)] if rows else []


def table_of(rows: Iterable[dict[str, Any]], tablefmt: str) -> str:
    """Return a table of rows, in one of tabulate's formats; nothing of no rows."""
    header, *cells = cells_of(rows) or [[]]
    left = [place for place, heading in enumerate(header) if heading in LEFT or " ÷ that " in heading]
    return lay_out(cells, header, tablefmt, left)


def lay_out(rows: Iterable[Iterable], header: Iterable[str], tablefmt: str, left: Sequence[int] = (0,)) -> str:
    """Return a table with the columns `left` aligned to the left, the others to the right; nothing of no rows."""
    header, *rows = ([widened(render(text)) for text in row] for row in (header, *rows))
    aligned = ["left" if column in left else "right" for column in range(len(header))]
    if tablefmt == "github":  # a bar would end the cell
        header, *rows = ([text.replace("|", "\\|") for text in row] for row in (header, *rows))
    return narrowed(tabulate(rows, header, tablefmt, disable_numparse=True, colalign=aligned)) if rows else ""


def table(rows: Callable[[Any], Rows]) -> Callable[[Any, str], str]:
    """Return the function of a comparison, and one of tabulate's formats, that makes a table of `rows`."""
    return functools.wraps(rows)(lambda compared, tablefmt: table_of(rows(compared), tablefmt))


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


def main_rows(analysis: Analysis) -> Rows:
    """One line per row: times, speed-up with its interval, and what that means."""
    report, target = analysis.report, _target(analysis.report)
    speed_up = say("Speed-up [95%]") if target is None else say("Speed-up to {n:g}% [95%]", n=target)
    scripts = report.only_scripts
    gpus = any(entry.summary.images_per_joule for entry in analysis.rows)
    peaks = any(entry.summary.mfu for entry in analysis.rows)
    decided = any(decision.kind == "use" for decision in analysis.decisions)
    for entry in analysis.rows:
        row, numbers, memory = entry.row, entry.summary, entry.summary.memory
        check = report.equivalence.get(entry.name)
        yield {
            "Method": named(row.configuration.label),
            **{SWEEPS[name]: row.configuration.values.get(name) for name in report.swept},
            **({"Largest batch": f"{row.configuration.planned.batch_size:,}"} if report.fitted else {}),
            "Data set": None if row.configuration.is_script else report.settings["dataset"],
            "Devices": len(row.results[0].devices) if row.results else None,
            "Accuracy (%)": accuracy(numbers.accuracies),
            **({} if target is None else {say("Training to {n:g}% (s)", n=target): target_cell(entry)}),
            **(_script_times(entry) if scripts else _epoch_times(entry)),
            "Runs": numbers.runs,
            "Samples/s" if scripts else "Images/s": cell(numbers.images_per_second, ",.0f"),
            speed_up: entry.standing.speed_up,
            **({"Relative time [95%]": analysis.beside_best(entry)} if decided else {}),
            "Efficiency [95%]": cell(entry.standing.efficiency, efficiency),
            "Total time (s)": cell(numbers.total_seconds, ".1f"),
            "Peak memory (MiB)": memory and mebibytes(memory.peak),
            **({"MFU (%)": cell(numbers.mfu and 100 * numbers.mfu, "#.2g")} if peaks else {}),
            **({"Images/J": cell(numbers.images_per_joule, ".1f")} if gpus else {}),
            **({"max |Δ parameter|": cell(check and check.difference, ".1e")} if report.equivalence else {}),
            "Result": entry.result,
        }


def _epoch_times(entry):
    numbers, results = entry.summary, entry.row.results
    return {
        "Time per epoch (s)": cell(numbers.epoch_seconds, ".2f"),
        "min–max": f"{numbers.fastest_epoch:.2f}–{numbers.slowest_epoch:.2f}" if results else None,
    }


def _script_times(entry):
    results = entry.row.results
    return {
        "Time per 1,000 samples (s)": f"{seconds_of_thousand(entry):#.3g}" if results else None,
        "Samples per step": results[0].global_batch_size if results else None,
    }


def answer_rows(analysis: Analysis) -> Rows:
    """The table of what decides, fastest first; of a row that may not be used, the reason in place of numbers."""
    wall_time, scripts = analysis.decisions[0].wall_time, analysis.report.only_scripts
    heading = HEADINGS.get(wall_time.kind) or say("To {n:g}% accuracy (s)", n=_target(analysis.report))
    before, decided = {pair.row.name: pair.ratio for pair in analysis.pairs[BEFORE]}, analysis.decisions[0].ratios
    for entry in fastest_first(analysis):
        numbers, memory, why = entry.summary, entry.summary.memory, _why_not(analysis, entry)
        batch = entry.row.configuration.planned.batch_size
        values: dict[str, Any] = {
            **({"Largest batch": f"{batch:,}"} if analysis.report.fitted else {}),
            heading: numbers.runs and seconds(wall_time.means[entry.name]),
            **({BESIDE_BEST: _claimed(analysis.beside_best(entry))} if decided else {}),
            **({"Speed ÷ before [95% CI]": _claimed(before.get(entry.name))} if before else {}),
            "Memory (MiB)": memory and mebibytes(memory.together),
            **({} if decided else {"Speed-up [95%]": _claimed(entry.standing.speed_up)}),
            **({} if scripts else {"Accuracy (%)": accuracy(numbers.accuracies)}),
        }
        shown = dict.fromkeys(values) if why else values
        yield {"Method": entry.label, **shown, "Result": why or _beside_best(analysis, entry)}


def _beside_best(analysis, entry):
    """How a row stands beside the best, by the time that decides; its other result where it is not compared so."""
    if entry.row.times_only:
        return say("diagnostic: exchanges no gradients")
    decision = next((one for one in analysis.decisions if entry.name in one.ratios), None)
    if not decision or entry.standing.unequal or entry.row.troubles:
        return entry.result
    ratio = decision.ratios[entry.name]
    if ratio == Ratio(1.0):
        if entry.row.disturbed:
            return say("disturbed")
        return say("recommended") if entry is decision.best and decision.kind == "use" else say("fastest")
    return say("slower") if ratio.words == FASTER else ratio.words if ratio.disturbed else say("tied")


def _claimed(ratio):
    """A ratio with its interval, which claims nothing of a disturbed one."""
    return say("{x:.2f} disturbed", x=ratio.value) if ratio and ratio.disturbed else ratio


def _why_not(analysis, entry):
    """Why a row has no numbers that decide, or must not be used; nothing if it may."""
    row = entry.row
    if row.configuration.skip:
        return say("skipped: {why}", why=named(row.configuration.skip))
    if not row.results:
        return (
            say("{trouble}: {why}", trouble=entry.result, why=row.troubles[0].reason) if row.troubles else entry.result
        )
    why = next((decision.out[entry.name] for decision in analysis.decisions if entry.name in decision.out), "")
    if why:
        return say("excluded: {why}", why=why)
    return say("simulated: speed not measured") if row.simulated else ""


def fastest_first(analysis: Analysis) -> list[RowAnalysis]:
    """Return the rows of each training by the time that decides, and at the end those without it."""

    def place(entry):
        for number, decision in enumerate(analysis.decisions):
            if entry.name in decision.ratios:
                return number, decision.ratios[entry.name].value
        timed = entry.row.results and not entry.row.simulated
        return len(analysis.decisions) + (not timed), entry.summary.asked_seconds or math.inf

    return sorted(analysis.rows, key=place)


def _target(report):
    """The accuracy in percent that rows are trained to, if so."""
    target = report.settings.get("target_accuracy")
    return None if target is None else 100 * target


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


@table
def settings_table(report: Report) -> Rows:
    """What should be equal, as every row's own runs reported it."""
    for row in report.rows:
        if row.results:
            settings = effective(row.results[0])
            yield {"Method": row.label, **{words_of(name).capitalize(): str(settings[name]) for name in EFFECTIVE}}


def sweep_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return one table for each swept setting and method: waiting and the rest of a step, times, accuracy."""
    return [table_of(_sweep_rows(analysis, sweep), tablefmt) for sweep in analysis.sweeps]


def _sweep_rows(analysis, sweep):
    heading = say(
        "{time} ÷ that at {value} [95%]", time=analysis.report.asked.capital, value=sweep.value(sweep.rows[0])
    )
    ratios = ["", *map(longer, sweep.ratios)]
    for entry, ratio in zip(sweep.rows, ratios, strict=True):
        numbers = entry.summary
        yield {
            "Method": entry.row.label_without(sweep.name),
            SWEEPS[sweep.name]: sweep.value(entry),
            "Waiting for data (ms/step)": f"{numbers.phases.data:.1f}",
            "Rest of the step (ms)": f"{numbers.step_milliseconds - numbers.phases.data:.1f}",
            "Time per epoch (s)": f"{numbers.epoch_seconds:.2f}",
            "Images/s": f"{numbers.images_per_second:,.0f}",
            "Total time (s)": f"{numbers.total_seconds:.1f}",
            "Accuracy (%)": accuracy(numbers.accuracies),
            heading: DASH if sweep.name == "model" or not ratio else ratio,  # another model is another training
        }


def before_rows(analysis: Analysis) -> Rows:
    """How fast every row is beside the same one before, and what differs between the two besides the code."""
    unlike, scripts = say("not compared: they train other numbers of images"), analysis.report.only_scripts
    for pair in analysis.pairs[BEFORE]:
        both = pair.summary, pair.row.summary
        times = [f"{1000 / some.images_per_second:.3g}" if scripts else f"{some.epoch_seconds:.2f}" for some in both]
        yield {
            "Method": pair.row.label,
            "Before (s per 1,000 samples)" if scripts else "Before (s per epoch)": times[0],
            "Now (s per 1,000 samples)" if scripts else "Now (s per epoch)": times[1],
            "Times as fast [95%]": pair.ratio,
            "Result": pair.ratio.words if pair.ratio else unlike,
            "Now differs in": join("; ", pair.differences),
        }


def projected_rows(analysis: Analysis) -> Rows:
    """The projection beside what was measured; the headings say that it is none."""
    for point in analysis.projection.points:
        yield {
            "Devices": point.devices,
            "One device's step (ms)": f"{point.step.compute:.1f}",
            "All-reduce (ms)": f"{point.step.all_reduce:.2f}",
            "Loader's limit (ms)": f"{point.step.loading:.1f}",
            "Cores' limit (ms)": cell(point.step.cores, ".1f"),
            "Epoch, projected, not measured (s)": cell(point.epoch_seconds, ".2f"),
            "Speed-up, projected": cell(point.speed_up, ".2f"),
            "Speed-up along trees, projected": cell(point.tree, ".2f"),
            "Epoch, measured (s)": cell(point.measured_seconds, ".2f"),
            "Error of the projection": cell(point.error, "+.0%"),
        }


def tip_rows(analysis: Analysis) -> Rows:
    """What options make of the row to use, what each does to its accuracy, and how it is typed."""
    for tip in sorted(analysis.tips, key=lambda tip: -tip.speed):
        variables = [OPTIONS[name].variable for name in tip.options if OPTIONS[name].variable]
        yield {
            "Option": join(" + ", tip.options),
            "Times as fast [95%]": tip.ratio,
            "Launches": len(tip.row.outcomes),
            "Effect on accuracy": effect_of(tip.options),
            "Typed": " ".join([*variables, flags_of(tip.options, analysis.report.environment["cores"])]).strip(),
            "Result": _of_tip(tip),
        }


def _of_tip(tip):
    if tip.row.configuration.skip:
        return say("skipped: {why}", why=named(tip.row.configuration.skip))
    if tip.row.troubles and not tip.row.results:
        return say("{trouble}: {why}", trouble=tip.row.troubles[0].status, why=tip.row.troubles[0].reason)
    few = tip.ratio and tip.ratio.low is None and tip.speed < WORTH
    return say("no gain in its first launch") if few else tip.ratio and tip.ratio.words


main_table, before_table, projection_table, tip_table = map(table, (main_rows, before_rows, projected_rows, tip_rows))


def account_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return where a step is above ideal scaling, and a run above the baseline's own."""
    steps = {entry.label: entry.accounts.steps for entry in analysis.rows if entry.accounts.steps}
    runs = {entry.label: entry.accounts.runs for entry in analysis.rows if entry.accounts.runs}
    rows = (
        _account_rows(steps, say("Step (ms)"), say("Ideal (ms)")),
        _account_rows(runs, say("Start to end (s)"), say("Baseline's (s)")),
    )
    return [table_of(own, tablefmt) for own in rows] if steps else []


def _account_rows(accounts, value, expected):
    longest_first = sorted((account.parts for account in accounts.values()), key=len, reverse=True)
    names = dict.fromkeys(part.name for parts in longest_first for part in parts)
    for label, account in accounts.items():
        parts = {part.name: signed(part) for part in account.parts}
        yield {
            "Method": label,
            value: f"{account.value:.2f}",
            expected: f"{account.expected:.2f}",
            "Difference [95%]": signed(account.total),
            **{name.capitalize(): parts.get(name) for name in names},
        }


def signed(excess: Excess) -> str:
    """Return how much more or less something takes, and half of the interval."""
    return f"{excess.value:+.2f}" + ("" if excess.margin is None else f" ± {excess.margin:.2f}")


@table
def rank_table(analysis: Analysis) -> Rows:
    """Every rank's mean step, and what it had of the cores; nothing where that was not kept."""
    traced = analysis.report.timelines
    for entry in analysis.rows:
        for number, rank in enumerate(entry.accounts.ranks):
            hidden = hidden_share(traced.get(entry.name, ()), number)
            yield {
                "Method": entry.label,
                "Rank": number,
                "Step (ms)": f"{rank.step:.2f}",
                "Its own work (ms)": f"{rank.work:.2f}",
                "Exchange (ms)": f"{rank.exchange:.2f}",
                **({"Exchange hidden": cell(hidden, ".0%")} if traced else {}),
                "Cores it kept busy": f"{rank.cpu / rank.step:.2f}",
                "Without a core (%)": None if rank.queued is None else f"{100 * rank.queued / rank.step:.2f}",
            }


@table
def memory_table(analysis: Analysis) -> Rows:
    """What all devices of each row and one of them hold, beside the row's time; nothing where no row tells."""
    held = [(entry, entry.summary.memory) for entry in analysis.done if entry.summary.memory]
    names = next((memory.parts for _, memory in held if memory.parts), {})
    for entry, memory in held if names else ():
        yield {
            "Method": entry.label,
            "Time per epoch (s)": f"{entry.summary.epoch_seconds:.2f}",
            "All devices (MiB)": mebibytes(memory.together),
            "Peak (MiB)": mebibytes(memory.peak),
            **{name.capitalize(): cell(memory.parts.get(name), mebibytes) for name in names},
            "The rest": mebibytes(memory.rest) if memory.parts else None,
        }


@table
def card_table(analysis: Analysis) -> Rows:
    """What every GPU did in the timed epochs, means over the runs; nothing where NVML was not there to tell."""
    for entry in analysis.done:
        runs = [outcome for outcome in entry.row.outcomes if outcome.status == "ok" and outcome.cards]
        reserved = zip(*(outcome.result.reserved_memory_bytes for outcome in runs), strict=True)
        for uses, own in zip(zip(*(outcome.cards for outcome in runs), strict=True), reserved, strict=True):
            yield {
                "Method": entry.label,
                "GPU": uses[0].device,
                "Any kernel runs": _mean(uses, "busy", ".0%"),
                "Reserved by PyTorch (MiB)": mebibytes(statistics.mean(own)),
                "Its processes have (MiB)": _mean(uses, "memory_bytes", mebibytes),
                "Power (W)": _mean(uses, "watts", ".0f"),
                "Energy (J per epoch)": _mean(uses, "joules", ",.1f"),
                "Clock (MHz)": _mean(uses, "megahertz", ",.0f"),
                "Held down by heat or power": _mean(uses, "held_down", ".0%"),
                "Another program computes": _mean(uses, "foreign", ".0%"),
            }


def _mean(uses, name, how):
    known = [getattr(use, name) for use in uses if getattr(use, name) is not None]
    return cell(statistics.mean(known), how) if known else None


@table
def class_table(report: Report) -> Rows:
    """The accuracy per class in percent, mean over the runs; nothing where no row tells."""
    rows = [row for row in report.rows if row.results and not row.times_only and _classes_known(row)]
    for name in rows[0].results[0].class_accuracy if rows else ():
        means = [statistics.mean(result.class_accuracy[name] for result in row.results) for row in rows]
        yield {"class": name, **{row.label: f"{100 * mean:.1f}" for row, mean in zip(rows, means, strict=True)}}


def _classes_known(row):
    return all(None not in (result.class_accuracy or {"": None}).values() for result in row.results)


@table
def trial_table(analysis: Analysis) -> Rows:
    """Every batch that a row was tried with to find its largest; nothing where none was."""
    for row in analysis.report.rows:
        for trial in trials_of(row.configuration, analysis.report.trials):
            yield {
                "Method": row.label,
                "Batch": f"{trial.batch_size:,}",
                "Peak (MiB)": trial.peak_bytes and mebibytes(trial.peak_bytes),
                "Result": say("fits") if trial.fits else trial.status,
            }


@table
def epoch_table(report: Report) -> Rows:
    """Every epoch of every run, in the order in which the runs ended; nothing if they are more than a person reads."""
    if sum(len(outcome.result.epochs) for outcome in report.outcomes if outcome.result) > MOST_EPOCHS:
        return
    labels = {row.configuration.name: row.label for row in report.all_rows}
    for outcome in report.outcomes:
        for epoch in outcome.result.epochs if outcome.result else ():
            yield {
                "block": outcome.block,
                "method": labels[outcome.configuration],
                "epoch": epoch.epoch,
                "training (s)": f"{epoch.train_seconds:.2f}",
                "training loss": _known(epoch.train_loss, ".4f"),
                "test accuracy (%)": _known(100 * epoch.test_accuracy, ".2f"),
                "": _remark(report, outcome, epoch),
            }


def _known(number, how):
    return DASH if math.isnan(number) else format(number, how)


def _remark(report, outcome, epoch):
    if outcome.status != "ok":
        return outcome.status
    if outcome.block in report.set_aside:
        return say("does not count")
    return "" if epoch in outcome.result.timed_epochs else say("warm-up")
