"""What torch.compile rewrites, and what it must leave alone."""

import shutil

import pytest

from common.compiled import replace_network
from common.errors import USAGE, SuiteError
from common.models import Network, build_model
from model_parallel_train import TwoStage
from test_data import make_config
from training import CPU, make_context

SCRIPT = "data_parallel_train.py"


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@needs_compiler
def test_compile_rewrites_every_network_unless_the_method_copies_them(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    compiled, shape, config = [], (1, 28, 28), make_config(compile=True)
    monkeypatch.setattr(Network, "compile", lambda network: compiled.append(network))
    model = build_model("lenet", shape, 0)
    stages = TwoStage(model[:2], model[2:], [CPU, CPU], 1)
    replace_network(make_context(stages), (2, *shape), make_config())
    assert not compiled
    replace_network(make_context(stages), (2, *shape), config)
    assert compiled == [stages.stage0, stages.stage1]
    with pytest.raises(SuiteError, match="--compile does not go with dp; it copies; leave out --compile") as caught:
        replace_network(make_context(model, method="dp", uncompilable="it copies"), (2, *shape), config)
    assert caught.value.exit_code == USAGE and len(compiled) == 2


def test_no_step_is_recorded_in_which_a_method_exchanges_something():
    sharded = build_model("lenet", (1, 28, 28), 0)
    sharded.__class__ = type("FSDPNetwork", (Network,), {})  # what fully_shard() does to it
    with pytest.raises(SuiteError, match="--cuda-graph does not go with fsdp") as caught:
        replace_network(make_context(sharded, method="fsdp"), (2, 1, 28, 28), make_config(cuda_graph=True))
    assert caught.value.exit_code == USAGE


@pytest.mark.slow
@needs_compiler
def test_compiled_training_gives_the_same_weights(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    command = (SCRIPT, "--model", "mlp", "--optimizer", "sgd", "--lr", 0.05, "--no-augment")
    start = build_model("mlp", (1, 28, 28), seed=42).state_dict()
    _, plain, _ = train(*command)
    assert not [*(tmp_path / "compiled").rglob("*.so")]
    result, weights, _ = train(*command, "--compile")
    assert result["config"]["compile"] and [*(tmp_path / "compiled").rglob("*.so")]
    assert weights.keys() == plain.keys()
    for name, expected in plain.items():
        assert (expected - start[name]).abs().max() > 1e-3, f"{name} was not trained"
        assert (weights[name] - expected).abs().max() < 1e-4, name
