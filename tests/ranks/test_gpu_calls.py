"""What ranks ask of torch on GPUs, as recorded calls: NCCL is not here."""

import runpy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.fixtures import PROJECT


@pytest.mark.parametrize("kind, sums", [("cuda", False), ("cpu", True)])
def test_nccl_divides_gradients_itself_and_gloo_does_not(kind, sums):
    script, asked = runpy.run_path(str(PROJECT / "fsdp_train.py")), []
    recorder = SimpleNamespace(set_force_sum_reduction_for_comms=asked.append)
    script["shard"].__globals__.update(fully_shard=lambda *_, **__: recorder, init_device_mesh=lambda *_: None)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    script["shard"](model, SimpleNamespace(device=torch.device(kind), ranks=2))
    assert asked == [sums] * 3  # both blocks, and the whole
