"""Two comparisons side by side: before and after, or one machine and another; without a claim about the difference.

What a machine is like changes from hour to hour, and neither comparison has runs that tell it: an interval from the
runs of each would be too narrow by far.
"""

from common.words import printable
from comparison.judge.fairness import differences
from comparison.judge.measures import measure
from comparison.record import Report
from comparison.show.tables import DASH, cell, lay_out
from comparison.show.terminal import LINES, fitting

# What two reports may be compared for; the rest has to be the same work.
OF_THE_MACHINE = ("torch", "device", "threads", "precision", "seed")
HEADER = ("Method", "A (s/epoch)", "B (s/epoch)", "A ÷ B")
NO_CLAIM = (
    "- A ÷ B: how many times as fast B was then, without an interval, as what changed on the machine between the two "
    "is part of it. To claim a difference, measure both in turns: --against."
)


def describe_difference(first: Report, second: Report, width: int = 80) -> str:
    """Return a screen with the rows of both, A and B, with how many times as fast B was, and what else differs."""
    mine, theirs = ({row.configuration.name: row for row in report.rows} for report in (first, second))
    before, after = (measure(report).summaries for report in (first, second))
    rows: list[list[str]] = []
    remarks: dict[str, list[str]] = {}
    for name in {**mine, **theirs}:
        one, other = mine.get(name), theirs.get(name)
        label = (one or other).label
        ratio, remark = _compare(one, other, before, after, first.settings["scaling"])
        seconds = [cell(some[name].epoch_seconds, ".2f") if name in some else DASH for some in (before, after)]
        rows.append([label, *seconds, ratio])
        remarks.setdefault(remark, []).append(label)
    told = []
    for remark, labels in remarks.items():
        every = "every row" if len(labels) == len(rows) else ", ".join(f"“{label}”" for label in labels)
        told += [f"- B, {every}: {remark}."] if remark else []
    for what, old, new in (
        ("machine", first.environment, second.environment),
        ("settings", first.settings, second.settings),
    ):
        names = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "output_dir"]
        changed = "; ".join(f"{name} {old.get(name)} → {new.get(name)}" for name in names)
        told.append(f"- Different {what}: {changed or 'nothing'}.")
    opening, _ = fitting([f"A: {first.title}", f"B: {second.title}"], width, LINES)
    table = lay_out(rows, HEADER, "plain").splitlines()
    notes, hidden = fitting([NO_CLAIM, *told], width, max(LINES - len(opening) - len(table) - 3, 4))
    more = [f"- {hidden} more, too long for a screen: see the two files."] if hidden else []
    return printable("\n".join([*opening, "", *table, "", *notes, *more]))


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
