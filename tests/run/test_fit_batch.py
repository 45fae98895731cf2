"""--fit-batch: which batches are tried, runs with the largest that fits, and the report."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from common.errors import OUT_OF_MEMORY
from common.files.probe import MemoryUse, Probe
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.outcomes import Outcome, Trial
from comparison.plan.counterparts import TWIN, counterpart
from comparison.results_file import read_results
from comparison.rows import trials_of
from comparison.run import fitting, forecast, session
from comparison.run.fitting import GIB, gpu_need, next_batch, try_batch, why_not_in_turns, with_largest
from comparison.run.session import continued, run_comparison
from comparison.show.detail_tables import trial_table
from comparison.show.remarks import definitions
from comparison.show.tables import main_table
from comparison.show.terminal import terminal_text
from comparison.show.verdict import verdict
from tests.reports import PROBE, configuration, each_epoch, make_result, markdown_of, report_of, runs

MIB = 2**20
ENOUGH = 10**6  # images


def row(method="single", batch=128, devices=1, **values):
    command = ("python", f"{method}.py", "--batch-size", str(batch), "--device", "cpu")
    planned = {"batch_size": batch, "per_device_batch_size": -(-batch // devices)}
    return replace(configuration(method, command=command, **planned), **values)


def trial(name, batch, most=10**9, images=ENOUGH):
    """Return a trial on a machine where batches up to `most` fit, with a data set of `images`."""
    if batch > most:
        return Trial(name, batch, OUT_OF_MEMORY, "out of memory; and so on")
    return Trial(name, batch, "ok", "", min(images, 3 * batch), batch * MIB)


# ---- the search


@pytest.mark.parametrize(
    "machine, devices, batches, largest",
    [
        ({"most": 600}, 1, [128, 256, 512, 1024], 512),
        ({"most": 40}, 2, [128, 64, 32], 32),  # 64 is known not to fit
        ({"most": 40}, 64, [128, 64], 64),  # at least one image per device
        ({"most": 0}, 1, [128, 64, 32, 16, 8, 4, 2, 1], 1),
        ({"images": 1000}, 1, [128, 256, 512], 512),  # 1024 images do not exist
        ({"images": 1024}, 1, [128, 256, 512, 1024], 1024),
        ({"images": 100}, 1, [128], 128),
    ],
)
def test_the_batch_is_doubled_until_memory_or_data_run_out(machine, devices, batches, largest):
    trials, tested = [], row(devices=devices)
    while batch := next_batch(tested, trials):
        trials.append(trial(tested.name, batch, **machine))
    (fitted,) = with_largest([tested], trials)
    assert ([attempt.batch_size for attempt in trials], fitted.planned.batch_size) == (batches, largest)
    assert fitted.planned.per_device_batch_size == -(-largest // devices)
    assert fitted.command == ("python", "single.py", "--batch-size", str(largest), "--device", "cpu")


@pytest.mark.parametrize(
    "own, following, largest",
    [
        ([("failed", 128)], None, 128),  # its runs will fail too and show why
        ([("ok", 128), ("timed out", 256)], None, 128),
        ([(OUT_OF_MEMORY, 128), ("failed", 64)], None, 64),
        ([("diverged", 128)], 256, 128),
        ([("ok", 128), ("ok", 256), (OUT_OF_MEMORY, 512), (OUT_OF_MEMORY, 256)], None, 128),  # the last was a run
        ([("ok", 128), (OUT_OF_MEMORY, 256), (OUT_OF_MEMORY, 128)], 64, 128),
        ([(OUT_OF_MEMORY, 128), ("ok", 64), (OUT_OF_MEMORY, 64), ("ok", 32)], None, 32),
    ],
)
def test_how_the_search_continues_after_a_failed_trial(own, following, largest):
    trials = [
        replace(trial("single", batch, most=batch if status in ("ok", "diverged") else 0), status=status)
        for status, batch in own
    ]
    assert next_batch(row(), trials) == following
    assert with_largest([row()], trials)[0].planned.batch_size == largest


def test_a_counterpart_has_the_batch_of_its_row():
    plan = [row(), row("ddp", devices=2), counterpart(row(), TWIN, "again", row().command), row("mp")]
    trials = [trial("single", 128), trial("single", 256), trial("ddp", 128, most=1), trial("ddp", 64)]
    assert [fitted.planned.batch_size for fitted in with_largest(plan, trials)] == [256, 64, 256, 128]
    assert with_largest(with_largest(plan, trials), trials) == with_largest(plan, trials)


@pytest.mark.parametrize("fits", [True, False])
def test_a_trial_runs_a_few_steps_of_the_rows_command(fits, tmp_path, monkeypatch):
    result = make_result(seconds=(1.0,), peak_memory_bytes=(5 * MIB, 7 * MIB), devices=("cpu", "cpu"))
    expected = Trial("ddp", 256, "ok", "", 1000, 7 * MIB) if fits else Trial("ddp", 256, OUT_OF_MEMORY, "why")
    calls = []

    def run_once(*call):
        calls.append(call)
        end = (expected.status, expected.reason, "", "", 0, 1.0)
        return Outcome("ddp-fit", 256, *end, result=result if fits else None)

    monkeypatch.setattr(fitting, "run_once", run_once)
    settings = {"seed": 42, "timeout": 9.0, "memory_limit": 1000}
    assert try_batch(row("ddp", devices=2), 256, settings, tmp_path) == expected
    ((tested, *others),) = calls
    own = "--epochs 1 --max-steps 3 --memory-limit 950"
    assert " ".join(tested.command) == f"python ddp.py --batch-size 256 --device cpu {own}"
    assert (tested.name, tested.planned.batch) == ("ddp-fit", "at a batch of 256, 128 per device")
    assert others == [256, 42, tmp_path, 9.0]


def test_turns_need_memory_for_all_rows_and_their_largest_batches():
    plan = [
        configuration(num_workers=2),
        configuration("ddp", per_device_batch_size=50, num_workers=2),
        configuration("mp", skip="it cannot run"),
    ]

    def cpu(peak, free):
        return MemoryUse("cpu", peak, free)

    def why(*memory, plan=plan, trials=()):
        return why_not_in_turns(plan, Probe(1000, 200, 2.0, (), (), (), memory=memory), trials)

    # 1 device and half of 2 workers; 2 devices and half of 2 workers and a launcher
    words = "together they could need 11.0 GiB of memory, 10.0 are free"
    assert [why(cpu(2 * GIB, free * GIB)) for free in (11, 10)] == ["", words] and "not known" in why()
    pipeline = [configuration(), replace(configuration("pipeline"), stages=3)]  # 1; 3 and half of a launcher
    assert "could need 9.0 GiB" in why(cpu(2 * GIB, 8 * GIB), plan=pipeline)
    assert why(cpu(GIB, 100 * GIB), MemoryUse("cuda", GIB, 0)) == ""  # its free memory does not matter
    assert "compute mode lets one process" in why(cpu(GIB, 100 * GIB), MemoryUse("cuda", GIB, None))
    assert "GiB of memory" in why(cpu(GIB, 0), MemoryUse("cuda", 0, GIB))

    trials = [trial("single", 128), trial("single", 256), trial("ddp", 512, most=0)]
    small, gpu = cpu(100 * MIB, 200 * MIB), MemoryUse("cuda", 100 * MIB, 2300 * MIB)
    assert why(small, plan=[row()]) == why(small, plan=[row()], trials=trials[:1]) == ""
    assert f"could need {256 / 1024:.1f} GiB" in why(small, plan=[row()], trials=trials)
    assert why(small, gpu, plan=[row()], trials=trials) == ""  # these ran on the GPU
    probe = Probe(1000, 200, 2.0, (), (), (), memory=(small, gpu))
    assert (gpu_need(probe), gpu_need(probe, trials)) == ((100 + 2048) * MIB, (256 + 2048) * MIB)


# ---- a comparison


@pytest.fixture
def ended():
    """Name, batch and status of all trials and runs of the last comparison."""
    return []


@pytest.fixture
def run(monkeypatch, tmp_path, ended):
    """run(): compare one device and DDP.

    A device has 285 MiB, and needs 100 plus 1 per image. too_large: (method, block, batch) of a run that fails anyway.
    """
    plan = [(row(), runs()), (row("ddp", devices=2), runs("ddp", (1.0, 1.01, 0.99), count=2))]
    times = {"single": (2.0, 2.02, 1.98), "ddp": (1.0, 1.01, 0.99)}
    monkeypatch.setattr(forecast, "ask", lambda *_: json.dumps(PROBE))

    def run(stop=None, resume=False, too_large=(), **settings):
        ended.clear()

        def run_once(tested, block, *_):
            planned, method = tested.planned, tested.method
            needed = 100 + planned.per_device_batch_size
            fits = needed <= 285 and (method, block, planned.batch_size) not in too_large
            if len(ended) + 1 == stop:
                raise KeyboardInterrupt
            ended.append((tested.name, planned.batch_size, "ok" if fits else OUT_OF_MEMORY))
            seconds = times[method][block - 1 if block <= 3 else 0]
            sizes = {"global_batch_size": planned.batch_size, "per_device_batch_size": planned.per_device_batch_size}
            (result,) = runs(method, (seconds,), count=planned.shares, peak_memory_bytes=(needed * MIB,), **sizes)
            result = each_epoch(result, samples=ENOUGH)
            end = (ended[-1][2], "", "", "", 0, seconds)
            return Outcome(tested.name, block, *end, result=result if fits else None)

        for module in (fitting, session):
            monkeypatch.setattr(module, "run_once", run_once)
        report = replace(report_of(*plan, fit_batch=True, **settings), outcomes=(), probe=None)
        report = continued(report, tmp_path / "results.json") if resume else report
        return run_comparison(report, [], output_to(Mock(directory=tmp_path)))

    return run


TRIED = [("single-fit", 128), ("single-fit", 256), ("ddp-fit", 128), ("ddp-fit", 256), ("ddp-fit", 512)]


def test_an_interrupted_search_for_the_largest_batch_continues(run, ended, tmp_path, capsys):
    report = run()
    assert [each[:2] for each in ended[:5]] == TRIED
    assert {*ended[5:]} == {("single", 128, "ok"), ("ddp", 256, "ok")} and len(ended) == 11
    assert read_results(tmp_path / "results.json") == report
    printed = capsys.readouterr().out
    assert "Batch 256, DDP: fits, with 228 MiB at its peak\nBatch 512, DDP: out of memory\n" in printed
    with pytest.raises(KeyboardInterrupt):
        run(stop=5)
    assert len(read_results(tmp_path / "results.json").trials) == 4
    report = run(resume=True)
    assert ended[0][:2] == TRIED[4] and [attempt.batch_size for attempt in report.trials] == [size for _, size in TRIED]
    assert run(resume=True) == report and not ended


def test_all_rows_start_again_if_a_fitted_batch_runs_out_of_memory(run, ended, tmp_path):
    report = run(too_large=[("ddp", 2, 256)])
    assert [each[:2] for each in ended if each[0].endswith("-fit")] == TRIED  # known batches are not tried again
    assert ended[9:] == [("single", 128, "ok"), ("ddp", 128, "ok")] * 3
    assert [attempt.batch_size for attempt in report.trials[5:]] == [256] and not report.trials[5].fits
    assert read_results(tmp_path / "results.json") == report


def test_report_of_rows_with_their_largest_batches(run, tmp_path):
    report = run()
    analysis = analyse(report)
    standing = analysis.rows[1].standing
    assert standing.unequal == () and standing.speed_up.words == "faster"
    header, _, single, ddp = main_table(analysis, "simple").splitlines()
    assert "Largest batch" in header and "  128  " in single and "  256  " in ddp
    alone = replace(report, outcomes=tuple(run for run in report.outcomes if run.configuration == "single"))
    assert "  256  " not in main_table(analyse(alone), "simple")
    assert "each with its LARGEST BATCH" in terminal_text(analysis)
    assert verdict(analysis)[-1].startswith("Recommendation: none. The rows have different batch sizes")
    assert any("accuracies are those of different trainings" in text for text in definitions(report))
    assert trial_table(analysis, "github") in markdown_of(analysis, tmp_path)
    bf16 = tuple(replace(made, result=replace(made.result, precision=made.configuration)) for made in report.outcomes)
    other = analyse(replace(report, outcomes=bf16)).rows[1].standing.reason
    assert other == "refused: precision ddp instead of single"  # batches alone may differ


# ---- with real memory

WIDE = """from torch import nn


