"""Every measured number in the READMEs comes from a JSON file that is committed beside its figures."""

import json
import re
import statistics

import pytest

from common.results import RunResult, read_result
from comparison.report import table
from comparison.statistics import summarize
from conftest import PROJECT, read_report

README = PROJECT / "README.md"
FIGURES = PROJECT / "figures"
READMES = pytest.mark.parametrize("readme", [README, PROJECT / "README.zh-CN.md"], ids=["English", "Chinese"])
ACCURACY_RUNS = ("mnist-lenet-single.json", "mnist-lenet-ddp-2.json", "cifar10-vgg-single.json")
WORKERS = (0, 1, 2)


def epoch_seconds(result: RunResult) -> float:
    return statistics.median(epoch.train_seconds for epoch in result.epochs[1:])


def accuracy_row(name: str) -> str:
    result = read_result(FIGURES / name)
    return (f"| `{result.command}` | {result.epochs[-1].test_accuracy:.2%} | {epoch_seconds(result):.1f} s "
            f"| [JSON](figures/{name}) |")


def workers_row(workers: int) -> str:
    result = read_result(FIGURES / "workers" / f"{workers}.json")
    assert (result.config["num_workers"], result.config["augment"], result.method) == (workers, True, "single")

    def phase(*names):
        return statistics.mean(sum(getattr(epoch.phases, name) for name in names) for epoch in result.epochs[1:])

    return (f"| {workers} | {phase('data'):.1f} | {phase('transfer', 'forward', 'backward', 'update'):.1f} "
            f"| {epoch_seconds(result):.1f} | {result.epochs[-1].test_accuracy:.2%} |")


@READMES
@pytest.mark.parametrize("name", ["compare-synthetic", "compare-mnist"])
def test_comparison_tables(readme, name):
    report = read_report(FIGURES / name / "results.json")
    assert table(report, "github") in readme.read_text(encoding="utf-8")
    assert all(outcome.status == "ok" for outcome in report.outcomes)


@READMES
def test_accuracies_on_real_data(readme):
    for name in ACCURACY_RUNS:
        assert accuracy_row(name) in readme.read_text(encoding="utf-8")


@READMES
def test_worker_study(readme):
    for workers in WORKERS:
        assert workers_row(workers) in readme.read_text(encoding="utf-8")


@READMES
def test_the_same_comparison_twice(readme):
    text = readme.read_text(encoding="utf-8")
    for name in ("compare-synthetic", "compare-synthetic-again"):
        report = read_report(FIGURES / name / "results.json")
        ddp = next(outcome for outcome in report.outcomes if outcome.method == "ddp")
        assert f"{summarize(ddp, report.baseline).speed_up:.2f}" in text


def test_batches_in_parts():
    for kind in ("whole", "four"):
        results = [read_result(file) for file in sorted((FIGURES / "parts").glob(f"{kind}-*.json"))]
        seconds = [result.epochs[1].train_seconds for result in results]
        assert len(seconds) == 5 and all(result.epochs[1].steps == 150 for result in results)
        assert f"{min(seconds):.1f} to {max(seconds):.1f} s" in README.read_text(encoding="utf-8")


def test_promised_accuracies_were_reached():
    mnist, ddp, cifar = (read_result(FIGURES / name).epochs[-1].test_accuracy for name in ACCURACY_RUNS)
    assert mnist >= 0.99 and abs(mnist - ddp) <= 0.003 and cifar >= 0.80
    assert all(len(read_result(FIGURES / name).epochs) == 10 for name in ACCURACY_RUNS)


@READMES
def test_every_file_that_is_shown_exists(readme):
    targets = re.findall(r"\]\(([^)#:]+)\)", readme.read_text(encoding="utf-8"))
    assert len(targets) > 5
    for target in targets:
        assert (PROJECT / target).exists(), target


def test_no_result_names_a_home_directory():
    for file in FIGURES.rglob("*.json"):
        assert not re.search(r"/(home|root|Users)/", json.dumps(json.loads(file.read_text())))
