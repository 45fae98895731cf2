"""The page on performance shows what the committed JSON files say; rivals take turns."""

import contextlib
import io
import json
import math
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.errors import FAILED, SuiteError
from common.files.probe import Bucket
from comparison.judge import projection
from comparison.judge.projection import Link
from tests.fixtures import CPU, PROJECT
from tests.reports import report_of, runs

sys.path.insert(0, str(PROJECT / "benchmarks"))

import benchmark
import cluster_size
import false_alarms
import links
import measure
import options
import roofline
import startup
import tables
import turns

PAGE, FIGURES = PROJECT / "docs" / "performance.md", PROJECT / "figures" / "benchmark"


@pytest.mark.parametrize("name", [*tables.TABLES, *tables.COMPARISONS])
def test_the_page_shows_what_was_measured_or_what_it_waits_for(name):
    text = PAGE.read_text(encoding="utf-8")
    if (FIGURES / f"{name}.json").exists() or (FIGURES / name).exists():
        assert f"<!-- {name} -->\n\n{tables.table(name, FIGURES)}\n\n<!-- end -->" in text
    else:
        assert f"<!-- {name} -->\nnot measured yet\n<!-- end -->" in text


def test_the_page_shows_what_was_measured_over_links():
    page = (PROJECT / "docs" / "findings.md").read_text(encoding="utf-8")
    measured = json.loads((FIGURES / "links.json").read_text(encoding="utf-8"))
    found = links.all_forecasts(measured, FIGURES)
    assert links.step_table(measured["seconds"]) in page and links.error_table(found) in page
    assert links.carried_table(measured["carried"]) in page
    assert f"`{measured['command']}`" in page and measured["steps"] == links.STEPS
    assert max(forecast.ranks for forecast in found) == projection.TESTED


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
@pytest.mark.parametrize("along", ["ring", "tree"])
def test_ranks_that_are_ready_together_take_what_the_projection_says(along, ranks):
    link = Link(start=0.3, gbps=2.0, segments=cluster_size.GLOO, at_once=1)
    ends = getattr(cluster_size, along)(np.full(ranks, 5.0), 10**6, 0.3, 2.0)
    assert ends == pytest.approx(5.0 + sum(getattr(link, along)(10**6, ranks)))


def test_one_late_rank_holds_up_all():
    ready = np.array([0.0, 0.0, 50.0, 0.0])
    for along in (cluster_size.ring, cluster_size.tree):
        assert along(ready, 1000, 1.0, 1.0).max() == pytest.approx(along(np.full(4, 50.0), 1000, 1.0, 1.0).max())


def test_the_efficiency_of_ranks_that_are_played_through():
    def played(ranks, steps=(10.0,), left=0.0, **link):
        return cluster_size.efficiency(
            list(steps),
            [Bucket(10**6, left)],
            ranks,
            link.get("start", 0.0),
            link.get("gbps", math.inf),
            cluster_size.tree,
        )

    assert played(1, steps=(5.0, 15.0), start=3.0) == 1  # it exchanges nothing
    assert played(2, gbps=0.8) == pytest.approx(10 / 20) and played(2, gbps=0.8, left=0.4) == pytest.approx(10 / 16)
    assert played(16, start=1.0) == pytest.approx(10 / 18)
    assert 0.6 < played(64, steps=(5.0, 15.0)) < 0.72  # all wait for a slow one


def test_what_is_left_beside_rows_and_blocks():
    assert turns.residual([[1, 2, 4], [3, 6, 12]]) == pytest.approx(0)
    assert turns.residual([[1, 1], [1, math.e]]) == pytest.approx(0.5)  # 4 parts of 1/4, 1 degree of freedom


def test_the_table_of_what_ranks_hold_shows_every_rate_beside_ddp():
    results = {
        "model": "net",
        "ranks": 2,
        "steps": 2,
        "memory_parts": {
            "DDP": {"parameters": 2**21, "gradients": 2**21, "optimizer state": 2**22},
            "FSDP": {"parameters": 2**20, "gradients": 2**20, "optimizer state": 2**21},
        },
        "seconds": {
            "no limit": {"DDP": [0.2, 0.3, 0.4], "FSDP": [0.3, 0.45, 0.6]},
            "1 Gbit/s": {"DDP": [1.0, 1.0, 1.0], "FSDP": [1.5, 1.5, 1.5]},
        },
    }
    header, _, ddp, fsdp = tables.sharding(results).splitlines()
    assert [text.strip() for text in header.strip("| ").split("|")][1:5] == [
        "parameters (MiB)",
        "gradients (MiB)",
        "optimizer state (MiB)",
        "no limit: step (ms)",
    ]
    assert [text.strip() for text in fsdp.strip("| ").split("|")] == [
        "FSDP",
        "1.0",
        "1.0",
        "2.0",
        "225",
        "1.50 [1.50, 1.50]",
        "750",
        "1.50 [1.50, 1.50]",
    ]
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
    results = {"runs": {"cifar10": of_dataset}}
    _, _, recipe, longer, once, later = (
        [text.strip() for text in line.strip("| ").split("|")] for line in tables.shortest(results).splitlines()
    )
    assert recipe[:4] == ["cifar10", "the recipe", "90.50 (90.00–91.00)", "75 (50–100)"] and recipe[5] == "2"
    assert longer[4] == "2.05" and once[2:] == ["50.00 (50.00–50.00)", "150 (150–150)", "1.50", "1"]
    assert later[4] == "–"


