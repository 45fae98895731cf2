"""Inject random faults into trainings on three nodes that are really apart, and check that each recovers or is named.

    make nodes EPISODES=100
    python tests/nodes.py --seed 17 --episodes 1

Needs root, and SLURM for half of the episodes. The nodes are namespaces on this machine (tests/apart.py): each has its
own network, host name, processes, /tmp, /dev/shm and copy of the data; they share one small disk. Each episode is drawn
from its number, which counts up from --seed; the last command replays a finding. An episode starts a training by
torchrun, by srun, by cluster/train.sbatch or rank by rank, and injects one fault at a random time.

It has recovered if all commands end with exit code 0 and the losses are those of an undisturbed training, bit for bit.
Otherwise, an error line must name the rank, node or file that the fault hit within 30 s. In the end no process may be
left on a node, and no file in /tmp, /dev/shm or half-written on the shared disk.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
sys.path[0] = str(PROJECT)  # instead of tests/, which has a benchmarks/ too

from benchmarks import network  # noqa: E402
from common.errors import FAILED, SuiteError  # noqa: E402
from common.files.writing import write_json  # noqa: E402
from common.machine.entry import run_script  # noqa: E402
from common.settings.arguments import non_negative_int, positive_int  # noqa: E402
from tests import slurm  # noqa: E402
from tests.apart import CLOCK, Node, write_hosts  # noqa: E402
from tests.fixtures import child_environment, learned, wait_until  # noqa: E402

OUT = "/mnt/disk/run"
NODES, LOGIN, EPOCHS = 3, 3, 12  # LOGIN: the node of srun, sbatch and slurmctld
NAMED_WITHIN, RECOVERED_WITHIN, MENDED_AFTER, STOPPED_WITHIN, STARTED_WITHIN = 30, 90, 4, 10, 200  # seconds
AGENT, RANK = "torch.distributed.run", "_train.py"  # what their command lines contain
TORCHRUN = (
    f"{sys.executable} -m {AGENT} --nproc_per_node=1 --max-restarts=3 --rdzv_backend=c10d --rdzv_endpoint=n0:29400 "
    "--rdzv_conf=last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=3 --nnodes"
)
LAUNCHERS = {
    "torchrun": f"{TORCHRUN}=3",
    "torchrun 2:3": f"{TORCHRUN}=2:3",
    "by hand": sys.executable,
    "srun": f"srun --nodes=3 --ntasks=3 {sys.executable}",
    "sbatch": "sbatch --parsable --nodes=3 --gpus-per-node=0 --cpus-per-task=1 --output=/mnt/log "
    f"--job-name={OUT}/job cluster/train.sbatch",
}
BY_SLURM = ("srun", "sbatch")
SCRIPTS = ("ddp_train.py", "fsdp_train.py", "pipeline_train.py")
FLAGS = (
    "--dataset folder:/srv/images --image-size 28 --data-root /srv/data --model lenet --batch-size 48"
    f" --epochs {EPOCHS} --num-workers 0 --threads 1 --dist-timeout 12 --no-curves --figure-dir {OUT}"
    f" --output {OUT}/result.json"
)
CHECKPOINT = f" --checkpoint {OUT}/checkpoint.pt --resume {OUT}/checkpoint.pt"  # train.sbatch has its own


@dataclass(frozen=True)
class Episode:
    """A training and its fault. epoch: after which the fault comes; 0: while it starts. delay: seconds after that."""

    launcher: str
    script: str
    fault: str
    node: int
    epoch: int
    delay: float
    mended: bool  # a lost node comes back, a full disk is freed

    @property
    def recovers(self) -> bool:
        """Return whether the training may go on after it was disturbed."""
        if FAULTS[self.fault].early:
            return self.fault == "clock off"
        if self.fault == "rank":
            return self.launcher.startswith("torchrun")
        return self.mended and self.launcher not in ("by hand", "srun")

    def __str__(self) -> str:
        when = "before" if FAULTS[self.fault].early else f"after epoch {self.epoch} and {self.delay:.1f} s"
        return f"{self.launcher}, {self.script}: {self.fault} on n{self.node} {when}{', mended' * self.mended}"


class FindingError(Exception):
    """Arguments: what is wrong, in one line, and the evidence."""


class Bed:
    """Three nodes with their own copies of the data, a small disk that they share, and a training on them."""

    def __init__(self, net: network.Network, shared: Path, launcher: str, script: str) -> None:
        self.net, self.shared, self.launcher, self.script, self.job = net, shared, launcher, script, ""
        self.commands: dict[int, subprocess.Popen] = {}  # by the node on which each runs
        self.lost_rank = r"\d"  # which rank the fault hits, once it is known
        shutil.rmtree(shared / "disk" / "run", ignore_errors=True)
        (shared / "disk" / "run").mkdir()
        for log in shared.glob("log*"):
            log.unlink()
        self.nodes = [self.new_node(number) for number in range(NODES + (launcher in BY_SLURM))]
        if launcher in BY_SLURM:
            self.run(LOGIN, "slurmctld", "-c")
            for number in range(NODES):
                self.run(number, "slurmd")
            wait_until(lambda: self.run(LOGIN, "sinfo", "-h", "-o", "%T", check=False).split() == ["idle"])

    def new_node(self, number: int) -> Node:
        more = "mkdir /srv/clock /srv/data /srv/state /srv/spool.$(hostname); cp -a /mnt/images /srv"
        return Node(self.net, number, self.shared, more, size="64m")

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        by_slurm = {"SLURM_CONF": "/mnt/slurm.conf", "PYTHON": sys.executable, "SCRIPT": self.script}
        variables = {**child_environment(), **by_slurm, "PYTHONPATH": "/srv/clock", **more}
        variables.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch may have set it in this process
        return variables

    def run(self, number: int, *command: object, check: bool = True) -> str:
        """Run a short command on a node; return its output."""
        words, pipes = self.nodes[number].command(command), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(words, env=self.environment({}), text=True, timeout=60, check=False, **pipes)
        if check and done.returncode:
            raise SuiteError(f"{' '.join(map(str, command))} failed on n{number}", done.stdout, "see above", FAILED)
        return done.stdout

    def train(self, ranks: int = NODES) -> None:
        if self.launcher == "sbatch":
            self.job = self.run(LOGIN, *LAUNCHERS["sbatch"].split(), *FLAGS.split()).split()[-1]
        elif self.launcher == "srun":
            self.start(LOGIN)
        else:
            for rank in range(ranks):
                self.start(rank, RANK=rank, WORLD_SIZE=ranks)

    def start(self, number: int, **told: int) -> None:
        """Start srun, or a node's torchrun or rank. told: to ranks by hand."""
        words = f"{LAUNCHERS[self.launcher]} {self.script} {FLAGS}{CHECKPOINT}".split()
        meeting = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", **{name: str(told[name]) for name in told}}
        with open(self.shared / f"log-{number}", "a") as log:
            self.commands[number] = subprocess.Popen(
                self.nodes[number].command(words),
                env=self.environment(meeting if self.launcher == "by hand" else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def job_state(self) -> str:
        """Return what SLURM says of the job."""
        return self.run(LOGIN, "scontrol", "show", "job", self.job, check=False)

    def ended(self) -> bool:
        if self.job:
            return bool(re.search("JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", self.job_state()))
        return all(command.poll() is not None for command in self.commands.values())

    def succeeded(self) -> bool:
        if self.job:
            return "JobState=COMPLETED" in self.job_state()
        return all(command.poll() == 0 for command in self.commands.values())

    def said(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.shared.glob("log*")))

    def found(self, number: int, kind: str) -> list[int]:
        """Return the agents, ranks or slurmstepds on a node. An agent's command contains that of its rank."""
        others = {pid: words for pid, words in self.nodes[number].processes().items() if not words.startswith("srun")}
        return [pid for pid, words in others.items() if kind in words and (kind == AGENT) == (AGENT in words)]

    def send(self, number: int, kind: str, name: str = "SIGKILL") -> None:
        for pid in self.found(number, kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, name))

    def note_rank(self, number: int) -> None:
        """Remember which rank runs on a node. By hand and by srun, it has the node's number."""
        if self.launcher in ("by hand", "srun"):
            self.lost_rank = str(number)
        for pid in self.found(number, RANK):
            with contextlib.suppress(OSError):
                if told := re.search(rb"\bRANK=(\d)", Path(f"/proc/{pid}/environ").read_bytes()):
                    self.lost_rank = told[1].decode()

    def kill(self, number: int, kind: str) -> None:
        """Kill a node's rank or agent, once it runs."""
        wait_until(lambda: self.found(number, kind) or self.ended(), STARTED_WITHIN)
        self.note_rank(number)
        self.send(number, kind)

    def lose_node(self, number: int) -> None:
        self.note_rank(number)
        self.nodes[number].lose_power()

    def restart_node(self, number: int) -> None:
        self.nodes[number] = self.new_node(number)
        if self.launcher in BY_SLURM:
            self.run(number, "slurmd")
        self.restart_agent(number)

    def restart_agent(self, number: int) -> None:
        if self.launcher.startswith("torchrun"):
            self.start(number)

    def hasten(self) -> None:
        """Let a requeued job start now instead of after SLURM's two minutes."""
        state = self.job_state() if self.job else ""
        if "JobState=PENDING" in state and "Restarts=0" not in state:
            self.run(LOGIN, "scontrol", "update", f"JobId={self.job}", "StartTime=now+2", check=False)

    def stop(self) -> None:
        """End what still runs, like a scheduler: by SIGTERM, then by SIGKILL."""
        for full in (self.shared / "disk" / "full", *(node.root / "tmp" / "full" for node in self.nodes)):
            full.unlink(missing_ok=True)
        if self.launcher in BY_SLURM:
            self.run(LOGIN, "scancel", "--user=root", check=False)
            return
        for name in ("SIGTERM", "SIGKILL"):
            for number in range(NODES):
                self.send(number, AGENT, name)
                self.send(number, RANK, name)
            with contextlib.suppress(AssertionError):
                wait_until(self.ended, STOPPED_WITHIN)

    def left(self) -> list[str]:
        """Return what is left on the nodes: processes and files."""
        found = [str(part) for part in (self.shared / "disk" / "run").rglob("*.part")]
        for node in self.nodes:
            ours = [words for words in node.processes().values() if not words.startswith(SLURM_DAEMONS)]
            files = [f"{place}/{name}" for place in ("/tmp", "/var/tmp", "/dev/shm") for name in node.files(place)]
            found += [f"{node.name}: {one}" for one in (*ours, *files) if "/torchelastic_" not in one]  # torchrun's
        return found

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        for command in self.commands.values():
            command.kill()
            command.wait()


