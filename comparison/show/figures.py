"""How the figures of a comparison are kept: as PNG and SVG, in the language that is spoken."""

import contextlib
from pathlib import Path

from common.errors import MACHINE, SuiteError
from common.files.plots import save_figure, show_literally
from common.files.writing import replacing
from comparison.show.language import ENGLISH, say, spoken, widened
from comparison.show.terminal import fill

EDGE, FEWEST = 0.1, 10  # inches that a figure's edges keep free; columns of a line in a title
PANEL = 0.85  # of a panel's width lies above its axes, beside their labels

# Fonts with Chinese characters, as matplotlib calls them.
FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Heiti TC",
    "Arial Unicode MS",
    "Droid Sans Fallback",
)


def find_font(language: str) -> str | None:
    """Return a font for the figures' texts, None for English; raise SuiteError (MACHINE) where none is installed."""
    if language == ENGLISH:
        return None
    from matplotlib.font_manager import findSystemFonts, fontManager, get_font_names

    font = _first_of(get_font_names())
    if font is None:  # matplotlib's list may be older than the font
        for file in set(findSystemFonts()) - {known.fname for known in fontManager.ttflist}:
            with contextlib.suppress(RuntimeError):  # a font that it cannot read
                fontManager.addfont(file)
        font = _first_of(get_font_names())
    if font is None:
        raise SuiteError(
            "there is no font with Chinese characters for the figures",
            f"looked for {', '.join(FONTS)}",
            "install one, e.g. the package fonts-noto-cjk, or leave out --lang",
            MACHINE,
        )
    return font


def _first_of(names):
    return next((name for name in FONTS if name in names), None)


def keep_figure(figure, path: Path) -> Path:
    """Write `figure` as a PNG and, beside it, as an SVG; return the PNG's path."""
    import matplotlib

    font = find_font(spoken())
    if font:
        _say_all(figure)
    with matplotlib.rc_context({"font.sans-serif": [font]} if font else {}):
        show_literally(figure)  # before a title is measured
        part_titles(figure)
        save_figure(figure, path)
        with replacing(path.with_suffix(".svg")) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
    return path


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


def _say_all(figure):
    """Say every text of a figure; those at ticks are made anew with each drawing, if they are not set as such."""
    from matplotlib.text import Text

    for axis in (part for axes in figure.axes for part in (axes.xaxis, axes.yaxis)):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        said = [say(label) for label in labels]
        if said != labels:
            axis.set_ticks(axis.get_ticklocs(), said)
    for text in figure.findobj(Text):
        text.set_text(say(text.get_text()))
