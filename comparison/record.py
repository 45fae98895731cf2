"""A comparison as data: its settings, its plan and the outcome of every run."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import NotRequired, TypedDict

from common.errors import OUT_OF_MEMORY
from common.files.probe import Probe
from common.files.results import Environment, Span
from comparison.methods import SCRIPT
from comparison.outcomes import Foreign, Outcome, Trial, foreign_of
from comparison.rows import Configuration, Planned, Row, baseline_of
from comparison.words import Sentence, count, say

FEWEST_BLOCKS = 3  # even if the --budget is shorter
TRACED_STEPS = 2  # with --timeline
EQUAL_WITHIN = 0.03  # a smaller relative difference of times does not matter in practice
ACCURACY_MARGIN = 1.0  # percentage points of accuracy that a recommended row may lose to its baseline
FIRST_STAGE = 5  # blocks that estimate the noise with --margin, and so the number of blocks needed


class Settings(TypedDict):
    """The flags of a comparison that are read when it is shown. A file holds these and others.

    A list holds the values of a sweep. None: not given, or the default.
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
    project: list[str]
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
    image_size: NotRequired[int | None]
    tips: NotRequired[bool | None]


@dataclass(frozen=True)
class Equivalence:
    """Whether a row computes the same as one device. difference: the largest of any parameter, if compared.

    status: ok, expected (it differs on purpose), out of memory or failed. reason: why it is not ok, or what is rounded.
    """

    difference: float | None
    status: str
    reason: str


