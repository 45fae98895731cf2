"""The parser of a command line, and those of its values, whose errors say what is needed and what was found."""

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
ELSEWHERE = {  # what other training scripts call a flag: what to type here
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
LIKE = 0.8  # from which similarity on a name is suggested (difflib): --world-size is like --train-size by 0.67


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are SuiteErrors; a flag may be typed with underscores.

    Its help fills a description's prose to the terminal's width; an indented paragraph of it holds commands, one a
    line, which still work when pasted.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": _HelpFormatter, "allow_abbrev": False, **settings})

    def parse_known_args(self, args=None, namespace=None):
        typed = sys.argv[1:] if args is None else args
        return super().parse_known_args([re.sub("^--[^=]+", _dashed, text) for text in typed], namespace)

    def error(self, message: str):
        advice = None
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            advice = ELSEWHERE.get(unknown[1])
            message += "" if advice else _nearest(unknown[1], self._option_string_actions)
        raise SuiteError(f"bad usage of {self.prog}", message, advice or f"see: python {self.prog} --help", USAGE)


def _dashed(flag):
    return flag[0].replace("_", "-")


def _nearest(text, names):
    near = difflib.get_close_matches(text, names, n=1, cutoff=LIKE)
    return f", did you mean {near[0]}?" if near else ""


class _HelpFormatter(argparse.HelpFormatter):
    def _format_args(self, action, default_metavar):
        return re.sub(r" \[.* \.\.\.\]$", " ...", super()._format_args(action, default_metavar))

    def _fill_text(self, text, width, indent):
        wrap = textwrap.TextWrapper(
            width - 2, subsequent_indent=8 * " ", break_long_words=False, break_on_hyphens=False
        )
        return "\n\n".join(
            "\n".join(" \\\n".join(wrap.wrap(command)) for command in paragraph.splitlines())
            if paragraph.startswith(" ")
            else textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in text.split("\n\n")
        )


def number(
    kind: Callable[[str], Any],
    accepts: Callable[[Any], bool],
    wanted: str,
    units: Mapping[str, int] | None = None,
    becomes: Callable[[Any], Any] = lambda value: value,
) -> Callable[[str], Any]:
    """Return a parser of numbers, times one of `units`, that accepts() holds for, and of what becomes of them.

    wanted: what the error asks for.
    """

    def parse(text: str) -> Any:
        ending, factor = next((unit for unit in (units or {}).items() if text.endswith(unit[0])), ("", 1))
        with contextlib.suppress(ValueError):
            if accepts(value := kind(text.removesuffix(ending)) * factor):
                return becomes(value)
        raise argparse.ArgumentTypeError(f"needs {wanted}, found {text!r}")

    return parse


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


positive_int = number(int, lambda value: 1 <= value <= MOST, f"a whole number from 1 to {MOST}")
non_negative_int = number(int, lambda value: 0 <= value <= MOST, f"a whole number from 0 to {MOST}")
positive_float = number(float, _is_positive, "a finite number above 0")
fraction = number(float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
# "90", "90s", "20m" or "1.5h", in seconds; "3" or "3%", as a share; "800MiB", in bytes
UNITS = {"s": 1, "m": 60, "h": 3600}
patience = number(float, lambda value: 0 <= value < math.inf, "0, or a time such as 90s, 20m or 2h", UNITS)
seconds = number(float, _is_positive, "a time above 0, e.g. 90s, 20m or 2h", UNITS)
percentage = number(
    float, lambda value: 0 < value < 100, "percent above 0 and below 100", {"%": 1}, lambda value: value / 100
)
_MEMORY = "an amount of memory of at least a byte, e.g. 800MiB or 2GiB"
memory = number(float, lambda value: 1 <= value < 2**63, _MEMORY, {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}, int)


def one_of(
    names: Iterable[str], forms: tuple[tuple[str, str], ...] = (), also: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """Return a parser for one of `names`, in any spelling, that suggests the nearest name when it is given another.

    forms: (pattern, how it is written) of what else is taken. also: other words for a name.
    """
    names = tuple(names)

    def parse(text: str) -> str:
        if any(re.fullmatch(pattern, text) for pattern, _ in forms):
            return text
        spelled = {**(also or {}), **{_bare(name): name for name in names}}  # "CIFAR-10" is cifar10
        if _bare(text) in spelled:
            return spelled[_bare(text)]
        known = ", ".join((*names, *(form for _, form in forms)))
        raise argparse.ArgumentTypeError(f"unknown name {text!r}{_nearest(text, names)} (choose from {known})")

    return parse


def _bare(name):
    return re.sub("[-_]", "", name).casefold()
