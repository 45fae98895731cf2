"""What a report holds, section by section, whatever it is written as."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.show import remarks, tables, verdict
from comparison.show.sentences import tell
from comparison.words import say

# What a part is made of: a text, a table as tabulate made it, a list of sentences, a program's text, paths of figures
TEXT, TABLE, LIST, CODE, FIGURES = "text", "table", "list", "code", "figures"


@dataclass(frozen=True)
class Section:
    """A heading and, in order, its parts: of what kind each is, and its content. opened: it is read by most."""

    heading: str
    parts: tuple[tuple[str, Any], ...]
    opened: bool = False


def sections(analysis: Analysis, figures: Sequence[Path], proofs: Sequence[Proof], tablefmt: str) -> list[Section]:
    """Return what was run, what came out, why, and what was not measured; tables in one of tabulate's formats."""
    report, projection = analysis.report, analysis.projection
    machine = [(name, _listed(value, ", ")) for name, value in report.environment.items() if value]
    settings = [
        (name.replace("_", " "), _listed(value, " "))
        for name, value in report.settings.items()
        if value not in (None, [], False) and name not in ("output_dir", "data_root", "debug")
    ]
    accounts, ranks, cards, before = (
        table(analysis, tablefmt)
        for table in (tables.account_tables, tables.rank_table, tables.card_table, tables.before_table)
    )
    result = (
        *_each(TEXT, verdict.resolution(analysis)),
        (TABLE, tables.main_table(analysis, tablefmt)),
        (LIST, remarks.warnings(analysis)),
        (LIST, remarks.notes(analysis)),
    )
    proved = _each(TEXT, verdict.tell_proofs(analysis, proofs))
    projected = (
        (TABLE, tables.projection_table(analysis, tablefmt)),
        (LIST, list(map(tell, projection.stops))),
        (LIST, list(map(tell, projection.assumptions))),
    )
    commands = "\n".join(outcome.command for outcome in report.outcomes)
    every = [
        Section("Result", result, True),
        Section("Now and before", ((TABLE, before), (TEXT, before and remarks.BESIDE))),
        Section("Verdict", _each(TEXT, verdict.verdict(analysis)), True),
        Section("Proof by intervention", (*proved, (TEXT, proofs and remarks.INTERVENTION))),
        Section("What was guessed", ((LIST, verdict.tell_guesses(analysis)),)),
        Section("Where the time goes", (*_each(TABLE, accounts), (LIST, accounts and remarks.ACCOUNTING))),
        Section("Every rank", ((TABLE, ranks), (TEXT, ranks and remarks.RANKS))),
        Section("Memory of a device", ((TABLE, tables.memory_table(analysis, tablefmt)),)),
        Section(
            "The GPUs while they trained",
            ((TABLE, cards), (TEXT, cards and remarks.CARDS), (LIST, remarks.bandwidths(report))),
        ),
        Section("Which batches fit", ((TABLE, tables.trial_table(analysis, tablefmt)),)),
        Section("What was equal", ((TABLE, tables.settings_table(report, tablefmt) or say("No run ended well.")),)),
        Section("Sweeps", _each(TABLE, tables.sweep_tables(analysis, tablefmt))),
        Section(say("Projection ({words})", words=LABEL), projected if report.settings["project"] else ()),
        Section("Figures", ((FIGURES, figures),), True),
        Section("How the numbers are defined", ((LIST, remarks.definitions(report)),)),
        Section("What was not measured", ((LIST, remarks.not_measured(report)),)),
        Section(
            "Accuracy per class (%)", ((TABLE, tables.class_table(report, tablefmt) or say("Not known for any row.")),)
        ),
        Section("Settings", ((TABLE, tables.lay_out(settings, ("setting", "value"), tablefmt, left=(0, 1))),)),
        Section("Machine", ((TABLE, tables.lay_out(machine, ("what", "found"), tablefmt, left=(0, 1))),)),
        Section("Every epoch, run by run", ((TABLE, tables.epoch_table(report, tablefmt)),)),
        Section("Commands", ((CODE, commands),)),
    ]
    whole = (Section(some.heading, tuple(part for part in some.parts if part[1]), some.opened) for some in every)
    return [section for section in whole if section.parts]


def _listed(value, mark):
    return mark.join(map(str, value)) if isinstance(value, list) else str(value)


def _each(kind: str, contents: Iterable) -> tuple[tuple[str, Any], ...]:
    return tuple((kind, content) for content in contents)
