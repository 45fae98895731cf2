"""SLURM: ranks that srun starts, e.g. `srun --ntasks=4 python ddp_train.py`, and the srun command itself."""

import os
import re


def become_rank() -> None:
    """Set torchrun's environment variables from srun's, unless they are set.

    Does nothing unless srun started this process as one of several tasks. The ranks meet on the first host of the step,
    at a port computed from the job and step numbers.
    """
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) < 2:
        return
    job, step = (int(os.environ[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    variables = {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(20000 + (16 * job + step) % 10000),
    }
    os.environ.update({name: os.environ.get(name) or value for name, value in variables.items()})


def srun(nodes: int, tasks: int) -> tuple[str, ...]:
    """Return the srun command that runs `tasks` tasks on each of `nodes` nodes of the job.

    Each task may use all of the job's cores on its node: --cpus-per-task would limit it to that number. All tasks end
    when one fails.
    """
    sizes = f"--nodes={nodes} --ntasks={nodes * tasks} --ntasks-per-node={tasks}"
    return ("srun", *sizes.split(), "--overlap", "--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1")


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list, e.g. "n07" of "n[07-09,12],m3"."""
    first = re.findall(r"(?:[^,\[]|\[[^\]]*\])*", hosts)[0]
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
