"""The comparison: its plan, its runs, and the whole from start to end."""

import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import compare_parallel
from common.errors import SuiteError
from common.files.probe import probe_from_dict
from common.files.results import write_result
from common.settings.config import MODELS
from common.words import duration, percent
from comparison.judge.fairness import refuse_unequal
from comparison.methods import METHODS, Machine, ladder
from comparison.plan.plan import make_order, make_plan, parse_method, with_cut
from comparison.results_file import read_results
from comparison.rows import baseline_of
from comparison.run.launch import run_child, run_once
from comparison.run.progress import guess_seconds, seconds_left, shorter_command
from tests.fixtures import ALL, PROJECT, child, child_environment, flag, plan, plan_arguments
from tests.reports import PROBE, configuration, make_result, report_of, runs
from tests.schema import comparison

# ---- plan


def test_a_cpu_gets_two_ranks_and_simulated_rows_only_where_nothing_real_stands_for_them():
    rows = plan()
    assert list(rows) == ["single", "single-all-cores", "dp", "ddp", "fsdp", "pipeline", "accelerate"]
    assert flag(rows["ddp"], "--spawn") == "2" and "gloo" in rows["ddp"].label
    assert flag(rows["dp"], "--simulate-devices") == "2"
    assert [name for name, row in rows.items() if "simulated" in row.label] == ["dp"]
    assert flag(rows["pipeline"], "--micro-batches") == "4"
    asked = plan(methods=[(name, {}) for name in ("mp", "mp-micro")])
    assert all("simulated" in row.label for row in asked.values())
    assert flag(asked["mp-micro"], "--micro-batches") == "4"


def test_all_rows_get_the_same_totals_and_threads_per_device():
    for gpus in (0, 1, 8):
        rows = [row for row in plan(gpus, methods=ALL, micro_batches=[8]).values() if row.method != "single-all-cores"]
        for name in ("--num-workers", "--threads", "--device", "--epochs", "--batch-size"):
            assert len({flag(row, name) for row in rows}) == 1
    assert flag(plan(8)["single"], "--num-workers") == "8"  # one for each rank
    assert flag(plan(8)["single"], "--threads") == "1"
    assert flag(plan(0)["single"], "--threads") == "4"
    assert flag(plan(0, threads_per_device=3)["ddp"], "--threads") == "3"


def test_one_process_with_all_cores_is_a_row_on_a_cpu_and_exempt_from_equal_threads():
    rows = plan()
    whole = rows["single-all-cores"]
    assert whole.label == "one process, all cores" and "data_parallel_train.py" in whole.command[1]
    assert (flag(whole, "--threads"), flag(rows["single"], "--threads"), whole.skip) == ("8", "4", "")
    refuse_unequal(list(rows.values()), "single", "strong")
    refuse_unequal(list(rows.values()), "single-all-cores", "strong")
    unequal = {**rows, "ddp": plan(threads_per_device=3)["ddp"]}
    with pytest.raises(SuiteError, match="threads per device: “one device” has 4"):  # the others are not
        refuse_unequal(list(unequal.values()), "single", "strong")
    assert "single-all-cores" not in plan(gpus=2)
    assert all(
        "which has all cores" in planned["single-all-cores"].skip
        for planned in (plan(gpus=2, methods=ALL), plan(nproc=[1]))
    )


def test_gpus_are_used_and_missing_ones_are_a_reason_to_skip():
    rows = plan(gpus=2)
    assert flag(rows["dp"], "--use-parallel") == "2" and "NCCL" in rows["ddp"].label
    assert not any(row.skip or "simulated" in row.label for name, row in rows.items() if name != "accelerate")
    rows = plan(gpus=2, nproc=[4])
    assert rows["ddp"].skip == rows["dp"].skip == "needs 4 GPUs, found 2"
    assert not rows["single"].skip and not rows["mp"].skip
    rows = plan(gpus=1)
    assert "mp" not in rows and flag(rows["ddp"], "--spawn") == "1"
    assert "simulated" in plan(gpus=1, methods=[("mp", {})])["mp"].label


def test_a_missing_package_is_a_reason_to_skip(monkeypatch):
    monkeypatch.setattr("comparison.methods.find_spec", lambda name: None)
    assert "accelerate is not installed" in plan()["accelerate"].skip and not plan()["ddp"].skip


