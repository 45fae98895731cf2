"""Tests of benchmarks/runs.py: runs are saved at once, resumed, limited in time, and never mixed."""

import json
import subprocess
import sys
import time

import psutil
import pytest
import runs

from common.errors import FAILED, SuiteError


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """begin("--blocks", "3") returns the Runs of a new call with these flags."""

    def begin(*flags):
        monkeypatch.setattr(sys, "argv", ["some.py", "--output", str(tmp_path / "some.json"), *flags])
        return runs.Runs(runs.benchmark_parser("", blocks=4).parse_args())

    return begin


def rivals_of(made, *names):
    """Return rivals that append their names to `made` and return the number of calls so far."""
    return {name: lambda name=name: made.append(name) or float(len(made)) for name in names}


def test_rivals_take_turns_after_a_warm_up_block(begin):
    made = []
    values = begin().interleave(rivals_of(made, *"abc"))
    blocks = [made[start : start + 3] for start in range(0, 15, 3)]
    assert all(sorted(block) == ["a", "b", "c"] for block in blocks) and len({*map(tuple, blocks)}) > 1
    assert [len(own) for own in values.values()] == [4, 4, 4]
    assert min(min(own) for own in values.values()) > 3  # the warm-up is discarded
    made.clear()
    begin("--anew").interleave(rivals_of(made, "a"), warm_up=False)
    assert made == ["a"] * 4


def test_a_run_is_saved_before_the_next_begins_and_never_repeated(begin):
    made, first = [], begin()

    def last():
        assert [json.loads(line)["key"] for line in first.file.read_text().split("\n") if line] == ["a", "b"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.each({**rivals_of(made, "a", "b"), "c": last})
    with open(first.file, "a") as file:
        file.write('\n{"key": "c", "val')  # incomplete, as after a power failure
    second = begin("--minutes", "5", "--timeout", "7")  # irrelevant flags
    assert second.each(rivals_of(made, "a", "b", "c")) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert begin().each({"c": made.clear}) == {"c": 3.0} and made == ["a", "b", "c"]
    assert begin("--anew").each(rivals_of(made, "c")) == {"c": 4.0}


def test_an_interrupted_block_is_repeated_after_a_warm_up(begin):
    made, calls = [], []

    def stop():
        calls.append(1)
        if len(calls) == 9:  # the last run of the second block, including the warm-up
            raise KeyboardInterrupt
        return -1.0

    with pytest.raises(KeyboardInterrupt):
        begin().interleave(dict.fromkeys("abc", stop))
    values = begin().interleave(rivals_of(made, *"abc"))
    assert len(made) == 3 * 4 and all(own[0] == -1.0 for own in values.values())
    assert all(number > 3 for own in values.values() for number in own[1:])


@pytest.mark.parametrize("change", ["flags", "machine", "code"])
def test_runs_with_other_flags_machines_or_code_are_kept_apart(begin, monkeypatch, change):
    first, other = begin(), ("--data-root", "elsewhere") if change == "flags" else ()
    first.each({"a": int})
    if change == "machine":
        monkeypatch.setattr(runs, "describe_environment", lambda: {**first.environment, "torch": "0.1"})
    if change == "code":
        monkeypatch.setattr(runs, "code_checksum", lambda: "another")
    assert begin(*other).lines == {} and begin(*other).file != first.file and first.file.exists()


def test_no_run_begins_that_would_exceed_the_minutes(begin):
    first, made = begin("--minutes", "0.001"), []
    assert first.each({"a": lambda: time.sleep(0.07) or 1, **rivals_of(made, "b", "c")}) == {"a": 1}
    assert first.left == 2 and made == []
    second = begin("--minutes", "0.0001")
    assert second.interleave({"x": lambda: time.sleep(0.01) or 1}, warm_up=False) == {"x": [1, 1]} and second.left == 2
    assert begin("--minutes", "1").each(rivals_of(made, "a", "b", "c")) == {"a": 1, "b": 1.0, "c": 2.0}


def test_a_run_that_times_out_is_killed_with_all_its_processes_and_saved(begin, tmp_path):
    command = f"sleep 60 & echo $! > {tmp_path}/pid; wait"

    def hang():
        subprocess.run(["setsid", "sh", "-c", command])

    first, made = begin("--timeout", "1"), []
    assert first.each({"hang": hang, **rivals_of(made, "next")}) == {"next": 1.0}
    assert first.timed_out == ["hang"] and first.left == 0
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert begin("--timeout", "1").timed_out == ["hang"] and begin("--timeout", "2").timed_out == []
    values = begin("--timeout", "0.2").interleave({**rivals_of(made, "a"), "b": lambda: time.sleep(5)})
    assert [*values] == ["a"] and len(values["a"]) == 4


def call(tmp_path, monkeypatch, measure, *flags):
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/some.py", "--output", str(tmp_path / "some.json"), *flags])
    runs.benchmark(
        runs.benchmark_parser("", blocks=4).parse_args(), measure, lambda found: f"table of {found['values']}"
    )
    return json.loads((tmp_path / "some.json").read_text())


def test_results_name_the_machine_and_warn_of_other_programs(tmp_path, capsys, monkeypatch):
    for foreign, warned in ((99.0, "other programs kept 99.0 of"), (0.0, "")):
        monkeypatch.setattr(runs.Runs, "foreign_cores", foreign)
        written = call(tmp_path, monkeypatch, lambda given: {"values": given.each({"a": int})}, "--anew")
        said = capsys.readouterr()
        assert warned in said.err and bool(warned) == bool(said.err)
        machine = written["environment"]
        assert (
            said.out.startswith("table of {'a': 0}\n\n") and f"{machine['cores']} cores of {machine['cpu']}" in said.out
        )
        assert f"torch {machine['torch']}" in said.out and written["foreign_cores"] == foreign and written["left"] == 0
        assert written["command"] == f"python benchmarks/some.py --output {tmp_path}/some.json"
        assert not [*tmp_path.glob("*.jsonl")]


def test_remaining_and_timed_out_runs_are_reported(tmp_path, capsys, monkeypatch):
    slow = {"a": lambda: time.sleep(0.1) or 1, "b": int}
    written = call(tmp_path, monkeypatch, lambda given: {"values": given.each(slow)}, "--minutes", "0.001")
    assert written["left"] == 1 and "1 run left" in capsys.readouterr().out and [*tmp_path.glob("*.jsonl")]
    with pytest.raises(SuiteError, match=r"timed out: a; .*--timeout") as caught:
        call(tmp_path, monkeypatch, lambda given: {"values": given.each(slow)}, "--timeout", "0.05", "--anew")
    assert caught.value.exit_code == FAILED
    assert json.loads((tmp_path / "some.json").read_text())["values"] == {"b": 0}
    with pytest.raises(SuiteError, match="too few runs for a table"):
        call(tmp_path, monkeypatch, lambda given: {"values": given.each(slow)["a"]}, "--timeout", "0.05", "--anew")
