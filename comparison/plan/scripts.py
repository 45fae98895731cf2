"""Rows of training scripts that are not this project's: --script, each a command as one types it."""

import argparse
import shlex
from pathlib import Path

from common.errors import USAGE, SuiteError
from comparison.methods import SCRIPT, Machine
from comparison.rows import Configuration, Planned


def parse_script(text: str) -> str:
    """Return NAME=COMMAND of that or of a COMMAND, which is called as its first file is, for argparse."""
    name, equals, command = text.partition("=")
    if not equals or not name.isidentifier():
        name, command = "", text
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"needs a command, found {text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError(f'needs a command, e.g. "python train.py", found {text!r}')
    files = [Path(word).stem for word in words if word.endswith(".py")]
    return f"{name or (files or [Path(words[0]).name])[0]}={command}"


def script_rows(scripts: list[str], machine: Machine) -> list[Configuration]:
    """Return a row for each NAME=COMMAND; of what is planned for the others, nothing is known but the device.

    Raises SuiteError (USAGE) where two have one name.
    """
    pairs = [text.partition("=")[::2] for text in scripts]
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        advice = f'name them, e.g. --script "{twice}_2=COMMAND"'
        raise SuiteError("two scripts have one name", f"found {twice} twice", advice, USAGE)
    device = "gpu" if machine.gpus else "cpu"
    planned = Planned(SCRIPT, 1, 0, device, max(1, int(machine.cores)), 1)
    return [
        Configuration(f"{SCRIPT}-{name}", SCRIPT, name, {}, planned, tuple(shlex.split(command)))
        for name, command in pairs
    ]
