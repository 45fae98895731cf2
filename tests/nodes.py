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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

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
NAMED_WITHIN, RECOVERED_WITHIN, STOPPED_WITHIN = 30, 90, 10  # seconds
TORCHRUN = (
    f"{sys.executable} -m torch.distributed.run --nproc_per_node=1 --max-restarts=3 --rdzv_backend=c10d "
    "--rdzv_endpoint=n0:29400 --rdzv_conf=last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=3 --nnodes"
)
LAUNCHERS = {
    "torchrun": f"{TORCHRUN}=3",
    "torchrun 2:3": f"{TORCHRUN}=2:3",
    "by hand": sys.executable,
    "srun": f"srun --nodes=3 --ntasks=3 {sys.executable}",
    "sbatch": f"sbatch --parsable --nodes=3 --gpus-per-node=0 --cpus-per-task=1 --output=/mnt/log --job-name={OUT}/job",
}
BY_SLURM = ("srun", "sbatch")
AGENTS = {"srun": "slurmstepd: [", "sbatch": "torch.distributed.run"} | dict.fromkeys(
    ("torchrun", "torchrun 2:3"), "torch.distributed.run"
)
SCRIPTS = ("ddp_train.py", "fsdp_train.py", "pipeline_train.py")
FLAGS = (
    "--dataset folder:/srv/images --image-size 28 --data-root /srv/data --model lenet --batch-size 48"
    f" --epochs {EPOCHS} --num-workers 0 --threads 1 --dist-timeout 12 --no-curves --figure-dir {OUT}"
    f" --output {OUT}/result.json"
)
CHECKPOINT = f"--checkpoint {OUT}/checkpoint.pt --resume {OUT}/checkpoint.pt"
EARLY = ("data missing", "data different", "clock off")  # there before the start
FAULTS = ("rank", "agent", "node", "rendezvous host", "disk full", "own disk full", "disk unmounted", *EARLY)
LOST = "lost contact|did not|ended without|cannot meet|not all ranks|Killed|FAILURE"
WORDS = {  # fault → pattern of the line that names it; {node}: its name; {rank}: the rank that was there
    **dict.fromkeys(
        ("rank", "agent", "node", "rendezvous host"),
        r"error: .*(rank {rank} (did not|ended)|\b{node}\b|step on node {number}).*",
    ),
    "disk full": r"error: .*/mnt/disk/.*No space left on device; free some space",
    "own disk full": r"error: .*/tmp.*No space left on device",
    "disk unmounted": r"error: .*/mnt/disk/.*",
    "data missing": r"error: .*/srv/images.*",
    "data different": r"error: .*checksum of the data set: rank 0 has \w+, rank [12] has \w+",
    "clock off": r"error: .*clock",
}


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
        if self.fault in EARLY:
            return self.fault == "clock off"
        restarts = self.launcher.startswith("torchrun") and self.fault == "rank"
        return restarts or (self.mended and self.launcher not in ("by hand", "srun"))

    def __str__(self) -> str:
        when = "before" if self.fault in EARLY else f"after epoch {self.epoch} and {self.delay:.1f} s"
        return f"{self.launcher}, {self.script}: {self.fault} on n{self.node} {when}{', mended' * self.mended}"


class FindingError(Exception):
    """Arguments: what is wrong, in one line, and the evidence."""


def draw(number: int) -> Episode:
    """Return the episode with this number."""
    dice = random.Random(number)
    launcher, script = dice.choice([*LAUNCHERS]), dice.choice(SCRIPTS)
    fault = dice.choice([fault for fault in FAULTS if not (fault == "agent" and launcher == "by hand")])
    node = 0 if fault == "rendezvous host" else dice.randrange(NODES)
    epoch = dice.choice((0, *range(1, EPOCHS - 4)))
    return Episode(launcher, script, fault, node, epoch, dice.uniform(0, 3 if epoch == 0 else 0.3), dice.random() < 0.5)