def build(shape, classes):
    channels, height, width = shape
    return nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(),
                         nn.Linear(16 * (height // 4) * (width // 4), classes))
"""


@pytest.mark.slow
def test_largest_batches_on_a_cpu(project, train, data_root, tmp_path):
    (tmp_path / "wide.py").write_text(WIDE)
    small = "--dataset synthetic-mnist --train-size 8192 --loader resident --no-augment --model"
    small = (*small.split(), f"{tmp_path}/wide.py:build", "--data-root", data_root)
    fits, is_too_large = (
        train("data_parallel_train.py", *small, "--batch-size", batch, "--threads", 1)[0]["peak_memory_bytes"][0]
        for batch in (2048, 8192)
    )

    limit = round((fits + is_too_large) / 2)
    typed = f"--memory-limit {limit} --methods single ddp --epochs 1 --repeats 1 --batch-size 8192 --fit-batch".split()
    done = project("compare_parallel.py", *small, *typed, "--output-dir", tmp_path / "out", tiny=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_results(tmp_path / "out" / "results.json")
    single, ddp = report.plan
    assert 1024 < single.planned.batch_size < 8192 and single.planned.batch_size <= ddp.planned.batch_size
    for tested in report.plan:  # peaks of equal runs differ, so either of two batches may result
        results = {attempt.batch_size: attempt.fits for attempt in trials_of(tested, report.trials)}
        assert results[tested.planned.batch_size] and not results.get(2 * tested.planned.batch_size)
    assert all(outcome.status == "ok" and max(outcome.result.peak_memory_bytes) <= limit for outcome in report.outcomes)
