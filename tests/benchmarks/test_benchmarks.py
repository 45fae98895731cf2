"""Tests of the generated documentation, some benchmarks, and benchmark.py, which runs them all."""

import re
import sys

import benchmark
import measure
import overhead
import pytest
import runs
import torch

import docs
from common.errors import FAILED, SuiteError
from comparison.results_file import read_results
from tests.fixtures import PROJECT
from tests.reports import configuration, report_of
from tests.reports import runs as runs_of

PAGES = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("performance", "findings", "own-script", "methods", "comparison")
)
FIGURES = PROJECT / "figures" / "benchmark"


def test_generated_documentation_is_up_to_date():
    outdated = [file for file, text in docs.generated_files().items() if file.read_text(encoding="utf-8") != text]
    assert not outdated, "make docs"
    shown = " ".join(re.findall("<!-- (.*) -->", PAGES)).split()
    assert {*docs.SCRIPTS, *docs.COMPARISONS} <= {*shown}


def test_a_comparison_is_judged_without_output(tmp_path, capsys):
    done = report_of((configuration(), runs_of(seconds=(1.0, 1.02, 0.99))))
    (row,) = measure.quiet_comparison(done, tmp_path).rows
    assert row.name == "single" and not capsys.readouterr().out
    assert read_results(tmp_path / "results.json").outcomes == done.outcomes


def test_the_direct_cost_of_each_loop_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--output", str(tmp_path / "overhead.json")])
    monkeypatch.setattr(overhead, "EMPTY_STEPS", 3)
    monkeypatch.setattr(overhead.engine, "PhaseTimer", overhead.PhaseTimer)  # restored after the test
    microseconds = overhead.direct(torch.device("cpu"), runs.Runs(runs.benchmark_parser("", blocks=2).parse_args()))
    assert {name: len(values) for name, values in microseconds.items()} == {"fit": 2, "by hand": 2, "fit, no phases": 2}
    assert min(map(min, microseconds.values())) > 1


@pytest.fixture
def call(monkeypatch, tmp_path):
    """call("overhead", ...) runs benchmark.py with stub commands. Returns what ran, the error and the exit code."""
    ran = tmp_path / "ran"
    commands = {
        "overhead": ["-c", f"open({str(ran)!r}, 'a').write('overhead ')"],
        "loaders": ["-c", f"open({str(ran)!r}, 'a').write('loaders '); raise SystemExit(1)"],
        "ddp-lenet": ["-c", f"import sys, time; open({str(ran)!r}, 'a').write(f'{{sys.argv[1:]}} '); time.sleep(60)"],
    }
    monkeypatch.setattr(benchmark, "commands", lambda _: commands)
    monkeypatch.setattr(benchmark, "write", lambda: None)
    monkeypatch.setattr(benchmark, "DIRECTORY", tmp_path)

    def call(*names):
        ran.write_text("")
        monkeypatch.setattr(sys, "argv", ["benchmark.py", "--minutes", "0.03", "--only", *names])
        try:
            benchmark.main()
        except SuiteError as error:
            return ran.read_text().strip(), str(error), error.exit_code
        return ran.read_text().strip(), "", 0

    (tmp_path / "overhead.json").write_text('{"left": 0}')
    return call


def test_only_a_failed_benchmark_is_named_and_run_again(call):
    ran, said, code = call("loaders", "overhead")
    assert ran == "loaders overhead" and code == FAILED and said.startswith("failed: loaders; ")
    assert call("loaders", "overhead")[0] == "loaders"  # overhead has been measured
    assert call("overhead") == ("overhead", "", 0) and call("overhead")[0] == "overhead"  # a complete call starts anew


def test_an_unfinished_benchmark_is_resumed(call, tmp_path, capsys):
    (tmp_path / "overhead.json").write_text('{"left": 3}')
    assert call("overhead", "ddp-lenet") == ("overhead []", "", 0)
    assert "something is left of overhead, ddp-lenet" in capsys.readouterr().out
    (tmp_path / "overhead.json").write_text('{"left": 0}')
    assert call("overhead", "ddp-lenet") == ("overhead ['--resume']", "", 0)
