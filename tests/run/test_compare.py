"""The comparison: how long it takes, its children, and the whole from start to end."""

import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import compare_parallel
from common.errors import SuiteError
from common.files.results import write_result
from common.words import duration, percent
from comparison.results_file import read_results
from comparison.run.forecast import guesses_of, how_long, seconds_left
from comparison.run.launch import run_child
from comparison.run.turns import run_once
from tests.fixtures import PROJECT, child, child_environment, misfits
from tests.reports import configuration, make_result, report_of, runs

# ---- how long it takes


@pytest.mark.parametrize(
    "flags, repeats, budget",
    [
        ("", None, 300),
        ("--repeats 4", 4, None),
        ("--budget 90", None, 90),
        ("--budget 90s", None, 90),
        ("--budget 20m", None, 1200),
        ("--budget 1.5h", None, 5400),
    ],
)
def test_a_budget_is_a_time_and_stands_where_there_is_no_number_of_repeats(flags, repeats, budget, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--equal-within", "2%", *flags.split()])
    arguments, shared = compare_parallel.parse()
    assert (arguments.repeats, arguments.budget, arguments.equal_within) == (repeats, budget, 0.02)
    assert not {"--budget", "--repeats", "--equal-within"} & {*shared}


def test_the_estimate_starts_from_a_step_and_learns_from_every_run():
    row, other = configuration(), configuration("ddp")
    report = report_of((row, []), probe={"steps": [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]}, epochs=2)
    for steps, images in ((None, 1000), (1, 100)):  # 2 s of start-up, 2 epochs with 200/3 images more, at 0.5 ms
        expected = 2 + 2 * (images + 200 / 3) * 0.0005
        assert guesses_of(report, max_steps=steps) == {"single": pytest.approx(expected)}
    order = [(1, "single"), (1, "ddp"), (2, "ddp"), (2, "single")]
    guesses = {"single": 2.0, "ddp": 4.0}
    assert seconds_left(order, (), guesses) == 12
    done = report_of((row, runs(seconds=(1.0,))), (other, [])).outcomes  # its wall time is 9 s: 4.5 times the guess
    assert seconds_left(order[1:], done, guesses) == pytest.approx(4.5 * 8 + 9)
    assert [duration(seconds) for seconds in (40.2, 600, 9000)] == ["40 s", "10 min", "2.5 h"]
    assert [percent(share) for share in (0.0123, 0.25, 1.12)] == ["1.2 %", "25 %", "110 %"]


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"epochs": 200}, True),  # 9 runs: 2 s of start-up, 100 images in 60 ms
        ({"epochs": 200, "max_steps": 10}, False),  # 18 min
        ({"epochs": 1}, False),
        ({"epochs": 200, "target_accuracy": 0.9}, False),
        ({"epochs": 200, "fit_batch": True}, False),
    ],
)
def test_a_comparison_of_more_than_half_an_hour_names_a_shorter_one(settings, named):
    step = {"model": "lenet", "batch": 100, "milliseconds": 60.0}
    probe = {"train_images": 60_000, "test_images": 3, "steps": [step]}
    rows = [(configuration(name), runs()) for name in ("single", "ddp", "fsdp")]
    command = "python compare_parallel.py"
    report = replace(report_of(*rows, probe=probe, **settings), command=f"{command} --dry-run", outcomes=())
    told = f"Which row is fastest, this tells in about 2 min:\n{command} --epochs 2 --max-steps 100"
    assert how_long(report)[1:] == ([told] if named else [])
    evaluates = replace(report, probe=replace(report.probe, test_images=3_000_000))  # which fewer steps do not shorten
    assert not how_long(replace(evaluates, settings={**report.settings, "epochs": 2}))[1:]


# ---- one child


@pytest.mark.parametrize(
    "code, reason",
    [
        (
            "import sys; print('error: no cake; found none; bake one', file=sys.stderr); sys.exit(4)",
            "no cake; found none; bake one, before its first epoch (log: ",
        ),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL), probably out of memory, before"),
        ("pass", "it ended without writing a result"),
        ("import sys; sys.exit(124)", "exit code 124"),  # is no time out
    ],
)
def test_a_child_without_a_result_gets_its_row_with_the_cause(code, reason, tmp_path):
    write_result(make_result(), tmp_path / "single-1.json")  # an earlier comparison's, not this one's
    outcome = run_once(child(code), 1, 42, tmp_path, timeout=60)
    assert outcome.status == "failed" and reason in outcome.reason and outcome.result is None
    assert outcome.wall_seconds > 0


