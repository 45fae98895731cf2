"""Rows that accompany one other row each: a twin, the row before a change, a remedy or a sham."""

import argparse
import os
from dataclasses import fields, replace
from pathlib import Path

from common.errors import DATA, USAGE, SuiteError
from common.settings.config import FLAGS, FOLDER, RunConfig, flags_with
from comparison.methods import PROJECT, Machine
from comparison.plan.flags import FLAGS as OWN_FLAGS
from comparison.plan.plan import make_plan, type_flags
from comparison.record import Report
from comparison.results_file import without_home
from comparison.rows import IN_DIRECTORY, SWEEPS, Configuration, Planned

TWIN, BEFORE, REMEDY, SHAM = "twin", "before", "remedy", "sham"
# Parsers of the settings that plan a row: the comparison's own and its script's, except the location of the data, which
# depends on the machine.
PARSERS = {name: flag.value[0] for name, flag in OWN_FLAGS.items() if flag.plans and flag.value} | {
    name: about.parse or {"True": True, "False": False}.__getitem__
    for name, about in FLAGS.items()
    if about.shared and not about.by_rank
}
LISTS = (*SWEEPS, *(name for name, about in FLAGS.items() if about.nargs))


def counterpart(row: Configuration, role: str, label: str, command: tuple[str, ...]) -> Configuration:
    """Return a row that accompanies `row`. label: how it differs."""
    name = f"{row.name}-{label.replace(' ', '-')}"
    return replace(row, name=name, label=f"{row.label}, {label}", command=command, role=role, against=row.name)


def twin_of(plan: list[Configuration], baseline: str) -> list[Configuration]:
    """Return a copy of the first row of the baseline's method that can run, in a list; empty if there is none."""
    rows = [row for row in plan if row.method == baseline and not row.skip]
    return [counterpart(row, TWIN, "again", row.command) for row in rows[:1]]


def before(
    plan: list[Configuration], path: Path, then: Report | None, arguments: argparse.Namespace, machine: Machine
) -> list[Configuration]:
    """Return every row that can run, as it was before a change.

    path: another checkout, whose scripts run with the current flags, or a results.json, read as `then`, whose flags the
    current scripts get. Raises SuiteError if it is neither, has no row in common, or names files that were not typed.
    """
    able = [row for row in plan if not (row.skip or row.is_script or row.role)]
    known = {row.name for row in then.plan} if then else {}
    if then:
        earlier = {row.name: row for row in _plan_earlier(then.settings, arguments, machine, path) if not row.skip}
        rows = [earlier[row.name] for row in able if row.name in known and row.name in earlier]
    elif (path / "compare_parallel.py").is_file():
        rows = [replace(row, command=_in_checkout(row.command, path)) for row in able]
    else:
        what, advice = f"--against {path} is no checkout of this project", "name a checkout, or a results.json"
        raise SuiteError(what, "it has no compare_parallel.py", advice, USAGE)
    if not rows:
        found = f"found {', '.join(sorted(known))} there and {', '.join(row.name for row in able)} here"
        advice = "use the same --methods and sweeps as in that file"
        raise SuiteError(f"--against {path}: no row in common", found, advice, USAGE)
    return [counterpart(row, BEFORE, BEFORE, row.command) for row in rows]


def scripts_before(plan: list[Configuration], path: Path) -> list[Configuration]:
    """Return every row of a user's script as it is in another directory, with the current command.

    Raises SuiteError (USAGE) if `path` is no directory, or lacks a script's file.
    """
    files = [word for row in plan for word in row.command if word.endswith(".py") and not os.path.isabs(word)]
    missing = next((file for file in files if not (path / file).is_file()), "")
    if not files or missing:
        what, advice = f"--against {path} is no earlier version of these scripts", "name a directory that has them"
        raise SuiteError(what, f"found no {missing or 'script that is named by a relative path'}", advice, USAGE)
    return [counterpart(row, BEFORE, BEFORE, _started_in(path, row.command)) for row in plan if not row.role]


def _started_in(path, command):
    """Return the command in another directory; a program that only this one has, as .venv/bin/python, by its path."""
    here = {word for word in command if os.sep in word and os.path.isfile(word) and os.access(word, os.X_OK)}
    there = (os.path.abspath(word) if word in here and not (path / word).exists() else word for word in command)
    return (*IN_DIRECTORY, str(path), *there)


def _in_checkout(command, path):
    """Return the command with the scripts of another checkout."""
    scripts = [text for text in command if text.endswith(".py") and (PROJECT / Path(text).name).is_file()]
    theirs = {text: os.path.relpath(path / Path(text).name) for text in scripts}
    for file in theirs.values():
        if not Path(file).is_file():
            what, advice = f"--against {path} is without {Path(file).name}", "leave that method out of --methods"
            raise SuiteError(what, "it was written later", advice, DATA)
    return tuple(theirs.get(text, text) for text in command)


def _plan_earlier(settings, arguments, machine, path):
    """Plan the current rows with the settings of a file.

    The file is not trusted: it may set values that a flag accepts, but neither a command nor a file to open.
    """
    try:
        typed = {name: _parse(name, settings[name]) for name in PARSERS if name in settings}
        defaults = vars(RunConfig(data_root=arguments.data_root, data_url=arguments.data_url))
        then = argparse.Namespace(**{**vars(arguments), **defaults, **typed})
        named_now = {without_home(name): name for name in (*arguments.model, arguments.dataset)}
        for name in (*then.model, then.dataset):
            if (".py:" in name or name.startswith(FOLDER)) and name not in named_now:
                why = "a file that only a results.json names is not opened"
                advice = "if you trust it, name it with --model or --dataset too"
                raise SuiteError(f"--against {path} names {name}", why, advice, USAGE)
        then.model = [named_now.get(name, name) for name in then.model]
        then.dataset = named_now.get(then.dataset, then.dataset)
        by_row = {field.name for field in fields(Planned)}
        shared = {name: getattr(then, name) for name in flags_with("shared") if name not in by_row}
        given = {name: value for name, value in shared.items() if value is not None}
        return make_plan(then, machine, type_flags(given))
    except (argparse.ArgumentTypeError, AttributeError, LookupError, TypeError, ValueError) as error:
        what, advice = f"--against {path} has settings that cannot be typed", "name the results.json of a comparison"
        raise SuiteError(what, f"{type(error).__name__}: {error}", advice, DATA) from None


def _parse(name, value):
    """Parse a setting as its flag would on a command line."""
    if value is None:
        return None
    parse = PARSERS[name]
    if name in LISTS:
        return [None if item is None else parse(str(item)) for item in value]
    return parse(str(value))
