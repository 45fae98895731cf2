"""Runs the measurements of every benchmark, saves each one at once, and writes the results.

A finished run is a line in a file next to --output. A run that takes longer than --timeout is stopped with all its
processes. The same command resumes after --minutes or an interruption, on the same machine with the same packages,
flags and code; anything else gets a file of its own. The file is deleted once nothing is left to measure.
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
from collections.abc import Callable, Iterable, Iterator
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

MIN_BLOCKS = 2  # an interval needs two
IRRELEVANT_FLAGS = ("output", "minutes", "timeout", "anew", "debug")  # they do not affect a run
SOURCES = ("*.py", "benchmarks/**/*.py", "common/**/*.py", "comparison/**/*.py")


class TimeLimitError(SuiteError):
    """A run took longer than --timeout."""


def benchmark_parser(
    description: str, blocks: int | None = None, timeout: float = 300.0, output: str = ""
) -> OneLineParser:
    """Return a parser with the flags of every benchmark. blocks: default of --blocks; None leaves the flag out."""
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
    return parser


@contextlib.contextmanager
def time_limit(seconds: float, name: str) -> Iterator[None]:
    """Raise TimeLimitError in the `with` block after `seconds`. On any error, kill the processes started in it."""

    def expire(*_):
        raise TimeLimitError(f"{name} timed out", f"after {seconds:g} s", "type --timeout S to give it longer", FAILED)

    guard()
    tag, previous = own_tag(uuid.uuid4().hex), signal.signal(signal.SIGALRM, expire)
    os.environ[TAG] = tag
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException:
        kill_tagged(tag)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        os.environ.pop(TAG, None)


def code_checksum() -> str:
    files = sorted(file for pattern in SOURCES for file in PROJECT.glob(pattern))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def machine_line(environment: dict) -> str:
    """Return the machine and torch version as shown under every table."""
    machine = [*environment["gpus"], f"{environment['cores']} cores of {environment['cpu']}"]
    return f"{', '.join(machine)}, torch {environment['torch']}"


class Runs:
    """The saved and the remaining runs of one benchmark.

    Each run has a key and returns a JSON value, a dataclass, or None if it was disturbed and does not count.
    left: number of remaining runs. block: number of the block that is being measured, from 1.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments, self.output, self.environment = arguments, Path(arguments.output), describe_environment()
        flags = {name: value for name, value in vars(arguments).items() if name not in IRRELEVANT_FLAGS}
        about = json.dumps([flags, self.environment, code_checksum()], sort_keys=True, default=str)
        self.file = self.output.with_suffix(f".{hashlib.sha256(about.encode()).hexdigest()[:8]}.jsonl")
        self.deadline = time.monotonic() + 60 * arguments.minutes
        self.rank, self.gather = 0, None
        self.left = self.block = 0
        self.output.parent.mkdir(parents=True, exist_ok=True)
        if arguments.anew:
            self.file.unlink(missing_ok=True)
        self.lines = self._read()
        if self.lines:
            print(f"goes on after {count(len(self.lines), 'run')} in {self.file}; --anew forgets them", flush=True)

    def as_rank(self, rank: int, gather: Callable[[Any], list]) -> None:
        """Measure as one of several ranks. Only rank 0 writes. gather(value) returns the values of all ranks."""
        self.rank, self.gather = rank, gather

    def _read(self) -> dict[str, dict]:
        """Return the saved runs, without incomplete lines and timeouts shorter than the current one."""
        lines = {}
        for text in self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                lines[line.pop("key")] = line
        return {key: line for key, line in lines.items() if line.get("timed_out", 1e9) >= self.arguments.timeout}

    def save(self, key: str, **line) -> None:
        """Append a run to the file. It replaces an earlier one with the same key."""
        text = json.dumps({"key": key, **line}, default=asdict)
        self.lines[key] = json.loads(text)
        if self.rank == 0:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"\n{text}")  # the newline comes first, in case the last line is incomplete
                file.flush()
                os.fsync(file.fileno())

    @property
    def timed_out(self) -> list[str]:
        """The keys of the runs that timed out."""
        return [key for key, line in self.lines.items() if "timed_out" in line]

    @property
    def foreign_cores(self) -> float | None:
        """The mean number of cores that other programs used during the runs, or None if unknown."""
        timed = [line for line in self.lines.values() if "seconds" in line]
        if not timed or any(line["foreign_seconds"] is None for line in timed):
            return None
        return max(0.0, sum(line["foreign_seconds"] for line in timed) / sum(line["seconds"] for line in timed))

    def _measure(self, key: str, work: Callable) -> None:
        start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        try:
            with time_limit(self.arguments.timeout, key):
                value = work()
        except TimeLimitError:
            if self.gather:
                raise
            print(f"{key}: timed out after {self.arguments.timeout:g} s", flush=True)
            self.save(key, timed_out=self.arguments.timeout)
            return
        seconds = time.monotonic() - start
        if value is None:
            print(f"{key}: disturbed by another program, does not count", flush=True)
            return
        foreign = None if busy is None else busy_seconds() - busy - (own_seconds() - own)
        self.save(key, value=value, seconds=seconds, foreign_seconds=foreign)
        if seconds > 5 and self.rank == 0:
            print(f"{key}: {seconds:.0f} s", flush=True)

    def _has_time_for(self, seconds: float) -> bool:
        in_time = time.monotonic() + seconds < self.deadline
        return all(self.gather(in_time)) if self.gather else in_time

    def _seconds(self, keys: Iterable[str]) -> float:
        return sum(self.lines.get(key, {}).get("seconds", 0.0) for key in keys)

    def each(self, cases: dict[str, Callable]) -> dict[str, Any]:
        """Make the missing runs, at least one, until --minutes are over. Return the values of all runs by key."""
        missing = [key for key in cases if key not in self.lines]
        longest = max((self._seconds([key]) for key in cases), default=0.0)
        for key in missing:
            if key is not missing[0] and not self._has_time_for(longest):
                break
            self._measure(key, cases[key])
            longest = max(longest, self._seconds([key]))
        self.left += sum(key not in self.lines for key in cases)
        return {key: self.lines[key]["value"] for key in cases if "value" in self.lines.get(key, {})}

    def interleave(self, rivals: dict, name: str = "", warm_up: bool = True) -> dict[Any, list]:
        """Call each rival once per block, in shuffled order. Return the values of each, usually seconds.

        Drift affects all rivals of a block alike, so compare them with paired(). warm_up: run one extra block first and
        discard it. After MIN_BLOCKS, no block begins that would outlast --minutes. An interrupted block is repeated. A
        rival that times out is left out of all blocks.
        """
        shuffle, blocks, longest = random.Random(0), self.arguments.blocks, 0.0
        keys = {rival: [f"{name}{rival}, block {block}" for block in range(blocks + 1)] for rival in rivals}
        for block in range(1, blocks + 1):
            self.block, order = block, shuffle.sample([*rivals], len(rivals))
            if any(keys[rival][block] not in self.lines for rival in self._without_timeouts(keys)):
                if block > MIN_BLOCKS and not self._has_time_for(longest):
                    self.left += (blocks - block + 1) * len(rivals)
                    blocks = block - 1
                    break
                for number in [0, block] if warm_up else [block]:
                    for rival in order:
                        if rival in self._without_timeouts(keys):
                            self._measure(keys[rival][number], rivals[rival])
                warm_up = False
            longest = max(longest, self._seconds(keys[rival][block] for rival in rivals))
        return {
            rival: [self.lines[key]["value"] for key in keys[rival][1 : blocks + 1]]
            for rival in self._without_timeouts(keys)
        }

    def _without_timeouts(self, keys: dict[Any, list[str]]) -> list:
        return [rival for rival, own in keys.items() if not {*own} & {*self.timed_out}]


def benchmark(
    arguments: argparse.Namespace, measure: Callable[[Runs], dict], table: Callable[[dict], str] | None = None
) -> dict:
    """Run a benchmark: write the result of measure(runs), the command and the machine to --output; print its table.

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
    flags = [text for text in sys.argv[1:] if text != "--anew"]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *flags])
    about = {"command": command, "environment": runs.environment, "foreign_cores": foreign}
    write_json({**about, "left": runs.left, "timed_out": runs.timed_out, **measured}, runs.output)