class Bed:
    """Three nodes with their own copies of the data, a small disk that they share, and a training on them."""

    def __init__(self, net: network.Network, shared: Path, by_slurm: bool) -> None:
        self.net, self.shared, self.by_slurm, self.job = net, shared, by_slurm, ""
        self.commands: dict[int, subprocess.Popen] = {}  # by the node on which each runs
        self.lost_rank = r"\d"  # which rank a fault hits, once it is known
        shutil.rmtree(shared / "disk" / "run", ignore_errors=True)
        (shared / "disk" / "run").mkdir()
        for log in shared.glob("log*"):
            log.unlink()
        self.nodes = [self.new_node(number) for number in range(NODES + by_slurm)]
        if by_slurm:
            self.run(LOGIN, "slurmctld", "-c")
            for number in range(NODES):
                self.run(number, "slurmd")
            self.all_idle()

    def new_node(self, number: int) -> Node:
        more = "mkdir /srv/clock /srv/data /srv/state /srv/spool.$(hostname); cp -a /mnt/images /srv"
        return Node(self.net, number, self.shared, more, size="64m")

    def environment(self, **more: object) -> dict[str, str]:
        by_slurm = {"SLURM_CONF": "/mnt/slurm.conf", "PYTHON": sys.executable}
        return {**child_environment(), **by_slurm, "PYTHONPATH": "/srv/clock", **{k: str(v) for k, v in more.items()}}

    def run(self, number: int, *command: object, check: bool = True) -> str:
        """Run a short command on a node; return its output."""
        words, pipe = self.nodes[number].command(command), subprocess.PIPE
        done = subprocess.run(
            words, env=self.environment(), stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=60
        )
        if check and done.returncode:
            raise SuiteError(f"{' '.join(map(str, command))} failed on n{number}", done.stdout, "see above", FAILED)
        return done.stdout

    def start(self, number: int, words: list[str], **environment: object) -> None:
        """Start a command of the training on a node."""
        with open(self.shared / f"log-{number}", "a") as log:
            self.commands[number] = subprocess.Popen(
                self.nodes[number].command(words),
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def train(self, launcher: str, script: str, ranks: int = NODES) -> None:
        """Start a training."""
        words = LAUNCHERS[launcher].split()
        if launcher == "sbatch":
            words += ["cluster/train.sbatch", *FLAGS.split()]
            entered = self.nodes[LOGIN].command(words)
            done = subprocess.run(entered, env=self.environment(SCRIPT=script), capture_output=True, text=True)
            self.job = done.stdout.strip()
        elif launcher == "srun":
            self.start(LOGIN, [*words, script, *FLAGS.split(), *CHECKPOINT.split()])
        else:
            for rank in range(ranks):
                self.start_on(rank, launcher, script, ranks)

    def start_on(self, rank: int, launcher: str, script: str, ranks: int = NODES) -> None:
        """Start a node's part of a training without SLURM."""
        told = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "n0", "MASTER_PORT": 29500}
        words = [*LAUNCHERS[launcher].split(), script, *FLAGS.split(), *CHECKPOINT.split()]
        self.start(rank, words, **(told if launcher == "by hand" else {}))

    def all_idle(self) -> None:
        wait_until(lambda: self.run(LOGIN, "sinfo", "-h", "-o", "%T", check=False).split() == ["idle"], 60)

    def state(self) -> str:
        return self.run(LOGIN, "scontrol", "show", "job", self.job, check=False)

    def ended(self) -> bool:
        """Return whether all commands have ended."""
        if self.job:
            return bool(re.search("JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", self.state()))
        return all(command.poll() is not None for command in self.commands.values())

    def succeeded(self) -> bool:
        if self.job:
            return "JobState=COMPLETED" in self.state()
        return all(command.poll() == 0 for command in self.commands.values())

    def said(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.shared.glob("log*")))

    def found(self, number: int, kind: str) -> list[int]:
        """Return the processes on a node with `kind` in their command lines. Ranks are not their agents."""
        hit = self.nodes[number].processes().items()
        return [
            pid
            for pid, command in hit
            if kind in command and ("distributed.run" in kind or "distributed.run" not in command)
        ]

    def kill(self, number: int, kind: str, name: str = "SIGKILL") -> None:
        for pid in self.found(number, kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, name))

    def note_rank(self, number: int) -> None:
        """Remember which rank runs on a node."""
        for pid in self.found(number, "_train.py"):
            with contextlib.suppress(OSError):
                told = re.search(rb"\b(?:RANK|SLURM_PROCID)=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
                self.lost_rank = told[1].decode() if told else self.lost_rank

    def inject(self, episode: Episode) -> None:
        """Inject the fault."""
        number, fault = episode.node, episode.fault
        if fault in ("rank", "agent"):
            kind = "_train.py" if fault == "rank" else AGENTS[episode.launcher]
            wait_until(lambda: self.found(number, kind) or self.ended(), 200)
            self.note_rank(number)
            self.kill(number, kind)
        elif fault in ("node", "rendezvous host"):
            self.note_rank(number)
            self.nodes[number].lose_power()
        elif fault == "disk full":
            fill(self.shared / "disk" / "full")
        elif fault == "own disk full":
            fill(self.nodes[number].root / "tmp" / "full")
        elif fault == "disk unmounted":
            self.run(number, "umount", "-l", "/mnt/disk")
        elif fault == "data missing":
            self.run(number, "rm", "-r", "/srv/images")
        elif fault == "data different":
            self.run(number, "cp", "/srv/images/train/0/0.png", "/srv/images/train/1/1.png")
        elif fault == "clock off":
            (self.nodes[number].root / "srv" / "clock" / "sitecustomize.py").write_text(CLOCK)

    def mend(self, episode: Episode) -> None:
        """Do what an operator or a cluster does after the fault."""
        number, fault = episode.node, episode.fault
        if fault == "disk full":
            (self.shared / "disk" / "full").unlink()
        elif fault == "own disk full":
            (self.nodes[number].root / "tmp" / "full").unlink()
        elif fault == "disk unmounted":
            self.run(number, "mount", "--bind", self.shared / "disk", "/mnt/disk")
        elif fault in ("node", "rendezvous host"):
            self.nodes[number] = self.new_node(number)
            if self.by_slurm:
                self.run(number, "slurmd")
        if episode.launcher.startswith("torchrun") and fault in ("agent", "node", "rendezvous host"):
            self.start_on(number, episode.launcher, episode.script)

    def stop(self) -> None:
        """End what still runs, like a scheduler: by SIGTERM, then by SIGKILL."""
        for full in (self.shared / "disk" / "full", *(node.root / "tmp" / "full" for node in self.nodes)):
            full.unlink(missing_ok=True)
        if self.by_slurm:
            self.run(LOGIN, "scancel", "--user=root", check=False)
            return
        for name in ("SIGTERM", "SIGKILL"):
            for node in self.nodes:
                for kind in ("torch.distributed.run", "_train.py"):
                    self.kill(node.number, kind, name)
            deadline = time.monotonic() + STOPPED_WITHIN
            while not self.ended() and time.monotonic() < deadline:
                time.sleep(0.1)

    def left(self) -> list[str]:
        """Return what is left on the nodes: processes and files."""
        own = ("slurmctld", "slurmd", ":")  # not slurmstepd
        found = [
            f"{node.name}: {command}"
            for node in self.nodes
            for command in node.processes().values()
            if command and os.path.basename(command.split()[0]) not in own
        ]
        for node in self.nodes:
            files = [f"{place}/{name}" for place in ("/tmp", "/dev/shm") for name in node.files(place)]
            found += [f"{node.name}: {file}" for file in files if "torchelastic_" not in file]  # torchrun leaves them
        return [*found, *map(str, (self.shared / "disk" / "run").rglob("*.part"))]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        for command in self.commands.values():
            command.kill()
            command.wait()


def fill(file: Path) -> None:
    """Write zeros until the disk is full."""
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as opened:
        while True:
            opened.write(bytes(1 << 16))


class Player:
    """Plays episodes on a network, and each script once undisturbed."""

    def __init__(self, net: network.Network, shared: Path) -> None:
        self.net, self.shared, self.undisturbed = net, shared, {}

    def expected(self, script: str, ranks: int) -> list:
        """Return the losses of an undisturbed training."""
        if (script, ranks) not in self.undisturbed:
            bed = Bed(self.net, self.shared, by_slurm=False)
            try:
                bed.train("by hand", script, ranks)
                wait_until(bed.ended, 300)
                if not bed.succeeded():
                    raise SuiteError(f"{script} fails by itself", bed.said(), "mend that first", FAILED)
                self.undisturbed[script, ranks] = learned(self.shared / "disk" / "run" / "result.json")
            finally:
                bed.close()
        return self.undisturbed[script, ranks]

    def play(self, episode: Episode) -> dict:
        """Play an episode. Return how it ended; raise FindingError."""
        expected = self.expected(episode.script, NODES)
        bed = Bed(self.net, self.shared, episode.launcher in BY_SLURM)
        try:
            if episode.fault in EARLY:
                bed.inject(episode)
            bed.train(episode.launcher, episode.script)
            if episode.launcher in ("by hand", "srun"):
                bed.lost_rank = str(episode.node)
            if episode.fault in EARLY:
                wait_until(lambda: all(bed.found(number, "_train.py") for number in range(NODES)) or bed.ended(), 200)
                start = time.monotonic()
            else:
                if episode.epoch:
                    wait_until(lambda: f"Epoch [{episode.epoch}/" in bed.said() or bed.ended(), 200)
                time.sleep(episode.delay)
                bed.inject(episode)
                start = time.monotonic()
            ended = self.watch(bed, episode, start, expected)
            self.check_left(bed, episode)
            return ended
        finally:
            bed.close()

    def watch(self, bed: Bed, episode: Episode, start: float, expected: list) -> dict:
        """Wait for the end of a training with a fault, and judge it."""
        pattern = WORDS[episode.fault].format(node=f"n{episode.node}", number=episode.node, rank=bed.lost_rank)
        named, line, to_mend, requeued = None, "", episode.mended, False
        recovers = episode.recovers
        while time.monotonic() < start + (RECOVERED_WITHIN if recovers or named is None else named + 2):
            if bed.ended():
                break
            if named is None and (match := re.search(pattern, bed.said())):
                named, line = time.monotonic() - start, match[0]
            if to_mend and time.monotonic() > start + 4 and episode.fault not in EARLY:
                to_mend = bed.mend(episode)
            if bed.job and not requeued and "Restarts=0" not in (state := bed.state()) and "JobState=PENDING" in state:
                requeued = not bed.run(LOGIN, "scontrol", "update", f"JobId={bed.job}", "StartTime=now+2", check=False)
            time.sleep(0.2)
        seconds = time.monotonic() - start
        if named is None and (match := re.search(pattern, bed.said())):
            named, line = seconds, match[0]
        done = bed.ended() and bed.succeeded()
        bed.stop()
        if done:
            result = self.shared / "disk" / "run" / "result.json"
            if not result.exists() or learned(result) != expected:
                raise FindingError("exit code 0, and other losses", bed.said())
            if "Epoch [2/" in bed.said().rpartition("Method:")[0] and "resumed" not in result.read_text():
                raise FindingError("it began anew in spite of its checkpoint", bed.said())
            return {"outcome": "recovered", "seconds": seconds, "line": line}
        if named is None or named > NAMED_WITHIN:
            raise FindingError("not named within 30 s" if named is None else f"named after {named:.0f} s", bed.said())
        return {"outcome": "named", "seconds": named, "line": line}

    def check_left(self, bed: Bed, episode: Episode) -> None:
        deadline = time.monotonic() + 20
        while (left := bed.left()) and time.monotonic() < deadline:
            time.sleep(0.5)
        if left:
            raise FindingError("left behind: " + ", ".join(left), bed.said())


@contextlib.contextmanager
def shared_directory() -> Iterator[Path]:
    """Make the directory that all nodes see, with images and a small disk in it."""
    place = Path(tempfile.mkdtemp(prefix="nodes-", dir="/var/tmp"))  # not /tmp, which the nodes do not see
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
                print(
                    f"{number}: {episode}: {ended['outcome']} after {ended['seconds']:.1f} s: {ended['line']}",
                    flush=True,
                )
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