@pytest.mark.parametrize(
    "values, expected",
    [
        ({}, ("failed", "exit code 1, after 3 of 3 epochs")),
        ({"status": "diverged", "reason": "the loss was nan"}, ("diverged", "the loss was nan")),
    ],
)
def test_a_result_of_a_child_that_failed_afterwards_is_not_ok(values, expected, tmp_path):
    write_result(make_result(**values), tmp_path / "made.json")
    made, file = str(tmp_path / "made.json"), str(tmp_path / "runs" / "single-1.json")
    code = f"import shutil, sys; shutil.copy({made!r}, {file!r}); sys.exit(1)"
    outcome = run_once(child(code), 1, 42, tmp_path / "runs")
    assert (outcome.status, outcome.reason.partition(" (log")[0], outcome.exit_code) == (*expected, 1)


def test_an_interrupted_comparison_stops_its_child(tmp_path):
    code = (
        "from comparison.run.launch import run_child; import sys, signal; from pathlib import Path; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
        f"run_child((sys.executable, '-c', 'import time, os; print(os.getpid(), flush=True); time.sleep(60)'), "
        f"Path({str(tmp_path / 'log')!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT)
    log = tmp_path / "log"
    while not (log.exists() and log.read_text().strip()):
        assert parent.poll() is None
    parent.terminate()
    assert parent.wait(30) == 143
    assert_gone(log.read_text().strip())


@pytest.mark.parametrize("session", [False, True], ids=["its process group", "what left that"])
def test_nothing_that_a_child_started_outlives_it(session, tmp_path):
    code = f"import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session={session}).pid)"
    assert run_child((sys.executable, "-c", code), tmp_path / "log") == 0
    assert_gone((tmp_path / "log").read_text().strip())


def assert_gone(pid):
    """No such process, or a zombie: it is dead, and waits for its parent to ask."""
    deadline = time.time() + 2
    while time.time() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
    pytest.fail(f"process {pid} still runs")


# ---- the whole


@pytest.fixture
def compare(project, data_root):
    """Run compare_parallel.py on few images; flags: typed, with a blank between two."""
    small = "--dataset synthetic-mnist --batch-size 48 --num-workers 0 --data-root".split()
    return lambda flags, *more, **how: project(
        "compare_parallel.py", *small, data_root, *flags.split(), *more, tiny=False, **how
    )


@pytest.mark.slow
def test_dry_run_prints_commands_that_work_when_pasted(compare, tmp_path):
    flags = "--dry-run --methods single ddp --train-size 96 --epochs 1 --output-dir"
    done = compare(flags, tmp_path / "out dir")
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 2 and not (tmp_path / "out dir").exists()
    assert done.stdout.splitlines()[-1].startswith("# About ") and done.stderr == ""
    pasted = f"{commands[0]} --figure-dir {shlex.quote(str(tmp_path))}"
    assert subprocess.run(pasted, shell=True, cwd=PROJECT, env=child_environment()).returncode == 0


@pytest.mark.parametrize("check", ["", pytest.param("--check-maths", marks=pytest.mark.slow)])
def test_a_comparison_from_start_to_end(check, compare, project, tmp_path):
    directory = tmp_path / "a b;$(x) 中"
    flags = f"--methods single ddp --train-size 480 --epochs 2 --repeats 1 --project 2 4 {check} --output-dir"
    done = compare(flags, directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "\r" not in done.stdout  # no terminal
    assert "2 runs: 2 rows x 1 block\n" in done.stdout and "\n[2/2] block 1, " in done.stdout
    assert not misfits(json.loads((directory / "results.json").read_text()), "results")
    stored = read_results(directory / "results.json")
    names = [name for block, name in stored.order if block == 1]  # others follow if another program disturbs it
    assert f"Block 1: {', '.join(names)}\n" in done.stdout and set(names) == {"single", "ddp"}
    assert sorted((outcome.block, outcome.configuration) for outcome in stored.outcomes) == sorted(stored.order)
    assert stored.in_turns and "\n- In turns: " in (directory / "report.md").read_text()
    assert {outcome.status for outcome in stored.outcomes} == {"ok"} and len(stored.outcomes[1].result.epochs) == 2
    assert all(outcome.wall_seconds > 1 and outcome.foreign_cores is not None for outcome in stored.outcomes)
    assert str(directory / "runs") in shlex.split(stored.outcomes[0].command) and not [*directory.glob("runs/*.png")]
    assert all(outcome.result.config["seed"] == 41 + outcome.block for outcome in stored.outcomes)
    equal = {name: result.difference < 1e-4 for name, result in stored.equivalence.items()}
    assert equal == ({"single": True, "ddp": True} if check else {})
    assert [step.batch for step in stored.probe.steps] == [3, 6, 12, 24, 48] and stored.probe.wall_seconds > 1
    assert stored.probe.models[0].link_gbps > 0 and stored.probe.loaders[0].images_per_second > 100
    for text in ("Equal in all rows: ", "Recommendation: ", "projected, not measured"):
        assert text in done.stdout
    files = {path.name for path in directory.iterdir()} - {"runs"}
    figures, images = ({name for name in files if name.endswith(end)} for end in (".png", ".svg"))
    assert images == {name.replace(".png", ".svg") for name in figures}
    drawn = {f"{name}.png" for name in "curves speed-up phases memory time-memory".split()}
    assert figures - {"excess.png", "scaling.png"} == drawn  # these two not where another program disturbed the rows
    written = {f"results.{end}" for end in ("json", "csv", "tex")} | {"report.md", "report.html"}
    assert files - figures - images == written | {".comparison.lock"}

    results = directory / "results.json"
    again = project("compare_parallel.py", "--from", results, "--output-dir", tmp_path / "again", tiny=False)
    assert again.returncode == 0, again.stderr
    assert {path.name for path in (tmp_path / "again").iterdir()} == files
    for name in written - {"report.html"}:
        assert (tmp_path / "again" / name).read_bytes() == (directory / name).read_bytes()
    assert again.stdout.partition("Written to")[0] in done.stdout.partition("Written to")[0]

    same = project("compare_parallel.py", "--diff", results, results, tiny=False)
    equal = re.findall(r"^(?:one device|DDP) .* 1\.00\b", same.stdout, re.MULTILINE)
    assert same.returncode == 0 and len(equal) == 2, same.stderr


@pytest.mark.slow
def test_one_failing_row_leaves_the_others(compare, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('broken')")  # found by the plan, useless to the child
    (tmp_path / "sitecustomize.py").write_text("import sys; print('a warning', file=sys.stderr)")  # must not matter
    flags = "--methods accelerate mp --train-size 96 --epochs 1 --repeats 1 --output-dir"
    done = compare(flags, tmp_path / "out", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    outcomes = {outcome.configuration: outcome for outcome in read_results(tmp_path / "out" / "results.json").outcomes}
    assert {name: outcome.status for name, outcome in outcomes.items()} == {"accelerate": "failed", "mp": "ok"}
    reason = outcomes["accelerate"].reason
    assert "accelerate_train.py needs Hugging Face Accelerate" in reason
    assert f"failed: {reason}" in " ".join(done.stdout.split())
    assert "the baseline, single, is not among the methods" in (tmp_path / "out" / "report.md").read_text()


BAD = {  # flags → what is said of them
    "--methods dpp": "did you mean",
    "--methods ddp:wrokers=4": "unknown name 'wrokers'",
    "--methods ddp:num-workers=-1": "from 0 to",
    "--methods ddp:num-workers": "found ''",
    "--project 1": "argument --project: needs whole numbers of at least 2",
    "--baseline singel": "did you mean single?",
    "--baseline ddp-no-sync": "argument --baseline: ddp-no-sync trains nothing that could be a baseline",
    "--repeats 0": "from 1 to",
    "--repeats 3 --budget 5m": "--repeats says how often, --budget how long",
    "--repeats 3 --margin 5": "--repeats says how often, --margin how exactly",
    "--budget soon": "needs a time above 0, e.g. 90s, 20m or 2h, found 'soon'",
    "--equal-within 0%": "percent above 0 and below 100",
    "--from results.json --project 2": "--from shows what was measured; leave out --project",
    "--from x.json --budget 9m": "leave out --budget",
    "--diff a.json b.json --lang zh": "--diff shows what was measured; leave out --lang",
    "--dataset mnist --image-size 9": "--image-size is for a folder",
}


@pytest.mark.parametrize("flags", BAD)
def test_flags_that_say_nothing_together_are_refused(flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *flags.split()])
    with pytest.raises(SuiteError, match=re.escape(BAD[flags])) as refused:
        compare_parallel.parse()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "flags, message, code",
    [
        ("--methods ddp:num-workers", "found ''", 2),
        ("--project 3", "--batch-size is a total and must divide by the number of processes; found 128 for 3", 2),
        ("--from no.json", "cannot read no.json", 4),
        ("--diff a.json b.json", "cannot read a.json", 4),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(flags, message, code, project, tmp_path):
    where = () if "--diff" in flags else ("--output-dir", tmp_path / "out")
    done = project("compare_parallel.py", *flags.split(), *where, tiny=False)
    assert done.returncode == code and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "results.json").exists()
