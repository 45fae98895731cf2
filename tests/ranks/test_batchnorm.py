"""--sync-batchnorm: every BatchNorm of a network normalises over all ranks, or the network is refused."""

import pytest
import torch
from torch import nn

from common.errors import USAGE, SuiteError
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


def test_batchnorm2d_is_synchronized_on_cpus():
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3)), nn.ReLU())
    synchronize(model, torch.device("cpu"))
    assert type(model[0][0]) is RanksBatchNorm


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.BatchNorm3d(3), Own(3)])
def test_other_kinds_are_refused_on_cpus(layer):
    message = f"^--sync-batchnorm on a CPU is only for BatchNorm2d; layer 0.1 is of the kind {type(layer).__name__}; "
    with pytest.raises(SuiteError, match=message) as refused:
        synchronize(nn.Sequential(nn.Sequential(nn.ReLU(), layer)), torch.device("cpu"))
    assert refused.value.exit_code == USAGE
