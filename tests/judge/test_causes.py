"""The parts of a row's difference, and what its ranks and cores tell: each planted alone, in numbers made by hand."""

import re
from dataclasses import replace

import pytest

from common.files.results import LongSteps, PhaseTimes, RankTimes, Waits
from comparison.judge.analysis import analyse
from comparison.judge.ranks import mean_ranks, rank_means
from comparison.judge.summaries import Finding
from comparison.show.detail_tables import account_tables, rank_table
from comparison.show.sentences import tell
from comparison.show.verdict import verdict
from tests.reports import (
    ENVIRONMENT,
    JITTER,
    STEP_MS,
    configuration,
    ddp,
    each_epoch,
    halves,
    make_result,
    markdown_of,
    pipeline,
    rank,
    report_of,
    row,
    run,
    single,
)


def judged(*rows, **settings):
    """The causes of the last row, by kind, each of which has its sentence."""
    causes = analyse(report_of(*rows, **settings)).rows[-1].causes
    assert all(map(tell, causes))
    return {cause.kind: cause for cause in causes}


def told(cause):
    """How large a part is, where it is, and how that is told."""
    return cause.values["x"].value, cause.values["place"].kind, cause.told


def each_run(*ranks, factors=(1.0, 1.0, 1.0), **values):
    return [run(*ranks, factors=[jitter * factor for factor in factors], **values) for jitter in JITTER]


@pytest.mark.parametrize("phase", STEP_MS)
def test_a_slow_phase_is_named_with_its_time(phase):
    slow = rank(halves(**{phase: halves()[phase] + 6.0}))
    rows = single(), ddp(slow, slow)
    ((kind, cause),) = judged(*rows).items()
    assert kind == phase and cause.of == "step"
    assert told(cause) == (pytest.approx(6.0), phase, "more waiting" if phase == "data" else "more in")
    words = verdict(analyse(report_of(*rows)))[1]
    assert "A step takes 26.0 ms, 6.0 ± 0.0 ms above ideal scaling (20.0 ms): 6.0 ± " in words


def test_parts_are_named_in_the_order_of_size_also_what_is_saved():
    slow = rank(halves(exchange=9.0, forward=2.0, update=5.0))
    assert [told(cause) for cause in judged(single(), ddp(slow, slow)).values()] == [
        (pytest.approx(9.0), "exchange", "more in"),
        (pytest.approx(-3.0), "forward", "less in"),
        (pytest.approx(1.0), "update", "more in"),
    ]


def test_what_is_outside_of_the_phases_is_named_too():
    long = replace(rank(halves()), train_seconds=0.26)
    assert [*judged(single(), ddp(long, long))] == ["outside"]


def test_little_is_not_worth_a_word_and_noise_proves_nothing():
    for little in (rank(halves()), rank(halves(forward=5.3))):
        assert judged(single(), ddp(little, little)) == {}
    beside = rank(halves(forward=5.9, update=28.0))  # 0.9 of 45 ms, and less than a twentieth of the 24 in the update
    assert [*judged(single(), ddp(beside, beside))] == ["update"]
    noisy = [run(rank(halves(forward=forward)), rank(halves(forward=forward))) for forward in (5.0, 25.0, 10.0)]
    rows = single(), row("ddp", noisy)
    words = verdict(analyse(report_of(*rows)))[1]
    assert [*judged(*rows)] == ["noise"] and "not significant." in words


def test_an_older_result_has_the_exchange_in_its_backward_pass():
    configured, runs = ddp(rank(halves(backward=16.0)), rank(halves(backward=16.0)))
    phases = PhaseTimes(**halves(backward=16.0, exchange=None))
    old = [each_epoch(result, ranks=(), phases=phases) for result in runs]
    ((kind, cause),) = judged(single(), (configured, old)).items()
    assert kind == "backward" and told(cause) == (pytest.approx(6.0), "backward with exchange", "more in")


def test_a_straggler_is_named_with_its_rank_and_its_phase():
    waits, works = rank(halves(exchange=6.0)), rank(halves(forward=11.0))
    for ranks, number in (((waits, works), 1), ((works, waits), 0)):
        causes = judged(single(), ddp(*ranks))
        ((kind, cause),) = causes.items()
        assert kind == "straggler" and told(cause) == (pytest.approx(6.0), "of a rank", "more in")
        assert cause.values["place"].values == {"place": Finding("forward"), "n": number}
    waits, works = rank(halves(exchange=0.5)), rank(halves(forward=5.5))
    assert "straggler" not in judged(single(), ddp(waits, works))
    stages = judged(single(), pipeline(rank(halves(exchange=6.0)), rank(halves(forward=11.0))))
    values = stages["straggler"].values
    assert (values["n"], values["x"].value, values["place"].kind) == (1, pytest.approx(6.0), "forward")
    assert values["advice"] == Finding("uneven cut") and stages["forward"].values["place"] == Finding("forward")


