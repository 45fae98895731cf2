"""Command-line parsing: the argument parser, and parsers for values, with errors that name a fix."""

import argparse
import contextlib
import difflib
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from common.errors import USAGE, SuiteError

MOST = 2**31 - 1
TORCHRUN = "torchrun --standalone --nproc_per_node=N"
ELSEWHERE = {  # flags of other training scripts, and what to type here instead
    "--data-dir": "type --data-root DIR",
    "--learning-rate": "type --lr LR",
    "--local-rank": f"leave it out, and start the script with {TORCHRUN}",
    "--mode": "for base type python data_parallel_train.py, for DP python data_parallel_train.py --use-parallel, for "
    f"DDP {TORCHRUN} ddp_train.py",
    "--momentum": "type --optimizer sgd or --optimizer nesterov, whose momentum is 0.9",
    "--no-cuda": "type --device cpu",
    "--use-model-parallel": "type python model_parallel_train.py --use-model-parallel",
    "--use-parallel": "type python data_parallel_train.py --use-parallel",
    "--world-size": f"type {TORCHRUN} ddp_train.py, or python ddp_train.py --spawn N",
}
SUGGESTION_CUTOFF = 0.8  # difflib similarity; --world-size and --train-size have 0.67


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser that raises SuiteError and accepts underscores in flags.

    In a description, prose is wrapped to the terminal's width. An indented paragraph is a list of commands, one a line,
    which are wrapped so that they still work when pasted.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": _HelpFormatter, "allow_abbrev": False, **settings})

    def parse_known_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else args
        dashed = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
        return super().parse_known_args(dashed, namespace)

    def error(self, message: str):
        advice = None
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            advice = ELSEWHERE.get(unknown[1])
            message += "" if advice else _suggestion(unknown[1], self._option_string_actions)
        raise SuiteError(f"bad usage of {self.prog}", message, advice or f"see: python {self.prog} --help", USAGE)


def _suggestion(text, names):
    near = difflib.get_close_matches(text, names, n=1, cutoff=SUGGESTION_CUTOFF)
    return f", did you mean {near[0]}?" if near else ""


class _HelpFormatter(argparse.HelpFormatter):
    def _format_args(self, action, default_metavar):
        return re.sub(r" \[.* \.\.\.\]$", " ...", super()._format_args(action, default_metavar))

    def _fill_text(self, text, width, indent):
        wrapper = textwrap.TextWrapper(
            width - 2, subsequent_indent=8 * " ", break_long_words=False, break_on_hyphens=False
        )
        paragraphs = []
        for paragraph in text.split("\n\n"):
            if paragraph.startswith(" "):
                commands = (" \\\n".join(wrapper.wrap(command)) for command in paragraph.splitlines())
                paragraphs.append("\n".join(commands))
            else:
                paragraphs.append(textwrap.fill(paragraph, width, break_on_hyphens=False))
        return "\n\n".join(paragraphs)


def _number(kind, accepts, wanted, units=None, convert=None):
    """Return a parser for a number with an optional unit. wanted: valid values, as the error describes them."""

    def parse(text: str) -> Any:
        suffix, factor = next((unit for unit in (units or {}).items() if text.endswith(unit[0])), ("", 1))
        with contextlib.suppress(ValueError):
            value = kind(text.removesuffix(suffix)) * factor
            if accepts(value):
                return convert(value) if convert else value
        raise argparse.ArgumentTypeError(f"needs {wanted}, found {text!r}")

    return parse


TIME_UNITS = {"s": 1, "m": 60, "h": 3600}
MEMORY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
positive_int = _number(int, lambda value: 1 <= value <= MOST, f"a whole number from 1 to {MOST}")
non_negative_int = _number(int, lambda value: 0 <= value <= MOST, f"a whole number from 0 to {MOST}")
positive_float = _number(float, lambda value: 0 < value < math.inf, "a finite number above 0")
bounded_float = _number(float, lambda value: 0 < value <= MOST, f"a number above 0, at most {MOST}")
fraction = _number(float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
# "90", "90s", "20m" or "1.5h", in seconds
patience = _number(float, lambda value: 0 <= value < math.inf, "0, or a time such as 90s, 20m or 2h", TIME_UNITS)
seconds = _number(float, lambda value: 0 < value < math.inf, "a time above 0, e.g. 90s, 20m or 2h", TIME_UNITS)
# "3" or "3%", as 0.03
percentage = _number(
    float, lambda value: 0 < value < 100, "percent above 0 and below 100", {"%": 1}, lambda value: value / 100
)
# "800MiB", in bytes
SIZE = "an amount of memory of at least a byte, e.g. 800MiB or 2GiB"
memory = _number(float, lambda value: 1 <= value < 2**63, SIZE, MEMORY_UNITS, int)


def one_of(
    names: Iterable[str], forms: tuple[tuple[str, str], ...] = (), also: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """Return a parser for one of `names` that ignores case, hyphens and underscores, and suggests the nearest name.

    forms: (pattern, description) of other texts to accept. also: aliases → name.
    """
    names = tuple(names)
    aliases = {**(also or {}), **{_normalized(name): name for name in names}}

    def parse(text: str) -> str:
        if any(re.fullmatch(pattern, text) for pattern, _ in forms):
            return text
        if (name := aliases.get(_normalized(text))) is not None:
            return name
        known = ", ".join((*names, *(form for _, form in forms)))
        raise argparse.ArgumentTypeError(f"unknown name {text!r}{_suggestion(text, names)} (choose from {known})")

    return parse


def _normalized(name):
    return re.sub("[-_]", "", name).casefold()