@dataclass(frozen=True)
class Report:
    """A comparison. order: (block, configuration's name) of every planned run.

    probe: None until measured. equivalence: by configuration's name, if checked. in_turns: whether the rows of a block
    take turns, epoch by epoch, instead of running one after the other. looks: with --budget, each interim analysis that
    checked whether all rows are decided, as (number of blocks, share of the budget used by then). trials: with
    --fit-batch, the batches that were tried; the plan then has the largest that fits. timelines: with --timeline, two
    traced steps of every row that ran, by configuration's name.
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
        """The rows of the table, in the order of the plan: one per configuration that is no counterpart."""
        return tuple(row for row in self.all_rows if not row.configuration.role)

    @cached_property
    def all_rows(self) -> tuple[Row, ...]:
        """One row per configuration, in the order of the plan. Only failures count in a block that was set aside."""
        counted = [run for run in self.outcomes if run.status != "ok" or run.block not in self.set_aside]
        return tuple(
            Row(configuration, tuple(run for run in counted if run.configuration == configuration.name))
            for configuration in self.plan
        )

    @property
    def left(self) -> list[tuple[int, str]]:
        """The planned runs that have not ended yet, as (block, configuration's name)."""
        done = {(outcome.block, outcome.configuration) for outcome in self.outcomes}
        return [run for run in self.order if run not in done]

    @property
    def whole_blocks(self) -> list[int]:
        """The blocks whose runs have all ended."""
        open_blocks = {block for block, _ in self.left}
        return [block for block in dict.fromkeys(block for block, _ in self.order) if block not in open_blocks]

    @property
    def wanted_blocks(self) -> int:
        """The least number of undisturbed blocks to run."""
        return self.settings["repeats"] or (FIRST_STAGE if self.settings["margin"] else FEWEST_BLOCKS)

    @property
    def disturbed_blocks(self) -> dict[int, Foreign]:
        """The complete blocks in which other programs used too much, and how much; the most disturbed first."""
        disturbed = {}
        for block in self.whole_blocks:
            outcomes = [outcome for outcome in self.outcomes if outcome.block == block]
            foreign = foreign_of(outcomes, self.environment["cores"])
            if foreign.too_much:
                disturbed[block] = foreign
        return dict(sorted(disturbed.items(), key=lambda item: -item[1].share))

    @cached_property
    def set_aside(self) -> tuple[int, ...]:
        """The disturbed blocks that do not count because others were run, and timed, in their place.

        A block of all rows needs another one of all rows; a later block needs enough others of each of its rows.
        """
        timed, whole = {run.block for run in self.outcomes if run.status == "ok"}, self.whole_blocks
        names = {block: [name for number, name in self.order if number == block] for block, _ in self.order}
        full = [block for block in whole if len(names[block]) == max(map(len, names.values()))]
        spare = max(0, len(timed.intersection(full)) - self.wanted_blocks)
        aside = [block for block in self.disturbed_blocks if block in full and block in timed][:spare]
        left = Counter(name for block in whole if block not in aside for name in names[block])
        for block in self.disturbed_blocks:
            if block not in full and all(left[name] > self.wanted_blocks for name in names[block]):
                aside.append(block)
                left.subtract(names[block])
        return tuple(sorted(aside))

    @property
    def first(self) -> Planned:
        """The planned settings of the first row of the suite that can run, used by the probe and the projection.

        Rows that have all cores come last: the time of a step depends on the threads.
        """
        return min((row.planned for row in self.able or [self.plan[0]]), key=lambda planned: planned.threads)

    @property
    def able(self) -> list[Configuration]:
        """The rows of the suite that can run, without counterparts."""
        return [row for row in self.plan if not (row.skip or row.is_script or row.role)]

    @property
    def swept(self) -> list[str]:
        """The settings that have several values."""
        return list(dict.fromkeys(name for configuration in self.plan for name in configuration.values))

    def partner(self, row: Row, method: str) -> Row | None:
        """Return the row of `method` with the same swept values as `row`, if there is one."""
        configuration = baseline_of(row.configuration, [other.configuration for other in self.rows], method)
        return next((other for other in self.rows if other.configuration is configuration), None)

    def baseline(self, row: Row) -> Row | None:
        """Return the row that `row` is compared with, if there is one: itself if it is the baseline."""
        return self.partner(row, SCRIPT if row.configuration.is_script else self.settings["baseline"])

    @property
    def only_scripts(self) -> bool:
        """Whether all rows are the user's own training scripts."""
        return all(row.is_script for row in self.plan)

    @property
    def failed(self) -> bool:
        """Whether any run failed, or any row does not compute the same as one device.

        Running out of memory is a result and no failure, unless it happens in every run.
        """
        wrong = any(check.status == "failed" for check in self.equivalence.values())
        statuses = {outcome.status for row in self.all_rows for outcome in row.outcomes}
        return wrong or bool(statuses - {"ok", OUT_OF_MEMORY}) or statuses == {OUT_OF_MEMORY}

    @property
    def fitted(self) -> bool:
        """Whether each row has the largest batch that fits, so that rows train differently."""
        return self.settings["fit_batch"]

    @property
    def cut_steps(self) -> int | None:
        """The value of --max-steps; None if it cuts no epoch, as all that ran have fewer steps."""
        most = self.settings["max_steps"]
        ran = [epoch.steps for row in self.rows for run in row.results for epoch in run.epochs if run.method != SCRIPT]
        return most if most and (not ran or max(ran) >= most) else None

    @property
    def begins_untimed(self) -> bool:
        """Whether the first epoch of some run of the suite warms it up."""
        return any(run.timed_from > 1 for row in self.rows for run in row.results if run.method != SCRIPT)

    @property
    def only_warm_up(self) -> bool:
        """Whether the only epoch that is timed is one that warms up."""
        return self.begins_untimed and self.settings["epochs"] == 1

    @property
    def asked(self) -> Sentence:
        """The quantity by which rows are compared."""
        target = self.settings["target_accuracy"]
        if self.only_scripts:
            return say("time per sample")
        return say("time per image") if target is None else say("training time to {n:g}%", n=100 * target)

    @property
    def stopped_rows(self) -> bool:
        """Whether some rows ran in fewer of the blocks that count than others because they were decided earlier."""
        counted = set(self.whole_blocks) - set(self.set_aside)
        of_rows = Counter(name for block, name in self.order if block in counted)
        return len({*of_rows.values()}) > 1

    @property
    def _scripts(self) -> Sentence:
        """The names of the user's scripts, and the number of their variants."""
        own = [row.configuration.label for row in self.rows if not row.configuration.what_if]
        names, variants = ", ".join(own), len(self.rows) - len(own)
        scripts = say("training script {names}" if len(own) == 1 else "training scripts {names}", names=names)
        return say("{scripts} and {tried}", scripts=scripts, tried=count(variants, "variant")) if variants else scripts

    @property
    def title(self) -> str:
        """Model, data set, batch and repeats in one line."""
        settings = self.settings
        ran = [len(row.outcomes) for row in self.rows if not row.configuration.skip] or [0]
        fewest, most = min(ran), max(ran)
        runs = count(most, "run")
        if fewest < most:
            runs = say("{fewest} to {runs}", fewest=fewest, runs=runs)
        if self.only_scripts:
            return say("{scripts}, {runs} each", scripts=self._scripts, runs=runs)
        models = "/".join(dict.fromkeys(str(row.planned.model) for row in self.plan if not row.is_script))
        batch = "/".join(map(str, settings["batch_size"]))
        weak = settings["scaling"] == "weak"
        scaling = say("WEAK SCALING: batch {n} per device" if weak else "global batch {n}", n=batch)
        if self.fitted:
            scaling = say("each with its LARGEST BATCH")
        epochs = count(settings["epochs"], "epoch")
        if steps := self.cut_steps:
            epochs = say("{epochs} of {steps}", epochs=epochs, steps=count(steps, "step"))
        data = settings["dataset"]
        if size := settings.get("image_size"):
            data = say("{data} at {n} × {n} pixels", data=data, n=size)
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
