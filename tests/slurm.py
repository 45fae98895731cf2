"""The configuration of a test cluster of SLURM, whose nodes are all on this machine."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort={port}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=5
SlurmdTimeout=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def missing() -> str:
    """Return what this machine lacks for a test cluster, or ""."""
    if all(map(shutil.which, PROGRAMS)):
        return ""
    return "needs SLURM (Debian: apt-get install --no-install-recommends slurm-wlm munge)"


def configure(file: Path, controller: str, port: int, place: Path | str, nodes: Iterable[str]) -> None:
    """Write a slurm.conf. controller: the host of slurmctld, at `port`; place: of its files; nodes: a line for each."""
    text = CONFIGURATION.format(controller=controller, port=port, place=place, nodes="\n".join(nodes))
    file.write_text(text)


def start_munge() -> None:
    """Start the daemon that signs SLURM's messages, unless it runs."""
    if not any(process.name() == "munged" for process in psutil.process_iter()):
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["runuser", "-u", "munge", "--", shutil.which("munged") or "munged"], check=True)
