"""What benchmarks/options.py makes of an option that this machine lacks."""

from types import SimpleNamespace

import options
import pytest
import torch


@pytest.mark.parametrize("fails", ["compile", "cuda_graph", None])
def test_an_option_that_cannot_be_measured_leaves_the_others(fails, monkeypatch):
    def steps_of(*_, **flags):
        def measure():
            if fails in flags:
                raise RuntimeError("operation not permitted when stream is capturing")
            return 1.0

        return measure

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(options, "available_devices", lambda _: [torch.device("cuda", 0)])
    monkeypatch.setattr(options, "has_compiler", lambda: True)
    monkeypatch.setattr(options.process, "prepare_process", lambda config, device: None)
    monkeypatch.setattr(options, "steps_of", steps_of)
    found = options.run_one(SimpleNamespace(case=("lenet", "32"), glibc_defaults=False, untuned=False))
    left = {"compile": "compile", "cuda_graph": "cuda graph"}
    assert {"compile", "cuda graph"} & {*found} == {name for flag, name in left.items() if flag != fails}
    assert found["defaults"] == found["bf16"] == [1.0] * 3
