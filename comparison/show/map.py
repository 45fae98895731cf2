"""The map of where a method pays: its speed-up over two swept settings, with how certain it is."""

import math
from pathlib import Path

from common.files.plots import new_figure
from comparison.judge.analysis import Analysis
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import FASTER
from comparison.rows import SWEEPS
from comparison.show.figures import keep_figure
from comparison.show.phrases import series_name

# Purple is faster and orange slower, for colour-blind readers too; twice and half as fast have the full colour.
COLORS = "PuOr"
Cells = dict[tuple[object, object], RowAnalysis]


def find_maps(analysis: Analysis) -> dict[str, Cells]:
    """Return, by method, the rows that rival their baselines and have values of both swept settings.

    They are by these values, the vertical axis' first. Empty unless exactly two settings are swept.
    """
    if len(analysis.report.swept) != 2:
        return {}
    maps: dict[str, Cells] = {}
    for entry in analysis.done:
        values = entry.row.configuration.values
        if entry.rivals_baseline and all(name in values for name in axes_of(analysis)):
            place = tuple(values[name] for name in axes_of(analysis))
            maps.setdefault(entry.row.configuration.method, {})[place] = entry
    return maps


def axes_of(analysis: Analysis) -> list[str]:
    """Return the names of the settings on the vertical and the horizontal axis: what has an order is horizontal."""
    return sorted(analysis.report.swept, key=lambda name: name != "model")


def draw_map(analysis: Analysis, path: Path) -> Path:
    """Draw a panel for each method that has a map."""
    maps, (vertical, horizontal) = find_maps(analysis), axes_of(analysis)
    rows, columns = (list(dict.fromkeys(place[axis] for cells in maps.values() for place in cells)) for axis in (0, 1))
    figure, axes = new_figure(
        columns=len(maps), width=2.2 + len(maps) * (0.8 + 1.2 * len(columns)), height=2.4 + 0.8 * len(rows)
    )
    for axis, cells in zip(axes, maps.values(), strict=True):
        _draw_cells(axis, {(rows.index(row), columns.index(column)): entry for (row, column), entry in cells.items()})
        axis.set(
            title=_label(cells),
            xlim=(-0.5, len(columns) - 0.5),
            ylim=(len(rows) - 0.5, -0.5),
            xlabel=SWEEPS[horizontal].lower(),
            ylabel=SWEEPS[vertical].lower() if axis is axes[0] else "",
        )
        axis.set_xticks(range(len(columns)), map(str, columns))
        axis.set_yticks(range(len(rows)), map(str, rows) if axis is axes[0] else [""] * len(rows))
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
    figure.suptitle(f"{_finding(analysis, maps)}\n{analysis.report.title}", fontsize=12)
    figure.supxlabel(
        "how many times as fast; purple: proved to be faster, orange: proved to be slower, hatched: not proved",
        fontsize=10,
    )
    return keep_figure(figure, path)


def _draw_cells(axis, cells):
    import matplotlib
    from matplotlib.patches import Rectangle

    for (row, column), entry in cells.items():
        speed_up = entry.standing.speed_up
        strength = max(-1.0, min(1.0, math.log2(speed_up.value)))
        color = matplotlib.colormaps[COLORS](0.5 + 0.5 * strength) if speed_up.decided else "white"
        axis.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                facecolor=color,
                edgecolor="#AAAAAA",
                hatch="" if speed_up.decided else "//",
            )
        )
        axis.text(
            column,
            row,
            f"{speed_up.value:.2f}",
            ha="center",
            va="center",
            fontsize=14,
            color="white" if speed_up.decided and abs(strength) > 0.7 else "black",
            bbox=None if speed_up.decided else {"facecolor": "white", "edgecolor": "none", "pad": 2},
        )


def _label(cells):
    return series_name(entry.row for entry in cells.values())


def _finding(analysis, maps):
    counts = []
    for cells in maps.values():
        faster = sum(entry.standing.speed_up.words == FASTER for entry in cells.values())
        counts.append(f"“{_label(cells)}” in {faster} of {len(cells)}")
    return f"Faster than {analysis.report.settings['baseline']}: {', '.join(counts)} cases"
