import json
import math
from dataclasses import replace

import pytest

from common.errors import SuiteError
from common.files.describe import describe_epoch, result_name
from common.files.results import SCHEMA_VERSION, RankTimes, read_result, write_result
from common.files.writing import write_json
from tests.reports import PHASES, make_result


def test_round_trip(tmp_path):
    result = make_result(method_milliseconds={"gather": 0.25}, devices=("cpu", "cpu"))
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result


def test_every_ranks_times_are_kept(tmp_path):
    ranks = (RankTimes(2.0, PHASES, 1.9, 0.05), RankTimes(1.5, replace(PHASES, exchange=9.0), 1.4, None))
    result = make_result("ddp")
    result = replace(result, epochs=tuple(replace(epoch, ranks=ranks) for epoch in result.epochs))
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result


def test_nan_is_null_in_json_and_nan_again(tmp_path):
    result = make_result(seconds=(math.nan,))
    write_result(result, tmp_path / "result.json")
    written = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["epochs"][0]["train_seconds"] is None
    assert math.isnan(read_result(tmp_path / "result.json").epochs[0].train_seconds)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 1}'),
        lambda text: text.replace('"world_size"', '"world"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_result_is_one_clear_error(damage, tmp_path):
    file = tmp_path / "result.json"
    write_result(make_result(), file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(SuiteError, match="cannot read the result file .*result.json"):
        read_result(file)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "result.json"
    write_json({"old": 1}, file)
    with pytest.raises(TypeError):
        write_json({"new": object()}, file)
    assert json.loads(file.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_the_epoch_line_is_the_promised_one():
    line = describe_epoch(make_result().epochs[0], 10)
    assert line.startswith("Epoch [1/10], Loss: 1.0000, Dur: 3.00 s, test accuracy: 60.00%, 333 images/s, ms/step: ")


def test_names_of_figures_tell_data_set_model_method_and_devices():
    assert result_name(make_result("ddp", devices=("cpu", "cpu"))) == "synthetic-mnist-lenet-ddp-2"
    assert result_name(make_result("mp", simulated=True)) == "synthetic-mnist-lenet-mp-simulated"
