"""A comparison: the estimate of its time, its child processes, and a complete run."""

import json
import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from common.errors import OUT_OF_MEMORY
from common.files.results import write_result
from common.words import duration, percent
from comparison.judge.analysis import analyse
from comparison.results_file import read_results
from comparison.run import forecast, turns
from comparison.run.forecast import checks_maths, describe_time_left, guesses_of, loader_warnings, seconds_left
from comparison.run.turns import run_once
from comparison.show.terminal import terminal_text
from comparison.show.verdict import tell_guesses
from tests.fixtures import PROJECT, child, child_environment, misfits
from tests.reports import configuration, make_result, markdown_of, report_of, runs

pytestmark = pytest.mark.process

# ---- how long it takes


def test_estimate_of_the_time_left():
    row, other = configuration(), configuration("ddp")
    report = report_of((row, []), probe={"steps": [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]}, epochs=2)
    for steps, images in ((None, 1000), (1, 100)):  # 2 s of start-up, 2 epochs with 200/3 more images, 0.5 ms each
        expected = 2 + 2 * (images + 200 / 3) * 0.0005
        assert guesses_of(report, max_steps=steps) == {"single": pytest.approx(expected)}
    order = [(1, "single"), (1, "ddp"), (2, "ddp"), (2, "single")]
    guesses = {"single": 2.0, "ddp": 4.0}
    assert seconds_left(order, (), guesses) == 12
    done = report_of((row, runs(seconds=(1.0,))), (other, [])).outcomes  # took 9 s, 4.5 times the guess
    assert seconds_left(order[1:], done, guesses) == pytest.approx(4.5 * 8 + 9)
    assert [duration(seconds) for seconds in (40.2, 600, 9000)] == ["40 s", "10 min", "2.5 h"]
    assert [percent(share) for share in (0.0123, 0.25, 1.12)] == ["1.2%", "25%", "110%"]


@pytest.mark.parametrize("saved, pace", [(0.0, 1.0), (1.5, 0.5), (3.0, 0.2)])
def test_the_time_left_does_not_count_the_start_of_a_template_in_each_fork(saved, pace, monkeypatch):
    rows = (configuration(), runs(seconds=(1.0,))), (configuration("ddp"), runs("ddp", (1.0,)))
    report = replace(report_of(*rows), outcomes=())
    monkeypatch.setattr(forecast, "seconds_saved", lambda: saved)
    guesses = {"single": 2.0, "ddp": 4.0}
    for forks in (True, False):
        monkeypatch.setattr(forecast, "forks_rows", lambda report, forks=forks: forks)
        assert forecast.pace_of_forks(report, guesses) == pytest.approx(pace if forks else 1.0)


@pytest.mark.parametrize(
    "settings, test_images, named",
    [
        ({"epochs": 200}, 3, True),  # 9 runs: 2 s of start-up, 100 images in 60 ms
        ({"epochs": 200, "max_steps": 10}, 3, False),  # 18 min
        ({"epochs": 1}, 3, False),
        ({"epochs": 5, "budget": 300.0}, 3, True),  # 27 min
        ({"epochs": 2}, 3_000_000, False),  # fewer steps do not shorten that
        ({"epochs": 200, "target_accuracy": 0.9}, 3, False),
        ({"epochs": 200, "fit_batch": True}, 3, False),
    ],
)
def test_a_long_comparison_suggests_a_shorter_command(settings, test_images, named):
    step = {"model": "lenet", "batch": 100, "milliseconds": 60.0}
    probe = {"train_images": 60_000, "test_images": test_images, "steps": [step]}
    rows = [(configuration(name), runs()) for name in ("single", "ddp", "fsdp")]
    command = "python compare_parallel.py"
    report = replace(report_of(*rows, probe=probe, **settings), command=f"{command} --dry_run", outcomes=())
    suggestion = f"This finds the fastest row in about 2 min:\n{command} --epochs 2 --max-steps 100"
    assert describe_time_left(report)[1:] == ([suggestion] if named else [])


def test_predictions_are_shown_with_the_result(tmp_path):
    rows = [
        (configuration(), runs()),
        (configuration("ddp"), runs("ddp", (1.0, 1.05, 0.97), count=2)),
        (configuration("dp"), runs("dp", simulated=True)),
    ]
    speed_up = analyse(report_of(*rows)).rows[1].standing.speed_up
    inside = f"{speed_up.value:.2f}"
    analysis = analyse(report_of(*rows, predict=[f"ddp={inside}", "ddp=3", "dp=0.5", "fsdp=2"]))
    said = "“{}” was predicted to be {} times as fast as the baseline: {}."
    sentences = [
        said.format("DDP", inside, f"measured {speed_up}; the prediction is within the interval"),
        said.format("DDP", "3", f"measured {speed_up}; the prediction is outside the interval"),
        said.format("DP", "0.5", "it has no speed-up"),
    ]
    assert tell_guesses(analysis) == sentences and tell_guesses(analyse(report_of(*rows, predict=None))) == []
    assert sentences[1] in " ".join(terminal_text(analysis).split())
    assert f"## What was guessed\n\n- {sentences[0]}" in markdown_of(analysis, tmp_path)
    (noisy,) = tell_guesses(analyse(report_of(*rows, predict=["ddp=2"], foreign_cores={"ddp": 0.9})))
    assert noisy.endswith(f": measured {inside}, but disturbed.")


