"""A comparison as data: its settings, its plan, and every run's outcome; as results.json out and in."""

import glob
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from common.errors import DATA, USAGE, SuiteError
from common.probe import Probe, probe_from_dict
from common.results import RunResult, result_from_dict
from common.words import count
from common.writing import without_nan, write_json
from comparison.launch import Outcome
from comparison.methods import method_of
from comparison.plan import IN_EVERY_METHOD, SWEEPS, Configuration, Planned, baseline_of, row_name

FEWEST_BLOCKS = 3  # with --budget, however short it is
MOST_FOREIGN = 0.1  # of the cores may be busy with other programs; beyond that, times prove nothing
# 5 names the fields of Planned where 4 had a person's words, and has equivalence where 4 had maths, and results of
# schema 4; 4 has results of schema 3; 3 has foreign_cores where 2 had the load average.
SCHEMA_VERSION = 5
SETTINGS_BEFORE_5 = {"global batch": "batch_size", "workers": "num_workers", "threads per device": "threads",
                     "per-device batch": "per_device_batch_size"}


@dataclass(frozen=True)
class Row:
    """One row of the table: a configuration and what became of its runs, in the order in which they ran."""

    configuration: Configuration
    outcomes: tuple[Outcome, ...]

    @property
    def label(self) -> str:
        """What the row is called; with sweeps, with its values that the method's label does not name already."""
        return self.configuration.label + self.values()

    def values(self, without: str = "") -> str:
        """Return the swept values that the method's label does not name, and not that of `without`, in brackets."""
        values = ", ".join(f"{SWEEPS[name].lower()} {value}" for name, value in self.configuration.values.items()
                           if name in IN_EVERY_METHOD and name != without)
        return f" ({values})" if values else ""

    def series(self, name: str) -> str:
        """Return what identifies the rows that differ from this one in the swept setting `name` alone."""
        value = row_name(name, {name: self.configuration.values.get(name)}).removeprefix(name)
        return re.sub(rf"{re.escape(value)}(?=-|$)", "", self.configuration.name)

    @property
    def results(self) -> list[RunResult]:
        """The results of the runs that ended well: all that is counted."""
        return [outcome.result for outcome in self.outcomes if outcome.status == "ok"]

    @property
    def troubles(self) -> list[Outcome]:
        """The runs that did not end well."""
        return [outcome for outcome in self.outcomes if outcome.status != "ok"]

    @property
    def missed(self) -> list[Outcome]:
        """The runs that trained to their end without the target accuracy."""
        return [outcome for outcome in self.outcomes if outcome.status == "not reached"]

    @property
    def cores(self) -> int:
        """How many CPU cores the runs could use; needs a result."""
        return self.results[0].environment["cores"]

    @property
    def foreign_cores(self) -> float:
        """The most cores that other programs kept busy, on average, during one of the runs that ended well."""
        return max((outcome.foreign_cores or 0.0 for outcome in self.outcomes if outcome.status == "ok"), default=0.0)

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so much of the machine that nothing can be claimed from the row's times."""
        return bool(self.results) and self.foreign_cores > MOST_FOREIGN * self.cores

    @property
    def all_cores(self) -> bool:
        """Whether the row has all cores of the CPU, where a device of the other rows has a share of them."""
        return method_of(self.configuration.method).all_cores

    @property
    def simulated(self) -> bool:
        """Whether one device stood in for several: such times say nothing about the method's speed."""
        return any(result.simulated for result in self.results)

    @property
    def times_only(self) -> bool:
        """Whether the method trains something else on purpose, so that its accuracy says nothing."""
        return method_of(self.configuration.method).times_only


