"""Observes an unchanged training script from inside, with only the standard library and the script's own torch.

Python imports this file at its start if PYTHONPATH names its directory (docs.python.org/3/library/site.html). Once the
script has imported torch, torch's own hooks and wrappers around a few calls that every training makes record when data,
forward, backward, exchange and update begin and end. Each rank records its steps in slices, writes one line of JSON per
slice, and then blocks in a read until its next turn.
"""

import functools
import importlib.abc
import importlib.util
import json
import os
import sys

from training_changes import OWN_RANK, RANK, Change
from training_observer import Observer

HERE = os.path.dirname(os.path.abspath(__file__))
OBSERVE = "PARALLEL_TRAINING_OBSERVE"  # environment variable: the directory for the records
CHANGE = "PARALLEL_TRAINING_CHANGE"  # environment variable: the arguments of Change, as JSON
COLLECTIVES = (
    "all_gather all_gather_object all_reduce barrier broadcast broadcast_object_list gather gather_object reduce"
)
COLLECTIVES += " _broadcast_coalesced"  # by which DistributedDataParallel sends buffers before a forward pass


def install(torch, directory):
    """Install the observer in torch."""
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    change = Change(torch, directory, **requested_change())
    observer = Observer(torch, directory, change)
    loader, iterator, module = dataloader.DataLoader, dataloader._BaseDataLoaderIter, torch.nn.Module
    fetch, start, train = iterator.__next__, loader.__iter__, module.train
    backward, gradients = torch.autograd.backward, torch.autograd.grad

    def watched_train(self, mode=True):
        observer.switch(not mode)
        return train(self, mode)

    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # torch 2.2 and older
    unscale = scaler._unscale_grads_

    def exchange_and_unscale(self, optimizer, *given):
        change.exchanged = None
        observer.before_update(optimizer, (), {})
        change.exchanged = optimizer
        return unscale(self, optimizer, *given)

    if change.ranks:
        scaler._unscale_grads_ = exchange_and_unscale  # so that all ranks skip the steps with infinite gradients
    loader.__init__ = change.loader(loader.__init__)
    loader.__iter__ = lambda self: observer.start_loader(start, self)
    iterator.__next__ = lambda self: observer.fetch(fetch, self)
    module.train = watched_train
    torch.autograd.backward = lambda *given, **named: observer.backward(backward, *given, **named)
    torch.autograd.grad = lambda *given, **named: observer.backward(gradients, *given, **named)
    for name in COLLECTIVES.split():
        if call := getattr(torch.distributed, name, None):
            setattr(torch.distributed, name, functools.partial(observer.collective, call))
    optimizer.register_optimizer_step_pre_hook(observer.before_update)
    optimizer.register_optimizer_step_post_hook(observer.after_update)


def requested_change():
    return json.loads(os.environ.get(CHANGE, "{}"))


def hide_ranks(ranks):
    """Hide torchrun's variables, so that the script trains as if alone, on a GPU of its own."""
    os.environ[OWN_RANK] = str(RANK)  # for the programs that this one starts
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            del os.environ[name]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(",")
    if len(visible) > RANK:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[RANK]


class TorchFinder(importlib.abc.MetaPathFinder):
    """Imports torch as usual, and then installs the observer."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        sys.meta_path.insert(0, self)  # a library may only check whether torch exists, and import it later
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_install(module):
                sys.meta_path.remove(self)
                run(module)
                install(module, os.environ[OBSERVE])

            spec.loader.exec_module = run_and_install
        return spec


def run_own_sitecustomize():
    """Import the user's own sitecustomize, which this file hides."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as missing:
        if missing.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


if os.environ.get(OBSERVE):
    if "TORCHELASTIC_RUN_ID" in os.environ and (ranks := requested_change().get("ranks")):
        hide_ranks(ranks)
    sys.meta_path.insert(0, TorchFinder())
run_own_sitecustomize()
