"""What the benchmark of planted causes plants does slow a training down, where it says and by what it says."""

import importlib.util
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from common.engine.step import LastGradient
from comparison.judge.steps import cores_computing, find_straggler, queued_share, rank_means, step_time
from tests.fixtures import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))

import planted_causes
from planted_causes import PLANTS, Trial

SECONDS = 0.02


@pytest.fixture
def plants(monkeypatch):
    """The module that plants, as Python would import it at its start, with nothing to plant."""
    monkeypatch.delenv("PLANT", raising=False)
    file = PROJECT / "benchmarks" / "plants" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("plants", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SECONDS = SECONDS
    return module


def seconds_of(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def test_loaders_transfers_and_starts_are_slow(plants):
    for plant, slow, quick in ((plants.slow_loader, 0, 1), (plants.slow_evaluation, 1, 0)):
        loaders = SimpleNamespace(make_loaders=lambda *_: (["a", "b"], ["c"]))
        plant(loaders)
        made = loaders.make_loaders("images", "config")
        assert [*made[0]] == ["a", "b"] and [*made[1]] == ["c"] and list(map(len, made)) == [2, 1]
        assert seconds_of(list, made[slow]) >= (2, 1)[slow] * SECONDS and made[quick] in (["a", "b"], ["c"])
    engine = SimpleNamespace(torch=torch, to_device=lambda images, device: (images, device))
    plants.slow_transfer(engine)
    assert seconds_of(engine.to_device, "images", "cpu") >= SECONDS
    with torch.no_grad():  # in training alone
        assert engine.to_device("images", "cpu") == ("images", "cpu")
        assert seconds_of(engine.to_device, "images", "cpu") < SECONDS
    image_set = SimpleNamespace(load_image_set=lambda config: config)
    plants.slow_start(image_set)
    assert seconds_of(image_set.load_image_set, "config") >= SECONDS and image_set.load_image_set("config") == "config"


@pytest.mark.parametrize("name, steps", [("slow_update", (1, 1, 1)), ("growing", (0, 1, 2))])
def test_updates_are_slow_and_slower(plants, monkeypatch, name, steps):
    asked = []
    monkeypatch.setattr(plants, "spin", asked.append)
    engine = SimpleNamespace(build_optimizer=lambda parameters, config: torch.optim.SGD(parameters, 0.1))
    getattr(plants, name)(engine)
    optimizer = engine.build_optimizer([nn.Parameter(torch.ones(1))], None)
    for _ in steps:
        optimizer.step()
    assert asked == [SECONDS * step for step in steps]


def test_threads_are_few_while_it_trains(plants):
    threads = []
    engine = SimpleNamespace(torch=SimpleNamespace(set_num_threads=threads.append), train_one_epoch=sum)
    plants.few_threads(engine)
    assert engine.train_one_epoch([2, 3], start=1) == 6 and threads == [1]


@pytest.fixture
def wrapper(monkeypatch, tmp_path):
    """A DistributedDataParallel to change, in a group of one rank."""

    class Wrapper(nn.parallel.DistributedDataParallel):
        pass

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield SimpleNamespace(dist=dist, nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=Wrapper)))
    dist.destroy_process_group()


def test_the_exchange_is_slow_after_the_last_gradient_and_its_mean_is_right(plants, wrapper):
    plants.slow_all_reduce(wrapper)
    model = nn.Linear(3, 2)
    parallel, last_gradient, marks = wrapper.nn.parallel.DistributedDataParallel(model), LastGradient(model), []
    for _ in range(2):
        last_gradient.will_mark(lambda _: marks.append(time.perf_counter()), "backward")
        model.zero_grad()
        parallel(torch.ones(4, 3)).sum().backward()
    assert time.perf_counter() - marks[-1] >= SECONDS
    assert model.weight.grad.tolist() == [[4.0] * 3] * 2


def test_one_rank_straggles(plants, wrapper, monkeypatch):
    plants.straggler(wrapper)
    parallel = wrapper.nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    asked = []
    monkeypatch.setattr(plants, "spin", asked.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        parallel(torch.ones(4, 3))
    assert asked == [SECONDS]


def test_a_module_is_changed_once_it_is_imported(plants):
    sys.meta_path.insert(0, plants.Planter("colorsys", lambda module: setattr(module, "planted", True)))
    sys.modules.pop("colorsys", None)
    import colorsys

    assert colorsys.planted and colorsys.rgb_to_yiq
    del sys.modules["colorsys"]


def run_once(name, tmp_path, planted=True):
    """The outcome of one run of one of a plant's two rows."""
    return planted_causes.run_planted(PLANTS[name], PLANTS[name].rows[planted], 1, 1, tmp_path)


@pytest.mark.slow
def test_the_planted_row_of_two_is_slow(tmp_path):
    slow, plain = (step_time(run_once("slow loader", tmp_path, planted).result) for planted in (True, False))
    assert plain.parts["data"] < PLANTS["slow loader"].size < slow.parts["data"]


@pytest.mark.slow
def test_what_is_planted_in_ranks_threads_and_workers(tmp_path):
    """For how long threads wait for a core depends on the machine."""
    straggler = find_straggler([rank_means(run_once("straggler", tmp_path).result)])
    assert (straggler.rank, straggler.phase) == (1, "forward")
    assert straggler.longer.value > 0.1 * PLANTS["straggler"].size  # other tests train on the same cores
    limited = run_once("too few threads", tmp_path).result
    assert limited.threads_per_process == 2 and cores_computing([rank_means(limited)]).value < 1.2
    assert run_once("foreign load", tmp_path).foreign_cores > 0.4
    for name in ("ranks on one core", "too many workers"):
        result = run_once(name, tmp_path).result
        assert queued_share([rank_means(result)], result.threads_per_process).value > 0.1


def trial(plant, *named, planted=None, interval=(None, None)):
    return Trial(plant, 1, named, planted, None, *interval)


def test_scores_count_what_was_planted_and_what_was_named():
    trials = [
        trial("nothing"),
        trial("nothing, two ranks", "forward"),
        trial("slow loader"),
        trial("straggler", "forward", "straggler", "update", planted=6.0, interval=(5.0, 7.0)),
        trial("slow update", "update", planted=4.0, interval=(4.1, 5.0)),
        trial("slow transfer", "transfer", planted=4.0, interval=(4.3, 5.0)),
    ]
    counted = {"trials": 6, "planted": 4, "planted_named": 3, "named": 6, "named_rightly": 4}
    assert planted_causes.scores(trials) == {**counted, "sizes": 3, "sizes_right": 2}
    assert [each.right for each in trials] == [True, False, False, True, True, True]
