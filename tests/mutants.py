"""Mutation testing of the code that computes and shows numbers: `make mutants`.

    python tests/mutants.py [SEED [NUMBER]]

Plants NUMBER random mistakes one at a time, runs the quickest tests that reach each, and lists the mistakes that no
test detects.
"""

import ast
import builtins
import gc
import importlib
import os
import pickle
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from copy import deepcopy
from importlib.machinery import SourceFileLoader
from itertools import zip_longest
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
SLOW = "tests/show/test_figures.py tests/show/test_page.py"
TESTS = (  # run in parallel
    f"{SLOW} tests/files tests/settings tests/engine/test_optimizers.py",
    " ".join(
        [
            "tests/show tests/judge tests/plan tests/run/test_cards.py tests/run/test_tips.py "
            "tests/run/test_session.py tests/run/test_compare.py tests/engine/test_memory.py",
            *(f"--ignore={file}" for file in SLOW.split()),
        ]
    ),
)
STARTS = {"browser", "project", "compare", "train"}  # fixtures that start programs, which takes too long
WARM_UP = ("tests.conftest", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
SECONDS = 12.0  # of tests of WHOLE outputs that are run for each mistake, and of others
QUICK = 2.0  # of the quickest tests, which run first
WHOLE = ("tests/show/test_seen", "tests/show/test_committed")
# without < and <=, which differ only for equal times
OPERATORS = "Lt Gt|LtE GtE|Eq NotEq|Is IsNot|In NotIn|Add Sub|Mult Div|And Or"
NAMES = "min max|any all|low high|peak together|fastest_epoch slowest_epoch|train_loss test_loss|mean median|start end|\
train_seconds evaluate_seconds|startup_seconds total_seconds|samples steps|work exchange|timed_epochs epochs|\
cpu queued|is_baseline rivals_baseline|rows all_rows|images_per_second epoch_seconds"
CODES = {}  # of the project's modules, to be imported: by file
RAN = set()  # what has run of the functions of FILES: see marked()
COMPUTES = (ast.BinOp, ast.Subscript, ast.Assign, ast.Compare)  # numbers elsewhere mostly set a figure's looks
LOOKS = ("height", "width")  # arguments that only set the looks of a figure
DROPPED = "markdown printable escape render abs sorted reversed sum narrowed widened set".split()


def both_ways(pairs, convert=str):
    swaps = {}
    for left, right in (pair.split() for pair in pairs.split("|")):
        swaps |= {convert(left): convert(right), convert(right): convert(left)}
    return swaps


OPERATORS, NAMES = both_ways(OPERATORS, lambda name: getattr(ast, name)), both_ways(NAMES)


def without_effect(file, tree):
    """Yield the nodes in which a mistake changes no result."""
    for node in ast.walk(tree):
        numbers = [child.value for child in ast.iter_child_nodes(node) if type(getattr(child, "value", 0)) is float]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            yield node.left  # both bounds of an interval are None, or neither
        if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "results":
            yield node  # the settings and devices of a row's first run are those of each
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.UnaryOp):
            yield node.value  # the last epoch is one of the timed epochs
        if isinstance(node, ast.BoolOp) and all(
            re.search(r"\.(low|high) is None", ast.unparse(one)) for one in node.values
        ):
            yield node
        if any(0 < number <= 1e-6 for number in numbers):
            yield node  # a tolerance
        if numbers and isinstance(node, ast.BinOp) and file.endswith("plots.py"):
            yield node  # a size in inches, or a position
        if file.endswith("figures.py") and (numbers or (isinstance(node, ast.BinOp) and "MARGIN" in ast.unparse(node))):
            yield node  # a margin in inches, or the share of a panel's width for its title
        if isinstance(node, ast.keyword) and node.arg in LOOKS:
            yield from ast.walk(node)


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
    """Yield (file, index of the node, index of its mistake, kind, line, name of the constant, if it is in one)."""
    for file, tree in FILES.items():
        within, spared = {tree: (0, "", False)}, {id(node) for node in without_effect(file, tree)}
        for index, node in enumerate(ast.walk(tree)):  # parents come first
            line, name, inside = within.setdefault(node, (0, "", False))
            line, inside = getattr(node, "lineno", line), inside or isinstance(node, (ast.FunctionDef, ast.Lambda))
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                name = name if inside else getattr(target, "id", name)
            within |= dict.fromkeys(ast.iter_child_nodes(node), (line, name, inside))
            for number, (kind, *_) in enumerate(() if id(node) in spared else mistakes_in(node)):
                yield file, index, number, kind, line, "" if inside else name


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
    return pytest.main(
        ["-p", "no:cacheprovider", "--assert=plain", "-m", "not slow and not fault", *more, *which], plugins
    )


def marked(file, spans):
    """Return a file's tree, in which functions add to RAN the index in `spans` of each statement that they run.

    spans: extended by the lines of each statement, as a set of (file, line).
    """
    tree = deepcopy(FILES[file])

    def mark(node):
        inner = getattr(node, "body", None)
        last = max(node.lineno, inner[0].lineno - 1) if isinstance(inner, list) else node.end_lineno
        spans.append({(file, line) for line in range(node.lineno, last + 1)})
        return ast.parse(f"_ran({len(spans) - 1})").body[0]

    every = [*ast.walk(tree)]
    parts = (part for node in every if isinstance(node, ast.FunctionDef) for part in ast.walk(node))
    blocks = [getattr(part, name, None) for part in parts for name in ("body", "orelse", "finalbody")]
    for block in {id(block): block for block in blocks if isinstance(block, list)}.values():
        block[:] = [one for node in block for one in (mark(node), node)]
    for node in every:
        if isinstance(node, ast.Lambda):
            node.body = ast.BoolOp(ast.Or(), [mark(node).value, node.body])
    return ast.fix_missing_locations(tree)


