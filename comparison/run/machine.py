"""Describe and check the machine of a comparison, and the nodes of its SLURM job."""

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

FASTER = 1.5  # bfloat16 may pay off where it multiplies matrices this many times as fast


def find_machine(arguments: argparse.Namespace, directory: Path) -> tuple[Machine, Any]:
    """Return the machine to plan for, and its full description. Print a warning for each check that fails."""
    where = ("--output-dir", str(directory), "--dataset", arguments.dataset)
    description = describe(arguments.data_root, *where, "--device", arguments.device)
    environment = description["environment"]
    for check in description["checks"]:
        if check["status"] == "bad":
            kind = "warning" if environment else "error"
            print(f"{kind}: {check['name']}: {check['found']}; {check['advice']}", file=sys.stderr)
    if not environment:
        sys.exit(MACHINE)
    gpus = 0 if arguments.device == "cpu" else len(environment["gpus"])
    bf16 = description["bf16_speed_up"] >= FASTER
    machine = Machine(gpus, environment["cores"], bf16=bf16, memory=description["free_memory"])
    return machine, environment


def describe(data_root: str, *flags: str) -> dict[str, Any]:
    """Return the report of common.programs.check."""
    printed = ask("common.programs.check", "--json", "--data-root", data_root, *flags, fine=(0, MACHINE))
    if not printed:  # a package is missing; the child has printed which to stderr
        sys.exit(MACHINE)
    return json.loads(printed)


def find_blocks(models: list[str], stages: int, shared_flags: list[str]) -> dict[str, int]:
    """Return the number of blocks of each model that may have fewer blocks than stages. The suite's own have two."""
    doubtful = [model for model in models if model not in MODELS or stages > 2]
    if not doubtful:
        return {}
    networks = json.loads(ask("common.programs.model", *shared_flags, "--model", *doubtful, "--json"))
    return {model: len(numbers["blocks"]) for model, numbers in networks.items()}


def find_nodes(arguments: argparse.Namespace, directory: Path) -> list[str]:
    """Return a description in words of each node, as many as the largest row needs.

    Raises SuiteError if there are too few nodes, or if one cannot train, lacks data or files, or differs in kind.
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
        raise SuiteError("the nodes of the job differ", "; ".join(unequal), advice, MACHINE)
    return ["; ".join(f"{name} {value}" for name, value in each.items() if value) for each in environments]


def _descriptions(nodes, arguments, directory):
    """Return the report of the pre-flight check on each node, from output that srun labels by node."""
    image_folder = Path(arguments.dataset.removeprefix(FOLDER), "train")
    own = ["--json", "--data-root", arguments.data_root, "--output-dir", str(directory), "--device", arguments.device]
    own += ["--dataset", arguments.dataset]
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".seen-") as seen:
        shared = [seen.name, *([str(image_folder)] if image_folder.exists() else [])]
        launcher = (*srun(nodes, 1), "--label", "--kill-on-bad-exit=0")
        printed = ask("common.programs.check", *own, "--sees", *shared, fine=(0, MACHINE), launcher=launcher)
    texts = [""] * nodes
    for line in printed.splitlines():
        node, _, piece = line.partition(": ")
        texts[int(node)] += piece
    return [json.loads(text) for text in texts]


def manual_commands(row: Configuration) -> str:
    """Return the command to type on each host to run a row without SLURM."""
    ranks = (f"--nnodes={row.nodes}", f"--nproc_per_node={row.tasks}")
    rendezvous = ("--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_HOST:29500")
    interpreter, *script = row.command
    return shlex.join((interpreter, "-m", "torch.distributed.run", *ranks, *rendezvous, *script))
