"""Tips: launch the recommended row briefly with one more option each, then with all options that helped.

As with a user's script, the observer times slices of steps, and the launches of a block take turns.
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
from comparison.outcomes import Outcome
from comparison.plan.plan import with_measured_cut
from comparison.plan.tips import OPTIONS, TRAINED, UNKNOWN, effect_of, options_for, that_go_together, with_options
from comparison.record import Report, Settings
from comparison.results_file import write_results
from comparison.rows import Configuration, Row
from comparison.run.equivalence import without_target
from comparison.run.fitting import gpu_need, why_not_in_turns
from comparison.run.scripts import SLICES, ScriptRun, Slices, known_steps
from comparison.run.turns import ROOM, Run, run_once, run_whole, take_turns

LONGEST, SHARE = 60.0, 1 / 3  # most seconds for tips, and most as a share of the comparison's time
MOST_BLOCKS = 4
MOST_OF_A_LAUNCH = 1 / 4  # share of the time after which a launch is stopped, as torch.compile may take minutes
WARM_UP, SLICE = 2, 0.4  # untimed steps, and seconds of a slice
WHOLE = "--epochs 100000 --max-steps 1000000 --no-curves --quiet".split()  # stopped when all slices are measured


def run_tips(analysis: Analysis, directory: Path) -> Report | None:
    """Compare the recommended row with itself plus options. Write the comparison to `directory` after every block.

    Takes at most LONGEST seconds and at most a SHARE of the comparison's time. Return None if there is no such row, no
    option applies, or the time is too short for two blocks of two launches.
    """
    report, row = analysis.report, _row_to_use(analysis)
    if not row:
        return None
    seconds = min(LONGEST, SHARE * sum(outcome.wall_seconds for outcome in report.outcomes))
    end, tried = time.monotonic() + seconds, _plan(report, row)
    launches = int(seconds / 2 / _seconds_of_launch(row))
    if launches < 2 or not tried.plan[1:]:
        return None
    print(f"Tips: what else makes “{row.label}” faster, for {seconds:.0f} s at most (--no-tips)", flush=True)
    late = [replace(option, skip="no time was left for it") for option in tried.plan[launches:]]
    tried = replace(tried, plan=(*tried.plan[:launches], *late))
    with temporary_directory() as compiled:
        rows = [*tried.plan[:launches]]
        while rows:
            tried = run_block(tried, rows, directory, MOST_OF_A_LAUNCH * seconds, compiled)
            rows = _next_rows(tried, end)
    return _trained(tried, row, directory, end)


def _row_to_use(analysis: Analysis) -> Row | None:
    """Return the recommended row, or the fastest eligible one if no row with all cores was timed."""
    decision = analysis.decisions[0]
    best = decision.best or (decision.eligible[0] if decision.kind == "all cores" else None)
    if not best or best.row.configuration.is_script or best.row.configuration.nodes > 1:
        return None
    return best.row


def _seconds_of_launch(row: Row) -> float:
    """Return the expected duration of a launch: start-up plus all slices."""
    result = row.results[-1]
    step = result.epochs[-1].train_seconds / result.epochs[-1].steps
    return result.startup_seconds + WARM_UP * step + (1 + SLICES) * max(SLICE, step)


def _plan(report: Report, row: Row) -> Report:
    """Return a comparison of the plain row with one row per option."""
    plain, cores = with_measured_cut(row.configuration, report.probe), report.environment["cores"]
    options = [with_options(plain, (name,), cores) for name in options_for(plain, report)]
    none = dict.fromkeys(("budget", "margin", "against", "prove", "timeline", "predict", "tips", "repeats"))
    settings = cast(Settings, {**report.settings, **none, "check_maths": False, "project": []})
    return Report(report.command, settings, report.environment, report.probe, (plain, *options), ())


def run_block(tried: Report, rows: Sequence[Configuration], directory: Path, timeout: float, compiled: str) -> Report:
    """Launch rows once, as another block. compiled: a directory for the cache of torch.compile."""
    block = 1 + len(tried.whole_blocks)
    before, after = ("env", f"TORCHINDUCTOR_CACHE_DIR={compiled}"), (*WHOLE, "--figure-dir", compiled)
    slices = Slices(WARM_UP, SLICE, known_steps(tried.outcomes))
    runs: list[Run] = [
        ScriptRun(row, block, directory, timeout, slices, tried.environment)
        for row in (replace(row, command=(*before, *without_target(row.command), *after)) for row in rows)
    ]
    tried = replace(tried, plan=(*tried.plan, *(row for row in rows if row not in tried.plan)))
    for outcome in _outcomes(runs, tried.probe, block):
        tried = _with_outcome(tried, outcome)
    write_results(tried, directory)
    return tried


def _outcomes(runs: list[Run], probe: Probe | None, seed: int) -> Iterator[Outcome]:
    """Launch in turns, or one after the other if the launches may not fit into memory together."""
    gpus = probe.memory[1:] if probe else ()
    full = any(len(runs) * ROOM * gpu_need(probe) > (gpu.free_bytes or 0) for gpu in gpus)
    if full or why_not_in_turns([run.configuration for run in runs], probe):
        return map(run_whole, random.Random(seed).sample(runs, len(runs)))
    return take_turns(runs, seed)


def _next_rows(tried: Report, end: float) -> list[Configuration]:
    """Return the rows of the next block: the plain row, all helpful options together, then each, the best first.

    Rows that do not fit into the time left are dropped from the end. Return none if every option is decided.
    """
    tips = [tip for tip in find_tips(tried) if tip.ratio and tip.ratio.value >= WORTH]
    blocks, plain = len(tried.whole_blocks), tried.plan[0]
    if blocks == MOST_BLOCKS or all(tip.ratio and tip.ratio.decided for tip in tips):
        return []
    single = [tip for tip in sorted(tips, key=lambda tip: -tip.speed) if len(tip.options) == 1]
    fastest = that_go_together([tip.options[0] for tip in single])
    names = tuple(name for name in OPTIONS if name in fastest)  # the same row in every block
    together = [with_options(plain, names, tried.environment["cores"])] if len(names) > 1 else []
    launch = statistics.fmean(run.wall_seconds for run in tried.outcomes if run.status == "ok")
    fits = int(max(0.0, end - time.monotonic()) / launch)
    rows = [plain, *together, *(tip.row.configuration for tip in single)][:fits]
    return rows if len(rows) > 1 else []


def _trained(tried: Report, row: Row, directory: Path, end: float) -> Report:
    """Add a complete training with the best options, if they may change the accuracy and there is time for it."""
    best, left = best_tip(find_tips(tried)), end - time.monotonic()
    seconds = statistics.fmean(outcome.wall_seconds for outcome in row.outcomes)
    if best and effect_of(best.options) == UNKNOWN and left > seconds:
        whole = with_options(tried.plan[0], best.options, tried.environment["cores"], TRAINED)
        outcome = run_once(whole, 1, tried.settings["seed"], directory, left)
        tried = _with_outcome(replace(tried, plan=(*tried.plan, whole)), outcome)
        write_results(tried, directory)
    return tried


def _with_outcome(tried: Report, outcome: Outcome) -> Report:
    order = (*tried.order, (outcome.block, outcome.configuration))
    return replace(tried, order=order, outcomes=(*tried.outcomes, outcome))
