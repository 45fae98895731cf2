"""A training uses fewer threads next to other programs, and a comparison waits for running trainings."""

import subprocess
import sys
import time

import pytest

import compare_parallel
from common.engine import setup
from common.engine.setup import SharedCores, may_share
from common.errors import SuiteError
from common.machine import sharing
from common.machine.lifetime import TAG
from common.machine.sharing import COMPARISON, TRAINING, programs, register_program, wait_for_others
from tests.fixtures import PROJECT, child_environment, make_config
from tests.trainings import CPU

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
OTHER = """
import time
from common.machine.sharing import register_program
with register_program("training"):
    print(flush=True)
    time.sleep(1)
"""


@pytest.mark.parametrize(
    "looks, expected",  # per second: how long threads waited for a core, and cores were idle
    [
        ([(0.2, 0.0)] * 3, [8, 8, 8]),  # short activity of another program
        ([(4.0, 0.0)], [4]),  # another training with as many threads
        ([(0.5, 0.0)], [7]),  # another program on one core
        ([(40.0, 0.0)], [1]),
        ([(4.0, 0.0), (0.0, 0.5)], [4, 4]),
        ([(4.0, 0.0), (0.0, 4.0), (0.0, 4.0)], [4, 4, 8]),
        ([(4.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 3.0)], [4, 4, 5, 5]),
        # each new try comes later
        ([(4.0, 0.0), *[(0.0, 4.0)] * 2, (4.0, 0.0), *[(0.0, 4.0)] * 4], [4, 4, 8, 4, 4, 4, 4, 8]),
    ],
)
def test_the_number_of_threads_follows_the_free_cores(looks, expected, monkeypatch):
    now, set_threads, messages = [0.0, 0.0, 0.0], [], []
    monkeypatch.setattr(SharedCores, "_read", lambda self: tuple(now))
    monkeypatch.setattr(setup.torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(setup.torch, "set_num_threads", set_threads.append)
    cores, found = SharedCores(messages.append), []
    for waited, idle in looks:
        now = [total + more for total, more in zip(now, (1.0, waited, idle), strict=True)]
        cores.look()
        found.append(cores.now)
    assert found == expected and cores.fewest == min(8, *expected)
    assert set_threads == [threads for before, threads in zip([8, *found], found, strict=False) if threads != before]
    assert len(messages) == len(set_threads)


def test_a_number_of_threads_set_by_the_user_is_kept(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert may_share(make_config(), CPU)
    assert not may_share(make_config(threads=2), CPU) and not may_share(make_config(compile=True), CPU)
    assert not may_share(make_config(), setup.torch.device("cuda:0"))
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    assert not may_share(make_config(), CPU)


@LINUX
def test_a_program_is_registered_unless_it_is_a_comparisons_run_or_a_later_rank(monkeypatch):
    monkeypatch.setattr(sharing, "NAME", f"@test-{time.monotonic_ns()}/")  # not used by other tests
    with register_program(COMPARISON):
        assert [program.kind for program in programs()] == [COMPARISON]
    assert programs() == []
    for name, value in ((TAG, "somebody-1-run"), ("LOCAL_RANK", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with register_program(TRAINING):
                assert programs() == []


@LINUX
def test_a_comparison_waits_for_a_training_in_another_process_and_reports_it(monkeypatch, capsys):
    monkeypatch.delenv(TAG, raising=False)
    options = {"stdout": subprocess.PIPE, "cwd": PROJECT, "env": child_environment()}
    with subprocess.Popen([sys.executable, "-c", OTHER], **options) as other:
        other.stdout.readline()
        assert other.pid in [program.pid for program in wait_for_others(0)]
        assert not capsys.readouterr().out
        assert other.pid not in [program.pid for program in wait_for_others(20)]
        (line,) = capsys.readouterr().out.splitlines()
        assert f"process {other.pid}" in line


def test_a_comparison_that_does_not_wait_warns_about_disturbed_times(monkeypatch, capsys, planned, tmp_path):
    monkeypatch.setattr(compare_parallel, "wait_for_others", lambda seconds: [sharing.Program(TRAINING, seconds)])
    monkeypatch.setattr(compare_parallel, "measure", lambda *_: None)
    monkeypatch.setattr(compare_parallel, "present", lambda *_: None)
    planned("--wait 0")
    compare_parallel.compare(*compare_parallel.parse(), tmp_path)
    assert "a training (process 0.0) will disturb the times" in capsys.readouterr().err


def test_impossible_flags_are_refused_before_a_comparison_waits(monkeypatch, planned, type_in, tmp_path):
    monkeypatch.setattr(compare_parallel, "wait_for_others", lambda _: pytest.fail("it waits"))
    planned()
    type_in("compare_parallel.py", "--project", "4x2")
    with pytest.raises(SuiteError, match="needs the speed of the network"):
        compare_parallel.compare(*compare_parallel.parse(), tmp_path)
