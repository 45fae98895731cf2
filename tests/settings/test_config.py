"""What a flag means is said once, at its field of RunConfig: these tests go through every field."""

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
from common.machine.turns import TURNS, Turns
from common.settings.arguments import ELSEWHERE
from common.settings.config import FLAGS, GROUPS, RunConfig, flags_that, option, parse, script_parser
from comparison.methods import Machine
from comparison.plan import flags as comparison_flags
from comparison.plan.plan import make_plan
from comparison.rows import IN_EVERY_METHOD, Planned
from tests.fixtures import start_here

SWITCHES = "allow_slow_precision compile cuda_graph recompute eval_mode bind quiet debug"
CHANGED = (  # a value that is not the default
    dict.fromkeys(SWITCHES.split(), True)
    | {"augment": False, "curves": False, "lr_milestones": (3,), "memory_limit": 2**31}
    | {"dataset": "synthetic-mnist", "recipe": "fast", "data_root": "elsewhere", "data_url": "http://x"}
    | {"loader": "resident", "crop_padding": "reflect", "model": "mlp", "precision": "bf16", "optimizer": "sgd"}
    | {"schedule": "one-cycle", "device": "cpu", "output": "o.json", "figure_dir": "f", "tensorboard": "t"}
    | {"save": "s", "checkpoint": "c", "resume": "c", "train_size": 96, "image_size": 32, "num_workers": 4}
    | {"lr": 0.5, "weight_decay": 0.25, "label_smoothing": 0.125, "epochs": 7, "seed": 5}
    | {"target_accuracy": 0.75, "batch_size": 64, "max_steps": 9, "threads": 3, "profile": 2}
    | {"accumulate": 4, "lr_scaling": "sqrt"}
)
SCRIPTS = "data_parallel_train ddp_train fsdp_train model_parallel_train pipeline_train compare_parallel".split()


def typed(name: str) -> list[str]:
    value = CHANGED[name]
    if isinstance(value, bool):
        return [option(name) if value else "--no-" + option(name).removeprefix("--")]
    return [option(name), *map(str, value if isinstance(value, tuple) else [value])]


def test_every_field_is_a_flag_and_every_flag_a_field():
    assert set(CHANGED) == {field.name for field in fields(RunConfig)} == set(FLAGS)
    assert all(CHANGED[name] != getattr(RunConfig(), name) for name in FLAGS)


def with_folder(name):
    """What sets a flag; --image-size goes with a folder alone."""
    return [*typed(name), *(["--dataset", "folder:x"] if name == "image_size" else [])]


def test_a_script_takes_every_flag(type_in, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in FLAGS:
        type_in("x.py", *with_folder(name))
        assert getattr(parse(script_parser(""))[0], name) == CHANGED[name]


def test_what_the_comparison_shares_reaches_every_row(type_in):
    for name in {*flags_that("shared")} - {"device"}:  # that is as the machine has it
        type_in("compare_parallel.py", *with_folder(name))
        arguments, shared = compare_parallel.parse()
        for row in make_plan(arguments, Machine(0, 4), shared):
            assert shlex.join(typed(name)) in shlex.join(row.command)


@pytest.mark.parametrize("name", flags_that("own"))
def test_what_one_row_may_have_of_its_own_reaches_that_row(name, type_in):
    value = CHANGED[name]
    flag = option(name).removeprefix("--") + ("" if value is True else f"={value}")
    type_in("compare_parallel.py", "--methods", "single", f"single:{flag}")
    arguments, shared = compare_parallel.parse()
    usual, own = make_plan(arguments, Machine(0, 8), shared)
    assert shlex.join(typed(name)) in shlex.join(own.command) and name.replace("_", " ") in own.label
    assert usual.planned != own.planned and own.name == f"single-{name}={value}"


def test_a_checkpoint_belongs_to_what_decides():
    def decisive(**values):
        return checkpoint._decisive(RunConfig(**values), Namespace())

    assert {name for name in FLAGS if decisive(**{name: CHANGED[name]}) != decisive()} == {*flags_that("decides")}


def test_traits_go_together():
    assert {"precision", "compile", "cuda_graph"} < {*flags_that("own")}
    assert len(flags_that("decides")) == 23 and not {"epochs", "threads", "num_workers"} & {*flags_that("decides")}
    same = {"accumulate", "recompute"}  # other ways to the same gradients
    assert {*flags_that("decides")} - {*flags_that("equal")} == {"batch_size", *same}  # equal as the global batch
    assert {*flags_that("several")} == {*IN_EVERY_METHOD} < {field.name for field in fields(Planned)}
    assert {*flags_that("own")} < {field.name for field in fields(Planned)}
    assert not set(flags_that("by_rank")) & {*flags_that("decides"), *flags_that("equal")}


# ---- help


@pytest.fixture
def help_of(monkeypatch, capsys):
    """What a script of this name prints of its flags, on a terminal of 80 columns."""

    def help_of(script, flag="--help"):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", [f"{script}.py", flag])
        with pytest.raises(SystemExit):
            compare_parallel.main() if script == "compare_parallel" else start_here(monkeypatch, f"{script}.py")
        return capsys.readouterr().out

    return help_of


def test_help_has_groups_and_examples_in_80_columns_and_every_flag_to_type_instead_is_one(help_of):
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
    instead = {flag for advice in ELSEWHERE.values() for flag in re.findall(r"--[a-z-]+(?![a-z_-])", advice)}
    assert instead - {"--standalone"} <= known and {"--use-parallel", "--spawn"} < instead


@pytest.mark.parametrize("spelled", ["--help-all", "--help_all"])
def test_a_comparison_shows_the_flags_that_most_need_and_all_where_that_is_asked(spelled, help_of):
    most, every = help_of("compare_parallel"), help_of("compare_parallel", spelled)
    named = [re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE) for text in (most, every)]
    assert len(named[0]) == 20 and len(most.splitlines()) <= 40 and max(map(len, most.splitlines())) <= 80
    own = {flag.option(name) for name, flag in comparison_flags.FLAGS.items()}
    assert {*named[0]} < {*named[1]} == own | {*map(option, flags_that("shared"))} | {"--debug", "--help", "--help-all"}


