"""Accounts of steps and runs: their parts add up, and have intervals."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.files.results import LongSteps, PhaseTimes, Waits
from comparison.judge.analysis import analyse
from comparison.judge.ranks import critical_phases, critical_rank, mean_ranks, queued_share, rank_means
from comparison.judge.statistics import mean_excess, t_quantile
from comparison.judge.steps import LATE, Time, account_for_steps, growth, make_account, run_time, step_time
from comparison.results_file import read_results
from tests.reports import STEP_MS, configuration, each_epoch, halves, make_result, rank, report_of, run, runs

PHASES = ("data", "transfer", "forward", "backward", "update")
FIGURES = Path(__file__).parents[2] / "figures"


def time_of(names, draw, outside):
    parts = {name: draw() for name in names}
    return Time(sum(parts.values()) + outside, parts)


def test_parts_add_up_to_the_difference():
    rng = random.Random(0)
    for _ in range(50):
        known = [rng.sample(PHASES, rng.randint(0, 5)) for _ in range(2)]
        share, blocks = rng.choice([1.0, 0.5, 0.125, 2.0]), rng.randint(1, 6)
        pairs = [
            tuple(time_of(names, lambda: rng.uniform(0, 10), rng.uniform(0, 1)) for names in known)
            for _ in range(blocks)
        ]
        account = make_account(pairs, share)
        assert {part.name for part in account.parts} == {*known[0]} & {*known[1]} | {"outside"}
        assert sum(part.value for part in account.parts) == pytest.approx(account.total.value, abs=1e-12)
        own, other = (sum(pair[side].whole for pair in pairs) / blocks for side in (0, 1))
        assert (account.value, account.expected) == pytest.approx((own, share * other))
        assert account.total.value == pytest.approx(own - share * other, abs=1e-12)


def test_intervals_are_students_and_wider_for_several_claims():
    alone, of_five = mean_excess("data", [1.0, 2.0, 3.0]), mean_excess("data", [1.0, 2.0, 3.0], claims=5)
    assert (alone.value, alone.margin) == pytest.approx((2.0, 4.30265 / 3**0.5), rel=1e-4)  # t(2) at 97.5%
    assert of_five.margin == pytest.approx(9.92484 / 3**0.5, rel=1e-4)  # at 99.5%
    assert (mean_excess("data", [1.0]).low, mean_excess("data", [1.0]).proved) == (None, False)
    assert mean_excess("data", [-1.0, -1.1, -0.9]).proved


def test_parts_of_all_accounts_have_simultaneous_intervals():
    rows = analyse(read_results(FIGURES / "cifar10-resnet8" / "results.json")).rows
    compared = [entry for entry in rows if entry.accounts.steps]
    assert len(compared) == 5
    for entry in compared:
        alone = account_for_steps(entry.row, entry.standing.baseline, entry.standing.devices)
        one, all = (t_quantile(4, 1 - 0.05 / accounts / len(alone.parts)) for accounts in (1, 10))  # of five blocks
        assert entry.accounts.steps.total == alone.total
        for part, other in zip(entry.accounts.steps.parts, alone.parts, strict=True):
            assert part.margin == pytest.approx(other.margin * all / one)


def test_phases_are_the_critical_ranks():
    waits, works = replace(rank(halves(exchange=7.0)), train_seconds=0.271), rank(halves(forward=11.0))
    for ranks, critical in (((waits, works), 1), ((works, waits), 0)):
        result = run(*ranks)
        means, time = rank_means(result), step_time(result)
        assert critical_rank(means) is means[critical]
        assert {phases.forward for phases in critical_phases(result)} == {11.0}
        assert time.parts == pytest.approx(halves(forward=11.0)) and list(time.parts) == [*STEP_MS]
        assert time.whole == pytest.approx(27.1)  # the slowest rank's
    slowest = critical_rank(rank_means(run(rank(halves(forward=6.0)), replace(rank(halves()), train_seconds=0.22))))
    assert slowest.phases["forward"] == pytest.approx(5.0)  # without an exchange
    assert critical_rank(rank_means(make_result())) is None


def test_the_means_of_a_rank_are_over_all_steps_and_of_what_every_epoch_knows():
    first, second = rank(STEP_MS, waits=Waits(1.0, {"data": 1.0})), rank({**STEP_MS, "data": 5.0})

    def means_of(*epochs):
        made = run(first)
        steps = zip((10, 30, 10), (first, *epochs), strict=True)
        kept = tuple(replace(made.epochs[0], steps=count, ranks=(own,)) for count, own in steps)
        (means,) = rank_means(replace(made, epochs=kept))
        return means

    means = means_of(first, replace(second, waits=Waits(5.0, {"data": 5.0})))
    assert (means.step, means.cpu, means.queued) == pytest.approx((21.0, 0.95 * 21.0, 0.01 * 21.0))  # 0.84 s, 40 steps
    assert (means.phases["data"], means.waited, means.caused["data"]) == pytest.approx((2.0, 2.0, 2.0))
    unknown = means_of(first, replace(second, queue_seconds=None))
    assert (unknown.queued, unknown.waited, unknown.caused) == (None, None, {})


def test_the_means_over_one_run_are_its_own_and_ranks_queue_on_average():
    own = [rank(STEP_MS, queued=queued, waits=Waits(queued, {"data": queued})) for queued in (0.1, 0.1, 0.4)]
    own[0] = replace(own[0], long_steps={"data": LongSteps(0.1, 2.0, 4)})
    means = rank_means(run(*own))
    assert mean_ranks([means]) == tuple(means) and (means[2].waited, means[2].caused) == (0.4, {"data": 0.4})
    assert queued_share([means], 2).value == pytest.approx(0.1)
    (mean,) = mean_ranks([[one] for one in means])  # of three runs
    assert (mean.waited, mean.caused["data"], mean.queued / mean.step) == pytest.approx((0.2, 0.2, 0.2))


def test_one_device_exchanges_nothing_and_older_results_have_no_exchange():
    alone = dict(data=1.0, transfer=0.5, forward=20.0, backward=40.0, exchange=0.0, update=3.0)
    assert step_time(make_result()).parts == {**alone, LATE: 0.0}
    assert "exchange" not in step_time(make_result("ddp", devices=("cpu", "cpu"))).parts
    two_stages = PhaseTimes(1.0, update=3.0, rest=50.0)
    assert step_time(make_result("mp", phases=two_stages)).parts == {"data": 1.0, "update": 3.0}


@pytest.mark.parametrize("seconds, warm_up, training", [((3.0, 2.0, 2.2), 0.9, 6.3), ((3.0,), 0.0, 3.0)])
def test_a_run_is_start_up_warm_up_training_and_evaluation(seconds, warm_up, training):
    time = run_time(make_result(seconds=seconds, startup_seconds=5.0, total_seconds=14.0))
    parts = {"start-up": 5.0, "warm-up": warm_up, "training": training, "evaluation": 0.5 * len(seconds)}
    assert time.parts == pytest.approx(parts) and time.whole == 14.0
    warmed = run_time(make_result(seconds=seconds, startup_seconds=5.0, total_seconds=14.0, timed_from=1))
    assert warmed.parts == pytest.approx({"start-up": 5.0, "training": sum(seconds), "evaluation": parts["evaluation"]})


@pytest.mark.parametrize("images, expected", [(1, 100.0), (2, 200.0)])
def test_the_expected_step_depends_on_its_images(images, expected):
    results = [each_epoch(result, samples=1000 * images) for result in runs("ddp", count=2, world_size=2)]
    single, ddp = report_of((configuration(), runs()), (configuration("ddp"), results)).rows
    assert account_for_steps(ddp, single, 2.0).expected == pytest.approx(expected)  # half of 200 ms


def test_blocks_are_paired_without_failed_runs():
    slower = [2.0, 4.0, 6.0]
    report = report_of(
        (configuration(), runs(seconds=slower)),
        (configuration("ddp"), ["failed", *runs("ddp", seconds=[4.1, 6.1], count=2)]),
    )
    account = account_for_steps(report.rows[1], report.rows[0], 1.0)
    assert account.total.value == pytest.approx(10.0) and account.total.margin == pytest.approx(0.0, abs=1e-9)
    nothing = report_of((configuration(), runs(seconds=[2.0])), (configuration("ddp"), ["failed", *runs()[:1]]))
    assert account_for_steps(nothing.rows[1], nothing.rows[0], 1.0) is None


def test_late_ranks_in_some_blocks_are_a_part():
    pairs = [(Time(11.0, {"update": 10.0, LATE: late}), Time(10.0, {"update": 10.0, LATE: 0.0})) for late in (0.0, 1.0)]
    assert {part.name: part.value for part in make_account(pairs, 1.0).parts}[LATE] == pytest.approx(0.5)
    assert LATE not in {part.name for part in make_account(pairs[:1] * 2, 1.0).parts}
    only_the_baseline = make_account([(other, own) for own, other in pairs], 1.0)
    assert {part.name: part.value for part in only_the_baseline.parts}[LATE] == pytest.approx(-0.5)


def test_a_rank_waits_for_others_at_most_as_long_as_it_exchanges():
    waits = [replace(one, waits=Waits(5.0, {})) for one in (rank(halves(exchange=3.0)), rank(halves(exchange=3.0)))]
    parts = step_time(run(*waits)).parts
    assert (parts["exchange"], parts[LATE]) == (0.0, 3.0)


def test_the_share_of_queued_threads_is_unknown_without_records_of_every_rank():
    recorded, unrecorded = (rank_means(run(rank(STEP_MS, queued=share))) for share in (0.2, None))
    assert queued_share([recorded, recorded], 2).value == pytest.approx(0.1)
    for ranks in ([], unrecorded, [*recorded, *unrecorded]):
        assert queued_share([recorded, ranks], 2) is None


def test_growth_with_slices_of_unequal_length():
    samples = np.array([50, 100, 300, 100, 200])  # the first slice is not timed
    rates = 0.01 * (1 + 0.001 * (np.cumsum(samples) - samples / 2))  # seconds per sample, in the middle of each
    result = make_result(seconds=list(map(float, samples * rates)))
    epochs = zip(result.epochs, samples, strict=True)
    result = replace(result, epochs=tuple(replace(epoch, samples=int(own)) for epoch, own in epochs))
    mean = (samples * rates)[1:].sum() / samples[1:].sum()
    (row,) = report_of((configuration(), [result] * 3)).rows
    assert growth(row).value == pytest.approx((rates[-1] - rates[1]) / mean)
