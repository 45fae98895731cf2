"""Slows a training down in one known place, from outside: Python imports a module of this name as it starts.

    PYTHONPATH=benchmarks/plants PLANT=forward PLANT_SECONDS=0.005 PLANT_RANK=1 python ddp_train.py --spawn 2

A module is changed right after its import, in every process of the run; no file of the project knows of it. Where
steps are slow, PLANT_RANK slows one rank alone, PLANT_EVERY=N one step of every N, PLANT_TURNS=1 one rank after the
other, PLANT_SHARE=0.1 a tenth of the steps, at random, and PLANT_GROWS=1 every step by PLANT_SECONDS more.
"""

import gc
import importlib.abc
import importlib.machinery
import itertools
import os
import random
import sys
import tempfile
import time


def told(name, kind=int):
    """The value of an environment variable of that name behind PLANT_; None where there is none."""
    value = os.environ.get(f"PLANT_{name}")
    return kind(value) if value else None


def seconds_in(step):
    """How long this rank is to be held up in a step. It may have learnt its number only now."""
    rank, every, seconds = int(os.environ.get("RANK", 0)), told("EVERY"), told("SECONDS", float)
    if told("RANK") not in (None, rank) or (every and step % every != every - 1):
        return 0.0
    if told("TURNS") and step % int(os.environ["WORLD_SIZE"]) != rank:
        return 0.0
    if (share := told("SHARE", float)) and random.Random(1000 * step + rank).random() >= share:
        return 0.0
    return seconds * step if told("GROWS") else seconds


def spin(seconds):
    """Compute for nothing: a process that sleeps would give its core away."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def collect(seconds):
    """Let Python look for garbage for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        gc.collect()


def write_to_disk(seconds):
    """Write a file through to the disk until so much time is over."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        with tempfile.TemporaryFile(dir=".") as file:
            file.write(bytes(1 << 18))
            os.fsync(file.fileno())


class SlowBatches:
    """A loader that takes longer for each batch."""

    def __init__(self, loader, hold):
        self.loader, self.hold, self.steps = loader, hold, itertools.count()

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            self.hold(seconds_in(next(self.steps)))
            yield batch


def slow_loaders(training=None, test=None):
    """Hold up the training loader, or the one of the evaluation, before each batch."""

    def change(loaders):
        make = loaders.make_loaders

        def make_slow(*arguments):
            holds = zip(make(*arguments), (training, test), strict=True)
            return tuple(SlowBatches(loader, hold) if hold else loader for loader, hold in holds)

        loaders.make_loaders = make_slow

    return change


def slow_transfer(engine):
    move, steps = engine.to_device, itertools.count()

    def move_slowly(images, device):
        if engine.torch.is_grad_enabled():  # not in evaluation
            spin(seconds_in(next(steps)))
        return move(images, device)

    engine.to_device = move_slowly


def slow_update(hold):
    """Hold up every step of the optimizer."""

    def change(engine):
        build = engine.build_optimizer

        def build_slow(*arguments):
            optimizer, steps = build(*arguments), itertools.count()
            optimizer.register_step_post_hook(lambda *_: hold(seconds_in(next(steps))))
            return optimizer

        engine.build_optimizer = build_slow

    return change


def slow_network(add_hooks):
    """Change every network that is built."""

    def change(build):
        build_model = build.build_model

        def build_slow(*arguments):
            network = build_model(*arguments)
            add_hooks(network, itertools.count())
            return network

        build.build_model = build_slow

    return change


def slow_forward(network, steps):
    network.register_forward_pre_hook(lambda *_: spin(seconds_in(next(steps))) if network.training else None)


def slow_backward(network, steps):
    network.register_full_backward_pre_hook(lambda *_: spin(seconds_in(next(steps))))


def twice_the_images(network, _):
    """The rank trains on every image twice, and the second time for nothing: all else stays as it is."""

    def doubled():
        return network.training and told("RANK") == int(os.environ.get("RANK", 0))

    network.register_forward_pre_hook(lambda _, inputs: (inputs[0].repeat(2, 1, 1, 1),) if doubled() else inputs)
    network.register_forward_hook(lambda *given: given[2][: len(given[2]) // 2] if doubled() else given[2])


def few_threads(engine):
    """Something sets the number of threads to one, after the process has set and reported it."""
    train = engine.train_one_epoch

    def train_alone(*arguments, **values):
        engine.torch.set_num_threads(1)
        return train(*arguments, **values)

    engine.train_one_epoch = train_alone


def rude_workers(loaders):
    """Loader workers do not give way to the training."""
    loaders.NICE = 0


def slow_all_reduce(distributed):
    """The last gradients of a step arrive later, on every rank."""
    dist, wrapper = distributed.dist, distributed.nn.parallel.DistributedDataParallel
    build = wrapper.__init__

    def exchange(_, bucket):
        gradients = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(gradients, async_op=True).get_future().then(lambda future: late(future, bucket))

    def late(future, bucket):
        if bucket.is_last():
            time.sleep(told("SECONDS", float))
        return future.value()[0]

    def build_slow(self, *arguments, **values):
        build(self, *arguments, **values)
        self.register_comm_hook(None, exchange)

    wrapper.__init__ = build_slow


def slow_start(image_set):
    load = image_set.load_image_set

    def load_slowly(*arguments):
        time.sleep(told("SECONDS", float))
        return load(*arguments)

    image_set.load_image_set = load_slowly


# what is planted: (after which import, how)
PLANTS = {
    "loader": ("common.data.loaders", slow_loaders(training=spin)),
    "disk": ("common.data.loaders", slow_loaders(training=write_to_disk)),
    "evaluation": ("common.data.loaders", slow_loaders(test=spin)),
    "transfer": ("common.engine.step", slow_transfer),
    "forward": ("common.models.build", slow_network(slow_forward)),
    "backward": ("common.models.build", slow_network(slow_backward)),
    "update": ("common.engine.step", slow_update(spin)),
    "collector": ("common.engine.step", slow_update(collect)),
    "twice": ("common.models.build", slow_network(twice_the_images)),
    "few-threads": ("common.engine.loop", few_threads),
    "rude-workers": ("common.data.loaders", rude_workers),
    "all-reduce": ("common.ranks.group", slow_all_reduce),
    "start": ("common.data.image_set", slow_start),
}


class Planter(importlib.abc.MetaPathFinder):
    """Finds one module as usual, and changes it once it has been imported."""

    def __init__(self, module, change):
        self.module, self.change = module, change

    def find_spec(self, name, path, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_change
        return spec


if os.environ.get("PLANT") in PLANTS:
    sys.meta_path.insert(0, Planter(*PLANTS[os.environ["PLANT"]]))
