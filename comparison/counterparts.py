"""Rows beside others of the table, each to be compared with its own one alone: a twin, the same before, a remedy."""

import os
from dataclasses import replace
from pathlib import Path

from common.errors import DATA, USAGE, SuiteError
from comparison.methods import PROJECT, python, script
from comparison.plan import Configuration
from comparison.results_file import read_results

TWIN, BEFORE, REMEDY = "twin", "before", "remedy"


def counterpart(row: Configuration, role: str, label: str, command: tuple[str, ...]) -> Configuration:
    """Return a row that runs beside `row`; label: what makes it another one."""
    name = f"{row.name}-{label.replace(' ', '-')}"
    return replace(row, name=name, label=f"{row.label}, {label}", command=command, role=role, against=row.name)


def twin_of(plan: list[Configuration], baseline: str) -> list[Configuration]:
    """Return the first row of the baseline's method that can run, a second time; nothing where there is none."""
    rows = [row for row in plan if row.method == baseline and not row.skip]
    return [counterpart(row, TWIN, "again", row.command) for row in rows[:1]]


def before(plan: list[Configuration], path: Path) -> list[Configuration]:
    """Return every row that can run as it was before a change.

    path: another checkout of this project, whose scripts then run with the flags of now, or the results.json of a
    comparison, whose flags the scripts of now then get. Raises SuiteError (USAGE) if it is neither or has no row in
    common with the plan, and (DATA) if the file cannot be read.
    """
    able = [row for row in plan if not row.skip]
    if (path / "compare_parallel.py").is_file():
        rows = [counterpart(row, BEFORE, BEFORE, _in_checkout(row.command, path)) for row in able]
    elif path.is_dir():
        raise SuiteError(f"--against {path} is no checkout of this project", "it has no compare_parallel.py",
                         "name a checkout, or a results.json", USAGE)
    else:
        earlier = {row.name: row for row in read_results(path).plan}
        rows = [replace(counterpart(row, BEFORE, BEFORE, _with_own_scripts(earlier[row.name].command)),
                        planned=earlier[row.name].planned) for row in able if row.name in earlier]
    if not rows:
        raise SuiteError(f"--against {path}: no row in common", f"found {', '.join(earlier)} there and "
                         f"{', '.join(row.name for row in able)} here", "give the same --methods and sweeps as then",
                         USAGE)
    return rows


def _in_checkout(command, path):
    """The command with the scripts of another checkout."""
    own = {text: Path(os.path.relpath(path / Path(text).name)) for text in command if _is_script(text)}
    if missing := [file for file in own.values() if not file.is_file()]:
        raise SuiteError(f"--against {path} is without {missing[0].name}", "it was written later",
                         "leave that method out of --methods", DATA)
    return tuple(str(own.get(text, text)) for text in command)


def _with_own_scripts(command):
    """A command that another comparison ran, with the interpreter and the scripts of this one."""
    return (python(), *(script(Path(text).name) if _is_script(text) else os.path.expanduser(text)
                        for text in command[1:]))


def _is_script(text):
    return text.endswith(".py") and (PROJECT / Path(text).name).is_file()
