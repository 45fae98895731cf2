"""Tests of benchmarks/planted_causes.py, and that each plant slows a training down where and as much as it should."""

import importlib.util
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import planted_causes
import pytest
import torch
import torch.distributed as dist
from planted_causes import PLANTS, Trial
from torch import nn

from common.engine.step import LastGradient
from comparison.judge.statistics import Excess
from comparison.judge.steps import step_time
from comparison.judge.summaries import Finding
from comparison.run.turns import take_turns
from tests.fixtures import PROJECT

SECONDS = 0.02


@pytest.fixture
def plants(monkeypatch):
    """benchmarks/plants/sitecustomize.py, imported with nothing to plant."""
    monkeypatch.delenv("PLANT", raising=False)
    monkeypatch.setenv("PLANT_SECONDS", str(SECONDS))
    file = PROJECT / "benchmarks" / "plants" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("plants", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def delays(plants, monkeypatch):
    """The seconds of every delay by the plants. None of them takes any time."""
    delays = []
    monkeypatch.setattr(plants, "spin", delays.append)
    monkeypatch.setattr(plants.time, "sleep", delays.append)
    return delays


@pytest.mark.parametrize(
    "how, rank, delays",
    [
        ({}, 0, [1, 1, 1, 1]),
        ({"RANK": "1"}, 0, [0, 0, 0, 0]),
        ({"RANK": "1"}, 1, [1, 1, 1, 1]),
        ({"EVERY": "2"}, 1, [0, 1, 0, 1]),
        ({"TURNS": "1"}, 0, [1, 0, 1, 0]),
        ({"TURNS": "1"}, 1, [0, 1, 0, 1]),
        ({"GROWS": "1"}, 0, [0, 1, 2, 3]),
    ],
)
def test_delayed_steps_of_each_rank(plants, monkeypatch, how, rank, delays):
    for name, value in {"RANK": str(rank), "WORLD_SIZE": "2", **{f"PLANT_{key}": how[key] for key in how}}.items():
        monkeypatch.setenv(name, value)
    assert [plants.seconds_in(step) for step in range(4)] == [SECONDS * times for times in delays]


def test_random_steps_are_delayed_on_each_rank(plants, monkeypatch):
    monkeypatch.setenv("PLANT_SHARE", "0.1")
    delayed = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        delayed.append({step for step in range(1000) if plants.seconds_in(step)})
    assert all(70 < len(steps) < 130 for steps in delayed) and len(delayed[0] & delayed[1]) < 30
    timed = range(planted_causes.EPOCH_STEPS, planted_causes.EPOCHS * planted_causes.EPOCH_STEPS)
    assert planted_causes.delayed_share(0.1) == len(delayed[0] & {*timed}) / len(timed)


@pytest.mark.parametrize("delay", ["spin", "collect", "write_to_disk"])
def test_a_delay_lasts_as_long_as_requested(plants, delay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()
    getattr(plants, delay)(SECONDS)
    assert time.perf_counter() - start >= SECONDS and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind, number", [("training", 2), ("test", 1)])
def test_each_batch_of_a_loader_is_delayed(kind, number, plants, delays):
    loaders = SimpleNamespace(make_loaders=lambda *_: (["a", "b"], ["c"]))
    plants.slow_loaders(**{kind: plants.spin})(loaders)
    made = loaders.make_loaders("images", "config")
    assert [*map(list, made)] == [["a", "b"], ["c"]] and [*map(len, made)] == [2, 1]
    assert delays == [SECONDS] * number


def test_transfers_updates_and_starts_are_delayed(plants, delays):
    module = SimpleNamespace(torch=torch, to_device=lambda *given: given, load_image_set=lambda config: config)
    module.build_optimizer = lambda parameters, config: torch.optim.SGD(parameters, 0.1)
    for change in (plants.slow_transfer, plants.slow_update(plants.spin), plants.slow_start):
        change(module)
    with torch.no_grad():  # in evaluation, transfers are not delayed
        assert module.to_device("images", "cpu") == ("images", "cpu") and delays == []
    assert module.to_device("images", "cpu") == ("images", "cpu") and delays == [SECONDS]
    module.build_optimizer([nn.Parameter(torch.ones(1))], None).step()
    assert module.load_image_set("config") == "config" and delays == [SECONDS] * 3


def planted(plants, how):
    """Return a network built with a plant."""
    build = SimpleNamespace(build_model=lambda config, images: nn.Linear(3, 2))
    plants.slow_network(getattr(plants, how))(build)
    return build.build_model(None, None)


@pytest.mark.parametrize("how, delays_in_forward", [("slow_forward", 1), ("slow_backward", 0)])
def test_passes_are_slow_only_in_training(how, delays_in_forward, plants, delays):
    network = planted(plants, how)
    outputs = network(torch.ones(4, 3))
    assert len(delays) == delays_in_forward
    outputs.sum().backward()
    assert delays == [SECONDS]
    network.eval()(torch.ones(4, 3))
    assert delays == [SECONDS]


def test_a_rank_computes_twice_the_images_and_learns_the_same(plants, monkeypatch):
    monkeypatch.setenv("PLANT_RANK", "1")
    seen = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        torch.manual_seed(0)
        network = planted(plants, "twice_the_images")
        network.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
        outputs = network(torch.ones(4, 1, 1, 3))
        outputs.sum().backward()
        seen.append((outputs.shape, network.weight.grad.tolist()))
        network.eval()(torch.ones(4, 1, 1, 3))
    learnt = (torch.Size([4, 1, 1, 2]), [[4.0] * 3] * 2)
    assert seen == [4, learnt, 4, 8, learnt, 4]


def test_training_uses_one_thread(plants):
    threads = []
    engine = SimpleNamespace(torch=SimpleNamespace(set_num_threads=threads.append), train_one_epoch=sum)
    plants.few_threads(engine)
    assert engine.train_one_epoch([2, 3], start=1) == 6 and threads == [1]


@pytest.fixture
def wrapper(monkeypatch, tmp_path):
    """A subclass of DistributedDataParallel to patch, in a group of one rank."""

    class Wrapper(nn.parallel.DistributedDataParallel):
        pass

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield SimpleNamespace(dist=dist, nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=Wrapper)))
    dist.destroy_process_group()


