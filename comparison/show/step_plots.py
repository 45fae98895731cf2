"""The figures of what is in a step: its phases, what every rank does when."""

from common.files.plots import draw_timeline, new_figure
from common.files.results import PHASES
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import RowAnalysis
from comparison.show.plots import BELOW, finish, look_of, row_panels
from comparison.words import join, render, say

SMALL = 0.01  # of the longest step: a phase that takes less in every row has no panel


def draw_phases(analysis: Analysis):
    """Draw a panel for each phase that any row has, all on one scale: a bar for each row, a tick at ideal scaling."""
    done, shown = analysis.done, phases_shown(analysis)
    known = [entry.summary.phases.known for entry in done]
    if not shown:
        return None
    figure, axes = row_panels(done, len(shown))
    places, colors = range(len(done)), [look_of(analysis, entry).color for entry in done]
    for axis, name in zip(axes, shown, strict=True):
        axis.barh(places, [own.get(name, 0.0) for own in known], 0.62, color=colors)
        ideals = {place: ideal for place, entry in enumerate(done) if (ideal := ideal_phase(analysis, entry, name))}
        for color, width in (("white", 3.5), ("black", 1.5)) if ideals else ():  # to be seen on any colour
            axis.plot([*ideals.values()], [*ideals], "|", color=color, markersize=22, markeredgewidth=width)
        for place, own in enumerate(known):
            words, right = f"{own[name]:.1f}" if name in own else "", axis.get_yaxis_transform()
            axis.text(0.98, place, words, transform=right, horizontalalignment="right", verticalalignment="center")
        axis.set_title(render(name))
    end, across = max(axis.dataLim.x1 for axis in axes), axes[0].get_gridspec().ncols
    for axis in axes:
        axis.set_xlim(0, end / (1 - 0.09 * across))  # what is free is for the numbers
    ticks = [say("tick: ideal scaling of the baseline's time")] if any(axis.lines for axis in axes) else []
    return finish(figure, analysis, phase_finding(analysis), note=join("\n", [phase_unit(analysis), *ticks]))


def phases_shown(analysis: Analysis) -> list[str]:
    """Return the phases that are worth a panel."""
    longest = max((entry.summary.step_milliseconds for entry in analysis.done), default=0.0)
    known = [entry.summary.phases.known for entry in analysis.done]
    return [name for name in PHASES if any(own.get(name, 0.0) > SMALL * longest for own in known)]


def phase_unit(analysis: Analysis) -> str:
    """Return what the numbers of the phases are."""
    template = "milliseconds per step, mean over the epochs without the warm-up"
    if analysis.report.only_scripts:
        template = "milliseconds per step, mean over the timed slices"
    elif analysis.report.settings["epochs"] == 1:
        template = "milliseconds per step, mean over the epochs with the warm-up"
    return say(template)


def ideal_phase(analysis: Analysis, entry: RowAnalysis, phase: str) -> float | None:
    """Return the milliseconds of a phase under ideal scaling of the baseline's, None where that is not known."""
    standing, baseline = entry.standing, entry.standing.baseline
    if entry.is_baseline or not (baseline and standing.speed_up):
        return None
    time = analysis.of(baseline).summary.phases.known.get(phase)
    own, other = (row.results[0].epochs[-1] for row in (entry.row, baseline))
    images = own.samples / own.steps * other.steps / other.samples
    return None if time is None else time * images / standing.devices


def phase_finding(analysis: Analysis) -> str:
    """Return which phase of which row takes most milliseconds above ideal scaling, in one line."""
    found = [
        (time - (ideal_phase(analysis, entry, phase) or 0.0), entry.label, phase, time)
        for entry in analysis.done
        if entry.rivals_baseline and not entry.row.simulated
        for phase, time in entry.summary.phases.known.items()
    ]
    excess, row, phase, time = max(found, default=(0.0, "", "", 0.0))
    if excess <= 0:
        return say("Where a step's time goes")
    template = "Largest excess over ideal scaling: {phase} of “{row}”, {x:.1f} instead of {y:.1f} ms"
    return say(template, row=row, x=time, y=time - excess, phase=say(phase))


def draw_timelines(analysis: Analysis):
    """Draw a panel for each row that was traced, all on one scale of time; of one step alone there is none."""
    traced = analysis.report.timelines
    timelines = {entry.label: traced[entry.name] for entry in analysis.rows if traced.get(entry.name)}
    if not timelines:
        return None
    lanes = [len({(span.rank, span.lane) for span in spans}) for spans in timelines.values()]
    figure, axes = new_figure(rows=lanes, height=2.0 + sum(0.5 + 0.28 * lane for lane in lanes))
    legend: dict[str, object] = {}
    for axis, (label, spans) in zip(axes, timelines.items(), strict=True):
        legend = {**draw_timeline(axis, spans), **legend}
        axis.set_title(render(label), loc="left")
    note = say("milliseconds; two traced steps, which take a little longer than timed ones")
    axes[-1].set_xlabel(render(note))
    figure.legend(legend.values(), map(render, legend), loc=BELOW, ncols=4)
    return finish(figure, analysis, waiting_finding(timelines))


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
    return say("In “{row}”, ranks wait for one another for {n:.0%} of the traced time", row=label, n=shares[label])
