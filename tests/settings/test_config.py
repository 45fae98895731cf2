"""The flags: every field of RunConfig, their help, their spellings and their errors."""

import re
import shlex
import sys
from argparse import Namespace
from dataclasses import fields

import pytest

import compare_parallel
from common.engine import checkpoint
from common.errors import SuiteError
from common.machine.environment import command_line
from common.machine.turns import TURNS
from common.settings.arguments import ELSEWHERE
from common.settings.config import FLAGS, GROUPS, RunConfig, flags_with, option, parse, script_parser
from common.settings.totals import per_process
from comparison.methods import Machine
from comparison.plan import flags as comparison_flags
from comparison.plan.plan import make_plan
from comparison.rows import IN_EVERY_METHOD, Planned
from tests.fixtures import run_in_process

SWITCHES = "allow_slow_precision compile cuda_graph recompute eval_mode bind quiet debug"
CHANGED = (  # a value other than the default
    dict.fromkeys(SWITCHES.split(), True)
    | {"augment": False, "curves": False, "lr_milestones": (3,), "memory_limit": 2**31}
    | {"dataset": "synthetic-mnist", "recipe": "fast", "data_root": "elsewhere", "data_url": "http://x"}
    | {"loader": "resident", "crop_padding": "reflect", "model": "mlp", "precision": "bf16", "optimizer": "sgd"}
    | {"schedule": "one-cycle", "device": "cpu", "output": "o.json", "figure_dir": "f", "tensorboard": "t"}
    | {"save": "s", "checkpoint": "c", "resume": "c", "train_size": 96, "image_size": 32, "num_workers": 4}
    | {"lr": 0.5, "weight_decay": 0.25, "label_smoothing": 0.125, "epochs": 7, "seed": 5}
    | {"target_accuracy": 0.75, "batch_size": 64, "max_steps": 9, "threads": 3, "profile": 2, "warmup": 4}
    | {"accumulate": 4, "lr_scaling": "sqrt"}
)
SCRIPTS = "data_parallel_train ddp_train fsdp_train model_parallel_train pipeline_train compare_parallel".split()


def words(name):
    """What to type for a changed value."""
    value = CHANGED[name]
    if isinstance(value, bool):
        return [option(name) if value else "--no-" + option(name).removeprefix("--")]
    return [option(name), *map(str, value if isinstance(value, tuple) else [value])]


def valid_words(name):
    """The same, with the folder that --image-size needs."""
    return [*words(name), *(["--dataset", "folder:x"] if name == "image_size" else [])]


def test_every_field_of_the_config_is_a_flag_of_a_script(type_in, monkeypatch, tmp_path):
    assert set(CHANGED) == {field.name for field in fields(RunConfig)} == set(FLAGS)
    monkeypatch.chdir(tmp_path)
    for name in FLAGS:
        assert CHANGED[name] != getattr(RunConfig(), name)
        type_in("x.py", *valid_words(name))
        assert getattr(parse(script_parser(""))[0], name) == CHANGED[name]


def test_shared_flags_of_a_comparison_reach_every_row(type_in):
    for name in {*flags_with("shared")} - {"device"}:  # which depends on the machine
        type_in("compare_parallel.py", *valid_words(name))
        arguments, shared = compare_parallel.parse()
        for row in make_plan(arguments, Machine(0, 4), shared):
            assert shlex.join(words(name)) in shlex.join(row.command)


@pytest.mark.parametrize("name", flags_with("own"))
def test_a_row_can_override_a_flag(name, type_in):
    value = CHANGED[name]
    flag = option(name).removeprefix("--") + ("" if value is True else f"={value}")
    type_in("compare_parallel.py", "--methods", "single", f"single:{flag}")
    arguments, shared = compare_parallel.parse()
    usual, own = make_plan(arguments, Machine(0, 8), shared)
    assert shlex.join(words(name)) in shlex.join(own.command) and name.replace("_", " ") in own.label
    assert usual.planned != own.planned and own.name == f"single-{name}={value}"


