"""Every method, started like a user starts it, gives the weights of training on one device."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from common.data.image_set import load_image_set
from common.machine.cores import available_cores
from common.models.build import build_network
from tests.fixtures import PROJECT, child_environment, make_config, small
from tests.trainings import make_loaders

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
# SGD, because Adam turns rounding errors in gradients near zero into steps of full size
SAME_STEPS = "--model lenet --no-augment --optimizer sgd --lr 0.05 --max-steps 6 --threads 1".split()
THREE_STEPS = "--model strided --max-steps 3 --threads 1".split()
WITHOUT_RANKS = {
    "dp": "data_parallel_train.py --simulate-devices 3",
    "mp": "model_parallel_train.py --use-model-parallel --split-at full1",
    "mp-micro": "model_parallel_train.py --use-model-parallel --micro-batches 4",
    "mp-control": "model_parallel_train.py",
}
RANKS = {
    "ddp": "ddp_train.py --spawn 2",
    "ddp of three ranks": "ddp_train.py --spawn 3",
    "fsdp": "fsdp_train.py --spawn 2",
    "fsdp of three ranks": "fsdp_train.py --spawn 3",
}
SLOW = ("ddp of three ranks", "fsdp of three ranks")


def weights_of(tmp_path_factory, data_root, command, *flags):
    """Run a script and return the weights it saves."""
    weights = tmp_path_factory.mktemp("weights") / "weights.pth"
    words = small(command, data_root, *flags, "--save", weights, "--figure-dir", weights.parent, "--quiet")
    options = {"cwd": PROJECT, "env": child_environment(), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], check=True, **options)
    assert done.stdout == done.stderr == ""  # --quiet
    return torch.load(weights, weights_only=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, data_root):
    """The weights after six steps on one device."""
    return weights_of(tmp_path_factory, data_root, "data_parallel_train.py", *SAME_STEPS)


@pytest.fixture(scope="module")
def three_steps_of_ddp(tmp_path_factory, data_root):
    """Weights and buffers of a network with BatchNorm after three steps of Adam with DDP."""
    return weights_of(tmp_path_factory, data_root, "ddp_train.py --spawn 2", *THREE_STEPS)


def assert_same(weights, reference):
    assert weights.keys() == reference.keys()  # in particular, no "module." prefix
    start = build_network("lenet", (1, 28, 28), seed=42).state_dict()
    for name, expected in reference.items():
        assert (expected - start[name]).abs().max() > 1e-4, f"{name} was not trained"
        assert (weights[name] - expected).abs().max() < 1e-5, name


@pytest.mark.parametrize("name", WITHOUT_RANKS)
def test_a_script_without_ranks_gives_the_weights_of_one_device(name, train_here, reference):
    result, weights, _ = train_here(WITHOUT_RANKS[name], *SAME_STEPS)
    assert_same(weights, reference)
    assert (result["method"], result["simulated"]) == (name, name != "mp-control")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RANKS])
def test_ranks_give_the_weights_of_one_device(name, train, reference):
    result, weights, _ = train(RANKS[name], *SAME_STEPS)
    assert_same(weights, reference)
    assert (result["method"], result["simulated"]) == (name.split()[0], False)


IN_PARTS = {
    "dp": "data_parallel_train.py --simulate-devices 2",
    "mp-micro": "model_parallel_train.py --use-model-parallel --micro-batches 2",
    "ddp": "ddp_train.py --spawn 2 --bucket-mb 0.01",
    "fsdp": "fsdp_train.py --spawn 2",
    "pipeline": "pipeline_train.py --spawn 2",
    "accelerate": "accelerate_train.py",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name > "ddp")) for name in IN_PARTS])
def test_accumulation_and_recomputation_give_the_same_weights(name, train, reference):
    if name == "accelerate":
        pytest.importorskip("accelerate")
    _, weights, _ = train(IN_PARTS[name], *SAME_STEPS, "--accumulate", 3, "--recompute")
    assert_same(weights, reference)


def test_synchronized_batchnorm_equals_one_device(train, train_here):
    same = "--model strided --no-augment --optimizer sgd --lr 0.05 --max-steps 4 --threads 1 --precision fp64".split()
    _, expected, _ = train_here("data_parallel_train.py", *same)
    result, weights, _ = train("ddp_train.py --spawn 2 --sync-batchnorm", *same)
    assert result["method"] == "ddp-sync-bn" and distance(weights, expected) < 1e-9
    _, weights, _ = train("ddp_train.py --spawn 2", *same)
    assert distance(weights, expected) > 1e-3


def distance(weights, others):
    assert weights.keys() == others.keys()
    return max((value - others[name]).abs().max().item() for name, value in weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fsdp_train.py --spawn 2", "ddp_train.py --zero --spawn 2"])
def test_sharding_changes_memory_but_not_weights(command, train, three_steps_of_ddp):
    result, weights, printed = train(command, *THREE_STEPS)
    assert distance(weights, three_steps_of_ddp) == 0.0
    parts, size = result["memory_parts"], 4 * result["parameters"]
    held = {name: size for name in parts}
    if command.startswith("fsdp"):
        held = {name: size / 2 for name in parts}
        assert result["epochs"][0]["phases"]["exchange"] is None  # it is part of forward and backward
        assert "contain what the ranks exchange" in result["reason"]
    assert parts["parameters"] == pytest.approx(held["parameters"], rel=0.01)
    assert parts["gradients"] == pytest.approx(held["gradients"], rel=0.01)
    assert parts["optimizer state"] == pytest.approx(2 * size / 2, rel=0.2)  # ZeRO distributes whole weights
    assert f"; parameters {parts['parameters'] / 2**20:.1f}, gradients " in printed.partition("\nMemory (MiB): ")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--model airbench --optimizer muon",  # its first layer is not trained
        "--model strided --optimizer nesterov --precision bf16 --allow-slow-precision",
    ],
)
def test_fsdp_equals_ddp_with_other_optimizers_and_precisions(flags, train):
    _, weights, _ = train("ddp_train.py --spawn 2", *THREE_STEPS, *flags.split())
    _, others, _ = train("fsdp_train.py --spawn 2", *THREE_STEPS, *flags.split())
    assert distance(weights, others) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["ddp_train.py --zero", "fsdp_train.py", "pipeline_train.py", "accelerate_train.py"]
)
def test_muon_equals_one_device(command, train, train_here):
    same = (*SAME_STEPS, "--optimizer", "muon", "--lr", 0.001)
    _, weights, _ = train(f"{command} --spawn 2", *same)
    _, others, _ = train_here("data_parallel_train.py", *same)
    for name in others:
        by_muon = name.startswith("conv") and name.endswith("weight")
        most = 1e-4 if by_muon else 6 * 0.001  # Adam turns rounding errors into full steps
        assert (weights[name] - others[name]).abs().max() < most


TIED = """from torch import nn


