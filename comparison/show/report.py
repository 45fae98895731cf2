"""Print a comparison and write its report files."""

import contextlib
import csv
import io
import os
import re
import shutil
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

FILES = ("results.json", "report.html", "report.md", "results.csv", "results.tex")  # the first one's date counts
NUMBERS = (  # attributes of a Summary in results.csv
    *("runs", "epoch_seconds", "fastest_epoch", "slowest_epoch"),
    *("images_per_second", "accuracy", "training_seconds", "total_seconds"),
)
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take a text with such a beginning for a formula
DATED = r"earlier-\d{4}-\d\d-\d\d-\d{6}\+*"  # names of the subdirectories of keep_earlier()
PROOF, TIPS = "proof", "tips"  # subdirectories with further comparisons: of causes, and of options


def keep_earlier(directory: Path, limit: int | None = None) -> None:
    """Move files that a new comparison would overwrite into a dated subdirectory, and print what was moved.

    Runs, traces, proof and tips are moved too, if there is a results.json. A results.json without outcomes is deleted.
    limit: how many dated subdirectories to keep; older ones are deleted. None: all.
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
    while place.exists():  # made in the same second
        place = place.with_name(f"{place.name}+")
    place.mkdir()
    for file in earlier:
        file.rename(place / file.name)
    print(f"What lay in {directory} is kept in {place}: {', '.join(file.name for file in earlier)}", flush=True)
    for old in sorted(path for path in directory.iterdir() if re.fullmatch(DATED, path.name))[: -limit if limit else 0]:
        shutil.rmtree(old)
        print(f"Deleted {old} (--keep {limit})", flush=True)


def present(directory: Path, language: str = ENGLISH, verbose: bool = False) -> Report:
    """Show the results.json in `directory`, and return it."""
    report = read_results(directory / "results.json")
    show(analyse(report), directory, language, verbose)
    return report


def show(analysis: Analysis, directory: Path, language: str = ENGLISH, verbose: bool = False) -> None:
    """Print the result of a comparison, and write its report files and figures into `directory`."""
    analysis, proofs = with_tips_and_proofs(analysis, directory)
    with speaking(language):
        text = terminal_text(analysis, proofs, terminal_columns(), directory / "report.html", verbose)
        print(f"\n{printable(text)}", flush=True)
        write_csv(analysis, directory / "results.csv")
        table = main_table(analysis, "latex_booktabs").replace("Δ", r"$\Delta$")  # which pdfLaTeX does not know
        write_text(table + "\n", directory / "results.tex")
        drawn = figures.draw_all(analysis, directory)  # slow, so after the files above in case of an interrupt
        write_markdown(analysis, directory / "report.md", drawn, proofs)
        write_html(analysis, directory / "report.html", drawn, proofs)


def with_tips_and_proofs(analysis: Analysis, directory: Path) -> tuple[Analysis, list[Proof]]:
    """Return the analysis with the tips beside a comparison, and the proofs of its causes."""
    proof, tips = read_beside(directory, PROOF), read_beside(directory, TIPS)
    analysis = replace(analysis, tips=find_tips(tips) if tips else ())
    return analysis, find_proofs(analysis, proof) if proof else []


def read_beside(directory: Path, kind: str) -> Report | None:
    """Return the comparison in the PROOF or TIPS subdirectory, or None if it was not run."""
    file = directory / kind / "results.json"
    return read_results(file) if file.exists() else None


def write_csv(analysis: Analysis, path: Path) -> None:
    """Write one line per row with settings, result and numbers; a cell is empty where nothing was measured."""
    rows = [_csv_row(analysis, entry) for entry in analysis.rows]
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and value.startswith(FORMULAS):
                row[name] = f"'{value}"
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
    writer.writeheader()
    writer.writerows(rows)
    write_text(text.getvalue(), path)


def _csv_row(analysis: Analysis, entry: RowAnalysis) -> dict[str, object]:
    report, row, numbers, memory = analysis.report, entry.row, entry.summary, entry.summary.memory
    standing = entry.standing
    ratios = {
        **_with_bounds("speed_up", standing.speed_up),
        **_with_bounds("efficiency", standing.efficiency),
        **_with_bounds("time_to_best", analysis.ratio_to_best(entry)),
    }
    return {
        "method": row.configuration.method,
        "label": row.label,
        **{name: row.configuration.values.get(name) for name in report.swept},
        "dataset": None if row.configuration.is_script else report.settings["dataset"],
        "model": None if row.configuration.is_script else row.configuration.planned.model,
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


def _with_bounds(name, ratio):
    numbers = (ratio.value, *(ratio.interval or (None, None))) if ratio else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))


def write_markdown(analysis: Analysis, path: Path, figures: list[Path], proofs: Sequence[Proof] = ()) -> None:
    """Write report.md."""
    write_text(markdown_report(analysis, figures, proofs), path)


def markdown_report(analysis: Analysis, figures: list[Path], proofs: Sequence[Proof] = ()) -> str:
    """Return the text of report.md."""
    command = " ".join(printable(analysis.report.command).replace("`", "'").split())  # a backtick would end the code
    parts = [f"# {markdown(analysis.report.title)}", f"{render(say('Made by'))} `{command}`."]
    for heading, contents in sections(analysis, figures, proofs, "github").items():
        parts += [f"## {render(heading)}", *(MARKDOWN[kind](content) for kind, content in contents)]
    return "\n\n".join(parts) + "\n"


def markdown(text: str) -> str:
    """Render a text and escape what Markdown would take for HTML, links or images."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(render(text))).replace("](", "]\\(")


def fenced(text: str) -> str:
    """Return a Markdown code block, fenced with more backticks than the text contains."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{printable(text)}\n{fence}"


def _list(sentences):
    return "\n".join(f"- {markdown(sentence)}" for sentence in sentences)


def _images(paths):
    return "\n\n".join(f"![{figure.stem}]({figure.name})" for figure in paths)


MARKDOWN = {TEXT: markdown, TABLE: markdown, LIST: _list, CODE: fenced, FIGURES: _images}
