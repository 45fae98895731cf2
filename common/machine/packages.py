"""Which packages are needed, and what to say where one is not installed: most often the virtual environment is not
activated."""

import importlib
import importlib.util
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

from common.errors import MACHINE, SuiteError

TRAINING = ("torch", "torchvision")
SHOWING = ("numpy", "matplotlib", "tabulate", "psutil", "filelock")  # all that compare_parallel.py itself imports
PACKAGES = (*TRAINING, *SHOWING)  # requirements.txt
PROJECT = Path(__file__).resolve().parent.parent.parent


def require(packages: tuple[str, ...]) -> None:
    """End the program with one line about all of PACKAGES that are not installed, if any of `packages` is not."""
    missing = [name for name in PACKAGES if not importlib.util.find_spec(name)]
    if set(missing) & set(packages):
        found = f"this Python is {sys.executable}"
        error = SuiteError(f"not installed: {', '.join(missing)}", found, _advice(), MACHINE)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(MACHINE)


def load(package: str) -> None:
    """Import a package; end the program with one line if that fails, for lack of memory, say."""
    try:
        importlib.import_module(package)
    except Exception as error:
        cause = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
        if isinstance(error, MemoryError) or re.search("[Aa]llocate|failed to map", cause):
            advice = "free some memory, or allow this process more (ulimit -v)"
        elif isinstance(error, (ImportError, OSError)):
            advice = _advice()
        else:
            advice = f"unset the environment variable by which {package} was told so"
        print(f"error: {SuiteError(f'{package} cannot be imported', cause, advice, MACHINE)}", file=sys.stderr)
        sys.exit(MACHINE)


def _advice():
    """What to type in the directory where this command was typed."""
    environment, listed = (shlex.quote(os.path.relpath(PROJECT / name)) for name in (".venv", "requirements.txt"))
    if (PROJECT / ".venv" / "bin" / "activate").exists() and not os.path.samefile(PROJECT / ".venv", sys.prefix):
        return f"type: . {environment}/bin/activate"
    return f"type: python3 -m venv {environment} && {environment}/bin/pip install -r {listed}"