# ---- one child

OUTPUT = "open(sys.argv[sys.argv.index('--output') + 1], 'w')"
LOG = "pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).with_suffix('.log')"
KILL = "os.kill(os.getpid(), 9)"
BATCH = "at a batch of 100: "
KERNEL = f"{BATCH}the kernel killed a process for its memory: "
LACKS = "out of memory; RuntimeError: can't allocate memory; try less"
RANK_LACKS = "rank 1, epoch 2: out of memory; MemoryError: 1; try less"
RANK_DIED = "rank 1 exited without an error message; signal 9 (SIGKILL), probably out of memory; try less"
WORKER_DIED = "a loader worker died; RuntimeError: out of memory; free some"
WORKER_KILLED = "a loader worker died; it is killed by signal: Killed. ; add"


def fails(line):
    return f"sys.exit({f'error: {line}'!r})"


@pytest.mark.parametrize(
    "code, kills, reason",  # kills: how many processes the kernel has killed for memory, before and after
    [
        (
            fails("no cake; found none; bake one"),
            [3, 3],
            "no cake; found none; bake one, before its first epoch (log: ",
        ),
        ("pass", [3, 3], "it ended without writing a result, before its first epoch (log: "),
        ("sys.exit(124)", [3, 4], "exit code 124"),  # neither a timeout, nor killed by the kernel
        (f"{LOG}.unlink(); sys.exit(3)", [3, 3], "exit code 3, and its log is gone"),
        (f'{OUTPUT}.write(\'{{"method": "sing\')', [3, 3], "cannot read the result file"),
        (f"{OUTPUT}.write('{{}}')", [3, 3], "cannot read the result file"),
        (fails(LACKS), [3, 3], f"{BATCH}{LACKS}, before its first epoch (log: "),
        (fails(RANK_LACKS), [3, 3], f"{BATCH}{RANK_LACKS}, before"),
        (fails(RANK_DIED), [3, 3], RANK_DIED),
        (fails(WORKER_DIED), [3, 4], WORKER_DIED),
        (fails(WORKER_KILLED), [3, 4], f"{KERNEL}{WORKER_KILLED}"),
        (KILL, [3, 4], f"{KERNEL}signal 9"),
        (KILL, [3, 3], "signal 9 (SIGKILL), probably out of memory, before"),
    ],
)
def test_a_run_without_a_result_has_a_cause(code, kills, reason, tmp_path, monkeypatch):
    counts = iter(kills)
    monkeypatch.setattr(turns, "oom_kills", lambda: next(counts))
    write_result(make_result(), tmp_path / "single-1.json")  # of an earlier comparison
    outcome = run_once(child(f"import os, pathlib, sys; {code}"), 1, 42, tmp_path, timeout=60)
    assert outcome.status == (OUT_OF_MEMORY if reason.startswith(BATCH) else "failed")
    assert outcome.reason.startswith(reason) and outcome.result is None and outcome.wall_seconds > 0


DIVERGED = {"status": "diverged", "reason": "the loss was nan"}


@pytest.mark.parametrize(
    "before, after, values, expected",
    [
        ("pass", "sys.exit(1)", {}, ("failed", "exit code 1, after 3 of 3 epochs")),
        ("pass", "sys.exit(1)", DIVERGED, ("diverged", "the loss was nan")),
        ("pass", "pass", {}, ("ok", "")),
        ("file.with_suffix('.log').unlink()", "pass", {}, ("ok", "")),
        ("shutil.rmtree(file.parent)", "pass", {}, ("ok", "")),
    ],
)
def test_a_run_with_a_result_is_ok_unless_it_fails_or_diverges(before, after, values, expected, tmp_path, capsys):
    write_result(made := make_result(**values), tmp_path / "made.json")
    file = tmp_path / "runs" / "single-1.json"
    write = f"file.parent.mkdir(exist_ok=True); shutil.copy({str(tmp_path / 'made.json')!r}, file)"
    code = f"import pathlib, shutil, sys; file = pathlib.Path({str(file)!r}); {before}; {write}; {after}"
    outcome = run_once(child(code), 1, 42, file.parent)
    assert (outcome.status, outcome.reason.partition(" (log")[0]) == expected
    assert outcome.result == (None if outcome.status == "failed" else made)
    assert (str(file.with_suffix(".log")) in capsys.readouterr().err) == (before != "pass")


# ---- a complete comparison


@pytest.fixture
def compare(project, data_root):
    """compare(flags): run compare_parallel.py on a few images."""
    small = "--dataset synthetic-mnist --batch-size 48 --num-workers 0 --data-root".split()
    return lambda flags, *more: project("compare_parallel.py", *small, data_root, *flags.split(), *more, tiny=False)