def test_a_straggler_comes_first_with_all_that_it_has_more():
    waits, works = rank(halves(exchange=9.0, update=14.0)), rank(halves(forward=11.0, backward=13.0, update=14.0))
    causes = judged(single(), ddp(waits, works))
    assert next(iter(causes)) == "straggler" and {*causes} == {"straggler", "update", "backward"}
    assert causes["straggler"].values["place"].values == {"place": Finding("forward"), "n": 1}
    assert causes["backward"].values["place"].values == {"place": Finding("backward"), "n": 1}
    assert causes["update"].values["place"] == Finding("update")


def test_ranks_that_wait_less_than_before_are_told_without_whose_fault_it_is_and_not_beside_a_straggler():
    def waiting(forward, *waited):
        exchanges = [halves(forward=forward[number], exchange=2.0 + own) for number, own in enumerate(waited)]
        return [rank(phases, waits=Waits(own, {"data": own})) for phases, own in zip(exchanges, waited, strict=True)]

    before = ddp(*waiting((5.0, 5.0), 3.0, 3.0))
    for forward, waited, expected in (
        ((5.0, 5.0), (0.5, 0.5), ["late ranks"]),
        ((5.0, 13.0), (8.0, 0.5), ["straggler"]),
    ):
        now = ddp(*waiting(forward, *waited))
        now = replace(now[0], name="now"), now[1]
        causes = judged(before, now, baseline="ddp")
        assert [*causes] == expected
        assert expected == ["straggler"] or causes["late ranks"].values["place"] == Finding("waiting")


@pytest.mark.parametrize("period, kind", [(20, "regular steps"), (None, "some steps"), (2, "regular steps")])
def test_long_steps_are_named_where_they_bring_most_of_what_a_phase_takes_more(period, kind):
    def place(more, long, baseline=0.0):
        own = replace(rank(halves(forward=5.0 + more)), long_steps={"forward": LongSteps(0.05, long, period)})
        usual = {"forward": LongSteps(0.05, baseline, period)} if baseline else {}
        base = row("single", [run(replace(rank(STEP_MS), long_steps=usual), factors=3 * (f,)) for f in JITTER])
        return judged(base, ddp(own, own))["forward"].values["place"]

    found = place(6.0, 5.0)
    expected = {"place": Finding("forward"), "share": 0.05, "milliseconds": 5.0, "period": period}
    assert (found.kind, found.values) == (kind, pytest.approx(expected))
    assert place(6.0, 2.9) == place(6.0, 5.0, baseline=5.0) == Finding("forward")


def test_ranks_whose_long_steps_are_not_alike_have_no_period():
    periods = iter([20, 20, 20, 7, 9, 11])
    runs = [
        run(*[replace(rank(halves(forward=11.0)), long_steps={"forward": LongSteps(0.05, 6.0, next(periods))})] * 2)
        for _ in range(6)
    ]
    without = [run(*[rank(halves(forward=11.0))] * 2)] * 2
    causes = judged(single(), row("ddp", runs[:3])), judged(single(), row("ddp", runs[3:]))
    assert [told["forward"].values["place"].kind for told in causes] == ["regular steps", "some steps"]
    (pooled,) = {rank.long["forward"].period for rank in mean_ranks(list(map(rank_means, [runs[0], *without])))}
    assert pooled is None  # two runs of three have no such steps


def test_a_quota_that_stops_threads_comes_first():
    def rows(throttled):
        ranks = [replace(rank(halves(forward=11.0)), throttled_seconds=throttled)] * 2
        return single(), ddp(*ranks, environment={**ENVIRONMENT, "cores": 1.5})

    def named(throttled):
        return judged(*rows(throttled))

    causes = named(0.13)  # of 0.26 s, of two threads
    assert [*causes] == ["throttled", "forward"] and causes["throttled"].of == "machine"
    assert causes["throttled"].values == pytest.approx({"n": 0.25, "m": 0.0, "cores": 1.5}, abs=0.01)
    words = verdict(analyse(report_of(*rows(0.13))))[1]
    assert words.index("A quota of 1.5 cores throttled it for 25% ± ") < words.index("A step takes 26.0 ms")
    assert [*named(0.02)] == [*named(None)] == ["forward"]


