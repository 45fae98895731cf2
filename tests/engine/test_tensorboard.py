"""TensorBoard logs, read back by TensorBoard."""

import importlib.util

import pytest

from common.engine.tensorboard import EpochLog
from common.errors import MACHINE, SuiteError
from comparison.results_file import read_results, write_results
from tests.reports import configuration, report_of, runs

needs_it = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")


def shown(directory):
    """Return what TensorBoard shows: name → [(epoch, value)]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(directory))
    log.Reload()
    return {
        name: [(event.step, pytest.approx(event.value, rel=1e-6)) for event in log.Scalars(name)]
        for name in log.Tags()["scalars"]
    }


@needs_it
def test_a_training_logs_every_epoch(train, tmp_path):
    result, _, _ = train("ddp_train.py", "--spawn", 2, "--epochs", 3, "--tensorboard", tmp_path / "log")
    values = shown(tmp_path / "log")
    names = "loss/train", "loss/test", "accuracy/test", "time/seconds"
    for name, key in zip(names, ("train_loss", "test_loss", "test_accuracy", "train_seconds"), strict=True):
        assert values[name] == [(epoch["epoch"], epoch[key]) for epoch in result["epochs"]]
    assert values["time/images per second"][0] == (1, 480 / result["epochs"][0]["train_seconds"])
    assert len(list((tmp_path / "log").iterdir())) == 1


@needs_it
def test_a_repeated_epoch_is_shown_once(tmp_path):
    (first,), (second,) = runs(seconds=(2.0,)), runs(seconds=(5.0,))
    for records in (first.epochs, second.epochs[1:]):
        log = EpochLog(tmp_path)
        for record in records:
            log.add(record)
    assert shown(tmp_path)["time/seconds"] == [(1, 2.0), (2, 5.0), (3, 5.0)]


@needs_it
def test_a_comparison_logs_every_run(project, tmp_path):
    report = report_of((configuration(), runs()), (configuration("ddp"), [*runs(seconds=(1.0,)), "failed"]))
    write_results(report, tmp_path)
    command = f"compare_parallel.py --from {tmp_path / 'results.json'} --tensorboard {tmp_path / 'log'}"
    assert project(command, tiny=False).returncode == 1  # one of its runs failed
    expected = {
        f"{outcome.configuration}-{outcome.block}": [(epoch.epoch, epoch.train_seconds) for epoch in result.epochs]
        for outcome in read_results(tmp_path / "results.json").outcomes
        if (result := outcome.result)
    }
    assert {place.name: shown(place)["time/seconds"] for place in (tmp_path / "log").iterdir()} == expected


def test_a_missing_package_is_reported_at_the_start(parsed, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SuiteError, match="tensorboard is not installed") as caught:
        parsed("--tensorboard", tmp_path / "log")
    assert caught.value.exit_code == MACHINE
