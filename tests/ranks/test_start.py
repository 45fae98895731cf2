"""Ranks that a script starts itself: --spawn."""

import sys
from contextlib import nullcontext

import pytest

from tests.fixtures import TINY, run_in_process
from tests.pretended_gpus import pretended_gpus


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(
    "device, usable, how", [("cpu", False, "fork"), ("gpu", True, "fork"), ("gpu", False, "spawn")]
)
def test_ranks_are_forks_if_forks_can_use_their_devices(device, usable, how, monkeypatch, type_in, data_root):
    def start(*_, start_method, **__):
        sys.exit(start_method)

    type_in("ddp_train.py", *TINY, "--data-root", data_root, "--spawn", 2, "--device", device, "--quiet")
    monkeypatch.setattr("common.ranks.start.forks_can_use_gpus", lambda: usable)
    monkeypatch.setattr("common.ranks.start.start_processes", start)
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "1")  # restored after the test
    with pretended_gpus("first", "second") if device == "gpu" else nullcontext(), pytest.raises(SystemExit, match=how):
        run_in_process(monkeypatch, "ddp_train.py")
