"""The figure of one run, and what all figures have in common."""

from pathlib import Path

from common.describe import result_name
from common.results import RunResult
from common.writing import replacing

LOOK = {"color": "#222222", "marker": "o"}  # of one run, whatever its method


def new_figure(columns: int = 1, width: float = 8.0, height: float = 4.5):
    """Return (figure, axes) with `columns` axes side by side; width and height in inches. Draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure, axes


def save_figure(figure, path: Path) -> Path:
    """Write `figure` as a PNG of 150 dots per inch; return `path`."""
    from matplotlib.text import Text

    path.parent.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        printable = text.get_text().encode(errors="replace").decode()
        if printable != text.get_text():  # a path that is no UTF-8
            text.set_text(printable)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=150)
    return path


def draw_curves(result: RunResult, directory: str | Path) -> Path:
    """Draw loss and accuracy over the epochs of one run into `directory`; return the PNG's path."""
    figure, (loss_axis, accuracy_axis) = new_figure(columns=2, width=9.0, height=3.8)
    epochs = [record.epoch for record in result.epochs]
    loss_axis.plot(epochs, [record.train_loss for record in result.epochs], **LOOK, label="training")
    loss_axis.plot(epochs, [record.test_loss for record in result.epochs], **LOOK, linestyle="--",
                   markerfacecolor="white", label="test")
    loss_axis.set(ylabel="cross-entropy loss (nats per image)", ylim=(0, None))
    loss_axis.legend()
    accuracy_axis.plot(epochs, [100 * record.test_accuracy for record in result.epochs], **LOOK)
    accuracy_axis.set(ylabel="test accuracy (%)")
    for axis in (loss_axis, accuracy_axis):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    devices = f"{len(result.devices)} × {result.devices[0]}"
    label = "SIMULATED: " if result.simulated else ""
    figure.suptitle(f"{result.config['model']} on {result.config['dataset']}, {result.method}, {devices}"
                    + (f"\n{label}{result.reason}" if result.reason else ""), fontsize=11)
    return save_figure(figure, Path(directory) / f"{result_name(result)}.png")
