"""One of two ranks on a pretended GPU: its calls to NCCL and CUDA, and the times of its exchange."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from common.models.build import build_network
from common.programs import probe
from tests.fixtures import make_config
from tests.pretended_gpus import pretended_gpus
from tests.pretended_ranks import pretended_rank
from tests.trainings import make_image_set

STEPS = 6  # of an epoch, and of the warm-up
COLLECTIVES = {"allreduce_", "broadcast_", "_allgather_base_", "allgather_", "barrier"}
DDP = ("ddp_train.py", "--model", "lenet", "--optimizer", "sgd", "--no-augment")


@pytest.mark.parametrize("script", ["ddp_train.py", "fsdp_train.py"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_joins_nccl_with_its_own_gpu(script, rank, train_on_gpus):
    gpus = train_on_gpus(script, "--model", "lenet", rank=rank, costs={"cuda:0": 0.1, "cuda:1": 0.1}).gpus
    device = torch.device("cuda", rank)
    assert gpus.called("init_process_group") == [["nccl", device]]
    assert {work.device for work in gpus.clock.log} == {str(device)}
    assert COLLECTIVES & {work.name for work in gpus.clock.log}
    order = [name for name, *_ in gpus.calls]
    assert order.index("set_device") < order.index("init_process_group") < order.index("heartbeat")
    assert gpus.current == rank and len(gpus.called("beat")) > STEPS


def test_the_exchange_starts_at_the_last_gradient_and_copies_none(train_on_gpus):
    costs = {"cuda:0": 0.001, ("cuda:0", "allreduce_"): 9.0, ("cuda:0", "convolution"): 1.0}
    costs["cuda:0", "copy to the bucket"] = 1.0
    trained = train_on_gpus(*DDP, rank=0, costs=costs)
    (epoch,) = trained.result["epochs"]
    assert epoch["phases"]["exchange"] == pytest.approx(9.0)
    assert 2.0 < epoch["phases"]["forward"] < 2.1 and 0 < epoch["phases"]["backward"] < 0.1
    assert sum(filter(None, epoch["phases"].values())) * STEPS == pytest.approx(1000 * epoch["train_seconds"])


def test_buffers_are_broadcast_once_before_each_evaluation(train_on_gpus):
    gpus = train_on_gpus(*DDP, "--model", "strided", "--epochs", 2, rank=0, costs={"cuda:0": 0.1}).gpus
    names = [work.name for work in gpus.clock.log if work.name in ("broadcast_", "allreduce_")]
    buffers = [*build_network("strided", (1, 28, 28), 0).buffers()]
    epochs = 2 * [*["allreduce_"] * STEPS, *["broadcast_"] * len(buffers)]
    assert names == ["allreduce_"] * STEPS + epochs and buffers


@pytest.mark.parametrize("flags, count", [(("--accumulate", 3), 2 * STEPS), (("--no-sync",), 0)])
def test_a_step_exchanges_no_more_than_it_needs(flags, count, train_on_gpus):
    gpus = train_on_gpus(*DDP, *flags, rank=0, costs={"cuda:0": 0.1}).gpus
    assert [work.name for work in gpus.clock.log].count("allreduce_") == count


def test_weights_are_sharded_before_they_are_moved_to_the_gpu(train_on_gpus):
    gpus = train_on_gpus("fsdp_train.py", "--model", "lenet", rank=0).gpus
    assert gpus.called("init_device_mesh") == [["cuda", (2,)]]
    *blocks, whole = gpus.called("fully_shard")
    assert {place for _, places in (*blocks, whole) for place in places} == {"cpu"}
    assert sum(count for count, _ in blocks) == whole[0] == 10


def test_a_link_is_measured_with_nccl_right_after_a_step(monkeypatch, tmp_path):
    for name in ("end_with_parent", "prepare_process"):
        monkeypatch.setattr(probe, name, lambda *arguments: arguments and torch.cuda.set_device(arguments[1]))
    config = SimpleNamespace(**vars(make_config(optimizer="sgd")))
    config.batch_size, images = [4], make_image_set()
    costs = {"cuda:1": 0.5, ("cuda:1", "allreduce_"): 8.0}
    with pretended_gpus("first", "second", costs=costs) as gpus, pretended_rank(1, 2):
        monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.01)
        reduced, all_reduce = [], dist.all_reduce
        monkeypatch.setattr(dist, "all_reduce", lambda tensor: reduced.append(tensor) or all_reduce(tensor))
        probe._exchange(1, 2, str(tmp_path), config, "mlp", 1000, images, "cuda")
    assert gpus.called("init_process_group") == [["nccl", torch.device("cuda", 1)]] and gpus.current == 1
    assert {work.device for work in gpus.clock.log} == {"cuda:1"}
    (seconds,) = (tensor for tensor in reduced if tensor.dim() == 2)
    assert seconds.held.flatten().tolist() == pytest.approx([0.008] * seconds.numel())
