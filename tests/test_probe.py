"""What is measured before a comparison, and the helpers that it asks: probe, weights, links between GPUs."""

import json
import math
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from common.errors import SuiteError
from common.machine import environment
from common.models import build_model
from common.programs import probe
from common.programs.weights import difference
from processes import PROJECT, child_environment


def test_the_probe_measures_what_it_was_asked_for(data_root):
    done = subprocess.run(
        [sys.executable, "-m", "common.programs.probe", "--dataset", "synthetic-mnist", "--data-root", data_root,
         "--train-size", "480", "--model", "lenet", "mlp", "--batch-size", "48", "--num-workers", "0", "--sizes", "12",
         "48",
         "--threads", "1", "--ceiling", "--link"], cwd=PROJECT, capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["train_images"], measured["test_images"]) == (480, 2000)
    steps = {(step["model"], step["batch"]): step["milliseconds"] for step in measured["steps"]}
    assert set(steps) == {("lenet", 12), ("lenet", 48), ("mlp", 12), ("mlp", 48)} and min(steps.values()) > 0
    parameters = {name: sum(weight.numel() for weight in build_model(name, (1, 28, 28), 0).parameters())
                  for name in ("lenet", "mlp")}
    assert {model["model"]: model["gradient_bytes"] for model in measured["models"]} == {
        name: 4 * count for name, count in parameters.items()}
    assert all(0.01 < model["link_gbps"] < 1000 for model in measured["models"])
    assert measured["resident_images_per_second"] > 10_000
    (memory,) = measured["memory"]
    assert memory["device"] == "cpu" and 2**27 < memory["peak_bytes"] < 2**33 and memory["free_bytes"] > 0
    (loader,) = measured["loaders"]
    assert loader["num_workers"] == 0 and loader["images_per_second"] > 100


def test_a_step_is_the_median_without_the_first_two(monkeypatch):
    calls = []

    class Slow(torch.nn.Linear):
        def forward(self, images):
            calls.append(images.shape)
            time.sleep(0.2 if len(calls) <= 2 else 0.01)
            return super().forward(images.flatten(1))

    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.05)
    model = Slow(4, 10)
    image_set = SimpleNamespace(image_shape=(1, 2, 2), classes=tuple("0123456789"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    milliseconds = probe.step_milliseconds(model, optimizer, image_set, 3, torch.device("cpu"))
    assert 10 <= milliseconds < 100 and len(calls) == 7 and set(calls) == {(3, 1, 2, 2)}


def test_the_loaders_start_is_left_out_of_its_speed(monkeypatch):
    class Loader:
        def __iter__(self):
            if not passes:
                time.sleep(0.5)
            passes.append(1)
            for _ in range(2):
                time.sleep(0.01)
                yield torch.zeros(10, 1), None

    passes = []
    monkeypatch.setattr(probe, "SECONDS_PER_MEASUREMENT", 0.2)
    assert 300 < probe.loader_images_per_second(Loader(), torch.device("cpu")) < 1001 and len(passes) > 5


def test_the_largest_difference_of_any_parameter():
    reference = build_model("vgg", (3, 32, 32), 0).state_dict()
    other = {name: value.clone() for name, value in reference.items()}
    assert difference(reference, other) == 0
    other["conv1_1.1.running_mean"] += 9  # a statistic, no parameter
    assert difference(reference, other) == 0
    other["head.1.bias"][3] -= 0.25
    assert difference(reference, other) == pytest.approx(0.25)
    other["head.1.weight"][0, 0] = math.nan
    assert math.isnan(difference(reference, other))


def test_weights_of_two_models_have_no_difference():
    with pytest.raises(SuiteError, match="two different models; conv1.0.weight"):
        difference(build_model("lenet", (1, 28, 28), 0).state_dict(), build_model("mlp", (1, 28, 28), 0).state_dict())
    with pytest.raises(SuiteError, match=r"conv1.0.weight: \(16, 1, 5, 5\), \(16, 3, 5, 5\)"):
        difference(build_model("lenet", (1, 28, 28), 0).state_dict(), build_model("lenet", (3, 32, 32), 0).state_dict())


@pytest.mark.parametrize("printed, shared", [
    ("Default\nDefault", True), ("Default\nExclusive_Process", False), ("", False)])
def test_whether_processes_may_share_a_gpu_is_read_from_nvidia_smi(printed, shared, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.gpus_can_be_shared() == shared


def test_links_between_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    matrix = ("\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\tSYS\t0-47\nGPU1\tNV18\t X \tPIX\t0-47\n"
              "GPU2\tSYS\tPIX\t X \t48-95\n\nLegend:\n  X = Self\n")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{matrix}END\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment._links() == ["GPU0-GPU1 NV18", "GPU0-GPU2 SYS", "GPU1-GPU2 PIX"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment._links() == []