def test_of_what_a_quota_stops_all_that_wanted_a_core_counts_and_what_waits_for_it_lacks_none():
    def share(queued=0.01, **values):
        ranks = [replace(rank(halves(), queued=queued), throttled_seconds=0.15)] * 2  # of 0.2 s
        causes = judged(single(), ddp(*ranks, **values), allow_unequal=True)
        return causes.get("throttled") and causes["throttled"].values["n"], [*causes]

    assert share(queued=0.9) == (pytest.approx(0.375, rel=1e-4), ["throttled"])
    gpus = {"devices": ("cuda:0 (A)", "cuda:1 (A)"), "threads_per_process": 8}
    assert share(**gpus)[0] == pytest.approx(0.375, rel=1e-4)  # a thread feeds each, whatever they may have
    two_nodes = {"environment": {**ENVIRONMENT, "nodes": ["a", "b"]}}
    assert share(**two_nodes)[0] == pytest.approx(0.75, rel=1e-4)
    assert share(workers_per_process=1)[0] == pytest.approx(0.1875, rel=1e-4)


@pytest.mark.parametrize("few, more", [(22.0, 2.0), (21.0, None), (26.0, 6.0)])
def test_what_a_small_batch_costs_one_device_too_is_no_fault_of_the_method(few, more):
    """DDP is 6 ms above ideal scaling; one device takes 40 ms for 100 images, and `few` for 50."""
    steps = [{"model": "lenet", "batch": batch, "milliseconds": ms} for batch, ms in ((100, 40.0), (50, few))]
    configured, runs = ddp(*[rank(halves(update=10.0))] * 2)
    configured = replace(configured, planned=replace(configured.planned, per_device_batch_size=50))
    causes = judged(single(), (configured, runs), probe={"steps": steps})
    expected = {"x": few, "n": 50, "f": pytest.approx(more)} if more else None
    assert [*causes] == (["small batch"] if more else []) + ["update"]
    assert more is None or causes["small batch"].values == expected


def test_ranks_that_pause_out_of_step_wait_for_one_another_and_not_for_the_exchange():
    """Both do the same work and send for 1 ms; each is 10 ms late in every other step."""
    paused = halves(exchange=6.0, data=halves()["data"] + 5.0)
    ranks = rank(paused, waits=Waits(5.0, {"data": 5.0})), rank(paused, waits=Waits(5.0, {"data": 4.9, "forward": 0.1}))
    causes = judged(single(), ddp(*ranks))
    sizes = {kind: round(told(causes[kind])[0], 2) for kind in ("data", "late ranks", "exchange")}
    assert sizes == {"data": 5.0, "late ranks": 5.0, "exchange": 1.0}
    late = causes["late ranks"].values["place"].values["ranks"]
    assert [(found.values["n"], found.values["place"].kind) for found in late] == [(0, "data"), (1, "data")]
    words = verdict(analyse(report_of(single(), ddp(*ranks))))[1]
    assert next(iter(causes)) == "late ranks"
    assert "5.0 ± 0.0 ms more waiting for late ranks (rank 0, 5.0 ms waiting for data; rank 1, 4.9 ms" in words


@pytest.mark.parametrize(
    "values, kind, way",
    [
        ({"environment": ENVIRONMENT}, "shared cores", "too many threads"),
        ({}, "shared cores", "unbound ranks"),
        ({"config": {**make_result().config, "bind": True}}, "shared cores", "bound ranks"),
        ({"devices": ("cuda:0 (A)", "cuda:1 (A)")}, "shared cores", "other bindings"),
        ({"workers_per_process": 2}, "too many workers", "too many workers"),
    ],
)
def test_ranks_without_a_core_are_named(values, kind, way):
    workers = values.get("workers_per_process", 0)
    alone = {"workers_per_process": 2 * workers, "devices": values.get("devices", ("cpu",))[:1]}
    base = single(**alone, **{name: value for name, value in values.items() if name == "config"})

    def named(queued):
        return judged(base, ddp(*[rank(halves(), cpu=0.5, queued=queued)] * 2, **values))

    ((found, cause),) = named(0.45).items()
    advice = cause.values.get("advice")
    assert (found, advice.kind if advice else cause.told or found) == (kind, way)
    assert cause.values["n"] == pytest.approx(0.45) and cause.values["threads"] == 2
    assert cause.values["workers"] == 2 * workers
    enough = 0.15 if workers else 0.25
    assert [[*named(share)] for share in (enough - 0.01, enough + 0.01, None)] == [[], [kind], []]


def test_threads_that_have_nothing_to_do_are_named():
    def all_cores(cpu):
        return configuration("single-all-cores", threads=2), each_run(rank(halves(), cpu=cpu), threads_per_process=2)

    ((kind, cause),) = judged(single(), all_cores(1.0)).items()
    assert kind == "idle threads" and (str(cause.values["x"]), cause.values["n"]) == ("1.1 ± 0.0", 2)
    assert judged(single(), all_cores(1.9)) == {}
    assert judged(single(), ddp(rank(halves(), cpu=0.4), rank(halves(), cpu=0.4))) == {}  # one thread each
    two = {"threads_per_process": 2}
    assert [*judged(single(**two), ddp(*[rank(halves(), cpu=1.0)] * 2, **two))] == ["idle threads"]
    mixed = halves(exchange=None, forward=5.0)  # forward and backward contain what the ranks wait for one another
    ranks = [RankTimes(0.2, PhaseTimes(**mixed), 0.2, 0.0)] * 2
    assert "idle threads" not in judged(single(**two), ddp(*ranks, **two))


