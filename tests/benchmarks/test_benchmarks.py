"""The page on performance shows what the committed JSON files say; rivals take turns."""

import contextlib
import io
import json
import sys
import time
from dataclasses import replace

import pytest
import torch

from common.errors import FAILED, SuiteError
from comparison.judge import projection
from tests.fixtures import CPU, PROJECT
from tests.reports import report_of, runs

sys.path.insert(0, str(PROJECT / "benchmarks"))

import benchmark
import false_alarms
import links
import measure
import options
import roofline
import sharding
import shortest
import startup
import tables

import docs

PAGE, FIGURES = PROJECT / "docs" / "performance.md", PROJECT / "figures" / "benchmark"


def test_pages_and_schemas_say_what_would_be_made_of_code_and_results():
    assert not [file for file, text in docs.made().items() if file.read_text(encoding="utf-8") != text], "make docs"


@pytest.mark.parametrize("name", [*tables.TABLES, *tables.COMPARISONS])
def test_every_benchmark_has_its_place_on_the_page(name):
    assert f"<!-- {name} -->" in PAGE.read_text(encoding="utf-8")


def test_the_page_shows_what_was_measured_over_links():
    page = (PROJECT / "docs" / "findings.md").read_text(encoding="utf-8")
    measured = json.loads((FIGURES / "links.json").read_text(encoding="utf-8"))
    found = links.all_forecasts(measured, FIGURES)
    assert links.step_table(measured["seconds"]) in page and links.error_table(found) in page
    assert links.carried_table(measured["carried"]) in page
    assert f"`{measured['command']}`" in page and measured["steps"] == links.STEPS
    assert max(forecast.ranks for forecast in found) == projection.TESTED


def cells_of(line):
    return [text.strip() for text in line.strip("| ").split("|")]


def test_the_table_of_what_ranks_hold_shows_every_rate_beside_ddp():
    parts = ("parameters", "gradients", "optimizer state")
    results = {
        **{"model": "net", "ranks": 2, "steps": 2},
        "memory_parts": {
            "DDP": dict(zip(parts, (2**21, 2**21, 2**22), strict=True)),
            "FSDP": dict(zip(parts, (2**20, 2**20, 2**21), strict=True)),
        },
        "seconds": {
            "no limit": {"DDP": [0.2, 0.3, 0.4], "FSDP": [0.3, 0.45, 0.6]},
            "1 Gbit/s": {"DDP": [1.0, 1.0, 1.0], "FSDP": [1.5, 1.5, 1.5]},
        },
    }
    header, _, ddp, fsdp = sharding.table(results).splitlines()
    assert cells_of(header)[1:5] == [*(f"{part} (MiB)" for part in parts), "no limit: step (ms)"]
    assert cells_of(fsdp) == ["FSDP", "1.0", "1.0", "2.0", "225", "1.50 [1.50, 1.50]", "750", "1.50 [1.50, 1.50]"]
    assert "1.00 [1.00, 1.00]" in ddp


def test_the_table_of_shorter_trainings_compares_seed_by_seed():
    runs = {
        "the recipe": {"42": (50, 0.9), "43": (100, 0.91)},
        "longer": {"43": (210, 0.9), "42": (100, 0.92)},
        "once": {"43": (150, 0.5)},
        "later": {"43": (100, 0.5)},
    }
    of_dataset = {
        name: {seed: {"seconds": seconds, "accuracy": accuracy} for seed, (seconds, accuracy) in of_seed.items()}
        for name, of_seed in runs.items()
    }
    of_dataset["later"]["43"]["torch"] = "another"
    table = shortest.table({"runs": {"cifar10": of_dataset}})
    recipe, longer, once, later = map(cells_of, table.splitlines()[2:])
    assert recipe[:4] == ["cifar10", "the recipe", "90.50 (90.00–91.00)", "75 (50–100)"] and recipe[5] == "2"
    assert longer[4] == "2.05" and once[2:] == ["50.00 (50.00–50.00)", "150 (150–150)", "1.50", "1"]
    assert later[4] == "–"


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


def test_a_ratio_is_taken_block_by_block():
    drift = [1.0, 2.0, 4.0, 8.0]
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
    witness.foreign_cores = 99.0
    measure.write(str(tmp_path / "new" / "x.json"), {"seconds": 1}, witness)
    written = json.loads((tmp_path / "new" / "x.json").read_text())
    assert written["command"] == "python benchmarks/overhead.py --blocks 3" and written["seconds"] == 1
    assert written["foreign_cores"] == 99.0 and written["environment"]["torch"]
    assert "other programs kept 99.0 of" in capsys.readouterr().err
    witness.foreign_cores = 0.0
    measure.write(str(tmp_path / "x.json"), {}, witness)
    assert capsys.readouterr().err == ""


