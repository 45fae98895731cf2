"""The exchange check: working and faulty devices, as CPU processes and pretended GPUs."""

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
from tests.fixtures import alive, wait_until
from tests.pretended_gpus import pretended_gpus
from tests.trainings import CPU

pytestmark = pytest.mark.process

TWO = [torch.device("cuda", 0), torch.device("cuda", 1)]
FAULTY = """
import os
from torch import distributed
original = distributed.all_reduce

def all_reduce(tensor):
    if not os.environ.get("NCCL_P2P_DISABLE"):
        {fault}
    original(tensor)

distributed.all_reduce = all_reduce
"""  # a sitecustomize.py


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, limit, found",
    [
        ("import time; time.sleep(1000)", 40, "not ended after 40 s"),
        ("tensor[7] += 1 + distributed.get_rank()", 90, "RuntimeError: 1 of 256 sums are wrong on cpu"),
        ("raise RuntimeError('NCCL:' + chr(10) + 'no room')", 90, "no room"),
        ("os.abort()", 90, r"process \d terminated with signal SIGABRT"),
    ],
    ids=["hangs", "wrong sum", "error", "crash"],
)
def test_an_all_reduce_that_only_works_without_p2p_is_found_with_the_remedy(fault, limit, found, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault=fault))
    for name, value in (("PYTHONPATH", str(tmp_path)), ("GLOO_SOCKET_IFNAME", "lo"), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    step, error = broken_exchange([CPU, CPU], limit)
    words = f"{ALL_REDUCE} fails; ({found}); type export NCCL_P2P_DISABLE=1, with which it succeeds; to be as fast .*"
    assert step == ALL_REDUCE and error.exit_code == MACHINE and re.fullmatch(words, str(error)), error
    wait_until(lambda: not alive(str(tmp_path)))  # it is in the PYTHONPATH of all its processes


def test_devices_that_pass_both_steps_are_not_broken(monkeypatch):
    monkeypatch.setattr(exchange, "_try", lambda names, limit: None)
    assert broken_exchange([CPU, CPU]) is None


@pytest.mark.parametrize("p2p_is_off", [False, True])
def test_an_all_reduce_that_also_fails_without_p2p_has_another_remedy(p2p_is_off, monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1" if p2p_is_off else "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")  # of these, one is to be left
    monkeypatch.setattr(exchange, "_try", lambda names, limit, **variables: (ALL_REDUCE, "no room"))
    advice = str(broken_exchange([CPU, CPU])[1])
    assert "NCCL_DEBUG=INFO" in advice and "export" not in advice and "CUDA_VISIBLE_DEVICES=4 before" in advice


@pytest.mark.parametrize("changed, wrong", [(0, None), (1, "1 of 256 bytes arrive as others from cuda:0 on cuda:1")])
def test_copies_are_compared_byte_by_byte(changed, wrong, monkeypatch, capsys):
    original = pretended.Move.forward

    def forward(ctx, value, target, blocking=False):
        moved = original(ctx, value, target, blocking)
        if (pretended.place_of(value), target) == tuple(TWO):
            moved.held[:changed] += 1
        return moved

    monkeypatch.setattr(sys, "argv", ["exchange", *map(str, TWO)])
    with pretended_gpus("first", "second"), pytest.raises(SystemExit) if wrong else contextlib.nullcontext():
        monkeypatch.setattr(pretended.Move, "forward", staticmethod(forward))
        exchange.main()
    assert capsys.readouterr().out.splitlines() == [ALL_REDUCE, COPIES, *([wrong] if wrong else [])]


@pytest.mark.parametrize("broken, status, trains", [(None, OK, True), (COPIES, BAD, True), (ALL_REDUCE, BAD, False)])
def test_a_comparison_does_not_start_if_nccl_would_hang(broken, status, trains, monkeypatch, tmp_path):
    """If only copies are wrong, methods without copies between GPUs can still train."""
    calls, error = [], SuiteError("it fails", "not ended", "type this", MACHINE)
    found = broken and (broken, error)
    monkeypatch.setattr(preflight, "broken_exchange", lambda devices: calls.append(devices) or found)
    with pretended_gpus("first", "second"):
        checks, environment = check_all(tmp_path, tmp_path)
    assert calls == [TWO] and bool(environment) == trains
    named = [check for check in checks if check.advice == "type this"]
    assert [check.status for check in named] == ([] if broken is None else [status])
    with pretended_gpus("alone"):
        check_all(tmp_path, tmp_path)
    assert len(calls) == 1
