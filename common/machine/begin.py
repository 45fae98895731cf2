"""How a program begins: `begin(__name__, parse)` at its top, before it imports any package."""

import atexit
import gc
import importlib.util
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import MACHINE, SuiteError

TRAINING = ("torch", "torchvision")
SHOWING = ("numpy", "matplotlib", "msgspec", "tabulate", "psutil", "filelock", "jinja2")  # of compare_parallel.py
PACKAGES = (*TRAINING, *SHOWING)  # requirements.txt
PROJECT = Path(__file__).resolve().parent.parent.parent


def begin(name: str, parse: Callable[[], Any] | None = None, training: bool = True, as_rank: bool = False) -> Any:
    """Check the packages, parse the command line, and import torch if training; return what parse() returns.

    A package that is missing or broken ends the program with one line, as does an error of parse(), which comes before
    the imports that take long. name: the caller's __name__; nothing happens where it is imported, and a process that it
    has spawned does not parse. as_rank: see run_script(). From now on Ctrl-C, also during imports, ends the program
    without a word.
    """
    if name not in ("__main__", "__mp_main__"):
        return None
    sys.excepthook = _say_nothing_of_ctrl_c
    _require(PACKAGES if training else SHOWING)
    from common.machine.entry import call_early, skip_teardown  # needs the packages
    from common.machine.lifetime import end_with_parent, has_launcher

    atexit.register(skip_teardown)
    if training and has_launcher():  # which may end while this rank imports torch
        end_with_parent()
    typed = call_early(parse, as_rank) if parse and name == "__main__" else None
    if training:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # or c10d logs each attempt to connect
        gc.disable()  # for a sixth of the time it would look for garbage in what is imported, and find none
        _import_torch()
        gc.freeze()  # nor will it look there later
        gc.enable()
    return typed


def check_tensorboard() -> None:
    """Raise SuiteError (MACHINE) unless TensorBoard is installed."""
    if not importlib.util.find_spec("tensorboard"):
        found, advice = "tensorboard is not installed", "type: pip install tensorboard"
        raise SuiteError("--tensorboard needs a package", found, advice, MACHINE)


def _say_nothing_of_ctrl_c(kind, error, traceback):
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def _require(packages):
    missing = [name for name in PACKAGES if not importlib.util.find_spec(name)]
    if set(missing) & set(packages):
        _end(f"not installed: {', '.join(missing)}", f"this Python is {sys.executable}", _installing())


def _import_torch():
    try:
        import torch  # noqa: F401
    except Exception as error:
        cause = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
        if isinstance(error, MemoryError) or re.search("[Aa]llocate|failed to map", cause):
            advice = "free some memory, or allow this process more (ulimit -v)"
        elif isinstance(error, (ImportError, OSError)):
            advice = _installing()
        else:
            advice = "unset the environment variable that torch complains about"
        _end("torch cannot be imported", cause, advice)


def _installing():
    """What to type in the directory where this command was typed; mostly, the environment is not activated."""
    environment, listed = (shlex.quote(os.path.relpath(PROJECT / name)) for name in (".venv", "requirements.txt"))
    if (PROJECT / ".venv" / "bin" / "activate").exists() and not os.path.samefile(PROJECT / ".venv", sys.prefix):
        return f"type: . {environment}/bin/activate"
    return f"type: python3 -m venv {environment} && {environment}/bin/pip install -r {listed}"


def _end(what, found, advice):
    print(f"error: {SuiteError(what, found, advice, MACHINE)}", file=sys.stderr)
    sys.exit(MACHINE)
