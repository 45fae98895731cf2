"""Properties: a malformed file or command line is accepted, or raises a SuiteError with the right exit code."""

import contextlib
import copy
import json
from functools import partial

import pytest
import torch

import compare_parallel
from common.errors import DATA, FAILED, USAGE, SuiteError
from common.files.checksums import json_checksum
from common.settings import config
from comparison import results_file
from comparison.methods import Machine
from comparison.show import report
from tests.fixtures import make_config, misfits
from tests.reports import configuration, make_result, report_of, runs
from tests.trainings import make_checkpoints

hypothesis, st = map(pytest.importorskip, ("hypothesis", "hypothesis.strategies"))
given, settings = hypothesis.given, hypothesis.settings
LETTERS = st.text(st.sampled_from("a1 $_{}\\%|\n\x00\x1b\ud800é中-"), max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    LETTERS,
    st.sampled_from([10**400, -(2**63), 2**31, 1e300, 5e-324, "ok", "failed", "single", "cpu"]),
)
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LETTERS, inner, max_size=3))
few = partial(settings, deadline=None, database=None, derandomize=True)


@st.composite
def mutated(draw, values):
    """A copy of `values` with one to three parts, at any depth, replaced, deleted or swapped."""
    values = copy.deepcopy(values)
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(places(values))
        change = draw(st.sampled_from(["put", "put", "delete", "swap"]))
        if change == "put":
            parent[key] = draw(JUNK)
        elif change == "delete" and len(values) > 1:
            del parent[key]
        elif change == "swap":
            other, place = draw(places(values))
            parent[key] = copy.deepcopy(other[place])
    return values


@st.composite
def places(draw, values):
    """(A dict or list within `values`, one of its keys)."""
    while True:
        key = draw(st.sampled_from(sorted(values, key=str) if isinstance(values, dict) else range(len(values))))
        inner = values[key]
        if not isinstance(inner, (dict, list)) or not inner or draw(st.integers(0, 3)) == 0:
            return values, key
        values = inner


@contextlib.contextmanager
def allowed(*codes):
    """Allow only a one-line SuiteError with one of these exit codes."""
    try:
        yield
    except SuiteError as error:
        assert error.exit_code in codes and "\n" not in str(error), error


def schema_errors(values, schema):
    """Violations of a schema, except in the values of flags, which are not checked when a file is read."""
    return [error.message for error in misfits(values, schema) if "config" not in error.absolute_path]


@pytest.fixture(scope="module")
def comparison_values(tmp_path_factory):
    """The values of a small results.json: two rows, one of them with a failed run."""
    rows = [(configuration(), runs(epochs=2)), (configuration("ddp"), [*runs("ddp", epochs=2, count=2)[:2], "failed"])]
    directory = tmp_path_factory.mktemp("values")
    results_file.write_results(report_of(*rows), directory)
    return json.loads((directory / "results.json").read_text())


def test_results_of_comparisons(comparison_values, tmp_path, type_in, monkeypatch):
    monkeypatch.setattr(report.figures, "draw_all", lambda *_: [])  # takes a second
    file = tmp_path / "results.json"
    outcomes = {"shown": 0, "refused": 0}

    @few(max_examples=100)
    @given(mutated({name: value for name, value in comparison_values.items() if name != "sha256"}), st.booleans())
    def check(values, diff):
        signed = {**values, "sha256": json_checksum(values)}
        file.write_text(json.dumps(signed))
        type_in("compare_parallel.py", *(("--diff", file, file) if diff else ("--from", file)))
        with allowed(DATA):
            try:
                compare_parallel.main()
            except SystemExit as ended:
                assert ended.code == FAILED  # because of the failed run
            outcomes["shown"] += 1
            assert not schema_errors(signed, "results")
            return
        outcomes["refused"] += 1

    check()
    assert min(outcomes.values()) > 2, outcomes


def test_checkpoints(tmp_path):
    file = tmp_path / "file.pt"
    known = make_config(checkpoint=str(file), resume=str(file), model="mlp")
    make_checkpoints(known).keep(make_result().epochs[:1])

    @few(max_examples=60)
    @given(mutated(torch.load(file, weights_only=True)))
    def check(values):
        torch.save(values, file)
        with allowed(DATA, USAGE):
            make_checkpoints(known).resume()

    check()


VALUES = st.one_of(
    LETTERS,
    st.integers(-1, 2**32).map(str),
    st.floats().map(str),
    st.sampled_from(
        "0 1 2 0.5 1e400 mnist synthetic-mnist lenet folder:. x.py:build ladder ddp single:num-workers=2 all 1,2 --lr "
        "٣ ١e3 0x10 1_0 90s 3% ../.. /dev/null".split()
    ),
)
WORDS = [config.option(name) for name in config.FLAGS if name != "debug"]
OWN = (
    "--methods --baseline --nproc --micro-batches --threads-per-device --scaling --repeats --budget --margin --twin "
    "--no-twin --against --prove --equal-within --allow-unequal --check-maths --project --link-gbps --timeout --resume"
).split()
CREATING = ["--output", "--save", "--checkpoint", "--figure-dir", "--data-root"]  # these create the path they name


def flags(words):
    """Up to four flags with up to two values each."""
    word = st.sampled_from([word for word in words if word not in CREATING])
    values = st.lists(VALUES, max_size=2)
    return st.lists(st.tuples(word, values), max_size=4).map(
        lambda typed: [text for word, values in typed for text in (word, *values)]
    )


def test_flags_of_a_script(type_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @few(max_examples=200)
    @given(flags(WORDS))
    def check(words):
        type_in("ddp_train.py", *words)
        with allowed(USAGE):
            config.parse(config.script_parser(""))

    check()


def test_flags_of_a_comparison(type_in, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    environment = {"torch": "2.11.0", "gpus": [], "cores": 2}
    monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(0, 2), environment))
    monkeypatch.setattr(compare_parallel, "find_blocks", lambda models, stages, _: dict.fromkeys(models, 2))
    monkeypatch.setattr(compare_parallel, "print_estimate", lambda *_: None)  # it would run a probe

    @few(max_examples=200)
    @given(flags([*WORDS, *OWN]))
    def check(words):
        type_in("compare_parallel.py", "--dry-run", *words)
        with allowed(USAGE, DATA):
            compare_parallel.main()

    check()
