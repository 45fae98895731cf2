"""Children forked from a template do what a new process does."""

import json
import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from common.machine.lifetime import TAG, own_tag, tags
from comparison.methods import python
from comparison.run import forked, session
from comparison.run.forked import Template
from comparison.run.launch import ask, run_child, started
from comparison.run.turns import run_once
from tests.fixtures import PROJECT, alive, wait_until
from tests.reports import configuration, report_of

CAN_FORK = forked.can_fork()
pytestmark = [pytest.mark.process, pytest.mark.skipif(not CAN_FORK, reason="needs Linux")]
FLAGS = "--dataset synthetic-mnist --model lenet --epochs 1 --max-steps 3 --no-curves --device cpu".split()


@pytest.fixture(autouse=True)
def forks(monkeypatch):
    """Fork the children of this process, in the project's directory."""
    monkeypatch.setattr(forked, "can_fork", lambda: CAN_FORK)
    monkeypatch.setattr(forked, "OWN", forked.OWN | {"PYTEST_CURRENT_TEST"})
    monkeypatch.chdir(PROJECT)


@pytest.fixture(scope="module", autouse=True)
def end_template():
    yield
    forked.close_templates()


def trained(directory, name, *words):
    output = directory / f"{name}.json"
    command = (python(), *words, *FLAGS, "--output", str(output), "--figure-dir", str(directory))
    assert run_child(command, directory / f"{name}.log") == 0, (directory / f"{name}.log").read_text()
    return json.loads(output.read_text())


SCRIPTS = [pytest.param(("data_parallel_train.py",), marks=pytest.mark.slow), ("ddp_train.py", "--spawn", "2")]


@pytest.mark.parametrize("words", SCRIPTS, ids=" ".join)
def test_a_fork_trains_like_a_new_process(words, tmp_path, monkeypatch):
    fork = trained(tmp_path, "forked", *words)
    monkeypatch.setattr(forked, "can_fork", lambda: False)
    new = trained(tmp_path, "new", *words)
    assert [epoch["train_loss"] for epoch in fork["epochs"]] == [epoch["train_loss"] for epoch in new["epochs"]]
    # the imports count, although the template made them
    assert fork["startup_seconds"] > 0.5 * new["startup_seconds"]
    assert max(fork["peak_memory_bytes"]) > 0.9 * max(new["peak_memory_bytes"])
    different = {name for name in new if fork[name] != new[name]}
    assert different <= {
        "epochs",
        "startup_seconds",
        "total_seconds",
        "peak_memory_bytes",
        "config",
        "command",
        "sha256",
    }


@pytest.mark.parametrize("words", SCRIPTS, ids=" ".join)
def test_its_place_among_the_processes(words, tmp_path):
    command = (python(), *words, *FLAGS, "--epochs", "100", "--figure-dir", str(tmp_path))
    forked.prepare([command])
    before = tags()
    with started(command, tmp_path / "log") as child:
        assert child.earlier and child.pid not in before
        assert tags()[child.pid].startswith(own_tag()) and tags()[child.pid] not in before.values()
        shown = alive(f"{TAG}={own_tag()}")[child.pid]
        assert shown.split() == [sys.executable, *command[1:]]
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        wait_until(lambda: "Epoch" in (tmp_path / "log").read_text())
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == child.poll() == -signal.SIGKILL
    assert child.pid not in alive(f"{TAG}={own_tag()}")


def test_a_whole_run_lasts_as_if_it_were_a_new_process(tmp_path):
    row = replace(configuration(), command=(python(), "data_parallel_train.py", *FLAGS))
    outcome = run_once(row, 1, 1, tmp_path)
    # the result includes the template's imports, but not the process's exit
    assert outcome.result.total_seconds < outcome.wall_seconds < outcome.result.total_seconds + 10


def test_errors_and_answers(tmp_path, capfd):
    assert run_child((python(), "ddp_train.py", "--spawn", "0"), tmp_path / "log") == 2
    assert (tmp_path / "log").read_text().startswith("error: ")
    assert json.loads(ask("common.programs.check", "--json", "--data-root", str(tmp_path)))["environment"]["cores"]
    with pytest.raises(SystemExit) as ended:
        ask("common.programs.model", "--model", "none")
    assert ended.value.code == 2 and capfd.readouterr().err.startswith("error: ")


def test_what_is_started_afresh(tmp_path, monkeypatch):
    environment = {**os.environ, TAG: own_tag("0" * 32)}
    template = Template()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)

    def fork(**more):
        child = template.fork((python(), "ddp_train.py", "--help"), {**environment, **more}, (log, log))
        return child and child.wait()

    assert fork() == 0 and fork(PYTHONPATH="/elsewhere") == 0
    assert fork(OMP_NUM_THREADS="7") is None  # which torch reads when it is imported
    monkeypatch.chdir(tmp_path)
    assert fork() is None
    monkeypatch.chdir(PROJECT)
    os.kill(template._process.pid, signal.SIGKILL)
    assert fork() is None and not template._ready
    template.close()
    monkeypatch.setattr(forked, "template", lambda _: pytest.fail("no template is needed"))
    for command in (
        ("torchrun", "ddp_train.py"),
        (python(), str(tmp_path / "mine.py")),
        (python(), "ddp_train.py", "--compile"),
        (python(), "-m", "torch.distributed.run"),
        (sys.executable, "-c", "pass"),
    ):
        assert forked.fork(command, environment, (log, log)) is None
    os.close(log)


@pytest.mark.parametrize("before, expected", [((), True), (("env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"), False)])
def test_the_rows_of_a_comparison_are_forked_all_or_none(before, expected, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(session, "prepare", lambda commands: None)
    monkeypatch.setattr(session, "run_once", lambda row, block, seed, directory, timeout, forks: asked.append(forks))
    alone, other = (replace(configuration(name), command=(python(), "ddp_train.py")) for name in ("single", "ddp"))
    report = report_of((alone, []), (replace(other, command=(*before, *other.command)), []))
    list(session.run_block(replace(report, order=((1, "single"), (1, "ddp"))), 1, tmp_path))
    assert asked == [expected, expected]


def test_a_program_is_started_afresh_if_asked(tmp_path):
    command = (python(), "ddp_train.py", "--help")
    forked.prepare([command])
    for forks in (True, False):
        with started(command, tmp_path / "log", forks=forks) as child:
            assert child.wait() == 0 and bool(child.earlier) == forks


def test_waiting_has_a_limit():
    child = os.fork()
    if not child:
        time.sleep(100)
    with pytest.raises(forked.subprocess.TimeoutExpired):
        forked.Child(child).wait(0.1)
    os.kill(child, signal.SIGTERM)
    assert forked.Child(child).wait() == -signal.SIGTERM
    assert forked.Child(child).wait() == 0  # nobody knows any more


def test_a_template_is_not_waited_for_before_it_is_needed():
    forked.close_templates()
    forked.start_template()
    script = (python(), "ddp_train.py", "--spawn", "2")
    assert forked.templates[False]._ready is None
    forked.prepare([script], wait=False)  # only a template can be forked that has started
    assert forked.templates[False]._ready and forked.templates[True]._ready is None
    forked.prepare([script])
    assert forked.templates[True]._ready