@dataclass(frozen=True)
class Equivalence:
    """Whether a row computes what one device computes: the largest difference of any parameter, if it was compared.

    status: ok, expected (it differs on purpose) or failed; `reason` says why where it is not ok.
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
    """

    command: str
    settings: dict
    environment: dict
    probe: Probe | None
    plan: tuple[Configuration, ...]
    order: tuple[tuple[int, str], ...]
    outcomes: tuple[Outcome, ...] = ()
    equivalence: dict[str, Equivalence] = field(default_factory=dict)
    in_turns: bool = False
    looks: tuple[tuple[int, float], ...] = ()

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per configuration, in the order of the plan."""
        return tuple(Row(configuration, tuple(
            outcome for outcome in self.outcomes if outcome.configuration == configuration.name
            and (outcome.status != "ok" or outcome.block not in self.set_aside))) for configuration in self.plan)

    @property
    def whole_blocks(self) -> list[int]:
        """The blocks that have run to their end."""
        done = {(outcome.block, outcome.configuration) for outcome in self.outcomes}
        open_blocks = {run[0] for run in self.order if run not in done}
        return [block for block in dict.fromkeys(block for block, _ in self.order) if block not in open_blocks]

    @property
    def wanted_blocks(self) -> int:
        """How many blocks are to be run at least that other programs do not disturb."""
        return self.settings["repeats"] or FEWEST_BLOCKS

    @property
    def disturbed_blocks(self) -> dict[int, float]:
        """The whole blocks in which other programs used too much, with the most cores they kept busy; most first."""
        foreign = {block: max((outcome.foreign_cores or 0.0 for outcome in self.outcomes
                               if outcome.block == block and outcome.status == "ok"), default=0.0)
                   for block in self.whole_blocks}
        return {block: foreign[block] for block in sorted(foreign, key=foreign.get, reverse=True)
                if foreign[block] > MOST_FOREIGN * self.environment["cores"]}

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
        configuration = baseline_of(row.configuration, self.plan, method)
        return next((other for other in self.rows if other.configuration is configuration), None)

    def baseline(self, row: Row) -> Row | None:
        """Return the row that `row` is compared with (itself, if it is the baseline), if there is one."""
        return self.partner(row, self.settings["baseline"])

    @property
    def failed(self) -> bool:
        """Whether any run failed, or computes something else than one device does."""
        wrong = any(check.status == "failed" for check in self.equivalence.values())
        return wrong or any(row.troubles for row in self.rows)

    @property
    def asked(self) -> str:
        """What the rows are compared by."""
        target = self.settings.get("target_accuracy")
        return "time per epoch" if target is None else f"training time to {100 * target:g} %"

    @property
    def title(self) -> str:
        """Model, data set, batch and repeats in one line."""
        settings = self.settings
        models = "/".join(dict.fromkeys(str(configuration.planned.model) for configuration in self.plan))
        batch = "/".join(map(str, settings["batch_size"]))
        weak = settings["scaling"] == "weak"
        scaling = f"WEAK SCALING: batch {batch} per device" if weak else f"global batch {batch}"
        steps = f" of {count(settings['max_steps'], 'step')}" if settings["max_steps"] else ""
        images = f" (first {settings['train_size']:,} images)" if settings["train_size"] else ""
        return (f"{models} on {settings['dataset']}{images}, {scaling}, {count(settings['epochs'], 'epoch')}{steps}, "
                f"{count(settings['repeats'] or len(self.whole_blocks) - len(self.set_aside), 'run')} each")


def write_results(report: Report, directory: Path) -> None:
    """Write results.json: all that is known so far, raw, with a checksum over it and without the user's name."""
    values = {"schema_version": SCHEMA_VERSION, **_values(report)}
    write_json({**values, "sha256": _checksum(values)}, directory / "results.json")


def remove_torn(files: list[Path]) -> None:
    """Delete what a program that was killed while it wrote one of `files` has left: NAME, 8 characters, ".part"."""
    for file in files:
        for torn in file.parent.glob(f"{glob.escape(file.name)}{'[a-z0-9_]' * 8}.part"):
            torn.unlink()


def _values(report):
    """A Report made of JSON's types, without NaN and without the user's name."""
    return _without_home(without_nan(asdict(report)))


