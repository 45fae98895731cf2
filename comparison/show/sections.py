"""What a report holds, section by section, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.plan.flags import WITH_SCRIPTS
from comparison.show import advice, remarks, tables, verdict
from comparison.show.sentences import sentence, tell
from comparison.words import say

# What a part is made of: a text, a table as tabulate made it, a list of sentences, a program's text, paths of figures
TEXT, TABLE, LIST, CODE, FIGURES = "text", "table", "list", "code", "figures"


@dataclass(frozen=True)
class Section:
    """A heading and, in order, its parts: of what kind each is, and its content."""

    heading: str
    parts: list[tuple[str, Any]]


def sections(analysis: Analysis, figures: Sequence[Path], proofs: Sequence[Proof], tablefmt: str) -> list[Section]:
    """Return what was run, what came out, why, and what was not measured; tables in one of tabulate's formats."""
    report, projection = analysis.report, analysis.projection
    before, accounts, ranks, cards = (
        table(analysis, tablefmt)
        for table in (tables.before_table, tables.account_tables, tables.rank_table, tables.card_table)
    )
    accounting = [sentence(key) for key in ("ideal scaling", "accounts", "slowest rank")]
    projected = [
        (TABLE, tables.projection_table(analysis, tablefmt)),
        (LIST, list(map(tell, projection.stops))),
        (LIST, list(map(tell, projection.assumptions))),
    ]
    machine = [(name, _listed(value, ", ")) for name, value in report.environment.items() if value]
    settings = [
        (name.replace("_", " "), _listed(value, " "))
        for name, value in report.settings.items()
        if value not in (None, [], False)
        and name not in ("output_dir", "data_root", "debug")
        and (name in WITH_SCRIPTS or not report.only_scripts)
    ]
    every: dict[str, list[tuple[str, Any]]] = {
        "Result": [
            *((TEXT, text) for text in remarks.resolution(analysis)),
            (TABLE, tables.main_table(analysis, tablefmt)),
            (LIST, remarks.warnings(analysis)),
            (LIST, remarks.notes(analysis)),
        ],
        "Now and before": [(TABLE, before), (TEXT, before and sentence("beside"))],
        "Verdict": [(TEXT, text) for text in verdict.verdict(analysis)],
        "Proof by intervention": [
            *((TEXT, text) for text in verdict.tell_proofs(analysis, proofs)),
            (TEXT, proofs and sentence("intervention")),
        ],
        "What else this machine could do": [
            *((TEXT, text) for text in advice.possible(analysis)),
            (TABLE, tables.tip_table(analysis, tablefmt)),
            (TEXT, analysis.tips and sentence("tips", row=analysis.tips[0].plain.label)),
        ],
        "What was guessed": [(LIST, verdict.tell_guesses(analysis))],
        "Where the time goes": [*((TABLE, table) for table in accounts), (LIST, accounts and accounting)],
        "Every rank": [(TABLE, ranks), (TEXT, ranks and sentence("ranks"))],
        "Memory of a device": [(TABLE, tables.memory_table(analysis, tablefmt))],
        "The GPUs while they trained": [
            (TABLE, cards),
            (TEXT, cards and sentence("cards")),
            (LIST, remarks.bandwidths(report)),
        ],
        "Which batches fit": [(TABLE, tables.trial_table(analysis, tablefmt))],
        "What was held equal": [(TABLE, tables.settings_table(report, tablefmt) or say("No run ended well."))],
        "Sweeps": [(TABLE, table) for table in tables.sweep_tables(analysis, tablefmt)],
        say("Projection ({words})", words=LABEL): projected if report.settings["project"] else [],
        "Figures": [(FIGURES, figures)],
        "How the numbers are defined": [(LIST, remarks.definitions(report))],
        "What was not measured": [(LIST, remarks.not_measured(report))],
        "Accuracy per class (%)": [(TABLE, tables.class_table(report, tablefmt) or say("Not known for any row."))],
        "Settings": [(TABLE, tables.lay_out(settings, ("setting", "value"), tablefmt, left=(0, 1)))],
        "Machine": [(TABLE, tables.lay_out(machine, ("what", "found"), tablefmt, left=(0, 1)))],
        "Every epoch, run by run": [(TABLE, tables.epoch_table(report, tablefmt) or say("In results.json."))],
        "Commands": [(CODE, "\n".join(outcome.command for outcome in report.outcomes))],
    }
    whole = {heading: [part for part in parts if part[1]] for heading, parts in every.items()}
    return [Section(heading, parts) for heading, parts in whole.items() if parts]


def _listed(value, mark):
    return mark.join(map(str, value)) if isinstance(value, list) else str(value)
