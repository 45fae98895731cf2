"""All figures of a comparison, drawn and saved as PNG and SVG."""

import contextlib
import html
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import MACHINE, SuiteError
from common.files.plots import save_figure, show_literally
from common.files.writing import atomic_write
from comparison.judge.analysis import Analysis
from comparison.rows import SWEEPS
from comparison.show.plots import draw_memory, draw_phases, draw_speed_ups, draw_timelines, fitted
from comparison.show.remarks import MOST_ROWS
from comparison.show.sweep_plots import draw_curves, draw_map, draw_scaling, draw_sweep
from comparison.words import ENGLISH, spoken, widened

MARGIN = 0.1  # inches
FEWEST_COLUMNS = 10  # in a line of a title
AXES_SHARE = 0.75  # of the width of a panel; the tick labels take the rest
FONTS = (  # with Chinese characters, by matplotlib's names
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Heiti TC"),
    *("Arial Unicode MS", "Droid Sans Fallback"),
)
# By file name, a function that returns a matplotlib figure, or None if there is nothing to draw.
OF_ROWS: dict[str, Callable[[Analysis], Any]] = {
    "curves.png": draw_curves,  # How accurate is each row, and when?
    "speed-up.png": draw_speed_ups,  # How fast is each row compared with the baseline?
    "phases.png": draw_phases,  # Where does the time of a step go?
    "memory.png": draw_memory,  # How much memory does a device need?
    "timeline.png": draw_timelines,  # What does each device do at which time?
}
FIGURES: dict[str, Callable[[Analysis], Any]] = {
    **OF_ROWS,
    # Which value is fastest?
    **{f"sweep-{name.replace('_', '-')}.png": partial(draw_sweep, name=name) for name in SWEEPS},
    "map.png": draw_map,  # For which models and batches is a method faster?
    "scaling.png": draw_scaling,  # How does speed grow with devices?
}


def draw_all(analysis: Analysis, directory: Path) -> list[Path]:
    """Draw every figure that has data and is legible with so many rows, and return the paths of the PNG files."""
    if not analysis.done:
        return []
    names = [name for name in FIGURES if name not in OF_ROWS or len(analysis.done) <= MOST_ROWS]
    drawn = ((name, FIGURES[name](analysis)) for name in names)
    return [keep_figure(figure, directory / name) for name, figure in drawn if figure]


def find_font(language: str) -> str | None:
    """Return a font with Chinese characters, or None for English. Raises SuiteError (MACHINE) if none is installed."""
    if language == ENGLISH:
        return None
    installed = _installed()
    if not installed:
        raise SuiteError(
            "there is no font with Chinese characters for the figures",
            f"looked for {', '.join(FONTS)}",
            "install one, e.g. the package fonts-noto-cjk, or leave out --lang",
            MACHINE,
        )
    return installed[0]


def _installed() -> list[str]:
    """Return those of FONTS that are installed."""
    from matplotlib.font_manager import findSystemFonts, fontManager, get_font_names

    if not {*FONTS} & {*get_font_names()}:  # matplotlib's font list is cached
        for file in {*findSystemFonts()} - {known.fname for known in fontManager.ttflist}:
            with contextlib.suppress(RuntimeError):  # unreadable font file
                fontManager.addfont(file)
    return [name for name in FONTS if name in get_font_names()]


def keep_figure(figure, path: Path) -> Path:
    """Write `figure` as PNG and SVG, and return the path of the PNG."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    font, fonts = find_font(spoken()), matplotlib.rcParams["font.sans-serif"]
    if font:
        fonts = [font]
    elif any(widened(text.get_text()) != text.get_text() for text in figure.findobj(Text)):  # a name in Chinese
        fonts = [*fonts, *_installed()]
    with matplotlib.rc_context({"font.sans-serif": fonts}):
        show_literally(figure)  # before titles are measured
        wrap_titles(figure)
        save_figure(figure, path)
        with atomic_write(path.with_suffix(".svg")) as file:
            FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Title": figure.get_suptitle()})
    return path


def shown_by(path: Path) -> str:
    """Return the title of a saved figure."""
    svg = path.with_suffix(".svg").read_text(encoding="utf-8")
    return " ".join(html.unescape(re.search("<title>(.*?)</title>", svg, re.DOTALL)[1]).split())


def wrap_titles(figure) -> None:
    """Wrap the titles of the figure and its panels, and make the figure taller to fit them."""
    width = figure.bbox.width - 2 * MARGIN * figure.dpi
    added = [_wrap(text, width) for text in figure.texts]
    above: dict[int, float] = {}  # the panels of a row, by its number
    for axes in figure.axes:
        place = axes.get_subplotspec()
        height = _wrap(axes.title, AXES_SHARE * width / place.get_gridspec().ncols)
        above[place.rowspan.start] = max(height, above.get(place.rowspan.start, 0.0))
    figure.set_figheight(figure.get_figheight() + sum(added) + sum(above.values()))


def _wrap(text, width):
    """Wrap a text to `width` pixels, and return the height that this adds, in inches."""
    lines, height = text.get_text().split("\n"), text.get_window_extent().height
    columns = max(len(widened(line)) for line in lines)
    while text.get_window_extent().width > width and columns > FEWEST_COLUMNS:
        columns -= 1
        text.set_text("\n".join(fitted(line, columns) for line in lines))
    return (text.get_window_extent().height - height) / text.get_figure().dpi
