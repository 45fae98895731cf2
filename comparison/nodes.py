"""Rows on several nodes of a SLURM job: whether there are so many, all alike, with one directory that all see."""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from common.errors import MACHINE, USAGE, SuiteError
from common.machine.lifetime import temporary_directory
from common.slurm import srun
from common.words import count
from comparison.launch import ask
from comparison.plan import Configuration


def find_nodes(arguments, directory: Path) -> list[str]:
    """Return what each node of the job is, in words, as many as the row with most of them needs.

    Raises SuiteError (USAGE) where there is no job of so many nodes, and (MACHINE) where one cannot train, does not see
    `directory`, or is another kind of machine, unless that is allowed.
    """
    nodes = max(arguments.nodes)
    held = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
    if held < nodes:
        found = f"this one has {count(held, 'node')}" if held else "this is none"
        flags = shlex.join(sys.argv[1:])
        raise SuiteError(f"--nodes {nodes} needs a SLURM job of as many nodes", found,
                         f"type: sbatch --nodes={nodes} cluster/compare.sbatch {flags}; what to type on each host "
                         "without SLURM, --dry-run prints", USAGE)
    descriptions = _descriptions(nodes, arguments, directory)
    for number, description in enumerate(descriptions, start=1):
        for check in description["checks"]:
            if check["status"] == "bad" and (check["name"] == "shared files" or not description["environment"]):
                raise SuiteError(f"node {number} of {nodes}, {check['name']}", check["found"], check["advice"], MACHINE)
    environments = [description["environment"] for description in descriptions]
    unequal = [f"{name} {', '.join(dict.fromkeys(str(each[name]) for each in environments))}"
               for name in environments[0] if any(each[name] != environments[0][name] for each in environments)]
    if unequal and not arguments.allow_unequal:
        raise SuiteError("the nodes of the job are not alike", "; ".join(unequal), "ask SLURM for equal ones, with "
                         "--constraint, or type --allow-unequal", MACHINE)
    return ["; ".join(f"{name} {value}" for name, value in each.items() if value) for each in environments]


def by_hand(row: Configuration) -> str:
    """Return what to type on each host, in place of a row's command, where there is no SLURM."""
    launcher = ("-m", "torch.distributed.run", f"--nnodes={row.nodes}", f"--nproc_per_node={row.tasks}",
                "--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_HOST:29500")
    return shlex.join((row.command[0], *launcher, *row.command[1:]))


def _descriptions(nodes, arguments, directory):
    """What the pre-flight check says on each node. Its result comes in a file, as srun mixes what tasks print."""
    with temporary_directory() as place, tempfile.NamedTemporaryFile(dir=directory, prefix=".seen-") as seen:
        ask("common.programs.check", "--json", "--data-root", arguments.data_root, "--output-dir", str(directory),
            "--device", arguments.device, "--sees", seen.name, fine=(0, MACHINE),
            launcher=(*srun(nodes, 1), f"--output={place}/%t.json"))
        return [json.loads(Path(place, f"{node}.json").read_text(encoding="utf-8")) for node in range(nodes)]
