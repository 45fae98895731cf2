"""Importing `common` does nothing; a program says where it begins."""

import re

import pytest

from common.errors import USAGE
from tests.fixtures import PROJECT

IMPORTED = """
import atexit, gc, importlib, os, pkgutil, signal, sys
import matplotlib.pyplot, torch, torchvision  # which have effects of their own

def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    hooks = sys.excepthook, sys.unraisablehook
    return handlers, hooks, dict(os.environ), gc.isenabled(), gc.get_freeze_count(), [*sys.path]

def register(function, *arguments, original=atexit.register, **named):
    assert not sys._getframe(1).f_globals["__name__"].startswith("common"), function
    return original(function, *arguments, **named)

before, atexit.register = state(), register
import common
modules = [found.name for found in pkgutil.walk_packages(common.__path__, "common.")]
for name in modules:
    importlib.import_module(name)
assert state() == before and len(modules) > 40, (before, state())
"""


def test_importing_any_module_of_common_has_no_effect(project):
    done = project("-c", IMPORTED, tiny=False)
    assert (done.returncode, done.stderr) == (0, "")


SCRIPTS = "accelerate_train data_parallel_train ddp_train fsdp_train model_parallel_train pipeline_train mnist"


@pytest.mark.parametrize("flag, code", [("--help", 0), ("--batch-sise", USAGE)])
@pytest.mark.parametrize(
    "program",
    [
        *(f"{script}.py" for script in [*SCRIPTS.split(), "compare_parallel"]),
        *(f"-m common.programs.{name}" for name in ("check", "fetch", "model", "probe", "weights")),
    ],
)
def test_help_and_a_mistake_come_before_what_takes_long_to_import(program, flag, code, project):
    done = project("-X importtime", *program.split(), flag, tiny=False)
    imported = {*re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE)}
    assert done.returncode == code and "argparse" in imported and not {"torch", "numpy", "jinja2"} & imported


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


@pytest.mark.parametrize(
    "words, told",
    [
        (("program.py",), "__main__ True True\n__mp_main__ True True\n"),
        (("-c", "import program; program.child()"), "program False False\n"),
    ],
)
def test_a_program_and_what_it_spawns_begin_and_who_imports_it_does_not(words, told, project, tmp_path):
    (tmp_path / "program.py").write_text(SPAWNING)
    done = project(*words, tiny=False, cwd=tmp_path, environment={"PYTHONPATH": f"{PROJECT}:{tmp_path}"})
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
