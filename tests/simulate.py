"""Whole comparisons on a simulated machine, each by a schedule of faults that is drawn from a seed.

    python tests/simulate.py --schedules 100000
    python tests/simulate.py --seed 17 --schedules 1

The last command replays a finding. A schedule has rows of different speed and noise, some of which crash, stall or run
out of memory; other programs that disturb blocks; and up to three sessions of the same command that are interrupted by
signals or a full disk, the last of which is followed by one that may end. Others move or delete its directory, start a
second comparison there or show its results. See the functions check_… for what must hold.
"""

import argparse
import gc
import itertools
import json
import math
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.errors import FAILED, OUT_OF_MEMORY, USAGE  # noqa: E402
from common.settings.arguments import non_negative_int, positive_int  # noqa: E402
from comparison.judge.analysis import Analysis, analyse  # noqa: E402
from comparison.judge.statistics import FASTER, SLOWER  # noqa: E402
from comparison.outcomes import Outcome  # noqa: E402
from comparison.record import Report  # noqa: E402
from comparison.results_file import read_results  # noqa: E402
from comparison.run.launch import GRACE  # noqa: E402
from comparison.run.scripts import ALIKE, SLICES  # noqa: E402
from tests.reports import each_epoch  # noqa: E402
from tests.simulated_machine import GIB, LOOK_EVERY, STARTUP, Event, Fate, Load, Machine, Training  # noqa: E402

real_seconds = time.perf_counter
METHODS = ("single", "ddp", "single-all-cores", "pipeline", "dp")
SCRIPTS = ("script-a", "script-b", "script-c", "script-d")
FIXED = "--dataset synthetic-mnist --model lenet --num-workers 0 --no-tips"
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
CALLS = {"helper": 3, "start": 6, "started": 6, "select": 80, "fsync": 20, "wait": 8, "kill": 8}  # and how many
STATUS = {"ok": "ok", "stalls": "timed out", OUT_OF_MEMORY: OUT_OF_MEMORY, "killed for memory": OUT_OF_MEMORY}
OTHERS = ("second", "second resumes", "shown", "moved", "deleted")  # what others do to the directory
EARLY = ("disk full", "helper killed", "taken")  # may end a session before it writes what an earlier one left
KEPT = ("ok", OUT_OF_MEMORY)
TIMEOUT = 8.0
MOST = 5  # findings, after which it ends
PROGRESS = 1000  # schedules between lines about its progress


@dataclass(frozen=True)
class Schedule:
    """A command, its machine, and the events of each session; anew: the sessions that are typed without --resume."""

    seed: int
    flags: str
    cores: int
    free: int
    epochs: int
    speeds: dict[str, tuple[float, float]]
    trouble: float
    loads: tuple[Load, ...]
    sessions: tuple[tuple[Event, ...], ...]
    anew: frozenset[int]

    def fate(self, row: str, block: int, attempt: int) -> Fate:
        """Return how an attempt at a run goes."""
        dice = random.Random(f"{self.seed} {row} {block} {attempt}")
        speed, noise = self.speeds[row]
        seconds = tuple(speed * max(0.2, dice.gauss(1, noise)) for _ in range(self.epochs))
        what = dice.choice((*STATUS, "exit", "killed")) if dice.random() < self.trouble else "ok"
        if what == "stalls" and "--timeout" not in self.flags:
            what = "exit"
        return Fate(what, dice.randint(1, self.epochs), seconds, dice.random() < 0.1, dice.random() < 0.1)


