"""The figures of what is in a step: its phases, what of it is longer than it should be, what every rank does when."""

from pathlib import Path

from common.files.plots import draw_timeline, new_figure, phase_look
from common.files.results import PHASES
from comparison.judge.analysis import Analysis
from comparison.show.figures import keep_figure


def draw_phases(analysis: Analysis, path: Path) -> Path:
    """Draw bars of every row's mean step, phase by phase."""
    done = analysis.done
    figure, (axis,) = new_figure(width=9.0, height=2.2 + 0.5 * len(done))
    positions, left = range(len(done)), [0.0] * len(done)  # labels alone need not differ
    for phase in PHASES:
        means = [entry.summary.phases.known.get(phase, 0.0) for entry in done]
        if not any(means):  # no method leaves it over
            continue
        axis.barh(positions, means, left=left, label=phase, **phase_look(phase))
        left = [start + mean for start, mean in zip(left, means, strict=True)]
    axis.set_yticks(positions, [entry.label for entry in done])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    warm_up = "without the warm-up" if analysis.report.settings["epochs"] > 1 else "with the warm-up"
    axis.set_xlabel(f"milliseconds per step, mean over the epochs {warm_up}")
    figure.suptitle(f"{_phase_finding(done)}\n{analysis.report.title}", fontsize=11)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(PHASES))
    return keep_figure(figure, path)


def _phase_finding(entries):
    """Where most of the longest step goes that was measured, in one line."""
    steps = [
        (sum(entry.summary.phases.known.values()), entry)
        for entry in entries
        if entry.summary.phases.known and not entry.row.simulated
    ]
    if not steps:
        return "Where a step's time goes"
    total, longest = max(steps, key=lambda step: step[0])
    phase, most = max(longest.summary.phases.known.items(), key=lambda known: known[1])
    return f"“{longest.label}” has the longest step: {total:.1f} ms, {most:.1f} of them in the phase {phase}"


def draw_excess(analysis: Analysis, path: Path) -> Path:
    """Draw where a step takes longer than an even share of the baseline's.

    Bars of what is longer grow to the right, of what is shorter to the left; each part has its own whiskers.
    """
    import matplotlib

    accounts = {entry.label: entry.accounts.steps for entry in analysis.done if entry.accounts.steps}
    longest_first = sorted(accounts.values(), key=lambda account: len(account.parts), reverse=True)
    names = list(dict.fromkeys(part.name for account in longest_first for part in account.parts))
    figure, (axis,) = new_figure(width=9.0, height=2.6 + 0.8 * len(accounts))
    for position, account in enumerate(accounts.values()):
        ends = {True: 0.0, False: 0.0}
        for part in account.parts:
            start = ends[part.value > 0]
            ends[part.value > 0] += part.value
            axis.barh(position, part.value, 0.7, left=start, **phase_look(part.name))
            height = position - 0.28 + 0.56 * names.index(part.name) / max(1, len(names) - 1)
            axis.errorbar(ends[part.value > 0], height, xerr=part.margin, capsize=2, color="#D55E00", linewidth=1)
        axis.errorbar(
            account.total.value, position + 0.42, xerr=account.total.margin, marker="D", capsize=4, color="black"
        )
    axis.axvline(0, color="#777777")
    axis.set_yticks(range(len(accounts)), accounts)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(
        "milliseconds per step more than an even share of the baseline's\n"
        "orange: each part's interval, all together 95 %; diamond: the difference, with its 95 %"
    )
    figure.suptitle(f"{_excess_finding(accounts)}\n{analysis.report.title}", fontsize=11)
    handles = [matplotlib.patches.Patch(**phase_look(name), label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return keep_figure(figure, path)


def _excess_finding(accounts):
    """The largest part that is proved, in one line."""
    proved = [
        (part, label, account) for label, account in accounts.items() for part in account.proved if part.value > 0
    ]
    if not proved:
        return "No phase is proved to take longer than an even share of the baseline's"
    part, label, account = max(proved, key=lambda entry: entry[0].value)
    return f"“{label}”: {part} ms of the {account.total} ms more per step are in the phase {part.name}"


def draw_timelines(analysis: Analysis, path: Path) -> Path:
    """Draw a panel for each row that was traced, all on one scale of time."""
    timelines = {
        entry.label: analysis.report.timelines[entry.row.configuration.name]
        for entry in analysis.rows
        if analysis.report.timelines.get(entry.row.configuration.name)
    }
    lanes = [len({(span.rank, span.lane) for span in spans}) for spans in timelines.values()]
    figure, axes = new_figure(rows=lanes, width=10.0, height=2.0 + sum(0.5 + 0.28 * count for count in lanes))
    legend = {}
    for axis, (label, spans) in zip(axes, timelines.items(), strict=True):
        legend = {**draw_timeline(axis, spans), **legend}
        axis.set_title(label, loc="left", fontsize=11)
    axes[-1].set_xlabel("milliseconds; traced steps, which take a little longer than those that are timed")
    figure.suptitle(f"{_waiting_finding(timelines)}\n{analysis.report.title}", fontsize=11)
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=4)
    return keep_figure(figure, path)


def _waiting_finding(timelines):
    """Which row's ranks wait for one another for the largest share of the traced steps, in one line."""

    def share(spans):
        steps = [(span.end - span.start, span.name) for span in spans if span.lane == "step"]
        return sum(length for length, name in steps if name == "exchange") / sum(length for length, _ in steps)

    label, most = max(((label, share(spans)) for label, spans in timelines.items()), key=lambda pair: pair[1])
    if not most:
        return "What every device does in a step"
    return f"In “{label}”, ranks wait for one another for {most:.0%} of the traced steps"
