"""The figures of a comparison, each with the question that it answers, and how they are kept: as PNG and SVG."""

import contextlib
import html
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import MACHINE, SuiteError
from common.files.plots import save_figure, show_literally
from common.files.writing import replacing
from comparison.judge.analysis import Analysis
from comparison.rows import SWEEPS
from comparison.show.plots import draw_curves, draw_memory, draw_speed_ups
from comparison.show.step_plots import draw_phases, draw_timelines
from comparison.show.sweep_plots import draw_map, draw_scaling, draw_sweep
from comparison.show.terminal import fill
from comparison.words import ENGLISH, spoken, widened

EDGE, FEWEST = 0.1, 10  # inches that a figure's edges keep free; columns of a line in a title
PANEL = 0.75  # of a panel's width lies above its axes, beside their labels
FONTS = (  # with Chinese characters, as matplotlib calls them
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Heiti TC"),
    *("Arial Unicode MS", "Droid Sans Fallback"),
)
# By file, a function that returns a matplotlib figure of a comparison, None where there is nothing to draw.
FIGURES: dict[str, Callable[[Analysis], Any]] = {
    "curves.png": draw_curves,  # What do the rows learn, and how soon?
    "speed-up.png": draw_speed_ups,  # How many times as fast as the baseline is each row, how sure?
    "phases.png": draw_phases,  # What is in a step, and what should be?
    "memory.png": draw_memory,  # How much memory does a device need?
    "timeline.png": draw_timelines,  # What does every device do when?
    **{f"sweep-{name.replace('_', '-')}.png": partial(draw_sweep, name=name) for name in SWEEPS},  # Which is fastest?
    "map.png": draw_map,  # For which model and batch does a method pay?
    "scaling.png": draw_scaling,  # What do more devices give?
}


def draw_all(analysis: Analysis, directory: Path) -> list[Path]:
    """Draw every figure for which there are data; return the PNGs' paths."""
    drawn = ((name, draw(analysis)) for name, draw in FIGURES.items() if analysis.done)
    return [keep_figure(figure, directory / name) for name, figure in drawn if figure]


def find_font(language: str) -> str | None:
    """Return a font for the figures' texts, None for English; raise SuiteError (MACHINE) where none is installed."""
    if language == ENGLISH:
        return None
    from matplotlib.font_manager import findSystemFonts, fontManager, get_font_names

    if not {*FONTS} & {*get_font_names()}:  # matplotlib's list may be older than the font
        for file in {*findSystemFonts()} - {known.fname for known in fontManager.ttflist}:
            with contextlib.suppress(RuntimeError):  # a font that it cannot read
                fontManager.addfont(file)
    installed = [name for name in FONTS if name in get_font_names()]
    if not installed:
        raise SuiteError(
            "there is no font with Chinese characters for the figures",
            f"looked for {', '.join(FONTS)}",
            "install one, e.g. the package fonts-noto-cjk, or leave out --lang",
            MACHINE,
        )
    return installed[0]


def keep_figure(figure, path: Path) -> Path:
    """Write `figure` as a PNG and, beside it, as an SVG; return the PNG's path."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    font = find_font(spoken())
    with matplotlib.rc_context({"font.sans-serif": [font]} if font else {}):
        show_literally(figure)  # before a title is measured
        part_titles(figure)
        save_figure(figure, path)
        with replacing(path.with_suffix(".svg")) as file:
            FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Title": figure.get_suptitle()})
    return path


def shown_by(path: Path) -> str:
    """Return what a figure that was kept shows, as its title says it."""
    title = re.search("<title>(.*?)</title>", path.with_suffix(".svg").read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(html.unescape(title[1]).split()) if title else path.stem


def part_titles(figure) -> None:
    """Part what is written across the figure, or above a panel, into lines that fit, and make room for them."""
    width = figure.bbox.width - 2 * EDGE * figure.dpi
    across = [_part(text, width) for text in figure.texts]
    above = [_part(axes.title, PANEL * width / axes.get_subplotspec().get_gridspec().ncols) for axes in figure.axes]
    figure.set_figheight(figure.get_figheight() + sum(across) + max(above))


def _part(text, width):
    """Part a text's lines so that none is wider than so many pixels; return how much higher it is then, in inches."""
    lines, height = text.get_text().split("\n"), text.get_window_extent().height
    columns = max(len(widened(line)) for line in lines)
    while text.get_window_extent().width > width and columns > FEWEST:
        columns -= 1
        text.set_text("\n".join(fill(line, columns) for line in lines))
    return (text.get_window_extent().height - height) / text.get_figure().dpi
