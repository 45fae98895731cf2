"""Ranks that srun starts, as by `srun --ntasks=4 python ddp_train.py`: what it tells them, in torchrun's words."""

import os
import re


def become_rank() -> None:
    """Set what a rank reads from the environment by what srun has put there; what is set already stays.

    Does nothing where srun has not started this process as one of several tasks. The ranks meet on the first host of
    the step, at a port made of the job's number and the step's.
    """
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) < 2:
        return
    job, step = (int(os.environ[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    told = {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(20000 + (16 * job + step) % 10000),
    }
    os.environ.update({name: os.environ.get(name) or value for name, value in told.items()})


def srun(nodes: int, tasks: int) -> tuple[str, ...]:
    """Return what to type before a command of which so many nodes of the job shall each run so many.

    Each may use all cores that the job has on its node; with --cpus-per-task, which is therefore left out, a step would
    get exactly so many. All end when one fails.
    """
    sizes = f"--nodes={nodes} --ntasks={nodes * tasks} --ntasks-per-node={tasks}"
    return ("srun", *sizes.split(), "--overlap", "--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1")


def first_host(hosts: str) -> str:
    """Return the first name of a list as SLURM writes it, e.g. "n07" of "n[07-09,12],m3"."""
    first = re.findall(r"(?:[^,\[]|\[[^\]]*\])*", hosts)[0]
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
