"""Mistakes that are planted into the suite's work on GPUs are seen: see tests/plants.py."""

import subprocess
import sys

import pytest

from tests.fixtures import PROJECT
from tests.plants import PLANTS


def test_every_plant_has_its_place():
    counts = {
        name: (PROJECT / plant.file).read_text(encoding="utf-8").count(plant.text) for name, plant in PLANTS.items()
    }
    assert {name: count for name, count in counts.items() if count != 1} == {}


@pytest.mark.slow
def test_every_plant_is_red():
    done = subprocess.run([sys.executable, "tests/plants.py"], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(PLANTS)} of {len(PLANTS)} are red" in done.stdout, done.stdout + done.stderr
