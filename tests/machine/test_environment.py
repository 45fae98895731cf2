"""What is found out about GPUs: names and links of those that PyTorch sees, and why it sees none."""

import json
from types import SimpleNamespace

import pytest
import torch

import common.engine.run
from common.engine import setup
from common.engine.setup import check_precision
from common.errors import MACHINE, SuiteError
from common.machine import environment
from common.machine.environment import available_devices, describe_environment, gpu_uuid, gpus_can_be_shared
from common.programs import check as preflight
from common.programs.check import BAD, OK, check_all
from comparison.run import machine
from tests.fixtures import make_config, make_context
from tests.pretended_gpus import pretended_gpus

MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\t0-47
GPU1\tNV18\t X \tPIX\t0-47
GPU2\tSYS\tPIX\t X \t48-95

Legend:
  X = Self
"""


@pytest.fixture
def nvidia_smi(monkeypatch):
    """Have an nvidia-smi that knows GPUs in this order, by UUID, and a value of each; returns the calls of it."""

    def nvidia_smi(values):
        calls, lines = [], [f"{uuid}, {value}" for uuid, value in values.items()]

        def run(command, **_):
            calls.append(command)
            return SimpleNamespace(stdout=MATRIX if command[1] == "topo" else "\n".join(lines))

        monkeypatch.setattr(environment.subprocess, "run", run)
        return calls

    return nvidia_smi


def test_links_are_those_of_the_gpus_that_pytorch_sees_as_it_numbers_them(nvidia_smi, monkeypatch):
    with pretended_gpus("last", "first"):
        first, second = gpu_uuid(0), gpu_uuid(1)
        for machine, links in (
            ((second, "GPU-hidden", first), ["GPU0-GPU1 SYS"]),
            ((first, second, "GPU-hidden"), ["GPU0-GPU1 NV18"]),
            ((first, "GPU-of-the-other", "GPU-hidden"), []),  # it is a part of one
        ):
            nvidia_smi(dict.fromkeys(machine, "575.1"))
            found = describe_environment()
            assert (found["gpus"], found["links"], found["driver"]) == (["last", "first"], links, "575.1")
        monkeypatch.undo()
        monkeypatch.setenv("PATH", "/nowhere")
        found = describe_environment()
        assert (found["links"], found["driver"]) == ([], "")


def test_whether_processes_may_share_gpus_is_asked_of_the_driver(monkeypatch):
    """As PyTorch numbers them: the second here is number 7 to the driver's calls."""

    modes = {}

    def get(device, index):
        device._obj.value = {0: 3, 1: 7}[index]

    def get_attribute(value, attribute, device):
        assert attribute == 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        value._obj.value = modes[device.value]

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=get, cuDeviceGetAttribute=get_attribute)
    with pretended_gpus("one", "two"):
        monkeypatch.setattr(environment.ctypes, "CDLL", lambda name: {"libcuda.so.1": driver}[name])
        for first, second in ((0, 0), (0, 3), (2, 0)):
            modes.update({3: first, 7: second})
            assert gpus_can_be_shared() == (first == second == 0)

        def missing(name):
            raise OSError("cannot open shared object file")

        monkeypatch.setattr(environment.ctypes, "CDLL", missing)
        assert gpus_can_be_shared()  # nothing says that they may not


