"""report.html: a well-formed file without external resources, and how a browser shows it."""

import functools
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from comparison.judge.analysis import analyse
from comparison.results_file import read_results
from comparison.show.advice import recommendations
from comparison.show.figures import FIGURES, draw_all
from comparison.show.report import write_html
from comparison.words import ENGLISH, speaking
from tests.browser import Browser, needs_chromium
from tests.fixtures import PROJECT
from tests.pages import read_page, words_of
from tests.reports import DDP, SINGLE, configuration, report_of, runs, script

TRACED = "cifar10-vgg"  # has a timeline
SHOWN = (  # of several kinds, including the widest table and the most findings
    *("compare-synthetic", TRACED, "own-script"),
    *("benchmark/bind-lenet", "benchmark/pipeline-resnet8", "ladder-mnist"),
)
WIDTHS = (360, 400, 800, 1400, 1800)


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return a function: a committed comparison's report and page, written once, with figures if in English."""

    @functools.cache
    def committed(name, language=ENGLISH):
        report, place = read_results(PROJECT / "figures" / name / "results.json"), tmp_path_factory.mktemp("page")
        with speaking(language):
            figures = draw_all(analyse(report), place) if language == ENGLISH else []
            write_html(analyse(report), place / "report.html", figures)
        return report, place / "report.html"

    return committed


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_is_one_file_with_all_results(name, committed):
    report, file = committed(name)
    page, text = read_page(file), file.read_text(encoding="utf-8")
    assert len(text.encode()) < 10**6
    addresses = [value for one in page.iter() for key, value in one.items() if key in ("src", "href", "action")]
    assert len(addresses) == len([*page.iter("img")]) >= 2
    for address in addresses:
        kind, _, content = address.partition(",")
        assert kind == "data:image/svg+xml" and ElementTree.fromstring(unquote(content)).tag.endswith("svg")
    assert "url(" not in text and "@import" not in text
    shown = words_of(page)
    assert all(sentence in shown for sentence in recommendations(analyse(report)))
    assert all(outcome.command in shown for outcome in report.outcomes)
    timed = [row for row in report.rows if not row.simulated]
    epochs = sum(len(result.timed_epochs) for row in timed for result in row.results)
    assert len([*page.iter("circle")]) == epochs  # every raw time
    sliders = page.findall(".//svg[@role='slider']")
    assert len(sliders) == len(timed) and all("{x} s" in slider.get("data-words") for slider in sliders)
    assert {heading.get("scope") for heading in page.iter("th")} == {"col", "row"}


def test_the_alternative_text_of_a_figure_is_its_title(committed):
    _, file = committed("compare-synthetic")
    phases, curves, speed_up, memory = (image.get("alt") for image in read_page(file).iter("img"))
    assert speed_up.startswith("“one process, all cores” is 1.69 times as fast as “one device” lenet on ")
    assert all(" lenet on synthetic-cifar10, global batch 128" in alt for alt in (phases, curves, speed_up, memory))


def test_a_page_embeds_all_figures_the_important_ones_first(tmp_path):
    for name in FIGURES:
        (tmp_path / name).with_suffix(".svg").write_text(f"<svg><title>{name} &amp;\n x</title></svg>")
    write_html(analyse(report_of(SINGLE, DDP)), tmp_path / "report.html", [tmp_path / name for name in FIGURES])
    embedded = re.findall(r'alt="(\S+) &amp; x"', (tmp_path / "report.html").read_text())
    first = ["phases.png", "timeline.png"]
    assert embedded == first + [name for name in FIGURES if name not in first]


@pytest.fixture
def page_of(tmp_path):
    """Return a function: the page of a comparison with these rows."""

    def page_of(*rows, **settings):
        write_html(analyse(report_of(*rows, **settings)), tmp_path / "report.html", [])
        return read_page(tmp_path / "report.html")

    return page_of


@pytest.mark.parametrize("milliseconds", [0.1, 20.0])
def test_short_times_of_scripts_are_readable(milliseconds, page_of):
    texts = [*page_of(script("mine", milliseconds), warmup=10).itertext()]
    assert ("0.0010 s" if milliseconds < 1 else "0.20 s") in texts and "0.00 s" not in texts


