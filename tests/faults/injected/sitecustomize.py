"""Python runs this first where PYTHONPATH names its directory: it breaks one rank, in one epoch, in one way.

FAULT is an expression, FAULT_RANK a rank, FAULT_EPOCH an epoch, FAULT_TIME a file that gets the time of it. The code
under test stays as it is; only its loop over the batches is entered through here.
"""

import importlib.abc
import importlib.machinery
import os
import signal  # noqa: F401 - for FAULT
import sys
import time
from pathlib import Path


class Injector(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "common.engine.loop":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), break_(module))
        return spec


def break_(engine):
    train, calls = engine.train_one_epoch, []

    def broken(*arguments):
        calls.append(1)
        if len(calls) == int(os.environ["FAULT_EPOCH"]) and os.environ.get("RANK", "0") == os.environ["FAULT_RANK"]:
            Path(os.environ["FAULT_TIME"]).write_text(str(time.time()))
            eval(os.environ["FAULT"], {**globals(), "torch": sys.modules["torch"]})
        return train(*arguments)

    engine.train_one_epoch = broken


if "FAULT" in os.environ:
    sys.meta_path.insert(0, Injector())
