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


def describe_difference(first: Report, second: Report) -> str:
    """Return a table of the rows of both, A and B, with how many times as fast B was, and what else differs."""
    mine, theirs = ({row.configuration.name: row for row in report.rows} for report in (first, second))
    numbers = [measure(report).summaries for report in (first, second)]
    rows = [
        _cells(
            mine.get(name), theirs.get(name), [summaries.get(name) for summaries in numbers], first.settings["scaling"]
        )
        for name in {**mine, **theirs}
    ]
    header = ("Method", "A: time per epoch (s)", "Runs", "B: time per epoch (s)", "Runs", "A ÷ B", "Remarks on B")
    lines = [f"A: {first.title}", f"B: {second.title}", "", lay_out(rows, header, "simple", left=(0, 6)), ""]
    for what, before, after in (
        ("machine", first.environment, second.environment),
        ("settings", first.settings, second.settings),
    ):
        changed = [
            f"{name} {before.get(name)} → {after.get(name)}"
            for name in {**before, **after}
            if before.get(name) != after.get(name) and name != "output_dir"
        ]
        lines.append(f"- Different {what}: " + ("; ".join(changed) or "nothing") + ".")
    lines.append(
        "- A ÷ B: how many times as fast B was then. It has no interval: what changed on the machine between "
        "the two is part of it. To claim a difference, measure both in turns: --against."
    )
    return printable("\n".join(lines))


def _cells(mine, theirs, summaries, scaling):
    label = (mine or theirs).label
    numbers = [
        text
        for summary in summaries
        for text in (cell(summary and summary.epoch_seconds, ".2f"), cell(summary and summary.runs))
    ]
    if not (mine and theirs and mine.results and theirs.results):
        return [label, *numbers, DASH, "not in both"]
    unequal = differences(theirs.results[0], mine.results[0], scaling, OF_THE_MACHINE)
    if unequal:
        return [label, *numbers, DASH, "refused: " + "; ".join(unequal)]
    machine = differences(theirs.results[0], mine.results[0], scaling)
    before, after = (summary.epoch_seconds for summary in summaries)
    rows = (("A", mine), ("B", theirs))
    remarks = [
        *machine,
        *(f"{name} {word}" for word in ("simulated", "disturbed") for name, row in rows if getattr(row, word)),
    ]
    return [label, *numbers, f"{before / after:.2f}", "; ".join(remarks)]