def draw(seed: int) -> Schedule:
    dice = random.Random(seed)
    count, scripts = dice.choice((2, 2, 2, 2, 3, 3, 4)), dice.random() < 0.2
    rows = dice.sample(SCRIPTS if scripts else METHODS, count)
    cores, epochs, interruptions = dice.choice((1, 2, 2, 4)), dice.choice((1, 2)), dice.choice((0, 0, 1, 1, 2, 3))
    budget = f"--budget {dice.choice((1, 10, 15, 30))}s"
    margin = f"{budget} --margin {dice.choice((2, 10))}"
    blocks = dice.choice((*(f"--repeats {number}" for number in (1, 1, 2, 2, 2, 3)), budget, budget, budget, margin))
    flags = f"{blocks} --seed {dice.randrange(100)}"
    flags += dice.choice(("", *2 * (f" --timeout {TIMEOUT * (ALIKE if scripts else 1):g}",)))  # slices may be longer
    if scripts:
        typed = (f"--script '{row.removeprefix('script-')}=python {PROJECT / 'mnist.py'}'" for row in rows)
        flags += f" --steps 0.5s --warmup 2 {' '.join(typed)}"
    else:
        flags += f" --methods {' '.join(rows)} --epochs {epochs} {FIXED} "
        flags += dice.choice(("--check-maths", *4 * ("--no-check-maths",)))
    return Schedule(
        seed,
        flags,
        cores,
        dice.choice((GIB, 100 * GIB)),
        epochs,
        {row: (dice.choice((0.5, 1.0, 1.0, 1.1, 3.0)), dice.choice((0.002, 0.02, 0.2))) for row in rows},
        dice.choice((0, 0, 0.2, 0.5)),
        tuple(draw_load(dice, cores) for _ in range(dice.choice((0, 0, 0, 1, 2, 5)))),
        (*(tuple(draw_events(dice)) for _ in range(interruptions)), tuple(draw_harmless(dice))),
        frozenset(number for number in range(1, interruptions + 1) if dice.random() < 0.1),
    )


def draw_load(dice: random.Random, cores: int) -> Load:
    start = 1000 + dice.uniform(0, 60)
    stolen = dice.random() < 0.3
    return Load(start, start + dice.expovariate(1 / 10), dice.uniform(0.02, 1 if stolen else cores), stolen)


def draw_events(dice: random.Random) -> Iterator[Event]:
    """Yield one or two events that end a session."""
    for _ in range(dice.choice((1, 1, 1, 2))):
        call = dice.choice([*CALLS, "fsync", "fsync"])  # whose moments matter most
        number = dice.randint(1, CALLS[call])
        what = dice.choice((*SIGNALS, *SIGNALS, "disk full", "helper killed", "taken"))
        if what in SIGNALS:
            yield Event(what, call, number, dice.choice((0, int(10 ** dice.uniform(0, 3.5)))))
        elif what == "disk full":
            yield Event(what, "fsync", dice.randint(1, CALLS["fsync"]))
        elif what == "taken":
            yield Event(what, "select", dice.randint(1, CALLS["select"]))
            return
        else:
            yield Event(what, "helper", dice.randint(1, 2))


def draw_harmless(dice: random.Random) -> Iterator[Event]:
    for what in ("paused", *OTHERS):
        if dice.random() < 0.1:
            yield Event(what, "select", dice.randint(1, CALLS["select"]))


# ---- play a schedule