def test_a_checkpoint_is_only_valid_for_the_same_decisive_flags():
    def decisive(**values):
        return checkpoint._decisive(RunConfig(**values), Namespace())

    assert {name for name in FLAGS if decisive(**{name: CHANGED[name]}) != decisive()} == {*flags_with("decides")}


def test_traits_of_flags_are_consistent():
    decides, own, planned = {*flags_with("decides")}, {*flags_with("own")}, {field.name for field in fields(Planned)}
    assert {"precision", "compile", "cuda_graph"} < own < planned
    assert len(decides) == 23 and not {"epochs", "threads", "num_workers"} & decides
    # batch_size is compared as the global batch; the other two do not change the gradients
    assert decides - {*flags_with("equal")} == {"batch_size", "accumulate", "recompute"}
    assert {*flags_with("several")} == {*IN_EVERY_METHOD} < planned
    assert not set(flags_with("by_rank")) & (decides | {*flags_with("equal")})


# ---- help


@pytest.fixture
def help_of(monkeypatch, capsys):
    """The help of a script on a terminal of 80 columns."""

    def help_of(script, flag="--help"):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", [f"{script}.py", flag])
        with pytest.raises(SystemExit):
            compare_parallel.main() if script == "compare_parallel" else run_in_process(monkeypatch, f"{script}.py")
        return capsys.readouterr().out

    return help_of


def test_help_has_groups_and_an_example_and_fits_80_columns(help_of):
    known = set()
    for script in SCRIPTS:
        text = help_of(script, "--help-all" if script == "compare_parallel" else "--help")
        assert max(map(len, text.splitlines())) <= 80
        headings = re.findall(r"^([a-z].*):$", text, re.MULTILINE)
        groups = [heading for heading in headings if heading != "options"]
        assert groups[:3] == [*GROUPS.values()][:3] and len(groups) >= 4
        example = re.search(r"^    (.*\b" + script + r"\.py.*(\n        .*)*)", text, re.MULTILINE)[1]
        assert "\n" not in shlex.split(example.replace("\\\n", ""))  # it can be pasted
        known |= {*re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)}
    suggested = {flag for advice in ELSEWHERE.values() for flag in re.findall(r"--[a-z-]+(?![a-z_-])", advice)}
    assert suggested - {"--standalone"} <= known and {"--use-parallel", "--spawn"} < suggested


@pytest.mark.parametrize("flag", ["--help-all", "--help_all"])
def test_a_comparison_has_a_short_and_a_full_help(flag, help_of):
    short, full = help_of("compare_parallel"), help_of("compare_parallel", flag)
    named = [re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE) for text in (short, full)]
    assert len(named[0]) == 20 and len(short.splitlines()) <= 40 and max(map(len, short.splitlines())) <= 80
    own = {flag.option(name) for name, flag in comparison_flags.FLAGS.items()}
    assert {*named[0]} < {*named[1]} == own | {*map(option, flags_with("shared"))} | {"--debug", "--help", "--help-all"}


# ---- spellings and typing errors


@pytest.mark.parametrize(
    "typed, name, value",
    [
        ("--device cuda", "device", "gpu"),
        ("--device CPU", "device", "cpu"),
        ("--dataset MNIST", "dataset", "mnist"),
        ("--dataset CIFAR-10", "dataset", "cifar10"),
        ("--dataset FashionMNIST", "dataset", "fashion-mnist"),
        ("--dataset folder:My_Images", "dataset", "folder:My_Images"),
        ("--model ResNet18", "model", "resnet18"),
        ("--model My_Net.py:Build", "model", "My_Net.py:Build"),
        ("--num_workers 3", "num_workers", 3),
        ("--batch_size=96", "batch_size", 96),
        ("--no_augment", "augment", False),
    ],
)
def test_other_spellings_are_accepted(typed, name, value, parsed):
    assert getattr(parsed(*typed.split()), name) == value


