"""Tests of the architecture: which packages may import which, and how large they may become."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.fixtures import PROJECT

LAYERS = (  # each may import those before it
    *("common.errors", "common.words", "common.files", "common.machine", "common.settings", "common.data"),
    *("common.models", "common.engine", "common.ranks", "common.programs", "common.observer"),
    *("comparison", "comparison.plan", "comparison.judge", "comparison.run", "comparison.show"),
    "scripts",
)
LONG = {"common.observer.training_observer"}  # the only module allowed to exceed 300 lines
PATTERNS = ("*.py", "common/**/*.py", "comparison/**/*.py")
TORCHLESS = [
    file for room in ("judge", "plan", "show") for file in PROJECT.glob(f"tests/{room}/*.py")
]  # make test-report
FILES = [file for pattern in PATTERNS for file in PROJECT.glob(pattern) if file.name != "__init__.py"]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PROJECT).with_suffix("").parts)


def layer_of(module: str) -> str:
    """common.files.writing is in common.files, comparison.record in comparison, ddp_train in scripts."""
    parts = module.split(".")
    for package in (".".join(parts[:2]), parts[0]):
        if package in LAYERS:
            return package
    return "scripts"


def imports_of(file: Path, modules) -> set[str]:
    """Return which of `modules` a file imports anywhere. `from a import b` imports a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & {*modules}) - {name_of(file)}


@pytest.fixture(scope="module")
def imports():
    """The imports of each module within the project."""
    files = {name_of(file): file for file in FILES}
    return {name: imports_of(file, files) for name, file in files.items()}


def test_no_module_imports_a_higher_layer(imports):
    pairs = [(name, imported) for name in imports for imported in imports[name]]
    assert [pair for pair in pairs if LAYERS.index(layer_of(pair[0])) < LAYERS.index(layer_of(pair[1]))] == []
    assert [pair for pair in pairs if pair[0].endswith("_train") and pair[1].startswith("comparison")] == []
    assert [pair for pair in pairs if "programs" in pair[1] and "programs" not in pair[0]] == []
    TopologicalSorter(imports).prepare()  # raises CycleError


def test_packages_of_the_comparison_have_few_dependencies(imports):
    pairs = {(layer_of(name), layer_of(imported)) for name in imports for imported in imports[name]}
    inside = {pair for pair in pairs if pair[0] != pair[1] and all(layer.startswith("comparison") for layer in pair)}
    assert len(inside) <= 20, sorted(inside)


@pytest.mark.parametrize("files", [FILES, TORCHLESS], ids=["the comparison", "tests"])
def test_comparison_never_imports_torch(files):
    names = ", ".join(name for name in map(name_of, files) if name.startswith(("compar", "tests")))
    code = f"import sys, tests.conftest, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0


def test_packages_and_modules_stay_small():
    lengths = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {name for name, length in lengths.items() if length > 300} <= LONG
    sizes = Counter(name.rpartition(".")[0] for name in lengths if "." in name)
    assert max(sizes.values()) <= 14, sizes


def test_no_test_module_imports_another():
    files = {name_of(file): file for file in PROJECT.glob("tests/**/test_*.py")}
    imports = {name: imports_of(file, files) for name, file in files.items()}
    assert {name: imported for name, imported in imports.items() if imported} == {}
