"""What a comparison says: a template and its values, English where it is made, in another language where it is shown.

A sentence is written once, in English, by say(), count() or join(). show/zh.toml has the Chinese of each template,
by its English without formats: "{n} images" for "{n:,} images"; long sentences stand
in show/sentences.toml, each beside its Chinese. Who shows a text asks render() for it.
"""

import contextlib
import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from string import Formatter

ENGLISH = "en"
LANGUAGES = (ENGLISH, "zh")
NUMBER = r"\b\d+\b"
NOTHING = "\u200b"  # takes no column
_language = ContextVar("language", default=ENGLISH)


class Sentence(str):
    """An English text that knows its template and its values: names, numbers, other texts."""

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, values: dict[str, object]) -> "Sentence":
        sentence = super().__new__(cls, template.format(**values) if values else template)
        sentence.template, sentence.values = template, values
        return sentence

    @property
    def capital(self) -> "Sentence":
        """The same with a capital letter."""
        return Sentence(self.template[0].upper() + self.template[1:], self.values)

    @property
    def small(self) -> "Sentence":
        """The same with a small letter."""
        return Sentence(self.template[0].lower() + self.template[1:], self.values)


class Joined(str):
    """Texts, one after the other, with a mark between each two."""

    mark: str
    parts: tuple[str, ...]

    def __new__(cls, mark: str, parts: Iterable[str]) -> "Joined":
        parts = tuple(parts)
        joined = super().__new__(cls, mark.join(parts))
        joined.mark, joined.parts = mark, parts
        return joined


def say(template: str, **values: object) -> Sentence:
    """Return a text that can be rendered in every language."""
    return Sentence(template, values)


def join(mark: str, parts: Iterable[str]) -> Joined:
    """Return texts with `mark` between them."""
    return Joined(mark, parts)


def count(number: float, noun: str, ending: str = "s") -> Sentence:
    """Return e.g. "3 runs" or "1 run"; ending: what the plural has."""
    return say(f"{{n}} {noun}" + ("" if number == 1 else ending), n=number)


def valued(setting: str, value: object) -> Sentence:
    """Return a setting's name and its value."""
    return say(f"{setting} {{value}}", value=value)


def named(name: str) -> str:
    """Return a row's name, or a reason that stands in a file, as it can be rendered: its parts, their numbers apart."""
    for mark in ("; ", ", "):
        if mark in name:
            return join(mark, map(named, name.split(mark)))
    numbers = {f"n{place}": number for place, number in enumerate(re.findall(NUMBER, name))}
    places = iter(numbers)
    template = re.sub(NUMBER, lambda _: f"{{{next(places)}}}", name.replace("{", "{{").replace("}", "}}"))
    return Sentence(template, numbers) if numbers else name


@contextlib.contextmanager
def speaking(language: str) -> Iterator[None]:
    """In the `with`, render() uses one of LANGUAGES."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def spoken() -> str:
    """Return which of LANGUAGES render() uses."""
    return _language.get()


def render(text: object) -> str:
    """Return a text in the language that is spoken; what has no translation stays as it is."""
    if spoken() == ENGLISH or not isinstance(text, str):
        return str(text)
    if isinstance(text, Joined):
        return _said(text.mark).join(map(render, text.parts))
    if not isinstance(text, Sentence) or not text.values:
        return _said(text)
    return _said(key_of(text.template)).format(
        **{name: _value(text.values[name], spec) for name, spec in places_of(text.template)}
    )


def places_of(template: str) -> list[tuple[str, str]]:
    """Return (name, format) of each place of a template."""
    return [(name, spec or "") for _, name, spec, _ in Formatter().parse(template) if name]


def key_of(template: str) -> str:
    """Return a template as a table of translations has it, without formats."""
    return "".join(
        before.replace("{", "{{").replace("}", "}}") + (f"{{{name}}}" if name else "")
        for before, name, _, _ in Formatter().parse(template)
    )


def _value(value, spec):
    return render(value) if isinstance(value, str) and not spec else format(value, spec)


def _said(english):
    """A template or a word in the spoken language, whose first letter may be small or a capital."""
    table = translations(spoken())
    return table.get(english, table.get(english[:1].swapcase() + english[1:], english))


@functools.cache
def translations(language: str) -> dict[str, str]:
    """Return what is said for each English template or word."""
    long = {key_of(said[ENGLISH]): said[language] for said in catalogue("sentences").values()}
    return {**catalogue(language)["names"], **catalogue(language)["sentences"], **long}


def catalogue(name: str) -> dict[str, dict[str, str]]:
    """Return a file of texts, by section."""
    return tomllib.loads((Path(__file__).parent / "show" / f"{name}.toml").read_text(encoding="utf-8"))


def widened(text: str) -> str:
    """Return a text with a character of no width behind each that takes two columns, so that its length is theirs."""
    return "".join(sign + NOTHING if unicodedata.east_asian_width(sign) in "WF" else sign for sign in text)


def narrowed(text: str) -> str:
    """Return a widened text as it was."""
    return text.replace(NOTHING, "")