def test_the_rungs_of_the_ladder():
    assert (
        [method for method, _ in parse_method("ladder")]
        == ladder()
        == ["single", "single-all-cores", "ddp-1", "ddp-no-sync", "ddp"]
    )
    assert parse_method("ladder:num-workers=2")[4] == ("ddp", {"num_workers": 2})
    rows = plan(methods=parse_method("ladder"), nproc=[4])
    assert flag(rows["ddp-1"], "--spawn") == "1" and "--no-sync" not in rows["ddp-1"].command
    assert flag(rows["ddp-no-sync"], "--spawn") == flag(rows["ddp"], "--spawn") == "4"
    assert "--no-sync" in rows["ddp-no-sync"].command and "--no-sync" not in rows["ddp"].command


def test_several_values_make_one_row_each_where_the_method_has_them():
    rows = plan(nproc=[1, 2], num_workers=[0, 2], model=list(MODELS[:2]), micro_batches=[2, 8], methods=ALL)
    of = {method: [row for row in rows.values() if row.method == method] for method in METHODS}
    assert [len(of[method]) for method in ("single", "ddp", "mp", "mp-micro")] == [4, 8, 4, 8]
    assert of["single"][0].values == {"model": "lenet", "num_workers": 0}
    assert rows["ddp-model=mlp-num_workers=2-nproc=1"].planned.per_device_batch_size == 64
    assert flag(rows["mp-micro-model=mlp-num_workers=2-micro_batches=8"], "--micro-batches") == "8"
    assert {flag(row, "--threads") for row in rows.values()} == {"4", "8"}  # 8 cores ÷ the most devices of any row
    assert flag(plan(nproc=[2, 3], methods=ALL[:1])["single"], "--num-workers") == "6"  # divides by 2 and by 3


def test_every_stage_of_a_pipeline_sees_the_whole_batch():
    ways = [("single", {}), ("pipeline-1", {}), ("pipeline", {})]
    for scaling in ("strong", "weak"):
        rows = plan(methods=ways, nproc=[3], batch_size=[65], num_workers=[1], micro_batches=[6], scaling=scaling)
        assert {row.planned.per_device_batch_size for row in rows.values()} == {65}
        assert {flag(row, "--batch-size") for row in rows.values()} == {"65"}
        refuse_unequal(list(rows.values()), "single", scaling)
    assert (flag(rows["pipeline"], "--spawn"), flag(rows["pipeline-1"], "--spawn")) == ("3", "1")
    assert flag(rows["pipeline"], "--micro-batches") == flag(rows["pipeline-1"], "--micro-batches") == "6"
    assert "a micro-batch needs an image" in plan(methods=ways, micro_batches=[4, 65])["pipeline-micro_batches=65"].skip


def test_1f1b_is_a_row_of_its_own_and_needs_a_micro_batch_for_every_stage():
    rows = plan(methods=[("pipeline", {}), ("pipeline-1f1b", {})], nproc=[3], micro_batches=[2, 3])
    assert {flag(row, "--pipeline-schedule") for row in rows.values() if row.method == "pipeline-1f1b"} == {"1f1b"}
    assert rows["pipeline-1f1b-micro_batches=3"].label.endswith(", 1F1B")
    skips = {name: row.skip for name, row in rows.items() if row.skip}
    assert list(skips) == ["pipeline-1f1b-micro_batches=2"]
    assert "a micro-batch for every stage; --micro-batches 2, 3 stages" in skips["pipeline-1f1b-micro_batches=2"]


def test_a_network_with_fewer_blocks_than_stages_is_a_reason_to_skip():
    arguments = plan_arguments(methods=[(name, {}) for name in ("mp", "pipeline-1", "pipeline")], nproc=[2, 3])
    skips = [
        {row.name: row.skip for row in make_plan(arguments, Machine(0, 8), [], {"lenet": blocks})}
        for blocks in (1, 2, 3)
    ]
    whole = "lenet cannot be cut: it is no plain nn.Sequential of two parts or more"
    assert skips[0] == {"mp": whole, "pipeline-1": "", "pipeline-nproc=2": whole, "pipeline-nproc=3": whole}
    few = "lenet has 2 blocks, too few for 3 stages"
    assert skips[1] == {"mp": "", "pipeline-1": "", "pipeline-nproc=2": "", "pipeline-nproc=3": few}
    assert not any(skips[2].values())


