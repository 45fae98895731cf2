"""GPUs: their names, links and UUIDs, and errors about GPUs that PyTorch cannot use."""

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import common.engine.run
from common.engine import setup
from common.engine.setup import check_precision
from common.errors import MACHINE, SuiteError
from common.machine import environment
from common.machine.environment import (
    available_devices,
    describe_environment,
    forks_can_use_gpus,
    gpu_uuid,
    gpus_can_be_shared,
)
from common.programs import check as preflight
from common.programs.check import BAD, OK, check_all
from comparison.run import machine
from tests.fixtures import make_config
from tests.pretended_gpus import pretended_gpus
from tests.trainings import make_context

MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\t0-47
GPU1\tNV18\t X \tPIX\t0-47
GPU2\tSYS\tPIX\t X \t48-95

Legend:
  X = Self
"""


@pytest.fixture
def nvidia_smi(monkeypatch):
    """nvidia_smi({uuid: value}): fake an nvidia-smi that lists these GPUs; return the list of its calls."""

    def nvidia_smi(values):
        calls, lines = [], [f"{uuid}, {value}" for uuid, value in values.items()]

        def run(command, **_):
            calls.append(command)
            return SimpleNamespace(stdout=MATRIX if command[1] == "topo" else "\n".join(lines))

        monkeypatch.setattr(environment.subprocess, "run", run)
        return calls

    return nvidia_smi


def test_links_are_those_of_visible_gpus_in_pytorchs_numbering(nvidia_smi, monkeypatch):
    with pretended_gpus("last", "first"):
        first, second = gpu_uuid(0), gpu_uuid(1)
        for machine, links in (
            ((second, "GPU-hidden", first), ["GPU0-GPU1 SYS"]),
            ((first, second, "GPU-hidden"), ["GPU0-GPU1 NV18"]),
            ((first, "GPU-of-the-other", "GPU-hidden"), []),  # the second is a MIG instance
        ):
            nvidia_smi(dict.fromkeys(machine, "575.1"))
            found = describe_environment()
            assert (found["gpus"], found["links"], found["driver"]) == (["last", "first"], links, "575.1")
        monkeypatch.undo()
        monkeypatch.setenv("PATH", "/nowhere")
        found = describe_environment()
        assert (found["links"], found["driver"]) == ([], "")


def test_gpus_of_a_pytorch_without_nccl_are_described(monkeypatch):
    with pretended_gpus("Orin"):
        assert describe_environment()["nccl"] == "0.0"
        monkeypatch.setattr(torch.cuda.nccl, "version", mock.Mock(side_effect=AttributeError("_nccl_version")))
        assert describe_environment()["nccl"] is None


def test_the_driver_decides_whether_processes_may_share_gpus(monkeypatch):
    modes = {}

    def get(device, index):
        device._obj.value = {0: 3, 1: 7}[index]  # the driver's handle of each of PyTorch's GPUs

    def get_attribute(value, attribute, device):
        assert attribute == 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        value._obj.value = modes[device.value]

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=get, cuDeviceGetAttribute=get_attribute)
    with pretended_gpus("one", "two"):
        monkeypatch.setattr(environment.ctypes, "CDLL", lambda name: {"libcuda.so.1": driver}[name])
        for first, second in ((0, 0), (0, 3), (2, 0)):
            modes.update({3: first, 7: second})
            assert gpus_can_be_shared() == (first == second == 0)

        monkeypatch.setattr(environment.ctypes, "CDLL", mock.Mock(side_effect=OSError("cannot open")))
        assert gpus_can_be_shared()  # assumed without a driver


@pytest.mark.parametrize("called_cuda", [False, True])
def test_a_process_that_has_called_cuda_is_not_forked(called_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: called_cuda)
    assert forks_can_use_gpus() != called_cuda


@pytest.mark.parametrize("name, kind", [("NVIDIA A100-SXM4-40GB", "GPU"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG")])
def test_a_mig_instance_has_the_uuid_that_cuda_visible_devices_takes(name, kind):
    with pretended_gpus(name):
        assert gpu_uuid(0) == f"{kind}-00000000-0000"


def before_a_run(**values):
    """Return the RunResult before a run's first epoch; values: of the context."""
    context = make_context(torch.nn.Identity(), **values)
    context.model.precision = "fp32"
    return common.engine.run._before(context, make_config(batch_size=1), make_config(), {})