@pytest.mark.parametrize("name, kind", [("NVIDIA A100-SXM4-40GB", "GPU"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG")])
def test_a_part_of_a_gpu_has_the_uuid_that_cuda_visible_devices_takes(name, kind):
    with pretended_gpus(name):
        assert gpu_uuid(0) == f"{kind}-00000000-0000"


def before_a_run(**values):
    """The RunResult of a run that has not begun, on what the context says."""
    context = make_context(torch.nn.Identity(), **values)
    context.model.precision = "fp32"
    return common.engine.run._before(context, make_config(), make_config())


def test_one_rank_alone_asks_nvidia_smi(nvidia_smi):
    with pretended_gpus("first", "second"):
        called = nvidia_smi({gpu_uuid(0): "575.1", gpu_uuid(1): "575.1"})
        before_a_run(rank=1, ranks=2)
        assert not called
        before_a_run(rank=0, ranks=2)
        assert len(called) == 2


def test_a_run_on_gpus_of_two_kinds_says_so():
    with pretended_gpus("H200", "A100", "H200"):
        devices = tuple(available_devices("gpu"))
        unlike = "a note; its devices are not alike (H200, A100), and the slowest decides"
        assert before_a_run(devices=devices, note="a note").reason == unlike
        assert before_a_run(devices=devices[::2]).reason == ""


def test_a_gpu_that_others_fill_is_bad_before_a_comparison(monkeypatch):
    with pretended_gpus("free", "full"):
        for free, status in ((5, BAD), (6, OK)):  # of 8 GiB; 2 are a desktop's, and this process's own
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index, free=free: ((6, free)[index] << 30, 8 << 30))
            check = preflight._gpus({"gpus": ["free", "full"], "links": []})
            assert (check.status, "3.0 GiB of cuda:1 are in use" in check.found) == (status, status == BAD)


# ---- GPUs that cannot be used


@pytest.fixture
def unusable(tmp_path, monkeypatch):
    """A machine with a GPU that PyTorch does not see; the cause of it."""

    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update it.")

    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(environment, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return "sees no GPU: The NVIDIA driver on your system is too old (found version 11040)."


def test_nothing_is_trained_on_a_cpu_because_a_gpu_cannot_be_used(unusable, tmp_path):
    for kind, what in (("auto", "this machine has a GPU that PyTorch cannot use"), ("gpu", "--device gpu needs a GPU")):
        with pytest.raises(SuiteError) as caught:
            available_devices(kind)
        assert str(caught.value).startswith(f"{what}; PyTorch {torch.__version__} {unusable}; ")
        assert caught.value.exit_code == MACHINE
    assert available_devices("cpu") == [torch.device("cpu")]
    checks, described = check_all(tmp_path, tmp_path)
    (check,) = [check for check in checks if check.name == "GPUs"]
    assert check.status == BAD and unusable in check.found and described is None
    assert "--device cpu" in check.advice


@pytest.mark.parametrize("hidden, shown", [("", '""'), ("-1", "-1")])
def test_a_gpu_that_is_hidden_is_not_asked_for(hidden, shown, unusable, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert available_devices("auto") == [torch.device("cpu")]
    with pytest.raises(SuiteError, match=f"sees no GPU, CUDA_VISIBLE_DEVICES={shown}; type --device cpu"):
        available_devices("gpu")


def test_every_gpu_computes_a_convolution_before_a_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "broken_exchange", lambda devices: None)
    cause = "CUDA error: no kernel image is available for execution on the device"
    with pretended_gpus("new", "old") as gpus:
        for device, broken, status, found in (
            ("auto", set(), OK, "new, old"),
            ("auto", {1}, BAD, f"cuda:1 (old) cannot be used; {cause}"),
            ("gpu", {1}, BAD, f"cuda:1 (old) cannot be used; {cause}"),
            ("cpu", {1}, OK, "new, old"),
        ):
            gpus.broken = broken
            checks, described = check_all(tmp_path, tmp_path, device)
            (check,) = [check for check in checks if check.name == "GPUs"]
            assert (check.status, check.found, described is None) == (status, found, status == BAD)
            assert ("CUDA_VISIBLE_DEVICES" in check.advice) == (status == BAD)


def test_a_comparison_ends_where_its_gpus_cannot_be_used(monkeypatch, tmp_path, capsys):
    bad = {"name": "GPUs", "status": BAD, "found": "cuda:0 (old) cannot be used", "advice": "leave it out"}
    monkeypatch.setattr(machine, "ask", lambda *_, **__: json.dumps({"checks": [bad], "environment": None}))
    with pytest.raises(SystemExit) as caught:
        machine.find_machine(make_config(device="auto"), tmp_path)
    assert caught.value.code == MACHINE
    assert capsys.readouterr().err == "error: GPUs: cuda:0 (old) cannot be used; leave it out\n"


@pytest.mark.parametrize(
    "kind, capability, has", [("cuda", (8, 0), True), ("cuda", (7, 5), False), ("cpu", None, False)]
)
def test_tf32_is_for_gpus_that_have_it(kind, capability, has, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(setup, "device_name", str)
    config, device = make_config(precision="tf32"), torch.device(kind)
    if has:
        return check_precision(config, device)
    message = f"tf32 needs a GPU of compute capability 8.0 or more; the run is on {kind}; .* --precision fp16"
    with pytest.raises(SuiteError, match=message) as caught:
        check_precision(config, device)
    assert caught.value.exit_code == MACHINE
