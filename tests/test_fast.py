"""What makes a training short: bfloat16, torch.compile, a target accuracy, recipes, schedules, a process's set-up."""

import copy
import json
import math
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import compare_parallel
from common import engine
from common.compiled import replace_network
from common.config import DATASETS, RunConfig, parse, script_parser
from common.engine import Evaluation, build_optimizer, build_schedule, fit
from common.errors import MACHINE, USAGE, SuiteError
from common.machine import setup as process
from common.machine.setup import check_bf16, prepare_process
from common.models import Network, build_model
from common.programs import probe
from common.recipes import RECIPES
from common.results import write_result
from comparison.analysis import analyse
from comparison.launch import run_once
from comparison.methods import Machine
from comparison.session import print_commands
from comparison.tables import main_table
from model_parallel_train import TwoStage
from processes import PROJECT, child_environment
from reports import configuration, report_of, runs
from test_compare import child
from test_data import make_config, make_image_set
from test_report import SINGLE, cells
from test_results import make_result
from training import CPU, make_context, make_loaders, make_step

SCRIPT = "data_parallel_train.py"
MODEL_PARALLEL = ("model_parallel_train.py", "--use-model-parallel")


@pytest.fixture
def parsed(monkeypatch, tmp_path):
    """Parse flags as a training script does; return its RunConfig."""

    def parsed(*flags):
        monkeypatch.setattr(sys, "argv", [SCRIPT, *map(str, flags), "--figure-dir", str(tmp_path)])
        return parse(script_parser(""))[0]

    return parsed


# ---- bfloat16


def replica(model):
    """What nn.DataParallel makes of a model in every step."""
    made = model._replicate_for_data_parallel()
    for name, block in model.named_children():
        setattr(made, name, block)
    return made


def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def layer_types(model, images, call):
    """The types of what each convolution and matrix product gives, and of the logits."""
    seen = []
    hooks = [layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
             for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    seen.append(call(model, images).dtype)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(hooks) + 1
    return set(seen)


@pytest.mark.parametrize("call", [lambda model, images: model(images), in_a_thread], ids=["here", "in a thread"])
@pytest.mark.parametrize("made", [
    lambda model: model, copy.deepcopy, replica, lambda model: nn.Sequential(model[:2], model[2:]),
    lambda model: TwoStage(model[:-1], model[-1:], [CPU, CPU], 1),
], ids=["model", "copy", "replica", "slices", "two stages"])
def test_every_layer_computes_in_the_precision_asked_for(made, call):
    images = torch.randn(4, 1, 28, 28)
    for precision, expected in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        model = made(build_model("strided", (1, 28, 28), 0, precision))
        assert layer_types(model, images, call) == {expected}
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_training_in_bfloat16_keeps_its_weights_and_gradients_in_float32_and_learns():
    losses, image_set = {}, make_image_set()
    image_set.train_images[:] = np.random.default_rng(0).integers(0, 256, image_set.train_images.shape)
    for precision in ("fp32", "bf16"):
        config = make_config(epochs=4, optimizer="sgd", lr=0.05, batch_size=20, augment=False)
        model = build_model("mlp", (1, 28, 28), 0, precision)
        optimizer = build_optimizer(model.parameters(), config)
        records, _ = fit(make_context(model), make_step(model, config), optimizer, build_schedule(optimizer, config, 3),
                         make_loaders(image_set, config, CPU), config, [], lambda _: None)
        losses[precision] = [record.train_loss for record in records]
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert losses["bf16"][-1] < 0.9 * losses["bf16"][0]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.1) and losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize("command", [
    (SCRIPT,), *(pytest.param(command, marks=pytest.mark.slow) for command in (
        MODEL_PARALLEL, ("ddp_train.py", "--spawn", 2), ("accelerate_train.py",)))])
def test_a_script_trains_in_bfloat16_and_its_result_says_so(command, train):
    if command[0] == "accelerate_train.py":
        pytest.importorskip("accelerate")
    result, weights, _ = train(*command, "--model", "mlp", "--threads", 1, "--precision", "bf16",
                               "--allow-slow-precision")
    assert (result["precision"], result["config"]["precision"]) == ("bfloat16 autocast", "bf16")
    assert result["epochs"][0]["train_loss"] < 0.97 * math.log(10)  # of a guess
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("bf16_seconds, slow", [(7.0, True), (1.0, False), (0.5, False)])
def test_bf16_is_refused_where_it_is_slower(bf16_seconds, slow, monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: bf16_seconds}
    monkeypatch.setattr(process, "_product_seconds", lambda dtype, device: seconds[dtype])
    if not slow:
        return check_bf16(CPU)
    with pytest.raises(SuiteError, match=r"slower than fp32 on cpu; .* 7\.0 times as long; .* --allow-slow-") as caught:
        check_bf16(CPU)
    assert caught.value.exit_code == MACHINE


