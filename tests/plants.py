"""Plants mistakes into the GPU code and the runs of a comparison, one at a time. A given test has to detect each.

    python tests/plants.py
    python tests/plants.py "no set_device" "one call instead of twenty"

Each mistake is planted into a copy of the project. Its test runs in a fork of this process, which has imported torch. A
plant is red if a test fails, otherwise it survives.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parent.parent
COPIED = ("common", "comparison", "tests", "docs", "benchmarks")
SECONDS = 240  # time limit for a plant's tests, and for all tests without a plant
TIMES, RANKS, PRETENDED, SIMULATED = (
    f"tests/{name}.py"
    for name in (
        *("engine/test_gpu_times", "ranks/test_gpu_ranks", "machine/test_pretended_gpus"),
        "run/test_simulated_machine",
    )
)
OF_TESTS = {  # (file, tests, -k expression) → name → (text that occurs once in the file, replacement)
    ("common/engine/timing.py", TIMES, "stages"): {
        "event of another device": ("torch.cuda.current_stream(self.devices[0])", "torch.cuda.current_stream()"),
        "streams wait the wrong way": (
            "self._joined.wait_stream(torch.cuda.current_stream(device))",
            "torch.cuda.current_stream(device).wait_stream(self._joined)",
        ),
        "devices are not joined": (" if len(self.devices) > 1 else None", " if False else None"),
    },
    ("common/engine/timing.py", TIMES, "ends_on_all"): {
        "the first device alone is joined": (
            "for device in self.devices if self._joined else ():",
            "for device in self.devices[:1] if self._joined else ():",
        ),
        "the first device waits for the others": (
            "torch.cuda.Stream(self.devices[0]) if",
            "torch.cuda.current_stream(self.devices[0]) if",
        ),
    },
    ("common/engine/timing.py", TIMES, "stopwatch"): {
        "a stopwatch that does not wait": (
            "        synchronize(self.devices)\n        self.seconds",
            "        self.seconds",
        ),
        "the first device alone is waited for": (
            "for device in devices:\n        if device.type",
            "for device in devices[:1]:\n        if device.type",
        ),
    },
    ("common/engine/timing.py", TIMES, "blocks"): {
        "one call instead of twenty": ('"cuda": 20', '"cuda": 1'),
        "blocks timed without the device": ("with Stopwatch([images.device])", "with Stopwatch([])"),
    },
    ("common/ranks/replicas.py", TIMES, "parallel"): {
        "scatter and gather begin before the devices are done": ("self._timer.start()", "pass"),
        "replicas timed on the first device": ("SampledTimers(devices), len", "SampledTimers(devices[:1]), len"),
        "cuDNN tunes in threads that end": ("self.replicas == 1  #", "True  #"),
    },
    ("common/ranks/stages.py", TIMES, "stages"): {
        "stage 1 timed on device 0": ("devices[:1], devices[-1:]", "devices[:1], devices[:1]"),
        "stage 1 is not timed": ('timer1.mark("stage 1")', "pass"),
        "features go through the host": (
            "features.to(self.device1, non_blocking=True)",
            "features.cpu().to(self.device1)",
        ),
        "the host waits between stages": (
            "            timer1.start()",
            "            torch.cuda.synchronize()\n            timer1.start()",
        ),
    },
    ("common/engine/step.py", TIMES, "waits_for_the_host"): {
        "images are copied while the host waits": ("images.to(device, non_blocking=True,", "images.to(device,")
    },
    ("common/engine/step.py", TIMES, "one_kernel"): {
        "an optimizer that is not fused": ("nesterov=nesterov, fused=fused", "nesterov=nesterov, fused=False"),
        "Adam is not fused": ("fused=True", "fused=False"),
    },
    ("common/engine/step.py", PRETENDED, "channels_last"): {
        "images are not channels-last": (", memory_format=torch.channels_last)", ")")
    },
    ("common/engine/step.py", RANKS, "needs"): {
        "parts exchange each": (
            "with no_sync() if number < len(counts) else contextlib.nullcontext():",
            "with contextlib.nullcontext():",
        )
    },
    ("data_parallel_train.py", TIMES, "host"): {
        "labels are copied while the host waits": (
            "labels.to(place.device, non_blocking=True)",
            "labels.to(place.device)",
        )
    },
    ("common/data/loaders.py", TIMES, "host"): {
        "memory is not pinned": ('pin_memory=device.type == "cuda"', "pin_memory=False")
    },
    ("common/data/loaders.py", TIMES, "one_device"): {
        "the order is copied while the host waits": (
            "order.to(self.device, non_blocking=True)",
            "order.to(self.device)",
        )
    },
    ("common/engine/loop.py", TIMES, "one_device"): {
        "a value is asked for in every step": (
            "add_(loss.detach(), alpha=len(labels))",
            "add_(loss.item() * len(labels))",
        ),
        "the evaluation asks for counts": (
            "counts.scatter_add_(0, labels, torch.ones_like(labels))",
            "counts += labels.bincount(minlength=len(counts))",
        ),
        "waiting for data counts as transfer": ('timer.mark("data")', "pass"),
    },
    ("common/engine/loop.py", TIMES, "host"): {
        "every step is waited for": (
            'timer.mark("update")',
            'timer.mark("update")\n            torch.cuda.synchronize()',
        )
    },
    ("common/engine/loop.py", TIMES, "evaluation"): {
        "an evaluation with gradients": ("@torch.no_grad()\ndef evaluate", "def evaluate")
    },
    ("common/engine/loop.py", "tests/engine/test_engine.py", "shuffles"): {
        "set_epoch is forgotten": ("context.sampler.set_epoch(epoch)", "pass")
    },
    ("common/engine/loop.py", RANKS, "buffers"): {
        "buffers are not shared": ("place.share_buffers(context.network)", "pass")
    },
    ("common/engine/memory.py", TIMES, "peaks"): {
        "the peak of another device": ("max_memory_allocated(device)", "max_memory_allocated()"),
        "an evaluation counts as training": ("if not (self.gpus and self.epochs):", "if True:"),
        "one device's peak is reset": (
            "torch.cuda.reset_peak_memory_stats(device)",
            "torch.cuda.reset_peak_memory_stats()",
        ),
    },
    ("common/engine/run.py", TIMES, "whole_step"): {
        "a part's overhead for a step's": ("timers.milliseconds(batches)", "timers.milliseconds()")
    },
    ("common/engine/checkpoint.py", PRETENDED, "resumed"): {
        "every GPU's random numbers are the first one's": (
            "torch.cuda.get_rng_state(device) for",
            "torch.cuda.get_rng_state() for",
        ),
        "no GPU's random numbers go on": ("torch.cuda.set_rng_state(generator_state, device)", "pass"),
    },
    ("common/engine/compiled.py", TIMES, "recorded"): {
        "BatchNorm is not restored after a recording": ("buffer.copy_(before)", "pass"),
        "a recording for any shape": ("(graphed if batch.shape == images.shape else usual)", "graphed"),
        "a recording in eval mode": ("context.model.train(not config.eval_mode)", "context.model.eval()"),
    },
    ("common/machine/environment.py", "tests/machine/test_environment.py", "tf32"): {
        "TF32 is named where there is none": (">= (8, 0)", "< (8, 0)")
    },
    ("common/ranks/group.py", RANKS, "joins"): {
        "no device_id": ("device_id=self.device if on_gpu else None", "device_id=None"),
        "no heartbeat": ("self.after_batch = heartbeat.beat", "pass"),
        "gloo between GPUs": ('"nccl" if on_gpu else "gloo"', '"gloo"'),
    },
    ("common/engine/setup.py", "tests/engine/test_setup.py", "its_own"): {
        "no set_device": ("torch.cuda.set_device(device)", "pass")
    },
    ("ddp_train.py", RANKS, "buffers"): {"buffers in every step": ("parallel.broadcast_buffers = False", "pass")},
    ("ddp_train.py", RANKS, "last_gradient"): {
        "gradients are no views of the bucket": ("gradient_as_bucket_view=True, ", ""),
        "the exchange counts as backward": (
            'last_gradient.will_mark(mark, "backward")',
            'last_gradient.will_mark(lambda name: None, "")',
        ),
    },
    ("fsdp_train.py", RANKS, "weights"): {
        "FSDP has the whole model first": (
            "    shard(model, place)",
            "    model.to(place.device)\n    shard(model, place)",
        ),
        "FSDP leaves a block whole": ("(*blocks, model)", "(*blocks[1:], model)"),
    },
    ("common/programs/probe.py", RANKS, "link"): {
        "a link by gloo": ('("nccl", device) if', '("gloo", device) if'),
        "a link without device_id": ('("nccl", device) if', '("nccl", None) if'),
        "a link that is not waited for": ("Stopwatch([device]) for _ in range(4)", "Stopwatch([]) for _ in range(4)"),
    },
    ("common/programs/probe.py", TIMES, "loader"): {
        "a loader that is not waited for": (
            "synchronize([device])\n                images_per",
            "pass\n                images_per",
        )
    },
    ("common/programs/probe.py", TIMES, "blocks"): {
        "steps timed one by one": ("for _ in range(calls):", "for _ in range(1):")
    },
    ("comparison/run/turns.py", "tests/run/test_turns.py", "fit_onto"): {
        "turns without memory": ("free > ROOM * max(measured, default=need)", "free > 0")
    },
    ("comparison/run/session.py", SIMULATED, "schedules"): {
        "a run is on disk after the next": (
            "            output.write(report)\n            _tell_run",
            "            _tell_run",
        ),
        "--resume drops what ran out of memory": ('in ("ok", OUT_OF_MEMORY))', 'in ("ok",))'),
        "--resume keeps what failed": ('if outcome.status in ("ok", OUT_OF_MEMORY))', ")"),
        "a run is counted twice": ("(*report.outcomes, outcome))", "(*report.outcomes, outcome, outcome))"),
        "all blocks have one seed": ('settings["seed"] + block - 1', 'settings["seed"]'),
        "out of memory beside others is final": (
            'alone[outcome.configuration] = "memory did not suffice beside the other rows"',
            "yield outcome",
        ),
        "the time before an interruption is free": ("used, longest = spent(report)", "used, longest = 0.0, 0.0"),
    },
    ("comparison/run/lock.py", SIMULATED, "schedules"): {
        "a lock that no other command knows": ('".comparison.lock"', 'f"{id(self)}.lock"'),
        "a directory that was moved stays unlocked": ("if os.path.samestat(", "if self._file.parent or ("),
    },
    ("comparison/run/session.py", "tests/run/test_session.py", "last_planned_run"): {
        "a finished comparison needs no other block": (
            "    report = with_next_block(report, *spent(report))  #",
            "    pass  #",
        )
    },
    ("comparison/run/stopping.py", SIMULATED, "schedules"): {
        "a budget without end": (
            "if limited and (last or used + _seconds_of(names, report, block_seconds) > budget):",
            "if False:",
        ),
        "disturbed blocks are not repeated": ("- len(report.disturbed_blocks) < blocks", "< blocks"),
    },
    ("comparison/record.py", SIMULATED, "schedules"): {
        "a block that was set aside counts": ("or run.block not in self.set_aside]", "or True]")
    },
    ("comparison/outcomes.py", SIMULATED, "schedules"): {
        "no block is disturbed": ("return self.share > MOST_FOREIGN", "return False")
    },
    ("comparison/plan/plan.py", SIMULATED, "schedules"): {
        "all blocks have one order": ("shuffle.sample(names, len(names))]", "names]")
    },
    ("comparison/run/turns.py", SIMULATED, "schedules"): {
        "a killed script": ("                self._oom_kills = oom_kills()\n", ""),
        "no time limit": ("            if look > end:", "            if False:"),
        "a time limit that counts the waiting": ("self._timeout - self._wall_seconds)", "self._timeout)"),
        "rows train at the same time": (
            "                waiting.append(run)",
            "                run._gate.start_turn()\n                waiting.append(run)",
        ),
        "turns in one order": ("in shuffle.sample(waiting, len(waiting)):", "in waiting:"),
        "a killed run is out of memory": ("and oom_kills() > self._oom_kills:", "and True:"),
        "other programs are not seen": ("max(0.0, self._foreign_seconds)", "min(0.0, self._foreign_seconds)"),
    },
    ("comparison/run/launch.py", SIMULATED, "schedules"): {
        "a run's other sessions stay": ("            kill_tagged(tag)", "            pass"),
        "a run that ignores SIGTERM stays": ("            os.killpg(child.pid, signal.SIGKILL)", "            pass"),
    },
    ("common/files/writing.py", SIMULATED, "schedules"): {
        "a full disk leaves half a file": ("        Path(part.name).unlink(missing_ok=True)\n", "")
    },
    ("compare_parallel.py", SIMULATED, "schedules"): {
        "Ctrl-C is success": (
            'Run the same command with --resume to continue.", file=sys.stderr)\n        raise',
            'Run the same command with --resume to continue.", file=sys.stderr)',
        )
    },
}


class Plant(NamedTuple):
    """A mistake: `instead` replaces `text`, which occurs once in `file`. tests, words: file and -k of its tests."""

    file: str
    text: str
    instead: str
    tests: str
    words: str


PLANTS = {
    name: Plant(file, text, instead, tests, words)
    for (file, tests, words), plants in OF_TESTS.items()
    for name, (text, instead) in plants.items()
}


def run(project: Path, arguments: list[str], log: Path) -> int:
    """Run pytest on a project in a fork of this process. Return its exit code: 1 if a test fails, 5 without tests."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 2
    with suppress(BaseException):
        signal.alarm(SECONDS)
        os.chdir(project)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        flags = ("-q", "-x", "-m", "not slow", "--assert", "plain", "-p", "no:cacheprovider")
        code = int(pytest.main([*flags, *arguments]))
        if code == 0:
            files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
            installed = [name for name, file in files.items() if "site-packages" in file]
            (project / "imported").write_text("\n".join(installed))
    os._exit(code)


