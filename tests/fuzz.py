"""Inject random faults into whole trainings and comparisons, and check that nothing is lost, wrong or left behind.

    python tests/fuzz.py --seconds 600 --seed 1
    python tests/fuzz.py --trials 200 --kills
    python tests/fuzz.py --seed 17 --trials 1

Each trial is drawn from its number, which counts up from --seed; the last command replays a finding. A trial runs a
script or a comparison with signals to random processes of its tree at random times (SIGCONT follows SIGSTOP), unusual
flags, or unusual environment variables. After signals, the same command is run again undisturbed: it must succeed with
the results of a run without faults. With --kills, the only fault is one SIGKILL.

Findings are: an exit code other than 0, 1, 2, 3, 4, 124 and 128 + a signal that was sent; a traceback, an unexpected
error, or more than one line per error; exit code 0 with different losses; a run of more than five minutes; a process,
.part file or file in TMPDIR that is left (docs/reliability.md lists what SIGKILL may leave until the next start); a
changed file that the command does not name.
"""

import argparse
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.errors import FAILED, SuiteError  # noqa: E402
from common.files.results import read_result  # noqa: E402
from common.machine.entry import run_script  # noqa: E402
from common.settings.arguments import non_negative_int, positive_float, positive_int  # noqa: E402
from comparison.results_file import read_results  # noqa: E402
from tests.fixtures import alive, child_environment  # noqa: E402

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
PROGRAMS = {
    "one device": ("data_parallel_train.py", "--num-workers", "0"),
    "two workers": ("data_parallel_train.py", "--num-workers", "2"),
    "simulated": ("data_parallel_train.py", "--simulate-devices", "2", "--num-workers", "0"),
    "spawn": ("ddp_train.py", "--spawn", "2", "--num-workers", "2"),
    "fsdp": ("fsdp_train.py", "--spawn", "2", "--num-workers", "0"),
    "pipeline": ("pipeline_train.py", "--spawn", "2", "--num-workers", "0"),
    "torchrun": (*TORCHRUN, "ddp_train.py", "--num-workers", "0"),
    "accelerate": (*TORCHRUN, "accelerate_train.py", "--num-workers", "2"),
    "comparison": tuple("compare_parallel.py --methods single ddp --repeats 1 --num-workers 0 --wait 0".split()),
}
SMALL = ("--dataset", "synthetic-mnist", "--model", "mlp", "--train-size", "960", "--batch-size", "48", "--epochs", "2")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGSTOP")
ENVIRONMENTS = [  # one on each line
    dict(variable.split("=", 1) for variable in line.split())
    for line in """
        RANK=3 WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=1
        LOCAL_RANK=abc
        OMP_NUM_THREADS=abc
        OMP_NUM_THREADS=0
        MKL_NUM_THREADS=-1
        TMPDIR=/nonexistent
        TMPDIR=
        HOME=
        HOME=/nonexistent
        PATH=
        LC_ALL=zh_CN.GBK
        PYTHONIOENCODING=gbk
        PYTHONUTF8=0 LC_ALL=C PYTHONCOERCECLOCALE=0
        LANG=C MPLBACKEND=nonsense TZ=Nowhere/Nothing
        COLUMNS=0
        COLUMNS=abc
        CUDA_VISIBLE_DEVICES=7
        PYTHONUNBUFFERED=1 PYTHONOPTIMIZE=2 PYTHONHASHSEED=7
        TORCHELASTIC_RESTART_COUNT=abc
        TORCHELASTIC_ERROR_FILE=/nonexistent/file
        PARALLEL_TRAINING_RUN=mine
        GLOO_SOCKET_IFNAME=none0
        TORCH_LOGS=nonsense
    """.strip().splitlines()
]
FLAGS = """
    --lr 1e20 | --lr nan | --epochs 0 | --epochs 2147483648 | --batch-size 7 | --batch-size 1 | --batch-size 100000
    --num-workers 3 | --train-size 1 | --max-steps 1 | --seed 2147483647 | --model lenet | --model x.py:build | --model=
    --dataset folder:. | --dataset nothing | --data-root /proc/nowhere | --data-root /dev/null | --device gpu
    --precision bf16 | --precision fp16 | --loader resident --num-workers 0 | --no-augment | --target-accuracy 0.99
    --target-accuracy 0.1
    --schedule one-cycle | --eval-mode | --label-smoothing 0.5 | --optimizer nesterov | --lr-milestones 1 1 | --\udcff
"""
OF_SCRIPTS = """
    --output /dev/full | --save /proc/self/mem | --figure-dir /dev/null | --threads 100 | --resume /dev/zero
    --checkpoint / | --output /nonexistent/file | --dist-timeout 0.001 | --quiet | --spawn 0 | --spawn 3
    --micro-batches 0
"""
OF_COMPARISONS = """
    --timeout 0.5 | --timeout 4 | --methods ladder:lr=3 | --nproc 3 | --nproc 1 | --output-dir /dev/null | --prove
    --output-dir /proc/x | --against /dev/zero | --project 2 | --scaling weak | --micro-batches 1000 | --baseline ddp
    --check-maths | --dry-run | --from /dev/null | --diff /dev/null /dev/zero | --threads-per-device 2
"""
MOST_SECONDS = 300  # per command; most take about 10, but a comparison repeats disturbed blocks
GONE_AFTER = 20  # seconds that orphans of a SIGKILL may live, such as a rank that is importing torch
# Files that no program writes.
UNTOUCHED = ("notes.txt", "result.json.part", "checkpoint.ptABCDEFGH.part", "earlier.json")
UNDER_TORCHRUN = ("torchrun", "accelerate")


