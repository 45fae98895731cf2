"""A comparison as data: its settings, its plan, and every run's outcome."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import NotRequired, TypedDict

from common.errors import OUT_OF_MEMORY
from common.files.probe import Probe
from common.files.results import Environment, Span
from comparison.methods import SCRIPT
from comparison.rows import Configuration, Foreign, Outcome, Planned, Row, Trial, baseline_of, foreign_of
from comparison.words import Sentence, count, say

FEWEST_BLOCKS = 3  # with --budget, however short it is
EQUAL_WITHIN = 0.03  # times that differ by no more are the same in practice
ACCURACY_MARGIN = 1.0  # percentage points that a row may be less accurate than its baseline, to be recommended
FIRST_STAGE = 5  # blocks, which with --margin tell the noise, and so how many more are needed


class Settings(TypedDict):
    """The flags of a comparison that are asked for when it is shown; a file has all, with these names, and others.

    Lists are of what a sweep may have several of. None: not asked for, or as by default.
    """

    dataset: str
    train_size: int | None
    batch_size: list[int]
    epochs: int
    max_steps: int | None
    seed: int
    loader: str
    baseline: str
    scaling: str
    repeats: int | None
    allow_unequal: bool
    project: list[int]
    link_gbps: float | None
    link_ms: float | None
    check_maths: bool | None
    target_accuracy: float | None
    budget: float | None
    margin: float | None
    equal_within: float | None
    accuracy_margin: float | None
    fit_batch: bool
    predict: list[str] | None
    prove: bool | None
    timeline: bool | None
    warmup: NotRequired[int]
    tips: NotRequired[bool | None]


@dataclass(frozen=True)
class Equivalence:
    """Whether a row computes what one device computes: the largest difference of any parameter, if it was compared.

    status: ok, expected (it differs on purpose), out of memory or failed; `reason` says why where it is not ok, or what
    is rounded.
    """

    difference: float | None
    status: str
    reason: str


@dataclass(frozen=True)
class Report:
    """A comparison. order: (block, configuration's name) of every planned run.

    probe: None until it was measured. equivalence: by configuration's name, if it was asked for. in_turns: whether the
    rows of a block take turns, epoch by epoch, or else run whole, one after the other. looks: with --budget, after how
    many blocks there was a look at whether all rows are decided, and which share of the budget was used by then.
    trials: with --fit-batch, the batches that each row was tried with; then the plan has the largest that fit.
    timelines: with --timeline, what every row that ran did in two steps, by configuration's name.
    """

    command: str
    settings: Settings
    environment: Environment
    probe: Probe | None
    plan: tuple[Configuration, ...]
    order: tuple[tuple[int, str], ...]
    outcomes: tuple[Outcome, ...] = ()
    equivalence: dict[str, Equivalence] = field(default_factory=dict)
    in_turns: bool = False
    looks: tuple[tuple[int, float], ...] = ()
    trials: tuple[Trial, ...] = ()
    timelines: dict[str, tuple[Span, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table: one per configuration that is no counterpart, in the order of the plan."""
        return tuple(row for row in self.all_rows if not row.configuration.role)

    @property
    def counterparts(self) -> tuple[Row, ...]:
        """The rows that are there for another one."""
        return tuple(row for row in self.all_rows if row.configuration.role)

    @cached_property
    def all_rows(self) -> tuple[Row, ...]:
        """One row per configuration, in the order of the plan."""
        return tuple(
            Row(
                configuration,
                tuple(
                    outcome
                    for outcome in self.outcomes
                    if outcome.configuration == configuration.name
                    and (outcome.status != "ok" or outcome.block not in self.set_aside)
                ),
            )
            for configuration in self.plan
        )

    @property
    def left(self) -> list[tuple[int, str]]:
        """The planned runs, (block, configuration's name), that have not ended yet."""
        done = {(outcome.block, outcome.configuration) for outcome in self.outcomes}
        return [run for run in self.order if run not in done]

    @property
    def whole_blocks(self) -> list[int]:
        """The blocks that have run to their end."""
        open_blocks = {block for block, _ in self.left}
        return [block for block in dict.fromkeys(block for block, _ in self.order) if block not in open_blocks]

    @property
    def wanted_blocks(self) -> int:
        """How many blocks are to be run at least that other programs do not disturb."""
        return self.settings["repeats"] or (FIRST_STAGE if self.settings["margin"] else FEWEST_BLOCKS)

    @property
    def disturbed_blocks(self) -> dict[int, Foreign]:
        """The whole blocks in which other programs used too much, with how much that was; most first."""
        foreign = {
            block: foreign_of(
                (outcome for outcome in self.outcomes if outcome.block == block), self.environment["cores"]
            )
            for block in self.whole_blocks
        }
        return {
            block: foreign[block]
            for block in sorted(foreign, key=lambda block: -foreign[block].share)
            if foreign[block].too_much
        }

    @cached_property
    def set_aside(self) -> tuple[int, ...]:
        """The disturbed blocks that others were run in the place of: they do not count."""
        spare = max(0, len(self.whole_blocks) - self.wanted_blocks)
        return tuple(sorted(list(self.disturbed_blocks)[:spare]))

    @property
    def first(self) -> Planned:
        """What is planned for the first row that can run: what the probe and the projection are about."""
        return next((row.planned for row in self.plan if not row.skip), self.plan[0].planned)

    @property
    def device_threads(self) -> int:
        """CPU threads of a device: the same in all rows but those that have all cores on purpose."""
        return min(row.planned.threads for row in self.plan)

    @property
    def swept(self) -> list[str]:
        """The settings that were given several values."""
        return list(dict.fromkeys(name for configuration in self.plan for name in configuration.values))

    def partner(self, row: Row, method: str) -> Row | None:
        """Return the row of `method` with the same swept values as `row`, if there is one."""
        configuration = baseline_of(row.configuration, [other.configuration for other in self.rows], method)
        return next((other for other in self.rows if other.configuration is configuration), None)

    def baseline(self, row: Row) -> Row | None:
        """Return the row that `row` is compared with (itself, if it is the baseline), if there is one."""
        return self.partner(row, SCRIPT if row.configuration.is_script else self.settings["baseline"])

    @property
    def only_scripts(self) -> bool:
        """Whether all rows are somebody's own training scripts."""
        return all(row.is_script for row in self.plan)

    @property
    def failed(self) -> bool:
        """Whether any run failed, or computes something else than one device does.

        That memory does not suffice for a row is a result, unless it suffices for none.
        """
        wrong = any(check.status == "failed" for check in self.equivalence.values())
        statuses = {outcome.status for row in self.all_rows for outcome in row.outcomes}
        return wrong or bool(statuses - {"ok", OUT_OF_MEMORY}) or statuses == {OUT_OF_MEMORY}

    @property
    def fitted(self) -> bool:
        """Whether each row has the largest batch that fits, and so trains otherwise than the others."""
        return self.settings["fit_batch"]

    @property
    def asked(self) -> Sentence:
        """What the rows are compared by."""
        target = self.settings["target_accuracy"]
        if self.only_scripts:
            return say("time per sample")
        return say("time per image") if target is None else say("training time to {n:g}%", n=100 * target)

    @property
    def _runs_of_rows(self) -> list[int]:
        """How many blocks that count have each row that runs."""
        counted = set(self.whole_blocks) - set(self.set_aside)
        of_rows = Counter(name for block, name in self.order if block in counted)
        return [*of_rows.values()] or [0]

    @property
    def stopped_rows(self) -> bool:
        """Whether some rows were run less often than others, as they were decided."""
        return min(self._runs_of_rows) < max(self._runs_of_rows)

    @property
    def title(self) -> str:
        """Model, data set, batch and repeats in one line."""
        settings = self.settings
        runs = count(settings["repeats"] or max(self._runs_of_rows), "run")
        if self.stopped_rows:
            runs = say("{fewest} to {runs}", fewest=min(self._runs_of_rows), runs=runs)
        if self.only_scripts:
            own = [row.configuration.label for row in self.rows if not row.configuration.what_if]
            tried = count(len(self.rows) - len(own), "variant")
            names = ", ".join(own)
            scripts = say("training scripts {names}", names=names)
            if len(own) == 1:
                scripts = say("training script {names}", names=names)
            scripts = say("{scripts} and {tried}", scripts=scripts, tried=tried) if tried.values["n"] else scripts
            return say("{scripts}, {runs} each", scripts=scripts, runs=runs)
        models = "/".join(dict.fromkeys(str(row.planned.model) for row in self.plan if not row.is_script))
        batch = "/".join(map(str, settings["batch_size"]))
        weak = settings["scaling"] == "weak"
        scaling = say("WEAK SCALING: batch {n} per device" if weak else "global batch {n}", n=batch)
        if self.fitted:
            scaling = say("each with its LARGEST BATCH")
        epochs = count(settings["epochs"], "epoch")
        if settings["max_steps"]:
            epochs = say("{epochs} of {steps}", epochs=epochs, steps=count(settings["max_steps"], "step"))
        data = settings["dataset"]
        if settings["train_size"]:
            data = say("{data} (first {n:,} images)", data=data, n=settings["train_size"])
        return say(
            "{models} on {data}, {batch}, {epochs}, {runs} each",
            models=models,
            data=data,
            batch=scaling,
            epochs=epochs,
            runs=runs,
        )
