"""What a report holds, section by section, whatever it is written as."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.plan.counterparts import BEFORE
from comparison.show.language import say
from comparison.show.reasons import tell
from comparison.show.remarks import (
    ACCOUNTING,
    BESIDE,
    CARDS,
    INTERVENTION,
    RANKS,
    bandwidths,
    definitions,
    not_measured,
    notes,
    warnings,
)
from comparison.show.tables import (
    account_tables,
    before_table,
    card_table,
    class_table,
    epoch_table,
    lay_out,
    main_table,
    memory_table,
    projection_table,
    rank_table,
    settings_table,
    sweep_tables,
    trial_table,
)
from comparison.show.verdict import resolution, tell_guesses, tell_proofs, verdict

# What a part is made of: a text, a table as tabulate made it, a list of sentences, a program's text, paths of figures
TEXT, TABLE, LIST, CODE, FIGURES = "text", "table", "list", "code", "figures"


@dataclass(frozen=True)
class Section:
    """A heading and, in order, its parts: of what kind each is, and its content. One without content is left out."""

    heading: str
    parts: tuple[tuple[str, object], ...]


def sections(analysis: Analysis, figures: Sequence[Path], proofs: Sequence[Proof], tablefmt: str) -> list[Section]:
    """Return what was run, what came out, why, and what was not measured; tables in one of tabulate's formats."""
    report = analysis.report
    machine = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in report.environment.items()
        if value
    ]
    settings = [
        (name.replace("_", " "), " ".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in report.settings.items()
        if value not in (None, [], False) and name not in ("output_dir", "data_root", "debug")
    ]
    accounts, ranks = account_tables(analysis, tablefmt), rank_table(analysis, tablefmt)
    held, cards, trials = (table(analysis, tablefmt) for table in (memory_table, card_table, trial_table))
    compared = before_table(analysis, tablefmt) if analysis.pairs[BEFORE] else ""
    every = [
        Section(
            "Result",
            (
                *each(TEXT, resolution(analysis)),
                (TABLE, main_table(analysis, tablefmt)),
                (LIST, warnings(analysis)),
                (LIST, notes(analysis)),
            ),
        ),
        Section("Now and before", ((TABLE, compared), (TEXT, BESIDE)) if compared else ()),
        Section("Verdict", each(TEXT, verdict(analysis))),
        Section(
            "Proof by intervention",
            (*each(TEXT, tell_proofs(analysis, proofs)), (TEXT, INTERVENTION if proofs else "")),
        ),
        Section("What was guessed", ((LIST, tell_guesses(analysis)),)),
        Section("Where the time goes", (*each(TABLE, accounts), (LIST, ACCOUNTING)) if accounts else ()),
        Section("Every rank", ((TABLE, ranks), (TEXT, RANKS)) if ranks else ()),
        Section("Memory of a device", ((TABLE, held),)),
        Section(
            "The GPUs while they trained",
            (*(((TABLE, cards), (TEXT, CARDS)) if cards else ()), (LIST, bandwidths(report))),
        ),
        Section("Which batches fit", ((TABLE, trials),)),
        Section("What was equal", ((TABLE, settings_table(report, tablefmt)),)),
        Section("Sweeps", each(TABLE, sweep_tables(analysis, tablefmt) if report.swept else ())),
        Section(
            f"Projection ({LABEL})",
            (
                (TABLE, projection_table(analysis, tablefmt)),
                (LIST, list(map(tell, analysis.projection.stops))),
                (LIST, list(map(tell, analysis.projection.assumptions))),
            )
            if report.settings["project"]
            else (),
        ),
        Section("Figures", ((FIGURES, figures),)),
        Section("How the numbers are defined", ((LIST, definitions(report)),)),
        Section("What was not measured", ((LIST, not_measured(report)),)),
        Section("Accuracy per class (%)", ((TABLE, class_table(report, tablefmt)),)),
        Section("Settings", ((TABLE, lay_out(settings, ("setting", "value"), tablefmt, left=(0, 1))),)),
        Section("Machine", ((TABLE, lay_out(machine, ("what", "found"), tablefmt, left=(0, 1))),)),
        Section("Every epoch, run by run", ((TABLE, epoch_table(report, tablefmt)),)),
        Section("Commands", ((CODE, "\n".join(outcome.command for outcome in report.outcomes)),)),
    ]
    whole = (Section(say(some.heading), tuple(_said(*part) for part in some.parts if part[1])) for some in every)
    return [some for some in whole if some.parts]


def _said(kind, content):
    """A part in the language that is spoken; tables are already."""
    if kind == LIST:
        return kind, [say(sentence) for sentence in content]
    return kind, say(content) if kind == TEXT else content


def each(kind: str, contents: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return a part of one kind for each of several contents."""
    return tuple((kind, content) for content in contents)
