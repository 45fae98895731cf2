"""The tables in the details of a report."""

import statistics

from common.errors import MACHINE, USAGE
from comparison.judge.analysis import WORTH, Analysis
from comparison.judge.fairness import EFFECTIVE, all_settings, effective
from comparison.judge.ranks import hidden_share
from comparison.judge.summaries import A_THOUSAND
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import words_of
from comparison.plan.tips import OPTIONS, effect_of, flags_of
from comparison.record import Report
from comparison.rows import SWEEPS, trials_of
from comparison.show.sentences import in_seconds, longer, mebibytes, significant
from comparison.show.tables import DASH, Rows, accuracy, cell, table, table_of
from comparison.words import join, named, say


@table
def before_table(analysis: Analysis) -> Rows:
    """Compare each row with the same row before the change (--against), and list how the two differ."""
    not_compared, report = say("not compared: they train other numbers of images"), analysis.report
    per, time = say("per epoch"), lambda own: in_seconds(own.epoch_seconds)
    if report.only_scripts:
        per, time = say("per 1,000 samples"), lambda own: significant(A_THOUSAND / own.images_per_second)
    elif report.settings["target_accuracy"] is not None:
        per, time = say("of training"), lambda own: in_seconds(own.training_seconds)
    for pair in analysis.pairs[BEFORE]:
        yield {
            "Method": pair.row.label,
            say("Before (s {per})", per=per): time(pair.summary),
            say("Now (s {per})", per=per): time(pair.row.summary),
            "Times as fast [95%]": pair.ratio,
            "Result": pair.ratio.words if pair.ratio else not_compared,
            "Now differs in": join("; ", pair.differences),
        }


def tip_rows(analysis: Analysis) -> Rows:
    """Yield the effect of each option on the recommended row: its speed, its accuracy, and what to type."""
    cores = analysis.report.environment["cores"]
    for tip in sorted(analysis.tips, key=lambda tip: -tip.speed):
        variables = [OPTIONS[name].variable for name in tip.options if OPTIONS[name].variable]
        yield {
            "Option": join(" + ", tip.options),
            "Times as fast [95%]": tip.ratio,
            "Launches": len(tip.row.outcomes),
            "Effect on accuracy": effect_of(tip.options),
            "Typed": " ".join([*variables, flags_of(tip.options, tip.row.configuration, cores)]).strip(),
            "Result": _tip_result(tip),
        }


def _tip_result(tip):
    if tip.trouble:
        return say("its training: {status}", status=tip.trouble)
    if tip.row.configuration.skip:
        return say("skipped: {why}", why=named(tip.row.configuration.skip))
    if tip.row.troubles and tip.row.troubles[0].exit_code in (USAGE, MACHINE):
        return say("refused: {why}", why=tip.row.troubles[0].reason)
    if tip.row.troubles and not tip.row.results:
        return say("{trouble}: {why}", trouble=tip.row.troubles[0].status, why=tip.row.troubles[0].reason)
    if tip.ratio and tip.ratio.low is None and tip.speed < WORTH:
        return say("no gain in its first launch")
    return tip.ratio and tip.ratio.words


tip_table = table(tip_rows)


def account_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return two tables: steps compared with ideal scaling, and runs compared with the baseline's."""
    steps = [(entry.label, entry.accounts.steps) for entry in analysis.rows if entry.accounts.steps]
    runs = [(entry.label, entry.accounts.runs) for entry in analysis.rows if entry.accounts.runs]
    if not steps:
        return []
    step_rows = _account_rows(steps, say("Step (ms)"), say("Ideal (ms)"))
    run_rows = _account_rows(runs, say("Start to end (s)"), say("Baseline's (s)"))
    return [table_of(step_rows, tablefmt), table_of(run_rows, tablefmt)]


def _account_rows(accounts, value, expected):
    longest_first = sorted((account.parts for _, account in accounts), key=len, reverse=True)
    names = dict.fromkeys(part.name for parts in longest_first for part in parts)  # in the order of the longest
    for label, account in accounts:
        parts = {part.name: _signed(part) for part in account.parts}
        yield {
            "Method": label,
            value: f"{account.value:.2f}",
            expected: f"{account.expected:.2f}",
            "Difference [95%]": _signed(account.total),
            **{name.capitalize(): parts.get(name) for name in names},
        }


def _signed(excess):
    return f"{excess.value:+.2f}" + ("" if excess.margin is None else f" ± {excess.margin:.2f}")


@table
def rank_table(analysis: Analysis) -> Rows:
    """Each rank's mean step and its share of the cores; no rows if this was not recorded."""
    traced = analysis.report.timelines
    for entry in analysis.rows:
        for number, rank in enumerate(entry.accounts.ranks):
            within = len(entry.accounts.ranks) > 1 and "exchange" not in rank.phases  # the passes, as with FSDP
            hidden = hidden_share(traced.get(entry.name, ()), number)
            yield {
                "Method": entry.label,
                "Rank": number,
                "Step (ms)": f"{rank.step:.2f}",
                "Its own work (ms)": None if within else f"{rank.work:.2f}",
                "Exchange (ms)": None if within else f"{rank.exchange:.2f}",
                **({"Exchange hidden": cell(hidden, ".0%")} if traced else {}),
                "Cores it kept busy": f"{rank.cpu / rank.step:.2f}",
                "Without a core (%)": None if rank.queued is None else f"{100 * rank.queued / rank.step:.2f}",
            }