class Trace:
    """A pytest plugin that writes, for each test, its time and the lines in functions of FILES that it runs.

    Lines that run while a module is imported, or in a fixture that tests share, count for all tests of the module.
    """

    def __init__(self, output):
        self.output, self.spans, self.reached, self.shared = output, [], {}, defaultdict(set)
        builtins._ran = RAN.add
        CODES.update((file, compile(marked(file, self.spans), file, "exec")) for file in FILES)

    def into(self, indices):
        before = {*RAN}
        RAN.clear()
        yield
        indices |= RAN
        RAN.clear()
        RAN.update(before)

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if STARTS.isdisjoint(item.fixturenames)]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector):
        yield from self.into(self.shared[collector.path])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        yield from self.into(self.own if fixturedef.scope == "function" else self.shared[request.node.path])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        # critical values take long
        forget(keep="" if "test_statistics" in item.nodeid else "comparison.judge.statistics")
        start, self.own = time.process_time(), set()
        yield from self.into(self.own)
        self.reached[item] = time.process_time() - start, self.own

    def pytest_sessionfinish(self):
        reached = {
            item.nodeid: (seconds, set().union(*(self.spans[index] for index in indices | self.shared[item.path])))
            for item, (seconds, indices) in self.reached.items()
        }
        self.output.write_bytes(pickle.dumps(reached))


def forget(keep):
    """Empty the caches of FILES, so that each test runs what it uses, except those of the module `keep`."""
    for module in [*sys.modules.values()]:
        for value in vars(module).values() if getattr(module, "__file__", "") in FILES else ():
            if getattr(value, "__module__", "") != keep:
                getattr(value, "cache_clear", int)()


def trace():
    """Return test → (seconds, {(file, line), …}, rarity) of all TESTS. rarity: high if few tests run the same lines."""
    with TemporaryDirectory() as directory:
        outputs = [Path(directory, str(number)) for number in range(len(TESTS))]
        children = [
            in_child(lambda own=own: run_tests(own[0].split(), [Trace(own[1])]))
            for own in zip(TESTS, outputs, strict=True)
        ]
        for pid in children:
            if os.waitpid(pid, 0)[1]:
                sys.exit("the tests are red without any mistake")
        reached = {test: own for output in outputs for test, own in pickle.loads(output.read_bytes()).items()}
    times = Counter(line for _, ran in reached.values() for line in ran)
    return {test: (seconds, ran, sum(1 / times[line] for line in ran)) for test, (seconds, ran) in reached.items()}


def tests_of(reached, file, line, name):
    """Return tests that run a mistake's line, or one with its constant: of WHOLE outputs, and of others by turns those
    that run most of the file and those that run what few tests run. The quickest come first."""
    lines = {(file, line)}
    if name:
        users = ((own, Path(own).read_text().splitlines()) for own in FILES)
        lines = {(own, at) for own, text in users for at, one in enumerate(text, 1) if re.search(rf"\b{name}\b", one)}
    every = {(file, at) for at in range(1, 1000)}
    if not any(lines & ran for _, ran, _ in reached.values()):  # used only while modules are imported
        lines = every
    able = sorted((seconds, test) for test, (seconds, ran, _) in reached.items() if not lines.isdisjoint(ran))
    whole = [own for own in able if own[1].startswith(WHOLE)]
    package = f"/{Path(file).parent.name}/"
    others = defaultdict(list)  # by function: those of the file's own package, and that run most of the file, first
    for own in sorted(able, key=lambda own: (package not in own[1], -len(every & reached[own[1]][1]))):
        others[own[1].partition("[")[0]].append(own)
    in_turn = [own for same in zip_longest(*others.values()) for own in same if own and own not in whole]
    rare = sorted(in_turn, key=lambda own: -reached[own[1]][2] / max(own[0], 0.03) * (3 if package in own[1] else 1))
    both = dict.fromkeys(own for pair in zip(rare, in_turn, strict=True) for own in pair)
    chosen = {*within(SECONDS, both)}
    quick = sorted(within(QUICK, (own for own in able if own[1] in chosen)))
    return [*quick, *within(SECONDS, whole), *sorted(chosen - {*quick})] or [test for _, test in able[:1]]


def within(seconds, tests):
    """Yield the tests that together take at most so long."""
    for needed, test in tests:
        if needed <= seconds:
            seconds -= needed
            yield test


def is_red(mistake, reached, placebo):
    """Return whether the tests of a mistake fail or take too long. placebo: run them without the mistake."""
    file, _, _, _, line, name = mistake
    chosen = tests_of(reached, file, line, name)
    if not placebo:
        CODES[file] = compile(planted(*mistake)[0], file, "exec")
    signal.alarm(60 + 20 * int(SECONDS))
    signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)  # of computing, in a loop without end
    return bool(chosen) and run_tests(chosen, (), "-x", "-q") != 0


def warm_up():
    """Import what the tests use, so that children start fast, but keep only the code of the project's own modules."""
    get_code = SourceFileLoader.get_code
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing hypothesis would take a second in each child
    sys.path[0] = str(PROJECT)  # instead of tests/, whose packages have the names of others
    modules = (f"tests.{file.parent.name}.{file.stem}" for file in PROJECT.glob("tests/[js][uh]*/test_*.py"))
    for name in (*WARM_UP, *modules):
        importlib.import_module(name)
    ours = {file.stem for file in PROJECT.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        module = sys.modules.pop(name)
        CODES[module.__file__] = module.__loader__.get_code(name)
    SourceFileLoader.get_code = lambda self, name: CODES.get(self.path) or get_code(self, name)
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
