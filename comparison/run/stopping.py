"""When a comparison has enough blocks: those that were asked for, or what its budget of time allows and needs."""

import math
from dataclasses import replace

from common.words import count, duration, percent
from comparison.judge.analysis import analyse
from comparison.judge.statistics import resolution
from comparison.plan.counterparts import BEFORE
from comparison.plan.plan import make_order
from comparison.record import Report

SPARE_BLOCKS = 2  # how many more may be run in the place of disturbed ones
USUAL_NOISE = 0.04  # standard deviation between runs of a quiet machine, as a share: before anything is measured


def expectation(report: Report, budget: float, block_seconds: float) -> str:
    """Return in words what a budget of seconds allows and what that can find, where a block may take block_seconds."""
    rows, blocks, least = len({name for _, name in report.order}), int(budget / block_seconds), report.wanted_blocks
    allowed = f"The budget of {duration(budget)}"
    if blocks < least:
        return f"{allowed} is too short for {count(least, 'block')}, which are run all the same, and no more."
    allowed += f" allows about {count(blocks, 'block')} (at least {least})"
    difference = resolution(USUAL_NOISE, blocks, rows, max(1, rows - 1))
    if difference < math.inf:
        allowed += f"; at a noise of {USUAL_NOISE:.0%} they detect differences above about {percent(difference)}"
    return f"{allowed}. It ends earlier if every row is decided."


def look(report: Report, used: float, block_seconds: float) -> Report:
    """Return the report with the look at its data that is due after a whole block, if a budget alone ends it.

    used: seconds since its first block began; block_seconds: of another with all rows. The last look may take all the
    error left.
    """
    budget, blocks = report.settings["budget"], _counted(report)
    before, share = report.looks[-1] if report.looks else (report.wanted_blocks - 1, 0.0)
    if budget is None or report.settings["margin"] or blocks <= before:
        return report
    looked = replace(report, looks=(*report.looks, (blocks, min(1.0, max(share, used / budget)))))
    if used + _seconds_of(_next_rows(looked), looked, block_seconds) > budget:
        return replace(report, looks=(*report.looks, (blocks, 1.0)))
    return looked


def with_another_block(report: Report, used: float, block_seconds: float) -> Report:
    """Return the report with one more block in its order if one is needed: in place of a disturbed one, of SPARE_BLOCKS
    at most, or within a budget. Then until there are as many as the margin needs, or, without one, while any ratio is
    undecided, of the rows that it is about: a row that is decided is not run again.
    """
    names = _next_rows(report)
    if not names or (_spends(report) and used + _seconds_of(names, report, block_seconds) > report.settings["budget"]):
        return report
    more = make_order(names, report.order[-1][0] + 1, report.settings["seed"])[-len(names) :]
    return replace(report, order=(*report.order, *more))


def _next_rows(report):
    """The names of the rows of another block, in the order of the plan; none if there are enough blocks."""
    able = [row.name for row in report.plan if not row.skip]
    if _lacks(report, report.wanted_blocks):
        return able
    if (margin := report.settings["margin"]) is not None:
        return able if _lacks(report, needed_blocks(report, margin)) else []
    if report.settings["budget"] is None:
        return []
    undecided = {name for ratio, names in _judged(report) if not ratio.decided for name in names}
    return [name for name in able if name in undecided]


def _lacks(report, blocks):
    whole = len(report.whole_blocks)
    return whole - len(report.disturbed_blocks) < blocks and whole < blocks + SPARE_BLOCKS


def _spends(report):
    """Whether the next block is one of those that a budget limits."""
    return report.settings["budget"] is not None and not _lacks(report, report.wanted_blocks)


def _seconds_of(names, report, block_seconds):
    """How long a block of these rows takes, if one of all rows takes block_seconds."""
    took = {outcome.configuration: outcome.wall_seconds for outcome in report.outcomes}
    return block_seconds * sum(took.get(name, 0.0) for name in names) / sum(took.values())


def needed_blocks(report: Report, margin: float) -> int:
    """Return how many blocks make every interval as narrow as --margin asks for, after the first stage.

    C. Stein's two stages (Annals of Mathematical Statistics 16, 1945): widths shrink with the root of their number.
    """
    half_widths = [math.log(ratio.high / ratio.low) / 2 for ratio, _ in _judged(report) if ratio.low]
    needed = [math.ceil(_counted(report) * (half / math.log1p(margin)) ** 2) for half in half_widths]
    return max(report.wanted_blocks, *needed, 0)


def _counted(report):
    return len(report.whole_blocks) - len(report.set_aside)


def _judged(report):
    """The ratios that the comparison is to decide, each with the names of both rows."""
    analysis = analyse(report)
    judged = [
        (entry.standing.speed_up, (entry.name, entry.standing.baseline.configuration.name))
        for entry in analysis.rows
        if entry.standing.baseline and not entry.is_baseline
    ]
    for sweep in analysis.sweeps:
        if sweep.name != "model":
            first, *others = (entry.name for entry in sweep.rows)
            judged += [(ratio, (name, first)) for ratio, name in zip(sweep.ratios, others, strict=True)]
    judged += [(pair.ratio, (pair.row.name, pair.counterpart.configuration.name)) for pair in analysis.pairs[BEFORE]]
    return [(ratio, names) for ratio, names in judged if ratio]
