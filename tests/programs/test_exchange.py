"""Devices that exchange what they should, and some that do not: processes on a CPU, and GPUs that are not there."""

import contextlib
import re
import sys

import pytest
import torch

from common.errors import MACHINE, SuiteError
from common.programs import check as preflight
from common.programs import exchange
from common.programs.check import BAD, OK, check_all
from common.programs.exchange import ALL_REDUCE, COPIES, broken_exchange
from tests import pretended_gpus as pretended
from tests.fixtures import CPU, alive, wait_until
from tests.pretended_gpus import environment_with, pretended_gpus

TWO = [torch.device("cuda", 0), torch.device("cuda", 1)]
FAULTY = """
import os
from torch import distributed
usual = distributed.all_reduce

def all_reduce(tensor):
    if not os.environ.get("NCCL_P2P_DISABLE"):
        {fault}
    usual(tensor)

distributed.all_reduce = all_reduce
"""


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Let every process that is started have an all-reduce with a fault, which NCCL_P2P_DISABLE takes away."""

    def faulty(fault):
        (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault=fault))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    return faulty


def test_two_processes_exchange_what_they_should(faulty):
    assert broken_exchange([CPU, CPU]) is None


@pytest.mark.parametrize(
    "fault, limit, found",
    [
        pytest.param("import time; time.sleep(1000)", 40, "not ended after 40 s", marks=pytest.mark.slow),
        ("tensor[7] += 1 + distributed.get_rank()", 90, "RuntimeError: 1 of 256 sums are wrong on cpu"),
        pytest.param("raise RuntimeError('NCCL:' + chr(10) + 'no room')", 90, "no room", marks=pytest.mark.slow),
        pytest.param("os.abort()", 90, r"process \d terminated with signal SIGABRT", marks=pytest.mark.slow),
    ],
    ids=["hangs", "is wrong", "fails", "crashes"],
)
def test_an_all_reduce_that_needs_to_go_without_p2p_is_found_with_what_to_type(fault, limit, found, faulty, tmp_path):
    faulty(fault)
    step, error = broken_exchange([CPU, CPU], limit)
    words = f"{ALL_REDUCE} fails; ({found}); type export NCCL_P2P_DISABLE=1, with which it succeeds; to be as fast .*"
    assert step == ALL_REDUCE and error.exit_code == MACHINE and re.fullmatch(words, str(error)), error
    wait_until(lambda: not alive(str(tmp_path)))  # which all of its processes have in PYTHONPATH


def test_what_fails_without_p2p_too_has_another_remedy(faulty, monkeypatch):
    faulty("raise RuntimeError('no room')")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setattr(exchange, "_try", lambda names, limit, **variables: (ALL_REDUCE, "no room"))
    assert "export" not in str(broken_exchange([CPU, CPU])[1])
    monkeypatch.delenv("NCCL_P2P_DISABLE")
    assert "NCCL_DEBUG=INFO" in str(broken_exchange([CPU, CPU])[1])


@pytest.mark.parametrize("changed, wrong", [(0, None), (1, "1 of 256 bytes arrive as others from cuda:0 on cuda:1")])
def test_copies_are_compared_byte_by_byte(changed, wrong, monkeypatch, capsys):
    usual = pretended.Move.forward

    def forward(ctx, value, target, blocking=False):
        moved = usual(ctx, value, target, blocking)
        if (pretended.place_of(value), target) == tuple(TWO):
            moved.held[:changed] += 1
        return moved

    monkeypatch.setattr(sys, "argv", ["exchange", *map(str, TWO)])
    with pretended_gpus("first", "second"), pytest.raises(SystemExit) if wrong else contextlib.nullcontext():
        monkeypatch.setattr(pretended.Move, "forward", staticmethod(forward))
        exchange.main()
    assert capsys.readouterr().out.splitlines() == [ALL_REDUCE, COPIES, *([wrong] if wrong else [])]


@pytest.mark.parametrize("broken, status, trains", [(None, OK, True), (COPIES, BAD, True), (ALL_REDUCE, BAD, False)])
def test_a_comparison_does_not_begin_where_nccl_would_hang(broken, status, trains, monkeypatch, tmp_path):
    """It would wait for ever. Where copies alone are wrong, the methods without any train all the same."""
    asked, error = [], SuiteError("it fails", "not ended", "type this", MACHINE)
    found = broken and (broken, error)
    monkeypatch.setattr(preflight, "broken_exchange", lambda devices: asked.append(devices) or found)
    with pretended_gpus("first", "second"):
        checks, environment = check_all(tmp_path, tmp_path)
    assert asked == [TWO] and bool(environment) == trains
    named = [check for check in checks if check.advice == "type this"]
    assert [check.status for check in named] == ([] if broken is None else [status])
    with pretended_gpus("alone"):
        check_all(tmp_path, tmp_path)
    assert len(asked) == 1


@pytest.mark.slow
def test_pretended_gpus_exchange_by_copies(project, tmp_path):
    done = project("-m common.programs.exchange cuda:0 cuda:1", tiny=False, environment=environment_with(2, tmp_path))
    assert (done.returncode, done.stdout.splitlines()) == (0, [ALL_REDUCE, COPIES])