SLURM_DAEMONS = ("slurmctld", "/usr/sbin/slurmctld", "slurmd", "/usr/sbin/slurmd", ": slurmscriptd")  # no slurmstepd


def fill(file: Path) -> None:
    """Write zeros until the disk is full."""
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as opened:
        while True:
            opened.write(bytes(1 << 16))


class Fault(NamedTuple):
    """How to inject a fault on a node, and the line that names it: {node}, {number}, {rank} are what it hit.

    mend: what an operator or the cluster does after MENDED_AFTER seconds. early: there before the start.
    """

    inject: Callable[[Bed, int], object]
    line: str
    mend: Callable[[Bed, int], object] = lambda bed, number: None
    early: bool = False


def on_node(*command: str) -> Callable[[Bed, int], object]:
    return lambda bed, number: bed.run(number, *command)


LOST = r"error: .*(rank {rank} (did not|ended)|\b{node}\b|step on node {number}).*"
DIFFERENT = r"error: .*checksum of the data set: rank 0 has \w+, rank [12] has \w+.*"
WITH_AGENTS = {"torchrun": AGENT, "torchrun 2:3": AGENT, "srun": "slurmstepd: [", "sbatch": AGENT}
FAULTS = {
    "rank": Fault(lambda bed, number: bed.kill(number, RANK), LOST),
    "agent": Fault(lambda bed, number: bed.kill(number, WITH_AGENTS[bed.launcher]), LOST, Bed.restart_agent),
    "node": Fault(Bed.lose_node, LOST, Bed.restart_node),
    "rendezvous host": Fault(Bed.lose_node, LOST, Bed.restart_node),
    "disk full": Fault(
        lambda bed, _: fill(bed.shared / "disk" / "full"),
        r"error: .*/mnt/disk/.*No space left on device; free some space.*",
        lambda bed, _: (bed.shared / "disk" / "full").unlink(),
    ),
    "own disk full": Fault(
        lambda bed, number: fill(bed.nodes[number].root / "tmp" / "full"),
        r"error: .*/tmp.*No space left on device.*",
        lambda bed, number: (bed.nodes[number].root / "tmp" / "full").unlink(),
    ),
    "disk unmounted": Fault(
        on_node("umount", "-l", "/mnt/disk"),
        r"error: .*/mnt/disk/.*",
        lambda bed, number: bed.run(number, "mount", "--bind", bed.shared / "disk", "/mnt/disk"),
    ),
    "data missing": Fault(on_node("rm", "-r", "/srv/images"), r"error: .*/srv/images.*", early=True),
    "data different": Fault(
        on_node("cp", "/srv/images/train/0/0.png", "/srv/images/train/1/1.png"), DIFFERENT, early=True
    ),
    "clock off": Fault(
        lambda bed, number: (bed.nodes[number].root / "srv" / "clock" / "sitecustomize.py").write_text(CLOCK),
        r"error: .*clock.*",
        early=True,
    ),
}


