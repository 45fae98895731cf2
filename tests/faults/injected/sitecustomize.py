"""Injects a fault into one rank at the start of one epoch. Python runs this file if its directory is on PYTHONPATH.

FAULT: an expression to evaluate; FAULT_RANK and FAULT_EPOCH: where. The code under test is unchanged except for a
wrapper around train_one_epoch.
"""

import importlib.abc
import importlib.machinery
import itertools
import os
import signal  # noqa: F401 - for FAULT
import sys
import time  # noqa: F401 - for FAULT


class Injector(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "common.engine.loop":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), wrap_training(module))
        return spec


def wrap_training(engine):
    train, epochs = engine.train_one_epoch, itertools.count(1)

    def train_with_fault(*arguments):
        if next(epochs) == int(os.environ["FAULT_EPOCH"]) and os.environ.get("RANK", "0") == os.environ["FAULT_RANK"]:
            eval(os.environ["FAULT"], {**globals(), "torch": sys.modules["torch"]})
        return train(*arguments)

    engine.train_one_epoch = train_with_fault


if "FAULT" in os.environ:
    sys.meta_path.insert(0, Injector())
