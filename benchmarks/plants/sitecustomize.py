"""Slows a training down in one known place, from outside: Python imports a module of this name as it starts.

    PYTHONPATH=benchmarks/plants PLANT=slow-loader SECONDS=0.005 python data_parallel_train.py --dataset mnist

A module is changed right after its import, in every process of the run; no file of the project knows of it.
"""

import importlib.abc
import importlib.machinery
import itertools
import os
import sys
import time

SECONDS = float(os.environ.get("SECONDS", 0))


def spin(seconds):
    """Compute for nothing: a process that sleeps would give its core away."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class SlowBatches:
    """A loader that takes longer for each batch."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            spin(SECONDS)
            yield batch


def slow_loader(loaders):
    make = loaders.make_loaders

    def make_slow(*arguments):
        train_loader, test_loader = make(*arguments)
        return SlowBatches(train_loader), test_loader

    loaders.make_loaders = make_slow


def slow_evaluation(loaders):
    make = loaders.make_loaders

    def make_slow(*arguments):
        train_loader, test_loader = make(*arguments)
        return train_loader, SlowBatches(test_loader)

    loaders.make_loaders = make_slow


def slow_transfer(engine):
    move = engine.to_device

    def move_slowly(images, device):
        if engine.torch.is_grad_enabled():  # not in evaluation
            spin(SECONDS)
        return move(images, device)

    engine.to_device = move_slowly


def slow_update(engine):
    _after_every_step(engine, lambda step: SECONDS)


def growing(engine):
    """Every update takes SECONDS longer than the one before."""
    _after_every_step(engine, lambda step: SECONDS * step)


def _after_every_step(engine, seconds):
    build = engine.build_optimizer

    def build_slow(*arguments):
        optimizer, steps = build(*arguments), iter(range(10**9))
        optimizer.register_step_post_hook(lambda *_: spin(seconds(next(steps))))
        return optimizer

    engine.build_optimizer = build_slow


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
            time.sleep(SECONDS)
        return future.value()[0]

    def build_slow(self, *arguments, **values):
        build(self, *arguments, **values)
        self.register_comm_hook(None, exchange)

    wrapper.__init__ = build_slow


def straggler(distributed):
    """Rank 1 has more to do in the forward pass."""
    wrapper = distributed.nn.parallel.DistributedDataParallel
    forward = wrapper.forward

    def forward_slowly(self, *arguments, **values):
        if os.environ["RANK"] == "1":  # a rank that another process started knows its number only now
            spin(SECONDS)
        return forward(self, *arguments, **values)

    wrapper.forward = forward_slowly


def out_of_step(distributed):
    """In every step one of two ranks has more to do in the forward pass, in turns."""
    wrapper, steps = distributed.nn.parallel.DistributedDataParallel, itertools.count()
    forward = wrapper.forward

    def forward_slowly(self, *arguments, **values):
        if next(steps) % 2 == int(os.environ["RANK"]):
            spin(SECONDS)
        return forward(self, *arguments, **values)

    wrapper.forward = forward_slowly


def slow_start(image_set):
    load = image_set.load_image_set

    def load_slowly(*arguments):
        time.sleep(SECONDS)
        return load(*arguments)

    image_set.load_image_set = load_slowly


# what is planted: (after which import, how)
PLANTS = {
    "slow-loader": ("common.data.loaders", slow_loader),
    "slow-evaluation": ("common.data.loaders", slow_evaluation),
    "slow-transfer": ("common.engine.step", slow_transfer),
    "slow-update": ("common.engine.step", slow_update),
    "growing": ("common.engine.step", growing),
    "few-threads": ("common.engine.loop", few_threads),
    "rude-workers": ("common.data.loaders", rude_workers),
    "slow-all-reduce": ("common.ranks.group", slow_all_reduce),
    "straggler": ("common.ranks.group", straggler),
    "out-of-step": ("common.ranks.group", out_of_step),
    "slow-start": ("common.data.image_set", slow_start),
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
