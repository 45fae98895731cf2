"""Comparisons made by hand, for tests: what was measured in them is what the test plants."""

from common.files.probe import probe_from_dict
from common.files.results import PhaseTimes
from comparison.plan.plan import Configuration, Planned
from comparison.record import Report
from comparison.run.launch import Outcome
from tests.files.test_results import make_result

SETTINGS = {
    "dataset": "synthetic-mnist",
    "batch_size": [100],
    "epochs": 3,
    "scaling": "strong",
    "repeats": 3,
    "seed": 42,
    "baseline": "single",
    "allow_unequal": False,
    "check_maths": False,
    "project": [],
    "link_gbps": None,
    "max_steps": None,
    "train_size": None,
    "loader": "workers",
    "timeout": None,
    "prove": False,
}
PROBE = {"train_images": 1000, "test_images": 200, "startup_seconds": 2.0, "models": [], "loaders": [], "steps": []}


def configuration(method="single", name=None, values=(), skip="", command=(), **planned) -> Configuration:
    equal = {
        "model": "lenet",
        "batch_size": 100,
        "num_workers": 0,
        "device": "cpu",
        "threads": 1,
        "per_device_batch_size": 100,
        **planned,
    }
    name = name or "-".join([method, *(f"{key}={value}" for key, value in dict(values).items())])
    return Configuration(
        name, method, method.upper(), dict(values), Planned(**equal), command or ("python", f"{method}.py"), skip
    )


def runs(
    method="single", seconds=(2.0, 2.02, 1.98), epochs=3, first=None, phases=(1.0, 0.5, 20.0, 40.0, 3.0), **values
):
    """One RunResult for each of `seconds`, each of whose epochs takes that long; the first may take longer.

    phases: data, transfer, forward, backward, update.
    """
    *before, update = phases
    devices = ("cpu",) * values.pop("count", 1)
    times = PhaseTimes(*before, update=update)
    return [
        make_result(method, (first or value, *[value] * (epochs - 1)), devices, times, **values) for value in seconds
    ]


def report_of(*rows, probe=(), equivalence=None, foreign_cores=(), **settings) -> Report:
    """A Report of (configuration, results) pairs; a result may be an Outcome's status instead, if the run failed.

    probe: what it has besides PROBE, as common.programs.probe prints it. foreign_cores: by configuration's name, what
    other programs used meanwhile.
    """
    outcomes = []
    for row, results in rows:
        for block, result in enumerate(results, start=1):
            failed = isinstance(result, str)
            outcomes.append(
                Outcome(
                    row.name,
                    block,
                    result if failed else "ok",
                    "signal 9" if failed else "",
                    f"python {row.method}.py",
                    f"{row.name}-{block}.log",
                    int(failed),
                    9.0,
                    dict(foreign_cores).get(row.name, 0.0),
                    None if failed else result,
                )
            )
    plan = tuple(row for row, _ in rows)
    order = tuple((outcome.block, outcome.configuration) for outcome in outcomes)
    return Report(
        "python compare_parallel.py",
        {**SETTINGS, **settings},
        {"torch": "2.11.0", "gpus": [], "cores": 1},
        probe_from_dict({**PROBE, **dict(probe)}),
        plan,
        order,
        tuple(outcomes),
        equivalence or {},
    )
