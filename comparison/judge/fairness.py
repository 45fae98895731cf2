"""Which rows may be compared: the settings that a fair comparison keeps equal, as planned and as measured."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from common.errors import USAGE, SuiteError
from common.files.checksums import CODE
from common.files.results import RunResult
from common.settings.config import RunConfig, flags_with
from comparison.judge.blocks import Table
from comparison.judge.measures import Measures
from comparison.judge.statistics import CONFIDENCE, Ratio
from comparison.methods import SCRIPT, method_of
from comparison.plan.plan import words_of
from comparison.record import ACCURACY_MARGIN, Report
from comparison.rows import Configuration, Row, baseline_of
from comparison.words import count, join, say, valued

NOT_SHOWN = "accuracy may be"  # beginning of a reason that is not a proof
DEFAULTS = RunConfig()  # for flags that are newer than a result
OF_A_BATCH = ("batch_size", "per_device_batch_size", "steps_per_epoch")  # differ if the batch size does
MAY_DIFFER = {"strong": ("per_device_batch_size",), "weak": ("batch_size", "steps_per_epoch", "images")}

# The settings with which a row really ran; planned ones have the same name as in Planned.
EFFECTIVE: dict[str, Callable[[RunResult], object]] = {
    "device": lambda run: re.sub(r":\d+", "", run.devices[0]),
    "batch_size": lambda run: run.global_batch_size,
    "per_device_batch_size": lambda run: run.per_device_batch_size,
    "steps_per_epoch": lambda run: run.epochs[-1].steps,
    "num_workers": lambda run: run.loader_workers,
    "threads": lambda run: run.threads_per_process,
    "precision": lambda run: run.precision,
    "loader": lambda run: run.config["loader"],
}


def effective(result: RunResult) -> dict[str, object]:
    """Return the settings with which a run really trained, by EFFECTIVE's names."""
    slices = ("steps_per_epoch",) if result.method == SCRIPT else ()
    return {name: setting(result) for name, setting in EFFECTIVE.items() if name not in slices}


def all_settings(result: RunResult) -> dict[str, object]:
    """Return the flags of a run that should be equal in all rows; of a script, those that were seen."""
    names = ("dataset", "model", "optimizer") if result.method == SCRIPT else flags_with("equal")
    return {name: result.config.get(name, getattr(DEFAULTS, name)) for name in names}


def differences(result: RunResult, reference: RunResult, scaling: str, exempt: tuple[str, ...] = ()) -> list[str]:
    """Return the settings that should be equal but differ between two results, each with both values.

    exempt: settings that may differ: fields of RunConfig, names of EFFECTIVE, "torch", or "images" (of an epoch).
    Strong scaling keeps the global batch equal, weak scaling the batch per device. N ranks leave out up to N - 1 images
    of an epoch, which can be one step: that does not count.
    """
    mine, theirs = (
        {**all_settings(run), "torch": run.environment["torch"], **effective(run), "images": run.epochs[-1].samples}
        for run in (result, reference)
    )
    may_differ = {*MAY_DIFFER[scaling], *exempt}
    if equal_images((result, reference)):
        may_differ.add("images")
    if abs(result.epochs[-1].steps - reference.epochs[-1].steps) <= 1:
        may_differ.add("steps_per_epoch")
    settings = [(words_of(name), mine[name], theirs[name]) for name in mine if name not in may_differ]
    own, other = result.checksums, reference.checksums
    settings += [(name, own[name], other[name]) for name in own if name in other and name != CODE]
    return _unlike(settings)


def _unlike(settings: Iterable[tuple[str, object, object]]) -> list[str]:
    """Return the settings whose two values differ, each with both values."""
    return [
        say("{setting} instead of {other}", setting=valued(name, value), other=other)
        for name, value, other in settings
        if value != other
    ]


def _changes(row: Row) -> tuple[str, ...]:
    """Return what became another between the runs of a row: its code, its data set, or the file of its network."""
    first, *others = [run.checksums for run in row.results] or [{}]
    names = dict.fromkeys(name for own in others for name in own if first.get(name, own[name]) != own[name])
    return tuple(say("{name} changed between runs", name=name) for name in names)


def equal_images(results: Iterable[RunResult]) -> bool:
    """Return whether the epochs of these runs have equally many images, up to the N - 1 that N ranks may leave out."""
    results = tuple(results)
    images = [result.epochs[-1].samples for result in results]
    return not results or max(images) - min(images) < max(result.data_ranks for result in results)