@dataclass(frozen=True)
class Signal:
    """A signal to a process of the tree, or to its whole process group.

    after: when to send it, as a share of the undisturbed run time; position: which process, from 0 to 1 in order of
    PID, or None for the group; seconds: from SIGSTOP to SIGCONT.
    """

    name: str
    after: float
    position: float | None
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A program and the faults to inject."""

    program: str
    signals: tuple[Signal, ...] = ()
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.program, *(f"{fault.name} at {fault.after:.2f}" for fault in self.signals)]
        parts += [repr(part) for part in (self.flags, self.environment) if part]
        return ", ".join(parts)


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: 128 + n for signal n; sent: the names of the signals it got."""

    code: int
    stderr: str
    seconds: float
    sent: frozenset[str]


class FindingError(Exception):
    """Arguments: what is wrong, in one line, and the evidence."""


def draw(number: int, kills: bool) -> Trial:
    """Return the trial with this number."""
    dice = random.Random(number)
    program = dice.choice([*PROGRAMS])
    if kills:
        return Trial(program, (draw_signal(dice, "SIGKILL"),))
    lines = (FLAGS + (OF_COMPARISONS if program == "comparison" else OF_SCRIPTS)).split("\n")
    choices = [flags for line in lines if line.strip() for flags in line.split(" | ")]
    kinds = {"signals": 6, "flags": 3, "environment": 3}
    faults = dice.choices([*kinds], [*kinds.values()], k=dice.choice((1, 1, 2)))
    signals = [draw_signal(dice, dice.choice(SIGNALS)) for _ in range(dice.randint(1, 3))]
    return Trial(
        program,
        tuple(signals) if "signals" in faults else (),
        tuple(" ".join(dice.sample(choices, dice.randint(1, 2))).split()) if "flags" in faults else (),
        dice.choice(ENVIRONMENTS) if "environment" in faults else {},
    )


def draw_signal(dice: random.Random, name: str) -> Signal:
    """Return a signal at a random time, less often in the first half of a run, which is mostly imports."""
    after = dice.uniform(0, 1.1) if dice.random() < 0.4 else dice.uniform(0.5, 1.05)
    position = dice.choice((0.0, 0.0, None, dice.random(), dice.random(), dice.random()))
    return Signal(name, after, position, dice.uniform(0.1, 3.0))


def command_of(trial: Trial, place: Path) -> list[str]:
    """Return the command of a trial that writes into `place`."""
    out = place / "out"
    if trial.program == "comparison":
        outputs = ["--output-dir", out]
    else:
        outputs = ["--output", out / "result.json", "--save", out / "weights.pth", "--figure-dir", out]
        outputs += ["--checkpoint", out / "checkpoint.pt", "--resume", out / "checkpoint.pt"]
        outputs += ["--threads", "1"]  # by default, it depends on other trainings, and so does the rounding of losses
    words = [sys.executable, *PROGRAMS[trial.program], *SMALL, "--data-root", place / "data", *outputs, *trial.flags]
    return [*map(str, words)]


