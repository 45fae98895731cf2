"""begin(): importing `common` has no side effects, and programs parse their flags before slow imports."""

import re

import pytest

from common.errors import USAGE
from tests.fixtures import PROJECT

IMPORTED = """
import atexit, gc, importlib, os, pkgutil, signal, sys
import matplotlib.pyplot, torch, torchvision  # these have side effects

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


@pytest.mark.slow
def test_importing_common_has_no_side_effects(project):
    done = project("-c", IMPORTED, tiny=False)
    assert (done.returncode, done.stderr) == (0, "")


SCRIPTS = "accelerate data_parallel ddp fsdp model_parallel pipeline".split()
MODULES = "check fetch model probe weights".split()
PROGRAMS = ["mnist.py", "compare_parallel.py"]
PROGRAMS += [f"{name}_train.py" for name in SCRIPTS] + [f"-m common.programs.{name}" for name in MODULES]


@pytest.mark.parametrize("flag, code", [("--help", 0), ("--batch-sise", USAGE)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_usage_errors_come_before_slow_imports(program, flag, code, project):
    done = project("-X importtime", *program.split(), flag, tiny=False)
    imported = {*re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE)}
    assert done.returncode == code and "argparse" in imported and not {"torch", "numpy", "jinja2"} & imported
    assert (f"error: bad usage of {program}; " in done.stderr) == (code == USAGE)


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
    "arguments, printed",
    [
        (("program.py",), "__main__ True True\n__mp_main__ True True\n"),
        (("-c", "import program; program.child()"), "program False False\n"),
    ],
)
def test_begin_acts_in_a_program_and_its_spawned_processes_but_not_on_import(arguments, printed, project, tmp_path):
    (tmp_path / "program.py").write_text(SPAWNING)
    done = project(*arguments, tiny=False, cwd=tmp_path, environment={"PYTHONPATH": f"{PROJECT}:{tmp_path}"})
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
