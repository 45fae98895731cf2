"""Mutation testing of the code that computes and shows numbers: `make mutants`.

    python tests/mutants.py [SEED [NUMBER]]

Plants NUMBER random mistakes one at a time, runs the quickest tests that reach each, and lists the mistakes that no
test detects.
"""

import ast
import gc
import importlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from copy import deepcopy
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PROJECT = Path(__file__).resolve().parent.parent
NUMBER, MIN_DETECTED = 300, 0.95
PLACEBOS = 10  # times that tests run without a mistake, and must pass
PATTERNS = (
    "comparison/judge/*.py comparison/show/*.py comparison/plan/*.py common/files/[dpr]*.py common/settings/[st]*.py"
)
FILES = {str(file): ast.parse(file.read_text()) for part in PATTERNS.split() for file in sorted(PROJECT.glob(part))}
TESTS = ("tests/show", "tests/judge tests/plan tests/files tests/settings tests/run/test_cards.py")  # run in parallel
WARM_UP = ("tests.conftest", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
SECONDS = 6.0  # of tests that are run for each mistake, the quickest first
# without < and <=, which differ only for equal times
OPERATORS = "Lt Gt|LtE GtE|Eq NotEq|Is IsNot|In NotIn|Add Sub|Mult Div|And Or"
NAMES = "min max|any all|low high|peak together|fastest_epoch slowest_epoch|train_loss test_loss|mean median|start end|\
train_seconds evaluate_seconds|startup_seconds total_seconds|samples steps|work exchange|timed_epochs epochs|\
cpu queued|is_baseline rivals_baseline|rows counterparts|images_per_second epoch_seconds"
COMPUTES = (ast.BinOp, ast.Subscript, ast.Assign, ast.Compare)  # numbers elsewhere mostly set a figure's looks
DROPPED = "markdown printable escape render abs sorted reversed sum narrowed widened float set".split()


def both_ways(pairs, convert=str):
    swaps = {}
    for left, right in (pair.split() for pair in pairs.split("|")):
        swaps |= {convert(left): convert(right), convert(right): convert(left)}
    return swaps


OPERATORS, NAMES = both_ways(OPERATORS, lambda name: getattr(ast, name)), both_ways(NAMES)


def mistakes_in(node):
    """Yield (kind, field, new value) of every possible mistake in a node."""
    operator, name = getattr(node, "op", None), "attr" if isinstance(node, ast.Attribute) else "id"
    if type(operator) in OPERATORS:
        yield "operator", "op", OPERATORS[type(operator)]()
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield "comparison", "ops", [OPERATORS[type(node.ops[0])](), *node.ops[1:]]
    if isinstance(node, (ast.IfExp, ast.If, ast.While)) and not isinstance(node.test, ast.Compare):
        yield "condition", "test", ast.UnaryOp(ast.Not(), node.test)
    if (used := getattr(node, name, "")) in NAMES and (name == "attr" or used in ("min", "max", "any", "all")):
        yield "name", name, NAMES[used]
    for field, child in ast.iter_fields(node):
        if isinstance(child, ast.UnaryOp) and isinstance(child.op, (ast.Not, ast.USub)):
            yield "not or sign", field, child.operand
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") in DROPPED and len(child.args) == 1:
            yield "call", field, child.args[0]
        if type(getattr(child, "value", "")) in (int, float) and isinstance(node, COMPUTES):
            yield "number", field, ast.Constant(child.value + 1 if type(child.value) is int else 1.5 * child.value)


def every_mistake():
    """Yield (file, index of the node, index of its mistake, kind, line, function or "")."""
    for file, tree in FILES.items():
        within = {tree: ("", False)}
        for index, node in enumerate(ast.walk(tree)):  # parents come first
            name, inside = within.setdefault(node, ("", False))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not inside:
                name, inside = f"{name}.{node.name}".lstrip("."), isinstance(node, ast.FunctionDef)
            within |= dict.fromkeys(ast.iter_child_nodes(node), (name, inside))
            for number, (kind, *_) in enumerate(mistakes_in(node)):
                yield file, index, number, kind, getattr(node, "lineno", 0), name * inside


def planted(file, index, number, *_):
    """Return a file's tree with a mistake, and a description "before → after"."""
    tree = deepcopy(FILES[file])
    node = next(node for position, node in enumerate(ast.walk(tree)) if position == index)
    before, (_, field, value) = ast.unparse(node), list(mistakes_in(node))[number]
    setattr(node, field, value)
    return ast.fix_missing_locations(tree), f"{before[:90]}  →  {ast.unparse(node)[:90]}"


def in_child(act):
    """Run act() in a child process, which exits with its value. Return the pid."""
    if pid := os.fork():
        return pid
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.chdir(PROJECT)
    os._exit(int(act()))


def run_tests(which, plugins=(), *more):
    return pytest.main(["-p", "no:cacheprovider", "-m", "not slow and not fault", *more, *which], plugins)


class Trace:
    """A pytest plugin that writes, for each test, its time and the functions of FILES it calls."""

    def __init__(self, output):
        self.output, self.reached = output, {}

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if "browser" not in item.fixturenames]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        codes, start = set(), time.process_time()
        sys.settrace(lambda frame, *_: codes.add(frame.f_code) if frame.f_code.co_filename in FILES else None)
        yield
        sys.settrace(None)
        called = {(code.co_filename, code.co_qualname.partition(".<locals>")[0]) for code in codes}
        self.reached[item.nodeid] = time.process_time() - start, *called

    def pytest_sessionfinish(self):
        self.output.write_text(json.dumps(self.reached))


