"""Observes a training script from inside, without a change to it: with the standard library and the script's own torch.

Python imports this file as it starts where PYTHONPATH names this directory (docs.python.org/3/library/site.html). As
soon as the script has imported torch, torch's own hooks, and wrappers around the few calls that every training makes,
note when data, forward, backward, exchange and update begin and end. Each rank keeps its steps in slices, writes one
line of JSON for each, and between two of them waits for its turn, in a read.
"""

import importlib.abc
import importlib.util
import json
import os
import sys

from training_changes import RANK, Change
from training_observer import Observer

HERE = os.path.dirname(os.path.abspath(__file__))
OBSERVE = "PARALLEL_TRAINING_OBSERVE"  # environment variable: the directory for what is observed
CHANGE = "PARALLEL_TRAINING_CHANGE"  # and, as JSON, what is to be otherwise: see training_changes


def install(torch, directory):
    """Put the observer into torch."""
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    change = Change(torch, directory, **wanted_change())
    observer = Observer(torch, directory, change)
    loader, iterator, module = dataloader.DataLoader, dataloader._BaseDataLoaderIter, torch.nn.Module
    fetch, start, train = iterator.__next__, loader.__iter__, module.train
    backward, gradients = torch.autograd.backward, torch.autograd.grad

    def watched_train(self, mode=True):
        observer.switch(not mode)
        return train(self, mode)

    loader.__init__ = change.loader(loader.__init__, dataloader.IterableDataset)
    loader.__iter__ = lambda self: observer.start_loader(start, self)
    iterator.__next__ = lambda self: observer.fetch(fetch, self)
    module.train = watched_train
    torch.autograd.backward = lambda *given, **named: observer.backward(backward, *given, **named)
    torch.autograd.grad = lambda *given, **named: observer.backward(gradients, *given, **named)
    optimizer.register_optimizer_step_pre_hook(observer.before_update)
    optimizer.register_optimizer_step_post_hook(observer.after_update)


def wanted_change():
    """Return what is to be otherwise, by the arguments of Change."""
    return json.loads(os.environ.get(CHANGE, "{}"))


def hide_ranks(ranks):
    """Let a script believe that it is alone, as torchrun told its rank to nobody but us, with a GPU of its own."""
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            del os.environ[name]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(",")
    if len(seen) > RANK:
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[RANK]


class TorchFinder(importlib.abc.MetaPathFinder):
    """Lets torch be imported as it is, and then installs the observer."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        sys.meta_path.insert(0, self)  # a library may only have asked whether there is a torch
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_install(module):
                sys.meta_path.remove(self)
                run(module)
                install(module, os.environ[OBSERVE])

            spec.loader.exec_module = run_and_install
        return spec


def run_own_sitecustomize():
    """Import the sitecustomize that this file stands in front of, if there is one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as missing:
        if missing.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


if os.environ.get(OBSERVE):
    if "TORCHELASTIC_RUN_ID" in os.environ and (ranks := wanted_change().get("ranks")):
        hide_ranks(ranks)
    sys.meta_path.insert(0, TorchFinder())
run_own_sitecustomize()