# ---- torch.compile


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
    with pytest.raises(SuiteError, match="--compile does not go with dp; .*leave out --compile") as caught:
        replace_network(make_context(model, method="dp", compilable=False), (2, *shape), config)
    assert caught.value.exit_code == USAGE and len(compiled) == 2


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


# ---- a target accuracy


@pytest.mark.parametrize("target, epochs", [(None, 4), (0.05, 1), (0.5, 2), (0.51, 3), (0.95, 4)])
def test_training_ends_after_the_epoch_that_reaches_the_target(target, epochs, monkeypatch):
    planted = iter([10, 50, 90, 70])  # of 100
    monkeypatch.setattr(engine, "evaluate", lambda *_: Evaluation(0, 0.1, 1.0, [next(planted)], [100]))
    config = make_config(epochs=4, target_accuracy=target, batch_size=20, augment=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = build_optimizer(model.parameters(), config)
    schedule, loaders = build_schedule(optimizer, config, 3), make_loaders(make_image_set(), config)
    records, evaluations = fit(make_context(model), make_step(model, config), optimizer, schedule, loaders, config, [],
                               lambda _: None)
    assert [record.test_accuracy for record in records] == [0.1, 0.5, 0.9, 0.7][:epochs]
    assert evaluations[0].correct == [100 * records[-1].test_accuracy]


def test_nothing_is_left_to_do_after_a_checkpoint_that_reached_the_target():
    config = make_config(epochs=4, target_accuracy=0.5, batch_size=20, augment=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer, earlier = build_optimizer(model.parameters(), config), [*make_result(seconds=(3.0,)).epochs]  # 60 %
    records, _ = fit(make_context(model), make_step(model, config), optimizer, build_schedule(optimizer, config, 3),
                     make_loaders(make_image_set(), config, CPU), config, earlier, lambda _: None)
    assert records == earlier


@pytest.mark.parametrize("command", [(SCRIPT,), pytest.param(("ddp_train.py", "--spawn", 2), marks=pytest.mark.slow)])
def test_a_script_ends_with_the_epoch_that_reaches_its_target(command, project, data_root, tmp_path):
    done = project(*command, "--target-accuracy", 0.05, "--epochs", 3, "--model", "mlp", "--dataset", "synthetic-mnist",
                   "--data-root", data_root, "--train-size", 480, "--num-workers", 0, "--batch-size", 48,
                   "--output", tmp_path / "result.json", "--figure-dir", tmp_path, tiny=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], len(result["epochs"]), result["config"]["epochs"]) == ("ok", 1, 3)
    seconds = result["epochs"][0]["train_seconds"]
    assert f"Training took {seconds:.2f} s to a test accuracy of 5.00%; " in done.stdout


def test_a_run_that_missed_its_target_is_such_a_row_with_all_its_epochs(tmp_path):
    write_result(make_result(status="not reached", reason="the best was 80.00%"), tmp_path / "made.json")
    found = run_once(child(f"import shutil, sys; shutil.copy({str(tmp_path / 'made.json')!r}, "
                           f"{str(tmp_path / 'runs' / 'single-1.json')!r}); sys.exit(1)"), 1, 42, tmp_path / "runs")
    assert (found.status, found.reason, found.exit_code) == ("not reached", "the best was 80.00%", 1)
    assert len(found.result.epochs) == 3


def test_the_table_has_the_time_to_the_target_or_says_that_it_was_not_reached():
    missed = (configuration("ddp"), runs("ddp", status="not reached", reason="the best was 80.00%"))
    rows = [(configuration(), runs(seconds=(2.0, 4.0, 2.5), epochs=3, first=3.0)), missed,  # 7, 11 and 8 s in all
            (configuration("mp", skip="needs 2 GPUs, found 1"), []), (configuration("accelerate"), ["failed"] * 3)]
    report = report_of(*rows, target_accuracy=0.99)
    outcomes = tuple(replace(outcome, status=outcome.result.status, exit_code=1) if outcome.configuration == "ddp"
                     else outcome for outcome in report.outcomes)
    report = replace(report, outcomes=outcomes)
    table = main_table(analyse(report), "simple")
    assert "Accuracy (%)    Training to 99 % (s)    Time per epoch (s)" in table.splitlines()[0]
    single, ddp, mp, accelerate = cells(table)
    assert (single[4], ddp[4], mp[4], accelerate[4]) == ("8.00", "not reached", "–", "–")
    assert ddp[-1] == "3 of 3 runs not reached" and ddp[6] == "–" and ddp[7] == "0"
    assert report.failed
    first, second, third = (outcome for outcome in report.outcomes if outcome.configuration == "single")
    partly = replace(report, outcomes=(first, second, replace(third, status="not reached"), *report.outcomes[3:]))
    assert cells(main_table(analyse(partly), "simple"))[0][4] == "9.00 (not reached by 1 of 3 runs)"
    assert "Training to 98.5 % (s)" in main_table(analyse(report_of(SINGLE, target_accuracy=0.985)), "simple")
    assert "Training to" not in main_table(analyse(report_of(SINGLE)), "simple")


# ---- recipes


def recipe_flags(values):
    """A recipe as it would be typed."""
    typed = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        typed += [option if value else f"--no-{option[2:]}"] if isinstance(value, bool) else [option, value]
    return typed


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_for_every_data_set_and_name_fields_of_a_run(name):
    assert RECIPES[name].keys() == set(DATASETS)
    for values in RECIPES[name].values():
        assert values.keys() <= {field.name for field in fields(RunConfig)} - {"dataset", "recipe"}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_what_its_flags_are_when_typed(name, dataset, parsed):
    values = RECIPES[name][dataset]
    config = parsed("--recipe", name, "--dataset", dataset)
    assert {key: getattr(config, key) for key in values} == values
    assert config.num_workers == 0 and config.recipe == name
    assert replace(config, recipe=None) == parsed("--dataset", dataset, *recipe_flags(values))
    assert parsed("--dataset", dataset).lr == 1e-3  # nothing of it is left behind


TYPED = [("--lr", 0.001, "--optimizer", "adam", "--schedule", "steps"),  # the defaults of a run without a recipe
         ("--loader", "workers", "--precision", "fp32", "--augment", "--weight-decay", 0.0),
         ("--epochs", 7, "--batch-size", 64, "--model", "mlp", "--label-smoothing", 0.0, "--lr-milestones", 3, 5)]


@pytest.mark.parametrize("typed", TYPED, ids=str)
def test_a_typed_flag_wins_over_the_recipe(typed, parsed):
    recipe, alone = asdict(parsed("--recipe", "fast")), asdict(parsed(*typed))
    names = {flag[2:].replace("-", "_") for flag in map(str, typed) if flag.startswith("--")}
    names |= {"num_workers"} if "--loader" in typed else set()  # which follow from the loader
    for config in (asdict(parsed("--recipe", "fast", *typed)), asdict(parsed(*typed, "--recipe", "fast"))):
        assert {name: config[name] for name in names} == {name: alone[name] for name in names}
        late = {"lr_milestones"} if "--epochs" in typed else set()
        assert {name: config[name] for name in config.keys() - names - late} \
            == {name: recipe[name] for name in config.keys() - names - late}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plan a comparison on a machine without GPUs and with two cores; return its Report."""
    monkeypatch.setattr(compare_parallel, "find_machine", lambda arguments, directory: (Machine(0, 2), {}))

    def planned(*flags):
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--dry-run", *map(str, flags)])
        return compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)

    return planned


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_comparison_hands_the_recipe_to_every_run(dataset, planned, capsys):
    values = RECIPES["fast"][dataset]
    print_commands(planned("--recipe", "fast", "--dataset", dataset))
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(commands) == 7
    for command in commands:
        given = {flag: command[index + 1] for index, flag in enumerate(command[:-1]) if flag.startswith("--")}
        expected = {"--recipe": "fast", "--dataset": dataset, "--model": values["model"], "--epochs":
                    str(values["epochs"]), "--batch-size": str(values["batch_size"]), "--num-workers": "0"}
        assert given.items() >= expected.items()
        assert command.count("--num-workers") == command.count("--batch-size") == command.count("--model") == 1


@pytest.mark.parametrize("flags", [(), *TYPED], ids=str)
def test_a_run_of_a_comparison_is_what_the_script_does_with_the_same_flags(flags, planned, parsed):
    flags = ("--recipe", "fast", *flags)
    (row,) = planned("--methods", "single", "--num-workers", 2 if "--loader" in flags else 0, *flags).plan
    compared, alone = parsed(*row.command[2:]), parsed(*flags)
    assert compared.num_workers == (2 if "--loader" in flags else 0) and compared.threads == 1
    assert replace(compared, num_workers=None, threads=None, device="auto") == replace(alone, num_workers=None)


def test_the_probe_measures_what_the_recipe_trains(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["probe", "--recipe", "fast", "--dataset", "mnist", "--num-workers", "0"])
    monkeypatch.setattr(probe, "load_image_set", lambda arguments: None)
    monkeypatch.setattr(probe, "measure", lambda arguments, image_set: vars(arguments))
    probe.main()
    asked = json.loads(capsys.readouterr().out)
    values = RECIPES["fast"]["mnist"]
    assert {name: asked[name] for name in values} == {
        **values, "model": [values["model"]], "batch_size": [values["batch_size"]]}


# ---- schedules


def rates(config, steps_per_epoch):
    """The learning rate of every training step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
    schedule = build_schedule(optimizer, config, steps_per_epoch)
    found = []
    for _ in range(config.epochs * steps_per_epoch):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_one_cycle_rises_for_a_quarter_and_falls_to_almost_nothing():
    found = rates(make_config(schedule="one-cycle", epochs=4, lr=0.2), 10)
    rising, falling = found[:10], found[9:]
    assert rising == sorted(set(rising)) and falling[::-1] == sorted(set(falling))
    assert found[9] == max(found) == pytest.approx(0.2)
    assert found[0] < 0.05 * 0.2 and 0 <= found[-1] < 0.01 * 0.2
    assert [later - sooner for sooner, later in pairwise(falling)] == pytest.approx([(found[-1] - 0.2) / 30] * 30)


@pytest.mark.parametrize("steps", range(1, 13))
def test_one_cycle_of_a_few_steps(steps):
    found = rates(make_config(schedule="one-cycle", epochs=1, lr=0.2), steps)
    assert len(found) == steps and all(0 < rate <= 0.2 for rate in found)


@pytest.mark.parametrize("flags, milestones", [
    ((), (8,)), (("--epochs", 4), ()), (("--epochs", 5), (4,)), (("--epochs", 7), (5,)), (("--epochs", 30), (24,)),
    (("--lr-milestones", 2, 9), (2, 9)), (("--epochs", 4, "--lr-milestones", 2), (2,)),
])
def test_the_learning_rate_falls_after_four_fifths_unless_told_otherwise(flags, milestones, parsed):
    config = parsed(*flags, "--lr", 1)
    assert config.lr_milestones == milestones
    falls = [epoch for epoch, (before, after) in enumerate(pairwise(rates(config, 1)), start=1) if after < before / 2]
    assert tuple(falls) == milestones


# ---- a process


@pytest.mark.parametrize("threads, processes, expected", [(None, 1, 8), (None, 3, 2), (None, 16, 1), (3, 4, 3)])
def test_a_process_sets_its_threads_and_checks_what_was_asked_for(threads, processes, expected, monkeypatch):
    calls = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append("memory"))
    monkeypatch.setattr(process, "check_bf16", lambda device: calls.append("bf16"))
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_num_threads()
    try:
        prepare_process(make_config(threads=threads), CPU, processes)
        assert torch.get_num_threads() == expected and torch.backends.cudnn.benchmark
        prepare_process(make_config(precision="bf16", allow_slow_precision=True), CPU)
        assert calls == ["memory"] * 2
        prepare_process(make_config(precision="bf16"), CPU)
        assert calls == ["memory"] * 3 + ["bf16"]
    finally:
        torch.set_num_threads(before)