def test_bytes_are_those_that_operations_read_and_write_and_views_move_none():
    numbers = torch.ones(10, 100)
    with roofline.Meter(CPU) as counter:
        numbers.view(100, 10).t()
    assert counter.bytes.total() == 0
    with roofline.Meter(CPU) as counter:
        torch.relu(numbers)
    assert counter.bytes.total() == 2 * 4000
    with roofline.Meter(CPU) as counter:
        numbers.add_(1)
    assert counter.bytes.total() == 2 * 4000
    with roofline.Meter(CPU) as counter, torch.autocast("cpu", torch.bfloat16):
        numbers @ numbers.t()
    assert counter.bytes.total() == 2 * (4000 + 2000) + (2000 + 2000 + 200)  # two casts, then the product
    weights = torch.nn.Parameter(numbers)
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.Adam([weights], fused=True)
    optimizer.step()
    with roofline.Meter(CPU) as counter:
        optimizer.step()
    # reads weights, gradients and two moments, writes all but the gradients; and a scalar: the number of steps
    assert counter.bytes.total() == pytest.approx(7 * 4000, abs=20)


def test_a_step_is_taken_apart_into_its_operations(monkeypatch):
    monkeypatch.setattr(roofline, "STEPS", 2)
    weights = torch.ones(64, 32, requires_grad=True)
    apart = roofline.operations(lambda: (torch.ones(16, 64) @ weights).relu().sum().backward(), CPU)
    assert apart["aten.mm"]["flop"] == 2 * (2 * 16 * 64 * 32)  # the product, and that for the weights' gradients
    assert apart["aten.relu"] == {"flop": 0, "bytes": 2 * 4 * 16 * 32, "seconds": apart["aten.relu"]["seconds"]}
    seconds = [taken["seconds"] for taken in apart.values()]
    assert min(seconds) > 0 and seconds == sorted(seconds, reverse=True)


def test_the_rooflines_title_names_the_best_network_of_each_type():
    def peak(seconds):
        return {"work": 1e9, "seconds": [seconds] * 3}

    peaks = {"fp32": {"matrix product": peak(0.01), "convolution": peak(0.02)}, "bf16": {"convolution": peak(0.005)}}
    networks = {
        name: {precision: {"flop": 1e9, "seconds": [seconds] * 3} for precision in peaks}
        for name, seconds in (("small", 0.1), ("large", 0.02))
    }
    found = roofline.finding({"peaks": peaks, "networks": networks})
    assert found.endswith("at most 50% in fp32 (large) and 25% in bf16 (large)"), found


def test_operations_that_take_little_are_one_row():
    operations = {"aten.convolution": (3e9, 2e8, 0.06), "aten.relu": (0, 1e8, 0.0395)}
    operations |= {"aten.add": (0, 1e6, 0.0003), "aten.sum": (0, 1e6, 0.0002)}
    of = {name: dict(zip(("flop", "bytes", "seconds"), taken, strict=True)) for name, taken in operations.items()}
    results = {"batch": 8, "copy": {"work": 2e9, "seconds": [0.1]}}
    results["operations"] = {"network": "net", "precision": "bf16", "of": of}
    convolution, relu, others = map(cells_of, roofline.operations_table(results, 100.0).splitlines()[2:])
    assert convolution == ["`aten.convolution`", "60.0", "60%", "50", "50%", "200", "3", "17%"]
    assert relu[3:5] == ["–", "–"] and others[:2] == ["all others", "0.5"] and others[5] == "2"


def test_the_least_of_ddp_ends_with_its_first_step(monkeypatch):
    """What the interpreters do after it is not start-up."""
    run, start = startup.call, time.monotonic()

    def linger(*command):
        done = run(*command)
        time.sleep(1)
        return done

    monkeypatch.setattr(startup, "call", linger)
    assert 0 < startup.bare_seconds() < time.monotonic() - start - 1


def test_a_benchmark_that_fails_is_named_and_the_others_run(monkeypatch, tmp_path):
    updated = []
    monkeypatch.setattr(
        benchmark,
        "commands",
        lambda _: {
            "overhead": ["-c", "raise SystemExit(1)"],
            "loaders": ["-c", f"open({str(tmp_path / 'ran')!r}, 'w')"],
        },
    )
    monkeypatch.setattr(benchmark, "write", lambda: updated.append((tmp_path / "ran").exists()))
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "overhead", "loaders"])
    with pytest.raises(SuiteError, match="failed: overhead; .*--only overhead$") as caught:
        benchmark.main()
    assert updated == [True] and caught.value.exit_code == FAILED


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
        started.append(command[4:])
        monkeypatch.setattr(sys, "argv", list(command))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            options.main()
        return json.loads(printed.getvalue())

    monkeypatch.setattr(options, "printed_by", run)
    monkeypatch.setattr(sys, "argv", ["options.py", "--blocks", "2", "--output", str(tmp_path / "options.json")])
    options.main()
    assert sorted(flag for flags in started for flag in flags) == sorted(2 * others)
    (medians,) = json.loads((tmp_path / "options.json").read_text())["milliseconds_per_step"].values()
    assert medians["defaults"] == medians["memory returned"] == [1.0, 1.0]
    assert medians.get("cuDNN not tuned") == ([3.0, 3.0] if kind == "cuda" else None)
