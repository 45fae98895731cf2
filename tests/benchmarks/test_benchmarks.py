"""The pages show what the committed JSON files say; rivals take turns; a benchmark that fails is named."""

import contextlib
import io
import json
import re
import sys
from dataclasses import replace

import benchmark
import false_alarms
import links
import measure
import options
import overhead
import pytest
import runs
import torch

import docs
from common.errors import FAILED, SuiteError
from comparison.judge import projection
from tests import reports
from tests.fixtures import PROJECT

PAGES = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("performance", "findings", "own-script", "methods")
)
FIGURES = PROJECT / "figures" / "benchmark"


def test_pages_and_schemas_say_what_would_be_made_of_code_and_results():
    assert not [file for file, text in docs.generated_files().items() if file.read_text(encoding="utf-8") != text], (
        "make docs"
    )
    shown = " ".join(re.findall("<!-- (.*) -->", PAGES)).split()
    assert {*docs.SCRIPTS, *docs.COMPARISONS} <= {*shown}


def test_the_page_shows_what_was_measured_over_links():
    measured = json.loads((FIGURES / "links.json").read_text(encoding="utf-8"))
    found = links.all_forecasts(measured, FIGURES)
    assert "<!-- links -->" in PAGES and measured["steps"] == links.STEPS
    assert max(forecast.ranks for forecast in found) == projection.TESTED


def test_a_page_shows_what_one_script_has_and_the_other_has_not(tmp_path, monkeypatch):
    for name, lines in {"one": "a\n    b\n    x[0](c)\nd", "other": "a\n    x[1](c)\n    d\nd"}.items():
        (tmp_path / f"{name}.py").write_text(f"import {name}\n\n\ndef train():\n{lines}\n")
    monkeypatch.setattr(docs, "PROJECT", tmp_path)
    monkeypatch.setattr(docs, "DOCS", tmp_path)  # where links begin with ../
    (tmp_path / "page.md").write_text("<!-- diff one other -->\n<!-- end -->")
    shown = docs.generated_page(tmp_path / "page.md").split("```")[1]
    assert shown == "diff\n-    b\n-    x[0](c)\n+    x[1](c)\n+    d\n"
    for page in ("lecture.md", "lecture.zh-CN.md"):
        text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
        assert "<!-- diff data_parallel_train ddp_train -->" in text


def test_ratios_are_taken_block_by_block():
    drift = [1.0, 2.0, 4.0, 8.0]
    result = measure.paired([1.1 * value for value in drift], drift)
    assert (result.value, result.low, result.high) == pytest.approx((1.1, 1.1, 1.1))


def test_the_loops_alone_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--output", str(tmp_path / "overhead.json")])
    monkeypatch.setattr(overhead, "EMPTY_STEPS", 3)
    monkeypatch.setattr(overhead.engine, "PhaseTimer", overhead.PhaseTimer)  # which is changed in turns
    microseconds = overhead.direct(torch.device("cpu"), runs.Runs(runs.benchmark_parser("", blocks=2).parse_args()))
    assert {name: len(values) for name, values in microseconds.items()} == dict.fromkeys(
        ("fit", "by hand", "fit, no phases"), 2
    )
    assert min(map(min, microseconds.values())) > 1


def test_real_false_alarms_are_planned_as_a_comparison_is(monkeypatch):
    commands = set()

    def run_once(row, block, seed, directory):
        commands.add(" ".join(row.command))
        (outcome,) = reports.report_of((row, reports.runs(seconds=(2.0 + block / 100,)))).outcomes
        return replace(outcome, block=block)

    monkeypatch.setattr(false_alarms, "run_once", run_once)
    comparison = false_alarms.real_comparison(0)
    assert sorted(comparison["first_seconds"]) == sorted(comparison["second_seconds"]) == [2.01, 2.02, 2.03]
    assert false_alarms.judge_real(comparison).words == "practically equal"
    (command,) = commands
    assert "--model lenet --batch-size 128 --num-workers 0 --device cpu --threads 1 --precision fp32" in command


@pytest.fixture
def call(monkeypatch, tmp_path):
    """call("overhead", ...): run benchmark.py with commands that only note that they ran; returns which did."""
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


def test_a_benchmark_that_fails_is_named_and_alone_is_run_again(call, tmp_path):
    ran, said, code = call("loaders", "overhead")
    assert ran == "loaders overhead" and code == FAILED and said.startswith("failed: loaders; ")
    assert call("loaders", "overhead")[0] == "loaders"  # the other is measured
    assert call("overhead") == ("overhead", "", 0) and call("overhead")[0] == "overhead"  # nothing was left


def test_a_benchmark_that_has_something_left_goes_on(call, tmp_path, capsys):
    (tmp_path / "overhead.json").write_text('{"left": 3}')
    assert call("overhead", "ddp-lenet") == ("overhead []", "", 0)
    assert "something is left of overhead, ddp-lenet" in capsys.readouterr().out
    (tmp_path / "overhead.json").write_text('{"left": 0}')
    assert call("overhead", "ddp-lenet") == ("overhead ['--resume']", "", 0)
    assert call("overhead", "ddp-lenet") == ("['--resume']", "", 0)


@pytest.mark.parametrize("kind, others", [("cpu", ["--glibc-defaults"]), ("cuda", ["--glibc-defaults", "--untuned"])])
def test_what_a_process_keeps_once_it_has_it_is_measured_in_another(kind, others, monkeypatch, tmp_path):
    """CuDNN's plans, as memory: a rival in the same process would go on with those that were found for the first."""
    started, cudnn = [], torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", cudnn.benchmark)  # which the program changes
    monkeypatch.setattr(options, "CASES", [("lenet", 32)])
    monkeypatch.setattr(options, "available_devices", lambda _: [torch.device(kind)])
    monkeypatch.setattr(options, "has_compiler", lambda: False)
    monkeypatch.setattr(options.process, "prepare_process", lambda config, device: None)
    monkeypatch.setattr(options.process, "keep_freed_memory", None)  # which the process sets itself
    monkeypatch.setattr(options, "steps_of", lambda *_, **__: lambda: 1.0 if cudnn.benchmark else 3.0)

    def run(*command):
        started.extend(command[4:])
        monkeypatch.setattr(sys, "argv", list(command))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            options.main()
        return json.loads(printed.getvalue())

    monkeypatch.setattr(options, "printed_by", run)
    monkeypatch.setattr(sys, "argv", ["options.py", "--blocks", "2", "--output", str(tmp_path / "options.json")])
    options.main()
    assert sorted(started) == sorted(2 * others)
    (medians,) = json.loads((tmp_path / "options.json").read_text())["milliseconds_per_step"].values()
    assert medians["defaults"] == medians["memory returned"] == [1.0, 1.0]
    assert medians.get("cuDNN not tuned") == ([3.0, 3.0] if kind == "cuda" else None)
