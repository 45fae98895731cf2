"""The parts of a row's difference, and what its ranks and cores tell: each planted alone, in numbers made by hand."""

import re
from dataclasses import replace

import pytest

from common.files.results import PhaseTimes, RankTimes
from comparison.judge.analysis import analyse
from comparison.show.figures import draw_all
from comparison.show.report import write_markdown
from comparison.show.tables import account_tables, rank_table
from comparison.show.verdict import verdict
from tests.reports import (
    ENVIRONMENT,
    JITTER,
    STEP_MS,
    configuration,
    ddp,
    halves,
    make_result,
    pipeline,
    rank,
    report_of,
    row,
    run,
    single,
)

CPU = ("cpu",)


def judged(*rows, **settings):
    """What is named of the last row, and its paragraph."""
    report = report_of(*rows, **settings)
    analysis = analyse(report)
    return [cause.kind for cause in analysis.rows[-1].causes], verdict(analysis)[len(rows) - 1]


def test_nothing_is_named_where_nothing_is_planted():
    assert judged(single(), ddp(rank(halves()), rank(halves())))[0] == []


@pytest.mark.parametrize(
    "phase, place",
    [
        ("data", "waiting for data"),
        ("transfer", "the transfer to the device"),
        ("forward", "the forward pass"),
        ("backward", "the backward pass"),
        ("exchange", "the exchange of gradients"),
        ("update", "the update"),
    ],
)
def test_a_slow_phase_is_named_with_its_time(phase, place):
    slow = rank(halves(**{phase: halves()[phase] + 6.0}))
    names, words = judged(single(), ddp(slow, slow))
    assert names == [phase]
    assert "A step takes 26.0 ms, 6.0 ± 0.0 ms more than an even share of the baseline's (20.0 ms): 6.0 ± " in words
    assert f"0.1 ms more in {place}" in words


def test_parts_are_named_in_the_order_of_size_also_what_is_saved():
    slow = rank(halves(exchange=9.0, forward=2.0, update=5.0))
    names, words = judged(single(), ddp(slow, slow))
    assert names == ["exchange", "forward", "update"]
    assert "ms): 9.0 ± 0.1 ms more in the exchange of gradients, 3.0 ± 0.0 ms less in the forward pass, 1.0 ± " in words


def test_what_is_outside_of_the_phases_is_named_too():
    long = replace(rank(halves()), train_seconds=0.26)
    assert judged(single(), ddp(long, long))[0] == ["outside"]


def test_little_is_not_worth_a_word_and_noise_proves_nothing():
    little = rank(halves(forward=5.3))
    assert judged(single(), ddp(little, little))[0] == []
    noisy = [run(rank(halves(forward=forward)), rank(halves(forward=forward))) for forward in (5.0, 25.0, 10.0)]
    names, words = judged(single(), row("ddp", noisy))
    assert names == ["noise"] and "an even share of the baseline's (20.0 ms): where, is not proved." in words


def test_an_older_result_has_the_exchange_in_its_backward_pass():
    def old(runs):
        forget = [
            replace(
                each,
                epochs=tuple(
                    replace(epoch, ranks=(), phases=replace(epoch.phases, exchange=None)) for epoch in each.epochs
                ),
            )
            for each in runs
        ]
        return forget

    configured, runs = ddp(rank(halves(backward=16.0)), rank(halves(backward=16.0)))
    names, words = judged(single(), (configured, old(runs)))
    assert names == ["backward"]
    assert "6.0 ± 0.1 ms more in the backward pass and in what the devices exchange during it" in words


def test_a_straggler_is_named_with_its_rank_and_its_phase():
    waits, works = rank(halves(exchange=6.0)), rank(halves(forward=11.0))
    for ranks, number in (((waits, works), 1), ((works, waits), 0)):
        names, words = judged(single(), ddp(*ranks))
        assert names == ["forward", "straggler"]
        assert f"Rank {number} has 6.0 ± 0.0 ms more to do in a step than the others" in words
        assert "most of it in the forward pass" in words
    waits, works = rank(halves(exchange=0.5)), rank(halves(forward=5.5))
    assert "straggler" not in judged(single(), ddp(waits, works))[0]