class Play:
    """A schedule on its machine. found: what is wrong; shown: what the sessions printed."""

    def __init__(self, schedule: Schedule, place: Path):
        self.schedule, self.place = schedule, place
        self.found: list[str] = []
        self.out, self.file = place / "out", place / "out" / "results.json"
        (place / "tmp").mkdir(parents=True)
        self.machine = Machine(place, schedule.cores, schedule.loads, schedule.fate, schedule.free)
        self.machine.before_turn = self._before_turn
        self.shown: list[tuple[int, str, str]] = []
        self.seen: list[str] = []  # what happened in the schedule, to count it
        self.torn: set[Path] = set()  # files that sessions left; the next one that writes them removes them
        self.kept: dict = {}  # the runs that must stay in results.json, by (block, row)
        self.first = self.session = 0  # of the machine's trainings: the first of this comparison, and of this session

    def go_through(self) -> None:
        """Play all sessions and check what each leaves."""
        words = ["--output-dir", str(self.out), *shlex.split(self.schedule.flags)]
        for number, events in enumerate(self.schedule.sessions):
            resumes = self.file.exists() and number not in self.schedule.anew
            probed = resumes and read_results(self.file).probe
            earlier = self.kept, self.first, self.file.read_bytes() if self.file.exists() else None
            if not resumes:
                self.kept, self.first = {}, len(self.machine.trained)
            self.session = len(self.machine.trained)
            ended = self.machine.session([*words, *(["--resume"] if resumes else [])], events)
            self.shown.append(ended)
            self.seen += [f"exit code {ended[0]}", *(what for _, what in self.machine.happened)]
            self.unless(not (probed and "probe" in self.machine.asked), "the machine was probed again")
            report = read_results(self.file) if self.file.exists() else None
            if not resumes:
                self._check_earlier(*earlier)
            check_end(self, report, *ended)
            if report:
                check_runs(self, report)
                check_order(self, report)
            before, self.torn = self.torn, {*self.place.glob("tmp/*"), *self.place.rglob("*.part")}
            left = self.torn - (before if self.happened(*EARLY) else set())
            self.unless(not left or self.happened(*SIGNALS), f"files are left: {left}")
            if number == len(self.schedule.sessions) - 1:
                check_complete(self, report, *ended[:2])
        self.found += self.machine.trouble

    def unless(self, fine: bool, what: object) -> None:
        """Note what is wrong, unless it is fine."""
        if not fine:
            self.found.append(str(what))

    def happened(self, *whats: str) -> bool:
        """Return whether any of these events happened in the last session."""
        return bool({*whats} & {what for _, what in self.machine.happened})

    def trainings(self, since: int | None = None) -> list[Training]:
        """Return the trainings of this comparison, or of this session."""
        return self.machine.trained[self.first if since is None else since :]

    def statuses_of(self, training: Training) -> set[str]:
        """Return the statuses that a run may have. If the kernel has killed a run, it may have killed another one."""
        what, kernel = training.fate.what, self.machine.killed_for_memory
        return {STATUS.get(what, "failed"), *([OUT_OF_MEMORY] if what == "killed" and kernel else [])}

    def _check_earlier(self, kept, first, content):
        """The earlier comparison is still in place or, if a run of it had finished, kept in a directory of its own."""
        if content and self.file.exists() and self.file.read_bytes() == content:
            self.kept, self.first = kept, first
        elif kept and not self.happened("deleted"):
            kept = [file.read_bytes() for file in self.place.glob("*/earlier-*/results.json")]
            self.unless(content in kept, "earlier runs are lost")

    def _before_turn(self):
        """Every run that has ended is on disk before another goes on, or runs again alone; no process of it is left."""
        if self.happened(*SIGNALS):  # the program is ending, and this is a run that only the guard can end
            return
        ended = [training for training in self.trainings(self.session) if training.process.ended]
        if not self.file.exists():  # until the next run has ended
            self.unless(self.happened("moved", "deleted", "taken"), "results.json has vanished")
            return
        outcomes = json.loads(self.file.read_bytes())["outcomes"] if ended else ()
        on_disk = {(run["configuration"], run["block"]) for run in outcomes}
        for training in ended:
            left = [each for each in self.machine.alive() if each.environment is training.process.environment]
            self.unless(not left, f"{training} left {len(left)} processes")
            again = OUT_OF_MEMORY in self.statuses_of(training)
            self.unless(again or (training.row, training.block) in on_disk, f"not on disk: {training}")


def check_end(play: Play, report: Report | None, code: int, text: str, err: str) -> None:
    """A session's exit code, its errors, and what it shows of an interrupted comparison are as documented."""
    sent = [128 + getattr(signal, name) for name in SIGNALS if play.happened(name)]
    fatal, taken = play.happened("disk full", "helper killed"), play.happened("taken")
    complete = bool(report and not report.left) or not (sent or fatal)  # a signal may come too late
    allowed = {*sent, *([FAILED] if fatal else ()), *([USAGE] if taken else ()), *((0, FAILED) if complete else ())}
    play.unless(code in allowed, f"exit code {code}, not {allowed}")
    lines = [line for line in err.splitlines() if not line.startswith(("warning: ", "Interrupted"))]
    play.unless(
        not lines
        or (len(lines) == 1 and lines[0].startswith("error: ") and "unexpected" not in lines[0] and (fatal or taken)),
        f"on stderr: {err}",
    )
    if len(play.machine.happened) == 1 and sent and report and report.left and play.trainings(play.session):
        play.unless("with --resume to continue" in err, f"no advice: {err}")
        play.unless(not report.outcomes or "INCOMPLETE: interrupted after" in text, f"not shown: {text}")
        play.unless(report.outcomes or "there is nothing to show" in err, f"nothing to show: {err}")


