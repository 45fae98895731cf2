"""Random faults in whole trainings and comparisons, for as long as told: nothing may get lost, wrong, or left behind.

    python tests/fuzz.py --seconds 600 --seed 1
    python tests/fuzz.py --trials 200 --kills
    python tests/fuzz.py --seed 17 --trials 1

Every trial is drawn from its number, which counts up from --seed; the last command is how a finding is replayed. It is
a script, or a comparison, with some of: signals to random processes of its tree at random moments (SIGSTOP is followed
by SIGCONT), strange flags and environment variables. After signals the same command is run once more, and has to come
to the end, with the results of a run that was never disturbed. With --kills, all faults are one SIGKILL.

A finding is: an exit code that is none of 0, 1, 2, 3, 4, 124 and 128 + a signal that was sent; a traceback, an error
that nobody expected, or more than one line about it; exit code 0 with other losses; no end within five minutes; a
process, a file in TMPDIR that is left, or a .part file (what SIGKILL may leave until the next
start is named in docs/reliability.md); a file changed that the command does not name.
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
    "comparison": ("compare_parallel.py", "--methods", "single", "ddp", "--repeats", "1", "--num-workers", "0"),
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
MOST_SECONDS = 300  # for a command, which takes about 10; a comparison runs disturbed blocks again
GONE_AFTER = 20  # seconds, until which processes that a SIGKILL left alone may live: a rank that is importing torch
UNTOUCHED = ("notes.txt", "result.json.part", "checkpoint.ptABCDEFGH.part", "earlier.json")  # none is the program's
PRINTED_BY_TORCHRUN = ("torchrun", "accelerate")


@dataclass(frozen=True)
class Signal:
    """A signal, so many seconds after the start, to that process of the tree of which this is the place, in 0..1, by
    PID; None: to all of the process group. seconds: until SIGCONT, where it is SIGSTOP."""

    name: str
    after: float
    place: float | None
    seconds: float


@dataclass(frozen=True)
class Trial:
    """What is tried. signals' times are shares of the time that the program takes undisturbed."""

    program: str
    signals: tuple[Signal, ...] = ()
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.program, *(f"{one.name} at {one.after:.2f}" for one in self.signals)]
        parts += [repr(part) for part in (self.flags, self.environment) if part]
        return ", ".join(parts)


@dataclass(frozen=True)
class Ended:
    """How a command ended: 128 + n for signal n, what it printed on stderr, how long it took, what signals it got."""

    code: int
    stderr: str
    seconds: float
    sent: frozenset[str]


class FindingError(Exception):
    """What is wrong, in one line, and what was seen, in many."""


def draw(number: int, kills: bool) -> Trial:
    """Return the trial of this number."""
    dice = random.Random(number)
    program = dice.choice([*PROGRAMS])
    if kills:
        return Trial(program, (draw_signal(dice, "SIGKILL"),))
    own = OF_COMPARISONS if program == "comparison" else OF_SCRIPTS
    strange = [flags for line in (FLAGS + own).split("\n") if line.strip() for flags in line.split(" | ")]
    kinds = {"signals": 6, "flags": 3, "environment": 3}
    faults = dice.choices([*kinds], [*kinds.values()], k=dice.choice((1, 1, 2)))
    signals = [draw_signal(dice, dice.choice(SIGNALS)) for _ in range(dice.randint(1, 3))]
    return Trial(
        program,
        tuple(signals) if "signals" in faults else (),
        tuple(" ".join(dice.sample(strange, dice.randint(1, 2))).split()) if "flags" in faults else (),
        dice.choice(ENVIRONMENTS) if "environment" in faults else {},
    )


def draw_signal(dice: random.Random, name: str) -> Signal:
    """Return a signal at a random moment; the first half of a run is mostly imports."""
    after = dice.uniform(0, 1.1) if dice.random() < 0.4 else dice.uniform(0.5, 1.05)
    place = dice.choice((0.0, 0.0, None, dice.random(), dice.random(), dice.random()))
    return Signal(name, after, place, dice.uniform(0.1, 3.0))


