"""Tips: short launches of the row to use with one option more each, then with those together that helped.

As with a script of the user's own, the observer times slices of steps, and all launches of a block take turns.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from common.files.probe import Probe
from common.machine.lifetime import temporary_directory
from comparison.judge.analysis import WORTH, Analysis, best_tip, find_tips
from comparison.plan.plan import with_cut
from comparison.plan.tips import TRAINED, UNKNOWN, effect_of, options_for, that_go_together, with_options
from comparison.record import Report, Settings
from comparison.results_file import write_results
from comparison.rows import Configuration, Outcome, Row
from comparison.run.scripts import SLICES, ScriptRun, Slices
from comparison.run.turns import ROOM, Run, gpu_need, run_once, run_whole, take_turns, why_not_in_turns

LONGEST, SHARE = 60.0, 1 / 3  # seconds, and of the time of the comparison, that tips may take
MOST_BLOCKS = 4
MOST_OF_A_LAUNCH = 1 / 4  # of the time, after which a launch is stopped, as torch.compile may take minutes
TIMED = Slices(warmup=2, steps=None, seconds=0.4)
WHOLE = "--epochs 100000 --max-steps 1000000 --no-curves --quiet".split()  # ended when all slices are measured


class Clock:
    """How many seconds are left."""

    def __init__(self, seconds: float):
        self.seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """May be below 0."""
        return self._end - time.monotonic()


def run_tips(analysis: Analysis, directory: Path) -> Report | None:
    """Return what options make of the row to use: see try_options(). None where there is no such row.

    Takes LONGEST seconds at most, and no more than a SHARE of the comparison's time.
    """
    row, outcomes = _row_to_use(analysis), analysis.report.outcomes
    seconds = min(LONGEST, SHARE * sum(outcome.wall_seconds for outcome in outcomes))
    return try_options(analysis.report, row, directory, seconds) if row else None


def try_options(report: Report, row: Row, directory: Path, seconds: float) -> Report | None:
    """Return a comparison of a row, which has run, with itself with options, written to `directory` block by block.

    None where the time is too short for two launches in each of two blocks, or no option is known.
    """
    clock, tried = Clock(seconds), _planned(report, row)
    launches = int(seconds / 2 / _seconds_of_launch(row))
    if launches < 2 or not tried.plan[1:]:
        return None
    print(f"Tips: what else makes “{row.label}” faster, for {seconds:.0f} s at most (--no-tips)", flush=True)
    late = [replace(option, skip="no time was left for it") for option in tried.plan[launches:]]
    tried = replace(tried, plan=(*tried.plan[:launches], *late))
    with temporary_directory() as compiled:
        rows = [*tried.plan[:launches]]
        while rows:
            tried = run_block(tried, rows, directory, clock, compiled)
            rows = _next_rows(tried, clock)
    return _trained(tried, row, directory, clock)


def _row_to_use(analysis: Analysis) -> Row | None:
    """The row that is recommended first, or the fastest of those that may be used."""
    decision = analysis.decisions[0]
    best = decision.best or (decision.rows[0] if decision.kind == "all cores" else None)
    own = best and not best.row.configuration.is_script and best.row.configuration.nodes == 1
    return best.row if best and own else None


def _seconds_of_launch(row: Row) -> float:
    """How long a launch of a row may take: its start-up, as it was, and all slices."""
    result = row.results[-1]
    step = result.epochs[-1].train_seconds / result.epochs[-1].steps
    return result.startup_seconds + TIMED.warmup * step + (1 + SLICES) * max(TIMED.seconds, step)


def _planned(report: Report, row: Row) -> Report:
    """The plain row and, one by one, its options, as a comparison of its own."""
    plain, cores = with_cut(row.configuration, report.probe), report.environment["cores"]
    options = [with_options(plain, (name,), cores) for name in options_for(plain, report)]
    none = dict.fromkeys(("budget", "margin", "against", "prove", "timeline", "predict", "tips", "repeats"))
    settings = cast(Settings, {**report.settings, **none, "check_maths": False, "project": []})
    return Report(report.command, settings, report.environment, report.probe, (plain, *options), ())


def run_block(tried: Report, rows: Sequence[Configuration], directory: Path, clock: Clock, compiled: str) -> Report:
    """Launch some rows once. compiled: a directory in which what torch.compile made is found again."""
    block, timeout = 1 + len(tried.whole_blocks), MOST_OF_A_LAUNCH * clock.seconds
    reached = [] if tried.settings["target_accuracy"] is None else ["--target-accuracy", "1"]
    before, after = ("env", f"TORCHINDUCTOR_CACHE_DIR={compiled}"), (*WHOLE, *reached, "--figure-dir", compiled)
    runs: list[Run] = [
        ScriptRun(
            replace(row, command=(*before, *row.command, *after)), block, directory, timeout, TIMED, tried.environment
        )
        for row in rows
    ]
    tried = replace(tried, plan=(*tried.plan, *(row for row in rows if row not in tried.plan)))
    for outcome in _outcomes(runs, tried.probe, block):
        tried = replace(
            tried, outcomes=(*tried.outcomes, outcome), order=(*tried.order, (block, outcome.configuration))
        )
    write_results(tried, directory)
    return tried


def _outcomes(runs: list[Run], probe: Probe | None, seed: int) -> Iterator[Outcome]:
    """Of launches in turns, or one after the other where they may not fit into memory together."""
    gpus = probe.memory[1:] if probe else ()
    full = any(len(runs) * ROOM * gpu_need(probe) > (gpu.free_bytes or 0) for gpu in gpus)
    if full or why_not_in_turns([run.configuration for run in runs], probe):
        return map(run_whole, random.Random(seed).sample(runs, len(runs)))
    return take_turns(runs, seed)


def _next_rows(tried: Report, clock: Clock) -> list[Configuration]:
    """The plain row, what was WORTH it, that together, and what of it fits into the time left; none if all is decided.

    The first to be left out is what was least worth it.
    """
    tips = [tip for tip in find_tips(tried) if tip.ratio and tip.ratio.value >= WORTH]
    blocks, plain = len(tried.whole_blocks), tried.plan[0]
    if blocks == MOST_BLOCKS or all(tip.ratio and tip.ratio.decided for tip in tips):
        return []
    single = [tip for tip in sorted(tips, key=lambda tip: -tip.speed) if len(tip.options) == 1]
    together = that_go_together([tip.options[0] for tip in single])
    both = [with_options(plain, together, tried.environment["cores"])] if len(together) > 1 else []
    fits = int(clock.left / statistics.fmean(run.wall_seconds for run in tried.outcomes if run.status == "ok"))
    rows = [plain, *both, *(tip.row.configuration for tip in single)][:fits]
    return rows if len(rows) > 1 else []


def _trained(tried: Report, row: Row, directory: Path, clock: Clock) -> Report:
    """With a whole training of the best, where it may learn something else, and there is time for it."""
    best = best_tip(find_tips(tried))
    seconds = statistics.fmean(outcome.wall_seconds for outcome in row.outcomes)
    if best and effect_of(best.options) == UNKNOWN and clock.left > seconds:
        whole = with_options(tried.plan[0], best.options, tried.environment["cores"], TRAINED)
        outcome = run_once(whole, 1, tried.settings["seed"], directory, clock.left)
        run = (outcome.block, outcome.configuration)
        tried = replace(
            tried, plan=(*tried.plan, whole), order=(*tried.order, run), outcomes=(*tried.outcomes, outcome)
        )
        write_results(tried, directory)
    return tried