def test_epochs_that_get_longer_are_named():
    def growing(*factors):
        return row("ddp", each_run(rank(halves()), rank(halves()), factors=factors))

    ((kind, cause),) = judged(single(epochs=4), growing(1.0, 0.9, 1.0, 1.1)).items()
    assert (kind, cause.told, cause.values["n"]) == ("growing", "growing more", pytest.approx(0.2))
    for steady in (growing(5.0, 1.0, 1.0, 1.0), growing(1.0, 0.99, 1.0, 1.01), growing(1.0, 0.9, 1.1)):
        assert "growing" not in judged(single(), steady)
    machine = row("single", each_run(rank(STEP_MS), factors=(1.0, 0.9, 1.0, 1.1)))  # which became slower under both
    assert "growing" not in judged(machine, growing(1.0, 0.9, 1.0, 1.1))
    assert judged(machine)["growing"].told == ""


@pytest.mark.parametrize("waiting, share", [(5.5, 5.5 / 20.5), (1.0, None)])
def test_a_bubble_is_measured_beside_its_formula(waiting, share):
    stage = rank(halves(exchange=waiting))
    causes = judged(single(), pipeline(stage, stage))
    assert told(causes["exchange"])[1:] == ("waiting for stages", "more in")
    expected = {"n": share, "i": 0.2, "p": 2, "micro_batches": 4}
    assert "bubble" not in causes if share is None else causes["bubble"].values == pytest.approx(expected)
    assert "bubble" not in judged(single(), ddp(stage, stage))


def test_what_only_the_whole_run_contains_is_told_apart_from_the_speed_up():
    both = rank(halves()), rank(halves())
    ((kind, cause),) = judged(single(), ddp(*both, startup_seconds=7.0)).items()
    assert (kind, cause.of, cause.told) == ("start-up", "run", "pays")
    assert cause.values["pays"].values == pytest.approx({"s": 0.2, "n": 16, "m": 3}, rel=0.01)
    assert cause.values["what"].values["x"].value == pytest.approx(3.0)
    ((_, early),) = judged(single(), ddp(*both, startup_seconds=3.0)).items()
    assert (early.told, early.values["x"].value) == ("takes less", pytest.approx(-1.0))
    ((kind, warm),) = judged(single(), row("ddp", each_run(*both, factors=(21.0, 1.0, 1.0)))).items()
    assert (kind, warm.told, warm.values["x"].value) == ("warm-up", "takes more", pytest.approx(4.0, rel=0.01))
    words = verdict(analyse(report_of(single(), ddp(*both, startup_seconds=3.0))))[1]
    assert "Not counted in the speed-up: start-up takes 1.0 ± 0.0 s less." in words


def test_nothing_is_named_of_a_disturbed_row():
    slow = rank(halves(forward=11.0), queued=0.4)
    for disturbed in ("single", "ddp"):
        analysis = analyse(report_of(single(), ddp(slow, slow), foreign_cores={disturbed: 0.5}))
        assert analysis.rows[1].causes == () and not any("DDP" in words for words in verdict(analysis))


def test_tables_and_the_figure_show_every_part_and_every_rank(tmp_path):
    waits, works = rank(halves(exchange=6.0)), rank(halves(forward=11.0), queued=None)
    analysis = analyse(report_of(single(), ddp(waits, works)))
    steps, runs = account_tables(analysis, "plain")
    (line,) = steps.splitlines()[1:]
    nothing = ["+0.00 ± 0.00"]
    assert re.split("  +", line.strip().replace("-0.00", "+0.00")) == [
        *("DDP", "26.00", "20.00", "+6.00 ± 0.03"),
        *(2 * nothing + ["+6.00 ± 0.12"] + 4 * nothing),
    ]
    assert re.split("  +", steps.splitlines()[0].strip())[4:] == [*map(str.capitalize, STEP_MS), "Outside"]
    assert "Start-up" in runs and "+0.00 ± 0.00" in runs
    waiting, working = rank_table(analysis, "plain").splitlines()[2:]
    assert [text for text in waiting.split() if text] == ["DDP", "0", "26.00", "20.00", "6.00", "0.95", "1.00"]
    assert [text for text in working.split() if text] == ["DDP", "1", "26.00", "26.00", "0.00", "0.95", "–"]
    text = markdown_of(analysis, tmp_path)
    assert "## Where the time goes" in text and "## Every rank" in text
    alone = analyse(report_of(single()))
    assert account_tables(alone, "plain") == [] and "## Where the time goes" not in markdown_of(alone, tmp_path)
