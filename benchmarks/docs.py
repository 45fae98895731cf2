"""Writes anew what the project's pages hold of its code and its results: `make docs`.

    python benchmarks/docs.py

docs/*.schema.json are JSON schemas (2020-12) of the files that this project writes, made of the dataclasses that are
read from them; figures/*/terminal-COLUMNS.txt is what a terminal shows at a comparison's end. In a page, what stands
between <!-- NAME --> and <!-- end --> is made of committed JSON, or is the difference of two scripts; what was never
measured is left as it is.
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
from comparison.show.detail_tables import before_table, memory_table, projection_table, sweep_tables
from comparison.show.tables import accuracy, lay_out, main_rows, table_of
from comparison.show.terminal import terminal_text

HIDDEN = ("Data set", "Devices", "min–max", "Runs", "Images/s", "Relative time [95%]", "Total time (s)")  # in report.md
DOCS, FIGURES = PROJECT / "docs", PROJECT / "figures"
PAGES = (PROJECT / "README.md", PROJECT / "README.zh-CN.md", *sorted(DOCS.glob("*.md")))
SCRIPTS = (  # with a table()
    *"overhead loaders options peers scaling roofline startup planted_causes sharding sharing decisions proofs".split(),
    "own_scripts",
)
DDP_LENET = (
    "--dataset mnist --model lenet --batch-size 128 --loader resident --epochs 2 --max-steps 200 "
    "--methods single single-all-cores ddp fsdp"
)
FAST_CIFAR10 = "--dataset cifar10 --recipe fast --baseline single-all-cores"
SGD_MNIST = "--dataset mnist --epochs 8 --lr 0.01 --optimizer nesterov"
SGD_CIFAR10 = "--dataset cifar10 --model strided --epochs 10 --lr 0.01 --optimizer nesterov"
COMPARISONS = {  # directory → flags of compare_parallel.py; CORES: of this machine
    "time-to-99-mnist": "--dataset mnist --recipe fast --methods single --threads-per-device CORES --repeats 5 "
    "--target-accuracy 0.99",
    "time-to-90-cifar10": f"{FAST_CIFAR10} --methods single-all-cores ddp pipeline --repeats 3 --target-accuracy 0.9",
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


def schema(kind: type) -> dict:
    """Return the schema of a record: a file has all of its fields, and no others but in a comparison's settings."""
    made = msgspec.json.schema(kind)
    for name, part in made["$defs"].items():
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
        if name in ("Settings", "Environment"):  # a TypedDict, which says what may be missing
            part["additionalProperties"] = name == "Settings"
        else:
            part |= {"required": [*part["properties"]], "additionalProperties": False}
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


def comparison() -> dict:
    """Return the schema of a comparison's results.json."""
    made = schema(Report)
    own = {
        "schema_version": {"const": SCHEMA_VERSION},
        "sha256": {
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
            "description": "of the other values as JSON with sorted keys, as Python's json writes it",
        },
    }
    report = made["$defs"]["Report"]
    report["properties"] |= own
    report["required"] += own
    return made


def short_table(analysis: Analysis) -> str:
    """Return the table of a comparison without the columns that only its report shows."""
    rows = ({name: value for name, value in row.items() if name not in HIDDEN} for row in main_rows(analysis))
    return table_of(rows, "github")


def measured_table(name: str, directory: Path, place: str = "") -> str:
    """Return the table of one benchmark, its command, its machine, and links to its numbers, which begin with place."""
    if (file := directory / name / "results.json").exists():
        analysis = analyse(read_results(file))
        where, command = analysis.report.environment, analysis.report.command
        if name in COMPARISONS and place:
            command = f"python benchmarks/benchmark.py --only {name}"
        text = before_table(analysis, "github") if analysis.pairs[BEFORE] else short_table(analysis)
        links = f"[report]({place}{name}/report.md), [raw]({place}{name}/results.json)"
    else:
        results = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
        command, where = results["command"].replace(" --data-root ./data", ""), results["environment"]
        text, links = importlib.import_module(name).table(results), f"[raw]({place}{name}.json)"
        if results.get("device") == "cpu":  # it had too few GPUs
            where = {**where, "gpus": []}
        if results.get("left"):
            links += f", {count(results['left'], 'run')} left"
    return f"{text}\n\n`{command}` on {machine_line(where)} ({links})."


def comparison_table(name: str) -> str:
    """Return the table of a comparison, or those of its sweeps."""
    analysis = analyse(read_results(FIGURES / name / "results.json"))
    tables = sweep_tables(analysis, "github") if analysis.report.swept else [short_table(analysis)]
    return "\n\n".join([*tables, f"({machine_line(analysis.report.environment)})"])


def accuracies(names: str) -> str:
    """Return what each row of some benchmarks learned, with which batch and learning rate."""
    rows = []
    for name in names.split():
        for entry in analyse(read_results(FIGURES / "benchmark" / name / "results.json")).done:
            config = entry.row.results[0].config
            known = {field: config[field] for field in ("dataset", "optimizer", "batch_size", "lr_scaling", "lr")}
            rate = f"{RunConfig(**known).highest_lr:.3g}"
            rows.append((*list(known.values())[:4], rate, accuracy(entry.summary.accuracies)))
    heading = ("Data set", "Optimizer", "Batch", "--lr-scaling", "Highest learning rate", "Test accuracy (%)")
    return f"{lay_out(rows, heading, 'github')}\n\n{commands(names)}"