@table
def memory_table(analysis: Analysis) -> Rows:
    """The memory of all devices and of one, with its parts; no rows if no row knows the parts."""
    held = [(entry, entry.summary.memory) for entry in analysis.done if entry.summary.memory]
    names = next((memory.parts for _, memory in held if memory.parts), {})
    for entry, memory in held if names else ():
        yield {
            "Method": entry.label,
            "Time per epoch (s)": cell(entry.summary.epoch_seconds, in_seconds),
            "All devices (MiB)": mebibytes(memory.together),
            "Peak (MiB)": mebibytes(memory.peak),
            **{name.capitalize(): cell(memory.parts.get(name), mebibytes) for name in names},
            "The rest": mebibytes(memory.rest) if memory.parts else None,
        }


@table
def card_table(analysis: Analysis) -> Rows:
    """What NVML recorded of each GPU in the timed epochs, the mean over the runs; no rows without NVML."""
    energy = say("Energy (J per slice)" if analysis.report.only_scripts else "Energy (J per epoch)")
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
                energy: _mean(uses, "joules", ",.1f"),
                "Clock (MHz)": _mean(uses, "megahertz", ",.0f"),
                "Held down by heat or power": _mean(uses, "held_down", ".0%"),
                "Another program computes": _mean(uses, "foreign", ".0%"),
            }


def _mean(uses, name, how):
    known = [getattr(use, name) for use in uses if getattr(use, name) is not None]
    return cell(statistics.mean(known), how) if known else None


@table
def settings_table(report: Report) -> Rows:
    """The settings with which each row's runs trained; of those without a column in EFFECTIVE, the ones that differ."""
    rows = [(row.label, row.results[0]) for row in report.rows if row.results]
    settings = [(label, {**all_settings(run), **effective(run)}) for label, run in rows]
    values = {name: {str(own[name]) for _, own in settings if name in own} for _, own in settings for name in own}
    shown = dict.fromkeys([*EFFECTIVE, *(name for name in values if name != "seed")])  # which each block changes
    names = [name for name in shown if len(values.get(name, ())) > (name not in EFFECTIVE)]
    for label, own in settings:
        yield {"Method": label, **{words_of(name).capitalize(): str(own.get(name, DASH)) for name in names}}


def sweep_tables(analysis: Analysis, tablefmt: str) -> list[str]:
    """Return a table for each swept setting and method."""
    return [table_of(_sweep_rows(analysis, sweep), tablefmt) for sweep in analysis.sweeps]


def _sweep_rows(analysis, sweep):
    first = sweep.value(sweep.rows[0])
    heading = say("{time} ÷ that at {value} [95%]", time=analysis.report.asked.capital, value=first)
    ratios = ["", *map(longer, sweep.ratios)]
    for entry, ratio in zip(sweep.rows, ratios, strict=True):
        numbers = entry.summary
        yield {
            "Method": entry.row.label_without(sweep.name),
            SWEEPS[sweep.name]: sweep.value(entry),
            "Waiting for data (ms/step)": f"{numbers.phases.data:.1f}",
            "Rest of the step (ms)": f"{numbers.step_milliseconds - numbers.phases.data:.1f}",
            "Time per epoch (s)": in_seconds(numbers.epoch_seconds),
            "Images/s": significant(numbers.images_per_second),
            "Total time (s)": f"{numbers.total_seconds:.1f}",
            "Accuracy (%)": accuracy(numbers.accuracies),
            heading: DASH if sweep.name == "model" or not ratio else ratio,  # another model is another training
        }


@table
def projection_table(analysis: Analysis) -> Rows:
    """The projection for each cluster, with the measured time where there is one."""
    for point in analysis.projection.points:
        yield {
            "Devices": str(point.cluster),
            "One device's step (ms)": f"{point.step.compute:.1f}",
            "Exchange and waiting (ms)": f"{point.step.exchange:.2f}",
            "Loader's limit (ms)": f"{point.step.loading:.1f}",
            "Cores' limit (ms)": cell(point.step.cores, ".1f"),
            "Epoch, projected, not measured (s)": in_seconds(point.epoch_seconds),
            "Speed-up, projected": f"{point.speed_up:.2f} [{point.low:.2f}, {point.high:.2f}]",
            "Epoch, measured (s)": cell(point.measured_seconds, in_seconds),
            "Error of the projection": cell(point.error, "+.0%"),
        }


@table
def class_table(report: Report) -> Rows:
    """The accuracy per class in percent, the mean over the runs; no rows if it is unknown."""
    rows = [row for row in report.rows if row.results and not row.times_only and _classes_known(row)]
    for name in rows[0].results[0].class_accuracy if rows else ():
        means = [statistics.mean(result.class_accuracy[name] for result in row.results) for row in rows]
        yield {"class": name, **{row.label: f"{100 * mean:.1f}" for row, mean in zip(rows, means, strict=True)}}


def _classes_known(row):
    return all(None not in (result.class_accuracy or {"": None}).values() for result in row.results)


@table
def trial_table(analysis: Analysis) -> Rows:
    """Every batch size tried to find the largest that fits; no rows without --fit-batch."""
    for row in analysis.report.rows:
        for trial in trials_of(row.configuration, analysis.report.trials):
            yield {
                "Method": row.label,
                "Batch": f"{trial.batch_size:,}",
                "Peak (MiB)": trial.peak_bytes and mebibytes(trial.peak_bytes),
                "Result": say("fits") if trial.fits else trial.status,
            }