def check_runs(play: Play, report: Report) -> None:
    """No finished block is lost, changed or counted twice, and each run has the outcome that the machine knows."""
    runs = {(run.block, run.configuration): run for run in report.outcomes}
    play.unless(len(runs) == len(report.outcomes), "a run is counted twice")
    for key, run in play.kept.items():
        play.unless(runs.get(key) == run, f"lost or changed: {key}")
    finished = {key: run for key, run in runs.items() if run.status in KEPT}
    begun = {block for block, name in report.order if (block, name) not in finished}  # --resume repeats these blocks
    play.kept = {key: run for key, run in finished.items() if key[0] not in begun or run.status == OUT_OF_MEMORY}
    last = {(training.block, training.row): training for training in play.trainings()}
    for key, run in runs.items():
        check_outcome(play, run, last[key])


def check_outcome(play: Play, run: Outcome, training: Training) -> None:
    """A run has the status and the times that the machine knows."""
    fate, paused = training.fate, play.machine.paused
    typed = re.search(r"--timeout (\d+)", play.schedule.flags)
    limit = float(typed[1]) if typed else math.inf
    own = STARTUP + (2 if training.is_script else sum(map(fate.seconds_of, range(1, len(fate.seconds) + 1))))
    expected = play.statuses_of(training)
    if play.happened("moved", "deleted") and fate.what != "ok":
        expected |= {"failed"}  # without the log, whose last line has the cause
    if own > limit - 1 - 2 * paused:
        expected = {"timed out"} if own > limit + 2 * LOOK_EVERY else {"timed out", *expected}
    play.unless(run.status in expected, f"{run.status}, not {expected}: {training}")
    if run.status == "timed out":
        fine = limit <= run.wall_seconds <= limit + 2 * LOOK_EVERY + GRACE + 2 * paused
        play.unless(fine, f"stopped after {run.wall_seconds} s: {training}")
    if run.status == "ok":
        times = [epoch.train_seconds / (epoch.steps if training.is_script else 1) for epoch in run.result.epochs]
        true = (1 + SLICES) * [fate.step_seconds] if training.is_script else fate.seconds
        fine = len(times) == len(true) and all(map(math.isclose, times, true))
        play.unless(fine, f"times {times}: {training}")
        check_foreign(play, run, training)


def check_foreign(play: Play, run: Outcome, training: Training) -> None:
    """What other programs used is counted in a run's turns, and neither before nor after."""
    cores, loads, (used, stolen) = play.schedule.cores, play.schedule.loads, training.process.foreign.values()
    late = 1.01 * LOOK_EVERY + GRACE * (training.fate.stubborn and training.is_script)  # until its end is seen
    late += 0.02 * training.fate.leaves  # and until the process that it left has ended
    paused = 2.2 * play.machine.paused  # counts as if others had all cores
    for what, seen, least, most in (
        ("took", run.stolen, stolen, (late + paused) * len(loads)),
        ("used", run.foreign_cores, used + stolen, (late + paused) * cores * len(loads) + paused * cores),
    ):
        fine = least - 1e-6 <= seen * run.wall_seconds <= least + most + 1e-6
        play.unless(fine, f"others {what} {seen * run.wall_seconds} CPU seconds, not {least}: {training}")


