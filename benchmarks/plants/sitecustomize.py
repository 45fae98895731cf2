"""Slows a training down, or breaks it, in one known place. Python imports a module of this name at its start.

    PYTHONPATH=benchmarks/plants PLANT=forward PLANT_SECONDS=0.005 PLANT_RANK=1 python ddp_train.py --spawn 2

It patches one module right after its import, in every process of the run. For plants that slow steps: PLANT_RANK slows
one rank only, PLANT_EVERY=N one step of every N, PLANT_TURNS=1 each rank in turn, PLANT_SHARE=0.1 a tenth of the steps
at random, and PLANT_GROWS=1 each step by PLANT_SECONDS more than the one before. PLANT=fault evaluates PLANT_FAULT on
rank PLANT_RANK at the start of epoch PLANT_EPOCH; tests/faults uses it.
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
from functools import partial


def setting(name, kind=int):
    """Return the value of the environment variable PLANT_NAME, or None."""
    value = os.environ.get(f"PLANT_{name}")
    return kind(value) if value else None


def seconds_in(step):
    """Return the delay of this rank in a step."""
    rank = int(os.environ.get("RANK", 0))  # may have been set after this module was imported
    every, seconds = setting("EVERY"), setting("SECONDS", float)
    if setting("RANK") not in (None, rank) or (every and step % every != every - 1):
        return 0.0
    if setting("TURNS") and step % int(os.environ["WORLD_SIZE"]) != rank:
        return 0.0
    if (share := setting("SHARE", float)) and random.Random(1000 * step + rank).random() >= share:
        return 0.0
    return seconds * step if setting("GROWS") else seconds


def spin(seconds, work=lambda: None):
    """Repeat work() for `seconds`. Keeps the core busy; sleeping would free it for other processes."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()


def write_file():
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(bytes(1 << 18))
        os.fsync(file.fileno())


collect = partial(spin, work=gc.collect)
write_to_disk = partial(spin, work=write_file)


def change_result(name, change):
    """Return a patch of a module after which its function `name` returns change(result)."""

    def patch(module):
        original = getattr(module, name)
        setattr(module, name, lambda *arguments: change(original(*arguments)))

    return patch


def run_first(module, name, work):
    """Patch a module so that its function `name` runs work() first."""
    original = getattr(module, name)

    def both(*arguments, **values):
        work()
        return original(*arguments, **values)

    setattr(module, name, both)


class SlowBatches:
    """A loader that delays each batch."""

    def __init__(self, loader, delay):
        self.loader, self.delay, self.steps = loader, delay, itertools.count()
        self.batch_size = loader.batch_size

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            self.delay(seconds_in(next(self.steps)))
            yield batch


def slow_loaders(training=None, test=None):
    """Delay each batch of the training or the test loader."""

    def slowed(loaders):
        pairs = zip(loaders, (training, test), strict=True)
        return tuple(SlowBatches(loader, delay) if delay else loader for loader, delay in pairs)

    return change_result("make_loaders", slowed)


def slow_transfer(engine):
    steps = itertools.count()

    def delay():
        if engine.torch.is_grad_enabled():  # in training only
            spin(seconds_in(next(steps)))

    run_first(engine, "to_device", delay)


def slow_update(delay):
    """Delay every step of the optimizer."""

    def slowed(optimizer):
        steps = itertools.count()
        optimizer.register_step_post_hook(lambda *_: delay(seconds_in(next(steps))))
        return optimizer

    return change_result("build_optimizer", slowed)


def slow_network(add_hooks):
    """Add hooks to every network that is built."""

    def slowed(network):
        add_hooks(network, itertools.count())
        return network

    return change_result("build_model", slowed)


def slow_forward(network, steps):
    network.register_forward_pre_hook(lambda *_: spin(seconds_in(next(steps))) if network.training else None)


def slow_backward(network, steps):
    network.register_full_backward_pre_hook(lambda *_: spin(seconds_in(next(steps))))


def twice_the_images(network, _):
    """Let one rank compute every image twice and ignore the second output."""

    def doubled():
        return network.training and setting("RANK") == int(os.environ.get("RANK", 0))

    network.register_forward_pre_hook(lambda _, inputs: (inputs[0].repeat(2, 1, 1, 1),) if doubled() else inputs)
    network.register_forward_hook(lambda *given: given[2][: len(given[2]) // 2] if doubled() else given[2])


def few_threads(engine):
    """Train with one thread, after the process has reported its number of threads."""
    run_first(engine, "train_one_epoch", lambda: engine.torch.set_num_threads(1))


def fault(engine):
    """Evaluate an expression with all imported modules, once, on one rank."""
    epochs = itertools.count(1)

    def inject():
        if next(epochs) == setting("EPOCH") and setting("RANK") == int(os.environ.get("RANK", 0)):
            eval(setting("FAULT", str), {**sys.modules})

    run_first(engine, "train_one_epoch", inject)


def rude_workers(loaders):
    """Run loader workers at the priority of the training."""
    loaders.NICE = 0


def slow_all_reduce(distributed):
    """Delay the last gradient bucket of each step, on every rank."""
    dist, wrapper = distributed.dist, distributed.nn.parallel.DistributedDataParallel
    build = wrapper.__init__

    def exchange(_, bucket):
        gradients = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(gradients, async_op=True).get_future().then(lambda future: late(future, bucket))

    def late(future, bucket):
        if bucket.is_last():
            time.sleep(setting("SECONDS", float))
        return future.value()[0]

    def build_slow(self, *arguments, **values):
        build(self, *arguments, **values)
        self.register_comm_hook(None, exchange)

    wrapper.__init__ = build_slow


def slow_start(image_set):
    run_first(image_set, "load_image_set", lambda: time.sleep(setting("SECONDS", float)))


PLANTS = {  # value of PLANT → the module to patch, the function that patches it
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
    "fault": ("common.engine.loop", fault),
    "rude-workers": ("common.data.loaders", rude_workers),
    "all-reduce": ("common.ranks.group", slow_all_reduce),
    "start": ("common.data.image_set", slow_start),
}


class Planter(importlib.abc.MetaPathFinder):
    """An import hook that patches one module after its import."""

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