def trace():
    """Return test → [seconds, [file, function], …] of all TESTS."""
    with TemporaryDirectory() as directory:
        outputs = [Path(directory, str(number)) for number in range(len(TESTS))]
        children = [
            in_child(lambda own=own: run_tests(own[0].split(), [Trace(own[1])]))
            for own in zip(TESTS, outputs, strict=True)
        ]
        for pid in children:
            if os.waitpid(pid, 0)[1]:
                sys.exit("the tests are red without any mistake")
        return {test: calls for output in outputs for test, calls in json.loads(output.read_text()).items()}


def tests_of(reached, file, line, function):
    """Return the quickest tests that call a mistake's function, those of its own package first.

    For a mistake in a constant, these are the tests that call anything in the files that use it.
    """
    name = re.match(r"\w*", Path(file).read_text().splitlines()[line - 1])[0] or "nothing"
    files = [own for own in FILES if own == file or re.search(rf"\b{name}\b", Path(own).read_text())]
    chosen, total, package = [], 0.0, f"/{Path(file).parent.name}/"
    for test, (seconds, *calls) in sorted(reached.items(), key=lambda item: (package not in item[0], item[1][0])):
        if any([own, called] == [file, function] if function else own in files for own, called in calls):
            total += seconds
            if total < SECONDS or not chosen:
                chosen.append(test)
    return chosen


def is_red(mistake, reached, placebo):
    """Return whether the tests of a mistake fail or take too long. placebo: run them without the mistake."""
    file, _, _, _, line, function = mistake
    chosen, get_code = tests_of(reached, file, line, function), SourceFileLoader.get_code
    if not placebo:
        code = compile(planted(*mistake)[0], file, "exec")
        SourceFileLoader.get_code = lambda self, name: code if self.path == file else get_code(self, name)
    signal.alarm(60 + 10 * int(SECONDS))
    return bool(chosen) and run_tests(chosen, (), "-x", "-q") != 0


def warm_up():
    """Import the dependencies of the tests, so that children start fast, but forget the project's own modules."""
    sys.path.insert(0, str(PROJECT))
    for name in (
        *WARM_UP,
        *(f"tests.{file.parent.name}.{file.stem}" for file in PROJECT.glob("tests/[jps]*/test_*.py")),
    ):
        importlib.import_module(name)
    ours = {file.stem for file in PROJECT.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    gc.freeze()


def main():
    start, (seed, number) = time.perf_counter(), (*map(int, sys.argv[1:]), *(1, NUMBER)[len(sys.argv) - 1 :])
    warm_up()
    reached = trace()
    print(f"{len(reached)} tests were traced in {time.perf_counter() - start:.0f} s", flush=True)
    chosen = random.Random(seed).sample([*every_mistake()], number)
    left = [*((mistake, False) for mistake in chosen), *((mistake, True) for mistake in chosen[:PLACEBOS])]
    running, red = {}, {}
    while left or running:
        while left and len(running) < os.cpu_count():
            own = left.pop()
            running[in_child(lambda own=own: is_red(own[0], reached, own[1]))] = own
        pid, status = os.wait()
        mistake, placebo = running.pop(pid)
        if placebo and status:
            sys.exit(f"tests are red without any mistake: {tests_of(reached, *mistake[:1], *mistake[4:])}")
        if not placebo:
            red[mistake] = status != 0
        if not (placebo or status):
            file, _, _, kind, line, _ = mistake
            print(f"{file.removeprefix(f'{PROJECT}/')}:{line}: {kind}: {planted(*mistake)[1]}", flush=True)
    for kind, count in Counter(mistake[3] for mistake in red).most_common():
        print(f"{kind}: {sum(red[mistake] for mistake in red if mistake[3] == kind)} of {count}")
    share = sum(red.values()) / len(red)
    print(f"{share:.1%} of {len(red)} mistakes are red, in {time.perf_counter() - start:.0f} s")
    sys.exit(share < MIN_DETECTED)


if __name__ == "__main__":
    main()
