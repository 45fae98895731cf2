"""Imported for its effect, before any of the packages: says in one line which of them are not installed.

Most often the virtual environment has not been activated. Whatever imports `common` imports this first.
"""

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from common.errors import MACHINE, SuiteError

PACKAGES = ("torch", "torchvision", "numpy", "matplotlib", "tabulate", "psutil", "filelock")  # requirements.txt
PROJECT = Path(__file__).resolve().parent.parent


def _advice():
    """What to type in the directory where this command was typed."""
    environment, listed = (shlex.quote(os.path.relpath(PROJECT / name)) for name in (".venv", "requirements.txt"))
    if (PROJECT / ".venv" / "bin" / "activate").exists() and not os.path.samefile(PROJECT / ".venv", sys.prefix):
        return f"type: . {environment}/bin/activate"
    return f"type: python3 -m venv {environment} && {environment}/bin/pip install -r {listed}"


if missing := [name for name in PACKAGES if not importlib.util.find_spec(name)]:
    error = SuiteError(f"not installed: {', '.join(missing)}", f"this Python is {sys.executable}", _advice(), MACHINE)
    print(f"error: {error}", file=sys.stderr)
    sys.exit(MACHINE)