def draw(number: int) -> Episode:
    dice = random.Random(number)
    launcher, script = dice.choice([*LAUNCHERS]), dice.choice(SCRIPTS)
    fault = dice.choice([fault for fault in FAULTS if fault != "agent" or launcher in WITH_AGENTS])
    node = 0 if fault == "rendezvous host" else dice.randrange(NODES)
    epoch = dice.choice((0, *range(1, EPOCHS - 4)))
    return Episode(launcher, script, fault, node, epoch, dice.uniform(0, 3 if epoch == 0 else 0.3), dice.random() < 0.5)


class Player:
    """Plays episodes on a network, and each script once undisturbed."""

    def __init__(self, net: network.Network, shared: Path) -> None:
        self.net, self.shared, self.undisturbed = net, shared, {}
        self.result = shared / "disk" / "run" / "result.json"

    def expected(self, script: str, ranks: int) -> list:
        """Return the losses of an undisturbed training."""
        if (script, ranks) not in self.undisturbed:
            with contextlib.closing(Bed(self.net, self.shared, "by hand", script)) as bed:
                bed.train(ranks)
                wait_until(bed.ended, STARTED_WITHIN)
                if not bed.succeeded():
                    raise SuiteError(f"{script} fails by itself", bed.said(), "mend that first", FAILED)
                self.undisturbed[script, ranks] = learned(self.result)
        return self.undisturbed[script, ranks]

    def play(self, episode: Episode) -> dict:
        """Play an episode. Return its outcome, the seconds until then, and the line that names the fault."""
        for ranks in (NODES, NODES - 1) if episode.launcher == "torchrun 2:3" else (NODES,):
            self.expected(episode.script, ranks)
        with contextlib.closing(Bed(self.net, self.shared, episode.launcher, episode.script)) as bed:
            start = self.disturb(bed, episode)
            line, named = self.watch(bed, episode, start)
            done, seconds = bed.ended() and bed.succeeded(), time.monotonic() - start
            bed.stop()
            if done:
                self.check_result(bed, episode.script)
            elif named > NAMED_WITHIN:
                raise FindingError(f"not named within {NAMED_WITHIN} s", bed.said())
            check_left(bed)
            outcome, seconds = ("recovered", seconds) if done else ("named", named)
            return {"outcome": outcome, "seconds": seconds, "line": line}

    def disturb(self, bed: Bed, episode: Episode) -> float:
        """Start the training and inject the fault; return when its effect began."""
        fault = FAULTS[episode.fault]
        if fault.early:
            fault.inject(bed, episode.node)
        bed.train()
        if fault.early:
            wait_until(lambda: all(bed.found(node, RANK) for node in range(NODES)) or bed.ended(), STARTED_WITHIN)
            return time.monotonic()
        if episode.epoch:
            wait_until(lambda: f"Epoch [{episode.epoch}/" in bed.said() or bed.ended(), STARTED_WITHIN)
        time.sleep(episode.delay)
        fault.inject(bed, episode.node)
        return time.monotonic()

    def watch(self, bed: Bed, episode: Episode, start: float) -> tuple[str, float]:
        """Wait for the end. Return the line that names the fault, and after how many seconds it came."""
        fault, line, named, to_mend = FAULTS[episode.fault], "", math.inf, episode.mended
        hit = {"node": f"n{episode.node}", "number": episode.node, "rank": bed.lost_rank}
        while True:
            over, seconds = bed.ended(), time.monotonic() - start
            if not line and (match := re.search(fault.line.format(**hit), bed.said())):
                line, named = match[0], seconds
            if over or seconds > RECOVERED_WITHIN or (seconds > named + 2 and not episode.recovers):
                return line, named
            if to_mend and seconds > MENDED_AFTER and not fault.early:
                fault.mend(bed, episode.node)
                to_mend = False
            bed.hasten()
            time.sleep(0.2)

    def check_result(self, bed: Bed, script: str) -> None:
        """Raise FindingError if the training that ended well has other losses, or did not use its checkpoint."""
        if not self.result.exists():
            raise FindingError("exit code 0, and no result", bed.said())
        ranks = json.loads(self.result.read_text())["world_size"]
        if learned(self.result) != self.undisturbed[script, ranks]:
            raise FindingError("exit code 0, and other losses", bed.said())
        if "Epoch [2/" in bed.said().rpartition("Method:")[0] and "resumed" not in self.result.read_text():
            raise FindingError("it began anew in spite of its checkpoint", bed.said())


