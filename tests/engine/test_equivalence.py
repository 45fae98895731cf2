"""The check of the maths. Networks with dropout or BatchNorm pass it, and a mistake fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import FAILED, SuiteError
from common.models.build import build_network
from common.ranks.replicas import SimulatedDataParallel
from common.ranks.stages import TwoStage
from comparison.methods import Machine
from comparison.plan.plan import make_plan
from comparison.run import equivalence
from comparison.run.equivalence import TOLERANCE, _judge, check_equivalence
from tests.fixtures import make_config, plan_arguments
from tests.trainings import CPU, fitted

RANDOM = """import torch.nn.functional as F
from torch import nn


class Head(nn.Linear):
    def forward(self, features):
        return super().forward(F.dropout(features, 0.5, self.training))


def build(shape, classes):
    channels, height, width = shape
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2),
                         nn.Flatten(), Head(4 * height * width, classes))
"""


@pytest.fixture
def model(tmp_path):
    """The --model of a network with BatchNorm and with dropout as a layer and as a function."""
    (tmp_path / "net.py").write_text(RANDOM)
    return f"{tmp_path / 'net.py'}:build"


@pytest.mark.parametrize("eval_mode", [True, False])
@pytest.mark.parametrize("name", ["own", "strided"])
def test_split_batches_only_add_up_in_evaluation_mode(name, eval_mode, model):
    config = make_config(eval_mode=eval_mode, batch_size=20, augment=False, optimizer="sgd", lr=0.01, epochs=1)

    def trained(wrap):
        network = build_network(model if name == "own" else name, (1, 28, 28), 0)
        statistics = [value.clone() for value in network.buffers()]
        fitted(config, wrap(network))
        if eval_mode:
            assert all(torch.equal(*pair) for pair in zip(network.buffers(), statistics, strict=True))
        return [parameter.detach() for parameter in network.parameters()]

    whole = trained(lambda network: network)
    for wrap in (
        lambda network: SimulatedDataParallel(network, 4, CPU),
        lambda network: TwoStage(network[:1], network[1:], [CPU, CPU], 4),
    ):
        distance = max((one - other).abs().max() for one, other in zip(whole, trained(wrap), strict=True))
        assert (distance <= TOLERANCE) == eval_mode


@pytest.mark.parametrize(
    "difference, rounds, status",
    [
        (9e-5, "", "ok"),
        (2e-4, "", "failed"),
        (2e-4, "gradients to bf16", "ok"),
        (2e-3, "gradients to bf16", "failed"),
        (float("nan"), "gradients to bf16", "failed"),
    ],
)
def test_a_method_that_rounds_may_differ_more(difference, rounds, status):
    check = _judge(difference, rounds)
    assert check.status == status and (check.reason == "") == (status == "ok" and not rounds)
    if status == "ok" and rounds:
        assert check.reason == "it rounds gradients to bf16, which is taken for the cause up to 1e-03"


@pytest.mark.parametrize(
    "again, status, difference",
    [
        (1e-15, "ok", 1e-15),
        (3e-4, "failed", 3e-4),
        ("two different models", "failed", 2e-4),
        (SuiteError("no float64", "float32", "mend it", FAILED), "failed", 2e-4),
    ],
)
def test_double_precision_decides_if_it_works(again, status, difference, monkeypatch):
    def ask(_, reference, file):
        place = 2 if Path(file).name == "3-ddp.pth" else 0  # of the reference
        assert (Path(reference).name, Path(file).name) == (f"{place}-ddp.pth", f"{place + 1}-ddp.pth")
        if place and isinstance(again, Exception):
            raise again
        return json.dumps([again if place else 2e-4])

    trained = []
    monkeypatch.setattr(equivalence._Check, "_train", lambda self, command, *_: trained.append(command[-2:]))
    monkeypatch.setattr(equivalence, "ask", ask)
    rows = make_plan(plan_arguments(methods=[("ddp", {})]), Machine(0, 2), [])
    (check,) = check_equivalence(rows, [], 480).values()
    assert (check.status, check.difference) == (status, difference)
    assert ("in float32 it is" in check.reason) == (status == "ok")
    assert trained == [("--precision", "fp32")] * 2 + [("--precision", "fp64")] * 2


@pytest.mark.parametrize("images, sizes", [(101, ["100"] * 2), (128, [])])
def test_a_data_set_smaller_than_a_batch_divides_among_the_devices(images, sizes, monkeypatch):
    trained = []
    monkeypatch.setattr(equivalence, "run_child", lambda command, *_: trained.append(command))
    monkeypatch.setattr(equivalence, "ask", lambda *_: "[0.0]")
    rows = make_plan(plan_arguments(methods=[("ddp", {})], batch_size=[128]), Machine(0, 2), [])
    assert check_equivalence(rows, [], images)["ddp"].status == "ok"
    found = [command[index + 1] for command in trained for index, word in enumerate(command) if word == "--train-size"]
    assert len(trained) == 2 and found == sizes


METHODS = "single dp ddp-bf16 ddp-zero fsdp mp mp-micro pipeline-1 pipeline pipeline-1f1b ddp".split()


@pytest.mark.slow
def test_every_method_passes_and_a_mistake_does_not(model, data_root):
    shared = ["--dataset", "synthetic-mnist", "--data-root", str(data_root), "--train-size", "480", "--epochs", "1"]
    methods = [(method, {}) for method in METHODS]
    rows = make_plan(
        plan_arguments(model=[model], batch_size=[48], num_workers=[0], methods=methods), Machine(0, 2), shared
    )
    wrong = replace(rows[-1], name="mistake", command=(*rows[-1].command, "--no-sync"))
    found = check_equivalence([*rows, wrong], shared, 480)
    mistake = found.pop("mistake")
    assert mistake.status == "failed" and mistake.difference > 10 * TOLERANCE  # in double precision too
    assert {name: check.status for name, check in found.items()} == dict.fromkeys(METHODS, "ok")
    assert found["ddp"].difference > 0  # it adds in another order
    assert found["ddp-bf16"].difference > found["ddp"].difference and "to bf16" in found["ddp-bf16"].reason
