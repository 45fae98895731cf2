"""The comparison: its plan, its runs, its table, and that it never imports torch."""

import csv
import json
import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from common.plots import METHOD_STYLE, draw_curves
from common.results import write_result
from comparison.launch import Outcome, run_child, run_row
from comparison.plan import METHODS, Machine, Row, make_plan
from comparison.plots import draw_all
from comparison.report import Report, notes, table, write_csv, write_markdown, write_results
from comparison.statistics import summarize
from conftest import PROJECT, child_environment, read_report
from test_results import make_result

SETTINGS = {"dataset": "synthetic-mnist", "model": "lenet", "batch_size": 100, "epochs": 3}


def outcome(method="single", status="ok", result=None, **values):
    return Outcome(method, method.upper(), status, values.pop("reason", ""), f"python {method}.py", f"{method}.log",
                   wall_seconds=9.0, result=result, **values)


def report_of(*outcomes):
    return Report("python compare_parallel.py", SETTINGS, {"torch": "2.11.0", "gpus": []}, outcomes)


def plan(gpus=0, **values):
    arguments = Namespace(**{"methods": list(METHODS), "nproc": None, "batch_size": 64, "num_workers": None,
                             "threads_per_device": None, "micro_batches": 4, **values})
    return {row.method: row for row in make_plan(arguments, Machine(gpus, cores=8), ["--epochs", "1"], Path("out"))}


def flag(row, name):
    return row.command[row.command.index(name) + 1]


# ---- plan


def test_a_cpu_gets_two_ranks_and_simulated_methods():
    rows = plan()
    assert flag(rows["ddp"], "--spawn") == "2" and "gloo" in rows["ddp"].label
    assert flag(rows["dp"], "--simulate-devices") == "2"
    assert [method for method, row in rows.items() if "simulated" in row.label] == ["dp", "mp", "mp-micro"]
    assert flag(rows["mp-micro"], "--micro-batches") == "4"


def test_all_rows_get_the_same_totals_and_threads_per_device():
    for gpus in (0, 1, 8):
        rows = plan(gpus).values()
        for name in ("--num-workers", "--threads", "--device", "--epochs"):
            assert len({flag(row, name) for row in rows}) == 1
    assert flag(plan(8)["single"], "--num-workers") == "8"  # one for each rank
    assert flag(plan(8)["single"], "--threads") == "1"
    assert flag(plan(0)["single"], "--threads") == "4"
    assert flag(plan(0, threads_per_device=3)["ddp"], "--threads") == "3"


def test_gpus_are_used_and_missing_ones_are_a_reason_to_skip():
    rows = plan(gpus=2)
    assert flag(rows["dp"], "--use-parallel") == "2" and "NCCL" in rows["ddp"].label
    assert not any(row.skip or "simulated" in row.label for method, row in rows.items() if method != "accelerate")
    rows = plan(gpus=2, nproc=4)
    assert rows["ddp"].skip == rows["dp"].skip == "needs 4 GPUs, found 2"
    assert not rows["single"].skip and not rows["mp"].skip
    rows = plan(gpus=1)
    assert "simulated" in rows["mp"].label and not rows["mp"].skip and flag(rows["ddp"], "--spawn") == "1"


def test_a_missing_package_is_a_reason_to_skip_and_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("comparison.plan.find_spec", lambda name: None)
    row = plan()["accelerate"]
    assert "accelerate is not installed" in row.skip and not plan()["ddp"].skip
    found = run_row(row)
    assert (found.status, found.reason, found.exit_code, found.wall_seconds) == ("skipped", row.skip, None, None)


def test_dry_run_prints_commands_that_work_when_pasted(project, data_root, tmp_path):
    done = project("compare_parallel.py", "--dry-run", "--methods", "single", "ddp", "--dataset", "synthetic-mnist",
                   "--data-root", data_root, "--train-size", 96, "--batch-size", 48, "--epochs", 1, "--num-workers", 0,
                   "--output-dir", tmp_path / "out dir", tiny=False)
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 2 and not (tmp_path / "out dir").exists()
    environment = child_environment()
    assert subprocess.run(commands[0], shell=True, cwd=PROJECT, env=environment, capture_output=True).returncode == 0
    assert json.loads((tmp_path / "out dir" / "runs" / "single.json").read_text())["status"] == "ok"


# ---- one child


def child(tmp_path, code):
    return Row("single", "one device", (sys.executable, "-c", code), tmp_path / "runs" / "single.json")


