"""Generates the parts of the documentation that come from code and committed results: `make docs`.

    python benchmarks/docs.py

Writes JSON schemas (2020-12) of the project's files to docs/*.schema.json, the reports of comparisons to
figures/*/report.md, their terminal output to figures/*/terminal-COLUMNS.txt, and the text between <!-- NAME --> and
<!-- end --> in each page, which is a table of committed JSON or a diff of two scripts.
"""

import difflib
import importlib
import json
import re
import statistics
import textwrap
from functools import partial
from pathlib import Path

import msgspec
from measure import PROJECT
from runs import machine_line

from common.files.results import PHASES, RunResult
from common.files.writing import write_text
from common.settings.config import FLAGS, RunConfig
from common.words import count
from comparison.judge.analysis import Analysis, analyse
from comparison.plan.counterparts import BEFORE
from comparison.record import Report
from comparison.results_file import SCHEMA_VERSION, read_results
from comparison.show import figures
from comparison.show.detail_tables import before_table, memory_table, projection_table, sweep_tables
from comparison.show.report import markdown_report, with_tips_and_proofs
from comparison.show.tables import accuracy, lay_out, main_rows, table_of
from comparison.show.terminal import terminal_text

ONLY_IN_REPORT = ("Data set", "Devices", "min–max", "Runs", "Images/s", "Relative time [95%]", "Total time (s)")
DOCS, FIGURES = PROJECT / "docs", PROJECT / "figures"
BENCHMARKS = FIGURES / "benchmark"
PAGES = (PROJECT / "README.md", PROJECT / "README.zh-CN.md", *sorted(DOCS.glob("*.md")))
SCRIPTS = (  # benchmarks with a table()
    *"overhead loaders options peers scaling roofline startup planted_causes sharding sharing decisions proofs".split(),
    *("own_scripts", "published", "fabric"),
)
DDP_LENET = (
    "--dataset mnist --model lenet --batch-size 128 --loader resident --epochs 2 --max-steps 200 "
    "--methods single single-all-cores ddp fsdp"
)
SGD_MNIST = "--dataset mnist --epochs 8 --lr 0.01 --optimizer nesterov"
SGD_CIFAR10 = "--dataset cifar10 --model strided --epochs 10 --lr 0.01 --optimizer nesterov"
COMPARISONS = {  # directory → flags of compare_parallel.py; CORES is replaced by the number of cores
    "time-to-99-mnist": "--dataset mnist --recipe fast --methods single --threads-per-device CORES --repeats 5 "
    "--target-accuracy 0.99",
    "time-to-90-cifar10": "--dataset cifar10 --recipe fast --baseline single-all-cores --methods single-all-cores ddp "
    "pipeline --repeats 3 --target-accuracy 0.9",
    "ddp-lenet": f"{DDP_LENET} --repeats 5",
    "bind-lenet": f"{DDP_LENET} --repeats 8 --bind --against figures/benchmark/ddp-lenet/results.json",
    **{
        f"lr-{name}": f"{flags} --loader resident --repeats 3 --methods single-all-cores --baseline single-all-cores"
        for name, flags in {
            "mnist-none": f"{SGD_MNIST} --batch-size 128 1024",
            "mnist-linear": f"{SGD_MNIST} --batch-size 1024 --lr-scaling linear",
            "mnist-adam": "--dataset mnist --epochs 8 --batch-size 128 1024",
            "mnist-sqrt": "--dataset mnist --epochs 8 --batch-size 1024 --lr-scaling sqrt",
            "cifar10-none": f"{SGD_CIFAR10} --batch-size 128 1024",
            "cifar10-linear": f"{SGD_CIFAR10} --batch-size 1024 --lr-scaling linear",
            "cifar10-small": f"{SGD_CIFAR10} --batch-size 32 256 --lr-scaling linear",
        }.items()
    },
    "memory-for-time": "--dataset synthetic-cifar10 --model resnet8 --loader resident --batch-size 512 --epochs 2 "
    "--max-steps 6 --repeats 3 --baseline single-all-cores --methods single-all-cores "
    "single-all-cores:accumulate=8 single-all-cores:recompute",
    "pipeline-resnet8": "--dataset cifar10 --model resnet8 --loader resident --epochs 2 --max-steps 15 --repeats 10 "
    "--methods pipeline-1 pipeline pipeline-1f1b --micro-batches 8 --baseline pipeline-1",
}
CHECKSUM = {
    "sha256": {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "of the other values as JSON with sorted keys, as Python's json writes it",
    }
}


