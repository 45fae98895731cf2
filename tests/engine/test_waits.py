"""Planted steps: which rank came last to the exchange and why, and which steps are long."""

import random
from dataclasses import replace

import pytest

from common.engine.shares import FEWEST_STEPS, RING, Training, long_steps_of, merge, series_of, waits_of

EVEN = {"data": 1.0, "transfer": 0.5, "forward": 5.0, "backward": 10.0, "exchange": 2.0, "update": 1.0}


def series(*steps):
    """Return a series of EVEN steps with these changes."""
    return series_of((name, value) for step in steps for name, value in {**EVEN, **step}.items())


@pytest.mark.parametrize(
    "ranks, waited, caused",
    [
        ([({"forward": 9.0}, {}), ({"exchange": 6.0}, {})], [0.0, 2.0], [{"forward": 2.0}, {}]),  # in 1 of 2 steps
        (
            [({"data": 5.0}, {"exchange": 6.0}), ({"exchange": 6.0}, {"backward": 14.0})],  # each once
            [2.0, 2.0],
            [{"data": 2.0}, {"backward": 2.0}],
        ),
        ([({"update": 4.0}, {}), ({}, {"exchange": 5.0})], [0.0, 1.5], [{"update": 1.5}, {}]),  # of the step before
        ([({"forward": 8.0},), *[({"exchange": 5.0},)] * 3], [0.0, 3.0, 3.0, 3.0], [{"forward": 3.0}, {}, {}, {}]),
    ],
)
def test_the_last_rank_caused_the_wait_in_the_phase_that_took_longer(ranks, waited, caused):
    waits = waits_of([series(*steps) for steps in ranks])
    assert [rank.waited for rank in waits] == waited
    found = [{name: value for name, value in rank.caused.items() if value} for rank in waits]
    assert found == [pytest.approx(expected) for expected in caused]


@pytest.mark.parametrize(
    "ranks", [[series({})], [(), ()], [series({"exchange": 0.0})] * 2, [series({}), series({}, {})]]
)
def test_waits_are_unknown_without_comparable_exchanges(ranks):
    assert waits_of(ranks) == (None,) * len(ranks)


def test_only_the_last_steps_are_kept():
    kept = series(*[{"data": float(step)} for step in range(RING + 3)])
    assert len(kept) == RING and kept[0][0] == 3.0


def jittered(phase="forward", longer=lambda step: 0.0, steps=60):
    """Return steps with random variation; longer(step): milliseconds to add to a phase."""
    generator = random.Random(7)
    planned = [{name: value * generator.lognormvariate(0, 0.1) for name, value in EVEN.items()} for _ in range(steps)]
    return series(*({**step, phase: step[phase] + longer(number)} for number, step in enumerate(planned)))


@pytest.mark.parametrize(
    "longer, share, milliseconds, period",
    [
        (lambda step: 8.0 * (step % 2), 1 / 2, 4.0, 2),
        (lambda step: 40.0 * (step % 20 == 19), 1 / 20, 2.0, 20),
        (lambda step: 40.0 * (step in (3, 10, 11, 29, 44, 58)), 1 / 10, 4.0, None),
        (lambda step: 40.0 * (step in (0, 1, 2)), 3 / 60, 2.0, None),  # only at the start
        (lambda step: 40.0 * (step in (5, 22)), 2 / 60, 4 / 3, None),  # a single gap is not a period
        (lambda step: 8.0 * (step >= 30), 1 / 2, 4.0, None),  # the second half
        (lambda step: 40.0 * (step in (25, 55)), 2 / 60, 4 / 3, 30),  # as many as fit
    ],
)
def test_long_steps_have_a_share_and_a_period(longer, share, milliseconds, period):
    ((name, long),) = long_steps_of(jittered(longer=longer)).items()
    assert (name, long.period) == ("forward", period)
    assert (long.share, long.milliseconds) == (pytest.approx(share), pytest.approx(milliseconds, rel=0.1))


def test_a_short_last_step_makes_no_others_long():
    steps = jittered(longer=lambda step: 40.0 * (step % 20 == 19) - 9.0 * (step == 60), steps=61)
    assert long_steps_of(jittered(longer=lambda step: -9.0 * (step == 59))) == {}
    uneven = Training(0, seconds=1.0, samples=60 * 128 + 20, steps=61, series=steps)
    assert merge(1, [uneven], []).ranks[0].long_steps == long_steps_of(steps[:-1])
    stages = merge(1, [replace(uneven, samples=0), uneven], [])  # of a pipeline, of which the last has the loss
    assert stages.ranks[0].long_steps == stages.ranks[1].long_steps
    assert long_steps_of(steps[:-1])["forward"].period == 20


def test_random_variation_and_short_series_have_no_long_steps():
    assert long_steps_of(jittered()) == long_steps_of(series(*[{}] * 60)) == {}
    assert long_steps_of(jittered(longer=lambda step: 8.0 * (step % 2), steps=FEWEST_STEPS - 1)) == {}
    assert long_steps_of(jittered("data", longer=lambda step: 1.0 * (step % 20 == 19))) == {}  # 0.05 of 20 ms