@pytest.mark.parametrize("code, reason", [
    ("import sys; print('error: no cake; found none; bake one', file=sys.stderr); sys.exit(4)",
     "no cake; found none; bake one (log: "),
    ("import os; os._exit(3)", "exit code 3"),
    ("import os; os.kill(os.getpid(), 9)", "SIGKILL, probably out of memory"),
    ("pass", "it ended without writing a result"),
])
def test_a_child_without_a_result_gets_its_row_with_the_cause(code, reason, tmp_path):
    row = child(tmp_path, code)
    row.result_file.parent.mkdir()
    write_result(make_result(), row.result_file)  # of an earlier comparison: must not be taken for this one's
    found = run_row(row)
    assert found.status == "failed" and reason in found.reason and found.result is None
    assert found.wall_seconds > 0


def test_a_damaged_result_is_a_failed_row(tmp_path):
    row = child(tmp_path, f"open({str(tmp_path / 'runs' / 'single.json')!r}, 'w').write('{{')")
    found = run_row(row)
    assert found.status == "failed" and "cannot read the result file" in found.reason


def test_a_result_of_a_child_that_failed_afterwards_is_not_ok(tmp_path):
    write_result(make_result(), tmp_path / "made.json")
    row = child(tmp_path, f"import shutil, sys; shutil.copy({str(tmp_path / 'made.json')!r}, "
                          f"{str(tmp_path / 'runs' / 'single.json')!r}); sys.exit(1)")
    found = run_row(row)
    assert found.status == "failed" and "exit code 1" in found.reason


def test_a_diverged_run_is_a_diverged_row(tmp_path):
    write_result(make_result(status="diverged", reason="the loss was nan"), tmp_path / "made.json")
    row = child(tmp_path, f"import shutil, sys; shutil.copy({str(tmp_path / 'made.json')!r}, "
                          f"{str(tmp_path / 'runs' / 'single.json')!r}); sys.exit(1)")
    found = run_row(row)
    assert (found.status, found.reason, found.exit_code) == ("diverged", "the loss was nan", 1)
    assert summarize(found, found).epoch_seconds is None


def test_an_interrupted_comparison_stops_its_child(tmp_path):
    code = ("from comparison.launch import run_child; import sys, signal; from pathlib import Path; "
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
            f"run_child((sys.executable, '-c', 'import time, os; print(os.getpid(), flush=True); time.sleep(60)'), "
            f"Path({str(tmp_path / 'log')!r}))")
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


def assert_gone(pid):
    """No such process, or a zombie: it is dead, and waits for its parent to ask."""
    deadline = time.time() + 2
    while time.time() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
    pytest.fail(f"process {pid} still runs")


# ---- numbers and table


def test_the_median_leaves_out_the_warm_up_epoch():
    single = outcome(result=make_result(seconds=(9.0, 2.0, 4.0, 3.0)))
    ddp = outcome("ddp", result=make_result("ddp", seconds=(9.0, 1.5, 1.5, 1.5)))
    numbers = summarize(ddp, single)
    assert (numbers.epoch_seconds, numbers.speed_up) == (1.5, 2.0)
    assert summarize(single, single).epoch_seconds == 3.0
    assert summarize(single, single).images_per_second == pytest.approx(1000 / 3)
    assert (summarize(single, single).fastest_epoch, summarize(single, single).slowest_epoch) == (2.0, 4.0)
    assert summarize(outcome(result=make_result(seconds=(5.0,))), None).epoch_seconds == 5.0


def test_no_speed_up_without_a_measurement():
    single, simulated = outcome(result=make_result()), outcome("dp", result=make_result("dp", simulated=True))
    assert summarize(simulated, single).speed_up is None and summarize(simulated, single).epoch_seconds == 2.1
    assert summarize(outcome("ddp", result=make_result("ddp")), None).speed_up is None
    assert summarize(outcome("ddp", result=make_result("ddp")), outcome(status="failed")).speed_up is None
    assert summarize(outcome("ddp", status="diverged", result=make_result("ddp")), single).epoch_seconds is None


def test_every_row_says_synthetic_and_what_was_not_measured_is_a_dash():
    report = report_of(outcome(result=make_result()), outcome("dp", result=make_result("dp", simulated=True)),
                       Outcome("ddp", "DDP", "skipped", "needs 2 GPUs, found 1", "python x", "x.log"))
    lines = table(report, "simple").splitlines()[2:]
    assert len(lines) == 3 and all("synthetic-mnist" in line for line in lines)
    assert re.split(r"\s{2,}", lines[2].strip()) == ["DDP", "synthetic-mnist", *["–"] * 6, "skipped"]
    assert lines[1].split()[-2:] == ["–", "simulated"]
    said = " ".join(notes(report))
    assert "needs 2 GPUs, found 1" in said and "is synthetic" in said and "no interval" in said


