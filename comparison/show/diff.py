"""Two comparisons side by side: before and after, or one machine and another; without a claim about the difference.

What a machine is like changes from hour to hour, and neither comparison has runs that tell it: an interval from the
runs of each would be too narrow by far.
"""

from common.words import printable
from comparison.judge.fairness import differences
from comparison.judge.measures import measure
from comparison.record import Report
from comparison.show.tables import DASH, cell, lay_out

# What two reports may be compared for; the rest has to be the same work.
OF_THE_MACHINE = ("torch", "device", "threads", "precision", "seed")
HEADER = ("Method", "A: time per epoch (s)", "Runs", "B: time per epoch (s)", "Runs", "A ÷ B", "Remarks on B")
NO_CLAIM = (
    "- A ÷ B: how many times as fast B was then. It has no interval: what changed on the machine between the two is "
    "part of it. To claim a difference, measure both in turns: --against."
)


def describe_difference(first: Report, second: Report) -> str:
    """Return a table of the rows of both, A and B, with how many times as fast B was, and what else differs."""
    mine, theirs = ({row.configuration.name: row for row in report.rows} for report in (first, second))
    before, after = (measure(report).summaries for report in (first, second))
    rows = []
    for name in {**mine, **theirs}:
        one, other = mine.get(name), theirs.get(name)
        numbers = [*_numbers(before.get(name)), *_numbers(after.get(name))]
        rows.append([(one or other).label, *numbers, *_compare(one, other, before, after, first.settings["scaling"])])
    lines = [f"A: {first.title}", f"B: {second.title}", "", lay_out(rows, HEADER, "simple", left=(0, 6)), ""]
    for what, old, new in (
        ("machine", first.environment, second.environment),
        ("settings", first.settings, second.settings),
    ):
        names = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "output_dir"]
        changed = "; ".join(f"{name} {old.get(name)} → {new.get(name)}" for name in names)
        lines.append(f"- Different {what}: {changed or 'nothing'}.")
    return printable("\n".join([*lines, NO_CLAIM]))


def _numbers(summary):
    return (cell(summary.epoch_seconds, ".2f"), summary.runs) if summary else (DASH, DASH)


def _compare(mine, theirs, before, after, scaling):
    """How many times as fast a row of B was, if that can be said, and remarks."""
    if not (mine and theirs and mine.results and theirs.results):
        return DASH, "not in both"
    runs, name = (theirs.results[0], mine.results[0]), mine.configuration.name
    if unequal := differences(*runs, scaling, OF_THE_MACHINE):
        return DASH, f"refused: {'; '.join(unequal)}"
    remarks = differences(*runs, scaling)
    for word in ("simulated", "disturbed"):
        remarks += [f"{report} {word}" for report, row in (("A", mine), ("B", theirs)) if getattr(row, word)]
    return f"{before[name].epoch_seconds / after[name].epoch_seconds:.2f}", "; ".join(remarks)
