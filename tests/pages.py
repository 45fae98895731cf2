"""report.html, read as a tree of elements."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder

VOID = {"meta", "img", "br", "circle", "rect", "line"}


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tree, self.open = TreeBuilder(), []

    def handle_starttag(self, tag, attributes):
        self.tree.start(tag, dict(attributes))
        if tag in VOID:
            self.tree.end(tag)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag
            self.tree.end(tag)

    def handle_data(self, data):
        self.tree.data(data)


def read_page(file: Path) -> Element:
    """Return the root element. Raises AssertionError if tags do not match."""
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    assert not reader.open, reader.open
    return reader.tree.close()


def words_of(page: Element) -> str:
    """Return all texts that a reader sees, with single spaces."""
    return " ".join(" ".join(page.find("body/main").itertext()).split())