def command_of(trial: Trial, place: Path) -> list[str]:
    """Return the command of a trial whose files are in `place`."""
    out, typed = place / "out", [*PROGRAMS[trial.program], *SMALL, "--data-root", place / "data"]
    if trial.program == "comparison":
        return [sys.executable, *map(str, (*typed, "--output-dir", out)), *trial.flags]
    names = {"output": "result.json", "save": "weights.pth", "figure-dir": "", "checkpoint": "checkpoint.pt"}
    files = [word for flag, name in names.items() for word in (f"--{flag}", out / name)]
    return [sys.executable, *map(str, (*typed, *files, "--resume", out / "checkpoint.pt")), *trial.flags]


def run(trial: Trial, place: Path, marker: str, seconds: float, resume: bool = False) -> Ended:
    """Run a trial's command, send its signals; seconds: what it takes undisturbed. Raises FindingError if it hangs."""
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
    coming = sorted(trial.signals, key=lambda one: one.after)
    while process.poll() is None or stopped:
        now = time.monotonic() - start
        for pid, until in [*stopped]:
            if now >= until:
                stopped.remove((pid, until))
                send(pid, "SIGCONT")
        if coming and now >= coming[0].after * seconds and process.poll() is None:
            one = coming.pop(0)
            tree = [-process.pid] if one.place is None else sorted(alive(marker)) or [process.pid]
            pid = tree[int((one.place or 0) * len(tree))]
            send(pid, one.name)
            sent.add(one.name)
            if one.name == "SIGSTOP":
                stopped.append((pid, now + one.seconds))
        if now > MOST_SECONDS:
            raise FindingError(f"no end within {MOST_SECONDS} s", "\n".join(alive(marker).values()))
        time.sleep(0.005)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, (place / "stderr").read_text(errors="replace"), time.monotonic() - start, frozenset(sent))


def send(pid: int, name: str) -> None:
    """Send a signal to a process, or to a process group -pid, that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, name))


def check_end(trial: Trial, ended: Ended) -> None:
    """Raise FindingError if the exit code, or what is on stderr, is none that a program of this project ends with."""
    signals = [128 + getattr(signal, name) for name in ended.sent]
    if ended.code not in (0, 1, 2, 3, 4, 124, *signals):
        raise FindingError(f"exit code {ended.code}", ended.stderr)
    errors = [line for line in ended.stderr.splitlines() if not line.startswith("warning: ")]
    if any(line.startswith("error: ") and "unexpected " in line for line in errors):
        raise FindingError("an error that nobody expected", ended.stderr)
    if trial.program in PRINTED_BY_TORCHRUN:
        if re.search(rf'File "{re.escape(str(PROJECT))}/(?!\.venv/)', ended.stderr):
            raise FindingError("a traceback", ended.stderr)
        return
    if "Traceback" in ended.stderr:
        raise FindingError("a traceback", ended.stderr)
    if ended.code and len(errors) > 1:
        raise FindingError(f"{len(errors)} lines about one failure", ended.stderr)
    shown = trial.program == "comparison" and ended.code == 1  # that a row has failed stands in the table
    if ended.code in (1, 2, 3, 4, 124) and not shown and not (errors and errors[0].startswith("error: ")):
        raise FindingError(f"exit code {ended.code} without a word", ended.stderr)


def check_left(trial: Trial, place: Path, marker: str, ended: Ended, again: bool) -> None:
    """Raise FindingError if anything is left that should not be; again: after a start that was not disturbed."""
    deadline = time.monotonic() + GONE_AFTER
    while left := alive(marker):
        if time.monotonic() > deadline:
            raise FindingError("processes are left", "\n".join(left.values()))
        time.sleep(0.05)
    killed = "SIGKILL" in ended.sent
    one_of_many = any(one.place for one in trial.signals)  # a loader worker, say, which could not clean up
    others = ["torchinductor_", *(["parallel-training-"] if killed and not again else [])]
    others += ["pymp-", "torchelastic_"] if killed or again or one_of_many else []
    others += ["torchelastic_"] if trial.program in PRINTED_BY_TORCHRUN else []
    names = [path.name for path in (place / "tmp").iterdir() if not path.name.startswith(tuple(others))]
    if not killed or again:
        names += [path.name for path in (place / "out").rglob("*.part") if path.name not in UNTOUCHED]
    if names:
        raise FindingError(f"left behind: {', '.join(names)}", ended.stderr)


def untouched(place: Path) -> dict[str, str]:
    """Return what stands for each file that no command names: those beside the output, and the project's own."""
    files = {name: place / "out" / name for name in UNTOUCHED}
    beside, own = {name: file.read_text() if file.exists() else "" for name, file in files.items()}, {}
    for directory, below, files in os.walk(PROJECT):
        below[:] = [name for name in below if name not in ("data", "__pycache__") and not name.startswith(".")]
        paths = [Path(directory, name) for name in files if not name.startswith(".")]
        own |= {str(path): str(path.stat().st_mtime_ns) for path in paths}
    return {**beside, **own}