def check_left(bed: Bed) -> None:
    """Raise FindingError if something is left on a node."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not bed.left(), 20)
    if left := bed.left():
        raise FindingError("left behind: " + ", ".join(left), bed.said())


@contextlib.contextmanager
def shared_directory() -> Iterator[Path]:
    """Make the directory that all nodes see, with images and a small disk in it."""
    place = Path(tempfile.mkdtemp(prefix="nodes-", dir="/run"))  # not /tmp, where the nodes do not see it
    (place / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", place / "disk"], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place / "disk"], check=True)
        shutil.rmtree(place)


def draw_images(directory: Path) -> None:
    """Write 10 classes of small images."""
    numbers = np.random.default_rng(0)
    for part, size in (("train", 24), ("test", 8)):
        for label in range(10):
            (directory / part / str(label)).mkdir(parents=True)
            for image in range(size):
                pixels = numbers.integers(0, 128, (28, 28, 3), np.uint8) + 12 * label
                Image.fromarray(pixels.astype(np.uint8)).save(directory / part / str(label) / f"{image}.png")


@contextlib.contextmanager
def players() -> Iterator[Player]:
    slurm.start_munge()
    with network.machines(NODES + 1) as net, shared_directory() as shared:
        write_hosts(net, NODES + 1, shared)
        draw_images(shared / "images")
        lines = [f"NodeName=n{number} CPUs={os.cpu_count()} State=UNKNOWN" for number in range(NODES)]
        slurm.configure(shared / "slurm.conf", f"n{LOGIN}", 6817, "/srv", lines)
        yield Player(net, shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=positive_int, default=100, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--seed", type=non_negative_int, default=1, metavar="N", help="the first one's (%(default)s)")
    parser.add_argument("--output", metavar="FILE", help="write the episodes as JSON")
    arguments = parser.parse_args()
    played, findings = [], []
    with players() as player:
        for number in range(arguments.seed, arguments.seed + arguments.episodes):
            episode = draw(number)
            try:
                ended = player.play(episode)
                played.append({"seed": number, **asdict(episode), **ended})
                outcome = f"{ended['outcome']} after {ended['seconds']:.1f} s"
                print(f"{number}: {episode}: {outcome}: {ended['line']}", flush=True)
            except (FindingError, AssertionError) as finding:
                what, seen = (*map(str, finding.args), "")[:2]
                findings.append(f"{what}; {episode}; again: python tests/nodes.py --seed {number} --episodes 1")
                print(f"{number}: FINDING: {findings[-1]}\n{seen}", flush=True)
            if arguments.output:
                write_json({"episodes": played, "findings": findings}, arguments.output)
    counts = Counter((one["fault"], one["outcome"]) for one in played)
    print(f"{arguments.episodes} episodes, {len(findings)} findings", *findings, sep="\n")
    print(*(f"{fault}: {outcome} {count}" for (fault, outcome), count in sorted(counts.items())), sep="\n")
    if findings:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
