"""Importing `common` does nothing; a program says where it begins."""

import subprocess
import sys

from tests.fixtures import PROJECT, child_environment

IMPORTED = """
import atexit, gc, importlib, os, pkgutil, signal, sys
import matplotlib.pyplot, torch, torchvision  # which have effects of their own

called = []
def register(function, *arguments, original=atexit.register, **named):
    if sys._getframe(1).f_globals["__name__"].startswith("common"):
        called.append(function)
    return original(function, *arguments, **named)

def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    hooks = sys.excepthook, sys.unraisablehook
    return handlers, hooks, dict(os.environ), gc.isenabled(), gc.get_freeze_count(), [*sys.path]

before, atexit.register = state(), register
import common
modules = [found.name for found in pkgutil.walk_packages(common.__path__, "common.")]
for name in modules:
    importlib.import_module(name)
assert state() == before, (before, state())
print(len(modules), called)
"""


def test_importing_any_module_of_common_has_no_effect():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=PROJECT, env=child_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    modules, called = done.stdout.split(maxsplit=1)
    assert int(modules) > 40 and called == "[]\n"


SPAWNING = """
import multiprocessing, sys
from common.machine.begin import begin
begin(__name__)
def child():
    print(__name__, sys.excepthook is not sys.__excepthook__, "torch" in sys.modules, flush=True)
if __name__ == "__main__":
    child()
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def test_a_program_begins_where_it_says_so_and_in_what_it_spawns_and_not_where_it_is_imported(tmp_path):
    (tmp_path / "program.py").write_text(SPAWNING)
    environment = {**child_environment(), "PYTHONPATH": f"{PROJECT}:{tmp_path}"}
    said = [
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
        for command in (["program.py"], ["-c", "import program; program.child()"])
    ]
    assert said == ["__main__ True True\n__mp_main__ True True\n", "program False False\n"]
