"""The figures of what is in a step: its phases, what of it is longer than it should be, what every rank does when."""

from common.files.plots import draw_timeline, new_figure, phase_look
from common.files.results import PHASES
from comparison.judge.analysis import Analysis
from comparison.show.plots import BELOW, bar_chart, finish
from comparison.words import render, say

MOST_IN_A_LINE = 7  # names of a legend


def draw_phases(analysis: Analysis):
    """Draw bars of every row's mean step, phase by phase."""
    done = analysis.done
    figure, axis = bar_chart([entry.label for entry in done], 2.2, 0.5)
    left = [0.0] * len(done)
    for phase in PHASES:
        means = [entry.summary.phases.known.get(phase, 0.0) for entry in done]
        if any(means):  # no method leaves it over
            axis.barh(range(len(done)), means, left=left, label=render(phase), **phase_look(phase))
            left = [start + mean for start, mean in zip(left, means, strict=True)]
    template = "milliseconds per step, mean over the epochs without the warm-up"
    if analysis.report.only_scripts:
        template = "milliseconds per step, mean over the timed slices"
    elif analysis.report.settings["epochs"] == 1:
        template = "milliseconds per step, mean over the epochs with the warm-up"
    axis.set_xlabel(render(say(template)))
    return finish(figure, analysis, phase_finding(done), size=11, ncols=len(PHASES))


def phase_finding(entries) -> str:
    """Return where most of the longest step goes that was measured, in one line."""
    measured = [entry for entry in entries if entry.summary.phases.known and not entry.row.simulated]
    if not measured:
        return say("Where a step's time goes")
    longest = max(measured, key=lambda entry: entry.summary.step_milliseconds)
    phase, most = max(longest.summary.phases.known.items(), key=lambda known: known[1])
    values = {"row": longest.label, "x": longest.summary.step_milliseconds, "y": most, "phase": phase}
    return say("“{row}” has the longest step: {x:.1f} ms, {y:.1f} of them in the phase {phase}", **values)


def draw_excess(analysis: Analysis):
    """Draw where a step takes longer than ideal scaling of the baseline's.

    Bars of what is longer grow to the right, of what is shorter to the left; each part has its own whiskers.
    """
    from matplotlib.patches import Patch

    accounts = {entry.label: entry.accounts.steps for entry in analysis.done if entry.accounts.steps}
    if not accounts:
        return None
    longest_first = sorted(accounts.values(), key=lambda account: len(account.parts), reverse=True)
    names = list(dict.fromkeys(part.name for account in longest_first for part in account.parts))
    figure, axis = bar_chart(list(accounts), 2.6, 0.8)
    for position, account in enumerate(accounts.values()):
        ends = {True: 0.0, False: 0.0}
        for part in account.parts:
            start = ends[part.value > 0]
            ends[part.value > 0] += part.value
            axis.barh(position, part.value, 0.7, left=start, **phase_look(part.name))
            height = position - 0.28 + 0.56 * names.index(part.name) / max(1, len(names) - 1)
            axis.errorbar(start + part.value, height, xerr=part.margin, capsize=2, color="#D55E00", linewidth=1)
        total = account.total
        axis.errorbar(total.value, position + 0.42, xerr=total.margin, marker="D", capsize=4, color="black")
    axis.axvline(0, color="#777777")
    note = say(
        "milliseconds per step above ideal scaling\n"
        "orange: simultaneous 95 % intervals of the parts; diamond: their sum"
    )
    axis.set_xlabel(render(note))
    handles = [Patch(label=render(name), **phase_look(name)) for name in names]
    lines = -(-len(handles) // MOST_IN_A_LINE)
    figure.legend(handles=handles, loc=BELOW, ncols=-(-len(handles) // lines))
    return finish(figure, analysis, excess_finding(accounts), size=11)


def excess_finding(accounts) -> str:
    """Return the largest part that is proved, in one line."""
    proved = [(part, label) for label, account in accounts.items() for part in account.proved if part.value > 0]
    if not proved:
        return say("No phase is proved to be above ideal scaling")
    part, label = max(proved, key=lambda pair: pair[0].value)
    values = {"row": label, "x": part, "y": accounts[label].total, "phase": part.name}
    return say("“{row}”: {x} of {y} ms above ideal scaling are in: {phase}", **values)


def draw_timelines(analysis: Analysis):
    """Draw a panel for each row that was traced, all on one scale of time; of one step alone there is none."""
    traced = analysis.report.timelines
    timelines = {entry.label: traced[entry.name] for entry in analysis.rows if traced.get(entry.name)}
    if not timelines:
        return None
    lanes = [len({(span.rank, span.lane) for span in spans}) for spans in timelines.values()]
    figure, axes = new_figure(rows=lanes, width=10.0, height=2.0 + sum(0.5 + 0.28 * lane for lane in lanes))
    legend: dict[str, object] = {}
    for axis, (label, spans) in zip(axes, timelines.items(), strict=True):
        legend = {**draw_timeline(axis, spans), **legend}
        axis.set_title(render(label), loc="left", fontsize=11)
    note = say("milliseconds; traced steps, which take a little longer than those that are timed")
    axes[-1].set_xlabel(render(note))
    figure.legend(legend.values(), map(render, legend), loc=BELOW, ncols=4)
    return finish(figure, analysis, waiting_finding(timelines), size=11)


def waiting_finding(timelines) -> str:
    """Return which row's ranks wait for one another for the largest share of the traced steps, in one line."""
    shares = {}
    for label, spans in timelines.items():
        steps = [(span.end - span.start, span.name) for span in spans if span.lane == "step"]
        waited = sum(length for length, name in steps if name == "exchange")
        shares[label] = waited / sum(length for length, _ in steps)
    label = max(shares, key=lambda label: shares[label])
    if not shares[label]:
        return say("What every device does in a step")
    return say("In “{row}”, ranks wait for one another for {n:.0%} of the traced steps", row=label, n=shares[label])
