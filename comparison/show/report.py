"""A comparison as it is kept: reports, tables and figures in files, beside what the terminal shows."""

import contextlib
import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from common.errors import SuiteError
from common.files.writing import write_text
from common.words import printable
from comparison.judge.analysis import Analysis, analyse, find_tips
from comparison.judge.fairness import effective
from comparison.judge.remedies import Proof, find_proofs
from comparison.judge.row_analysis import RowAnalysis
from comparison.plan.plan import words_of
from comparison.record import Report
from comparison.results_file import read_results
from comparison.show import figures
from comparison.show.page import write_html
from comparison.show.sections import CODE, FIGURES, LIST, TABLE, TEXT, sections
from comparison.show.tables import main_table
from comparison.show.terminal import terminal_columns, terminal_text
from comparison.words import ENGLISH, render, say, speaking

FILES = ("results.json", "report.html", "report.md", "results.csv", "results.tex")  # the first tells the date
NUMBERS = (  # attributes of a Summary that results.csv has
    *("runs", "epoch_seconds", "fastest_epoch", "slowest_epoch"),
    *("images_per_second", "accuracy", "training_seconds", "total_seconds"),
)
PROOF, TIPS = "proof", "tips"  # the directories of a comparison's other ones: of its causes, of options


def keep_earlier(directory: Path) -> None:
    """Move what a new comparison would write over into a subdirectory with the date of then, and say so.

    Runs, traces and the proof go along if there is a results.json that they belong to; one without outcomes is deleted.
    """
    results = directory / "results.json"
    with contextlib.suppress(SuiteError):
        if not read_results(results).outcomes:
            results.unlink()
    drawn = [str(Path(name).with_suffix(ending)) for name in figures.FIGURES for ending in (".png", ".svg")]
    names = [*FILES, *drawn, *(["runs", "traces", PROOF, TIPS] if results.exists() else [])]
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


def present(directory: Path, language: str = ENGLISH, verbose: bool = False) -> Report:
    """Read the results.json in `directory`, show it, and return it."""
    report = read_results(directory / "results.json")
    show(analyse(report), directory, language, verbose)
    return report


def show(analysis: Analysis, directory: Path, language: str = ENGLISH, verbose: bool = False) -> None:
    """Print what a comparison found; write FILES but the first, and the figures, into `directory`, in a language."""
    proof, tried = read_beside(directory, PROOF), read_beside(directory, TIPS)
    analysis = replace(analysis, tips=find_tips(tried) if tried else ())
    proofs = find_proofs(analysis, proof) if proof else []
    with speaking(language):
        text = terminal_text(analysis, proofs, terminal_columns(), directory / "report.html", verbose)
        print(f"\n{printable(text)}", flush=True)
        write_csv(analysis, directory / "results.csv")
        write_text(main_table(analysis, "latex_booktabs") + "\n", directory / "results.tex")
        drawn = figures.draw_all(analysis, directory)  # takes longest: whoever ends this program may not wait for it
        write_markdown(analysis, directory / "report.md", drawn, proofs)
        write_html(analysis, directory / "report.html", drawn, proofs)


def read_beside(directory: Path, kind: str) -> Report | None:
    """Return the comparison for PROOF, or for TIPS, of the one in `directory`, if it was run."""
    file = directory / kind / "results.json"
    return read_results(file) if file.exists() else None


def write_csv(analysis: Analysis, path: Path) -> None:
    """Write one line per row: settings that matter, result, derived numbers; empty where nothing was measured."""
    rows = [_csv_row(analysis, entry) for entry in analysis.rows]
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):  # for a formula
                row[name] = f"'{value}"
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
    writer.writeheader()
    writer.writerows(rows)
    write_text(text.getvalue(), path)


def _csv_row(analysis: Analysis, entry: RowAnalysis) -> dict[str, object]:
    report, row, numbers, memory = analysis.report, entry.row, entry.summary, entry.summary.memory
    standing, ratios = entry.standing, {}
    told = {
        "speed_up": standing.speed_up,
        "efficiency": standing.efficiency,
        "time_to_best": analysis.beside_best(entry),
    }
    for name, ratio in told.items():
        for end, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
            ratios[f"{name}{end}"] = getattr(ratio, bound, None)
    return {
        "method": row.configuration.method,
        "label": row.label,
        **{name: row.configuration.values.get(name) for name in report.swept},
        "dataset": report.settings["dataset"],
        "model": row.configuration.planned.model,
        "result": entry.result,
        "simulated": row.simulated,
        "devices": len(row.results[0].devices) if row.results else None,
        **{name: getattr(numbers, name) for name in NUMBERS},
        "peak_memory_bytes": memory and memory.peak,
        "images_per_joule": numbers.images_per_joule,
        **({} if numbers.mfu is None else {"mfu": numbers.mfu}),
        **{f"{name.replace(' ', '_')}_bytes": size for name, size in (memory.parts if memory else {}).items()},
        **ratios,
        "no_speed_up_because": standing.reason,
        **{words_of(name): value for name, value in (effective(row.results[0]) if row.results else {}).items()},
    }


def write_markdown(analysis: Analysis, path: Path, figures: list[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write the report for people as Markdown."""
    command = " ".join(printable(analysis.report.command).replace("`", "'").split())  # a backtick would end it
    parts = [f"# {markdown(analysis.report.title)}", f"{render(say('Made by'))} `{command}`."]
    for section in sections(analysis, figures, proofs, "github"):
        parts += [f"## {render(section.heading)}", *(MARKDOWN[kind](content) for kind, content in section.parts)]
    write_text("\n\n".join(parts) + "\n", path)


def markdown(text: str) -> str:
    """Return a text without what Markdown would take for HTML, or for a link or picture."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(render(text))).replace("](", "]\\(")


def fenced(text: str) -> str:
    """Return lines of a program as Markdown, between more backticks than they have themselves."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{printable(text)}\n{fence}"


def _list(sentences):
    return "\n".join(f"- {markdown(sentence)}" for sentence in sentences)


def _images(paths):
    return "\n\n".join(f"![{figure.stem}]({figure.name})" for figure in paths)


MARKDOWN = {TEXT: markdown, TABLE: markdown, LIST: _list, CODE: fenced, FIGURES: _images}
