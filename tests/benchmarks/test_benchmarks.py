"""The pages show what the committed JSON files say; rivals take turns; a benchmark that fails is named."""

import contextlib
import io
import json
import math
import re
import sys
import time
from dataclasses import replace

import benchmark
import false_alarms
import links
import measure
import options
import overhead
import pytest
import torch

import docs
from common.errors import FAILED, SuiteError
from comparison.judge import projection
from tests.fixtures import PROJECT
from tests.reports import report_of, runs

PAGES = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("performance", "findings", "own-script", "methods")
)
FIGURES = PROJECT / "figures" / "benchmark"


def test_pages_and_schemas_say_what_would_be_made_of_code_and_results():
    assert not [file for file, text in docs.made().items() if file.read_text(encoding="utf-8") != text], "make docs"
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
    shown = docs.page_made(tmp_path / "page.md").split("```")[1]
    assert shown == "diff\n-    b\n-    x[0](c)\n+    x[1](c)\n+    d\n"
    for page in ("lecture.md", "lecture.zh-CN.md"):
        text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
        assert "<!-- diff data_parallel_train ddp_train -->" in text


def test_rivals_take_turns_and_the_first_block_warms_up():
    calls = []

    def rival(name):
        return lambda: calls.append(name) or len(calls)

    seconds = measure.interleave({name: rival(name) for name in "abc"}, blocks=4)
    blocks = [calls[start : start + 3] for start in range(0, 15, 3)]
    assert all(sorted(block) == ["a", "b", "c"] for block in blocks) and len({*map(tuple, blocks)}) > 1
    assert [len(values) for values in seconds.values()] == [4, 4, 4]
    assert min(min(values) for values in seconds.values()) > 3  # nothing of the first block
    assert [len(values) for values in measure.interleave({"a": rival("a")}, 4, warm_up=False).values()] == [4]
    drift = [1.0, 2.0, 4.0, 8.0]  # a ratio is taken block by block
    result = measure.paired([1.1 * value for value in drift], drift)
    assert (result.value, result.low, result.high) == pytest.approx((1.1, 1.1, 1.1))


def test_blocks_end_with_the_time_but_two_are_needed(monkeypatch):
    for end, blocks in ((math.inf, 4), (0.0, 2)):
        monkeypatch.setattr(measure, "ends", [end])
        assert [len(values) for values in measure.interleave({"a": int, "b": int}, 4).values()] == [blocks] * 2
    monkeypatch.setattr(sys, "argv", ["roofline.py", "--minutes", "1"])
    measure.arguments_of("", blocks=5, timed=True)
    assert 50 < measure.ends[1] - time.monotonic() < 61


def test_the_loops_alone_are_measured(monkeypatch):
    monkeypatch.setattr(overhead, "EMPTY_STEPS", 3)
    monkeypatch.setattr(overhead.engine, "PhaseTimer", overhead.PhaseTimer)  # which is changed in turns
    microseconds = overhead.direct(torch.device("cpu"), 2)
    assert {name: len(values) for name, values in microseconds.items()} == dict.fromkeys(
        ("fit", "by hand", "fit, no phases"), 2
    )
    assert min(map(min, microseconds.values())) > 1


def test_real_false_alarms_are_planned_as_a_comparison_is(monkeypatch, tmp_path):
    commands = set()

    def run_once(row, block, seed, directory):
        commands.add(" ".join(row.command))
        (outcome,) = report_of((row, runs(seconds=(2.0 + block / 100,)))).outcomes
        return replace(outcome, block=block)

    monkeypatch.setattr(false_alarms, "run_once", run_once)
    (comparison,) = false_alarms.real_comparisons(1, tmp_path)
    assert sorted(comparison["first_seconds"]) == sorted(comparison["second_seconds"]) == [2.01, 2.02, 2.03]
    assert false_alarms.judge_real(comparison).words == "practically equal"
    (command,) = commands
    assert "--model lenet --batch-size 128 --num-workers 0 --device cpu --threads 1 --precision fp32" in command


def test_a_result_tells_its_machine_and_warns_of_other_programs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/overhead.py", "--blocks", "3"])
    witness = measure.Witness()
    for witness.foreign_cores, warned in ((99.0, "other programs kept 99.0 of"), (0.0, "")):
        measure.write(tmp_path / "new" / "x.json", {"seconds": 1}, witness)
        said = capsys.readouterr().err
        assert warned in said and bool(warned) == bool(said)
        written = json.loads((tmp_path / "new" / "x.json").read_text())
        assert written["command"] == "python benchmarks/overhead.py --blocks 3" and written["seconds"] == 1
        assert written["foreign_cores"] == witness.foreign_cores and written["environment"]["torch"]


def test_a_benchmark_that_fails_is_named_and_the_others_run(monkeypatch, tmp_path):
    ran = tmp_path / "ran"
    commands = {"overhead": ["-c", "raise SystemExit(1)"], "loaders": ["-c", f"open({str(ran)!r}, 'w')"]}
    monkeypatch.setattr(benchmark, "commands", lambda _: commands)
    monkeypatch.setattr(benchmark, "write", lambda: None)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "overhead", "loaders"])
    with pytest.raises(SuiteError, match="failed: overhead; .*--only overhead$") as caught:
        benchmark.main()
    assert ran.exists() and caught.value.exit_code == FAILED


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
