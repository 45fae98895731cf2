"""The scenarios of which the truth is known: what is recommended in them is judged by that truth."""

from dataclasses import replace

import decisions
import pytest

from comparison.judge.analysis import analyse


def verdict_of(seed, **changed):
    """What is said of the first training of a scenario, if the comparison had decided otherwise."""
    scenario = decisions.draw(seed)
    analysis = analyse(decisions.observe(scenario, seed))
    return decisions._verdict(seed, scenario, analysis, replace(analysis.decisions[0], **changed))


def test_scenarios_are_drawn_again_by_their_seed_and_differ():
    assert decisions.draw(3) == decisions.draw(3) != decisions.draw(4)
    assert len({decisions.draw(seed).cut for seed in range(40)}) == 2


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_no_wrong_row_is_recommended(seed):
    assert [found.wrong for found in decisions.judge(seed)] == [""] * len(decisions.judge(seed))


def test_a_worse_row_has_a_regret_and_a_wrong_one_is_found():
    found = next(seed for seed in range(0, 40, 2) if verdict_of(seed).kind == "use")
    scenario = decisions.draw(found)
    analysis = analyse(decisions.observe(scenario, found))
    decision = analysis.decisions[0]
    worst = decision.rows[-1]
    assert worst is not decision.best and verdict_of(found, best=worst).regret > verdict_of(found).regret
    assert decisions.contradiction(analysis, replace(decision, tied=(*decision.tied, decision.best))) == ""
    beaten = {name: replace(ratio, value=0.5, low=0.4, high=0.6) for name, ratio in decision.ratios.items()}
    assert "proved to be faster" in decisions.contradiction(analysis, replace(decision, ratios=beaten))
    assert "must not be used" in decisions.contradiction(
        analysis, replace(decision, tied=(worst,), out={worst.name: "it"})
    )
    assert verdict_of(found, kind="few runs").wrong == "none, few runs"