FAULTS = """
import resource, torch
from common.machine.setup import keep_freed_memory
torch.set_num_threads(1)
def faults():
    for step in range(20):
        if step == 10:  # what is kept has found its place
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(16_000_000).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_asking_the_kernel():
    done = subprocess.run([sys.executable, "-c", FAULTS], cwd=PROJECT, env=child_environment(), capture_output=True,
                          text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back >= 10 * 31  # 10 times 64 MB, more than glibc keeps by itself: 16,000 pages, or 31 large ones
    assert kept < given_back / 4


# ---- optimizers


@pytest.mark.parametrize("name, kind", [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD),
                                        ("nesterov", torch.optim.SGD)])
def test_optimizers_are_fused_and_get_their_values(name, kind):
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], make_config(optimizer=name, lr=0.3, weight_decay=0.02))
    (group,) = optimizer.param_groups
    assert type(optimizer) is kind
    assert (group["fused"], group["lr"], group["weight_decay"]) == (True, 0.3, 0.02)


@pytest.mark.parametrize("name, weight_decay, moved", [
    ("sgd", 0.0, 1 + 1.9), ("nesterov", 0.0, 1.9 + 2.71),  # two steps along a gradient of 1, momentum 0.9
    ("sgd", 0.5, 1.5 + (1 + 0.5 * 0.985 + 0.9 * 1.5)),  # 0.985: the weight after the first step
])
def test_momentum_and_weight_decay_are_the_textbooks(name, weight_decay, moved):
    weight = nn.Parameter(torch.ones(1))
    optimizer = build_optimizer([weight], make_config(optimizer=name, lr=0.01, weight_decay=weight_decay))
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
    assert 1 - weight.item() == pytest.approx(0.01 * moved, rel=1e-4)


