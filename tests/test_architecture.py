"""The architecture, as the imports show it: rooms from bottom to top, and what stands in them."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.fixtures import PROJECT

ROOMS = (  # each may import those before it
    *("common.errors", "common.words", "common.files", "common.machine", "common.settings", "common.data"),
    *("common.models", "common.engine", "common.ranks", "common.programs", "common.observer"),
    *("comparison", "comparison.plan", "comparison.judge", "comparison.run", "comparison.show"),
    "scripts",
)
LONG = {  # more than 300 lines; no other module may become so long
    *("common.programs.probe", "common.settings.config", "common.observer.training_observer"),
    *("comparison.methods", "comparison.show.tables"),
    *("comparison.judge.measures", "comparison.judge.statistics"),
}
PLACES = ("*.py", "common/**/*.py", "comparison/**/*.py")
FILES = [file for place in PLACES for file in PROJECT.glob(place) if file.name != "__init__.py"]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PROJECT).with_suffix("").parts)


def room_of(module: str) -> str:
    """common/files/writing.py is in common.files, comparison/record.py in comparison, ddp_train.py in scripts."""
    parts = module.split(".")
    inside = [room for room in (".".join(parts[:2]), parts[0]) if room in ROOMS]
    return inside[0] if inside else "scripts"


def imports_of(file: Path, modules) -> set[str]:
    """Those of `modules` that a file imports anywhere: `from a import b` is a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & {*modules}) - {name_of(file)}


@pytest.fixture(scope="module")
def imports():
    """Which modules of the project each of them imports."""
    files = {name_of(file): file for file in FILES}
    return {name: imports_of(file, files) for name, file in files.items()}


def test_nothing_points_up(imports):
    pairs = [(name, wanted) for name in imports for wanted in imports[name]]
    assert [pair for pair in pairs if ROOMS.index(room_of(pair[0])) < ROOMS.index(room_of(pair[1]))] == []
    assert [pair for pair in pairs if pair[0].endswith("_train") and pair[1].startswith("comparison")] == []
    assert [pair for pair in pairs if "programs" in pair[1] and "programs" not in pair[0]] == []
    TopologicalSorter(imports).prepare()  # raises CycleError, also inside a room


def test_few_rooms_of_the_comparison_know_one_another(imports):
    rooms = {(room_of(name), room_of(wanted)) for name in imports for wanted in imports[name]}
    inside = {pair for pair in rooms if pair[0] != pair[1] and all(room.startswith("comparison") for room in pair)}
    assert len(inside) <= 20, sorted(inside)


def test_comparison_never_imports_torch():
    names = ", ".join(name for name in map(name_of, FILES) if name.startswith("comparison"))
    code = f"import sys, compare_parallel, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0


def test_rooms_and_modules_stay_small():
    lengths = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {name for name, length in lengths.items() if length > 300} <= LONG
    rooms = [name.rpartition(".")[0] for name in lengths if "." in name]
    assert {room: rooms.count(room) for room in rooms if rooms.count(room) > 14} == {}


def test_no_test_module_imports_another():
    files = {name_of(file): file for file in PROJECT.glob("tests/**/test_*.py")}
    assert {name: imports_of(file, files) for name, file in files.items() if imports_of(file, files)} == {}