@pytest.mark.parametrize("outcomes, said", [
    ((outcome("ddp", result=make_result("ddp")),), "No speed-ups: the baseline, single, is not among the methods"),
    ((outcome(status="failed", reason="no"), outcome("ddp", result=make_result("ddp"))),
     "No speed-ups: the baseline, single, is failed"),
])
def test_without_a_baseline_the_notes_say_so(outcomes, said):
    assert said in " ".join(notes(report_of(*outcomes)))


def test_files_hold_the_raw_times_and_point_to_the_figures(tmp_path):
    report = report_of(outcome(result=make_result()), outcome("ddp", result=make_result("ddp", seconds=(2.0, 1.0))),
                       outcome("dp", result=make_result("dp", simulated=True, reason="2 replicas")),
                       outcome("mp", status="failed", reason="signal 9"))
    figures = draw_all(report, tmp_path)
    write_results(report, tmp_path)
    write_csv(report, tmp_path / "results.csv")
    write_markdown(report, tmp_path / "report.md", figures)
    assert read_report(tmp_path / "results.json") == report
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "failed"]
    assert float(rows[1]["speed_up"]) == pytest.approx(2.1) and rows[2]["speed_up"] == rows[3]["epoch_seconds"] == ""
    assert {row["dataset"] for row in rows} == {"synthetic-mnist"} and rows[2]["simulated"] == "True"
    text = (tmp_path / "report.md").read_text()
    assert [figure.name for figure in figures] == ["curves.png", "speed-up.png", "phases.png"]
    for figure in figures:
        assert f"]({figure.name})" in text
        assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 1e4


def test_every_method_has_a_look_of_its_own(tmp_path):
    assert set(METHODS) <= set(METHOD_STYLE)
    for key in ("color", "linestyle", "marker"):
        assert len({str(style[key]) for style in METHOD_STYLE.values()}) == len(METHOD_STYLE)
    drawn = draw_curves(make_result("ddp", devices=("cpu", "cpu")), tmp_path)
    assert drawn.name == "synthetic-mnist-lenet-ddp-2.png" and drawn.stat().st_size > 1e4


# ---- the whole


def test_the_parent_never_imports_torch():
    code = "import sys, compare_parallel; sys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0


def test_a_comparison_from_start_to_end(project, data_root, tmp_path):
    directory = tmp_path / "a b;$(x) 中"
    flags = ("--dataset", "synthetic-mnist", "--data-root", data_root, "--train-size", 480, "--batch-size", 48,
             "--num-workers", 0, "--epochs", 2, "--output-dir", directory)
    done = project("compare_parallel.py", "--methods", "single", "ddp", *flags, tiny=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    for line in ("one device", "DDP ×2, gloo"):
        assert len(re.findall(rf"^{line} +synthetic-mnist .*ok$", done.stdout, re.M)) == 1
    stored = json.loads((directory / "results.json").read_text())
    assert [row["status"] for row in stored["outcomes"]] == ["ok"] * 2
    assert len(stored["outcomes"][1]["result"]["epochs"]) == 2
    assert shlex.split(stored["outcomes"][0]["command"])[-1] == str(directory / "runs")
    names = {path.name for path in directory.iterdir()}
    assert names == {"results.json", "results.csv", "report.md", "curves.png", "speed-up.png", "phases.png", "runs"}


def test_one_failing_row_leaves_the_others(project, data_root, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('broken')")  # found by the plan, useless to the child
    (tmp_path / "sitecustomize.py").write_text("import sys; print('a warning', file=sys.stderr)")  # must not matter
    done = project("compare_parallel.py", "--methods", "accelerate", "mp", "--dataset", "synthetic-mnist",
                   "--data-root", data_root, "--train-size", 96, "--batch-size", 48, "--epochs", 1, "--num-workers", 0,
                   "--output-dir", tmp_path / "out", tiny=False, environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["outcomes"]
    assert [row["status"] for row in rows] == ["failed", "ok"]
    assert "accelerate_train.py needs Hugging Face Accelerate" in rows[0]["reason"]
    assert "accelerate_train.py needs Hugging Face Accelerate" in done.stdout
