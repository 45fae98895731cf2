"""Each lesson is short, documents its command, and trains to the weights of data_parallel_train.py."""

import ast
import os
import re
import runpy
import subprocess
import sys
from functools import cache

import pytest
import torch

from tests.fixtures import PROJECT, child_environment

pytestmark = pytest.mark.process

NOT_LESSONS = ("__init__", "tiny", "tasks", "grade")
LESSONS = sorted(file.stem for file in (PROJECT / "lessons").glob("*.py") if file.stem not in NOT_LESSONS)
ONE_PROCESS = ("accumulate", "checkpointing", "data_parallel", "mixed_precision")
MLP = ("ddp_buckets", "tensor_parallel")
TWO_RANKS = ("--standalone", "--nproc_per_node=2")
EQUAL = 1e-6  # tolerance per weight: sums are added up in another order


@cache
def source_of(lesson):
    return (PROJECT / "lessons" / f"{lesson}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_short_and_has_one_import_of_the_suite(lesson):
    text = source_of(lesson)
    assert len(text.splitlines()) <= 60
    imported = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert [name for name in imported if name.split(".")[0] not in ("torch", "functools")] == ["lessons.tiny"]
    command = "python -m" if lesson in ONE_PROCESS else "torchrun --standalone --nproc_per_node=2 -m"
    assert f"\n    {command} lessons.{lesson}" in ast.get_docstring(ast.parse(text), clean=False)
    ending = re.findall(r"^#.*$", text, re.MULTILINE)[-3:]
    assert re.search(r"\w+(_train|_parallel)\.py|--\w+|no script", " ".join(ending)), "names no script"


def run(directory, *command):
    environment = {**child_environment(), "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "FutureWarning" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The working directory of all lessons, so that they share their data."""
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def reference(directory):
    """reference(model): the weights after the command in tiny.py's docstring, which runs once per model."""

    @cache
    def weights(model):
        command = re.search(r"python (data_parallel_train\.py [^`]*?--save weights\.pth)", source_of("tiny"))[1]
        script, *flags = command.replace("\\", "").replace("lenet", model).split()
        run(directory, PROJECT / script, *flags, "--device", "cpu", "--threads", "1", "--quiet", "--no-curves")
        return torch.load(directory / "weights.pth", weights_only=True)

    return weights


def distance(lesson, file, reference):
    """Return how much the weights in a file differ from those after training on one device."""
    weights, expected = torch.load(file, weights_only=True), reference("mlp" if lesson in MLP else "lenet")
    assert weights.keys() == expected.keys()
    return max((weights[name] - expected[name]).abs().max().item() for name in expected)


@pytest.fixture(scope="module")
def output_of_ranks(directory):
    """The output of two ranks that run all lessons for ranks, one after the other, and write LESSON.pth."""
    lessons = [lesson for lesson in LESSONS if lesson not in ONE_PROCESS]
    return run(directory, "-m", "torch.distributed.run", *TWO_RANKS, "-m", "tests.lessons.all_of_them", *lessons)


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson not in (*ONE_PROCESS, "collectives")])
def test_a_lesson_ends_with_the_weights_of_one_device(lesson, directory, reference, output_of_ranks):
    assert distance(lesson, directory / f"{lesson}.pth", reference) <= EQUAL


def run_here(lesson, directory, monkeypatch, *arguments):
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "argv", [lesson, *map(str, arguments)])
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    runpy.run_module(f"lessons.{lesson}", run_name="__main__")


@pytest.mark.parametrize(
    "lesson, flags, least, most",
    [
        *((lesson, (), 0.0, EQUAL) for lesson in ONE_PROCESS if lesson != "mixed_precision"),
        ("mixed_precision", ("bf16",), 1e-5, 2e-3),  # the documented rounding
        ("mixed_precision", ("fp16",), 1e-6, 3e-4),
    ],
)
def test_a_lesson_of_one_process_ends_near_the_weights_of_one_device(
    lesson, flags, least, most, directory, reference, monkeypatch, tmp_path
):
    run_here(lesson, directory, monkeypatch, file := tmp_path / "weights.pth", *flags)
    assert least <= distance(lesson, file, reference) <= most


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson not in ONE_PROCESS])
def test_the_documented_command_gives_the_same_weights(lesson, directory, output_of_ranks, tmp_path):
    run(directory, "-m", "torch.distributed.run", *TWO_RANKS, "-m", f"lessons.{lesson}", file := tmp_path / "weights")
    if lesson != "collectives":
        alone, shared = (torch.load(path, weights_only=True) for path in (file, directory / f"{lesson}.pth"))
        torch.testing.assert_close(alone, shared, rtol=0, atol=EQUAL)


def test_collectives_on_four_numbers(output_of_ranks):
    printed = {line[:15].strip(): re.findall(r"\[.*?\]", line) for line in output_of_ranks.splitlines()}
    first, second, total = "[0.0, 1.0, 2.0, 3.0]", "[10.0, 11.0, 12.0, 13.0]", "[10.0, 12.0, 14.0, 16.0]"
    assert printed == {
        "before": [first, second],
        "broadcast": [first, first],
        "all-reduce": [total, total],
        "reduce-scatter": ["[10.0, 12.0]", "[14.0, 16.0]"],
        "all-gather": [total, total],
        "send and recv": [first, first],
    }


def test_no_weights_are_written_without_a_file_name(directory, monkeypatch):
    before = {*os.listdir(directory)}
    run_here("accumulate", directory, monkeypatch)
    assert {*os.listdir(directory)} - before <= {"data"}
