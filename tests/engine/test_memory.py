"""Peak memory and its parts: how they are measured, limited, and shown."""

import csv
import gc
import json
import multiprocessing
import re
import sys
from argparse import ArgumentTypeError
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from common.engine import run, setup
from common.engine.memory import PeakMemory, memory_parts, peak_memory
from common.errors import SuiteError
from common.machine.memory import mapped_files, populate
from common.settings.arguments import memory
from comparison.judge.analysis import analyse
from comparison.run.launch import ran_out_of_memory
from comparison.show.detail_tables import memory_table
from comparison.show.plots import draw_memory, memory_finding
from comparison.show.report import write_csv, write_markdown
from comparison.show.tables import main_table
from tests.pretended_gpus import pretended_gpus
from tests.reports import cells, configuration, report_of, runs
from tests.trainings import CPU

META, MIB = torch.device("meta"), 2**20
PARTS = {"parameters": 2 * MIB, "gradients": 2 * MIB, "optimizer state": 4 * MIB}

# ---- measuring and limiting

CHILD = """
from common.machine.memory import hold_to, peak_resident_bytes
before = peak_resident_bytes()
hold_to(before + (100 << 20))
block = b'1' * (300 << 20)
del block
print(before, peak_resident_bytes(), flush=True)
hold_to(before + (100 << 20))
"""


def test_a_peak_includes_freed_memory_but_not_the_parents(project):
    parent = f"import subprocess, sys; block = b'1' * (1 << 30); subprocess.run([sys.executable, '-c', {CHILD!r}])"
    done = project("-c", parent, tiny=False)
    before, after = map(int, done.stdout.split())
    assert 5 * MIB < before < 1024 * MIB and after - before >= 290 * MIB
    found = r"MemoryError: this process has had [\d,]+ MiB, --memory-limit allows [\d,]+ MiB$"
    assert re.search(found, done.stderr.strip())


def resident_files():
    return int(re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_fork_maps_the_files_that_its_parent_has_mapped():
    gc.collect()  # or files of earlier tests might be unmapped in between
    files, expected = mapped_files(), resident_files()
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), populate, (files,)) as pool:
        assert pool.submit(resident_files).result() > 0.9 * expected > 10_000


