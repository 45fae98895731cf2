"""Variants of a script's row: each change is checked from inside the running script."""

import json
import shlex
import sys

import pytest

from comparison.methods import Machine
from comparison.plan.scripts import parse_script, script_rows, variants_of
from comparison.run import scripts
from comparison.run.scripts import ScriptRun, Slices
from comparison.run.turns import run_whole
from tests.reports import ENVIRONMENT

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(os.getpid())  # different weights on every rank
network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(400, 2, 4, 4)), 8)
inside = []
network[0].register_forward_hook(lambda *_: inside.append(torch.is_autocast_enabled("cpu")))
for number in range(1000):
    for (images,) in loader:
        values = network(images)
        values.square().mean().backward()
        optimizer.step()
        weight, momentum = network[0].weight, optimizer.state[network[0].weight]["momentum_buffer"]
        last = [tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (weight, momentum)]
        seen = {"batch": len(images), "workers": loader.num_workers, "autocast": inside[-1], "type": str(values.dtype)}
        if len(inside) == 12:
            seen |= {"channels last": last, "gradient": weight.grad.sum().item(), "rank": os.environ.get("RANK")}
            with open(f"{sys.argv[1]}/{os.getpid()}.json", "w") as file:
                file.write(__import__("json").dumps(seen))
        optimizer.zero_grad()
"""


SCALED = """
import json, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

network, scaler, updates = nn.Linear(2, 1), torch.amp.GradScaler("cpu", init_scale=2.0**20), []
optimizer = torch.optim.SGD(network.parameters(), 0.01)
optimizer.register_step_post_hook(lambda *_: updates.append(1))
try:
    os.close(os.open(f"{sys.argv[1]}/first", os.O_CREAT | os.O_EXCL))
    overflows = True
except FileExistsError:
    overflows = False
steps = 0
while True:
    for (images,) in DataLoader(TensorDataset(torch.randn(80, 2)), 8):
        optimizer.zero_grad()
        scaler.scale(network(images).square().mean()).backward()
        if overflows and steps % 3 == 1:
            network.weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        steps += 1
        if steps == 12:
            seen = {"overflows": overflows, "updates": len(updates), "weights": network.weight.tolist()}
            with open(f"{sys.argv[1]}/{os.getpid()}.json", "w") as file:
                file.write(json.dumps(seen))
"""


LOADER = "DataLoader(TensorDataset(torch.randn(400, 2, 4, 4)), 8)"
CLOSURE = SCRIPT.replace(
    """        values = network(images)
        values.square().mean().backward()
        optimizer.step()
""",
    """        def closure():
            global values
            optimizer.zero_grad()
            values = network(images)
            values.square().mean().backward()
        optimizer.step(closure)
""",
)


LAUNCHER = f"""
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", {SCRIPT!r}, sys.argv[1]]).returncode)
"""


def run_variant(kind, directory, monkeypatch, script=SCRIPT):
    """Run a variant. Return its outcome."""
    monkeypatch.setattr(scripts, "SLICES", 1)
    (directory / "train.py").write_text(script)
    command = shlex.join([sys.executable, str(directory / "train.py"), str(directory)])
    machine = Machine(0, 2, bf16=True)
    (plain,) = script_rows([parse_script(f"mine={command}")], machine)
    row = {row.what_if: row for row in (plain, *variants_of(plain, machine, None))}[kind]
    return run_whole(ScriptRun(row, 1, directory, 60.0, Slices(5, 10), ENVIRONMENT))


def run_well(kind, directory, monkeypatch, script=SCRIPT):
    """Run a variant. Return what each process saw after twelve steps, and the result."""
    outcome = run_variant(kind, directory, monkeypatch, script)
    assert outcome.status == "ok", outcome.reason
    return [json.loads(file.read_text()) for file in directory.glob("*.json")], outcome.result


PLAIN = {"batch": 8, "workers": 0, "autocast": False, "type": "torch.float32", "channels last": [False, False]}


@pytest.mark.parametrize(
    "kind, changed",
    [
        ("", {}),
        ("workers", {"workers": 2}),
        pytest.param("channels", {"channels last": [True, True]}, marks=pytest.mark.slow),
        ("bf16", {"channels last": [True, True], "autocast": True}),
    ],
)
def test_a_variant_changes_only_what_it_says(kind, changed, tmp_path, monkeypatch):
    (seen,), result = run_well(kind, tmp_path, monkeypatch)
    assert {name: seen[name] for name in PLAIN} == PLAIN | changed
    assert result.workers_per_process == seen["workers"]


@pytest.mark.parametrize(
    "script",
    [SCRIPT, *(pytest.param(other, marks=pytest.mark.slow) for other in (CLOSURE, LAUNCHER))],
    ids=["", "closure", "started by a program"],
)
def test_ranks_share_a_batch_and_average_their_gradients(script, tmp_path, monkeypatch):
    (one, other), result = run_well("ranks", tmp_path, monkeypatch, script)
    assert one["gradient"] == other["gradient"] != 0 and one["batch"] == other["batch"] == 4
    assert one["rank"] is None  # the script does not notice the other rank
    assert (result.world_size, result.global_batch_size) == (2, 8) and result.timed_epochs[0].phases.exchange > 0


@pytest.mark.parametrize(
    "script, loader, reason",
    [
        (SCRIPT, "[torch.randn(1, 8, 2, 4, 4)] * 50", "it has no DataLoader with a batch_size that ranks could share"),
        pytest.param(SCRIPT, f"{LOADER[:-2]}batch_sampler=[[0, 1]])", "could share", marks=pytest.mark.slow),
        pytest.param(SCRIPT, f"{LOADER[:-2]}1)", "could share", marks=pytest.mark.slow),
        pytest.param(CLOSURE.replace("SGD", "LBFGS"), LOADER, "LBFGS", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_would_not_train_as_one_process_are_refused(script, loader, reason, tmp_path, monkeypatch):
    script = script.replace(LOADER, loader).replace("0.01, momentum=0.9", "0.01" if "LBFGS" in script else "0.01, 0.9")
    outcome = run_variant("ranks", tmp_path, monkeypatch, script)
    assert outcome.status == "failed" and reason in outcome.reason and "python -I" not in outcome.reason


@pytest.mark.slow
def test_ranks_skip_the_same_steps_of_a_gradient_scaler(tmp_path, monkeypatch):
    """One rank's gradients are infinite in every third step. Both begin with their own weights."""
    seen, _ = run_well("ranks", tmp_path, monkeypatch, SCALED)
    assert sorted(one["overflows"] for one in seen) == [False, True]
    assert [one["updates"] for one in seen] == [8, 8]