def memory(name: str) -> str:
    """Return what each row of a benchmark needs of memory, beside its time."""
    analysis = analyse(read_results(FIGURES / "benchmark" / name / "results.json"))
    return f"{memory_table(analysis, 'github')}\n\n{commands(name)}"


def commands(names: str) -> str:
    """Return what to type to measure some benchmarks again, and where they were."""
    where = read_results(FIGURES / "benchmark" / names.split()[0] / "results.json").environment
    return f"`python benchmarks/benchmark.py --only {names}` on {machine_line(where)}."


def alarms(blocks: str) -> str:
    """Return how often a comparison of so many blocks claims what is not there, and finds what is."""
    module = importlib.import_module("false_alarms")
    measured = json.loads((FIGURES / "false-alarms" / "results.json").read_text(encoding="utf-8"))
    rows = [row for row in measured["fixed"] if row["blocks"] == int(blocks)]
    return module.summary(rows, measured["looks"], measured["real"]).split("\n\n")[1]


def projection(name: str) -> str:
    """Return the table of what a comparison projects."""
    return projection_table(analyse(read_results(FIGURES / name / "results.json")), "github")


def terminal(name: str) -> str:
    """Return what a terminal of 80 columns shows of a comparison."""
    return textwrap.indent(screen(FIGURES / name / "terminal-80.txt"), "    ").rstrip("\n")


def screen(file: Path) -> str:
    """Return what terminal-COLUMNS.txt beside a comparison's results is to hold."""
    report = read_results(file.parent / "results.json")
    return terminal_text(analyse(report), width=int(file.stem.rpartition("-")[2])) + "\n"


def faults(_: str) -> str:
    """Return what became of the injected faults, by the file that injects them."""
    rows = []
    every = json.loads((FIGURES / "faults" / "faults.json").read_text(encoding="utf-8"))["faults"]
    for group in dict.fromkeys(fault["group"] for fault in every):
        some = [fault for fault in every if fault["group"] == group]
        seconds = [fault["seconds"] for fault in some if fault["seconds"] is not None]
        link = f"tests/faults/test_{group.replace(' ', '_')}.py"
        times = (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("–", "–")
        rows.append((f"[{group}]({link})", len(some), sum(fault["handled"] for fault in some), *times))
    return lay_out(rows, ("Faults", "Injected", "Handled", "Median time to the report (s)", "Longest (s)"), "github")


def difference(names: str) -> str:
    """Return in which lines of train(), and after it, two scripts differ."""
    texts = [(PROJECT / f"{name}.py").read_text(encoding="utf-8") for name in names.split()]
    bodies = [text[text.index("def train(") :].splitlines() for text in texts]
    changed = list(difflib.unified_diff(*bodies, n=0, lineterm=""))[3:]  # without the files' names and the first @@
    return "\n".join(["```diff", *("" if line.startswith("@@") else line for line in changed), "```"])


PARTS = {
    "table": comparison_table,
    "projection": projection,
    "terminal": terminal,
    "faults": faults,
    "diff": difference,
    "accuracies": accuracies,
    "memory": memory,
    "alarms": alarms,
}


def part(page: Path, match: re.Match) -> str:
    """Return what stands between two markers of a page, and these."""
    name, kind, about = match["name"], *match["name"].partition(" ")[::2]
    if kind in PARTS:
        text = PARTS[kind](about)
    elif any((FIGURES / "benchmark" / file).exists() for file in (f"{name}.json", f"{name}/results.json")):
        text = measured_table(name, FIGURES / "benchmark", "figures/benchmark/")
    else:
        return match[0]
    space = "\n" if kind == "terminal" else "\n\n"  # a README is short
    text = text.replace("](", "](../") if page.parent == DOCS and kind != "diff" else text
    return f"<!-- {name} -->{space}{text}{space}<!-- end -->"


def page_made(page: Path) -> str:
    """Return what a page is to say."""
    marked = r"<!-- (?P<name>[\w -]+) -->\n.*?<!-- end -->"
    return re.sub(marked, partial(part, page), page.read_text(encoding="utf-8"), flags=re.DOTALL)


def made() -> dict[Path, str]:
    """Return what each file is to say."""
    schemas = {"run-result": schema(RunResult), "results": comparison()}
    return {
        **{
            DOCS / f"{name}.schema.json": json.dumps(value, indent=1, ensure_ascii=False) + "\n"
            for name, value in schemas.items()
        },
        **{page: page_made(page) for page in PAGES},
        **{file: screen(file) for file in FIGURES.glob("*/terminal-*.txt")},
    }


def write() -> None:
    """Write each file anew."""
    for file, text in made().items():
        write_text(text, file)


if __name__ == "__main__":
    write()