def test_the_exchange_is_slow_after_the_last_gradient_and_still_correct(plants, wrapper):
    plants.slow_all_reduce(wrapper)
    model = nn.Linear(3, 2)
    parallel, last_gradient, marks = wrapper.nn.parallel.DistributedDataParallel(model), LastGradient(model), []
    for _ in range(2):
        last_gradient.will_mark(lambda _: marks.append(time.perf_counter()), "backward")
        model.zero_grad()
        parallel(torch.ones(4, 3)).sum().backward()
    assert time.perf_counter() - marks[-1] >= SECONDS
    assert model.weight.grad.tolist() == [[4.0] * 3] * 2


def test_a_module_is_patched_after_its_import(plants):
    sys.meta_path.insert(0, plants.Planter("colorsys", lambda module: setattr(module, "planted", True)))
    sys.modules.pop("colorsys", None)
    import colorsys

    assert colorsys.planted and colorsys.rgb_to_yiq
    del sys.modules["colorsys"]


def run_once(name, row, tmp_path):
    """Run the planted row (1) or the plain row (0) of a plant once."""
    (outcome,) = take_turns([planted_causes.run_of(PLANTS[name], PLANTS[name].rows[row], 1, tmp_path)], 1)
    return outcome


@pytest.mark.slow
def test_a_slow_row_and_a_foreign_program_are_measured(tmp_path):
    """The benchmark itself tries the other plants."""
    plain, slow = (step_time(run_once("slow loader", row, tmp_path).result).parts["data"] for row in (0, 1))
    assert plain < PLANTS["slow loader"].size < slow
    assert run_once("foreign program", 1, tmp_path).foreign_cores > 0.4


def trial(plant, *named, planted=None, found=None):
    return Trial(plant, 1, named, planted, found, found, found)


def test_scores():
    trials = [
        trial("nothing"),
        trial("nothing, two ranks", "forward"),
        trial("slow loader", planted=4.0),
        trial("straggler", "forward of rank 1", "late ranks, some steps", "update", planted=6.0, found=6.8),
        trial("slow update", "data", "update", planted=4.0, found=4.7),
        trial("slow transfer", "transfer", planted=4.0, found=3.5),
    ]
    assert [each.right for each in trials] == [True, False, False, True, False, True]
    assert [each.wrong for each in trials] == [[], ["forward"], [], ["update"], ["data"], []]
    counted = {"trials": 6, "planted": 4, "first": 2, "named": 7, "wrong": 3}
    assert planted_causes.scores(trials) == {**counted, "sizes": 4, "sizes_right": 2}


def test_names_of_causes():
    more = Excess("forward", 6.0, 5.0, 7.0)
    forward, steps = Finding("forward"), {"share": 0.5, "milliseconds": 6.0, "period": 2}
    regular, some = (Finding(kind, {"place": forward, **steps}) for kind in ("regular steps", "some steps"))
    late = Finding("late ranks", {"ranks": (Finding("late rank", {"n": 0, "place": regular, "x": 3.0}),)})
    for kind, place, name in (
        ("forward", forward, "forward"),
        ("forward", regular, "forward, 1 step of 2"),
        ("straggler", Finding("of a rank", {"n": 1, "place": some}), "forward of rank 1, some steps"),
        ("late ranks", late, "late ranks, 1 step of 2"),
    ):
        assert planted_causes.named(Finding(kind, {"x": more, "place": place}, "step")) == name
        less = {"x": replace(more, value=-6.0), "place": place}
        assert planted_causes.named(Finding(kind, less, "step")) == ""
    assert planted_causes.named(Finding("straggler", {"x": more, "place": forward, "n": 1})) == "forward of rank 1"
    assert planted_causes.named(Finding("noise")) == "" and planted_causes.named(Finding("throttled")) == "throttled"