def test_only_rank_0_calls_nvidia_smi(nvidia_smi):
    with pretended_gpus("first", "second"):
        calls = nvidia_smi({gpu_uuid(0): "575.1", gpu_uuid(1): "575.1"})
        before_a_run(rank=1, ranks=2)
        assert not calls
        before_a_run(rank=0, ranks=2)
        assert len(calls) == 2


def test_a_run_on_different_gpus_notes_it():
    with pretended_gpus("H200", "A100", "H200"):
        devices = tuple(available_devices("gpu"))
        unlike = "a note; its devices differ (H200, A100), and the slowest decides"
        assert before_a_run(devices=devices, note="a note").reason == unlike
        assert before_a_run(devices=devices[::2]).reason == ""


def test_a_gpu_used_by_other_programs_fails_the_check(monkeypatch):
    with pretended_gpus("free", "full"):
        for free, status in ((5, BAD), (6, OK)):  # of 8 GiB; up to 2 in use are allowed
            monkeypatch.setattr(
                torch.cuda, "mem_get_info", lambda gpu, free=free: ((6, free)[gpu.index] << 30, 8 << 30)
            )
            check = preflight._gpus({"gpus": ["free", "full"], "links": []}, available_devices("gpu"))
            assert (check.status, "3.0 GiB of cuda:1 are in use" in check.found) == (status, status == BAD)
            assert preflight._gpus({"gpus": ["free", "full"], "links": []}, available_devices("cpu")).status == OK
        # other ranks hold the GPUs of this node, which are for one process at a time
        monkeypatch.setattr(environment, "_compute_mode", lambda index: 3)
        monkeypatch.setattr(torch.cuda, "mem_get_info", mock.Mock(side_effect=RuntimeError("devices are busy")))
        assert preflight._gpus({"gpus": ["free", "full"], "links": []}, available_devices("gpu")).status == OK


# ---- GPUs that cannot be used


@pytest.fixture
def unusable(tmp_path, monkeypatch):
    """A machine with a GPU that PyTorch cannot use. Returns the reason."""
    error = RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update it.")
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(environment, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(torch.cuda, "init", mock.Mock(side_effect=error))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return "sees no GPU: The NVIDIA driver on your system is too old (found version 11040)."


def test_an_unusable_gpu_is_an_error_unless_the_cpu_is_asked_for(unusable, tmp_path):
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


@pytest.mark.parametrize("hidden, shown", [("", '""'), ("-1", "-1"), ("NoDevFiles", "NoDevFiles")])
def test_a_hidden_gpu_is_ignored(hidden, shown, unusable, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert available_devices("auto") == [torch.device("cpu")]
    with pytest.raises(SuiteError, match=f"sees no GPU, CUDA_VISIBLE_DEVICES={shown}; type --device cpu"):
        available_devices("gpu")


def test_every_gpu_must_compute_a_convolution(tmp_path, monkeypatch):
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


def test_a_comparison_ends_if_its_gpus_cannot_be_used(monkeypatch, tmp_path, capsys):
    bad = {"name": "GPUs", "status": BAD, "found": "cuda:0 (old) cannot be used", "advice": "leave it out"}
    monkeypatch.setattr(machine, "ask", lambda *_, **__: json.dumps({"checks": [bad], "environment": None}))
    with pytest.raises(SystemExit) as caught:
        machine.find_machine(make_config(device="auto"), tmp_path)
    assert caught.value.code == MACHINE
    assert capsys.readouterr().err == "error: GPUs: cuda:0 (old) cannot be used; leave it out\n"


@pytest.mark.parametrize(
    "kind, capability, has", [("cuda", (8, 0), True), ("cuda", (7, 5), False), ("cpu", None, False)]
)
def test_tf32_is_refused_without_a_gpu_that_supports_it(kind, capability, has, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(setup, "device_name", str)
    config, device = make_config(precision="tf32"), torch.device(kind)
    if has:
        return check_precision(config, device)
    other = ", or type --precision fp16" if kind == "cuda" else ""
    message = f"tf32 needs a GPU of compute capability 8.0 or more; the run is on {kind}; leave it out{other}$"
    with pytest.raises(SuiteError, match=message) as caught:
        check_precision(config, device)
    assert caught.value.exit_code == MACHINE
