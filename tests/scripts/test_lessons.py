"""Each training script is short, imports little from the suite, and differs little from similar scripts."""

import ast
import difflib

import pytest

from tests.fixtures import PROJECT

MOST_LINES = {"data_parallel": 80, "ddp": 80, "fsdp": 80, "model_parallel": 80, "pipeline": 120, "accelerate": 80}
SIMILAR = [
    ("data_parallel", "ddp"),
    ("data_parallel", "model_parallel"),
    ("ddp", "fsdp"),
    ("ddp", "pipeline"),
    ("ddp", "accelerate"),
    ("fsdp", "pipeline"),
]
ORDER = [
    "image_set = load_image_set(config)",
    "sampler = DistributedSampler(",
    "loaders = make_loaders(",
    "model = build_model(config, image_set)",
    "parallel",
    "loss_function = build_loss(config, model)",
    "def train_step(images, labels, mark):",
    'mark("transfer")',
    "return ",
    "context = ParallelContext(",
    "run(context, train_step, optimizer, loaders, image_set, config, options)",
]


def text_of(method):
    return (PROJECT / f"{method}_train.py").read_text(encoding="utf-8")


def body(method):
    """The lines of a script without docstrings, imports and blank lines."""
    tree, left_out = ast.parse(text_of(method)), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            left_out |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= {*range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text_of(method).splitlines(), start=1)
    return [line for number, line in lines if line.strip() and number not in left_out]


@pytest.mark.parametrize("one, other", SIMILAR)
def test_similar_scripts_differ_in_few_lines(one, other):
    changes = difflib.SequenceMatcher(None, body(one), body(other), autojunk=False).get_opcodes()
    changed = sum(max(end - start, till - begin) for what, start, end, begin, till in changes if what != "equal")
    assert 0 < changed <= 40


@pytest.mark.parametrize("method", MOST_LINES)
def test_a_script_is_short_and_has_the_common_structure(method):
    text = text_of(method)
    assert len(text.splitlines()) <= MOST_LINES[method] and text.count("\nfrom common.") <= 8
    place = 0
    for statement in ORDER:
        place = text.index(statement, place)