FORKS = """
import os, sys, torch
import common.engine.run
from common.machine.memory import shift_allocations
prepare = shift_allocations if sys.argv[1] == "shift" else lambda: None
for _ in range(6):
    if not os.fork():
        prepare()
        kept = [torch.empty(elements) for elements in (1_000, 1_000_000)]
        print(*(tensor.data_ptr() for tensor in kept), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux only")
def test_forks_allocate_at_different_places(project):
    def places(how):
        lines = project("-c", FORKS, how, tiny=False).stdout.splitlines()
        return [len(set(addresses)) for addresses in zip(*map(str.split, lines), strict=True)]

    assert min(places("shift")) > 3 > max(places("stay"))


@pytest.mark.parametrize("optimizer, state", [(torch.optim.Adam, 2 * 200 + 4), (torch.optim.SGD, 200)])
def test_memory_parts_include_freed_gradients(optimizer, state):
    model = nn.Linear(10, 5)  # 50 weights of 4 bytes, 5 biases
    model.bias.requires_grad_(False)
    chosen = optimizer([model.weight], **({"momentum": 0.9} if optimizer is torch.optim.SGD else {}))
    model(torch.ones(2, 10)).sum().backward()
    chosen.step()
    chosen.zero_grad(set_to_none=True)
    assert memory_parts(model, chosen, CPU) == {"parameters": 220, "gradients": 200, "optimizer state": state}
    assert set(memory_parts(model, chosen, META).values()) == {0}  # nothing is on that device


AMOUNTS = {"800MiB": 800 * MIB, "1.5GiB": 1536 * MIB, "2KiB": 2048, "1048576": MIB, str(2**31): 2**31}


@pytest.mark.parametrize("text", [*AMOUNTS, "2GB", "0", "0.9", "-1GiB", "GiB", "nanMiB", "much"])
def test_an_amount_of_memory(text):
    if text in AMOUNTS:
        assert memory(text) == AMOUNTS[text]
        return
    with pytest.raises(ArgumentTypeError, match="an amount of memory of at least a byte, e.g. 800MiB or 2GiB, found '"):
        memory(text)


def test_the_limit_is_checked_after_powers_of_two_and_every_evaluation(train_here, monkeypatch):
    checks, steps, fit = [], [], run.fit
    for module in ("common.engine.run", "common.engine.memory"):
        monkeypatch.setattr(f"{module}.hold_to", lambda limit: checks.append((limit, len(steps))))
    monkeypatch.setattr(
        run, "fit", lambda context, step, *others: fit(context, lambda *batch: steps.append(1) or step(*batch), *others)
    )
    for limit in ("--memory-limit=1GiB", "--debug"):
        train_here("data_parallel_train.py --model mlp --train-size 96 --batch-size 32 --epochs 3", limit)
    # checks in two of three steps of the warm-up, and in three epochs of as many
    assert checks == [(2**30, step) for step in (0, 0, 1, 3, 5, 6, 9)]
    assert len(steps) == 18


@pytest.mark.parametrize(
    "command", ["data_parallel_train.py", pytest.param("ddp_train.py --spawn 2", marks=pytest.mark.slow)]
)
def test_exceeding_the_limit_counts_as_out_of_memory(command, project, tmp_path):
    done = project(command, "--memory-limit", "20MiB", "--output", tmp_path / "result.json", "--figure-dir", tmp_path)
    assert done.returncode == 1
    line = done.stderr.splitlines()[0]
    assert re.fullmatch(
        r"error: (rank \d, )?warm-up: out of memory; MemoryError: this process has had [\d,]+ MiB, "
        r"--memory-limit allows 20 MiB; try a smaller --batch-size, or fewer --num-workers",
        line,
    ), line
    assert ran_out_of_memory(line.removeprefix("error: "))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["epochs"]) == ("failed", [])


def test_the_limit_is_refused_on_a_gpu(parsed, monkeypatch):
    monkeypatch.setattr(setup, "device_name", lambda device: f"{device} (H100)")
    config = parsed("--memory-limit", "1GiB")
    with pytest.raises(SuiteError, match=r"--memory-limit is for a CPU; the run is on cuda:0 \(H100\)"):
        setup.prepare_process(config, torch.device("cuda:0"))
    setup.check_memory_limit(config, CPU)
    setup.check_memory_limit(parsed(), torch.device("cuda:0"))


# ---- shown


def compared(*peaks, one=None, **values):
    """Return the report of a device with 100 MiB, in parts `one`, and DDP on two with `peaks` MiB on the second."""
    parts = {"count": 2, "memory_parts": PARTS, **values}
    rival = [run for peak in peaks for run in runs("ddp", (1.0,), peak_memory_bytes=(MIB, peak * MIB), **parts)]
    single = runs(peak_memory_bytes=(100 * MIB,), memory_parts=one)
    return report_of((configuration(), single), (configuration("ddp"), rival))


SIMILAR = "No row needs 20% more or less memory than its baseline"


@pytest.mark.parametrize(
    "peak, simulated, finding",
    [
        (79, False, "“DDP” needs 0.79 times the memory of “SINGLE”"),
        (119, False, SIMILAR),
        (81, False, SIMILAR),
        (900, True, "Peak memory of a device"),
    ],
)
def test_the_figure_names_measured_rows_that_need_much_more_or_less(peak, simulated, finding):
    assert memory_finding(analyse(compared(peak, peak, peak, simulated=simulated)).done) == finding


@pytest.mark.parametrize("unknown", [None, dict.fromkeys(PARTS, 0)])  # every network has parameters
def test_parts_that_are_unknown_are_dashes(unknown, tmp_path):
    analysis = analyse(compared(150, 150, one=unknown))
    assert cells(memory_table(analysis, "simple")) == [
        ["SINGLE", "2.00", "100", "100", "–", "–", "–", "–"],
        ["DDP", "1.00", "151", "150", "2.0", "2.0", "4.0", "142"],
    ]
    write_csv(analysis, tmp_path / "results.csv")
    assert [row["optimizer_state_bytes"] for row in csv.DictReader((tmp_path / "results.csv").open())] == [
        "",
        "4194304",
    ]
    without = analyse(report_of((configuration(), runs(peak_memory_bytes=(MIB,), memory_parts=unknown))))
    write_markdown(without, tmp_path / "report.md", [])
    assert memory_table(without, "simple") == "" and "## Memory" not in (tmp_path / "report.md").read_text()


def test_an_unknown_peak_is_a_dash_and_not_drawn():
    old, known = (
        (configuration(name), runs(name, peak_memory_bytes=peaks)) for name, peaks in (("single", ()), ("dp", (9,)))
    )
    assert cells(main_table(analyse(report_of(old)), "simple"))[0][-2:] == ["–", "baseline"]
    assert draw_memory(analyse(report_of(old))) is None and draw_memory(analyse(report_of(old, known)))


def test_the_peak_includes_what_a_gpus_graphs_keep():
    def segment(device, pool, allocated):
        return {"device": device, "segment_pool_id": pool, "total_size": 100, "allocated_size": allocated}

    with pretended_gpus("first", "second") as gpus:
        gpus.segments = [segment(1, (0, 0), 0), segment(1, (0, 1), 30), segment(1, (0, 2), 40), segment(0, (0, 3), 0)]
        gpus.peaks[torch.device("cuda", 1)] = 1000
        assert peak_memory(torch.device("cuda", 1)) == (1000 + 70 + 60, 2**21)


def test_the_peak_of_a_gpus_first_epoch_counts_only_if_it_is_alone(monkeypatch):
    epochs = iter([(90, 99), (50, 65), (70, 60)])
    monkeypatch.setattr("common.engine.memory.peak_memory", lambda device: next(epochs))
    peaks = PeakMemory([torch.device("cuda:0")])
    peaks.keep()
    assert peaks.largest() == [(90, 99)]
    peaks.keep()
    peaks.keep()
    assert peaks.largest() == [(70, 65)]