def test_the_line_of_a_mean_is_inside_its_strip(page_of):
    """The mean of a row with one run in a fast block is adjusted to slower ones."""
    slower = configuration(), runs(seconds=(0.5, 1.0, 1.0))
    once = configuration("ddp"), [*runs("ddp", (0.9,)), "failed", "failed"]
    ticks = [float(bar.get("x").strip("%")) for bar in page_of(slower, once).iter("rect") if bar.get("x")]
    assert len(ticks) >= 2 and max(ticks) <= 100


def test_a_page_in_chinese_says_in_chinese_what_has_no_table(page_of):
    with speaking("zh"):
        shown = words_of(page_of((configuration(), ["failed"])))
    assert "没有一次运行正常结束。" in shown and "No run ended well" not in shown


# ---- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


OVERFLOW = """[document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ...[...document.querySelectorAll("main :is(p, li, h1, h2, th, td, svg, img)")].filter(part =>
        part.checkVisibility() && !part.closest(".wide") && (part.getBoundingClientRect().left < 0 ||
        part.getBoundingClientRect().right > innerWidth || part.scrollWidth > part.clientWidth + 1 && part.clientWidth))
        .map(part => part.tagName + " " + part.textContent.trim())]"""


@needs_chromium
@pytest.mark.parametrize("name, language", [*((name, "en") for name in SHOWN), ("compare-synthetic", "zh")])
def test_nothing_is_cut_off_at_any_width(name, language, committed, browser):
    for width in WIDTHS:
        browser.open(committed(name, language)[1], width)
        browser.ask("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert browser.ask(OVERFLOW) == [0], width
    assert browser.errors == []


@needs_chromium
@pytest.mark.parametrize("name", SHOWN)
def test_a_page_prints_on_two_sheets(name, committed, browser, tmp_path):
    browser.open(committed(name)[1], 1400, dark=True)
    assert 1 <= browser.print_to(tmp_path / "report.pdf") <= 2
    browser.do("Emulation.setEmulatedMedia", media="print")
    shown = browser.ask(
        "[...document.querySelectorAll('section, details')].filter(part => part.checkVisibility())"
        ".map(part => part.className)"
    )
    browser.do("Emulation.setEmulatedMedia", media="")
    assert [part for part in shown if part != "warned"] == ["answers", "times", "phases"]


# Number of visible parts, and [contrast, HTML] of those with too little: texts need 4.5, parts of figures 3 (WCAG).
CONTRASTS = """(() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const light = color => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
            .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0.05); };
    const ground = part => { const color = getComputedStyle(part).backgroundColor;
        return color === "rgba(0, 0, 0, 0)" ? ground(part.parentElement) : color; };
    const poor = [];
    const check = (part, color, behind, least) => { const one = light(color), other = light(behind);
        const contrast = Math.max(one, other) / Math.min(one, other);
        if (contrast < least) poor.push([contrast, part.outerHTML.slice(0, 80)]); };
    let seen = 0;
    for (const part of document.querySelectorAll("body *")) {
        if (!part.checkVisibility() || part.matches("script, title")) continue;
        if ([...part.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
            check(part, getComputedStyle(part).color, ground(part), 4.5, seen++);
        const around = ground(part.parentElement), own = getComputedStyle(part);
        if (part.matches("circle, rect")) check(part, own.fill, around, 3, seen++);
        if (part.matches(".answer, .warned")) check(part, own.borderLeftColor, around, 3, seen++);
    }
    return [seen, poor]; })()"""


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_enough_contrast(dark, committed, browser):
    browser.open(committed(TRACED)[1], 1400, dark)
    assert (browser.ask("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)") == dark
    browser.ask("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.hover(".times tr")  # highlights the row and shows a time
    seen, poor = browser.ask(CONTRASTS)
    assert poor == [] and seen > 500 and browser.ask("!document.querySelector('output').hidden")


COLUMN = """[...document.querySelectorAll(".answers tbody tr")].map(row => row.cells[3].textContent)"""  # memory
SORTED = """[...document.querySelectorAll(".answers thead th")].map(head => head.getAttribute("aria-sort"))"""


@needs_chromium
@pytest.mark.parametrize("width", [360, 1400])
def test_a_table_is_sorted_by_click_and_by_keyboard(width, committed, browser):
    browser.open(committed("compare-synthetic")[1], width)
    assert browser.ask(SORTED) == [None] * 6
    browser.click(".answers th:nth-child(2) button")
    by_time = browser.ask(COLUMN)
    for sort, order in (
        (lambda: browser.click(".answers th:nth-child(4) button"), "ascending"),
        (lambda: browser.press("Enter"), "descending"),  # the button has the focus
    ):
        sort()
        *numbers, last = browser.ask(COLUMN)
        assert last == "–" and browser.ask(SORTED) == [None, None, None, order, None, None]
        values = [float(text.replace(",", "")) for text in numbers]
        assert values == sorted(values, reverse=order == "descending") and len(values) == 6
    assert by_time != [*numbers, last] and sorted(by_time) == sorted([*numbers, last])


LINKED = """[...document.querySelectorAll(".HOW")]
    .map(row => [row.closest("section").className, row.cells[0].innerText])"""
ROW = ".answers tbody tr:nth-child(2)"


@needs_chromium
def test_a_row_is_highlighted_in_all_parts(committed, browser):
    browser.open(committed(TRACED)[1], 1400)
    everywhere = [[part, "DDP ×2, gloo"] for part in ("answers", "times")]
    on, kept = (LINKED.replace("HOW", how) for how in ("on", "kept"))
    assert browser.ask(on) == browser.ask(kept) == []
    browser.hover(f"{ROW} td")
    assert browser.ask(on) == everywhere
    browser.point(0, 0)
    assert browser.ask(on) == []
    browser.ask(f"document.querySelector('{ROW} button').focus()")
    assert browser.ask(on) == everywhere
    browser.press("Enter")
    browser.press("Tab")
    assert browser.ask(on) != everywhere and browser.ask(kept) == everywhere
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map(one => one.innerText)"
    assert browser.ask(pressed) == ["DDP ×2, gloo"] * 2
    browser.click(".times .kept th button")
    assert browser.ask(kept) == browser.ask(pressed) == [] and browser.errors == []


@needs_chromium
def test_every_raw_time_is_shown_to_pointer_touch_and_keyboard(committed, browser):
    report, page = committed("compare-synthetic")
    browser.open(page, 360)
    (slowest,) = (row for row in report.rows if row.configuration.method == "fsdp")
    count = sum(len(result.timed_epochs) for result in slowest.results)
    strip = ".times tr:nth-child(6) svg"  # the row with the longest times
    places = browser.ask(f"[...document.querySelectorAll('{strip} circle')].map(dot => dot.dataset.at.split(' '))")
    words = [f"FSDP ×2, gloo, block {block}, epoch {epoch}: {seconds} s" for block, epoch, seconds in places]
    seconds = [float(seconds) for *_, seconds in places]
    assert len(words) == count > 3 and seconds == sorted(seconds)
    told = f"""(() => {{ const tip = document.querySelector("output"), box = tip.getBoundingClientRect();
        const above = document.querySelector("{strip}").getBoundingClientRect().top - box.bottom;
        const beside = box.left >= 0 && box.right <= innerWidth && above >= 0 && above < 10;
        return [tip.hidden ? "" : tip.textContent, tip.hidden || beside]; }})()"""
    browser.hover(f"{strip} circle:nth-of-type({count})")
    assert browser.ask(told) == [words[-1], True]
    browser.point(0, 0)
    assert browser.ask(told) == ["", True]
    browser.touch(f"{strip} circle:nth-of-type(1)")
    assert browser.ask(told) == [words[0], True]
    browser.ask(f"document.querySelector('{strip}').focus()")
    for key, place in (("ArrowRight", 1), ("End", -1), ("ArrowRight", -1), ("ArrowLeft", -2), ("Home", 0)):
        browser.press(key)
        assert browser.ask(told) == [words[place], True]
        assert browser.ask("document.activeElement.getAttribute('aria-valuetext')") == words[place]


@needs_chromium
@pytest.mark.parametrize("width", [360, 1400])
def test_a_screen_reader_gets_tables_and_headings(width, committed, browser):
    browser.open(committed(TRACED)[1], width)
    roles = browser.roles()
    assert ("columnheader", "Result") in roles and roles.count(("rowheader", "DDP ×2, gloo")) == 2
    headings = [name for role, name in roles if role == "heading"]
    assert headings[0].startswith("vgg on cifar10") and "Seconds of every timed epoch" in headings[1]
    assert {"Verdict", "Figures", "Commands"} <= {*headings}
    assert all(name for role, name in roles if role in ("slider", "image", "button"))
