"""A comparison as it is kept: report.md, results.csv and the figures, beside what the terminal shows."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from common.errors import SuiteError
from common.writing import write_text
from comparison.analysis import Analysis, RowAnalysis, analyse
from comparison.counterparts import BEFORE
from comparison.fairness import effective
from comparison.plan import words_of
from comparison.plots import FIGURES, draw_all
from comparison.projection import LABEL
from comparison.record import Report
from comparison.remarks import (
    ACCOUNTING,
    BESIDE,
    CARDS,
    INTERVENTION,
    RANKS,
    definitions,
    not_measured,
    notes,
    warnings,
)
from comparison.remedies import Proof, find_proofs
from comparison.results_file import read_results
from comparison.tables import (
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
from comparison.terminal import terminal_columns, terminal_text
from comparison.verdict import resolution, tell_proof, verdict

PROOF = "proof"  # the directory of a comparison's second one, which proves its causes


def keep_earlier(directory: Path) -> None:
    """Move what a new comparison would write over into a subdirectory with the date of then, and say so.

    The files in runs/ and traces/, and the proof, go along if there is a results.json that they belong to. Nothing is
    deleted but a results.json without a single outcome.
    """
    results = directory / "results.json"
    with contextlib.suppress(SuiteError):
        if not read_results(results).outcomes:
            results.unlink()
    names = ["results.json", "report.md", "results.csv", *FIGURES]
    names += ["runs", "traces", PROOF] if results.exists() else []
    earlier = [directory / name for name in names if os.path.lexists(directory / name)]
    if not earlier:
        return
    place = directory / datetime.fromtimestamp(earlier[0].lstat().st_mtime).strftime("earlier-%Y-%m-%d-%H%M%S")
    while place.exists():  # of the same second
        place = place.with_name(f"{place.name}+")
    place.mkdir()
    for file in earlier:
        file.rename(place / file.name)
    print(f"What lay in {directory} is kept in {place}: {', '.join(file.name for file in earlier)}", flush=True)


def present(directory: Path) -> Report:
    """Print what the results.json in `directory` holds; write report.md, results.csv and the figures; return it."""
    report, proof = read_results(directory / "results.json"), read_proof(directory)
    analysis = analyse(report)
    proofs = find_proofs(analysis, proof) if proof else []
    print(f"\n{terminal_text(analysis, proofs, terminal_columns())}\n")
    figures = draw_all(analysis, directory)
    write_csv(analysis, directory / "results.csv")
    write_markdown(analysis, directory / "report.md", figures, proofs)
    names = ["report.md", "results.json", "results.csv", *(figure.name for figure in figures)]
    print(f"Written to {directory}: " + ", ".join(names), flush=True)
    return report


def read_proof(directory: Path) -> Report | None:
    """Return the comparison that proves the causes of the one in `directory`, if it was run."""
    file = directory / PROOF / "results.json"
    return read_results(file) if file.exists() else None


def write_csv(analysis: Analysis, path: Path) -> None:
    """Write one line per row: settings that matter, result, derived numbers; empty where nothing was measured."""
    rows = [_csv_row(analysis, entry) for entry in analysis.rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
    writer.writeheader()
    writer.writerows(rows)
    write_text(text.getvalue(), path)


def _csv_row(analysis: Analysis, entry: RowAnalysis) -> dict[str, object]:
    report, row, numbers, standing = analysis.report, entry.row, entry.summary, entry.standing
    return {
        "method": row.configuration.method, "label": row.label,
        **{name: row.configuration.values.get(name) for name in report.swept},
        "dataset": report.settings["dataset"], "model": row.configuration.planned.model,
        "result": entry.result, "simulated": row.simulated,
        "devices": len(row.results[0].devices) if row.results else None,
        **{name: getattr(numbers, name) for name in (
            "runs", "epoch_seconds", "fastest_epoch", "slowest_epoch", "images_per_second", "accuracy",
            "training_seconds", "total_seconds")},
        "peak_memory_bytes": numbers.memory and numbers.memory.peak, "images_per_joule": numbers.images_per_joule,
        **{f"{name.replace(' ', '_')}_bytes": size
           for name, size in (numbers.memory.parts if numbers.memory else {}).items()},
        **_interval("speed_up", standing.speed_up), **_interval("efficiency", standing.efficiency),
        "no_speed_up_because": standing.reason,
        **{words_of(name): value for name, value in (vars(effective(row.results[0])) if row.results else {}).items()},
    }


def _interval(name, ratio):
    return {name: ratio and ratio.value, f"{name}_low": ratio and ratio.low, f"{name}_high": ratio and ratio.high}


def write_markdown(analysis: Analysis, path: Path, figures: list[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write the report for people: what was run, what came out, why, and what was not measured."""
    report = analysis.report
    machine = [(name, ", ".join(map(str, value)) if isinstance(value, list) else value)
               for name, value in report.environment.items() if value]
    settings = [(name.replace("_", " "), " ".join(map(str, value)) if isinstance(value, list) else value)
                for name, value in report.settings.items()
                if value not in (None, [], False) and name not in ("output_dir", "data_root", "debug")]
    parts = [
        f"# {report.title}", f"Made by `{report.command}`.",
        "## Result", *resolution(analysis), main_table(analysis, "github"), bullets(warnings(analysis)),
        bullets(notes(analysis)),
        *(["## Now and before", before_table(analysis, "github"), BESIDE] if analysis.pairs[BEFORE] else []),
        "## Verdict", *verdict(analysis),
        *(["## Proof by intervention", *map(tell_proof, proofs), INTERVENTION] if proofs else []),
        *(["## Where the time goes", *account_tables(analysis, "github"), bullets(ACCOUNTING)]
          if account_tables(analysis, "github") else []),
        *(["## Every rank", ranks, RANKS] if (ranks := rank_table(analysis, "github")) else []),
        *(["## Memory of a device", held] if (held := memory_table(analysis, "github")) else []),
        *(["## The GPUs while they trained", cards, CARDS] if (cards := card_table(analysis, "github")) else []),
        *(["## Which batches fit", trials] if (trials := trial_table(report, "github")) else []),
        "## What was equal", settings_table(report, "github"),
        *(["## Sweeps", *sweep_tables(analysis, "github")] if report.swept else []),
        *([f"## Projection ({LABEL})", projection_table(analysis, "github"),
           bullets(analysis.projection.assumptions)] if report.settings["project"] else []),
        "## Figures", *(f"![{figure.stem}]({figure.name})" for figure in figures),
        "## How the numbers are defined", bullets(definitions(report)),
        "## What was not measured", bullets(not_measured(report)),
        "## Accuracy per class (%)", class_table(report, "github"),
        "## Settings", lay_out(settings, ("setting", "value"), "github", left=(0, 1)),
        "## Machine", lay_out(machine, ("what", "found"), "github", left=(0, 1)),
        "## Every epoch, run by run", epoch_table(report, "github"),
        "## Commands", "```\n" + "\n".join(outcome.command for outcome in report.outcomes) + "\n```",
    ]
    write_text("\n\n".join(part for part in parts if part) + "\n", path)


def bullets(sentences: Iterable[str]) -> str:
    """Return the sentences as a list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)
