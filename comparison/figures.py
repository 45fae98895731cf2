"""How the figures of a comparison are kept."""

from pathlib import Path

from common.plots import save_figure
from common.writing import replacing


def keep_figure(figure, path: Path) -> Path:
    """Write `figure` as a PNG and, beside it, as an SVG; return the PNG's path."""
    save_figure(figure, path)
    with replacing(path.with_suffix(".svg")) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    return path
