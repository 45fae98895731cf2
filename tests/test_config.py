"""What a flag means is said once, at its field of RunConfig: these tests go through every field."""

import importlib
import re
import shlex
import sys
from dataclasses import fields, replace

import pytest

import compare_parallel
from common import checkpoint
from common.arguments import OneLineParser
from common.config import FLAGS, GROUPS, RunConfig, flags_that, option, parse, script_parser
from common.errors import SuiteError
from comparison.methods import Machine
from comparison.plan import IN_EVERY_METHOD, Planned, make_plan, parse_method

CHANGED = {  # a value that is not the default
    "dataset": "synthetic-mnist", "recipe": "fast", "data_root": "elsewhere", "data_url": "http://x", "train_size": 96,
    "image_size": 32,
    "loader": "resident", "num_workers": 4, "worker_nice": 3, "augment": False, "crop_padding": "reflect",
    "model": "mlp", "precision": "bf16",
    "allow_slow_precision": True, "compile": True, "cuda_graph": True, "optimizer": "sgd", "lr": 0.5,
    "weight_decay": 0.25, "schedule": "one-cycle", "lr_milestones": (3,), "label_smoothing": 0.125, "epochs": 7,
    "target_accuracy": 0.75, "batch_size": 64, "max_steps": 9, "device": "cpu", "eval_mode": True, "seed": 5,
    "threads": 3, "memory_limit": 2**31, "bind": True, "profile": 2,
    "output": "o.json", "curves": False, "figure_dir": "f", "tensorboard": "t", "save": "s",
    "checkpoint": "c", "resume": "c", "quiet": True, "debug": True,
}


def typed(name: str) -> list[str]:
    value = CHANGED[name]
    if isinstance(value, bool):
        return [option(name) if value else "--no-" + option(name).removeprefix("--")]
    return [option(name), *map(str, value if isinstance(value, tuple) else [value])]


def test_every_field_is_a_flag_and_every_flag_a_field():
    assert set(CHANGED) == {field.name for field in fields(RunConfig)} == set(FLAGS)
    assert all(CHANGED[name] != getattr(RunConfig(), name) for name in FLAGS)


@pytest.mark.parametrize("name", FLAGS)
def test_a_script_takes_every_flag(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = ["--dataset", "folder:x"] if name == "image_size" else []
    monkeypatch.setattr("sys.argv", ["x.py", *typed(name), *folder])
    config, _ = parse(script_parser(""))
    assert getattr(config, name) == CHANGED[name]
    assert option(name) in script_parser("").format_help()


@pytest.mark.parametrize("name", flags_that("shared"))
def test_what_the_comparison_shares_reaches_every_row(name, monkeypatch):
    folder = ["--dataset", "folder:x"] if name == "image_size" else []
    monkeypatch.setattr("sys.argv", ["compare_parallel.py", *typed(name), *folder])
    arguments, shared = compare_parallel.parse()
    if name == "device":  # as the machine has it
        return
    for row in make_plan(arguments, Machine(0, 4), shared):
        assert shlex.join(typed(name)) in shlex.join(row.command)


@pytest.mark.parametrize("name", flags_that("own"))
def test_what_one_row_may_have_of_its_own_reaches_that_row(name, monkeypatch):
    value = CHANGED[name]
    flag = option(name).removeprefix("--") + ("" if value is True else f"={value}")
    monkeypatch.setattr("sys.argv", ["compare_parallel.py", "--methods", "single", f"single:{flag}"])
    arguments, shared = compare_parallel.parse()
    usual, own = make_plan(arguments, Machine(0, 8), shared)
    assert shlex.join(typed(name)) in shlex.join(own.command) and name.replace("_", " ") in own.label
    assert usual.planned != own.planned and own.name == f"single-{name}={value}"


def test_a_switch_takes_no_value(project):
    with pytest.raises(Exception, match="a switch takes no value, found 'yes'"):
        parse_method("single:compile=yes")


@pytest.mark.parametrize("name", FLAGS)
def test_a_checkpoint_belongs_to_what_decides(name):
    before, now = RunConfig(), replace(RunConfig(), **{name: CHANGED[name]})
    decisive = (checkpoint._decisive(config, compare_parallel.argparse.Namespace()) for config in (before, now))
    same = next(decisive) == next(decisive)
    assert same != FLAGS[name].decides


def test_traits_go_together():
    assert {"precision", "compile", "cuda_graph"} < {*flags_that("own")}
    assert len(flags_that("decides")) == 20 and not {"epochs", "threads", "num_workers"} & {*flags_that("decides")}
    assert set(flags_that("decides")) - set(flags_that("equal")) == {"batch_size"}  # equal as the global batch
    assert {*flags_that("several")} == {*IN_EVERY_METHOD} < {field.name for field in fields(Planned)}
    assert {*flags_that("own")} < {field.name for field in fields(Planned)}
    assert not set(flags_that("by_rank")) & {*flags_that("decides"), *flags_that("equal")}


# ---- help


@pytest.mark.parametrize("script", [*(f"{method}_train" for method in (
    "data_parallel", "ddp", "fsdp", "model_parallel", "pipeline")), "compare_parallel"])
def test_help_has_groups_and_examples_in_80_columns(script, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    module = importlib.import_module(script)
    with pytest.raises(SystemExit):
        module.main()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    headings = re.findall(r"^([a-z].*):$", text, re.MULTILINE)
    assert headings[:4] == ["options", *GROUPS.values()][:4] and len(headings) >= 5
    example = re.search(r"^    (.*\b" + script + r"\.py.*(\n        .*)*)", text, re.MULTILINE)[1]
    assert shlex.split(example.replace("\\\n", "")) and "\n" not in shlex.split(example.replace("\\\n", ""))


def test_a_long_command_in_a_help_can_be_pasted(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    command = "python some_script.py --first-flag 1 --second-flag 2 --third-flag 3"
    text = OneLineParser(prog="some_script.py", description=f"What it does.\n\n    {command}\n").format_help()
    lines = text.partition("\n    ")[2].partition("\n\n")[0]
    assert lines.count("\\\n") >= 1 and shlex.split(lines.replace("\\\n", "")) == shlex.split(command)


def test_a_flag_that_is_not_known_gets_the_nearest():
    parser = script_parser("")
    with pytest.raises(SuiteError, match=r"unrecognized arguments: --bath-size=3, did you mean --batch-size\?; see"):
        parser.parse_args(["--bath-size=3"])
    with pytest.raises(SuiteError, match="unrecognized arguments: --xyzzy; see"):
        parser.parse_args(["--xyzzy"])
