"""The sections of a report, independent of its format."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from comparison.judge.analysis import Analysis
from comparison.judge.projection import LABEL
from comparison.judge.remedies import Proof
from comparison.plan.flags import WITH_SCRIPTS
from comparison.show import advice, remarks, verdict
from comparison.show import detail_tables as details
from comparison.show.sentences import finding_sentence, mebibytes, sentence
from comparison.show.tables import lay_out, main_table
from comparison.words import say

# Kinds of content: a text, a table made by tabulate, a list of sentences, shell commands, a list of PNG files.
TEXT, TABLE, LIST, CODE, FIGURES = "text", "table", "list", "code", "figures"
ON_BY_DEFAULT = ("augment", "tips")  # switches
UNITS: dict[str, Callable[[Any], str]] = dict(  # how to show settings that have a unit
    budget="{:g} s".format,
    timeout="{:g} s".format,
    equal_within=lambda share: f"{100 * share:g}%",
    margin=lambda share: f"{100 * share:g}%",
    accuracy_margin=lambda points: f"{points:g} point{'s' * (points != 1)}",
    memory_limit=lambda size: f"{mebibytes(size)} MiB",
    steps=lambda steps: f"{steps:g} s" if isinstance(steps, float) else str(steps),
)
Parts = list[tuple[str, Any]]  # of a section, each a kind and its content


def sections(analysis: Analysis, figures: Sequence[Path], proofs: Sequence[Proof], tablefmt: str) -> dict[str, Parts]:
    """Return all sections that have content, by their headings, with tables in one of tabulate's formats."""
    report = analysis.report
    before = details.before_table(analysis, tablefmt)
    accounts = details.account_tables(analysis, tablefmt)
    ranks = details.rank_table(analysis, tablefmt)
    cards = details.card_table(analysis, tablefmt)
    classes = details.class_table(report, tablefmt)
    accounting = [sentence(key) for key in ("ideal scaling", "accounts", "slowest rank")]
    projected = [
        (TABLE, details.projection_table(analysis, tablefmt)),
        (LIST, list(map(finding_sentence, analysis.projection.stops))),
        (LIST, list(map(finding_sentence, analysis.projection.assumptions))),
    ]
    machine = [(name, _listed(value, ", ")) for name, value in report.environment.items() if value]
    settings = list(_settings(report))
    every: dict[str, Parts] = {
        "Result": [
            *((TEXT, text) for text in remarks.resolution(analysis)),
            (TABLE, main_table(analysis, tablefmt)),
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
            *((TEXT, text) for text in advice.option_advice(analysis)),
            (TABLE, details.tip_table(analysis, tablefmt)),
            (TEXT, analysis.tips and sentence("tips", row=analysis.tips[0].plain.label)),
        ],
        "What was guessed": [(LIST, verdict.tell_guesses(analysis))],
        "Where the time goes": [*((TABLE, table) for table in accounts), (LIST, accounts and accounting)],
        "Every rank": [(TABLE, ranks), (TEXT, ranks and sentence("ranks"))],
        "Memory of a device": [(TABLE, details.memory_table(analysis, tablefmt))],
        "The GPUs while they trained": [
            (TABLE, cards),
            (TEXT, cards and sentence("cards")),
            (LIST, remarks.bandwidths(report)),
        ],
        "Which batches fit": [(TABLE, details.trial_table(analysis, tablefmt))],
        "Settings of each row": [(TABLE, details.settings_table(report, tablefmt) or say("No run ended well."))],
        "Sweeps": [(TABLE, table) for table in details.sweep_tables(analysis, tablefmt)],
        say("Projection ({words})", words=LABEL): projected if report.settings["project"] else [],
        "Figures": [(FIGURES, figures)],
        "How the numbers are defined": [(LIST, remarks.definitions(report))],
        "What was not measured": [(LIST, remarks.not_measured(report))],
        "Accuracy per class (%)": [(TABLE, classes or say("Not known for any row."))],
        "Settings": [(TABLE, lay_out(settings, ("setting", "value"), tablefmt, left=(0, 1)))],
        "Machine": [(TABLE, lay_out(machine, ("what", "found"), tablefmt, left=(0, 1)))],
        "Commands": [(CODE, "\n".join(outcome.command for outcome in report.outcomes))],
    }
    whole = {heading: [part for part in parts if part[1]] for heading, parts in every.items()}
    return {heading: parts for heading, parts in whole.items() if parts}


def _settings(report):
    """Each setting that was typed, or has an effect by default, with its value and unit."""
    scripts = any(row.is_script for row in report.plan)
    for name, value in report.settings.items():
        said = value not in (None, [], [None]) and (value is not False or name in ON_BY_DEFAULT)
        applies = name in WITH_SCRIPTS if report.only_scripts else scripts or name not in ("steps", "warmup")
        if said and applies and name not in ("output_dir", "data_root", "debug"):
            yield name.replace("_", " "), UNITS.get(name, partial(_listed, mark=" "))(value)


def _listed(value, mark):
    return mark.join(map(str, value)) if isinstance(value, list) else str(value)
