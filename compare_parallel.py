"""Run every way of training in parallel on this machine, one after the other, and compare them.

    python compare_parallel.py --epochs 5 --batch-size 128
    python compare_parallel.py --dataset mnist --epochs 2 --methods single ddp
    python compare_parallel.py --dry-run

Each row is a training script in a process of its own, with the same model, data, global batch, loader workers and
threads per device. Prints a table; writes report.md, results.json, results.csv and figures to --output-dir.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common.config import DEFAULT_MODEL, OneLineParser, add_training_flags, check_writable, one_of, positive_int
from common.errors import FAILED, MACHINE, SuiteError, run_script
from comparison.launch import run_row
from comparison.plan import METHODS, PROJECT, Machine, given_flags, make_plan, python
from comparison.plots import draw_all
from comparison.report import Report, definitions, notes, table, write_csv, write_markdown, write_results

SHARED = ("data_root", "train_size", "loader", "augment", "optimizer", "lr", "lr_milestones", "max_steps", "seed")


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the flags that every run gets."""
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_training_flags(parser)
    add = parser.add_argument
    add("--methods", type=one_of(METHODS), nargs="+", default=list(METHODS), metavar="NAME",
        help=" | ".join(METHODS) + " (all)")
    add("--nproc", type=positive_int, metavar="N", help="devices of the parallel methods (all GPUs; 2 on a CPU)")
    add("--micro-batches", type=positive_int, default=4, metavar="M", help="of mp-micro (%(default)s)")
    add("--threads-per-device", type=positive_int, metavar="N", help="CPU threads per device (cores ÷ devices)")
    add("--output-dir", default="figures/comparison", metavar="DIR", help="(%(default)s)")
    add("--dry-run", action="store_true", help="print the commands and run none of them")
    arguments = parser.parse_args()
    arguments.model = arguments.model or DEFAULT_MODEL[arguments.dataset]
    always = ["--dataset", arguments.dataset, "--model", arguments.model, "--epochs", str(arguments.epochs),
              "--batch-size", str(arguments.batch_size)]
    return arguments, [*always, *given_flags(parser, arguments, SHARED)]


def helper(module: str, *flags: str) -> str:
    """Run one of common's modules as a child, because this process must not import torch; return its stdout."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run((python(), "-m", module, *flags), stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        sys.exit(done.returncode if done.returncode > 0 else 128 - done.returncode)  # it has said why on stderr
    return done.stdout


def find_machine(kind: str) -> tuple[Machine, dict]:
    """Return what the plan depends on, and the whole description of this machine."""
    environment = json.loads(helper("common.environment"))
    gpus = len(environment["gpus"])
    if kind == "gpu" and not gpus:
        raise SuiteError("--device gpu needs a GPU", f"PyTorch {environment['torch']} sees none",
                         "type --device cpu, or check with nvidia-smi", MACHINE)
    return Machine(0 if kind == "cpu" else gpus, environment["cores"]), environment


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # unwinds, and so stops the child
    arguments, shared_flags = parse()
    directory = Path(arguments.output_dir)
    if not arguments.dry_run:
        check_writable(directory)
    machine, environment = find_machine(arguments.device)
    rows = make_plan(arguments, machine, shared_flags, directory)
    if arguments.dry_run:
        for row in rows:
            print(f"# {row.label}" + (f" (skipped: {row.skip})" if row.skip else ""), shlex.join(row.command), sep="\n")
        return
    print(helper("common.data", *shared_flags), end="", flush=True)

    command = shlex.join([python(), *sys.argv])
    report = Report(command, vars(arguments), environment, ())
    for number, row in enumerate(rows, start=1):
        print(f"[{number}/{len(rows)}] {row.label} … ", end="", flush=True)
        outcome = run_row(row)
        print(outcome.status if outcome.wall_seconds is None else f"{outcome.status}, {outcome.wall_seconds:.1f} s")
        report = replace(report, outcomes=(*report.outcomes, outcome))
        write_results(report, directory)
    present(report, directory)
    if any(outcome.status not in ("ok", "skipped") for outcome in report.outcomes):
        sys.exit(FAILED)


def present(report: Report, directory: Path) -> None:
    """Print the table; write the report, the CSV and the figures into `directory`."""
    figures = draw_all(report, directory)
    write_csv(report, directory / "results.csv")
    write_markdown(report, directory / "report.md", figures)
    print(f"\n{report.title}\n\n{table(report, 'simple')}\n")
    print(*(f"- {sentence}" for sentence in [*notes(report), *definitions(report)]), sep="\n")
    print(f"\nWritten to {directory}: report.md, results.json, results.csv, "
          + ", ".join(figure.name for figure in figures))


if __name__ == "__main__":
    run_script(main)