@pytest.mark.parametrize(
    "values, kind, words",
    [
        ({"environment": ENVIRONMENT}, "shared cores", "2 threads share 1 core; give it more cores"),
        ({}, "shared cores", "of 2: look for other programs, or type --bind, which"),
        (
            {"config": {**make_result().config, "bind": True}},
            "shared cores",
            "of 2: look for other programs; what sends for a rank has no cores but the rank's own.",
        ),
        (
            {"devices": ("cuda:0 (A)", "cuda:1 (A)")},
            "shared cores",
            "of 2: look for other programs, and for what binds processes to the same cores.",
        ),
        ({"workers_per_process": 2}, "too many workers", "2 threads and 4 loader workers share 2 cores; fewer"),
    ],
)
def test_ranks_without_a_core_are_named(values, kind, words):
    starved = rank(halves(), cpu=0.5, queued=0.45)
    alone = {"workers_per_process": 2 * values.get("workers_per_process", 0), "devices": values.get("devices", CPU)[:1]}
    base = single(**alone, **{name: value for name, value in values.items() if name == "config"})
    names, paragraph = judged(base, ddp(starved, starved, **values))
    assert names == [kind]
    assert "For 45% ± 0% of the time its threads were ready to compute and had no core" in paragraph
    assert words in paragraph
    enough = 0.15 if values.get("workers_per_process") else 0.25
    for share, expected in ((enough - 0.01, []), (enough + 0.01, [kind])):
        waits = rank(halves(), queued=share)
        assert judged(base, ddp(waits, waits, **values))[0] == expected
    assert judged(base, ddp(rank(halves(), queued=None), rank(halves(), queued=None), **values))[0] == []


def test_threads_that_have_nothing_to_do_are_named():
    whole = configuration("single-all-cores", threads=2)

    def all_cores(cpu):
        return whole, [run(rank(halves(), cpu=cpu), factors=(factor,) * 3, threads_per_process=2) for factor in JITTER]

    names, words = judged(single(), all_cores(1.0))
    assert names == ["idle threads"] and "keeps at most 1.1 ± 0.0 cores busy with its 2 threads" in words
    assert judged(single(), all_cores(1.9))[0] == []
    assert judged(single(), ddp(rank(halves(), cpu=0.4), rank(halves(), cpu=0.4)))[0] == []  # one thread each
    two = {"threads_per_process": 2}
    assert judged(single(**two), ddp(*[rank(halves(), cpu=1.0)] * 2, **two))[0] == ["idle threads"]
    mixed = halves(exchange=None, forward=5.0)  # forward and backward contain what the ranks wait for one another
    ranks = [RankTimes(0.2, PhaseTimes(**mixed), 0.2, 0.0)] * 2
    assert "idle threads" not in judged(single(**two), ddp(*ranks, **two))[0]


def test_epochs_that_get_longer_are_named():
    def growing(*factors):
        return row(
            "ddp",
            [run(rank(halves()), rank(halves()), factors=[jitter * factor for factor in factors]) for jitter in JITTER],
        )

    names, words = judged(single(epochs=4), growing(1.0, 0.9, 1.0, 1.1))
    assert names == ["growing"] and "get longer while it trains, by 20% ± 0%" in words
    for steady in (growing(5.0, 1.0, 1.0, 1.0), growing(1.0, 0.99, 1.0, 1.01), growing(1.0, 0.9, 1.1)):
        assert "growing" not in judged(single(), steady)[0]
    machine = row(
        "single",
        [run(rank(STEP_MS), factors=[jitter * factor for factor in (1.0, 0.9, 1.0, 1.1)]) for jitter in JITTER],
    )  # which became slower under both
    assert "growing" not in judged(machine, growing(1.0, 0.9, 1.0, 1.1))[0]


