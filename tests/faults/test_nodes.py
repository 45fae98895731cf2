"""Trainings on three nodes that are really apart: a sample of the episodes of tests/nodes.py."""

import os

import pytest

from benchmarks import network
from tests import slurm
from tests.nodes import Episode, players

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(os.geteuid() or network.missing() or slurm.missing()), reason="needs root and SLURM"),
]
SAMPLE = [
    (Episode("by hand", "ddp_train.py", "rendezvous host", 0, 3, 0.1, False), "named"),
    (Episode("torchrun", "fsdp_train.py", "rank", 1, 4, 0.1, False), "recovered"),
    (Episode("srun", "pipeline_train.py", "data different", 2, 0, 0.0, False), "named"),
]


@pytest.fixture(scope="module")
def player():
    with players() as player:
        yield player


@pytest.mark.parametrize("episode, outcome", SAMPLE, ids=str)
def test_an_episode(episode, outcome, player, record_fault):
    ended = player.play(episode)
    record_fault(str(episode), None, ended["line"], ended["seconds"])
    assert ended["outcome"] == outcome