def check_order(play: Play, report: Report) -> None:
    """Each block permutes its rows as the seed says, and runs started and took turns in this order."""
    able = [row.name for row in report.plan if not row.skip]
    blocks = {block: [name for number, name in report.order if number == block] for block, _ in report.order}
    for block, names in blocks.items():
        shuffle, own = random.Random(report.settings["seed"]), [name for name in able if name in names]
        orders = [shuffle.sample(own, len(own)) for _ in range(block)]
        play.unless(names == orders[-1], f"block {block}: {names}")
        play.unless(block > report.wanted_blocks or len(names) == len(able), f"block {block} lacks rows")
    here, last = play.trainings(play.session), 0
    for block in dict.fromkeys(training.block for training in here):
        first = {training.row: training for training in reversed(here) if training.block == block}
        started = list(dict.fromkeys(training.row for training in here if training.block == block))
        play.unless(started == [name for name in blocks[block] if name in started], f"started: {started}")
        play.unless(block > last, "blocks overlap")
        seed, last = report.settings["seed"] + block - 1, block
        seeds = {training.seed for training in first.values()}
        play.unless(seeds <= {seed, None}, f"not seed {seed} in block {block}")
        if report.in_turns and (not play.happened(*SIGNALS, "disk full", "taken") or block < here[-1].block):
            check_turns(play, [first[name] for name in started], seed)


def check_turns(play: Play, started: list[Training], seed: int) -> None:
    """The rows of a complete block took turns in rounds, each shuffled from the seed."""
    taken = [row for training in play.machine.turns for row in started if row is training]
    left, shuffle, rounds = Counter(training.row for training in taken), random.Random(seed), []
    while waiting := [training for training in started if left[training.row]]:
        started = shuffle.sample(waiting, len(waiting))
        left.subtract(training.row for training in started)
        rounds += started
    play.unless(taken == rounds, f"turns: {[training.row for training in taken]}")


def check_complete(play: Play, report: Report | None, code: int, text: str) -> None:
    """The last session completes the comparison, and claims nothing that was disturbed."""
    if not report or report.left:
        play.found.append(f"incomplete: {report and report.left}")
        return
    statuses = {run.status for run in report.outcomes}
    play.seen += [run.status for run in report.outcomes]
    play.seen += ["a script" for row in report.plan if row.is_script]
    play.seen += ["skipped" for row in report.plan if row.skip] + ["set aside" for _ in report.set_aside]
    failed = bool(statuses - {*KEPT}) or statuses == {OUT_OF_MEMORY}
    play.unless(code == (FAILED if failed else 0), f"exit code {code} although {statuses}")
    play.unless("INCOMPLETE" not in text, "called incomplete")
    tried, here = (Counter((run.block, run.row) for run in play.trainings(since)) for since in (None, play.session))
    for run in report.outcomes:
        key = (run.block, run.configuration)
        play.unless(run.status in KEPT or here[key], f"not run again: {key}")
        alone = run.status != OUT_OF_MEMORY or not report.in_turns or tried[key] > 1
        play.unless(alone, f"not run alone: {key}")
    check_number_of_blocks(play, report)
    check_claims(play, report, text)


def check_number_of_blocks(play: Play, report: Report) -> None:
    """Enough blocks ran, no more than two in place of disturbed ones, and no other beyond the budget."""
    blocks, wanted, budget = report.whole_blocks, report.wanted_blocks, report.settings["budget"]
    play.unless(len(blocks) >= wanted, f"only {blocks}")
    calm = [block for block in blocks if block not in report.disturbed_blocks]
    play.unless(len(calm) >= wanted or len(blocks) >= wanted + 2, f"disturbed and not repeated: {blocks}")
    if not report.settings["margin"] and budget is None:
        play.unless(len(blocks) <= wanted + 2, f"too many: {blocks}")
    for block in blocks[wanted:] if budget and not play.schedule.trouble else ():
        earlier = [run for run in report.outcomes if run.block < block]
        calm = [each for each in range(1, block) if each not in report.disturbed_blocks]
        replaces = len(calm) < wanted and block <= wanted + 2
        least = {
            name: min(run.wall_seconds for run in earlier if run.configuration == name) for _, name in report.order
        }
        needed = sum(least[name] for number, name in report.order if number == block)
        used = sum(run.wall_seconds for run in earlier)
        play.unless(replaces or used + 0.5 * needed <= budget, f"block {block} began after {used} of {budget} s")


