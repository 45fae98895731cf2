"""Launchers whose environment variables differ from torchrun's: srun and mpirun."""

import os
import re
import zlib

# torchrun's variable → the launcher's. srun(1); docs.open-mpi.org, "Environment variables set for MPI applications";
# Hydra, the process manager of MPICH and Intel MPI (hydra/lib/hydra_types.h, utils/env).
SRUN = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
HYDRA = {
    "RANK": "PMI_RANK",
    "WORLD_SIZE": "PMI_SIZE",
    "LOCAL_RANK": "MPI_LOCALRANKID",
    "LOCAL_WORLD_SIZE": "MPI_LOCALNRANKS",
}


def become_rank() -> None:
    """Set torchrun's variables from those of the launcher that started this process as one of several.

    Variables that are set already stay. Ranks of srun meet on the first host of the step, at a port made of the job's
    number and the step's. mpirun names no host: ranks on one machine meet there, ranks on several need MASTER_ADDR and
    MASTER_PORT.
    """
    if rank := _read(OPEN_MPI) or _read(HYDRA):  # before srun's, which an mpirun inside a job inherits
        if rank["LOCAL_WORLD_SIZE"] == rank["WORLD_SIZE"]:
            job = os.environ.get("PMIX_NAMESPACE") or str(os.getppid())  # Open MPI's name of the job; mpirun's PID
            rank |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port(zlib.crc32(job.encode()))}
    elif rank := _read(SRUN):
        job_number, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
        host = first_host(os.environ["SLURM_STEP_NODELIST"])
        rank |= {"MASTER_ADDR": host, "MASTER_PORT": _port(16 * job_number + step)}
    os.environ.update({name: os.environ.get(name) or value for name, value in rank.items()})


def _read(names: dict[str, str]) -> dict[str, str]:
    """Return torchrun's variables with a launcher's values; {} unless it started several ranks."""
    values = {name: os.environ.get(own, "") for name, own in names.items()}
    return values if all(values.values()) and int(values["WORLD_SIZE"]) > 1 else {}


def _port(number: int) -> str:
    return str(20000 + number % 10000)


def srun(nodes: int, tasks: int) -> tuple[str, ...]:
    """Return the srun command that runs a command `tasks` times on each of `nodes` nodes of the job.

    Each task may use all cores that the job has on its node. --cpus-per-task is left out, because it would limit the
    whole step to that many. All tasks end when one fails.
    """
    sizes = f"--nodes={nodes} --ntasks={nodes * tasks} --ntasks-per-node={tasks}"
    return ("srun", *sizes.split(), "--overlap", "--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1")


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list, e.g. "n07" of "n[07-09,12],m3"."""
    first = re.findall(r"(?:[^,\[]|\[[^\]]*\])*", hosts)[0]
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