@pytest.mark.parametrize("waiting, share", [(5.5, "27%"), (1.0, "")])
def test_a_bubble_is_measured_beside_its_formula(waiting, share):
    stage = rank(halves(exchange=waiting))
    names, words = judged(single(), pipeline(stage, stage))
    assert ("bubble" in names) == bool(share)
    assert "exchange" in names and "ms more in waiting for the other stages and sending to them" in words
    if share:
        assert f"send for {share} of the time, ideally 20%, (P-1)/(M+P-1) with P = 2 stages and M = 4" in words
    assert "bubble" not in judged(single(), ddp(stage, stage))[0]


def test_an_uneven_cut_is_named_as_such():
    names, words = judged(single(), pipeline(rank(halves(exchange=6.0)), rank(halves(forward=11.0))))
    assert "straggler" in names and "another --split-at may give the stages more equal parts" in words


def test_what_only_the_whole_run_contains_is_told_apart_from_the_speed_up():
    late = ddp(rank(halves()), rank(halves()), startup_seconds=7.0)
    names, words = judged(single(), late)
    assert names == ["start-up"]
    assert "In no speed-up: start-up takes 3.0 ± 0.0 s more (an epoch saves 0.20 s, so it" in words
    assert "pays from 16 epochs on, of 3 here)." in words
    early = ddp(rank(halves()), rank(halves()), startup_seconds=3.0)
    assert "start-up takes 1.0 ± 0.0 s less." in judged(single(), early)[1]
    warm = row(
        "ddp", [run(rank(halves()), rank(halves()), factors=(21.0 * factor, factor, factor)) for factor in JITTER]
    )
    names, words = judged(single(), warm)
    assert names == ["warm-up"] and "the first epoch's warm-up takes 4.0 ± 0.0 s more" in words


def test_nothing_is_named_of_a_disturbed_row():
    slow = rank(halves(forward=11.0), queued=0.4)
    for disturbed in ("single", "ddp"):
        report = report_of(single(), ddp(slow, slow), foreign_cores={disturbed: 0.5})
        assert analyse(report).rows[1].causes == () and not any("DDP" in words for words in verdict(analyse(report)))


def test_tables_and_the_figure_show_every_part_and_every_rank(tmp_path):
    waits, works = rank(halves(exchange=6.0)), rank(halves(forward=11.0), queued=None)
    analysis = analyse(report_of(single(), ddp(waits, works)))
    steps, runs = account_tables(analysis, "plain")
    (line,) = steps.splitlines()[1:]
    assert re.split("  +", line.strip().replace("-0.00", "+0.00")) == [
        "DDP",
        "26.00",
        "20.00",
        "+6.00 ± 0.03",
        "+0.00 ± 0.00",
        "+0.00 ± 0.00",
        "+6.00 ± 0.08",
        "+0.00 ± 0.00",
        "+0.00 ± 0.00",
        "+0.00 ± 0.00",
        "+0.00 ± 0.00",
    ]
    assert re.split("  +", steps.splitlines()[0].strip())[4:] == [
        "Data",
        "Transfer",
        "Forward",
        "Backward",
        "Exchange",
        "Update",
        "Outside",
    ]
    assert "Start-up" in runs and "+0.00 ± 0.00" in runs
    waiting, working = rank_table(analysis, "plain").splitlines()[2:]
    assert [text for text in waiting.split() if text] == ["DDP", "0", "26.00", "20.00", "6.00", "0.95", "1.00"]
    assert [text for text in working.split() if text] == ["DDP", "1", "26.00", "26.00", "0.00", "0.95", "–"]
    assert draw_all(analysis, tmp_path)[3].name == "excess.png"
    write_markdown(analysis, tmp_path / "report.md", [])
    text = (tmp_path / "report.md").read_text()
    assert "## Where the time goes" in text and "## Every rank" in text
    alone = analyse(report_of(single()))
    assert account_tables(alone, "plain") == []
    write_markdown(alone, tmp_path / "report.md", [])
    assert "## Where the time goes" not in (tmp_path / "report.md").read_text()