def refuse_unequal(plan: list[Configuration], baseline: str, scaling: str) -> None:
    """Raise SuiteError (USAGE), before anything runs, for the first row planned with other settings than its baseline.

    If the baseline is not among the methods, the first method takes its place.
    """
    for configuration in plan:
        other = baseline_of(configuration, plan, baseline) or baseline_of(configuration, plan, plan[0].method)
        if other is None:
            continue
        may_differ = (*MAY_DIFFER[scaling], *exempt(configuration, other))
        for name, value in vars(configuration.planned).items():
            theirs = getattr(other.planned, name)
            if name not in may_differ and theirs != value:
                raise SuiteError(
                    "unequal rows are no comparison",
                    f"{words_of(name)}: “{other.label}” has {theirs}, “{configuration.label}” {value}",
                    "give both the same, or type --allow-unequal to run and mark them",
                    USAGE,
                )


def exempt(*configurations: Configuration) -> tuple[str, ...]:
    """Return the settings that may differ between these rows.

    They are the seed, which each block changes; how the same gradients are computed; and the threads, if one of the
    rows has all cores on purpose.
    """
    all_cores = any(method_of(row.method).all_cores for row in configurations)
    return ("seed", "recompute", "accumulate", *(["threads"] if all_cores else []))


@dataclass(frozen=True)
class Standing:
    """How a row compares with its baseline. If speed_up is None, `reason` says why.

    unequal: the settings that should be equal but are not. devices: the row's devices (on a CPU, threads) ÷ the
    baseline's. efficiency: the speed-up ÷ devices. accuracy: why its accuracy rules it out, if so. accounts: the number
    of accounts of times of all rows, one of a step and one of a run for each. unlike: of a script, the settings seen to
    differ, which they may.
    """

    baseline: Row | None
    speed_up: Ratio | None = None
    reason: str = ""
    unequal: tuple[str, ...] = ()
    devices: float = 1.0
    efficiency: Ratio | None = None
    accuracy: str = ""
    accounts: int = 1
    unlike: tuple[str, ...] = ()


# Settings seen in a script, which may differ between scripts without making them unequal.
SEEN: dict[str, Callable[[RunResult], object]] = {
    "samples per step": lambda run: run.global_batch_size,
    "parameters": lambda run: run.parameters,
    "type of the parameters": lambda run: run.precision,
    "optimizer": lambda run: run.config["optimizer"],
    "torch": lambda run: run.environment["torch"],
}


def seen_differences(result: RunResult, reference: RunResult) -> tuple[str, ...]:
    """Return the settings in which a script is seen to differ from another one, each with both values."""
    return tuple(_unlike((name, see(result), see(reference)) for name, see in SEEN.items()))


def compare_with_baselines(report: Report, measures: Measures) -> dict[str, Standing]:
    """Return the Standing of every row, by configuration's name. A baseline's speed-up is 1.

    A row has no speed-up if it is simulated, as one device in place of several says nothing about their speed; if it
    has different weights; if its settings differ, unless the comparison ran with --allow-unequal; or if one of its
    runs missed the target accuracy.

    The intervals are simultaneous, at the report's confidence: by Dunnett's quantile over the rows of one baseline, and
    by equal shares of the error over several baselines.
    """
    rows = {row.name: row for row in report.rows}
    standings = {name: _standing_without_times(report, row) for name, row in rows.items()}
    families: dict[str, list[str]] = {}
    for name, standing in standings.items():
        if standing.baseline is rows[name] and not standing.reason:
            standings[name] = replace(standing, speed_up=Ratio(1.0), efficiency=Ratio(1.0))
        elif standing.baseline and not standing.reason:
            families.setdefault(standing.baseline.name, []).append(name)
    accounts = 2 * sum(map(len, families.values()))
    for reference, names in families.items():
        confidence = 1 - (1 - measures.asked.confidence) / len(families)
        for name, speed_up in zip(names, measures.asked.ratios(reference, names, confidence), strict=True):
            own, other = (units(rows[some].results[0]) for some in (name, reference))
            standings[name] = replace(
                standings[name],
                accounts=accounts,
                speed_up=speed_up,
                devices=own / other,
                efficiency=speed_up.times(other / own),
                accuracy=less_accurate(report, measures.accuracies, name, reference),
            )
    return standings