# ---- what other scripts call it


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
def test_other_spellings_are_understood(typed, name, value, parsed):
    assert getattr(parsed(*typed.split()), name) == value


def test_a_comparison_understands_them_too(type_in):
    flags = "--methods DDP:num_workers=4 Ladder --batch_size 64 128 --dataset MNIST"
    type_in("compare_parallel.py", *flags.split())
    arguments, shared = compare_parallel.parse()
    assert arguments.methods[0] == ("ddp", {"num_workers": 4}) and len(arguments.methods) > 4
    assert arguments.batch_size == [64, 128] and shared[:2] == ["--dataset", "mnist"]


def test_mnist_py_trains_on_mnist_unless_told_otherwise(type_in, monkeypatch, tmp_path):
    configs = []
    monkeypatch.setattr("common.ranks.start.prepare_process", lambda config, *_: configs.append(config))
    monkeypatch.setattr("common.data.image_set.load_image_set", lambda config: exit())
    for flags in ((), ("--dataset", "fashion-mnist")):
        type_in("mnist.py", "--epochs", "3", *flags, "--figure-dir", str(tmp_path))
        with pytest.raises(SystemExit):
            start_here(monkeypatch, "mnist.py")
    assert [(config.dataset, config.epochs) for config in configs] == [("mnist", 3), ("fashion-mnist", 3)]


@pytest.mark.parametrize(
    "typed, replacement",
    [
        ("--local_rank=0", "torchrun --standalone --nproc_per_node=N"),
        ("--mode DP", "for DP python data_parallel_train.py --use-parallel"),
        ("--world-size 2", "--spawn N"),
        ("--data_dir x", "type --data-root"),
    ],
)
def test_what_another_script_calls_it_is_refused_with_what_to_type(typed, replacement):
    with pytest.raises(SuiteError, match=re.escape(f"unrecognized arguments: {typed.partition('_')[0]}")) as caught:
        script_parser("").parse_args(typed.split())
    assert replacement in str(caught.value) and "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "typed, near",
    [
        ("--bath-size=3", "--batch-size"),
        ("--pretrained", None),  # two thirds of --train-size
        ("--backend", None),  # of --bind
        ("--device xpu", None),
        ("--optimizer nestorov", "nesterov"),
        ("--dataset cifra10", "cifar10"),
    ],
)
def test_what_is_not_known_gets_the_nearest_if_that_is_near(typed, near):
    with pytest.raises(SuiteError) as caught:
        script_parser("").parse_args(typed.split())
    assert re.findall(r"did you mean (\S+)\?", str(caught.value)) == ([near] if near else [])


# ---- what others left, and what cannot be written


def test_turns_that_nobody_gives_are_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv(TURNS, str(tmp_path / "gone"))
    turns = Turns(0, 1)
    turns.wait()
    assert turns.waited_seconds == 0


@pytest.mark.parametrize("ranks, program", [("", "python "), ("4", "torchrun --nnodes=2 --nproc_per_node=4 ")])
def test_a_run_id_that_is_left_over_is_no_torchrun(ranks, program, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left")
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value) if ranks else monkeypatch.delenv(name, raising=False)
    assert command_line().startswith(program)


def test_a_run_leaves_nothing_and_does_not_mind_what_others_left(project, tmp_path):
    (tmp_path / "temporary").mkdir()
    elastic = {"RUN_ID": "left", "ERROR_FILE": "/gone/file", "USE_AGENT_STORE": "True"}
    left = {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    left |= {TURNS: "/gone", "TMPDIR": str(tmp_path / "temporary")}
    done = project("ddp_train.py", "--spawn", 2, "--no-curves", "--figure-dir", tmp_path, environment=left)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize("flag", ["--figure-dir", "--save", "--output", "--checkpoint", "--tensorboard"])
def test_a_path_that_cannot_be_written_is_refused_by_its_flag(flag, type_in, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.settings.config.check_tensorboard", lambda: None)
    type_in("script.py", flag, f"{tmp_path}/file/below/x")
    with pytest.raises(SuiteError, match=f"{tmp_path / 'file'}.* with {flag}"):
        parse(script_parser(""))
    type_in("script.py", "--save", str(tmp_path))
    with pytest.raises(SuiteError, match="it is a directory; name a file instead with --save"):
        parse(script_parser(""))
