"""Tests catch the mistakes that tests/plants.py plants into the GPU code."""

import subprocess
import sys

import pytest

from tests.fixtures import PROJECT
from tests.plants import PLANTS


def test_the_text_of_every_plant_occurs_once():
    for name, plant in PLANTS.items():
        assert (PROJECT / plant.file).read_text(encoding="utf-8").count(plant.text) == 1, name


@pytest.mark.slow
def test_every_plant_is_caught():
    done = subprocess.run([sys.executable, "tests/plants.py"], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(PLANTS)} of {len(PLANTS)} are red" in done.stdout, done.stdout + done.stderr