@pytest.mark.slow
def test_dry_run_prints_commands_that_can_be_pasted(compare, tmp_path):
    flags = "--dry-run --methods single ddp --train-size 96 --epochs 1 --output-dir"
    done = compare(flags, tmp_path / "out dir")
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 2 and not (tmp_path / "out dir").exists()
    assert done.stdout.splitlines()[-1].startswith("# About ") and done.stderr == ""
    pasted = f"{commands[0]} --figure-dir {shlex.quote(str(tmp_path))}"
    assert subprocess.run(pasted, shell=True, cwd=PROJECT, env=child_environment()).returncode == 0


@pytest.mark.parametrize(
    "more", ["", pytest.param("ddp --epochs 2 --project 2 4 --check-maths", marks=pytest.mark.slow)]
)
def test_a_comparison_from_start_to_end(more, compare, tmp_path):
    directory, rows = tmp_path / "a b;$(x) 中", {"single", *more.split()[:1]}
    done = compare(f"--train-size 480 --epochs 1 --repeats 1 --methods single {more} --output-dir", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "\r" not in done.stdout  # no terminal
    assert re.search(r" x 1 block\nBlock 1: (?:single|ddp)", done.stdout)
    assert not misfits(json.loads((directory / "results.json").read_text()), "results")
    stored = read_results(directory / "results.json")
    assert {name for block, name in stored.order if block == 1} == rows  # more blocks follow a disturbed one
    assert sorted((outcome.block, outcome.configuration) for outcome in stored.outcomes) == sorted(stored.order)
    assert stored.in_turns and "\n- In turns: " in (directory / "report.md").read_text()
    assert {outcome.status for outcome in stored.outcomes} == {"ok"}
    assert all(outcome.wall_seconds > 1 and outcome.foreign_cores is not None for outcome in stored.outcomes)
    assert str(directory / "runs") in shlex.split(stored.outcomes[0].command) and not [*directory.glob("runs/*.png")]
    assert all(outcome.result.config["seed"] == 41 + outcome.block for outcome in stored.outcomes)
    equal = {name: result.difference < 1e-4 for name, result in stored.equivalence.items()}
    assert equal == ({"single": True, "ddp": True} if more else {})
    assert [step.batch for step in stored.probe.steps] == ([3, 6, 12, 24, 48] if more else [48])
    assert stored.probe.wall_seconds > 1 and "Recommendation: " in done.stdout
    assert bool(stored.probe.loaders) == ("projected, not measured" in done.stdout) == bool(more)
    files = {path.name for path in directory.iterdir()} - {"runs"}
    figures, images = ({name for name in files if name.endswith(end)} for end in (".png", ".svg"))
    assert images == {name.replace(".png", ".svg") for name in figures}
    drawn = {f"{name}.png" for name in "curves speed-up phases memory".split()}
    assert figures >= (drawn if more else {"phases.png"})
    written = {f"results.{end}" for end in ("json", "csv", "tex")} | {"report.md", "report.html"}
    assert files - figures - images == written | {".comparison.lock"}


def test_a_missing_file_is_a_one_line_error(project, tmp_path):
    done = project("compare_parallel.py", "--from", "no.json", "--output-dir", tmp_path / "out", tiny=False)
    assert done.returncode == 4 and done.stderr.startswith("error: cannot read no.json; ")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "asked, budget, method, checked",
    [
        (None, 300.0, "ddp", True),
        (None, 60.0, "ddp", False),
        (None, 300.0, "single", False),
        (True, 60.0, "single", True),
        (False, 300.0, "ddp", False),
    ],
)
def test_when_the_maths_is_checked(asked, budget, method, checked):
    probe = {"startup_seconds": 4.0, "steps": [{"model": "lenet", "batch": 100, "milliseconds": 10.0}]}
    row = configuration(method, per_device_batch_size=100 if method == "single" else 50)
    report = report_of((configuration(), []), (row, []), probe=probe, check_maths=asked, budget=budget)
    assert checks_maths(report) is checked


def test_warning_of_workers_that_starve_a_gpu():
    def said(speed, workers=2, **planned):
        probe = {
            "steps": [{"model": "lenet", "batch": 100, "milliseconds": 50.0}],  # 2,000 images/s
            "loaders": [{"num_workers": workers, "images_per_second": speed, "cpu_seconds_per_image": 0.0}],
        }
        return loader_warnings(
            report_of((configuration(device="gpu", num_workers=workers, **planned), []), probe=probe)
        )

    assert said(2001.0) == said(15_999.0, batch_size=100) == []
    (one,), (eight,) = said(1500.0), said(15_999.0, batch_size=800)
    assert "2 loader workers deliver 1,500 images/s, and 1 GPU can train 2,000 (lenet)" in one
    assert "8 GPUs can train 16,000" in eight
    assert said(2001.0, workers=0, batch_size=800) == [] and said(
        1999.0, workers=0, batch_size=800
    )  # each loads its own
