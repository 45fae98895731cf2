"""How often does `--prove` call a cause proved, for remedies that work and for remedies that do not?

    python benchmarks/proofs.py --scenarios 400 --output figures/benchmark/proofs.json

Nothing is trained. In each simulated scenario, DDP exceeds ideal scaling in one phase. The comparison finds it and
plans a proof, in which the remedy works, does nothing, or shortens another phase. Runs and phases are noisy, and blocks
drift.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from measure import ENVIRONMENT, SETTINGS, as_table, simulated_run
from runs import Runs, benchmark, benchmark_parser

from common.files.probe import Probe
from common.files.results import EpochRecord, PhaseTimes, RankTimes, RunResult
from common.machine.entry import run_script
from common.settings.arguments import positive_int
from comparison.judge.analysis import analyse
from comparison.judge.remedies import find_proofs, plan_proof
from comparison.outcomes import Outcome
from comparison.record import Report
from comparison.rows import Configuration, Planned

BATCH, STEPS, EPOCHS = 100, 100, 3
ALONE = {"data": 1.0, "transfer": 0.5, "forward": 12.0, "backward": 24.0, "exchange": 0.0, "update": 2.0}  # ms
KINDS = ("works", "does nothing", "shortens another phase")
OTHER = {"exchange": "backward", "forward": "backward", "backward": "forward", "data": "backward"}


@dataclass(frozen=True)
class Scenario:
    """DDP takes `more` milliseconds per step longer in `phase`. kind: effect of the remedy.

    run_noise, phase_noise: relative standard deviations of a run, and of each phase within it.
    """

    kind: str
    phase: str
    more: float
    blocks: int
    run_noise: float
    phase_noise: float


def draw(random: np.random.Generator, kind: str) -> Scenario:
    return Scenario(
        kind,
        phase=str(random.choice([*OTHER])),
        more=float(random.uniform(2, 12)),
        blocks=int(random.choice([3, 5, 8])),
        run_noise=float(random.choice([0.003, 0.01, 0.02])),
        phase_noise=float(random.choice([0.005, 0.01, 0.02])),
    )


def phases_of(scenario: Scenario, row: Configuration) -> dict[str, float]:
    """Return the true milliseconds of each phase of a row's step.

    In forward and backward, the extra time is a fixed cost per batch, on one device too; the remedy is a larger batch.
    """
    phase, more, batch = scenario.phase, scenario.more, row.planned.batch_size
    fixed = 2 * more if phase in ("forward", "backward") else 0.0  # ideal scaling halves it
    if row.method == "single":
        return {**ALONE, phase: ALONE[phase] + fixed}
    works = row.role == "remedy" and scenario.kind == "works"
    even = {name: value / 2 for name, value in ALONE.items()}
    own = {**even, phase: even[phase] + (fixed or more)}
    if works and not fixed:
        own[phase] = 0.0
    elif row.role == "remedy" and scenario.kind == "shortens another phase":
        other = OTHER[phase]
        own[other] = max(0.1, own[other] - more)
    if row.role == "remedy" and fixed:  # twice the batch: everything but the fixed cost takes twice as long
        doubled = {name: 2 * value for name, value in own.items()}
        return {**doubled, phase: 2 * even[phase] + fixed} if works else doubled
    return {name: value * batch / BATCH for name, value in own.items()}


def run_all(report: Report, scenario: Scenario, random: np.random.Generator) -> Report:
    """Return the report with all planned runs simulated."""
    drift = np.exp(np.cumsum(random.normal(0, 0.02, report.wanted_blocks)))
    plan = {row.name: row for row in report.plan}
    outcomes = []
    for block, name in report.order:
        row, factor = plan[name], drift[block - 1] * math.exp(random.normal(0, scenario.run_noise))
        phases = {
            key: factor * value * math.exp(random.normal(0, scenario.phase_noise))
            for key, value in phases_of(scenario, row).items()
        }
        result = _result(row, phases, 2 if "--batch-size" in row.command else 1)
        outcomes.append(Outcome(name, block, "ok", "", "simulated", "", 0, 1.0, 0.0, result))
    return replace(report, outcomes=tuple(outcomes))


def _result(row: Configuration, phases: dict[str, float], batches: int) -> RunResult:
    seconds = STEPS * sum(phases.values()) / 1000
    times = PhaseTimes(**phases)
    kept = (RankTimes(seconds, times, 0.9 * seconds, 0.0),) * (1 if row.method == "single" else 2)
    fixed = (0.1, STEPS * BATCH * batches, STEPS, 0.1, 0.1, 0.95, times, kept)
    epochs = tuple(EpochRecord(number, seconds, *fixed) for number in range(1, EPOCHS + 1))
    return simulated_run(row.method, BATCH * batches, epochs, config={"loader": "workers"})


def outcome_of(kind: str, seed: int) -> str:
    """Return the outcome of a proof, or "no remedy" if the comparison names no cause that has one."""
    random = np.random.default_rng((seed, KINDS.index(kind)))
    scenario = draw(random, kind)
    names = {"single": ("single", BATCH), "ddp": ("ddp", BATCH // 2)}
    plan = tuple(
        Configuration(name, method, name, {}, Planned("lenet", BATCH, 0, "cpu", 1, batch), ())
        for name, (method, batch) in names.items()
    )
    settings = {**SETTINGS, "repeats": scenario.blocks, "epochs": EPOCHS, "loader": "workers", "batch_size": [BATCH]}
    order = tuple((block, row.name) for block in range(1, scenario.blocks + 1) for row in plan)
    report = Report("simulated", settings, ENVIRONMENT, Probe(1000, 100, 1.0, (), (), ()), plan, order)
    analysis = analyse(run_all(report, scenario, random))
    planned = plan_proof(analysis)
    proofs = find_proofs(analysis, run_all(planned, scenario, random)) if planned else []
    return next((proof.outcome for proof in proofs if proof.remedy.row.method == "ddp"), "no remedy")


def table(results: dict) -> str:
    lines = []
    for kind, outcomes in results["outcomes"].items():
        tried = sum(count for name, count in outcomes.items() if name != "no remedy")
        others = [f"{name} {count}" for name, count in sorted(outcomes.items()) if name not in ("proved", "no remedy")]
        proved = outcomes.get("proved", 0)
        lines.append((kind, tried, f"{proved} ({proved / max(1, tried):.1%})", ", ".join(others) or "–"))
    return as_table("The remedy … | Proofs | Proved | Otherwise", lines, (0, 3))


def measured(runs: Runs) -> dict:
    """Count the outcomes of each kind of remedy."""
    seeds = range(runs.arguments.scenarios)
    keys = {(kind, seed): f"{kind}, seed {seed}" for seed in seeds for kind in KINDS}
    found = runs.each({key: partial(outcome_of, *case) for case, key in keys.items()})
    outcomes = {kind: Counter(found[keys[kind, seed]] for seed in seeds if keys[kind, seed] in found) for kind in KINDS}
    return {"scenarios": runs.arguments.scenarios, "outcomes": outcomes}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--scenarios", type=positive_int, default=400, metavar="N", help="(%(default)s)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
