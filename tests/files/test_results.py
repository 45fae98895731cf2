"""Results on disk: written and read again, checked against the schemas, refused if malformed."""

import json
import math
import zipfile
from contextlib import nullcontext
from dataclasses import replace

import pytest

from common.errors import SuiteError
from common.files.describe import describe_end, describe_epoch, result_name
from common.files.reading import as_record, refuse_inflated
from common.files.results import SCHEMA_VERSION, RankTimes, RunResult, read_result, write_result
from tests.fixtures import PROJECT, misfits, put
from tests.reports import PHASES, make_result

FIGURES = PROJECT / "figures"
RUNS = sorted(FIGURES.glob("*.json"))
COMPARISONS = sorted(file for file in FIGURES.rglob("*.json") if '"in_turns":' in file.read_text())


def test_results_survive_writing_and_reading(tmp_path):
    ranks = (RankTimes(2.0, PHASES, 1.9, 0.05), RankTimes(1.5, replace(PHASES, exchange=9.0), 1.4, None))
    result = make_result("ddp", method_milliseconds={"gather": 0.25}, devices=("cpu", "cpu"))
    result = replace(result, epochs=tuple(replace(epoch, ranks=ranks) for epoch in result.epochs))
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result


def test_nan_is_null_in_json(tmp_path):
    write_result(make_result(seconds=(math.nan,)), tmp_path / "result.json")
    written = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["epochs"][0]["train_seconds"] is None
    assert math.isnan(read_result(tmp_path / "result.json").epochs[0].train_seconds)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("}", "", "JSONDecodeError"),
        (f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99', "its schema_version is 99, not "),
        ('"steps": ', '"steps": 1e400, "coffee": ', "a number in it is not finite"),
        ('"steps": ', f'"steps": {2**63}, "coffee": ', "is too large a number"),
        ('"steps": ', f'"steps": -{10**400}, "coffee": ', "is too large a number"),
        ('"steps": ', '"coffee": 1, "steps": ', r"\$\.epochs\[0\]\.coffee is unknown"),
        ('"data_ranks": 1,', "", r"\$\.data_ranks is missing"),
    ],
)
def test_damaged_results_are_refused(old, new, message, tmp_path):
    file = tmp_path / "result.json"
    write_result(make_result(), file)
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(SuiteError, match=f"cannot read the result file .*result.json; .*{message}"):
        read_result(file)


@pytest.mark.parametrize("file", [*RUNS, *COMPARISONS], ids=lambda file: str(file.relative_to(FIGURES)))
def test_committed_results_fit_their_schema(file):
    assert not misfits(json.loads(file.read_text()), "run-result" if file in RUNS else "results")


@pytest.mark.parametrize(
    "place, value",
    [
        (("epochs", 0, "train_seconds"), "1.5"),
        (("epochs", 0, "phases", "coffee"), 1.0),
        (("devices",), "cpu"),
        (("devices",), []),
        (("epochs", 0, "epoch"), 2**63),
        (("simulated",), 0),
        (("schema_version",), 99),
        (("config", "lr"), "high"),
    ],
    ids=str,
)
def test_schema_and_reader_refuse_wrong_values(place, value):
    values = json.loads(RUNS[0].read_text())
    put(value, values, *place)
    assert misfits(values, "run-result")
    with nullcontext() if "config" in place else pytest.raises(ValueError):  # the reader does not know the flags
        as_record(values, RunResult)


@pytest.mark.parametrize("content", [b"\0" * 9999, b"x"])
def test_a_compressed_archive_is_refused_even_if_it_becomes_no_larger(content, tmp_path):
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.zip", "w", compression) as archive:
            archive.writestr("x", content)
            archive.writestr("stored", b"y", zipfile.ZIP_STORED)
        with nullcontext() if compression == zipfile.ZIP_STORED else pytest.raises(ValueError, match="compressed"):
            refuse_inflated(tmp_path / "x.zip")


def test_descriptions_of_a_result():
    line = describe_epoch(make_result().epochs[0], 10)
    assert line.startswith("Epoch [1/10], Loss: 1.0000, Dur: 3.00 s, test accuracy: 60.00%, 333 images/s, ms/step: ")
    reached = replace(make_result(), config={"target_accuracy": 0.99})
    assert "s to a test accuracy of 99.00%; " in describe_end(reached)
    assert "s without reaching a test" in describe_end(replace(reached, status="not reached"))
    assert result_name(make_result("ddp", devices=("cpu", "cpu"))) == "synthetic-mnist-lenet-ddp-2"
    assert result_name(make_result("mp", simulated=True)) == "synthetic-mnist-lenet-mp-simulated"


@pytest.mark.parametrize("before", ["", "x", "xy"])
def test_a_long_name_is_cut_between_characters(before):
    result = make_result()
    name = result_name(replace(result, config={**result.config, "dataset": before + "数" * 99}))
    assert name.encode().decode() == name and len(name.encode()) < 200
    assert name.startswith(f"{before}数数") and name.endswith("-single")