def test_all_runs_that_cut_a_network_cut_it_where_the_probe_says():
    times = [
        {"model": "lenet", "block": block, "milliseconds": value}
        for block, value in (("conv1", 1.0), ("conv2", 1.0), ("full1", 1.0), ("head", 4.0))
    ]
    probe = probe_from_dict({**PROBE, "blocks": times})
    rows = plan(methods=[(name, {}) for name in ("single", "mp", "pipeline")], nproc=[2, 3, 5], num_workers=[0])
    assert {name: row.stages for name, row in rows.items()} == {
        "single": 1,
        "mp": 2,
        "pipeline-nproc=2": 2,
        "pipeline-nproc=3": 3,
        "pipeline-nproc=5": 5,
    }
    cuts = {name: with_cut(row, probe).command[len(row.command) :] for name, row in rows.items()}
    assert cuts["mp"] == cuts["pipeline-nproc=2"] == ("--split-at", "head")
    assert cuts["pipeline-nproc=3"] == ("--split-at", "conv2", "head")
    assert cuts["single"] == cuts["pipeline-nproc=5"] == ()  # the latter cannot be
    assert with_cut(rows["mp"], None) == rows["mp"] == with_cut(rows["mp"], probe_from_dict(PROBE))


def test_the_same_value_twice_is_no_sweep():
    (row,) = plan(methods=ALL[:1], num_workers=[2, 2]).values()
    assert row.values == {}


def test_combinations_that_do_not_divide_are_skipped_unless_none_is_left():
    rows = plan(methods=parse_method("ladder"), num_workers=[1, 2])
    assert "must divide" in rows["ddp-num_workers=1"].skip and not rows["ddp-num_workers=2"].skip
    assert not rows["single-num_workers=1"].skip
    assert "a micro-batch needs an image" in plan(micro_batches=[4, 65])["pipeline-micro_batches=65"].skip
    with pytest.raises(SuiteError, match="105 workers would be the fewest"):
        plan(nproc=[3, 5, 7])
    with pytest.raises(SuiteError, match="--num-workers is a total and must divide.*found 1 for 2"):
        plan(methods=parse_method("ladder"), num_workers=[1, 3])


def test_weak_scaling_multiplies_the_batch_by_the_devices():
    rows = plan(methods=parse_method("ladder"), scaling="weak", nproc=[4])
    assert [flag(row, "--batch-size") for row in rows.values()] == ["64", "64", "64", "256", "256"]
    refuse_unequal(list(rows.values()), "single", "weak")


def test_every_row_is_compared_with_the_baseline_of_the_same_values():
    rows = plan(methods=[("ddp", {}), ("single", {})], num_workers=[0, 2], nproc=[1, 2])
    every = list(rows.values())
    assert baseline_of(rows["ddp-num_workers=2-nproc=2"], every, "single").name == "single-num_workers=2"
    assert baseline_of(rows["single-num_workers=0"], every, "single").name == "single-num_workers=0"
    assert baseline_of(rows["single-num_workers=0"], every, "ddp").name == "ddp-num_workers=0-nproc=1"
    assert baseline_of(every[0], every, "mp") is None
    rows = plan(methods=parse_method("single:num-workers=4") + parse_method("single") + parse_method("ddp"))
    assert baseline_of(rows["ddp"], list(rows.values()), "single").name == "single"  # the one that is planned equal


@pytest.mark.parametrize("own", ["precision=bf16", "compile", "cuda-graph", "num-workers=4"])
def test_a_row_of_the_baselines_method_with_a_value_of_its_own_is_compared_with_the_plain_one(own):
    methods = [*parse_method("single"), *parse_method(f"single:{own}")]
    plain, other = plan(methods=methods, num_workers=[0]).values()
    assert all(baseline_of(row, [other, plain], "single") is plain for row in (plain, other))
    with pytest.raises(SuiteError, match="unequal rows are no comparison"):
        refuse_unequal([plain, other], "single", "strong")


def test_a_readers_model_is_called_by_its_files_name():
    rows = plan(model=["/home/ada/net.py:build", "lenet"], methods=[("single", {})])
    assert list(rows) == ["single-model=net.py:build", "single-model=lenet"]
    for one, other in (("a/net.py:build", "b/net.py:build"), ("my net.py:build", "my-net.py:build")):  # or their files
        with pytest.raises(SuiteError, match="two models have one name"):
            plan(model=[one, other])


