"""The parser of a command line, and those of its values, whose errors say what is needed and what was found."""

import argparse
import difflib
import math
import re
import sys
import textwrap

from common.errors import USAGE, SuiteError

MOST = 2**31 - 1
ELSEWHERE = {  # what other training scripts call a flag: what to type here
    "--data-dir": "type --data-root DIR",
    "--learning-rate": "type --lr LR",
    "--local-rank": "leave it out, and start the script with torchrun --standalone --nproc_per_node=N",
    "--mode": "for base type python data_parallel_train.py, for DP python data_parallel_train.py --use-parallel, for "
    "DDP torchrun --standalone --nproc_per_node=N ddp_train.py",
    "--momentum": "type --optimizer sgd or --optimizer nesterov, whose momentum is 0.9",
    "--no-cuda": "type --device cpu",
    "--use-model-parallel": "type python model_parallel_train.py --use-model-parallel",
    "--use-parallel": "type python data_parallel_train.py --use-parallel",
    "--world-size": "type torchrun --standalone --nproc_per_node=N ddp_train.py, or python ddp_train.py --spawn N",
}
LIKE = 0.8  # from which similarity on a name is suggested (difflib): --world-size is like --train-size by 0.67


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are SuiteErrors: one line, without the usage text in front.

    Its help fills a description's prose to the terminal's width; an indented paragraph of it holds commands, one a
    line, which still work when pasted. A flag may be typed with underscores.
    """

    def __init__(self, **settings):
        super().__init__(**{"formatter_class": _HelpFormatter, "allow_abbrev": False, **settings})

    def parse_known_args(self, args=None, namespace=None):
        """Take underscores for dashes in flags; refuse a value of --, which argparse drops (python/cpython#59317)."""
        typed = [
            re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), text)
            for text in (sys.argv[1:] if args is None else args)
        ]
        for text in typed:
            if re.fullmatch(r"--[\w-]+=--", text):
                self.error(f"argument {text.removesuffix('=--')}: needs a value, found '--'")
        return super().parse_known_args(typed, namespace)

    def error(self, message: str):
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        advice, hint = ELSEWHERE.get(unknown and unknown[1]), ""
        if unknown and not advice:
            known = re.findall(r"--[\w-]+", self.format_usage())
            near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=LIKE)
            hint = f", did you mean {near[0]}?" if near else ""
        advice = advice or f"see: python {self.prog} --help"
        raise SuiteError(f"bad usage of {self.prog}", f"{message}{hint}", advice, USAGE)


class _HelpFormatter(argparse.HelpFormatter):
    def _fill_text(self, text, width, indent):
        return "\n\n".join(
            _commands(paragraph, width)
            if paragraph.startswith(" ")
            else textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in text.split("\n\n")
        )


def _commands(paragraph, width):
    """Return commands in lines of at most `width` columns, those that are too long with backslashes."""
    lines = (
        textwrap.wrap(line, width - 2, subsequent_indent=8 * " ", break_long_words=False, break_on_hyphens=False)
        for line in paragraph.splitlines()
    )
    return "\n".join(" \\\n".join(parts) for parts in lines)


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1 and at most MOST."""
    return _number(text, int, lambda value: 1 <= value <= MOST, f"a whole number from 1 to {MOST}")


def non_negative_int(text: str) -> int:
    """Parse a whole number of at least 0 and at most MOST."""
    return _number(text, int, lambda value: 0 <= value <= MOST, f"a whole number from 0 to {MOST}")


def niceness(text: str) -> int:
    """Parse a whole number from 0 to 19, how far a process gives way to others (nice(1))."""
    return _number(text, int, lambda value: 0 <= value <= 19, "a whole number from 0 to 19")


def positive_float(text: str) -> float:
    """Parse a finite number above 0."""
    return _number(text, float, lambda value: math.isfinite(value) and value > 0, "a finite number above 0")


def fraction(text: str) -> float:
    """Parse a number of at least 0 and below 1."""
    return _number(text, float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")


def seconds(text: str) -> float:
    """Parse a time, e.g. "90", "90s", "20m" or "1.5h", and return seconds."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return (unit or 1) * _number(
        text[:-1] if unit else text,
        float,
        lambda value: math.isfinite(value) and value > 0,
        "a time above 0, e.g. 90s, 20m or 2h",
    )


def memory(text: str) -> int:
    """Parse an amount of memory, e.g. "800MiB" or "2GiB", and return bytes."""
    unit = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}.get(text[-3:], 1)
    amount = _number(
        text[:-3] if unit > 1 else text,
        float,
        lambda value: 1 <= value * unit < 2**63,
        "an amount of memory of at least a byte, e.g. 800MiB or 2GiB",
    )
    return int(unit * amount)


def percentage(text: str) -> float:
    """Parse a number of percent above 0 and below 100, e.g. "3" or "3%", and return the share."""
    return _number(text.removesuffix("%"), float, lambda value: 0 < value < 100, "percent above 0 and below 100") / 100


def _number(text, kind, accepts, wanted):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not accepts(value):
        raise argparse.ArgumentTypeError(f"needs {wanted}, found {text!r}")
    return value


def one_of(names, forms: tuple[tuple[str, str], ...] = (), also: dict[str, str] | None = None):
    """Return a parser for one of `names` that suggests the nearest name when it is given another.

    Capitals, dashes and underscores do not matter: "CIFAR-10" is cifar10. forms: (pattern, how it is written) of what
    else is taken, e.g. (r"folder:.+", "folder:PATH"). also: other words for a name.
    """

    def parse(text: str) -> str:
        spelled = {**(also or {}), **{_bare(name): name for name in names}}
        if any(re.fullmatch(pattern, text) for pattern, _ in forms):
            return text
        if _bare(text) in spelled:
            return spelled[_bare(text)]
        known = ", ".join((*names, *(form for _, form in forms)))
        near = difflib.get_close_matches(text, names, n=1, cutoff=LIKE)
        hint = f", did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"unknown name {text!r}{hint} (choose from {known})")

    return parse


def _bare(name):
    return re.sub("[-_]", "", name).casefold()
