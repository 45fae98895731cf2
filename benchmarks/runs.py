"""How every benchmark measures, and the only place that writes what it found.

A run is on disk as soon as it is over, as a line of a file beside --output, and is stopped with all its processes after
--timeout seconds. The same command goes on where an earlier one was stopped, by --minutes or by anything else: on the
same machine, with the same packages, flags and code. Everything else has a file of its own, so nothing is ever mixed.
The file is deleted once nothing is left to measure.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import PROJECT

from common.errors import FAILED, SuiteError
from common.files.writing import write_json
from common.machine.environment import describe_environment
from common.machine.lifetime import TAG, guard, kill_tagged, own_tag
from common.settings.arguments import OneLineParser, positive_float, positive_int
from common.words import count
from comparison.run.turns import busy_seconds, own_seconds

FEWEST = 2  # blocks, without which there is no interval
ANY_RUN = ("output", "minutes", "timeout", "anew", "debug")  # flags that change no run
SOURCES = ("*.py", "benchmarks/**/*.py", "common/**/*.py", "comparison/**/*.py")


class TimeLimitError(SuiteError):
    """A run took too long."""


def arguments_of(
    description: str, blocks: int | None = None, more=lambda parser: None, timeout: float = 300.0, output: str = ""
) -> argparse.Namespace:
    """Parse the flags that every benchmark has, and those that more(parser) adds.

    blocks: how often each rival is measured, unless --blocks says otherwise; None if there are no rivals.
    """
    parser = OneLineParser(description=description)
    if blocks:
        parser.add_argument("--blocks", type=positive_int, default=blocks, metavar="N", help="(%(default)s)")
    help = "then begin no run; the same command goes on (%(default)g)"
    parser.add_argument("--minutes", type=positive_float, default=8.0, metavar="N", help=help)
    help = "of a run, which is then stopped (%(default)g)"
    parser.add_argument("--timeout", type=positive_float, default=timeout, metavar="S", help=help)
    parser.add_argument("--anew", action="store_true", help="forget the runs of an earlier call")
    parser.add_argument("--data-root", default="./data", metavar="DIR", help="(%(default)s)")
    output = output or f"figures/benchmark/{Path(sys.argv[0]).stem}.json"
    parser.add_argument("--output", default=output, metavar="FILE", help="(%(default)s)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    more(parser)
    return parser.parse_args()


@contextlib.contextmanager
def limited(seconds: float, name: str) -> Iterator[None]:
    """Raise TimeLimitError in the `with` after so many seconds; however it fails, kill what was started in it."""

    def expire(*_):
        raise TimeLimitError(f"{name} timed out", f"after {seconds:g} s", "type --timeout S to give it longer", FAILED)

    guard()
    tag, before = own_tag(uuid.uuid4().hex), signal.signal(signal.SIGALRM, expire)
    os.environ[TAG] = tag
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException:
        kill_tagged(tag)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.environ.pop(TAG, None)


def code() -> str:
    """Return a checksum of the project's code."""
    files = sorted(file for place in SOURCES for file in PROJECT.glob(place))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def machine_line(environment: dict) -> str:
    """Return the machine as it stands under every table."""
    machine = [*environment["gpus"], f"{environment['cores']} cores of {environment['cpu']}"]
    return f"{', '.join(machine)}, torch {environment['torch']}"


