"""--sync-batchnorm: every BatchNorm of a network normalises over all ranks, or the network is refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from common.errors import USAGE, SuiteError
from common.ranks import batchnorm
from common.ranks.batchnorm import RanksBatchNorm
from common.ranks.exchange import synchronize


class Own(nn.BatchNorm2d):
    pass


def test_every_kind_is_synchronized_on_gpus():
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3), Own(3)), nn.BatchNorm1d(3), nn.BatchNorm3d(3))
    names = [*model.state_dict()]
    synchronize(model, torch.device("cuda"))
    assert [type(layer) for layer in (*model[0], *model[1:])] == [nn.SyncBatchNorm] * 4
    assert [*model.state_dict()] == names


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.BatchNorm3d(3), Own(3)])
def test_other_kinds_are_refused_on_cpus(layer):
    message = f"^--sync-batchnorm on a CPU is only for BatchNorm2d; layer 0.1 is of the kind {type(layer).__name__}; "
    with pytest.raises(SuiteError, match=message) as refused:
        synchronize(nn.Sequential(nn.Sequential(nn.ReLU(), layer)), torch.device("cpu"))
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize("mean, deviation, tolerance", [(0.0, 1.0, 1e-4), (20.0, 1.0, 1e-4), (20.0, 2e-3, 2e-3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_single_rank_computes_what_batchnorm2d_does(dtype, mean, deviation, tolerance, monkeypatch):
    alone = SimpleNamespace(get_world_size=lambda: 1, get_rank=lambda: 0, all_reduce=lambda _: None)
    monkeypatch.setattr(batchnorm, "distributed", alone)
    images, usual, own = torch.randn(16, 3, 8, 8) * deviation + mean, nn.BatchNorm2d(3), RanksBatchNorm(3)
    found = own.to(dtype if dtype == torch.float64 else None)(images.to(dtype))
    expected = usual(images.to(dtype).float())
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.02 if dtype == torch.bfloat16 else tolerance)
    torch.testing.assert_close(own.running_var.float(), usual.running_var, rtol=1e-4, atol=0)