def schema(kind: type) -> dict:
    """Return the JSON schema of a record. All fields are required; only a comparison's settings may have others."""
    made = msgspec.json.schema(kind)
    for name, part in made["$defs"].items():
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
        if name in ("Settings", "Environment"):  # a TypedDict declares its own required keys
            part["additionalProperties"] = name == "Settings"
        else:
            part |= {"required": [*part["properties"]], "additionalProperties": False}
            for value in part["properties"].values():
                value.pop("default", None)  # which defaults are written depends on msgspec's version
    for name, phase in PHASES.items():
        made["$defs"]["PhaseTimes"]["properties"][name]["description"] = phase.meaning
    flags = msgspec.json.schema(RunConfig)["$defs"]["RunConfig"]["properties"]
    for name, about in FLAGS.items():
        flags[name] = {**flags[name], "description": about.help.replace("%(default)s", "default")}
    made["$defs"]["RunResult"]["properties"]["config"] = {
        "type": "object",
        "description": "the flags' values, and those of the script's own flags",
        "properties": flags,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def run_schema() -> dict:
    """Return the schema of a run's result file. Older ones have no checksum."""
    made = schema(RunResult)
    made["$defs"]["RunResult"]["properties"] |= CHECKSUM
    return made


def comparison_schema() -> dict:
    made = schema(Report)
    added = {"schema_version": {"const": SCHEMA_VERSION}, **CHECKSUM}
    report = made["$defs"]["Report"]
    report["properties"] |= added
    report["required"] += added
    return made


def analysis_in(directory: Path) -> Analysis:
    return analyse(read_results(directory / "results.json"))


def short_table(analysis: Analysis) -> str:
    """Return the table of a comparison without the columns of ONLY_IN_REPORT."""
    rows = ({name: value for name, value in row.items() if name not in ONLY_IN_REPORT} for row in main_rows(analysis))
    return table_of(rows, "github")


def measured_table(name: str, directory: Path, link_prefix: str = "") -> str:
    """Return the table of one benchmark, with its command, its machine and links to its results."""
    if (directory / name / "results.json").exists():
        analysis = analysis_in(directory / name)
        where, command = analysis.report.environment, analysis.report.command
        if name in COMPARISONS and link_prefix:
            command = f"python benchmarks/benchmark.py --only {name}"
        text = before_table(analysis, "github") if analysis.pairs[BEFORE] else short_table(analysis)
        links = f"[report]({link_prefix}{name}/report.md), [raw]({link_prefix}{name}/results.json)"
    else:
        results = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
        command, where = results["command"].replace(" --data-root ./data", ""), results["environment"]
        text, links = importlib.import_module(name).table(results), f"[raw]({link_prefix}{name}.json)"
        if results.get("device") == "cpu":  # the machine had too few GPUs
            where = {**where, "gpus": []}
        if results.get("left"):
            links += f", {count(results['left'], 'run')} left"
    return f"{text}\n\n`{command}` on {machine_line(where)} ({links})."


def comparison_table(name: str) -> str:
    """Return the table of a comparison, or the tables of its sweeps."""
    analysis = analysis_in(FIGURES / name)
    tables = sweep_tables(analysis, "github") if analysis.report.swept else [short_table(analysis)]
    return "\n\n".join([*tables, f"({machine_line(analysis.report.environment)})"])


def accuracies(names: str) -> str:
    """Return the accuracy, batch size and learning rate of each row of some benchmarks."""
    rows = []
    for name in names.split():
        for entry in analysis_in(BENCHMARKS / name).done:
            config = entry.row.results[0].config
            known = {field: config[field] for field in ("dataset", "optimizer", "batch_size", "lr_scaling", "lr")}
            rate = f"{RunConfig(**known).highest_lr:.3g}"
            rows.append((*list(known.values())[:4], rate, accuracy(entry.summary.accuracies)))
    heading = ("Data set", "Optimizer", "Batch", "--lr-scaling", "Highest learning rate", "Test accuracy (%)")
    return f"{lay_out(rows, heading, 'github')}\n\n{commands(names)}"


def commands(names: str) -> str:
    """Return the command that runs some benchmarks, and the machine of the first."""
    where = analysis_in(BENCHMARKS / names.split()[0]).report.environment
    return f"`python benchmarks/benchmark.py --only {names}` on {machine_line(where)}."


def alarms(blocks: str) -> str:
    """Return the table of false claims and power for a number of blocks."""
    module = importlib.import_module("false_alarms")
    measured = json.loads((FIGURES / "false-alarms" / "results.json").read_text(encoding="utf-8"))
    rows = [row for row in measured["fixed"] if row["blocks"] == int(blocks)]
    return module.summary(rows, measured["looks"]).split("\n\n")[1]


def report(directory: Path) -> str:
    analysis, proofs = with_tips_and_proofs(analysis_in(directory), directory)
    drawn = [directory / name for name in figures.FIGURES if (directory / name).exists()]
    return markdown_report(analysis, drawn, proofs)


def screen(file: Path) -> str:
    """Return the text of terminal-COLUMNS.txt next to a comparison's results."""
    analysis, _ = with_tips_and_proofs(analysis_in(file.parent), file.parent)
    return terminal_text(analysis, width=int(file.stem.rpartition("-")[2])) + "\n"


def faults(_: str) -> str:
    """Return the table of injected faults, with a line for each file in tests/faults."""
    rows, groups = [], {}
    for fault in json.loads((FIGURES / "faults" / "faults.json").read_text(encoding="utf-8"))["faults"]:
        groups.setdefault(fault["group"], []).append(fault)
    for group, injected in groups.items():
        seconds = [fault["seconds"] for fault in injected if fault["seconds"] is not None]
        link = f"tests/faults/test_{group.replace(' ', '_')}.py"
        times = (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("–", "–")
        rows.append((f"[{group}]({link})", len(injected), sum(fault["handled"] for fault in injected), *times))
    return lay_out(rows, ("Faults", "Injected", "Handled", "Median time to the report (s)", "Longest (s)"), "github")


def nodes(_: str) -> str:
    """Return the table of faults on three nodes, with a line for each kind."""
    rows, kinds = [], {}
    for episode in json.loads((FIGURES / "faults" / "nodes.json").read_text(encoding="utf-8"))["episodes"]:
        kinds.setdefault(episode["fault"], []).append(episode)
    for kind, episodes in sorted(kinds.items()):
        named = [episode["seconds"] for episode in episodes if episode["outcome"] == "named"]
        longest = f"{max(named):.1f}" if named else "–"
        rows.append((kind, len(episodes), len(episodes) - len(named), len(named), longest))
    return lay_out(rows, ("Fault", "Episodes", "Recovered", "Named", "Longest until named (s)"), "github")


def difference(names: str) -> str:
    """Return a diff of two scripts from train() on."""
    texts = [(PROJECT / f"{name}.py").read_text(encoding="utf-8") for name in names.split()]
    bodies = [text[text.index("def train(") :].splitlines() for text in texts]
    changed = list(difflib.unified_diff(*bodies, n=0, lineterm=""))[3:]  # skips the file names and the first @@
    return "\n".join(["```diff", *("" if line.startswith("@@") else line for line in changed), "```"])


PARTS = {  # kind → what returns the part, from the words after its kind
    "table": comparison_table,
    "projection": lambda name: projection_table(analysis_in(FIGURES / name), "github"),
    "terminal": lambda name: textwrap.indent(screen(FIGURES / name / "terminal-80.txt"), "    ").rstrip("\n"),
    "faults": faults,
    "nodes": nodes,
    "diff": difference,
    "accuracies": accuracies,
    "memory": lambda name: f"{memory_table(analysis_in(BENCHMARKS / name), 'github')}\n\n{commands(name)}",
    "alarms": alarms,
}


def part(page: Path, match: re.Match) -> str:
    """Return a generated part of a page with its two markers."""
    name, kind, about = match["name"], *match["name"].partition(" ")[::2]
    text = PARTS[kind](about) if kind in PARTS else measured_table(name, BENCHMARKS, "figures/benchmark/")
    space = "\n" if kind == "terminal" else "\n\n"  # keeps the README short
    text = text.replace("](", "](../") if page.parent == DOCS and kind != "diff" else text
    return f"<!-- {name} -->{space}{text}{space}<!-- end -->"


def generated_page(page: Path) -> str:
    marked = r"<!-- (?P<name>[\w -]+) -->\n.*?<!-- end -->"
    return re.sub(marked, partial(part, page), page.read_text(encoding="utf-8"), flags=re.DOTALL)


def generated_files() -> dict[Path, str]:
    """Return the new text of each file."""
    files = {page: generated_page(page) for page in PAGES}
    for name, made in (("run-result", run_schema()), ("results", comparison_schema())):
        files[DOCS / f"{name}.schema.json"] = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    for file in FIGURES.glob("*/terminal-*.txt"):
        files[file] = screen(file)
    for file in FIGURES.rglob("report.md"):
        files[file] = report(file.parent)
    return files


def write() -> None:
    """Update all generated files."""
    for file, text in generated_files().items():
        write_text(text, file)


if __name__ == "__main__":
    write()