class Runs:
    """The runs of one benchmark: those that are on disk, and those that are still to be made.

    A run is called by a key, and returns something that JSON can hold, or a dataclass, or None if it does not count.
    left: how many runs are still to be made. block: the number of the block that is being measured, from 1.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments, self.output, self.environment = arguments, Path(arguments.output), describe_environment()
        flags = {name: value for name, value in vars(arguments).items() if name not in ANY_RUN}
        about = json.dumps([flags, self.environment, code()], sort_keys=True, default=str)
        self.file = self.output.with_suffix(f".{hashlib.sha256(about.encode()).hexdigest()[:8]}.jsonl")
        self.end, self.rank, self.gather = time.monotonic() + 60 * arguments.minutes, 0, None
        self.left = self.block = 0
        self.output.parent.mkdir(parents=True, exist_ok=True)
        if arguments.anew:
            self.file.unlink(missing_ok=True)
        self.lines = self._on_disk()
        if self.lines:
            print(f"goes on after {count(len(self.lines), 'run')} in {self.file}; --anew forgets them", flush=True)

    def as_rank(self, rank: int, gather: Callable[[Any], list]) -> None:
        """Measure as one of several ranks: rank 0 writes, and all end together. gather: returns every rank's value."""
        self.rank, self.gather = rank, gather

    def _on_disk(self) -> dict[str, dict]:
        """Return the runs on disk, without a line that is torn, and without runs that now have longer."""
        lines = {}
        for text in self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                lines[line.pop("key")] = line
        return {key: line for key, line in lines.items() if line.get("timed_out", 1e9) >= self.arguments.timeout}

    def keep(self, key: str, **line) -> None:
        """Put a line on disk at once; a later one of the same key counts instead."""
        text = json.dumps({"key": key, **line}, default=asdict)
        self.lines[key] = json.loads(text)
        if self.rank == 0:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"\n{text}")  # on a line of its own, even after one that is torn
                file.flush()
                os.fsync(file.fileno())

    @property
    def timed_out(self) -> list[str]:
        """The keys of the runs that took too long."""
        return [key for key, line in self.lines.items() if "timed_out" in line]

    @property
    def foreign_cores(self) -> float | None:
        """How many cores other programs kept busy during all runs; None if not known."""
        timed = [line for line in self.lines.values() if "seconds" in line]
        if not timed or any(line["foreign_seconds"] is None for line in timed):
            return None
        return max(0.0, sum(line["foreign_seconds"] for line in timed) / sum(line["seconds"] for line in timed))

    def _measure(self, key: str, work: Callable) -> None:
        start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        try:
            with limited(self.arguments.timeout, key):
                value = work()
        except TimeLimitError:
            if self.gather:
                raise
            print(f"{key}: timed out after {self.arguments.timeout:g} s", flush=True)
            self.keep(key, timed_out=self.arguments.timeout)
            return
        seconds = time.monotonic() - start
        if value is None:
            print(f"{key}: disturbed by another program, does not count", flush=True)
            return
        foreign = None if busy is None else busy_seconds() - busy - (own_seconds() - own)
        self.keep(key, value=value, seconds=seconds, foreign_seconds=foreign)
        if seconds > 5 and self.rank == 0:
            print(f"{key}: {seconds:.0f} s", flush=True)

    def _time_for(self, seconds: float) -> bool:
        in_time = time.monotonic() + seconds < self.end
        return all(self.gather(in_time)) if self.gather else in_time

    def _seconds(self, keys) -> float:
        return sum(self.lines.get(key, {}).get("seconds", 0.0) for key in keys)

    def each(self, cases: dict[str, Callable]) -> dict[str, Any]:
        """Make those runs that were not made, one at least, while --minutes lasts; return the values of all by key."""
        known = self.lines.keys() & cases.keys()
        longest, wanted = max(map(self._seconds, zip(known)), default=0.0), [key for key in cases if key not in known]
        for key in wanted:
            if key is not wanted[0] and not self._time_for(longest):
                break
            self._measure(key, cases[key])
            longest = max(longest, self._seconds([key]))
        self.left += sum(key not in self.lines for key in cases)
        return {key: self.lines[key]["value"] for key in cases if "value" in self.lines.get(key, {})}

    def interleave(self, rivals: dict, name: str = "", warm_up: bool = True) -> dict[Any, list]:
        """Call every rival once per block, in shuffled order; return what each returned (seconds, mostly).

        warm_up: one more block before the first does not count. Whatever drifts with time hits all alike; compare by
        paired(). No block but the first FEWEST begins that would outlast --minutes; one that was interrupted is
        measured anew. A rival that times out is left out of all blocks.
        """
        shuffle, blocks, longest = random.Random(0), self.arguments.blocks, 0.0
        keys = {rival: [f"{name}{rival}, block {block}" for block in range(blocks + 1)] for rival in rivals}
        for self.block in range(1, blocks + 1):
            block, order = self.block, shuffle.sample([*rivals], len(rivals))
            if any(keys[rival][block] not in self.lines for rival in self._in_time(keys)):
                if block > FEWEST and not self._time_for(longest):
                    self.left += (blocks - block + 1) * len(rivals)
                    blocks = block - 1
                    break
                for number in ([0] if warm_up else []) + [block]:
                    for rival in order:
                        if rival in self._in_time(keys):
                            self._measure(keys[rival][number], rivals[rival])
                warm_up = False
            longest = max(longest, self._seconds(keys[rival][block] for rival in rivals))
        return {
            rival: [self.lines[key]["value"] for key in keys[rival][1 : blocks + 1]] for rival in self._in_time(keys)
        }

    def _in_time(self, keys: dict[Any, list[str]]) -> list:
        """Return the rivals of which no run has timed out."""
        return [rival for rival, own in keys.items() if not {*own} & {*self.timed_out}]


def benchmark(
    arguments: argparse.Namespace, measure: Callable[[Runs], dict], table: Callable[[dict], str] | None = None
) -> dict:
    """Write to --output what measure(runs) returns, beside the command and the machine; print its table; return it.

    Raises SuiteError (FAILED) if a run timed out.
    """
    runs = Runs(arguments)
    try:
        measured = measure(runs)
        text = table(measured) if table else ""
    except (LookupError, ValueError, ArithmeticError):
        if not runs.left and not runs.timed_out:
            raise
        found = f"{runs.left} runs left, timed out: {', '.join(runs.timed_out) or 'none'}"
        raise SuiteError("too few runs for a table", found, "the same command goes on", FAILED) from None
    _write(runs, measured)
    print(*filter(None, [text, machine_line(runs.environment)]), sep="\n\n")
    if runs.left:
        print(f"{count(runs.left, 'run')} left after {arguments.minutes:g} minutes: the same command goes on")
    else:
        runs.file.unlink(missing_ok=True)
    if runs.timed_out:
        what, found = f"timed out: {', '.join(runs.timed_out)}", f"{arguments.output} has the others"
        raise SuiteError(what, found, "type --timeout S to give them longer", FAILED)
    return measured


def _write(runs: Runs, measured: dict) -> None:
    cores, foreign = runs.environment["cores"], runs.foreign_cores
    if foreign is not None and foreign > 0.1 * cores:
        print(f"warning: other programs kept {foreign:.1f} of {cores} cores busy: type --anew", file=sys.stderr)
    typed = [text for text in sys.argv[1:] if text != "--anew"]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *typed])
    about = {"command": command, "environment": runs.environment, "foreign_cores": foreign}
    write_json({**about, "left": runs.left, "timed_out": runs.timed_out, **measured}, runs.output)