def plant_into(project: Path, plant: Plant, number: int) -> None:
    """Change a file of the project. Its unique time makes Python ignore the cached bytecode."""
    file = project / plant.file
    file.write_text(file.read_text(encoding="utf-8").replace(plant.text, plant.instead), encoding="utf-8")
    os.utime(file, (number, number))


def try_all(names: list[str]) -> dict[str, int]:
    """Plant each of these mistakes. Print the results and return pytest's exit codes."""
    codes = {}
    with tempfile.TemporaryDirectory() as directory:
        project, log = Path(directory, "project"), Path(directory, "log")
        os.environ.update(KEPT_DATA=str(Path(directory, "data")), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        for name in COPIED:
            shutil.copytree(PROJECT / name, project / name)
        for file in (*PROJECT.glob("*.py"), PROJECT / "pyproject.toml"):
            shutil.copy2(file, project)
        if run(project, sorted({PLANTS[name].tests for name in names}), log):
            sys.exit(f"without a plant, tests fail:\n{log.read_text()}")
        for module in (project / "imported").read_text().split():
            with suppress(Exception):
                import_module(module)
        for number, name in enumerate(names, start=1):
            plant, start = PLANTS[name], time.perf_counter()
            plant_into(project, plant, number)
            codes[name] = run(project, [plant.tests, "-k", plant.words], log)
            shutil.copy2(PROJECT / plant.file, project / plant.file)
            found = {1: "red", 0: "SURVIVED"}.get(codes[name], f"pytest ended with {codes[name]}:\n{log.read_text()}")
            print(f"{name}: {found} ({time.perf_counter() - start:.1f} s)", flush=True)
    return codes


if __name__ == "__main__":
    sys.path[:1] = []  # this directory; only forks import the project
    codes = try_all(sys.argv[1:] or [*PLANTS])
    print(f"{sum(code == 1 for code in codes.values())} of {len(codes)} are red")
    sys.exit({*codes.values()} != {1})
