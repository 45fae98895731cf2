"""Monitoring of GPUs, on a fake NVML."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from comparison.judge.analysis import analyse
from comparison.judge.measures import measure
from comparison.judge.summaries import unsteadiness
from comparison.outcomes import CardUse
from comparison.results_file import read_results, write_results
from comparison.run import cards
from comparison.run.cards import CardWatch
from comparison.run.turns import Run, run_once
from comparison.show.detail_tables import card_table
from comparison.show.remarks import bandwidths
from comparison.show.report import write_csv
from comparison.show.sentences import finding_sentence
from comparison.show.tables import main_table
from comparison.show.terminal import terminal_text
from tests.fixtures import wait_until
from tests.reports import configuration, each_epoch, each_outcome, make_result, markdown_of, report_of, runs

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
USE = CardUse("cuda:0", 0.9, 2**30, 300.0, 500.0, 1980.0, 0.0, 0.0)


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A driver with three cards of 100, 200 and 300 W. programs: by PID, the share of the time in which it computes.

    memory: by PID, its bytes on each card.
    """

    def programs(card, since):
        if not driver.programs:
            raise NVMLError
        return [SimpleNamespace(pid=pid, smUtil=share) for pid, share in driver.programs.items()]

    driver = SimpleNamespace(
        programs={},
        memory={},
        reasons=0,
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda card: UUIDS[card],
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=75),
        nvmlDeviceGetComputeRunningProcesses=lambda card: [
            SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in driver.memory.items()
        ],
        nvmlDeviceGetTotalEnergyConsumption=lambda card: int(100_000 * (1 + card) * time.monotonic()),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: driver.reasons,
        nvmlDeviceGetClockInfo=lambda card, clock: 1000 + clock,
        nvmlDeviceGetProcessUtilization=programs,
    )
    monkeypatch.setattr(cards, "nvml", lambda: driver)
    monkeypatch.setattr(cards, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(cards, "SHORTEST", 0.05)
    return driver


def on_gpus(*epochs, uuids=UUIDS[:1]):
    """Return the result of a run on these cards. epochs: (start, seconds); the first does not count."""
    devices = tuple(f"cuda:{number} (Pretended)" for number, _ in enumerate(uuids))
    result = make_result(seconds=[seconds for _, seconds in epochs], devices=devices, gpu_uuids=uuids)
    starts = zip(result.epochs, epochs, strict=True)
    return replace(result, epochs=tuple(replace(epoch, start=start) for epoch, (start, _) in starts))


def watched():
    """Return what a watch has sampled of a card while a run trained."""
    watch, start = CardWatch(), time.monotonic()
    with watch.watching():
        while watch._cards and len(watch._samples[UUIDS[0]]) < 4:
            time.sleep(0.01)
        seconds = time.monotonic() - start
    (use,) = watch.uses(on_gpus((start - 10, 5.0), (start, seconds)))
    return use


def test_uses_are_those_of_the_timed_epochs(nvml, monkeypatch):
    """A card takes 100 W for four seconds, waits for another row's turn, and then takes 600 W for four seconds."""
    monkeypatch.setattr(cards, "SHORTEST", 2.0)
    watch, nothing = CardWatch(), {**dict.fromkeys(cards.QUESTIONS), "programs": frozenset()}
    watch._samples["GPU-c"] = [
        {**nothing, "seconds": at, "joules": joules, "busy": at / 10}
        for at, joules in ((0.0, 0.0), (2.0, 200.0), (4.0, 400.0), (6.0, 400.0), (8.0, 1600.0), (10.0, 2800.0))
    ]
    for epochs, busy, joules, watts in (
        (((1, 2.0), (7, 3.0)), (0.2 + 0.8 + 1.0) / 3, (200 + 1800) / 2, 2000 / 5),
        (((1, 2.0), (7, 1.9)), (0.2 + 0.8) / 2, None, None),  # shorter than the counter's interval allows
        (((1, 2.0), (7, 3.1)), (0.2 + 0.8 + 1.0) / 3, None, None),  # not fully sampled
    ):
        both = watch.uses(on_gpus((0, 1.0), *epochs, uuids=("GPU-c", "GPU-a")))  # PyTorch's numbers are not NVML's
        expected = CardUse("cuda:0", busy=pytest.approx(busy), joules=joules, watts=watts)
        assert both == (expected, CardUse("cuda:1"))
    old = each_epoch(on_gpus((0, 1.0), (1, 2.0), uuids=("GPU-c",)), start=None)
    assert (watch.uses(old), watch.uses(make_result())) == ((CardUse("cuda:0"),), ())


def test_memory_counts_only_the_runs_own_processes(nvml, tmp_path):
    held = 3 * 2**30
    watch, result = CardWatch(), on_gpus((0.0, 1.0), (0.0, 1.0))
    for memory in ({7: held, 8: 5}, {7: held // 2}, {8: 5}, {7: None}):  # some have ended, one is not reported
        nvml.memory = memory
        with watch.watching(lambda: [7, 9]):
            pass
        assert watch.uses(result)[0].memory_bytes == held
    unknown = CardWatch()
    with unknown.watching(lambda: [1000]):  # as in a container, whose PIDs the driver does not know
        pass
    assert unknown.uses(result)[0].memory_bytes is None
    row = configuration(command=(sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '100'])"))
    with Run(row, 1, 42, tmp_path, timeout=3) as run:
        assert run._processes() == []
        run._begin()
        wait_until(lambda: len(run._processes()) == 2)


def test_unsupported_queries_give_none(nvml, monkeypatch):
    def refuse(*_):
        raise NVMLError

    for function, *_ in cards.QUESTIONS.values():
        setattr(nvml, function, refuse)
    nvml.nvmlDeviceGetComputeRunningProcesses = refuse
    assert watched() == CardUse("cuda:0")
    monkeypatch.setattr(cards, "nvml", lambda: None)  # no nvidia-ml-py, or no driver
    assert watched() == CardUse("cuda:0")


@pytest.mark.parametrize("reasons, held_down", [(0x01, 0), (0x02, 0), (0x04, 1), (0x20, 1), (0x41, 1), (0x100, 0)])
def test_clocks_are_held_down_by_heat_or_power_only(reasons, held_down, nvml):
    nvml.reasons = reasons
    assert watched().held_down == held_down


def test_other_programs_on_a_gpu(nvml):
    with subprocess.Popen(["sleep", "60"]) as child:
        own, other = child.pid, os.getppid()
        for programs, foreign in (
            ({own: 50}, 0),
            ({own: 50, other: 30}, 1),
            ({own: 50, other: 0}, 0),  # idle
            ({other: 30}, None),  # as in a container, whose PIDs the driver does not know
            ({}, None),
        ):
            nvml.programs = programs
            assert watched().foreign == foreign
        child.kill()


def test_a_run_of_a_comparison_is_monitored(nvml, tmp_path):
    result = asdict(on_gpus((None, 0.1), (None, 0.1)))
    write = (
        "import json, sys, time; start = time.monotonic() + 0.2; time.sleep(0.8); result = json.loads(sys.argv[1])"
        "\nfor epoch in result['epochs']: epoch['start'] = start"
        "\njson.dump(result, open(sys.argv[sys.argv.index('--output') + 1], 'w'))"
    )
    row = configuration(command=(sys.executable, "-c", write, json.dumps(result)))
    outcome = run_once(row, 1, 42, tmp_path)
    (use,) = outcome.cards
    assert (use.device, use.busy, use.megahertz) == ("cuda:0", 0.75, 1001)
    # 100 W for 0.1 s, within what a busy machine adds; the whole run would be above 80 J
    assert use.joules == pytest.approx(10, rel=0.5)
    write_results(replace(report_of((row, [outcome.result])), outcomes=(outcome,)), tmp_path)
    assert read_results(tmp_path / "results.json").outcomes[0].cards == (use,)


def with_cards(*uses, **rows):
    """Return a comparison of two rows, three runs of 1000 images each, with this use of GPUs."""
    fine = {"gpu_uuids": UUIDS[: len(uses)], "count": max(1, len(uses)), "reserved_memory_bytes": (2**28,) * len(uses)}
    ddp = configuration("ddp"), runs("ddp", (1.5, 1.51, 1.49), **fine)
    return each_outcome(report_of((configuration("single"), runs(**fine)), ddp, **rows), cards=uses)


def test_the_report_shows_the_gpus(tmp_path):
    report = with_cards(USE, replace(USE, device="cuda:1", joules=300.0, watts=None))
    analysis = analyse(report)
    cells = [cell.strip() for cell in card_table(analysis, "github").splitlines()[3].split("|")]
    assert cells[1:-1] == ["SINGLE", "cuda:1", "90%", "256", "1,024", "–", "300.0", "1,980", "0%", "0%"]
    assert measure(report).summaries[report.plan[0].name].images_per_joule == pytest.approx(1000 / 800)
    assert "Images/J" in main_table(analysis, "simple") and " 1.25 " in main_table(analysis, "simple")
    assert "## The GPUs while they trained" in markdown_of(analysis, tmp_path)
    write_csv(analysis, tmp_path / "results.csv")
    assert ",1.25," in (tmp_path / "results.csv").read_text()


def test_the_report_shows_the_bus_bandwidth_without_nvml(tmp_path):
    links = [
        {"model": "vgg", "gradient_bytes": 1_157_000, "link_gbps": 123.4},
        {"model": "lenet", "gradient_bytes": 4_000, "link_gbps": None},
    ]
    report = report_of((configuration("single"), runs()), probe={"models": links})
    assert "GPUs while they trained" not in markdown_of(analyse(report), tmp_path) and bandwidths(report) == []
    on_gpus = replace(report, environment={**report.environment, "gpus": ["H200"] * 8})
    text = markdown_of(analyse(on_gpus), tmp_path)
    assert text.count("bus bandwidth") == 1 and "of vgg between all 8 GPUs has a bus bandwidth of 123.4 Gb" in text
    assert bandwidths(replace(report, probe=None)) == []


def test_energy_needs_all_gpus_of_all_runs_of_a_row():
    def energy(report):
        return measure(report).summaries[report.plan[0].name].images_per_joule

    fine, lacking = with_cards(USE), with_cards(USE, replace(USE, joules=None))
    one = replace(fine, outcomes=(*fine.outcomes[:1], *lacking.outcomes[1:]))
    row = replace(fine, outcomes=(*fine.outcomes[:3], *lacking.outcomes[3:]))
    assert [energy(report) for report in (fine, lacking, one, row)] == [pytest.approx(2), None, None, pytest.approx(2)]
    shown = ["Images/J" in main_table(analyse(report), "simple") for report in (fine, lacking, one, row)]
    assert shown == [True, False, False, True] and card_table(analyse(with_cards()), "simple") == ""

    def uneven(result):  # slices of a script: the energy is the mean of all
        slices = zip(result.epochs, (1, 3, 1), strict=True)
        return replace(result, epochs=tuple(replace(one, samples=one.samples * factor) for one, factor in slices))

    outcomes = tuple(replace(outcome, result=uneven(outcome.result)) for outcome in fine.outcomes)
    assert energy(replace(fine, outcomes=outcomes)) == pytest.approx(4)


def test_lowered_clocks_are_reported():
    first, *others = with_cards(replace(USE, held_down=0.1)).outcomes  # one run with more, and one that failed
    hot, failed = (replace(first, cards=(replace(USE, held_down=share),)) for share in (0.4, 0.9))
    report = replace(with_cards(USE), outcomes=(hot, replace(failed, status="failed"), *others))
    (words,) = map(finding_sentence, unsteadiness(report.rows[0]))
    assert "lowered a GPU's clock for up to 40% of a run" in words
    assert unsteadiness(with_cards(replace(USE, held_down=0.1)).rows[0]) == []


def test_other_programs_on_a_gpu_disturb_a_row():
    report = with_cards(replace(USE, foreign=0.3), repeats=None, budget=60.0)
    assert set(report.disturbed_blocks) == {1, 2, 3} and report.rows[1].disturbed
    text = " ".join(terminal_text(analyse(report), verbose=True).split())
    assert "other programs computed on a GPU for 30% of the time during runs of" in text
    assert not with_cards(replace(USE, foreign=0.1)).disturbed_blocks
