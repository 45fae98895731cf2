"""Translatable texts: created in English as a template with values, translated when they are rendered.

say(), count() and join() create a text, and render() returns it in the current language. show/zh.toml translates each
template, keyed by its English without formats: "{n} images" for "{n:,} images". show/sentences.toml holds the long
sentences in both languages.
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
ZERO_WIDTH = "\u200b"
_language = ContextVar("language", default=ENGLISH)


class Sentence(str):
    """An English text that keeps its template and values (names, numbers, other texts)."""

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, values: dict[str, object]) -> "Sentence":
        sentence = super().__new__(cls, template.format(**values) if values else template)
        sentence.template, sentence.values = template, values
        return sentence

    @property
    def capital(self) -> "Sentence":
        """The sentence with an uppercase first letter."""
        return Sentence(self.template[0].upper() + self.template[1:], self.values)

    @property
    def small(self) -> "Sentence":
        """The sentence with a lowercase first letter."""
        return Sentence(self.template[0].lower() + self.template[1:], self.values)


class Joined(str):
    """Several texts joined by a separator."""

    separator: str
    parts: tuple[str, ...]

    def __new__(cls, separator: str, parts: Iterable[str]) -> "Joined":
        parts = tuple(parts)
        joined = super().__new__(cls, separator.join(parts))
        joined.separator, joined.parts = separator, parts
        return joined


def say(template: str, **values: object) -> Sentence:
    """Return a translatable text."""
    return Sentence(template, values)


def join(separator: str, parts: Iterable[str]) -> Joined:
    """Return a translatable text of several parts."""
    return Joined(separator, parts)


def count(number: float, noun: str, ending: str = "s") -> Sentence:
    """Return e.g. "3 runs" or "1 run". `ending` makes the plural."""
    return say(f"{{n}} {noun}" + ("" if number == 1 else ending), n=number)


def valued(setting: str, value: object) -> Sentence:
    """Return the name of a setting followed by its value."""
    return say(f"{setting} {{value}}", value=value)


def named(name: str) -> str:
    """Turn a row's name, or a reason read from a file, into a translatable text whose numbers are values."""
    for separator in ("; ", ", "):
        if separator in name:
            return join(separator, map(named, name.split(separator)))
    numbers = {f"n{place}": number for place, number in enumerate(re.findall(NUMBER, name))}
    places = iter(numbers)
    template = re.sub(NUMBER, lambda _: f"{{{next(places)}}}", name.replace("{", "{{").replace("}", "}}"))
    return Sentence(template, numbers) if numbers else name


@contextlib.contextmanager
def speaking(language: str) -> Iterator[None]:
    """Context manager: render() uses `language`, one of LANGUAGES."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def spoken() -> str:
    """Return the language that render() uses."""
    return _language.get()


def render(text: object) -> str:
    """Return a text in the current language, or in English if it has no translation."""
    if spoken() == ENGLISH or not isinstance(text, str):
        return str(text)
    if isinstance(text, Joined):
        return _translate(text.separator).join(map(render, text.parts))
    if not isinstance(text, Sentence) or not text.values:
        return _translate(text)
    values = {name: (text.values[name], spec) for name, spec in placeholders(text.template)}
    told = {name: format(value, spec) if spec else render(value) for name, (value, spec) in values.items()}
    return _translate(without_formats(text.template)).format(**told)


def placeholders(template: str) -> list[tuple[str, str]]:
    """Return (name, format) of each placeholder in a template."""
    return [(name, spec or "") for _, name, spec, _ in Formatter().parse(template) if name]


def without_formats(template: str) -> str:
    """Return a template as it is keyed in a translation table: "{n} images" for "{n:,} images"."""
    return "".join(
        before.replace("{", "{{").replace("}", "}}") + (f"{{{name}}}" if name else "")
        for before, name, _, _ in Formatter().parse(template)
    )


def _translate(english):
    """Translate a template or word. The table may have its first letter in the other case."""
    table = translations(spoken())
    return table.get(english, table.get(english[:1].swapcase() + english[1:], english))


@functools.cache
def translations(language: str) -> dict[str, str]:
    """Return the translation of each English template or word."""
    long = {without_formats(texts[ENGLISH]): texts[language] for texts in catalogue("sentences").values()}
    short = catalogue(language)
    return {**short["names"], **short["sentences"], **long}


def catalogue(name: str) -> dict[str, dict[str, str]]:
    """Read show/NAME.toml and return its texts by section."""
    return tomllib.loads((Path(__file__).parent / "show" / f"{name}.toml").read_text(encoding="utf-8"))


def widened(text: str) -> str:
    """Add a zero-width character after each double-width one, so that len() counts terminal columns."""
    return "".join(char + ZERO_WIDTH if unicodedata.east_asian_width(char) in "WF" else char for char in text)


def narrowed(text: str) -> str:
    """Undo widened()."""
    return text.replace(ZERO_WIDTH, "")