def test_every_benchmark_has_a_table():
    assert [*benchmark.SCRIPTS, *benchmark.COMPARISONS] == [*tables.TABLES, *tables.COMPARISONS]


def test_tables_are_put_between_their_markers_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- loaders -->\nold\n<!-- end -->\nbetween\n<!-- startup -->\nold\n<!-- end -->\n")
    (tmp_path / "loaders.json").write_text(
        json.dumps(
            {
                "command": "python x.py",
                "environment": {"gpus": [], "cores": 2, "cpu": "C", "torch": "2.11"},
                "foreign_cores": 0.25,
                "images_per_second": {"mnist": {"0 workers": [100.0] * 3, "resident": [2000.0, 3000.0, 2449.5]}},
                "beside_training": [
                    {
                        "model": "lenet",
                        "cores": 2,
                        "ranks": 1,
                        "milliseconds": {
                            "default": [20.0, 21.0, 22.0],
                            "1 threads, 0 workers": [30.0] * 3,
                            "2 threads, 0 workers": [10.0] * 3,
                        },
                    }
                ],
            }
        )
    )
    tables.update(page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n<!-- loaders -->\n\n| Data set")
    assert "2,450 (2,000–3,000)" in text and "24.49 [" in text  # the geometric mean of 20 and 30
    beside = next(line for line in text.splitlines() if line.startswith("| lenet"))
    cells = [cell.strip() for cell in beside.strip("|").split("|")]
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
    peaks = {
        "fp32": {
            "matrix product": {"work": 1e9, "seconds": [0.01] * 3},
            "convolution": {"work": 1e9, "seconds": [0.02] * 3},
        },
        "bf16": {"convolution": {"work": 1e9, "seconds": [0.005] * 3}},
    }
    networks = {
        name: {precision: {"flop": 1e9, "seconds": [seconds] * 3} for precision in peaks}
        for name, seconds in (("small", 0.1), ("large", 0.02))
    }
    found = roofline.finding({"peaks": peaks, "networks": networks})
    assert found.endswith("at most 50% in fp32 (large) and 25% in bf16 (large)"), found


def test_operations_that_take_little_are_one_row():
    best = {"bf16": [100.0]}
    results = {
        "batch": 8,
        "copy": {"work": 2e9, "seconds": [0.1]},
        "operations": {
            "network": "net",
            "precision": "bf16",
            "of": {
                "aten.convolution": {"flop": 3e9, "bytes": 2e8, "seconds": 0.06},
                "aten.relu": {"flop": 0, "bytes": 1e8, "seconds": 0.0395},
                "aten.add": {"flop": 0, "bytes": 1e6, "seconds": 0.0003},
                "aten.sum": {"flop": 0, "bytes": 1e6, "seconds": 0.0002},
            },
        },
    }
    _, _, convolution, relu, others = (
        [text.strip() for text in line.strip("| ").split("|")]
        for line in tables._operations(results, best).splitlines()
    )
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
    monkeypatch.setattr(benchmark, "update", lambda *_: updated.append((tmp_path / "ran").exists()))
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--only", "overhead", "loaders"])
    with pytest.raises(SuiteError, match="failed: overhead; .*--only overhead$") as caught:
        benchmark.main()
    assert updated == [True] and caught.value.exit_code == FAILED


@pytest.mark.parametrize("kind, others", [("cpu", ["--glibc-defaults"]), ("cuda", ["--glibc-defaults", "--untuned"])])
def test_what_a_process_keeps_once_it_has_it_is_measured_in_another(kind, others, monkeypatch, tmp_path):
    """CuDNN's plans, as memory: a rival in the same process would go on with those that were found for the first."""
    started, tuned = [], []
    monkeypatch.setattr(options, "CASES", [("lenet", 32)])
    monkeypatch.setattr(options, "available_devices", lambda _: [torch.device(kind)])
    monkeypatch.setattr(options, "has_compiler", lambda: False)
    monkeypatch.setattr(options.process, "prepare_process", lambda config, device, tune: tuned.append(tune))
    monkeypatch.setattr(options.process, "keep_freed_memory", None)  # which the process sets itself
    monkeypatch.setattr(options, "steps_of", lambda *_, **__: lambda: 1.0 if tuned[-1] else 3.0)

    def run(command, **_):
        started.append(command[5:])
        monkeypatch.setattr(sys, "argv", command[1:])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            options.main()
        return SimpleNamespace(returncode=0, stdout=printed.getvalue())

    monkeypatch.setattr(options.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["options.py", "--blocks", "2", "--output", str(tmp_path / "options.json")])
    options.main()
    assert sorted(flag for flags in started for flag in flags) == sorted(2 * others)
    (medians,) = json.loads((tmp_path / "options.json").read_text())["milliseconds_per_step"].values()
    assert medians["defaults"] == medians["memory returned"] == [1.0, 1.0]
    assert medians.get("cuDNN not tuned") == ([3.0, 3.0] if kind == "cuda" else None)
