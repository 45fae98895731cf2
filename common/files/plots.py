"""The figures of one run, and helpers for all figures."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files.describe import result_name
from common.files.results import PHASES, RunResult, Span
from common.files.writing import atomic_write
from common.words import count, printable

LOOK = {"color": "#222222", "marker": "o"}  # of the curves of one run
BETWEEN_RANKS, ON_A_GPU = ("messages between ranks", "#9A2FD0"), ("kernels on a GPU", "#222222")
STYLE: dict[Any, Any] = {  # matplotlib settings of every figure; legible at half size
    **{"font.size": 11.0, "axes.titlesize": "medium", "figure.labelsize": "medium"},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True},
    **{"grid.alpha": 0.3, "legend.frameon": False, "lines.linewidth": 2.0, "errorbar.capsize": 4.0},
}


def import_matplotlib() -> None:
    """Import matplotlib, which takes half a second."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def new_figure(columns: int = 1, width: float = 9.0, height: float = 4.5, rows: Sequence[float] = (1,)):
    """Return (figure, flat array of axes). width, height: in inches. rows: relative height of each row."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    # The same dpi as in the PNG, because hinting changes the width of texts.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), columns, squeeze=False, sharex=columns == 1, height_ratios=rows)
    return figure, axes.ravel()


def new_panels(count: int, height: float, each: float, across: int = 3):
    """Return (figure, axes, columns) for `count` panels, at most `across` in a row. each: inches added for each row."""
    rows = -(-count // across)
    columns = -(-count // rows)
    figure, axes = new_figure(columns, height=height + each * rows, rows=(1,) * rows)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count], columns


def save_figure(figure, path: Path) -> Path:
    """Write `figure` as a PNG with 150 dots per inch. Return `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    show_literally(figure)
    with atomic_write(path) as file:
        # savefig() would draw the figure twice, and compress at level 6, which takes longer for large files.
        FigureCanvasAgg(figure).print_png(file, pil_kwargs={"compress_level": 3})
    figure.set_layout_engine("none")  # the layout is final
    return path


def show_literally(figure) -> None:
    """Draw texts literally, without formulas between dollar signs, except in matplotlib's own numbers at the ticks."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    numbers = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        labels, formatter = axis.get_ticklabels(which="both"), axis.get_major_formatter()
        if isinstance(formatter, (LogFormatter, ScalarFormatter)):
            numbers.update(labels)
        else:  # tick labels that were set by hand, which the formatter sets again when it is drawn
            axis.set_major_formatter(lambda *place, label=formatter: printable(label(*place)))
    for text in set(figure.findobj(Text)) - numbers:
        text.set(text=printable(text.get_text()), parse_math=False)


def draw_timeline(axis, spans: tuple[Span, ...]) -> dict[str, object]:
    """Draw the phases of each rank's steps as a bar, and its communication and each GPU as thin bars below. Return
    name → artist for a legend, without names whose spans are all too short to see."""
    ranks, shortest = sorted({span.rank for span in spans}), max(span.end for span in spans) / 1000
    legend: dict[str, object] = {}
    heights, top = {}, 0.0
    for rank in ranks:
        thin = sorted({span.lane for span in spans if span.rank == rank} - {"step"})
        heights[rank, "step"] = top
        heights |= {(rank, lane): top + 0.45 + 0.2 * number for number, lane in enumerate(thin)}
        top += 0.8 + 0.2 * len(thin)
    for span in spans:
        height, length = heights[span.rank, span.lane], span.end - span.start
        if span.lane == "step":
            name, color = span.name, PHASES.get(span.name, PHASES["rest"]).color
            (bar,) = axis.barh(height, length, 0.4, span.start, color=color, edgecolor="white", linewidth=0.5)
        else:
            name, color = BETWEEN_RANKS if span.lane == "link" else ON_A_GPU
            (bar,) = axis.barh(height + 0.03, length, 0.12, span.start, color=color)
        if length > shortest:
            legend.setdefault(name, bar)
    axis.set_yticks([heights[rank, "step"] for rank in ranks], [f"rank {rank}" for rank in ranks])
    axis.set_ylim(top - 0.4, -0.4)
    axis.grid(visible=False, axis="y")
    return legend


def draw_curves(result: RunResult, directory: str | Path) -> Path:
    """Draw loss and accuracy over the epochs of one run as a PNG in `directory`. Return its path."""
    figure, (loss_axis, accuracy_axis) = new_figure(columns=2, height=3.8)
    epochs = [record.epoch for record in result.epochs]
    test: dict[str, Any] = {**LOOK, "linestyle": "--", "markerfacecolor": "white", "label": "test"}
    loss_axis.plot(epochs, [record.train_loss for record in result.epochs], **LOOK, label="training")
    loss_axis.plot(epochs, [record.test_loss for record in result.epochs], **test)
    loss_axis.set(ylabel="cross-entropy loss (nats per image)", ylim=(0, None))
    loss_axis.legend()
    accuracy_axis.plot(epochs, [100 * record.test_accuracy for record in result.epochs], **LOOK)
    accuracy_axis.set(ylabel="test accuracy (%)")
    for axis in (loss_axis, accuracy_axis):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    kinds = Counter(device.partition(" (")[2].removesuffix(")") or device for device in result.devices)
    devices, last = ", ".join(f"{number} × {kind}" for kind, number in kinds.items()), result.epochs[-1]
    texts = [
        f"After {count(last.epoch, 'epoch')}, {last.test_accuracy:.2%} of the test images are recognized",
        f"{result.config['model']} on {result.config['dataset']}, {result.method}, {devices}",
        result.note if result.reason else "",
    ]
    lines = [line for text in texts for line in textwrap.wrap(text, 80)]
    figure.set_figheight(figure.get_figheight() + 0.2 * (len(lines) - 2))
    figure.suptitle("\n".join(lines))
    return save_figure(figure, Path(directory) / f"{result_name(result)}.png")