def _without_home(value):
    """Return a copy with ~ for the home directory, whose path names the user, in every text."""
    if isinstance(value, str):
        return value.replace(f"{Path.home()}/", "~/") if len(str(Path.home())) > 1 else value
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    return [_without_home(item) for item in value] if isinstance(value, list) else value


def _checksum(values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_results(path: Path) -> Report:
    """Read what write_results wrote.

    Raises SuiteError (DATA) if the file is missing, truncated, of another schema, or not as it was written: numbers
    that a hand has touched are no measurement.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values.get("schema_version")
        checksum = values.pop("sha256", None)
    except (OSError, ValueError, AttributeError) as error:
        raise SuiteError(f"cannot read {path}", f"{type(error).__name__}: {error}",
                         "name the results.json of a comparison", DATA) from None
    if version not in range(2, SCHEMA_VERSION + 1):
        advice = ("update this project" if isinstance(version, int) and version > SCHEMA_VERSION
                  else "run the comparison again")
        raise SuiteError(f"cannot read {path}", f"its schema_version is {version!r}, this program reads "
                         f"2 to {SCHEMA_VERSION}", advice, DATA)
    if checksum != _checksum(values):
        raise SuiteError(f"{path} is not what was measured", "its content does not match its checksum: it was edited",
                         "undo the change, or run the comparison again", DATA)
    del values["schema_version"]
    try:
        return _from_values(values if version == SCHEMA_VERSION else _as_schema_5(values))
    except (TypeError, ValueError, KeyError) as error:  # a run's result of a newer schema, say
        raise SuiteError(f"cannot read {path}", f"{type(error).__name__}: {error}", "update this project",
                         DATA) from None


def _as_schema_5(values):
    """The values of a file of schema 2 to 4 as schema 5 has them."""
    plan = [{**row, "planned": {SETTINGS_BEFORE_5.get(name, name): value for name, value in row["planned"].items()}}
            for row in values["plan"]]
    outcomes = [{name: value for name, value in row.items() if name != "load_average"} for row in values["outcomes"]]
    kept = {name: value for name, value in values.items() if name != "maths"}
    return {**kept, "plan": plan, "outcomes": outcomes, "equivalence": values["maths"]}


def _from_values(values):
    """The Report that `_values` (and JSON) made `values` from."""
    records = {
        "probe": probe_from_dict(values["probe"]) if values["probe"] else None,
        "plan": tuple(Configuration(**{**row, "planned": Planned(**row["planned"]), "command": tuple(row["command"])})
                      for row in values["plan"]),
        "order": tuple((block, name) for block, name in values["order"]),
        "outcomes": tuple(Outcome(**{**row, "result": row["result"] and result_from_dict(row["result"])})
                          for row in values["outcomes"]),
        "looks": tuple((blocks, share) for blocks, share in values.get("looks", ())),
        "equivalence": {name: Equivalence(**check) for name, check in values["equivalence"].items()},
    }
    return Report(**{**values, **records})


def resumed(report: Report, path: Path) -> Report:
    """Return `report`, which has not run yet, with the finished runs of the interrupted comparison in `path`.

    Raises SuiteError (USAGE) if that was another comparison: other settings, rows, order or machine.
    """
    earlier, planned = read_results(path), _from_values(_values(report))
    changed = [f"{name} {before.get(name)} → {after.get(name)}"
               for before, after in ((earlier.settings, planned.settings), (earlier.environment, planned.environment))
               for name in {**before, **after} if before.get(name) != after.get(name)]
    if not changed and (earlier.plan, earlier.order[:len(planned.order)]) != (planned.plan, planned.order):
        changed = ["the rows, their commands or their order"]
    if changed:
        raise SuiteError("cannot resume: that was another comparison", "; ".join(changed),
                         "type the flags of then, or leave out --resume to start anew", USAGE)
    done = tuple(outcome for outcome in earlier.outcomes if outcome.status == "ok")
    return replace(report, order=earlier.order, outcomes=done, probe=earlier.probe, equivalence=earlier.equivalence,
                   in_turns=earlier.in_turns, looks=earlier.looks)
