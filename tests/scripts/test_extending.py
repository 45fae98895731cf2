"""Follow docs/extending.md literally in a copy of the project: every file, every line, every command."""

import ast
import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from comparison.methods import METHODS
from comparison.results_file import read_results
from tests.fixtures import EXTENDING, EXTENDING_BLOCKS, EXTENDING_FILES, PROJECT

COMMANDS = re.findall(r"^ {4,7}(python .*)$", EXTENDING, re.MULTILINE)
(RECORD,) = (block for block in EXTENDING_BLOCKS if "Method(" in block)
(FOLDERS,) = (block for block in EXTENDING_BLOCKS if block.startswith("my_images/"))
MISTAKE = re.search(r"without `(.*?)`, the row has failed", EXTENDING)[1]


def add_record(methods: Path, record: str):
    """Add an entry to the end of METHODS."""
    text = methods.read_text()
    end = text.index("\n}\n", text.index("\nMETHODS = {\n")) + 1
    methods.write_text(f"{text[:end]}{record}{text[end:]}")


@pytest.fixture(scope="module")
def copy(data_root, tmp_path_factory):
    """A copy of the project with all files that the page adds."""
    copy = tmp_path_factory.mktemp("copy")
    for script in PROJECT.glob("*.py"):
        shutil.copy(script, copy)
    for room in ("common", "comparison"):
        shutil.copytree(PROJECT / room, copy / room)
    (copy / "data").symlink_to(data_root)  # so that the synthetic sets are generated only once
    for name, text in EXTENDING_FILES.items():
        (copy / name).write_text(text)
    add_record(copy / "comparison" / "methods.py", RECORD)
    for number, path in enumerate(map(Path, FOLDERS.splitlines())):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        for name in (path.name, "more.png", "again.png", "another.png"):  # to fill a batch
            Image.new("RGB", (80, 70), (60 * number, 0, 0)).save(copy / path.with_name(name))
    return copy


@pytest.fixture
def follow(project, copy):
    """follow(*parts): run the one command of the page that contains all parts in the copy. Return its output."""

    def follow(*parts, exit_code=0):
        (command,) = (line for line in COMMANDS if all(part in line for part in parts))
        _, *arguments = shlex.split(command)
        done = project(*arguments, tiny=False, cwd=copy)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout

    return follow


def compared(copy):
    """Check the figures of the last comparison and return its report."""
    directory = copy / "figures" / "comparison"
    for name in ("curves.png", "phases.png", "memory.png"):
        assert (directory / name).stat().st_size > 1e4
    return read_results(directory / "results.json")


def test_the_page_has_only_the_blocks_and_commands_tested_here():
    assert len(EXTENDING_BLOCKS) == len(EXTENDING_FILES) + 2 and len(COMMANDS) == EXTENDING.count(" python ") == 7
    assert set(EXTENDING_FILES) == {"my_net.py", "my_blocks.py", "my_own_train.py"}


NETWORKS = [("my_net.py", "my_net.py:build: 31,530 parameters"), ("torchvision:", "torchvision:resnet50")]


@pytest.mark.parametrize("part, output", [NETWORKS[0], pytest.param(*NETWORKS[1], marks=pytest.mark.slow)])
def test_a_network_is_accepted(part, output, follow):
    assert output in follow("common.programs.model", part)


@pytest.mark.slow
def test_a_custom_network_is_trained_and_compared(follow, copy):
    assert "Epoch [2/2]" in follow("data_parallel_train.py", "my_net.py")
    assert "\nTest accuracy of all rows: " in follow("compare_parallel.py", "my_net.py")
    report = compared(copy)
    methods = {row.configuration.method for row in report.rows}
    completed = {row.configuration.method for row in report.rows if row.results}
    assert completed >= {"single", "dp", "ddp"} and "pipeline" in methods - completed


@pytest.mark.slow
def test_custom_blocks_are_split(follow, copy):
    follow("my_blocks.py")
    assert [not row.troubles for row in compared(copy).rows if row.results] == [True] * 3


@pytest.mark.slow
def test_a_folder_of_images_is_trained_on(follow):
    assert "cat " in follow("folder:").partition("Per class:")[2]


@pytest.mark.slow
def test_a_custom_method_is_one_script_and_one_record(follow, copy):
    printed = follow("my-own")
    report = compared(copy)
    assert (copy / "figures" / "comparison" / "speed-up.png").stat().st_size > 1e4
    assert {row.configuration.method for row in report.rows if row.results} == {"single", "my-own"}
    assert 0 < report.equivalence["my-own"].difference < 1e-4
    assert "\nmy own way " in printed.partition("\nMethod ")[2]
    rows = list(csv.DictReader((copy / "figures" / "comparison" / "results.csv").open()))
    assert rows[1]["method"] == "my-own" and float(rows[1]["epoch_seconds"]) > 0
    assert "\n| my own way " in (copy / "figures" / "comparison" / "report.md").read_text()


@pytest.mark.slow
def test_a_mistake_in_a_custom_method_is_found(follow, copy):
    script = copy / "my_own_train.py"
    right = script.read_text()
    assert MISTAKE in right
    script.write_text(right.replace(MISTAKE, ""))
    try:
        assert "\nNext: fix “my own way”" in follow("my-own", exit_code=1)
    finally:
        script.write_text(right)


def test_only_methods_py_contains_the_names_of_methods():
    names, sentences = {*METHODS}, {method.called for method in METHODS.values()} - {""}
    assert {"one process, all cores", "DataParallel", "DDP"} <= sentences
    for file in (PROJECT / "compare_parallel.py", *(PROJECT / "comparison").rglob("*.py")):
        if file.name == "methods.py":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & names, file
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        prose = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
        shown = "\n".join(map(str, texts - prose))
        assert not [called for called in sentences if called in shown], file
