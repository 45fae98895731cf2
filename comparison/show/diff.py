"""--diff: two comparisons side by side, without intervals.

The speed of a machine changes from hour to hour, and the runs within one comparison do not show this. An interval made
of them would be far too narrow.
"""

from common.words import printable
from comparison.judge.fairness import differences, seen_differences
from comparison.judge.measures import measure
from comparison.judge.summaries import A_THOUSAND
from comparison.record import Report
from comparison.show.sentences import in_seconds, significant
from comparison.show.tables import DASH, cell, lay_out
from comparison.show.terminal import LINES, cut, fitting
from comparison.words import count

# Two rows that differ in these are still compared; any other difference means different work.
MACHINE_SETTINGS = ("torch", "device", "threads", "precision", "seed")
NO_CLAIM = (
    "- A ÷ B: how many times as fast B was then, without an interval, as what changed on the machine between the two "
    "is part of it. To claim a difference, measure both in turns: --against."
)


def describe_difference(first: Report, second: Report, width: int = 80) -> str:
    """Return one screen with the rows of both reports, A and B, the ratio of their times, and other differences."""
    rows_a, rows_b = ({row.configuration.name: row for row in report.rows} for report in (first, second))
    scripts = first.only_scripts and second.only_scripts
    before, after = (_times(report, scripts) for report in (first, second))
    cells: list[list[str]] = []
    labels_by_remark: dict[str, list[str]] = {}
    for name in {**rows_a, **rows_b}:
        one, other = rows_a.get(name), rows_b.get(name)
        label = " → ".join(dict.fromkeys(some.label for some in (one, other) if some))
        ratio, remark = _compare(one, other, before, after, first.settings["scaling"])
        seconds = [cell(some.get(name), significant if scripts else in_seconds) for some in (before, after)]
        cells.append([cut(label, width // 2, width // 4), *seconds, ratio])
        labels_by_remark.setdefault(remark, []).append(label)
    remarks = [
        f"- {name}: interrupted after {len(report.outcomes)} of {count(len(report.order), 'run')}."
        for name, report in (("A", first), ("B", second))
        if len(report.outcomes) < len(report.order)
    ]
    for remark, labels in labels_by_remark.items():
        if remark:
            which = "every row" if len(labels) == len(cells) else ", ".join(f"“{label}”" for label in labels)
            remarks.append(f"- B, {which}: {remark}.")
    for what, old, new in (
        ("machine", first.environment, second.environment),
        ("settings", first.settings, second.settings),
    ):
        names = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "output_dir"]
        changed = "; ".join(f"{name} {old.get(name)} → {new.get(name)}" for name in names)
        remarks.append(f"- Different {what}: {changed or 'nothing'}.")
    opening, _ = fitting([f"A: {first.title}", f"B: {second.title}"], width, LINES)
    unit = "s/1,000 samples" if scripts else "s/epoch"
    table = lay_out(cells, ("Method", f"A ({unit})", f"B ({unit})", "A ÷ B"), "plain").splitlines()
    notes, hidden = fitting([NO_CLAIM, *remarks], width, max(LINES - len(opening) - len(table) - 3, 4))
    more = [f"- {hidden} more, too long for a screen: see the two files."] if hidden else []
    return printable("\n".join([*opening, "", *table, "", *notes, *more]))


def _times(report, scripts):
    """The seconds of each row by name, per A_THOUSAND samples or per epoch, which a script does not have."""
    summaries = measure(report).summaries
    if not scripts:
        return {name: summary.epoch_seconds for name, summary in summaries.items()}
    return {name: A_THOUSAND / own.images_per_second for name, own in summaries.items() if own.images_per_second}


def _compare(row_a, row_b, before, after, scaling):
    """Return (time of A ÷ time of B or a dash, remarks)."""
    if not (row_a and row_b):
        return DASH, "not in both"
    if missing := [report for report, row in (("A", row_a), ("B", row_b)) if not row.results]:
        return DASH, f"no run ended well in {' and '.join(missing)}"
    runs, name = (row_b.results[0], row_a.results[0]), row_a.configuration.name
    now, then = (len(run.devices) for run in runs)
    devices = [f"{count(now, 'device')} instead of {then}"] if now != then else []
    if row_a.configuration.is_script:
        remarks = [*devices, *seen_differences(*runs)]
    elif unequal := devices or differences(*runs, scaling, MACHINE_SETTINGS):
        return DASH, f"refused: {'; '.join(unequal)}"
    else:
        remarks = differences(*runs, scaling)
    for word in ("simulated", "disturbed"):
        remarks += [f"{report} {word}" for report, row in (("A", row_a), ("B", row_b)) if getattr(row, word)]
    return cell(before.get(name) and before[name] / after[name], ".2f"), "; ".join(remarks)
