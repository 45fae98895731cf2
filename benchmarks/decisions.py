"""How good are the recommendations of a comparison? Simulated scenarios with known true times.

    python benchmarks/decisions.py --scenarios 200 --output figures/benchmark/decisions.json

Nothing is trained. Each scenario draws rows with their true times, faults and accuracies, and from these the runs that
a comparison would see, with noise, drifting blocks, stalling epochs, failing runs and missing blocks. The regret is the
true time of the recommended row divided by that of the best eligible row, minus one. Scenarios with even seeds were
used to tune the rules, those with odd seeds were held out.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from measure import ENVIRONMENT, SETTINGS, as_table, simulated_run
from runs import Runs, benchmark, benchmark_parser

from common.files.probe import Probe
from common.files.results import EpochRecord, PhaseTimes, RunResult
from common.machine.entry import run_script
from common.settings.arguments import positive_int
from comparison.judge.analysis import Analysis, analyse
from comparison.judge.decision import Decision
from comparison.judge.measures import PER_EPOCH, WHOLE_RUN
from comparison.judge.statistics import FASTER, SLOWER
from comparison.methods import METHODS
from comparison.outcomes import Outcome
from comparison.record import Equivalence, Report
from comparison.rows import Configuration, Planned

IMAGES, BATCH, MAX_STEPS = 10_000, 100, 20  # per epoch; per step; steps of a shortened epoch
RIVALS = ("ddp", "fsdp", "pipeline", "accelerate", "ddp-bf16", "ddp-zero")
SWEEPS = {"": [(BATCH, 0)], "workers": [(BATCH, 0), (BATCH, 2)], "batch": [(50, 0), (BATCH, 0)]}
MOST_REGRET = 0.03
DOUBTS = ("failed", "points lower", "not shown", "refused", "disturbed", "simulated")
PHASES = PhaseTimes(0.0, 0.0, 1.0, 1.0, update=1.0)  # no decision depends on them


@dataclass(frozen=True)
class Truth:
    """The true properties of a row.

    start, warm_up, epoch, evaluation: seconds; warm_up is added to the first epoch. noise: relative standard deviation
    of its times. epochs: until the target, or as requested. stalls: share of epochs that take three times as long.
    fails: number of failing runs. accuracy: final, in percent. broken: it has different weights.
    """

    method: str
    batch: int
    workers: int
    start: float
    warm_up: float
    epoch: float
    evaluation: float
    noise: float
    epochs: int
    stalls: float = 0.0
    fails: int = 0
    accuracy: float = 95.0
    broken: bool = False

    @property
    def name(self) -> str:
        return f"{self.method}-{self.batch}-{self.workers}"

    @property
    def eligible(self) -> bool:
        """Whether it may be recommended."""
        return not (self.broken or self.fails) and self.accuracy > 94

    def expected_seconds(self, kind: str) -> float:
        """Return the mean seconds per epoch (PER_EPOCH) or of the whole run."""
        epoch = self.epoch * (1 + 2 * self.stalls) + self.evaluation
        return epoch if kind == PER_EPOCH else self.start + self.warm_up + self.epochs * epoch


@dataclass(frozen=True)
class Scenario:
    """A comparison with known true times.

    cut: epochs are shortened by --max-steps. interrupted: in the middle of the last block. checked: with --check-maths.
    """

    rows: tuple[Truth, ...]
    blocks: int
    cut: bool
    target: bool
    disturbed: bool
    checked: bool
    interrupted: bool


def draw(seed: int) -> Scenario:
    random = np.random.default_rng(seed)
    cut, target = ((True, False), (False, False), (False, True))[random.integers(3)]
    epoch, epochs = float(np.exp(random.uniform(0, 4))), int(random.choice([2, 3, 5, 10, 20]))
    noise, start = float(random.choice([0.005, 0.01, 0.02, 0.04])), float(random.uniform(1, 4))
    swept = str(random.choice(["", "", "workers", "batch"])) if not target else str(random.choice(["", "batch"]))
    methods = ["single", "single-all-cores", *random.choice(RIVALS, random.integers(1, 5), replace=False)]
    centre, spread = ((0.0, 0.0), (0.0, 0.04), (-0.3, 0.35))[random.integers(3)]  # tied, close, or far apart
    speed = {name: math.exp(random.normal(centre, spread)) for name in methods[1:]}
    rows = []
    for batch, workers in SWEEPS[swept]:
        of_setting = float(np.exp(random.normal(0, 0.2))) if swept else 1.0
        for method in methods:
            factor = speed.get(method, 1.0) * of_setting
            needed = max(2, epochs + int(random.integers(-1, 3)) * (batch != BATCH)) if target else epochs
            several = method not in ("single", "single-all-cores")
            rows.append(
                Truth(
                    method,
                    batch,
                    workers,
                    start=start + several * float(random.uniform(1, 8)),
                    warm_up=0.1 * epoch,
                    epoch=epoch * factor,
                    evaluation=0.15 * epoch * (factor if random.random() < 0.7 else float(random.uniform(0.5, 3))),
                    noise=noise * float(random.choice([1, 1, 1, 3])),
                    epochs=needed,
                )
            )
    return Scenario(
        tuple(_with_faults(random, rows)),
        blocks=int(random.choice([3, 3, 5, 8])),
        cut=cut,
        target=target,
        disturbed=bool(random.random() < 0.05),
        checked=bool(random.random() < 0.8),
        interrupted=bool(random.random() < 0.2),
    )


def _with_faults(random: np.random.Generator, rows: list[Truth]) -> list[Truth]:
    """Return the rows, some of which stall, fail, learn less or compute something else, the baseline less often."""
    faults = (
        lambda row: replace(row, stalls=float(random.uniform(0.05, 0.3))),
        lambda row: replace(row, fails=int(random.choice([1, 99]))),
        lambda row: replace(row, accuracy=float(random.choice([10.0, 80.0, 93.0]))),
        lambda row: replace(row, accuracy=float(random.choice([10.0, 85.0])), broken=True),
    )
    probability = {"single": 0.05, "single-all-cores": 0.05}
    return [
        faults[random.integers(len(faults))](row) if random.random() < probability.get(row.method, 0.35) else row
        for row in rows
    ]


def observe(scenario: Scenario, seed: int) -> Report:
    """Simulate a comparison in a scenario."""
    random = np.random.default_rng((seed, 1))
    drift = np.exp(np.cumsum(random.normal(0, 0.03, scenario.blocks)))
    levels = random.normal(0, 0.3, scenario.blocks)  # effect of each block's seed on the accuracies
    plan = tuple(map(_configuration, scenario.rows))
    outcomes = tuple(
        _outcome(random, scenario, truth, block, drift[block], levels[block])
        for block in range(scenario.blocks)
        for truth in scenario.rows
    )
    if scenario.interrupted:
        outcomes = outcomes[: -len(plan) // 2]
    good, bad = Equivalence(1e-7, "ok", ""), Equivalence(0.02, "failed", "planted")
    checks = {
        truth.name: bad if truth.broken else good for truth in scenario.rows if METHODS[truth.method].differs == ""
    }
    settings = {
        **SETTINGS,
        "batch_size": sorted({truth.batch for truth in scenario.rows}),
        "repeats": scenario.blocks,
        "epochs": max(truth.epochs for truth in scenario.rows),
        "max_steps": MAX_STEPS if scenario.cut else None,
        "target_accuracy": 0.95 if scenario.target else None,
    }
    probe = Probe(IMAGES, 2000, 1.0, (), (), ())
    order = tuple((block, truth.name) for block in range(1, scenario.blocks + 1) for truth in scenario.rows)
    return Report("simulated", settings, ENVIRONMENT, probe, plan, order, outcomes, checks if scenario.checked else {})


def _configuration(truth: Truth) -> Configuration:
    shares = 1 if truth.method.startswith("single") else 2
    threads = 2 if METHODS[truth.method].all_cores else 1
    planned = Planned("lenet", truth.batch, truth.workers, "cpu", threads, truth.batch // shares)
    values = {"batch_size": truth.batch, "num_workers": truth.workers}
    return Configuration(truth.name, truth.method, truth.name, values, planned, ())


def _outcome(random, scenario: Scenario, truth: Truth, block: int, drift: float, level: float) -> Outcome:
    foreign = 1.0 if scenario.disturbed and block % 2 else 0.0
    fails = block < truth.fails
    result = None if fails else _result(random, scenario, truth, drift * math.exp(random.normal(0, truth.noise)), level)
    missed = result and scenario.target and result.epochs[-1].test_accuracy < 0.95
    status = "failed" if fails else "not reached" if missed else "ok"
    wall, reason = result.total_seconds + 0.3 if result else 1.0, "" if status == "ok" else "planted"
    return Outcome(truth.name, block + 1, status, reason, "simulated", "", int(fails), wall, foreign, result)


def _result(random, scenario: Scenario, truth: Truth, factor: float, level: float) -> RunResult:
    count, steps = truth.epochs, MAX_STEPS if scenario.cut else IMAGES // truth.batch
    share = steps * truth.batch / IMAGES
    stalled = 1 + 2 * (random.random(count) < truth.stalls)
    seconds = factor * truth.epoch * share * stalled * np.exp(random.normal(0, truth.noise, count))
    seconds[0] += factor * truth.warm_up
    accuracy = min(0.999, max(0.0, (truth.accuracy + level + random.normal(0, 0.2) + scenario.target) / 100))
    fixed = (factor * truth.evaluation, steps * truth.batch, steps, 0.1, 0.1, accuracy, PHASES)
    epochs = tuple(EpochRecord(number, float(value), *fixed) for number, value in enumerate(seconds, start=1))
    return simulated_run(
        truth.method,
        truth.batch,
        epochs,
        factor * truth.start,
        workers=truth.workers,
        threads_per_process=2 if METHODS[truth.method].all_cores else 1,
    )


@dataclass(frozen=True)
class Verdict:
    """The quality of one recommendation. regret: None if no row was recommended. wrong: why it is wrong, or ""."""

    seed: int
    kind: str
    by: str
    best: str
    regret: float | None
    wrong: str


def judge(seed: int) -> list[Verdict]:
    scenario = draw(seed)
    analysis = analyse(observe(scenario, seed))
    return [_verdict(seed, scenario, analysis, decision) for decision in analysis.decisions]


def _verdict(seed: int, scenario: Scenario, analysis: Analysis, decision: Decision) -> Verdict:
    by, truths = decision.wall_time.kind, {truth.name: truth for truth in scenario.rows}
    timed = [truths[name] for name in decision.ratios]
    eligible = [truth for truth in timed if truth.eligible]
    if decision.kind != "use":
        all_cores = any(truth.method == "single-all-cores" for truth in timed)
        reasons = {"disturbed": scenario.disturbed, "none eligible": not eligible, "all cores": not all_cores}
        expected = reasons.get(decision.kind, False)
        return Verdict(seed, decision.kind, by, "", None, "" if expected else f"none, {decision.kind}")
    truth, regret = truths[decision.best.name], None
    if eligible:
        regret = truth.expected_seconds(by) / min(other.expected_seconds(by) for other in eligible) - 1
    wrong = contradiction(analysis, decision) if truth.eligible else "a row that must not be used"
    return Verdict(seed, "use", by, truth.name, regret, wrong)


def contradiction(analysis: Analysis, decision: Decision) -> str:
    """Return two statements of the analysis that contradict each other, or ""."""
    best, said = decision.best, {entry.name: entry.result for entry in analysis.rows}
    if any(word in said[best.name] for word in DOUBTS):
        return f"the row to use is called “{said[best.name]}”"
    if any(entry.name in decision.ineligible for entry in decision.tied):
        return "a tied row must not be used"
    for entry in decision.eligible:
        ratio = decision.ratios[entry.name]
        if entry is not best and ratio.words == SLOWER:
            return f"{entry.name} is proved to be faster than the row to use"
        if entry is not best and (entry in decision.tied) == (ratio.words == FASTER):
            return f"{entry.name} is tied and slower, or neither"
    for sweep in analysis.sweeps:
        usable = [entry for entry in sweep.fastest if entry.name not in decision.ineligible]
        if best in sweep.rows and usable and best not in usable and decision.wall_time.kind == PER_EPOCH:
            return f"the sweep of {sweep.name} calls others the fastest"
    if decision.wall_time.kind == WHOLE_RUN and decision.later and decision.later.name in decision.ineligible:
        return "the row for longer trainings must not be used"
    return ""


def table(results: dict) -> str:
    lines = []
    for name, remainder in (("even, used to tune the rules", 0), ("odd, held out", 1)):
        half = [verdict for verdict in results["verdicts"] if verdict["seed"] % 2 == remainder]
        regrets = [verdict["regret"] for verdict in half if verdict["regret"] is not None]
        small, wrong = sum(regret <= MOST_REGRET for regret in regrets), sum(bool(verdict["wrong"]) for verdict in half)
        shares = f"{small / len(regrets):.1%}", f"{np.quantile(regrets, 0.95):.1%}", f"{max(regrets):.0%}"
        lines.append((name, len({verdict["seed"] for verdict in half}), len(half), len(regrets), *shares, wrong))
    header = "Seeds | Scenarios | Trainings | With a usable row | Regret at most 3% | 95th percentile | Largest | Wrong"
    return as_table(header, lines)


def measured(runs: Runs) -> dict:
    found = runs.each({f"seed {seed}": partial(judge, seed) for seed in range(runs.arguments.scenarios)})
    verdicts = [verdict for judged in found.values() for verdict in judged]
    for verdict in verdicts:
        if verdict["wrong"]:
            print(f"seed {verdict['seed']}: {verdict['wrong']}")
    return {"scenarios": len(found), "verdicts": verdicts}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--scenarios", type=positive_int, default=200, metavar="N", help="(%(default)s)")
    benchmark(parser.parse_args(), measured, table)


if __name__ == "__main__":
    run_script(main)
