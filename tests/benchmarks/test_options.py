"""Tests of benchmarks/options.py."""

import contextlib
import io
import json
import sys
from types import SimpleNamespace

import options
import pytest
import torch


@pytest.fixture(autouse=True)
def stub_process(monkeypatch):
    """Let options.py change nothing in this process."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)  # restored after the test
    monkeypatch.setattr(options.process, "prepare_process", lambda config, device: None)
    monkeypatch.setattr(options.process, "keep_freed_memory", None)


@pytest.mark.parametrize("broken", ["compile", "cuda_graph", None])
def test_an_option_that_fails_is_left_out(broken, monkeypatch):
    def steps_of(*_, **flags):
        def measure():
            if broken in flags:
                raise RuntimeError("operation not permitted when stream is capturing")
            return 1.0

        return measure

    monkeypatch.setattr(options, "available_devices", lambda _: [torch.device("cuda", 0)])
    monkeypatch.setattr(options, "steps_of", steps_of)
    found = options.run_one(SimpleNamespace(case=("lenet", "32"), glibc_defaults=False, untuned=False))
    names = {"compile": "compile", "cuda_graph": "cuda graph"}
    assert {"compile", "cuda graph"} & {*found} == {name for flag, name in names.items() if flag != broken}
    assert found["defaults"] == found["bf16"] == [1.0] * 3


@pytest.mark.parametrize("kind, others", [("cpu", ["--glibc-defaults"]), ("cuda", ["--glibc-defaults", "--untuned"])])
def test_process_wide_options_are_measured_in_separate_processes(kind, others, monkeypatch, tmp_path):
    """In a shared process, cuDNN would reuse its plans and glibc its memory."""
    started, cudnn = [], torch.backends.cudnn
    monkeypatch.setattr(options, "CASES", [("lenet", 32)])
    monkeypatch.setattr(options, "available_devices", lambda _: [torch.device(kind)])
    monkeypatch.setattr(options, "steps_of", lambda *_, **__: lambda: 1.0 if cudnn.benchmark else 3.0)

    def run(*command):
        started.extend(command[4:])
        monkeypatch.setattr(sys, "argv", list(command))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            options.main()
        return json.loads(printed.getvalue())

    monkeypatch.setattr(options, "printed_by", run)
    monkeypatch.setattr(sys, "argv", ["options.py", "--blocks", "2", "--output", str(tmp_path / "options.json")])
    options.main()
    assert sorted(started) == sorted(2 * others)
    (medians,) = json.loads((tmp_path / "options.json").read_text())["milliseconds_per_step"].values()
    assert medians["defaults"] == medians["memory returned"] == [1.0, 1.0]
    assert medians.get("cuDNN not tuned") == ([3.0, 3.0] if kind == "cuda" else None)
