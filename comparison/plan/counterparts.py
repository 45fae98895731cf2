"""Rows beside others of the table, each to be compared with its own one alone: a twin, the same before, a remedy."""

import argparse
import os
from dataclasses import fields, replace
from pathlib import Path

from common.errors import DATA, USAGE, SuiteError
from common.settings.arguments import one_of, positive_int
from common.settings.config import FLAGS, FOLDER, RunConfig, flags_that
from comparison.methods import PROJECT, Machine
from comparison.plan.plan import make_plan, type_flags
from comparison.results_file import read_results, without_home
from comparison.rows import SWEEPS, Configuration, Planned

TWIN, BEFORE, REMEDY = "twin", "before", "remedy"
# How the settings that plan a row are typed: the comparison's own, and those that a row's script has too. Where the
# data are is a matter of this machine.
PARSERS = {
    "nproc": positive_int,
    "nodes": positive_int,
    "micro_batches": positive_int,
    "threads_per_device": positive_int,
    "scaling": one_of(("strong", "weak")),
    **{
        name: about.parse or {"True": True, "False": False}.__getitem__
        for name, about in FLAGS.items()
        if about.shared and not about.by_rank
    },
}
LISTS = (*SWEEPS, *(name for name, about in FLAGS.items() if about.nargs))


def counterpart(row: Configuration, role: str, label: str, command: tuple[str, ...]) -> Configuration:
    """Return a row that runs beside `row`; label: what makes it another one."""
    name = f"{row.name}-{label.replace(' ', '-')}"
    return replace(row, name=name, label=f"{row.label}, {label}", command=command, role=role, against=row.name)


def twin_of(plan: list[Configuration], baseline: str) -> list[Configuration]:
    """Return the first row of the baseline's method that can run, a second time; nothing where there is none."""
    rows = [row for row in plan if row.method == baseline and not row.skip]
    return [counterpart(row, TWIN, "again", row.command) for row in rows[:1]]


def before(plan: list[Configuration], path: Path, arguments, machine: Machine) -> list[Configuration]:
    """Return every row that can run as it was before a change.

    path: another checkout of this project, whose scripts then run with the flags of now, or the results.json of a
    comparison, whose flags the scripts of now then get. arguments: of now. Raises SuiteError (USAGE) if it is neither,
    has no row in common with the plan, or names files that `arguments` do not, and (DATA) if it cannot be read.
    """
    able = [row for row in plan if not row.skip]
    if (path / "compare_parallel.py").is_file():
        rows = [counterpart(row, BEFORE, BEFORE, _in_checkout(row.command, path)) for row in able]
    elif path.is_dir():
        raise SuiteError(
            f"--against {path} is no checkout of this project",
            "it has no compare_parallel.py",
            "name a checkout, or a results.json",
            USAGE,
        )
    else:
        then = read_results(path)
        earlier = {row.name for row in then.plan}
        again = {
            row.name: row
            for row in _planned_again(then.settings, arguments, machine, path)
            if row.name in earlier and not row.skip
        }
        rows = [
            counterpart(again[row.name], BEFORE, BEFORE, again[row.name].command) for row in able if row.name in again
        ]
    if not rows:
        raise SuiteError(
            f"--against {path}: no row in common",
            f"found {', '.join(sorted(earlier))} there and {', '.join(row.name for row in able)} here",
            "give the same --methods and sweeps as then",
            USAGE,
        )
    return rows


def _in_checkout(command, path):
    """The command with the scripts of another checkout."""
    own = {text: Path(os.path.relpath(path / Path(text).name)) for text in command if _is_script(text)}
    if missing := [file for file in own.values() if not file.is_file()]:
        raise SuiteError(
            f"--against {path} is without {missing[0].name}",
            "it was written later",
            "leave that method out of --methods",
            DATA,
        )
    return tuple(str(own.get(text, text)) for text in command)


def _planned_again(settings, arguments, machine, path):
    """The rows of now as they are planned with the settings in a file.

    Whoever wrote the file chooses values that a flag takes, and neither a command nor a file to open.
    """
    try:
        typed = {name: _typed(name, settings[name]) for name in PARSERS if name in settings}
        then = argparse.Namespace(
            **{
                **vars(arguments),
                **vars(RunConfig(data_root=arguments.data_root, data_url=arguments.data_url)),
                **typed,
            }
        )
        own = {without_home(name): name for name in (*arguments.model, arguments.dataset)}
        for name in (*then.model, then.dataset):
            if (".py:" in name or name.startswith(FOLDER)) and name not in own:
                raise SuiteError(
                    f"--against {path} names {name}",
                    "what only a results.json names is not opened",
                    "if you trust it, name it with --model or --dataset too",
                    USAGE,
                )
        then.model, then.dataset = [own.get(name, name) for name in then.model], own.get(then.dataset, then.dataset)
        by_row = {field.name for field in fields(Planned)}
        shared = {name: getattr(then, name) for name in flags_that("shared") if name not in by_row}
        shared = {name: value for name, value in shared.items() if value is not None}
        return make_plan(then, machine, type_flags(shared))
    except (argparse.ArgumentTypeError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SuiteError(
            f"--against {path} has settings that cannot be typed",
            f"{type(error).__name__}: {error}",
            "name the results.json of a comparison",
            DATA,
        ) from None


def _typed(name, value):
    """A setting as its flag takes it from a command line."""
    if value is None:
        return None
    return [PARSERS[name](str(item)) for item in value] if name in LISTS else PARSERS[name](str(value))


def _is_script(text):
    return text.endswith(".py") and (PROJECT / Path(text).name).is_file()