def check_claims(play: Play, report: Report, text: str) -> None:
    """Other programs' loads are noticed, and nothing is claimed from the blocks that they disturbed."""
    cores, disturbed, trainings = play.schedule.cores, {}, {(run.block, run.row): run for run in play.trainings()}
    for run in report.outcomes:
        foreign = sum(trainings[run.block, run.configuration].process.foreign.values()) / run.wall_seconds
        if run.status == "ok" and foreign > 0.1 * cores:
            disturbed.setdefault(run.block, set()).add(run.configuration)
    found = {*report.disturbed_blocks}
    play.unless({*disturbed} <= found, f"disturbed: {disturbed}, and not only {found}")
    play.unless(play.schedule.loads or play.machine.paused or not found, f"not disturbed: {found}")
    analysis = analyse(report)
    names = {name for block, names in disturbed.items() if block not in report.set_aside for name in names}
    for entry in analysis.rows:
        involved = {entry.name, *([entry.standing.baseline.configuration.name] if entry.standing.baseline else ())}
        claimed = {FASTER, SLOWER} & {*entry.result.split("; ")}
        play.unless(not (claimed and involved & names), f"claimed: {entry.name} {entry.result}, {names}")
    timed = names - {"dp"}  # which is simulated
    play.unless(not timed or "Recommendation: use" not in text, f"recommended although disturbed: {timed}")
    if report.set_aside:
        slower = [
            replace(run, wall_seconds=9 * run.wall_seconds, result=each_epoch(run.result, train_seconds=9.0))
            if run.block in report.set_aside and run.result
            else run
            for run in report.outcomes
        ]
        changed = analyse(replace(report, outcomes=tuple(slower)))
        play.unless(claims(changed) == claims(analysis), "a block that was set aside counts")


def claims(analysis: Analysis) -> list:
    """Return all that is claimed about speed."""
    rows = [(entry.name, entry.result, entry.standing.speed_up) for entry in analysis.rows]
    return [*rows, *((one.kind, one.best and one.best.name, [*one.ratios.items()]) for one in analysis.decisions)]


def play(seed: int, directory: Path) -> Play:
    """Play the schedule of a seed in a new directory, and delete that."""
    played = Play(draw(seed), directory / "play")
    try:
        played.go_through()
    except Exception:
        played.found.append(traceback.format_exc())
    finally:
        shutil.rmtree(directory / "play")
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=positive_int, metavar="N", help="how many (without end)")
    parser.add_argument("--seed", type=non_negative_int, default=1, metavar="N", help="the first one's (%(default)s)")
    arguments = parser.parse_args()
    gc.freeze()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    start, findings, seen = real_seconds(), 0, Counter()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        for seed in itertools.islice(itertools.count(arguments.seed), arguments.schedules):
            if findings == MOST:
                break
            one = play(seed, Path(directory))
            seen.update(["schedules", *one.seen])
            if seen["schedules"] % PROGRESS == 0:
                print(f"{seen['schedules']} schedules, {findings} findings", flush=True)
            if one.found or arguments.schedules == 1:
                texts = [text.replace(directory, "") for _, *ended in one.shown for text in ended]
                print(one.schedule, *one.machine.log, *texts, sep="\n")
            if one.found:
                findings += 1
                what = "; ".join(one.found).replace(directory, "")
                print(f"FINDING: {what}; again: python tests/simulate.py --seed {seed} --schedules 1", flush=True)
    print(", ".join(f"{name}: {number}" for name, number in sorted(seen.items())))
    seconds = real_seconds() - start
    print(f"{findings} findings, {seconds:.0f} s, {seen['schedules'] / seconds:.1f} schedules per second")
    if findings or "torch" in sys.modules:
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
