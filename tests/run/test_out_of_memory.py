"""Running out of memory is recognised, shown with the batch, and no failure of the comparison."""

from dataclasses import replace

import pytest
import torch

from common.errors import OUT_OF_MEMORY, is_out_of_memory
from common.machine.entry import explained
from comparison.judge.analysis import analyse
from comparison.record import Equivalence
from comparison.run import equivalence, session, turns
from comparison.run.session import run_block
from comparison.show.remarks import not_measured, notes
from comparison.show.report import write_csv
from comparison.show.tables import main_table
from comparison.show.terminal import terminal_text
from comparison.show.verdict import verdict
from tests.reports import configuration, report_of, runs

SINGLE = (configuration(batch_size=4096, per_device_batch_size=4096), runs())
DDP = (configuration("ddp", batch_size=4096, per_device_batch_size=2048), runs("ddp", (1.0, 1.01, 0.99), count=2))
NO_ROOM = [OUT_OF_MEMORY] * 3

# ---- recognised


def test_allocator_errors_of_cpus_and_gpus_are_recognised():
    with pytest.raises(RuntimeError) as on_cpu:
        torch.empty(2**50)
    with pytest.raises(MemoryError) as in_python:
        bytearray(2**60)
    said = (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "GET was unable to find an engine to execute this computation",
        "FIND was unable to find an engine to execute this computation after trying 3 plans.",
        "CUDA error: out of memory",
    )
    gpus = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), torch.OutOfMemoryError()]
    for error in (on_cpu.value, in_python.value, *gpus, *map(RuntimeError, said)):
        assert is_out_of_memory(error) and str(explained(error)).startswith("out of memory; "), repr(error)
    for words in ("the loss is no number", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"):
        assert not is_out_of_memory(RuntimeError(words))


def test_reading_the_kernels_count_of_oom_kills(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "Path", lambda _: tmp_path / "vmstat")
    assert turns.oom_kills() == 0
    for text, kills in (("nr_free_pages 5\noom_kill 12\nx 1\n", 12), ("nr_free_pages 5\n", 0)):
        (tmp_path / "vmstat").write_text(text)
        assert turns.oom_kills() == kills


# ---- shown


def test_out_of_memory_is_shown_with_the_batch_and_is_no_failure(tmp_path):
    report = report_of(SINGLE, (DDP[0], NO_ROOM))
    words = "3 of 3 runs out of memory at a batch of 4,096, 2,048 per device"
    assert not report.failed and main_table(analyse(report), "simple").splitlines()[3].endswith(words)
    assert verdict(analyse(report))[1] == "DDP: 3 of 3 runs out of memory: signal 9."
    write_csv(analyse(report), tmp_path / "results.csv")
    assert words in (tmp_path / "results.csv").read_text()
    assert "DDP, block 1: out of memory: signal 9" in terminal_text(analyse(report), verbose=True)
    assert any(text.startswith("DDP: it ran out of memory at a batch of 4,096") for text in not_measured(report))


@pytest.mark.parametrize(
    "rows, failed",
    [
        ([(SINGLE[0], NO_ROOM), DDP], False),  # without a baseline, the other rows still count
        ([(SINGLE[0], NO_ROOM), (DDP[0], NO_ROOM)], True),  # nothing was measured
        ([SINGLE, (DDP[0], [OUT_OF_MEMORY, "failed"])], True),
        ([SINGLE, (configuration("mp", skip="needs 2 GPUs"), [])], False),
        ([SINGLE, (DDP[0], [OUT_OF_MEMORY, *DDP[1][:2]])], False),
    ],
)
def test_which_comparisons_fail(rows, failed):
    report = report_of(*rows)
    assert report.failed == failed and terminal_text(analyse(report))


# ---- run


@pytest.mark.parametrize(
    "status, alone, why",
    [
        (OUT_OF_MEMORY, "ok", "memory did not suffice beside the other rows"),
        (OUT_OF_MEMORY, OUT_OF_MEMORY, ""),
        ("failed", "ok", "another row used the port that its script names"),
    ],
)
def test_a_row_without_memory_or_its_port_in_turns_runs_again_alone(status, alone, why, tmp_path, monkeypatch):
    report = replace(report_of(SINGLE, DDP), in_turns=True)
    single, ddp = report.outcomes[0], report.outcomes[3]
    events = []

    def take_turns(runs, seed, need):
        yield replace(ddp, status=status, reason="code: -98, name: EADDRINUSE", result=None)
        yield single
        events.append("all ended")

    def run_once(row, block, *_):
        events.append(row.name)
        return ddp if alone == "ok" else replace(ddp, status=OUT_OF_MEMORY, result=None)

    monkeypatch.setattr(session, "Run", lambda *arguments: arguments)
    monkeypatch.setattr(session, "take_turns", take_turns)
    monkeypatch.setattr(session, "run_once", run_once)
    first, second = run_block(replace(report, outcomes=()), 1, tmp_path)
    assert events == ["all ended", "ddp"] and first is single and second.status == alone
    assert (second.result and second.result.reason) == (f"in block 1 it ran alone, as {why}" if why else None)


def test_an_equivalence_check_out_of_memory_is_no_failure(tmp_path, monkeypatch):
    line = "out of memory; RuntimeError: can't allocate memory; try less"

    def run_child(command, log, *_):
        log.write_text(f"error: {line}\n")
        return 1

    monkeypatch.setattr(equivalence, "run_child", run_child)
    checks = equivalence.check_equivalence([SINGLE[0]], [], 10_000)
    assert checks == {"single": Equivalence(None, OUT_OF_MEMORY, f"not checked: {line}")}
    report = report_of(SINGLE, DDP, equivalence=checks)
    assert not report.failed and f"SINGLE, max |Δ parameter|: not checked: {line}." in notes(analyse(report))