def run(trial: Trial, place: Path, marker: str, seconds: float, resume: bool = False) -> Ended:
    """Run a trial's command and send its signals. seconds: its undisturbed run time. Raise FindingError on a hang."""
    name, value = marker.split("=")
    environment = {**child_environment(), "TMPDIR": str(place / "tmp"), **trial.environment, name: value}
    flags = ["--resume"] if resume and trial.program == "comparison" else []
    with open(place / "stdout", "w") as stdout, open(place / "stderr", "w") as stderr:
        process = subprocess.Popen(
            [*command_of(trial, place), *flags],
            cwd=PROJECT,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
    start, sent, stopped = time.monotonic(), set(), []
    pending = sorted(trial.signals, key=lambda fault: fault.after)
    while process.poll() is None or stopped:
        now = time.monotonic() - start
        for pid, until in [*stopped]:
            if now >= until:
                stopped.remove((pid, until))
                send(pid, "SIGCONT")
        if pending and now >= pending[0].after * seconds and process.poll() is None:
            fault = pending.pop(0)
            if fault.position is None:
                pid = -process.pid
            else:
                tree = sorted(alive(marker)) or [process.pid]
                pid = tree[int(fault.position * len(tree))]
            send(pid, fault.name)
            sent.add(fault.name)
            if fault.name == "SIGSTOP":
                stopped.append((pid, now + fault.seconds))
        if now > MOST_SECONDS:
            raise FindingError(f"no end within {MOST_SECONDS} s", "\n".join(alive(marker).values()))
        time.sleep(0.005)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, (place / "stderr").read_text(errors="replace"), time.monotonic() - start, frozenset(sent))


def send(pid: int, name: str) -> None:
    """Send a signal to a process, or to the process group -pid. Do nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, name))


def check_end(trial: Trial, ended: Ended) -> None:
    """Raise FindingError for an unexpected exit code or stderr."""
    signals = [128 + getattr(signal, name) for name in ended.sent]
    if ended.code not in (0, 1, 2, 3, 4, 124, *signals):
        raise FindingError(f"exit code {ended.code}", ended.stderr)
    others = ("warning: ", "libgomp: ")  # libgomp says so if OMP_NUM_THREADS is no number, between empty lines
    errors = [line for line in ended.stderr.splitlines() if line and not line.startswith(others)]
    if any(line.startswith("error: ") and "unexpected " in line for line in errors):
        raise FindingError("an error that nobody expected", ended.stderr)
    if trial.program in UNDER_TORCHRUN:
        if re.search(rf'File "{re.escape(str(PROJECT))}/(?!\.venv/)', ended.stderr):
            raise FindingError("a traceback", ended.stderr)
        return
    if "Traceback" in ended.stderr:
        raise FindingError("a traceback", ended.stderr)
    if ended.code and len(errors) > 1:
        raise FindingError(f"{len(errors)} lines about one failure", ended.stderr)
    shown = trial.program == "comparison" and ended.code == 1  # the table shows which row has failed
    if ended.code in (1, 2, 3, 4, 124) and not shown and not (errors and errors[0].startswith("error: ")):
        raise FindingError(f"exit code {ended.code} without a word", ended.stderr)


def check_left(trial: Trial, place: Path, marker: str, ended: Ended, again: bool) -> None:
    """Raise FindingError if processes or files are left. again: this is the undisturbed run after a trial."""
    deadline = time.monotonic() + GONE_AFTER
    while left := alive(marker):
        if time.monotonic() > deadline:
            raise FindingError("processes are left", "\n".join(left.values()))
        time.sleep(0.05)
    killed = "SIGKILL" in ended.sent
    child_hit = any(fault.position for fault in trial.signals)  # such as a loader worker, which could not clean up
    allowed = ["parallel-training-"] if killed and not again else []
    allowed += ["pymp-", "torchelastic_"] if killed or again or child_hit else []
    allowed += ["torchelastic_"] if trial.program in UNDER_TORCHRUN else []
    names = [path.name for path in (place / "tmp").iterdir() if not path.name.startswith(tuple(allowed))]
    if not killed or again:
        names += [path.name for path in (place / "out").rglob("*.part") if path.name not in UNTOUCHED]
    if names:
        raise FindingError(f"left behind: {', '.join(names)}", ended.stderr)


def untouched(place: Path) -> dict[str, str]:
    """Return a fingerprint of each file that no command names: those next to the output, and the project's."""
    fingerprints = {}
    for name in UNTOUCHED:
        file = place / "out" / name
        fingerprints[name] = file.read_text() if file.exists() else ""
    for directory, below, files in os.walk(PROJECT):
        below[:] = [name for name in below if name not in ("data", "__pycache__") and not name.startswith(".")]
        paths = [Path(directory, name) for name in files if not name.startswith(".")]
        fingerprints |= {str(path): str(path.stat().st_mtime_ns) for path in paths}
    return fingerprints


def losses(program: str, out: Path) -> dict[str, list]:
    """Return the losses and accuracy of each run, epoch by epoch."""
    if program == "comparison":
        first = [outcome for outcome in read_results(out / "results.json").outcomes if outcome.block == 1]
        results = {outcome.configuration: outcome.result for outcome in first}
    else:
        results = {program: read_result(out / "result.json")}
    return {
        name: [(epoch.train_loss, epoch.test_loss, epoch.test_accuracy) for epoch in result.epochs]
        for name, result in results.items()
    }


