"""Programs for failing_calls.py, in a directory with out/, tmp/, data/ and images/: trainings and a comparison of
pretended runs. What must hold however they end."""

import os
import re
import runpy
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.backends.backend_svg  # noqa: F401 - here, so that the forks need not import it
import numpy as np
import torch
import torchvision.transforms.v2  # noqa: F401
from PIL import Image

import common.models.sharded
import common.ranks.pipeline
import common.ranks.stages  # noqa: F401
import compare_parallel
from common.files.results import read_result, write_result
from common.machine.entry import run_script
from comparison.results_file import read_results
from comparison.run import launch, session, turns
from comparison.show import figures
from tests.failing_calls import attempt
from tests.fixtures import PROJECT, learned
from tests.reports import configuration, make_result, report_of, runs

FLAGS = "--image-size 8 --model mlp --batch-size 4 --num-workers 0 --threads 1 --device cpu --epochs 2"
RANKS = "--spawn 2 --dist-timeout 60"
SCRIPTS = {
    "one device": "data_parallel_train.py",
    "DDP": f"ddp_train.py {RANKS}",
    "two stages": "model_parallel_train.py",
    "a pipeline": f"pipeline_train.py {RANKS}",
    "FSDP": f"fsdp_train.py {RANKS}",
}


def make_images(folder: Path) -> None:
    """Make a folder of two classes with eight training images and four test images."""
    for number in range(12):
        file = folder / ("test" if number % 3 == 2 else "train") / f"class-{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(file)


def training(words: str, place: Path, *more: str):
    """Return a program that trains for two epochs, or for the second one if there is a checkpoint of the first."""
    out, (script, *own) = place / "out", words.split()
    flags = ["--dataset", f"folder:{place}/images", "--data-root", f"{place}/data", "--figure-dir", f"{out}/figures"]
    flags += [f"--{flag}={out}/{flag}" for flag in ("output", "save", "checkpoint")]

    def run():
        _prepare(place, script, *FLAGS.split(), *flags, f"--resume={out}/checkpoint", *own, *more)
        runpy.run_path(str(PROJECT / script), run_name="__main__")

    return run


def train_first_epoch(words: str, place: Path):
    """Train the first epoch. Return the program that trains the second one, and the check of its files."""
    ended = attempt(training(words, place, "--epochs", "1"), place)
    assert (ended.code, ended.err) == (0, "")
    out, program = place / "out", training(words, place)

    def check(_, ended):
        """Assert that all files are whole: of the first epoch, or of both, as they must be after success."""
        epochs = len(torch.load(out / "checkpoint", weights_only=True)["records"]), len(learned(out / "output"))
        read_result(out / "output")
        torch.load(out / "save", weights_only=True)
        assert {*epochs} <= ({1, 2} if ended.code else {2}), f"epochs: {epochs}"

    return program, check


def pretended_comparison(place: Path, second: str = 'cp made "$4"', grace: float = launch.GRACE):
    """Return a program that compares two rows whose runs copy a result. second: what the second one does instead."""
    write_result(make_result(), place / "made")
    commands = {"single": 'cp made "$4"', "ddp": second}
    shells = {method: ("sh", "-c", f'cd "{place}"; {command}', "sh") for method, command in commands.items()}
    rows = [(configuration(method, command=shell), runs(method, (2.0,))) for method, shell in shells.items()]
    memory = [{"device": "cpu", "peak_bytes": 10, "free_bytes": 1000}]
    report = report_of(*rows, repeats=1, tips=False, probe={"memory": memory})

    def plan(*_):
        return replace(report, outcomes=(), probe=None), []

    def compare():
        _prepare(place, "compare_parallel.py", "--output-dir", str(place / "out"), "--no-tips")
        compare_parallel.plan_comparison, session.run_probe = plan, lambda *_: report.probe
        compare_parallel.wait_for_others, turns.busy_seconds = lambda _: [], lambda: None  # other programs
        launch.GRACE = grace
        for name in [*figures.FIGURES][1:]:
            del figures.FIGURES[name]
        run_script(compare_parallel.main)

    return compare


def compare_first(place: Path):
    """Make a comparison. Return the program that makes another one in its directory, and the check of its files."""
    program, results = pretended_comparison(place), place / "out" / "results.json"
    ended = attempt(program, place)
    assert (ended.code, ended.err) == (0, "")
    before = results.read_bytes()

    def check(call, ended):
        """Assert that every run that was reported is in results.json, and that the earlier comparison is kept."""
        assert any(file.read_bytes() == before for file in results.parent.rglob("results.json")), (
            "the earlier one is lost"
        )
        for number, status in re.findall(r"^\[(\d+)/.*?: (\w+),", ended.out, re.MULTILINE):
            outcome = read_results(results).outcomes[int(number) - 1]
            assert outcome.status == status and (status == "ok" or call.path in outcome.reason), "a run is lost"

    return program, check


def _prepare(place, *words):
    tempfile.tempdir = None
    os.environ.update(TMPDIR=str(place / "tmp"), CUDA_VISIBLE_DEVICES="")
    os.chdir(PROJECT)
    sys.argv = [*words]
