"""A recipe equals its flags, in a script and in a comparison."""

import json
from dataclasses import replace

import pytest

from common.files.probe import Probe
from common.files.reading import as_record
from common.programs import probe
from common.settings.config import DATASETS, option
from common.settings.datasets import RECIPES

BOTH = [(name, dataset) for name in RECIPES for dataset in DATASETS]


@pytest.mark.parametrize("name, dataset", BOTH)
def test_a_recipe_equals_its_flags(name, dataset, parsed):
    assert RECIPES[name].keys() == {*DATASETS}
    values, typed = RECIPES[name][dataset], []
    for field, value in values.items():
        typed += [option(field), value] if not isinstance(value, bool) else [option(field if value else f"no-{field}")]
    config = parsed("--recipe", name, "--dataset", dataset)
    assert {key: getattr(config, key) for key in values} == values
    assert config.num_workers == 0 and config.recipe == name
    assert replace(config, recipe=None) == parsed("--dataset", dataset, *typed)
    assert parsed("--dataset", dataset).lr == 1e-3  # the recipe leaves no trace


TYPED = [
    "--lr 0.001 --optimizer adam --schedule steps",  # the defaults of a run without a recipe
    "--loader workers --precision fp32 --augment --weight-decay 0",
    "--epochs 7 --batch-size 64 --model mlp --label-smoothing 0 --schedule steps --lr-milestones 3 5",
]


@pytest.mark.parametrize("typed", TYPED)
def test_explicit_flags_override_the_recipe(typed, parsed):
    recipe, alone = vars(parsed("--recipe", "fast")), vars(parsed(*typed.split()))
    names = {flag[2:].replace("-", "_") for flag in typed.split() if flag.startswith("--")}
    names |= {"num_workers"} if "loader" in names else set()  # depends on the loader
    expected = {name: (alone if name in names else recipe)[name] for name in recipe}
    for words in (f"--recipe fast {typed}", f"{typed} --recipe fast"):
        config = vars(parsed(*words.split()))
        assert {**config, "lr_milestones": None} == {**expected, "lr_milestones": None}
        assert config["lr_milestones"] == (alone if "epochs" in names else recipe)["lr_milestones"]


@pytest.mark.parametrize("typed", ["", "--dataset mnist", *TYPED])
def test_a_comparison_runs_the_script_with_the_same_settings(typed, parsed, planned):
    flags, workers = f"--recipe fast {typed}", 2 if "--loader" in typed else 0
    (row,) = planned(f"--dry-run --methods single --num-workers {workers} {flags}").plan
    compared, alone = parsed(*row.command[2:]), parsed(*flags.split())
    assert compared.num_workers == workers and compared.threads == 1
    assert replace(compared, num_workers=None, threads=None, device="auto") == replace(alone, num_workers=None)


def test_the_probe_measures_the_recipe(type_in, monkeypatch, capsys):
    measured, asked = Probe(480, 96, 1.5, (), (), ()), []
    type_in("probe", "--recipe", "fast", "--dataset", "mnist", "--num-workers", 0)
    monkeypatch.setattr(probe, "load_image_set", lambda arguments: None)
    monkeypatch.setattr(probe, "measure", lambda arguments, image_set: asked.append(vars(arguments)) or measured)
    probe.main(probe.parse())
    assert as_record(json.loads(capsys.readouterr().out), Probe) == measured
    values = RECIPES["fast"]["mnist"]
    expected = {**values, "model": [values["model"]], "batch_size": [values["batch_size"]]}
    assert {name: asked[0][name] for name in values} == expected
