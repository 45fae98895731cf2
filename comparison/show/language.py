"""In which language a comparison speaks: what people read of it goes through say().

Sentences are made in English, where their numbers are. A catalogue says how each is said in another language: its keys
are English, with places for what differs, as in "{a} is faster than {b}"; what stands there is said in turn. {#n} is
the place of a number, with any interval of its own, {-x} one without a comma or colon, {x?} one that may be empty.
"""

import contextlib
import functools
import re
import unicodedata
from collections.abc import Iterator
from contextvars import ContextVar

from comparison.show.chinese import CATALOGUE as CHINESE

ENGLISH = "en"
CATALOGUES = {"zh": CHINESE}
LANGUAGES = (ENGLISH, *CATALOGUES)
PLACE = re.compile(r"\{([#-]?)(\w+)(\??)\}")
FITTING = {"": ".+?", "-": "[^,;:]+?", "#": r"[-+±−]?\d[\d.,]*(?:e[-+]?\d+)?%?(?: ± [\d.,]+%?)?(?: \[[^\]]+\])?"}
BETWEEN_SENTENCES = re.compile(r"(\n|(?<=[.!?]) (?=[A-Z“]|--))")
# Where a text without an entry is parted, outside of brackets, and what stands there instead.
PARTED = (": ", "："), ("; ", "；"), (" (", "（"), (", ", "，")
NOTHING = "\u200b"  # takes no column

_language = ContextVar("language", default=ENGLISH)


@contextlib.contextmanager
def speaking(language: str) -> Iterator[None]:
    """In the `with`, say() uses one of LANGUAGES."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def spoken() -> str:
    """Return which of LANGUAGES say() uses."""
    return _language.get()


def say(text: str) -> str:
    """Return an English text in the language that is spoken; names, numbers and what no entry fits stay as they are."""
    return text if spoken() == ENGLISH else _said(spoken(), text)


@functools.cache
def _said(language, text):
    if not re.search("[A-Za-z]{2}", text):
        return text
    whole, say_part = _without_places(language), functools.partial(_said, language)
    for key in (text, text[0].lower() + text[1:]):
        if key in whole:
            return whole[key]
    sentences = BETWEEN_SENTENCES.split(text)
    if len(sentences) > 1:
        return "".join(part.strip(" ") if place % 2 else say_part(part) for place, part in enumerate(sentences))
    if text.endswith("."):
        return f"{say_part(text[:-1])}。"
    for pattern, names, said in _patterns(language):
        if found := pattern.fullmatch(text):
            return said.format(
                **{name: say_part(part.strip()) for name, part in zip(names, found.groups(), strict=True)}
            )
    for mark, other in PARTED:
        before, found, after = _parted(text, mark)
        if found and mark == " (":
            inside, _, rest = _parted(after, ")")
            if not rest:
                return f"{say_part(before)}（{say_part(inside)}）"
        elif found:
            return f"{say_part(before)}{other}{say_part(after)}"
    return re.sub("“([^”]+)”", lambda quoted: f"“{say_part(quoted[1])}”", text)


def _parted(text, mark):
    """As text.partition(mark), of marks that no bracket or quotation encloses."""
    depth = 0
    for place, sign in enumerate(text):
        if not depth and text.startswith(mark, place):
            return text[:place], mark, text[place + len(mark) :]
        depth += {"(": 1, ")": -1, "“": 1, "”": -1}.get(sign, 0)
    return text, "", ""


@functools.cache
def _entries(language):
    """The catalogue without full stops, which a sentence loses where it is a part of another."""
    return {english.removesuffix("."): said.removesuffix("。") for english, said in CATALOGUES[language].items()}


@functools.cache
def _without_places(language):
    return {english: said for english, said in _entries(language).items() if not PLACE.search(english)}


@functools.cache
def _patterns(language):
    """(Regular expression, names of its places, what is said) of each entry with places, the longest first."""
    entries = []
    for english, said in _entries(language).items():
        literal, places = PLACE.split(english)[::4], PLACE.findall(english)
        if places:
            pattern = re.escape(literal[0])
            for number, ((kind, _, optional), piece) in enumerate(zip(places, literal[1:], strict=True)):
                beginning = not number and not literal[0] and not kind  # "A: B" is no A of another sentence
                fitting = "(?:(?!: ).)+?" if beginning else ".*?" if optional else FITTING[kind]
                pattern += f"({fitting}){re.escape(piece)}"
            entries.append((sum(map(len, literal)), re.compile(pattern), [name for _, name, _ in places], said))
    return [entry[1:] for entry in sorted(entries, key=lambda entry: -entry[0])]


def widened(text: str) -> str:
    """Return a text with a character of no width behind each that takes two columns, so that its length is theirs."""
    return "".join(sign + NOTHING if unicodedata.east_asian_width(sign) in "WF" else sign for sign in text)


def narrowed(text: str) -> str:
    """Return a widened text as it was."""
    return text.replace(NOTHING, "")