def test_a_value_for_one_method_alone_is_refused_with_both_values():
    rows = list(plan(methods=[*parse_method("single"), *parse_method("ddp:num-workers=4")], num_workers=[0]).values())
    assert flag(rows[1], "--num-workers") == "4" and rows[1].label == "DDP ×2, gloo, num workers 4"
    with pytest.raises(SuiteError, match="workers: “one device” has 0, “DDP ×2, gloo, num workers 4” 4; .*--allow-un"):
        refuse_unequal(rows, "single", "strong")
    with pytest.raises(SuiteError, match="workers: "):
        refuse_unequal(rows, "mp", "strong")  # no baseline: the first row stands in
    refuse_unequal(list(plan(methods=ALL, num_workers=[0, 2]).values()), "single", "strong")


@pytest.mark.parametrize(
    "text, message",
    [
        ("dpp", "did you mean"),
        ("ddp:wrokers=4", "unknown name 'wrokers'"),
        ("ddp:num-workers=-1", "from 0 to"),
        ("ddp:num-workers", "found ''"),
    ],
)
def test_methods_that_cannot_be_read(text, message, project):
    done = project("compare_parallel.py", "--methods", text, tiny=False)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_blocks_hold_every_row_once_in_an_order_of_the_seeds():
    names = list("abcdef")
    order = make_order(names, 3, seed=1)
    blocks = [[name for block, name in order if block == number] for number in (1, 2, 3)]
    assert all(sorted(block) == names for block in blocks)
    assert [block for block, _ in order] == [1] * 6 + [2] * 6 + [3] * 6
    assert len({tuple(block) for block in blocks}) == 3
    assert make_order(names, 3, seed=1) == order != make_order(names, 3, seed=2)


@pytest.mark.slow
def test_dry_run_prints_commands_that_work_when_pasted(project, data_root, tmp_path):
    done = project(
        "compare_parallel.py",
        "--dry-run",
        "--methods",
        "single",
        "ddp",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        96,
        "--batch-size",
        48,
        "--epochs",
        1,
        "--num-workers",
        0,
        "--output-dir",
        tmp_path / "out dir",
        tiny=False,
    )
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 2 and not (tmp_path / "out dir").exists()
    assert done.stdout.splitlines()[-1].startswith("# About ") and done.stderr == ""
    pasted = subprocess.run(
        f"{commands[0]} --figure-dir {shlex.quote(str(tmp_path))}",
        shell=True,
        cwd=PROJECT,
        env=child_environment(),
        capture_output=True,
    )
    assert pasted.returncode == 0


# ---- how long it takes


@pytest.mark.parametrize("typed, expected", [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_a_budget_is_a_time(typed, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--budget", typed, "--equal-within", "2%"])
    arguments, shared = compare_parallel.parse()
    assert (arguments.budget, arguments.repeats, arguments.equal_within) == (expected, None, 0.02)
    assert "--budget" not in shared and "--equal-within" not in shared


@pytest.mark.parametrize("flags, repeats, budget", [((), None, 300), (("--repeats", "4"), 4, None)])
def test_without_a_number_of_repeats_there_is_a_budget(flags, repeats, budget, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *flags])
    arguments, _ = compare_parallel.parse()
    assert (arguments.repeats, arguments.budget) == (repeats, budget)


def test_the_estimate_starts_from_a_step_and_learns_from_every_run():
    row, other = configuration(), configuration("ddp")
    probe = probe_from_dict({**PROBE, "steps": [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]})
    settings = {"epochs": 2, "max_steps": None}
    # 2 s of start-up, and 2 epochs of 1000 + 200/3 images at 0.5 ms
    assert guess_seconds(row, settings, probe) == pytest.approx(2 + 2 * (1000 + 200 / 3) * 0.0005)
    assert guess_seconds(row, {**settings, "max_steps": 1}, probe) == pytest.approx(2 + 2 * (100 + 200 / 3) * 0.0005)
    order = [(1, "single"), (1, "ddp"), (2, "ddp"), (2, "single")]
    guesses = {"single": 2.0, "ddp": 4.0}
    assert seconds_left(order, (), guesses) == 12
    done = report_of((row, runs(seconds=(1.0,))), (other, [])).outcomes  # its wall time is 9 s: 4.5 times the guess
    assert seconds_left(order[1:], done, guesses) == pytest.approx(4.5 * 8 + 9)
    assert [duration(seconds) for seconds in (40.2, 600, 9000)] == ["40 s", "10 min", "2.5 h"]
    assert [percent(share) for share in (0.0123, 0.25, 1.12)] == ["1.2 %", "25 %", "110 %"]


@pytest.mark.parametrize(
    "epochs, settings, flags, minutes",
    [
        (200, {}, "--epochs 2 --max-steps 100", "2 min"),  # 9 runs: 2 s of start-up, 100 images in 60 ms
        (200, {"max_steps": 10}, None, None),  # 18 min
        (1, {}, None, None),
        (200, {"target_accuracy": 0.9}, None, None),
        (200, {"fit_batch": True}, None, None),
    ],
)
def test_a_comparison_of_more_than_half_an_hour_names_a_shorter_one(epochs, settings, flags, minutes):
    step = {"model": "lenet", "batch": 100, "milliseconds": 60.0}
    probe = {"train_images": 60_000, "test_images": 3, "steps": [step]}
    report = replace(
        report_of(
            *((configuration(name), runs()) for name in ("single", "ddp", "fsdp")),
            epochs=epochs,
            probe=probe,
            **settings,
        ),
        command="python compare_parallel.py --dry-run",
        outcomes=(),
    )
    sentence = shorter_command(report)
    assert sentence == (
        flags and f"Which row is fastest, this tells in about {minutes}:\npython compare_parallel.py {flags}"
    )
    evaluates = replace(report, probe=replace(report.probe, test_images=3_000_000))  # which fewer steps do not shorten
    assert shorter_command(replace(evaluates, settings={**report.settings, "epochs": 2})) is None


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
    ],
)
def test_a_child_without_a_result_gets_its_row_with_the_cause(code, reason, tmp_path):
    (tmp_path / "runs").mkdir()
    write_result(make_result(), tmp_path / "runs" / "single-1.json")  # an earlier comparison's, not this one's
    outcome = run_once(child(code), 1, 42, tmp_path / "runs")
    assert outcome.status == "failed" and reason in outcome.reason and outcome.result is None
    assert outcome.wall_seconds > 0