def less_accurate(report: Report, accuracies: Table, row: str, baseline: str) -> str:
    """Return why a row is not shown to be as accurate as its baseline, within --accuracy-margin; empty if it is.

    A test of non-inferiority: with 95% confidence, the mean difference in blocks of equal seeds is above -margin. The
    noise is estimated from all rows of the same training. A row whose weights equal one device's after 20 steps is
    only rejected if its accuracy is proved to be lower; these claims are wrong in at most 5% of comparisons, whatever
    the number of rows. Rows that reached a target accuracy count as equally accurate.
    """
    if row == baseline or report.settings.get("target_accuracy") is not None:
        return ""
    if not {row, baseline} <= {*accuracies.columns}:
        return ""
    claims = len(accuracies.columns) - 1
    accuracies = _of_trainings(report, accuracies, (row, baseline))
    value, low, _ = accuracies.difference(row, baseline, 2 * CONFIDENCE - 1)
    margin, check = accuracy_margin(report), report.equivalence.get(row)
    if low >= -margin:
        return ""
    _, _, high = accuracies.difference(row, baseline, 1 - 2 * (1 - CONFIDENCE) / claims)
    if high < 0:
        return say("accuracy {n:.1f} points lower", n=-value)
    if check and check.status == "ok":
        return ""
    return say("accuracy may be more than {points} lower", points=count(margin if margin % 1 else int(margin), "point"))


def shown_less_accurate(report: Report, accuracies: Table, row: str, others: Sequence[str]) -> str:
    """Return that a row is proved to be less accurate than another by more than --accuracy-margin; empty if not.

    The row may be the baseline itself. The claims about one row together are wrong in at most 5% of cases.
    """
    others = [name for name in others if name != row and {name, row} <= {*accuracies.columns}]
    if not others or report.settings.get("target_accuracy") is not None:
        return ""
    confidence = 1 - 2 * (1 - CONFIDENCE) / len(others)
    accuracies = _of_trainings(report, accuracies, (row, *others))
    found = [accuracies.difference(row, name, confidence) for name in others]
    lower = [value for value, _, high in found if high < -accuracy_margin(report)]
    return say("accuracy {n:.1f} points lower", n=-min(lower)) if lower else ""


def _of_trainings(report: Report, accuracies: Table, names: Sequence[str]) -> Table:
    """Return the accuracies of all rows that have the network and the batch of one of these rows."""
    planned = {row.name: row.configuration.planned for row in report.rows}
    alike = {(planned[name].model, planned[name].batch_size) for name in names}
    return accuracies.of(
        [name for name in accuracies.columns if (planned[name].model, planned[name].batch_size) in alike]
    )


def accuracy_margin(report: Report) -> float:
    """Return by how many percentage points an accuracy may be lower."""
    return report.settings["accuracy_margin"] or ACCURACY_MARGIN


def _standing_without_times(report: Report, row: Row) -> Standing:
    baseline = report.baseline(row)
    unequal: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    if baseline and baseline.results and row.results:
        result, reference = row.results[0], baseline.results[0]
        if row.configuration.is_script:
            unlike = seen_differences(result, reference)
        else:
            may_differ = (*exempt(row.configuration, baseline.configuration), *(OF_A_BATCH if report.fitted else ()))
            unequal = tuple(differences(result, reference, report.settings["scaling"], may_differ))
    unequal += _changes(row)
    return Standing(baseline, None, _why_not(report, row, baseline, unequal), unequal, unlike=unlike)


def _why_not(report: Report, row: Row, baseline: Row | None, unequal: tuple[str, ...]) -> str:
    """Return why a row may not be compared with its baseline; empty if it may."""
    if baseline is None:
        return say("the baseline, {name}, is not among the methods", name=report.settings["baseline"])
    if not baseline.results:
        return say("the baseline, “{name}”, has no run that ended well", name=baseline.label)
    if not row.results:
        return say("no run ended well")
    if unequal and not report.settings["allow_unequal"]:
        return say("refused: {settings}", settings=join("; ", unequal))
    if (changed := _changes(baseline)) and baseline is not row and not report.settings["allow_unequal"]:
        return say("refused: the baseline's {settings}", settings=join("; ", changed))
    if row.simulated:
        return say("simulated")
    if baseline.simulated:
        return say("the baseline, “{name}”, is simulated", name=baseline.label)
    for checked in (row, baseline):
        check, name, missed = report.equivalence.get(checked.name), checked.label, len(checked.missed)
        if check and check.status == "failed":
            return say("the check of the maths of “{name}” failed", name=name)
        if missed:
            runs = count(len(checked.outcomes), "run")
            return say("“{name}” missed the target accuracy in {n} of {runs}", name=name, n=missed, runs=runs)
    return ""


def units(result: RunResult) -> int:
    """Return the number of GPUs of a run or, on a CPU, the number of threads, of which each device has a share."""
    on_cpu = result.devices[0] == "cpu"
    return result.threads_per_process * result.world_size if on_cpu else len(result.devices)
