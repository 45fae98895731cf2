"""Two comparisons side by side: before and after, or one machine and another."""

from comparison.fairness import differences
from comparison.record import Report
from comparison.statistics import ratio, run_seconds, summarize
from comparison.tables import DASH, cell, lay_out


def describe_difference(first: Report, second: Report) -> str:
    """Return a table of the rows of both, A and B, with how many times as fast B is, and what else differs."""
    rows = {row.label: row for row in second.rows}
    labels = list(dict.fromkeys([*(row.label for row in first.rows), *rows]))
    ours = {row.label: row for row in first.rows}
    lines = [_cells(label, ours.get(label), rows.get(label), first.settings["scaling"]) for label in labels]
    header = ("Method", "A: time per epoch (s)", "Runs", "B: time per epoch (s)", "Runs", "B over A: speed-up [95 %]",
              "Result for B")
    said = [f"A: {first.title}", f"B: {second.title}", "", lay_out(lines, header, "simple", left=(0, 6)), ""]
    for what, mine, theirs in (("machine", first.environment, second.environment),
                               ("settings", first.settings, second.settings)):
        changed = [f"{name} {mine.get(name)} → {theirs.get(name)}" for name in dict.fromkeys([*mine, *theirs])
                   if mine.get(name) != theirs.get(name) and name != "output_dir"]
        said.append(f"- Different {what}: " + ("; ".join(changed) or "nothing") + ".")
    return "\n".join(said)


def _cells(label, mine, theirs, scaling):
    times = [summarize(row) if row else None for row in (mine, theirs)]
    numbers = [text for one in times for text in
               (cell(one and one.epoch_seconds, ".2f"), cell(one and one.runs))]
    if not (mine and theirs and mine.results and theirs.results):
        return [label, *numbers, DASH, "not in both"]
    # torch and the kind of device are what two reports may be compared for; the rest has to be the same work
    unequal = [text for text in differences(theirs.results[0], mine.results[0], scaling)
               if not text.startswith(("torch ", "kind of device "))]
    if unequal:
        return [label, *numbers, DASH, "refused: " + "; ".join(unequal)]
    speed_up = ratio(run_seconds(mine), run_seconds(theirs))
    return [label, *numbers, str(speed_up), speed_up.words + (" (simulated)" if mine.simulated else "")]
