"""The machine that a comparison is about, and the nodes of its SLURM job: what they are, and whether they will do."""

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.errors import DATA, MACHINE, USAGE, SuiteError
from common.ranks.launchers import srun
from common.settings.config import FOLDER, MODELS
from common.words import count
from comparison.methods import Machine
from comparison.rows import Configuration
from comparison.run.launch import ask

FASTER = 1.5  # times as fast is a product of matrices in bfloat16 where it may be worth while


def find_machine(arguments: argparse.Namespace, directory: Path) -> tuple[Machine, Any]:
    """Return what the plan depends on, and the whole description of this machine; warn of what is bad about it."""
    description = describe(arguments.data_root, "--output-dir", str(directory), "--device", arguments.device)
    environment = description["environment"]
    for check in description["checks"]:
        if check["status"] == "bad":
            kind = "warning" if environment else "error"
            print(f"{kind}: {check['name']}: {check['found']}; {check['advice']}", file=sys.stderr)
    if not environment:
        sys.exit(MACHINE)
    gpus, bf16 = 0 if arguments.device == "cpu" else len(environment["gpus"]), description["bf16_speed_up"]
    machine = Machine(gpus, environment["cores"], bf16=bf16 >= FASTER, memory=description["free_memory"])
    return machine, environment


def describe(data_root: str, *flags: str) -> dict[str, Any]:
    """Return what common.programs.check finds."""
    printed = ask("common.programs.check", "--json", "--data-root", data_root, *flags, fine=(0, MACHINE))
    if not printed:  # a package is missing, as stderr says by now
        sys.exit(MACHINE)
    return json.loads(printed)


def find_blocks(models: list[str], stages: int, shared_flags: list[str]) -> dict[str, int]:
    """Return how many blocks each model has that could be too few for so many stages; the suite's own have two."""
    doubtful = [model for model in models if model not in MODELS or stages > 2]
    if not doubtful:
        return {}
    networks = json.loads(ask("common.programs.model", *shared_flags, "--model", *doubtful, "--json"))
    return {model: len(numbers["blocks"]) for model, numbers in networks.items()}


def find_nodes(arguments: argparse.Namespace, directory: Path) -> list[str]:
    """Return what each node of the job is, in words, as many as the row with most of them needs.

    Raises SuiteError where there are too few, or where one cannot train, lacks data or files, or is of another kind.
    """
    nodes, held = max(arguments.nodes), int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
    if held < nodes:
        raise SuiteError(
            f"--nodes {nodes} needs a SLURM job of as many nodes",
            f"this one has {count(held, 'node')}" if held else "this is none",
            f"type: sbatch --nodes={nodes} cluster/compare.sbatch {shlex.join(sys.argv[1:])}; what to type on each "
            "host without SLURM, --dry-run prints",
            USAGE,
        )
    descriptions = _descriptions(nodes, arguments, directory)
    for number, description in enumerate(descriptions, start=1):
        for check in description["checks"]:
            what = f"node {number} of {nodes}, {check['name']}"
            if check["status"] == "bad" and (check["name"] == "shared files" or not description["environment"]):
                raise SuiteError(what, check["found"], check["advice"], MACHINE)
            if check["name"] == f"data: {arguments.dataset}" and check["status"] != "ok":
                fetch = f"type: python -m common.programs.fetch --dataset {arguments.dataset} --data-root DIR"
                raise SuiteError(what, check["found"], f"{fetch}, where DIR is a directory that all nodes see", DATA)
    environments = [description["environment"] for description in descriptions]
    values = {name: dict.fromkeys(str(each[name]) for each in environments) for name in environments[0]}
    unequal = [f"{name} {', '.join(found)}" for name, found in values.items() if len(found) > 1]
    if unequal and not arguments.allow_unequal:
        advice = "ask SLURM for equal ones, with --constraint, or type --allow-unequal"
        raise SuiteError("the nodes of the job are not alike", "; ".join(unequal), advice, MACHINE)
    return ["; ".join(f"{name} {value}" for name, value in each.items() if value) for each in environments]


def _descriptions(nodes, arguments, directory):
    """What the pre-flight check says on each node. All are heard, and srun labels each piece of what a task prints."""
    folder = Path(arguments.dataset.removeprefix(FOLDER), "train")
    own = ["--json", "--data-root", arguments.data_root, "--output-dir", str(directory), "--device", arguments.device]
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".seen-") as seen:
        shared = [seen.name, *([str(folder)] if folder.exists() else [])]
        launcher = (*srun(nodes, 1), "--label", "--kill-on-bad-exit=0")
        printed = ask("common.programs.check", *own, "--sees", *shared, fine=(0, MACHINE), launcher=launcher)
    texts = [""] * nodes
    for line in printed.splitlines():
        node, _, piece = line.partition(": ")
        texts[int(node)] += piece
    return [json.loads(text) for text in texts]


def by_hand(row: Configuration) -> str:
    """Return what to type on each host, in place of a row's command, where there is no SLURM."""
    ranks = (f"--nnodes={row.nodes}", f"--nproc_per_node={row.tasks}")
    rendezvous = ("--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_HOST:29500")
    interpreter, *script = row.command
    return shlex.join((interpreter, "-m", "torch.distributed.run", *ranks, *rendezvous, *script))
