"""Tests of benchmarks/decisions.py, which judges recommendations in scenarios with known true times."""

from dataclasses import replace

import decisions
import pytest

from comparison.judge.analysis import analyse


def verdict_of(seed, **changes):
    """Return the verdict on the first decision in a scenario, with some of its fields changed."""
    scenario = decisions.draw(seed)
    analysis = analyse(decisions.observe(scenario, seed))
    return decisions._verdict(seed, scenario, analysis, replace(analysis.decisions[0], **changes))


def test_a_scenario_is_determined_by_its_seed():
    assert decisions.draw(3) == decisions.draw(3) != decisions.draw(4)
    assert len({decisions.draw(seed).cut for seed in range(40)}) == 2


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_no_wrong_row_is_recommended(seed):
    assert not [found.wrong for found in decisions.judge(seed) if found.wrong]


def test_worse_and_wrong_recommendations_are_detected():
    seed = next(seed for seed in range(0, 40, 2) if verdict_of(seed).kind == "use")
    analysis = analyse(decisions.observe(decisions.draw(seed), seed))
    decision = analysis.decisions[0]
    worst = decision.eligible[-1]
    assert worst is not decision.best and verdict_of(seed, best=worst).regret > verdict_of(seed).regret
    assert verdict_of(seed, kind="few runs").wrong == "none, few runs"

    def contradiction(**changes):
        return decisions.contradiction(analysis, replace(decision, **changes))

    assert contradiction(tied=(*decision.tied, decision.best)) == ""
    beaten = {name: replace(ratio, value=0.5, low=0.4, high=0.6) for name, ratio in decision.ratios.items()}
    assert "proved to be faster" in contradiction(ratios=beaten)
    assert "must not be used" in contradiction(tied=(worst,), ineligible={worst.name: "it"})
