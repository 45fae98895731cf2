"""A recipe is what its flags are when typed, in a script and in a comparison."""

import json
import shlex
import sys
from dataclasses import asdict, fields, replace

import pytest

import compare_parallel
from common.files.probe import Probe
from common.files.reading import as_record
from common.programs import probe
from common.settings.config import DATASETS, RunConfig
from common.settings.datasets import RECIPES
from comparison.methods import Machine
from comparison.run.forecast import print_commands


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


TYPED = [
    ("--lr", 0.001, "--optimizer", "adam", "--schedule", "steps"),  # the defaults of a run without a recipe
    ("--loader", "workers", "--precision", "fp32", "--augment", "--weight-decay", 0.0),
    ("--epochs", 7, "--batch-size", 64, "--model", "mlp", "--label-smoothing", 0.0, "--lr-milestones", 3, 5),
]


@pytest.mark.parametrize("typed", TYPED, ids=str)
def test_a_typed_flag_wins_over_the_recipe(typed, parsed):
    recipe, alone = asdict(parsed("--recipe", "fast")), asdict(parsed(*typed))
    names = {flag[2:].replace("-", "_") for flag in map(str, typed) if flag.startswith("--")}
    names |= {"num_workers"} if "--loader" in typed else set()  # which follow from the loader
    for config in (asdict(parsed("--recipe", "fast", *typed)), asdict(parsed(*typed, "--recipe", "fast"))):
        assert {name: config[name] for name in names} == {name: alone[name] for name in names}
        late = {"lr_milestones"} if "--epochs" in typed else set()
        assert {name: config[name] for name in config.keys() - names - late} == {
            name: recipe[name] for name in config.keys() - names - late
        }


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plan a comparison on a machine without GPUs and with two cores; return its Report."""
    monkeypatch.setattr(compare_parallel, "find_machine", lambda arguments, directory: (Machine(0, 2), {}))

    def planned(*flags):
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--dry-run", *map(str, flags)])
        return compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)[0]

    return planned


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_comparison_hands_the_recipe_to_every_run(dataset, planned, capsys):
    values = RECIPES["fast"][dataset]
    print_commands(planned("--recipe", "fast", "--dataset", dataset))
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(commands) == 8  # with the baseline's twin
    for command in commands:
        given = {flag: command[index + 1] for index, flag in enumerate(command[:-1]) if flag.startswith("--")}
        expected = {
            "--recipe": "fast",
            "--dataset": dataset,
            "--model": values["model"],
            "--epochs": str(values["epochs"]),
            "--batch-size": str(values["batch_size"]),
            "--num-workers": "0",
        }
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
    measured = Probe(480, 96, 1.5, (), (), ())
    monkeypatch.setattr(sys, "argv", ["probe", "--recipe", "fast", "--dataset", "mnist", "--num-workers", "0"])
    monkeypatch.setattr(probe, "load_image_set", lambda arguments: None)
    asked = []
    monkeypatch.setattr(probe, "measure", lambda arguments, image_set: asked.append(arguments) or measured)
    probe.main()
    assert as_record(json.loads(capsys.readouterr().out), Probe) == measured
    values = RECIPES["fast"]["mnist"]
    assert {name: getattr(asked[0], name) for name in values} == {
        **values,
        "model": [values["model"]],
        "batch_size": [values["batch_size"]],
    }
