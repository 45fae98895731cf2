"""The report as one HTML file: whole, well-formed, with nothing from elsewhere."""

import base64
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from comparison.judge.analysis import analyse
from comparison.results_file import read_results
from comparison.show.figures import draw_all
from comparison.show.report import write_html
from comparison.show.verdict import recommendations
from tests.fixtures import PROJECT
from tests.reports import COMPARISONS, DDP, SINGLE, configuration, report_of, runs

VOID = {"meta", "img", "br", "circle"}


class Page(HTMLParser):
    """Raises AssertionError where tags do not match; keeps tags with their attributes, and the text."""

    def __init__(self, file):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(file.read_text(encoding="utf-8"))
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def page_of(report, tmp_path, figures=()):
    write_html(analyse(report), tmp_path / "report.html", figures)
    return Page(tmp_path / "report.html")


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_committed_comparison_as_one_file(name, tmp_path):
    report = read_results(PROJECT / "figures" / name / "results.json")
    figures = draw_all(analyse(report), tmp_path)
    page = page_of(report, tmp_path, figures)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 2**20 and page.count("img") == len(figures) > 2
    addresses = [value for _, values in page.tags for key, value in values.items() if key in ("src", "href", "action")]
    for address in addresses:
        kind, _, content = address.partition(",")
        assert kind == "data:image/svg+xml;base64" and base64.b64decode(content).startswith(b"<?xml")
    assert "url(" not in text and "@import" not in text
    shown = " ".join(" ".join(page.texts).split())
    assert all(sentence in shown for sentence in recommendations(analyse(report)))
    assert all(outcome.command in shown for outcome in report.outcomes)
    epochs = sum(len(result.timed_epochs) for row in report.rows for result in row.results)
    assert page.count("circle") == epochs  # every raw time


def test_charts_tell_their_numbers(tmp_path):
    page = page_of(report_of(SINGLE, (configuration("ddp"), runs("ddp", (1.0, 1.01, 0.99)))), tmp_path)
    assert "SINGLE, block 2, epoch 3: 2.020 s" in " ".join(page.texts)
    centres = [float(values["cx"].rstrip("%")) for tag, values in page.tags if tag == "circle"]
    assert len(centres) == 12 and max(centres) <= 80


@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium")
@pytest.mark.parametrize("width", [360, 400, 800, 1800])
def test_a_browser_shows_it_without_sideways_scrolling_and_sorts_a_table(width, tmp_path):
    page_of(read_results(PROJECT / "figures" / "compare-synthetic" / "results.json"), tmp_path)
    file = tmp_path / "report.html"
    asked = """<script>
        const errors = []; addEventListener("error", event => errors.push(event.message));
        const heads = [...document.querySelectorAll("th")], head = heads.find(head => head.innerText == "Images/s");
        const column = () => [...head.closest("table").tBodies[0].rows].map(row => row.cells[head.cellIndex].innerText);
        head.click(); const up = column(); head.click();
        const ends = [...document.querySelectorAll(".answers th, .answers td, .chart span, .chart text")]
            .map(part => part.getBoundingClientRect().right);
        parent.document.body.innerHTML = "<pre id=told>" + JSON.stringify({up: up, down: column(), errors: errors,
            over: document.scrollingElement.scrollWidth - innerWidth, width: innerWidth, ends: ends}) + "</pre>";
        </script></body>"""
    inside = html.escape(file.read_text(encoding="utf-8").replace("</body>", asked))
    file.write_text(
        f'<iframe style="border: 0" width="{width}" height="900" srcdoc="{inside}"></iframe>', encoding="utf-8"
    )  # no window of Chromium's is as narrow as a telephone's
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=2000,1000 --dump-dom".split()
    command = ["chromium", *flags, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = json.loads(html.unescape(re.search(r'<pre id="told">(.*)</pre>', done.stdout)[1]))
    numbers = [float(text.replace(",", "")) for text in told["up"]]
    assert numbers == sorted(numbers) and told["down"] == told["up"][::-1] and len(numbers) == 7
    assert told["errors"] == [] and told["over"] <= 0
    assert told["width"] == width and len(told["ends"]) > 60 and max(told["ends"]) <= width  # bars, speed-ups, results


def test_what_comes_from_outside_is_text(tmp_path):
    label = "<script>alert(1)</script>"
    report = report_of((configuration("single", command=(label,)), ["failed"]), DDP, dataset=label)
    assert page_of(report, tmp_path).count("script") == 1  # its own
