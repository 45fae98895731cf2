"""The pages show what the committed JSON files say; rivals take turns; a benchmark that fails is named."""

import contextlib
import io
import json
import sys
from dataclasses import replace

import pytest
import torch

from common.errors import FAILED, SuiteError
from comparison.judge import projection
from tests.fixtures import PROJECT
from tests.reports import report_of, runs

sys.path.insert(0, str(PROJECT / "benchmarks"))

import benchmark
import false_alarms
import links
import measure
import options
import sharding

import docs

PAGES = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("performance", "findings", "own-script")
)
FIGURES = PROJECT / "figures" / "benchmark"


def test_pages_and_schemas_say_what_would_be_made_of_code_and_results():
    assert not [file for file, text in docs.made().items() if file.read_text(encoding="utf-8") != text], "make docs"
    assert all(f"<!-- {name} -->" in PAGES for name in (*docs.SCRIPTS, *docs.COMPARISONS))


def test_the_page_shows_what_was_measured_over_links():
    measured = json.loads((FIGURES / "links.json").read_text(encoding="utf-8"))
    found = links.all_forecasts(measured, FIGURES)
    for table in (links.step_table(measured["seconds"]), links.error_table(found)):
        assert table in PAGES
    assert links.carried_table(measured["carried"]) in PAGES
    assert f"`{measured['command']}`" in PAGES and measured["steps"] == links.STEPS
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


def cells_of(line):
    return [text.strip() for text in line.strip("| ").split("|")]


def test_the_table_of_what_ranks_hold_shows_every_rate_beside_ddp():
    results = {
        **{"model": "net", "ranks": 2, "steps": 2},
        "memory_parts": {"DDP": {"parameters": 2**21}, "FSDP": {"parameters": 2**20}},
        "seconds": {
            "10 Gbit/s": {"DDP": [0.2, 0.3, 0.4], "FSDP": [0.3, 0.45, 0.6]},
            "1 Gbit/s": {"DDP": [1.0, 1.0, 1.0], "FSDP": [1.5, 1.5, 1.5]},
        },
    }
    header, _, ddp, fsdp = sharding.table(results).splitlines()
    assert cells_of(header)[1:3] == ["parameters (MiB)", "10 Gbit/s: step (ms)"] and "1.00 [1.00, 1.00]" in ddp
    assert cells_of(fsdp) == ["FSDP", "1.0", "225", "1.50 [1.50, 1.50]", "750", "1.50 [1.50, 1.50]"]


def test_parts_are_put_between_their_markers_and_the_rest_stays(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- loaders -->\nold\n<!-- end -->\nbetween\n<!-- startup -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(docs, "FIGURES", tmp_path)
    (tmp_path / "benchmark").mkdir()
    times = {"default": [20.0, 21.0, 22.0], "1 thread, 0 workers": [30.0] * 3, "2 threads, 0 workers": [10.0] * 3}
    results = {
        **{"command": "python x.py", "foreign_cores": 0.25},
        "environment": {"gpus": [], "cores": 2, "cpu": "C", "torch": "2.11"},
        "images_per_second": {"mnist": {"0 workers": [100.0] * 3, "resident": [2000.0, 3000.0, 2449.5]}},
        "beside_training": [{"model": "lenet", "cores": 2, "ranks": 1, "milliseconds": times}],
    }
    (tmp_path / "benchmark" / "loaders.json").write_text(json.dumps(results))
    text = docs.page_made(page)
    assert text.startswith("before\n<!-- loaders -->\n\n| Data set")
    assert "2,450 (2,000–3,000)" in text and "24.49 [" in text  # the geometric mean of 20 and 30
    cells = cells_of(next(line for line in text.splitlines() if line.startswith("| lenet")))
    assert cells[:6] == ["lenet", "2", "1", "21 (20–22)", "2 threads, 0 workers", "10 (10–10)"]
    assert cells[6].startswith("2.10 [")
    assert "2 cores of C, torch 2.11; other programs kept 0.25 cores busy.\n\n<!-- end -->\nbetween\n" in text
    assert text.endswith("<!-- startup -->\nold\n<!-- end -->\n")


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
