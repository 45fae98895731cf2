"""The architecture, as the imports show it."""

import ast
from pathlib import Path

from tests.fixtures import PROJECT


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports, and what it imports from them: `from a import b` is a and a.b."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def test_no_test_module_imports_another():
    tests = {
        ".".join(file.relative_to(PROJECT).with_suffix("").parts): file for file in PROJECT.glob("tests/**/test_*.py")
    }
    assert {
        name: imports_of(file) & tests.keys() for name, file in tests.items() if imports_of(file) & tests.keys()
    } == {}
