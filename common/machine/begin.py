"""Program start-up: each program calls `begin(__name__, parse)` before it imports any third-party package."""

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

SHOWING = ("numpy", "matplotlib", "msgspec", "tabulate", "psutil", "filelock", "jinja2")  # of compare_parallel.py
PACKAGES = ("torch", "torchvision", *SHOWING)  # requirements.txt
PROJECT = Path(__file__).resolve().parent.parent.parent


def begin(name: str, parse: Callable[[], Any] | None = None, training: bool = True, as_rank: bool = False) -> Any:
    """Check the packages, parse the command line, and import torch if training; return what parse() returns.

    A missing or broken package, or an error in parse(), ends the program with one line. From now on, Ctrl-C ends it
    silently, even during imports. name: the caller's __name__. If the module is only imported, nothing happens; a
    spawned process does not parse. as_rank: see run_script().
    """
    if name not in ("__main__", "__mp_main__"):
        return None
    sys.excepthook = _ignore_ctrl_c
    _require(PACKAGES if training else SHOWING)
    from common.machine.entry import call_early, skip_teardown  # these import third-party packages
    from common.machine.lifetime import end_with_parent, has_launcher

    atexit.register(skip_teardown)
    if training and has_launcher():  # the launcher may end while this rank imports torch
        end_with_parent()
    parsed = call_early(parse, as_rank) if parse and name == "__main__" else None
    if training:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # otherwise c10d logs every connection attempt
        gc.disable()  # collections take a sixth of the import time and find nothing
        _import_torch()
        gc.freeze()  # later collections skip the imported modules as well
        gc.enable()
    return parsed


def check_tensorboard() -> None:
    """Raise SuiteError (MACHINE) unless TensorBoard is installed."""
    if not importlib.util.find_spec("tensorboard"):
        advice = "type: pip install tensorboard"
        raise SuiteError("--tensorboard needs a package", "tensorboard is not installed", advice, MACHINE)


def _ignore_ctrl_c(kind, error, traceback):
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def _require(packages):
    # Name every missing package, but only fail if one of `packages` is among them.
    missing = [name for name in PACKAGES if not importlib.util.find_spec(name)]
    if set(missing) & set(packages):
        _fail(f"not installed: {', '.join(missing)}", f"this Python is {sys.executable}", _install_command())


def _import_torch():
    try:
        import torch  # noqa: F401
    except Exception as error:
        cause = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
        if isinstance(error, MemoryError) or re.search("[Aa]llocate|failed to map", cause):
            advice = "free some memory, or allow this process more (ulimit -v)"
        elif isinstance(error, (ImportError, OSError)):
            advice = _install_command()
        else:
            advice = "unset the environment variable that torch complains about"
        _fail("torch cannot be imported", cause, advice)


def _install_command():
    """Return the command to activate the project's environment, or to create it, relative to the current directory."""
    environment, requirements = (shlex.quote(os.path.relpath(PROJECT / name)) for name in (".venv", "requirements.txt"))
    if (PROJECT / ".venv" / "bin" / "activate").exists() and not os.path.samefile(PROJECT / ".venv", sys.prefix):
        return f"type: . {environment}/bin/activate"
    return f"type: python3 -m venv {environment} && {environment}/bin/pip install -r {requirements}"


def _fail(what, found, advice):
    print(f"error: {SuiteError(what, found, advice, MACHINE)}", file=sys.stderr)
    sys.exit(MACHINE)
