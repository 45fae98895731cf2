"""A training takes fewer threads beside other programs; a comparison waits for the trainings that compute here."""

import subprocess
import sys
import time

import pytest

import compare_parallel
from common.engine import setup
from common.engine.setup import SharedCores, may_share
from common.machine import sharing
from common.machine.lifetime import TAG
from common.machine.sharing import COMPARISON, TRAINING, computing, programs, wait_for_others
from tests.fixtures import CPU, PROJECT, child_environment, make_config

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="known on Linux alone")
OTHER = """
import time
from common.machine.sharing import computing
with computing("training"):
    print(flush=True)
    time.sleep({seconds})
"""


@pytest.mark.parametrize(
    "looks, expected",  # per second: how long threads have waited, and cores been idle
    [
        ([(0.2, 0.0)] * 3, [8, 8, 8]),  # now and then somebody's
        ([(4.0, 0.0)], [4]),  # another training with as many threads
        ([(0.5, 0.0)], [7]),  # another program on one core
        ([(40.0, 0.0)], [1]),
        ([(4.0, 0.0), (0.0, 0.5)], [4, 4]),
        ([(4.0, 0.0), (0.0, 4.0), (0.0, 4.0)], [4, 4, 8]),
        ([(4.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 3.0)], [4, 4, 5, 5]),
        ([(4.0, 0.0), *[(0.0, 4.0)] * 2, (4.0, 0.0), *[(0.0, 4.0)] * 4], [4, 4, 8, 4, 4, 4, 4, 8]),  # later each time
    ],
)
def test_as_many_threads_as_find_a_core(looks, expected, monkeypatch):
    now, taken, said = [0.0, 0.0, 0.0], [], []
    monkeypatch.setattr(SharedCores, "_read", lambda self: tuple(now))
    monkeypatch.setattr(setup.torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(setup.torch, "set_num_threads", taken.append)
    cores, found = SharedCores(said.append), []
    for waited, idle in looks:
        now = [total + more for total, more in zip(now, (1.0, waited, idle), strict=True)]
        cores.look()
        found.append(cores.now)
    assert found == expected and cores.fewest == min(8, *expected)
    assert taken == [threads for before, threads in zip([8, *found], found, strict=False) if threads != before]
    assert len(said) == len(taken)


def test_threads_that_somebody_chose_are_kept(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert may_share(make_config(), CPU)
    assert not may_share(make_config(threads=2), CPU) and not may_share(make_config(compile=True), CPU)
    assert not may_share(make_config(), setup.torch.device("cuda:0"))
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    assert not may_share(make_config(), CPU)


@pytest.fixture
def own_place(monkeypatch):
    """Names that no other test's programs have."""
    monkeypatch.setattr(sharing, "NAME", f"@test-{time.monotonic_ns()}/")


@LINUX
def test_who_computes_is_seen_but_no_run_of_a_comparison_and_no_later_rank(own_place, monkeypatch):
    with computing(COMPARISON):
        assert [program.kind for program in programs()] == [COMPARISON]
    assert programs() == []
    for name, value in ((TAG, "somebody-1-run"), ("LOCAL_RANK", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with computing(TRAINING):
                assert programs() == []


@LINUX
def test_a_comparison_waits_for_a_training_in_another_process_and_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv(TAG, raising=False)
    command = [sys.executable, "-c", OTHER.format(seconds=1)]
    options = {"stdout": subprocess.PIPE, "cwd": PROJECT, "env": child_environment()}
    with subprocess.Popen(command, **options) as other:
        other.stdout.readline()
        assert str(other.pid) in " ".join(str(program) for program in wait_for_others(0))
        assert not capsys.readouterr().out
        before = {program.pid for program in wait_for_others(20)}
        assert other.pid not in before and f"process {other.pid}" in capsys.readouterr().out


def test_a_comparison_that_does_not_wait_says_that_it_is_disturbed(monkeypatch, capsys, planned, tmp_path):
    monkeypatch.setattr(compare_parallel, "wait_for_others", lambda seconds: [sharing.Program(TRAINING, seconds)])
    monkeypatch.setattr(compare_parallel, "measure", lambda *_: None)
    monkeypatch.setattr(compare_parallel, "present", lambda *_: None)
    planned()
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--wait", "0"])
    compare_parallel.compare(*compare_parallel.parse(), tmp_path)
    assert "a training (process 0.0) will disturb the times" in capsys.readouterr().err
