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

    used: seconds since its first block began; block_seconds: of another. The last look may take all the error left.
    """
    budget, blocks = report.settings["budget"], _counted(report)
    before, share = report.looks[-1] if report.looks else (report.wanted_blocks - 1, 0.0)
    if budget is None or report.settings["margin"] or blocks <= before:
        return report
    share = 1.0 if used + block_seconds > budget else max(share, used / budget)
    return replace(report, looks=(*report.looks, (blocks, share)))


def wants_block(report: Report, used: float, block_seconds: float) -> bool:
    """Return whether to run another block: in place of a disturbed one, of SPARE_BLOCKS at most, or within a budget.

    Then until there are as many as the margin needs, or, without one, while any ratio is undecided.
    """
    whole, budget, margin = len(report.whole_blocks), report.settings["budget"], report.settings["margin"]

    def lacks(blocks):
        return whole - len(report.disturbed_blocks) < blocks and whole < blocks + SPARE_BLOCKS

    if lacks(report.wanted_blocks):
        return True
    if budget is not None and used + block_seconds > budget:
        return False
    if margin is not None:
        return lacks(needed_blocks(report, margin))
    return budget is not None and not all(ratio.decided for ratio in _judged(report))


def needed_blocks(report: Report, margin: float) -> int:
    """Return how many blocks make every interval as narrow as --margin asks for, after the first stage.

    C. Stein's two stages (Annals of Mathematical Statistics 16, 1945): widths shrink with the root of their number.
    """
    half_widths = [math.log(ratio.high / ratio.low) / 2 for ratio in _judged(report) if ratio.low]
    needed = [math.ceil(_counted(report) * (half / math.log1p(margin)) ** 2) for half in half_widths]
    return max(report.wanted_blocks, *needed, 0)


def with_another_block(report: Report) -> Report:
    """Return the report with one more block in its order, as make_order goes on."""
    names = [row.name for row in report.plan if not row.skip]
    more = make_order(names, report.order[-1][0] + 1, report.settings["seed"])[-len(names) :]
    return replace(report, order=(*report.order, *more))


def _counted(report):
    return len(report.whole_blocks) - len(report.set_aside)


def _judged(report):
    """The ratios that the comparison is to decide."""
    analysis = analyse(report)
    ratios = [entry.standing.speed_up for entry in analysis.rows if not entry.is_baseline]
    ratios += [ratio for sweep in analysis.sweeps if sweep.name != "model" for ratio in sweep.ratios]
    return list(filter(None, [*ratios, *(pair.ratio for pair in analysis.pairs[BEFORE])]))