def test_a_result_of_a_child_that_failed_afterwards_is_not_ok(tmp_path):
    write_result(make_result(), tmp_path / "made.json")
    outcome = run_once(
        child(
            f"import shutil, sys; shutil.copy({str(tmp_path / 'made.json')!r}, "
            f"{str(tmp_path / 'runs' / 'single-1.json')!r}); sys.exit(1)"
        ),
        1,
        42,
        tmp_path / "runs",
    )
    assert outcome.status == "failed" and "exit code 1" in outcome.reason


def test_a_diverged_run_is_a_diverged_row(tmp_path):
    write_result(make_result(status="diverged", reason="the loss was nan"), tmp_path / "made.json")
    outcome = run_once(
        child(
            f"import shutil, sys; shutil.copy({str(tmp_path / 'made.json')!r}, "
            f"{str(tmp_path / 'runs' / 'single-1.json')!r}); sys.exit(1)"
        ),
        1,
        42,
        tmp_path / "runs",
    )
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("diverged", "the loss was nan", 1)


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


def test_nothing_of_a_childs_process_group_outlives_it(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    assert run_child((sys.executable, "-c", code), tmp_path / "log") == 0
    assert_gone((tmp_path / "log").read_text().strip())


def test_what_left_the_process_group_does_not_outlive_the_run_either(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    assert run_child((sys.executable, "-c", code), tmp_path / "log") == 0
    assert_gone((tmp_path / "log").read_text().strip())


def test_an_exit_code_of_124_is_no_time_out(tmp_path):
    assert run_once(child("import sys; sys.exit(124)"), 1, 42, tmp_path, timeout=60).status == "failed"


def assert_gone(pid):
    """No such process, or a zombie: it is dead, and waits for its parent to ask."""
    deadline = time.time() + 2
    while time.time() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
    pytest.fail(f"process {pid} still runs")


# ---- the whole


def test_the_parent_never_imports_torch():
    code = "import sys, compare_parallel; sys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0


@pytest.mark.parametrize("check", [(), pytest.param(("--check-maths",), marks=pytest.mark.slow)])
def test_a_comparison_from_start_to_end(check, project, data_root, tmp_path):
    directory = tmp_path / "a b;$(x) 中"
    flags = (
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        480,
        "--batch-size",
        48,
        "--num-workers",
        0,
        "--epochs",
        2,
        "--repeats",
        1,
        "--project",
        2,
        4,
        *check,
        "--output-dir",
        directory,
    )
    done = project("compare_parallel.py", "--methods", "single", "ddp", *flags, tiny=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "\r" not in done.stdout  # no terminal
    assert "2 runs: 2 rows x 1 block\n" in done.stdout and "\n[2/2] block 1, " in done.stdout
    jsonschema.validate(json.loads((directory / "results.json").read_text()), comparison())
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
    assert {name for name in files if name.endswith(".svg")} == {
        name.replace(".png", ".svg") for name in files if name.endswith(".png")
    }
    others = {name for name in files if not name.endswith(".svg")}
    assert others - {"excess.png", "scaling.png"} == {  # not drawn where another program disturbed the rows
        "results.json",
        "results.csv",
        "results.tex",
        "report.md",
        "report.html",
        "curves.png",
        "speed-up.png",
        "phases.png",
        "memory.png",
        "time-memory.png",
        ".comparison.lock",
    }

    again = project(
        "compare_parallel.py", "--from", directory / "results.json", "--output-dir", tmp_path / "again", tiny=False
    )
    assert again.returncode == 0, again.stderr
    assert {path.name for path in (tmp_path / "again").iterdir()} == files
    for name in ("results.json", "results.csv", "results.tex", "report.md"):
        assert (tmp_path / "again" / name).read_bytes() == (directory / name).read_bytes()
    end = done.stdout.index("Written to")
    assert again.stdout.partition("Written to")[0] in done.stdout[:end]

    same = project("compare_parallel.py", "--diff", directory / "results.json", directory / "results.json", tiny=False)
    equal = re.findall(r"^(?:one device|DDP) .* 1\.00\b", same.stdout, re.MULTILINE)
    assert same.returncode == 0 and len(equal) == 2, same.stderr


@pytest.mark.slow
def test_one_failing_row_leaves_the_others(project, data_root, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('broken')")  # found by the plan, useless to the child
    (tmp_path / "sitecustomize.py").write_text("import sys; print('a warning', file=sys.stderr)")  # must not matter
    done = project(
        "compare_parallel.py",
        "--methods",
        "accelerate",
        "mp",
        "--dataset",
        "synthetic-mnist",
        "--data-root",
        data_root,
        "--train-size",
        96,
        "--batch-size",
        48,
        "--epochs",
        1,
        "--num-workers",
        0,
        "--repeats",
        1,
        "--output-dir",
        tmp_path / "out",
        tiny=False,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    outcomes = read_results(tmp_path / "out" / "results.json").outcomes
    assert {outcome.configuration: outcome.status for outcome in outcomes} == {"accelerate": "failed", "mp": "ok"}
    reason = next(outcome.reason for outcome in outcomes if outcome.status == "failed")
    assert "accelerate_train.py needs Hugging Face Accelerate" in reason
    assert f"failed: {reason}" in " ".join(done.stdout.split())
    assert "the baseline, single, is not among the methods" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--project", 1), "--project: needs whole numbers of at least 2"),
        (("--project", 3), "--batch-size is a total and must divide by the number of processes; found 128 for 3"),
        pytest.param(("--project", 2, "--scaling", "weak"), "--project is for strong scaling", marks=pytest.mark.slow),
        pytest.param(
            ("--methods", "ddp", "--num-workers", 1, 3),
            "--num-workers is a total and must divide",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--methods", "single", "ddp:num-workers=4", "--num-workers", 0), "--allow-unequal", marks=pytest.mark.slow
        ),
        (("--baseline", "singel"), "did you mean single?"),
        (("--baseline", "ddp-no-sync"), "could be a baseline"),
        (("--from", "results.json", "--project", 2), "leave out --project"),
        (("--repeats", 0), "from 1 to"),
        (("--repeats", 3, "--budget", "5m"), "--repeats says how often, --budget how long"),
        (("--budget", "soon"), "needs a time above 0, e.g. 90s, 20m or 2h, found 'soon'"),
        (("--equal-within", "0%"), "percent above 0 and below 100"),
        (("--from", "x.json", "--budget", "9m"), "--budget"),
        (("--from", "no.json"), "cannot read no.json"),
        (("--diff", "a.json", "b.json"), "cannot read a.json"),
        (("--diff", "a.json", "b.json", "--lang", "zh"), "--diff shows what was measured; leave out --lang"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(flags, message, project, tmp_path):
    where = () if "--diff" in flags else ("--output-dir", tmp_path / "out")
    done = project("compare_parallel.py", *flags, *where, tiny=False)
    assert done.returncode == (4 if "cannot read" in message else 2) and message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "results.json").exists()