def build(shape, classes):
    first, second = nn.Linear(784, 784), nn.Linear(784, 784)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.Linear(784, 4), nn.ReLU(), nn.Linear(4, classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags, most", [("", 1e-5), ("--optimizer adam --lr 0.001", 6 * 0.001)])
def test_fsdp_with_shared_weights_and_an_empty_shard(flags, most, train, train_here, tmp_path):
    (tmp_path / "net.py").write_text(TIED)  # three ranks get 2, 2 and 0 rows of the layer of 4
    same = (*SAME_STEPS, "--model", f"{tmp_path / 'net.py'}:build", *flags.split())
    _, weights, _ = train_here("data_parallel_train.py", *same)
    _, others, _ = train("fsdp_train.py --spawn 3", *same)
    assert distance(weights, others) < most and torch.equal(others["1.weight"], others["3.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_compressed_gradients_change_the_weights_slightly(kind, train, three_steps_of_ddp):
    result, weights, _ = train("ddp_train.py --spawn 2", "--compress", kind, *THREE_STEPS)
    assert 0.0 < distance(weights, three_steps_of_ddp) < 4 * 0.001  # each step of Adam is at most the learning rate
    assert (result["method"], result["reason"]) == (f"ddp-{kind}", f"gradients are exchanged in {kind}")


WATCHED = """
import os, runpy, sys
from torch.nn.parallel import DistributedDataParallel
broadcasts = []
DistributedDataParallel._sync_buffers = lambda self: broadcasts.append(1)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[0], run_name="__main__")
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not any("gloo" in name for name in threads), threads
assert not broadcasts  # of buffers, in a step
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts threads as Linux shows them")
@pytest.mark.slow
@pytest.mark.parametrize("script", ["ddp_train.py", "fsdp_train.py", "pipeline_train.py", "accelerate_train.py"])
def test_torchrun_gives_the_weights_of_one_device_and_exits_cleanly(script, train, reference, tmp_path):
    if script.startswith("accelerate"):
        pytest.importorskip("accelerate")
    (tmp_path / "wrapper.py").write_text(WATCHED)
    result, weights, _ = train(script, *SAME_STEPS, launcher=(*TORCHRUN, tmp_path / "wrapper.py"))
    assert_same(weights, reference)
    assert (result["world_size"], result["global_batch_size"]) == (2, 48)
    assert result["per_device_batch_size"] == (48 if script.startswith("pipeline") else 24)
    assert result["command"].startswith(f"torchrun --nnodes=1 --nproc_per_node=2 {script}")


@pytest.mark.slow
def test_accelerate_launch(train, reference):
    pytest.importorskip("accelerate")
    launcher = ("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")
    _, weights, _ = train("accelerate_train.py", *SAME_STEPS, launcher=launcher)
    assert_same(weights, reference)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [True, False], ids=["two nodes", "only the variables of env://"])
def test_ranks_started_one_by_one(nodes, tmp_path, data_root, reference, free_port):
    described = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    agent = f"--nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:{free_port}"
    options = {"cwd": PROJECT, "text": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    ranks = []
    for rank in (0, 1):
        files = ["--save", tmp_path / "weights.pth", "--output", tmp_path / "result.json"] if nodes or not rank else []
        words = small("fsdp_train.py", data_root, *SAME_STEPS[:-2], "--figure-dir", tmp_path, *files)
        launch = [*TORCHRUN[:2], *agent.split(), f"--node_rank={rank}", "--local_addr=127.0.0.1"] if nodes else []
        environment = child_environment() if nodes else {**child_environment(), **described, "RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *launch, *words], env=environment, **options))
    errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert nodes or errors == ["", ""]
    assert_same(torch.load(tmp_path / "weights.pth", weights_only=True), reference)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["world_size"], result["devices"]) == (2, ["cpu", "cpu"])
    assert nodes or result["threads_per_process"] == max(1, available_cores() // 2)  # two ranks on this machine


@pytest.mark.slow
def test_the_saved_model_is_the_evaluated_one(train, data_root):
    # strided has BatchNorm, whose statistics of 2 images each differ between ranks until they are broadcast
    result, weights, _ = train("ddp_train.py --spawn 2 --model strided --batch-size 4 --max-steps 20")
    image_set = load_image_set(make_config(dataset="synthetic-mnist", data_root=str(data_root)))
    model = build_network("strided", image_set.image_shape, seed=0)
    model.load_state_dict(weights)
    _, test_loader = make_loaders(image_set, make_config(batch_size=500))
    with torch.no_grad():
        outputs = torch.cat([model.eval()(images) for images, _ in test_loader])
    labels = torch.from_numpy(image_set.test_labels)
    accuracy, loss = (outputs.argmax(1) == labels).float().mean().item(), F.cross_entropy(outputs, labels).item()
    (epoch,) = result["epochs"]
    assert epoch["test_accuracy"] == pytest.approx(accuracy, abs=1.5 / len(labels))  # rounding may flip one prediction
    assert epoch["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert result["devices"] == ["cpu", "cpu"]


def test_data_parallel_prints_the_batch_shape_of_each_replica(train_here):
    result, _, printed = train_here("data_parallel_train.py --simulate-devices 4 --max-steps 6")
    assert printed.count("sees images of shape (12, 1, 28, 28)") == 4
    assert "SIMULATED" in printed
    assert result["per_device_batch_size"] == 12
    assert set(result["method_milliseconds"]) == {"scatter", "replicate", "gather"}
    assert all(value > 0 for value in result["method_milliseconds"].values())
    assert "Per batch, gather:" in printed


def test_real_mnist_is_learned(real_data, train_here):
    command = f"data_parallel_train.py --dataset mnist --data-root {real_data} --train-size 60000 --batch-size 128"
    result, _, _ = train_here(f"{command} --max-steps 100")
    assert result["epochs"][0]["test_accuracy"] > 0.85 and result["epochs"][0]["samples"] == 12800
    assert len(result["class_accuracy"]) == 10


@pytest.mark.skipif(sys.platform != "linux", reason="where forking is not safe, workers are spawned")
def test_ranks_and_loader_workers_are_forked(train, tmp_path):
    """A spawned process imports torch for seconds, and would not notice meanwhile that its parent has died."""
    log = tmp_path / "spawned"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif 'multiprocessing' in str(sys.orig_argv): open({str(log)!r}, 'a').write('1')"
    )
    train("ddp_train.py --spawn 2 --num-workers 2", environment={"PYTHONPATH": str(tmp_path)})
    assert not log.exists()


@pytest.mark.parametrize(
    "name, shape, words",
    [
        ("lenet", (1, 28, 28), ("`lenet` on MNIST has one of {} MiB", "`lenet` 有一个 {} MiB 的桶")),
        ("vgg", (3, 32, 32), ("`vgg` on CIFAR-10 two of {} and {} MiB", "`vgg` 有两个，{} 和 {} MiB")),
    ],
)
def test_the_documented_bucket_sizes_of_ddp(name, shape, words, monkeypatch):
    sent, send = [], dist._broadcast_coalesced
    monkeypatch.setattr(
        dist, "_broadcast_coalesced", lambda group, tensors, *rest: (sent.extend(tensors), send(group, tensors, *rest))
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = build_network(name, shape, seed=42)
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
        parallel.broadcast_buffers = False
        assert sum(map(torch.numel, sent)) == sum(map(torch.numel, model.state_dict().values()))
        sent.clear()
        found = []
        for _ in range(3):
            parallel(torch.randn(4, *shape)).sum().backward()
            found.append(parallel._get_ddp_logging_data())
        assert sent == []
    finally:
        dist.destroy_process_group()
    sizes = [int(size) for size in found[-1]["rebuilt_bucket_sizes"].split(", ")]
    assert found[0]["bucket_sizes"] == str(sum(sizes)) == str(4 * sum(map(torch.numel, model.parameters())))
    pages = ("".join((PROJECT / "docs" / page).read_text().split()) for page in ("methods.md", "methods.zh-CN.md"))
    for page, sentence in zip(pages, words, strict=True):
        assert "".join(sentence.format(*(f"{size / 2**20:.2f}" for size in sizes)).split()) in page