def losses(program: str, out: Path) -> dict[str, list]:
    """Return what each run learned, epoch by epoch."""
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
    """Trials in a directory, with the undisturbed run of each program, which is made when it is first needed."""

    def __init__(self, directory: Path):
        self.directory, self.marker = directory, f"FUZZ={uuid.uuid4().hex}"
        self.seconds: dict[str, float] = {}

    def undisturbed(self, program: str) -> Path:
        """Return where the files of an undisturbed run are."""
        place = self.directory / program.replace(" ", "-")
        if program not in self.seconds:
            prepare(place, self.directory / "data")
            ended = run(Trial(program), place, self.marker, 0.0)
            if ended.code:
                raise SuiteError(f"{program} fails by itself", ended.stderr, "mend that first", FAILED)
            self.seconds[program] = ended.seconds
        return place

    def go_through(self, trial: Trial, place: Path) -> Ended:
        """Run a trial in `place`; raise FindingError if something is wrong."""
        self.undisturbed(trial.program)
        prepare(place, self.directory / "data")
        known, calm = untouched(place), Trial(trial.program)
        ended = run(trial, place, self.marker, self.seconds[trial.program])
        self.look(trial, place, ended, known)
        if not (trial.flags or trial.environment):
            again = run(calm, place, self.marker, 0.0, (place / "out" / "results.json").exists())
            if again.code:
                raise FindingError(f"afterwards, the same command ends with exit code {again.code}", again.stderr)
            self.look(calm, place, again, known, again=True)
        return ended

    def look(self, trial: Trial, place: Path, ended: Ended, known: dict[str, str], again: bool = False) -> None:
        """Raise FindingError if something is wrong with how a command ended, or with what it left."""
        check_end(trial, ended)
        check_left(trial, place, self.marker, ended, again)
        now = untouched(place)
        if changed := [name for name in {**known, **now} if known.get(name) != now.get(name)]:
            raise FindingError(f"changed: {', '.join(changed)}", ended.stderr)
        if ended.code == 0 and not trial.flags:
            places = self.undisturbed(trial.program), place
            learned, own = (losses(trial.program, where / "out") for where in places)
            if own != learned:
                raise FindingError("exit code 0, and other losses", f"{own}\n{learned}")

    def clean_up(self, place: Path) -> None:
        """Leave nothing of a trial, whatever became of it."""
        for pid in alive(self.marker):
            send(pid, "SIGKILL")
        shutil.rmtree(place, ignore_errors=True)


def prepare(place: Path, data: Path) -> None:
    """Make the directories of a run in `place`, and files that it does not name."""
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
    start, number, findings = time.monotonic(), arguments.seed, []
    with tempfile.TemporaryDirectory(prefix="fuzz") as directory:
        fuzz, place = Fuzz(Path(directory)), Path(directory, "trial")
        while number - arguments.seed < (arguments.trials or 10**9) and (
            not arguments.seconds or time.monotonic() - start < arguments.seconds
        ):
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
            number += 1
        for program in fuzz.seconds:
            fuzz.clean_up(Path(directory, program.replace(" ", "-")))
    print(f"{number - arguments.seed} trials, {len(findings)} findings", *findings, sep="\n")
    if findings:
        sys.exit(FAILED)


if __name__ == "__main__":
    run_script(main)