class Fuzz:
    """Runs trials in a directory, and each program once undisturbed before its first trial."""

    def __init__(self, directory: Path):
        self.directory, self.marker = directory, f"FUZZ={uuid.uuid4().hex}"
        self.seconds: dict[str, float] = {}

    def undisturbed(self, program: str) -> Path:
        """Return the directory of an undisturbed run. Run it first if needed."""
        place = self.directory / program.replace(" ", "-")
        if program not in self.seconds:
            shutil.rmtree(place, ignore_errors=True)  # of a run that did not end in time
            prepare(place, self.directory / "data")
            ended = run(Trial(program), place, self.marker, 0.0)
            if ended.code:
                raise SuiteError(f"{program} fails by itself", ended.stderr, "mend that first", FAILED)
            self.seconds[program] = ended.seconds
        return place

    def go_through(self, trial: Trial, place: Path) -> Ended:
        """Run a trial in `place`. Raise FindingError if something is wrong."""
        self.undisturbed(trial.program)
        prepare(place, self.directory / "data")
        known, undisturbed = untouched(place), Trial(trial.program)
        ended = run(trial, place, self.marker, self.seconds[trial.program])
        self.check(trial, place, ended, known)
        if not (trial.flags or trial.environment):
            again = run(undisturbed, place, self.marker, 0.0, (place / "out" / "results.json").exists())
            if again.code:
                raise FindingError(f"afterwards, the same command ends with exit code {again.code}", again.stderr)
            self.check(undisturbed, place, again, known, again=True)
        return ended

    def check(self, trial: Trial, place: Path, ended: Ended, known: dict[str, str], again: bool = False) -> None:
        """Raise FindingError if a command ended wrongly, left something, or has wrong results."""
        check_end(trial, ended)
        check_left(trial, place, self.marker, ended, again)
        now = untouched(place)
        if changed := [name for name in {**known, **now} if known.get(name) != now.get(name)]:
            raise FindingError(f"changed: {', '.join(changed)}", ended.stderr)
        if ended.code == 0 and not trial.flags:
            expected = losses(trial.program, self.undisturbed(trial.program) / "out")
            found = losses(trial.program, place / "out")
            if found != expected:
                raise FindingError("exit code 0, and other losses", f"{found}\n{expected}")

    def clean_up(self, place: Path) -> None:
        """Kill the processes of a trial and delete its files."""
        for pid in alive(self.marker):
            send(pid, "SIGKILL")
        shutil.rmtree(place, ignore_errors=True)


def prepare(place: Path, data: Path) -> None:
    """Make the directories of a run in `place`, with files that it must not touch."""
    for name in ("out", "tmp"):
        (place / name).mkdir(parents=True, exist_ok=True)
    data.mkdir(exist_ok=True)
    (place / "data").symlink_to(data)
    for name in UNTOUCHED:
        (place / "out" / name).write_text(f"{name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive_float, metavar="S", help="start no trial after so many seconds")
    parser.add_argument("--trials", type=positive_int, metavar="N", help="how many (as many as --seconds allows)")
    parser.add_argument("--seed", type=non_negative_int, default=1, metavar="N", help="the first one's (%(default)s)")
    parser.add_argument("--kills", action="store_true", help="one SIGKILL in each, and no other fault")
    arguments = parser.parse_args()
    if not (arguments.seconds or arguments.trials):
        parser.error("give --seconds or --trials")
    start, trials, findings = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory(prefix="fuzz") as directory:
        fuzz, place = Fuzz(Path(directory)), Path(directory, "trial")
        for number in itertools.islice(itertools.count(arguments.seed), arguments.trials):
            if arguments.seconds and time.monotonic() - start >= arguments.seconds:
                break
            trials += 1
            trial = draw(number, arguments.kills)
            try:
                ended = fuzz.go_through(trial, place)
                print(f"{number}: {trial}: exit code {ended.code} after {ended.seconds:.1f} s", flush=True)
            except FindingError as finding:
                what, seen = finding.args
                kills = " --kills" if arguments.kills else ""
                replay = f"python tests/fuzz.py --seed {number} --trials 1{kills}"
                findings.append(f"{what}; {trial}; again: {replay}")
                print(f"{number}: FINDING: {findings[-1]}\n{seen}", flush=True)
            finally:
                fuzz.clean_up(place)
    print(f"{trials} trials, {len(findings)} findings", *findings, sep="\n")
    if findings:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