def test_a_comparison_accepts_other_spellings(type_in):
    flags = "--methods DDP:num_workers=4 Ladder --batch_size 64 128 --dataset MNIST"
    type_in("compare_parallel.py", *flags.split())
    arguments, shared = compare_parallel.parse()
    assert arguments.methods[0] == ("ddp", {"num_workers": 4}) and len(arguments.methods) > 4
    assert arguments.batch_size == [64, 128] and shared[:2] == ["--dataset", "mnist"]


def test_mnist_py_trains_on_mnist_by_default(type_in, monkeypatch, tmp_path):
    configs = []
    monkeypatch.setattr("common.ranks.start.prepare_process", lambda config, *_: configs.append(config))
    monkeypatch.setattr("common.data.image_set.load_image_set", lambda config: exit())
    for flags in ((), ("--dataset", "fashion-mnist")):
        type_in("mnist.py", "--epochs", "3", *flags, "--figure-dir", str(tmp_path))
        with pytest.raises(SystemExit):
            run_in_process(monkeypatch, "mnist.py")
    assert [(config.dataset, config.epochs) for config in configs] == [("mnist", 3), ("fashion-mnist", 3)]


@pytest.mark.parametrize(
    "typed, advice",
    [
        ("--local_rank=0", "torchrun --standalone --nproc_per_node=N"),
        ("--mode DP", "for DP python data_parallel_train.py --use-parallel"),
        ("--world-size 2", "--spawn N"),
        ("--data_dir x", "type --data-root"),
        ("--bath-size=3", "did you mean --batch-size?"),
        ("--optimizer nestorov", "did you mean nesterov?"),
        ("--dataset cifra10", "did you mean cifar10?"),
        ("--pretrained", None),  # its similarity to --train-size is 0.67
        ("--backend", None),  # similar to --bind
        ("--device xpu", None),
    ],
)
def test_unknown_flags_and_names_get_the_right_advice(typed, advice):
    with pytest.raises(SuiteError) as caught:
        script_parser("").parse_args(typed.split())
    message = str(caught.value)
    assert advice is None or advice in message
    assert ("did you mean" in message) == ("did you mean" in (advice or ""))


# ---- the environment


@pytest.mark.parametrize("ranks, program", [("", "python "), ("4", "torchrun --nnodes=2 --nproc_per_node=4 ")])
def test_a_leftover_run_id_alone_does_not_mean_torchrun(ranks, program, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left")
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value) if ranks else monkeypatch.delenv(name, raising=False)
    assert command_line().startswith(program)


def test_a_run_ignores_leftover_variables_and_leaves_no_temporary_files(project, tmp_path):
    (tmp_path / "temporary").mkdir()
    elastic = {"RUN_ID": "left", "ERROR_FILE": "/gone/file", "USE_AGENT_STORE": "True"}
    left = {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    left |= {TURNS: "/gone", "TMPDIR": str(tmp_path / "temporary")}
    done = project("ddp_train.py", "--spawn", 2, "--no-curves", "--figure-dir", tmp_path, environment=left)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "temporary").iterdir()] == []


# ---- output paths


@pytest.mark.parametrize("flag", ["--figure-dir", "--save", "--output", "--checkpoint", "--tensorboard"])
def test_the_error_for_a_path_that_cannot_be_written_names_its_flag(flag, type_in, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.settings.config.check_tensorboard", lambda: None)
    type_in("script.py", flag, f"{tmp_path}/file/below/x")
    with pytest.raises(SuiteError, match=f"{tmp_path / 'file'}.* with {flag}"):
        parse(script_parser(""))


@pytest.mark.parametrize(
    "total, processes, choices", [(48, 5, "45 or 50 or 80"), (1, 2, "2"), (193, 3, "192 or 195 or 384")]
)
def test_the_error_for_an_indivisible_total_suggests_others(total, processes, choices):
    with pytest.raises(SuiteError) as caught:
        per_process("--batch-size", total, processes)
    assert str(caught.value).endswith(f"type e.g. --batch-size {choices}")
