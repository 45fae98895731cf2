"""Rows on several nodes of a SLURM job: whether there are so many, all alike, with one directory that all see."""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from common.errors import DATA, MACHINE, USAGE, SuiteError
from common.ranks.slurm import srun
from common.settings.config import FOLDER
from common.words import count
from comparison.rows import Configuration
from comparison.run.launch import ask


def find_nodes(arguments, directory: Path) -> list[str]:
    """Return what each node of the job is, in words, as many as the row with most of them needs.

    Raises SuiteError (USAGE) where there is no job of so many nodes, (DATA) where one lacks the data set, and (MACHINE)
    where one cannot train, does not see `directory`, or is another kind of machine, unless that is allowed.
    """
    nodes = max(arguments.nodes)
    held = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
    if held < nodes:
        found = f"this one has {count(held, 'node')}" if held else "this is none"
        flags = shlex.join(sys.argv[1:])
        raise SuiteError(
            f"--nodes {nodes} needs a SLURM job of as many nodes",
            found,
            f"type: sbatch --nodes={nodes} cluster/compare.sbatch {flags}; what to type on each host "
            "without SLURM, --dry-run prints",
            USAGE,
        )
    descriptions = _descriptions(nodes, arguments, directory)
    for number, description in enumerate(descriptions, start=1):
        for check in description["checks"]:
            if check["status"] == "bad" and (check["name"] == "shared files" or not description["environment"]):
                raise SuiteError(f"node {number} of {nodes}, {check['name']}", check["found"], check["advice"], MACHINE)
            if check["name"] == f"data: {arguments.dataset}" and check["status"] != "ok":
                raise SuiteError(
                    f"node {number} of {nodes}, {check['name']}",
                    check["found"],
                    f"type: python -m common.programs.fetch --dataset {arguments.dataset} --data-root "
                    "DIR, where DIR is a directory that all nodes see",
                    DATA,
                )
    environments = [description["environment"] for description in descriptions]
    unequal = [
        f"{name} {', '.join(dict.fromkeys(str(each[name]) for each in environments))}"
        for name in environments[0]
        if any(each[name] != environments[0][name] for each in environments)
    ]
    if unequal and not arguments.allow_unequal:
        raise SuiteError(
            "the nodes of the job are not alike",
            "; ".join(unequal),
            "ask SLURM for equal ones, with --constraint, or type --allow-unequal",
            MACHINE,
        )
    return ["; ".join(f"{name} {value}" for name, value in each.items() if value) for each in environments]


def by_hand(row: Configuration) -> str:
    """Return what to type on each host, in place of a row's command, where there is no SLURM."""
    launcher = (
        "-m",
        "torch.distributed.run",
        f"--nnodes={row.nodes}",
        f"--nproc_per_node={row.tasks}",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=FIRST_HOST:29500",
    )
    return shlex.join((row.command[0], *launcher, *row.command[1:]))


def _descriptions(nodes, arguments, directory):
    """What the pre-flight check says on each node. All are heard, and srun labels each piece of what a task prints."""
    folder = Path(arguments.dataset.removeprefix(FOLDER), "train")
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".seen-") as seen:
        shared = [seen.name, *([str(folder)] if folder.exists() else [])]
        printed = ask(
            "common.programs.check",
            "--json",
            "--data-root",
            arguments.data_root,
            "--output-dir",
            str(directory),
            "--device",
            arguments.device,
            "--sees",
            *shared,
            fine=(0, MACHINE),
            launcher=(*srun(nodes, 1), "--label", "--kill-on-bad-exit=0"),
        )
    texts = [""] * nodes
    for line in printed.splitlines():
        node, _, piece = line.partition(": ")
        texts[int(node)] += piece
    return [json.loads(text) for text in texts]
