"""--compile and --cuda-graph, and the methods that exclude them."""

import shutil

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from common.engine.compiled import replace_network
from common.errors import USAGE, SuiteError
from common.models.build import Network, build_network
from common.ranks.stages import TwoStage
from tests.fixtures import make_config
from tests.pretended_gpus import pretended_gpus
from tests.trainings import CPU, make_context

SHAPE, COMPILE = (1, 28, 28), make_config(compile=True)
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@needs_compiler
def test_all_networks_are_compiled_unless_the_method_copies_them(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    compiled, model = [], build_network("lenet", SHAPE, 0)
    monkeypatch.setattr(Network, "compile", lambda network, dynamic: compiled.append(network))
    stages = TwoStage(model[:2], model[2:], [CPU, CPU], 1)
    replace_network(make_context(stages), (2, *SHAPE), make_config())
    assert not compiled
    replace_network(make_context(stages), (2, *SHAPE), COMPILE)
    assert compiled == [stages.stage0, stages.stage1]
    with pytest.raises(SuiteError, match="--compile does not go with dp; it copies; leave out --compile") as caught:
        replace_network(make_context(model, method="dp", uncompilable="it copies"), (2, *SHAPE), COMPILE)
    assert caught.value.exit_code == USAGE and len(compiled) == 2


def test_steps_with_an_exchange_are_not_recorded():
    sharded = build_network("lenet", SHAPE, 0)
    sharded.__class__ = type("FSDPNetwork", (Network,), {})  # as fully_shard() does
    with pytest.raises(SuiteError, match="--cuda-graph does not go with fsdp") as caught:
        replace_network(make_context(sharded, method="fsdp"), (2, *SHAPE), make_config(cuda_graph=True))
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize(
    "error, kind, line",
    [
        (RuntimeError("not permitted\nwhen capturing"), SuiteError, "this network; not permitted; leave it out"),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "CUDA out of memory"),
    ],
)
def test_a_failed_recording_is_explained_unless_memory_ran_out(error, kind, line, monkeypatch):
    def fail(*_):
        raise error

    device = torch.device("cuda", 0)
    with pretended_gpus("one"):
        monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
        model = build_network("lenet", SHAPE, 0).to(device)
        with pytest.raises(kind, match=line):
            replace_network(make_context(model, devices=(device,)), (2, *SHAPE), make_config(cuda_graph=True))


@pytest.mark.slow
def test_a_compiled_network_is_split_at_ddps_buckets_and_has_graphs_of_its_own_for_each_size(tmp_path, monkeypatch):
    """With a single graph, all gradients would arrive at its end, and no computation would hide their exchange."""

    def keep(graph, inputs):
        graphs.append([value for value in inputs if not isinstance(value, torch.Tensor)])  # a number: of any size
        return graph.forward

    def compile_with(network, **how):
        torch.nn.Module.compile(network, backend=keep, **how)

    monkeypatch.setattr("common.engine.compiled.has_compiler", lambda _: True)
    monkeypatch.setattr(Network, "compile", compile_with)
    model, graphs = build_network("vgg", (3, 32, 32), 0), []
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
        replace_network(make_context(parallel, evaluation_model=model), (2, 3, 32, 32), COMPILE)
        for size in (2, 3, 2):
            parallel(torch.randn(size, 3, 32, 32)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert graphs == 2 * 2 * [[]]  # the first bucket holds 1 MiB, and there are 1.2 MiB of gradients


@pytest.mark.slow
@needs_compiler
def test_compiled_training_gives_the_same_weights(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    command = "data_parallel_train.py --model mlp --optimizer sgd --lr 0.05 --no-augment"
    start = build_network("mlp", SHAPE, seed=42).state_dict()
    _, plain, _ = train(command)
    assert not [*(tmp_path / "compiled").rglob("*.so")]
    result, weights, _ = train(f"{command} --compile")
    assert result["config"]["compile"] and [*(tmp_path / "compiled").rglob("*.so")]
    assert weights.keys() == plain.keys()
    for name, expected in plain.items():
        assert (expected - start[name]).abs().max() > 1e-3, f"{name} was not trained"
        assert (weights[name] - expected).abs().max() < 1e-4, name
