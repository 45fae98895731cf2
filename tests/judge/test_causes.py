"""Causes of a row's speed, each planted alone in made-up numbers."""

from dataclasses import replace

import pytest

from common.files.results import LongSteps, PhaseTimes, RankTimes, Span, Waits
from comparison.judge.analysis import analyse
from comparison.judge.ranks import find_straggler, mean_ranks, rank_means, throttled_share
from comparison.judge.summaries import Finding
from comparison.outcomes import CardUse
from comparison.show.advice import next_step
from comparison.show.sentences import finding_sentence
from comparison.show.verdict import verdict
from tests.reports import (
    ENVIRONMENT,
    STEP_MS,
    configuration,
    ddp,
    each_epoch,
    each_outcome,
    each_run,
    halves,
    make_result,
    pipeline,
    rank,
    report_of,
    row,
    run,
    single,
)


def causes_in(report):
    """Return the causes of the last row, by kind. Each has a sentence."""
    causes = analyse(report).rows[-1].causes
    assert all(map(finding_sentence, causes))
    return {cause.kind: cause for cause in causes}


def causes_of(*rows, **settings):
    return causes_in(report_of(*rows, **settings))


def verdict_of(*rows):
    return verdict(analyse(report_of(*rows)))[1]


def described(cause):
    return cause.values["x"].value, cause.values["place"].kind, cause.wording


def even(**changed):
    """A row with two equal ranks; changed: milliseconds of phases."""
    return ddp(*[rank(halves(**changed))] * 2)


@pytest.mark.parametrize("phase", STEP_MS)
def test_a_slow_phase_is_named_with_its_time(phase):
    rows = single(), even(**{phase: halves()[phase] + 6.0})
    ((kind, cause),) = causes_of(*rows).items()
    assert kind == phase and cause.of == "step"
    assert described(cause) == (pytest.approx(6.0), phase, "more waiting" if phase == "data" else "more in")
    assert "A step takes 26.0 ms, 6.0 ± 0.0 ms above ideal scaling (20.0 ms): 6.0 ± " in verdict_of(*rows)


def test_shorter_and_longer_parts_are_named_in_order_of_size():
    causes = causes_of(single(), even(exchange=9.0, forward=2.0, update=5.0))
    assert [described(cause) for cause in causes.values()] == [
        (pytest.approx(9.0), "exchange", "more in"),
        (pytest.approx(-3.0), "forward", "less in"),
        (pytest.approx(1.0), "update", "more in"),
    ]


@pytest.mark.parametrize("more, named", [(0.4, ["backward"]), (0.6, ["backward", "update"])])
def test_a_part_is_small_beside_a_gain_as_beside_a_loss(more, named):
    assert [*causes_of(single(), even(backward=0.0, update=halves()["update"] + more))] == named


def test_time_outside_of_the_phases_is_named():
    long = replace(rank(halves()), train_seconds=0.26, long_steps={"rest": LongSteps(0.1, 5.0, 10)})
    ((kind, cause),) = causes_of(single(), ddp(long, long)).items()
    assert kind == "outside" and cause.values["place"].kind == "regular steps"
    for forward in (2.0, 8.0):  # nothing remains of a shorter or longer step
        told = verdict_of(single(), even(forward=forward))
        assert "forward" in told and "cannot be attributed" not in told


def test_small_parts_are_not_named_and_noise_proves_nothing():
    assert causes_of(single(), even()) == causes_of(single(), even(forward=5.3)) == {}
    assert [*causes_of(single(), even(forward=5.5))] == ["forward"]
    for forward, named in ((6.1, ["update"]), (6.3, ["update", "forward"])):  # a twentieth of the 24 ms in the update
        assert [*causes_of(single(), even(forward=forward, update=28.0))] == named
    noisy = row("ddp", [run(*[rank(halves(forward=forward))] * 2) for forward in (5.0, 25.0, 10.0)])
    assert [*causes_of(single(), noisy)] == ["noise"] and "not significant." in verdict_of(single(), noisy)


@pytest.mark.parametrize(
    "update, told",
    [
        (0.0, "20.0 ms): the measurements cannot say in which phase"),
        (4.0, "20.0 ms): 4.0 ± 0.1 ms more in the update, the remaining +6.0 ms cannot be attributed"),
    ],
)
def test_the_largest_of_the_parts_that_are_not_significant_is_named(update, told):
    """Each run is 6 ms longer in exchange, forward and backward pass, which share them differently every time."""

    def verdict_for(*shares):
        phases = [halves(exchange=x, forward=5 + y, backward=16 - x - y, update=4 + update) for x, y in shares]
        return verdict_of(single(), row("ddp", [run(*[rank(own)] * 2) for own in phases]))

    named = verdict_for((1.0, 5.0), (8.0, -2.0), (5.0, 1.0))
    assert f"{told} (perhaps 4.7 ± " in named and " ms more exchanging gradients)." in named
    assert f"{told}." in verdict_for((1.0, 2.0), (3.0, 1.0), (2.0, 3.0))  # none is most of the 6 ms


@pytest.mark.parametrize("sign", [-1, 1])
def test_no_part_is_named_as_uncertain_beside_a_larger_one_that_is_significant(sign):
    """Each update takes 9 ms more; forward and backward pass share 4 ms differently every time."""
    phases = [halves(forward=5 + sign * x, backward=10 + sign * (4 - x), update=13.0) for x in (1.0, 4.5, 4.0)]
    told = verdict_of(single(), row("ddp", [run(*[rank(own)] * 2) for own in phases]))
    assert f"the remaining {4 * sign:+.1f} ms cannot be attributed." in told


def test_a_part_that_only_seems_to_be_the_cause_is_worth_a_proof():
    """Its interval includes 0 together with those of all accounts, but not alone, as --prove would test it."""
    shares = ((4.2, -2.0), (4.8, 3.0), (5.5, 1.0))
    phases = [halves(exchange=x, forward=5 + y, backward=16 - x - y) for x, y in shares]
    report = report_of(single(), row("ddp", [run(*[rank(own)] * 2) for own in phases]))
    longer = [
        replace(run, wall_seconds=run.wall_seconds * (1 + (run.configuration == "ddp"))) for run in report.outcomes
    ]
    (words,) = next_step(analyse(replace(report, outcomes=tuple(longer))))
    assert words.startswith("Next: add --prove to test whether “exchange” is what slows “DDP”")


def test_the_noisier_of_two_rows_is_named():
    steady, noisy = ([run(rank(halves(forward=one))) for one in forward] for forward in ((5.0, 5.1, 5.2), (5, 25, 10)))
    for own, other, name in ((steady, noisy, "DDP"), (noisy, steady, "SINGLE")):
        cause = causes_of(row("single", own), row("ddp", other))["noise"]
        assert cause.values["row"] == name and cause.values["n"] > 0.5


def test_a_straggler_is_named_with_its_rank_and_phase():
    waits, works = rank(halves(exchange=6.0)), rank(halves(forward=11.0))
    for ranks, number in (((waits, works), 1), ((works, waits), 0)):
        causes = causes_of(single(), ddp(*ranks))
        ((kind, cause),) = causes.items()
        assert kind == "straggler" and described(cause) == (pytest.approx(6.0), "of a rank", "more in")
        assert cause.values["place"].values == {"place": Finding("forward"), "n": number}
    ((kind, cause),) = causes_of(single(), ddp(waits, replace(rank(halves()), train_seconds=0.26))).items()
    assert kind == "straggler" and cause.values["place"].values["place"] == Finding("outside")
    for more, named in ((1.0, False), (1.1, True)):  # a twentieth of a step
        waits, works = rank(halves(exchange=more)), rank(halves(forward=5.0 + more))
        assert ("straggler" in causes_of(single(), ddp(waits, works))) == named
    stages = causes_of(single(), pipeline(rank(halves(exchange=6.0)), rank(halves(forward=11.0))))
    values = stages["straggler"].values
    assert (values["n"], values["x"].value, values["place"].kind) == (1, pytest.approx(6.0), "forward")
    assert values["advice"] == Finding("uneven cut") and stages["forward"].values["place"] == Finding("forward")


def test_a_straggler_comes_first_with_all_its_additional_work():
    waits, works = rank(halves(exchange=9.0, update=13.0)), rank(halves(forward=11.0, backward=13.0, update=14.0))
    causes = causes_of(single(), ddp(waits, works))
    assert next(iter(causes)) == "straggler" and {*causes} == {"straggler", "update", "backward"}
    assert causes["straggler"].values["place"].values == {"place": Finding("forward"), "n": 1}
    assert causes["backward"].values["place"].values == {"place": Finding("backward"), "n": 1}
    assert causes["update"].values["place"] == Finding("update")


def test_a_phase_that_is_unknown_in_a_run_has_no_mean_and_is_not_a_stragglers():
    whole, part = halves(), {name: time for name, time in halves().items() if name != "update"}
    first, second = ([rank(times), rank({**times, "forward": 11.0})] for times in (whole, part))
    for runs_of in ((first, second), (second, first)):
        runs = [rank_means(run(*ranks)) for ranks in runs_of]
        found = find_straggler(runs)
        assert "update" not in found.phases and found.phase == "forward"
        assert all("update" not in mean.phases for mean in mean_ranks(runs))


def test_a_straggler_is_compared_with_the_mean_of_the_other_ranks():
    ranks = [rank(halves(forward=5.0 + more)) for more in (0.0, 3.0, 9.0, 0.0)]
    found = find_straggler([rank_means(run(*ranks))])
    assert (found.rank, found.longer.value, found.phases["forward"]) == (2, pytest.approx(8.0), pytest.approx(8.0))


def test_less_waiting_names_no_late_ranks_and_is_omitted_with_a_straggler():
    def waiting(forward, *waited):
        exchanges = [halves(forward=forward[number], exchange=2.0 + own) for number, own in enumerate(waited)]
        return [rank(phases, waits=Waits(own, {"data": own})) for phases, own in zip(exchanges, waited, strict=True)]

    before = ddp(*waiting((5.0, 5.0), 3.0, 3.0))
    less, straggling = (
        (replace(configured, name="now"), runs)
        for configured, runs in (ddp(*waiting((5.0, 5.0), 0.5, 0.5)), ddp(*waiting((5.0, 13.0), 8.0, 0.5)))
    )
    ((kind, cause),) = causes_of(before, less, baseline="ddp").items()
    assert kind == "late ranks" and cause.values["place"] == Finding("waiting")
    assert [*causes_of(before, straggling, baseline="ddp")] == ["straggler"]


@pytest.mark.parametrize("period, kind", [(20, "regular steps"), (None, "some steps"), (2, "regular steps")])
def test_long_steps_are_named_if_they_cause_most_of_a_part(period, kind):
    def place(more, long, baseline=0.0):
        own = replace(rank(halves(forward=5.0 + more)), long_steps={"forward": LongSteps(0.05, long, period)})
        usual = {"forward": LongSteps(0.05, baseline, period)} if baseline else {}
        base = row("single", each_run(replace(rank(STEP_MS), long_steps=usual)))
        return causes_of(base, ddp(own, own))["forward"].values["place"]

    found = place(6.0, 5.0)
    expected = {"place": Finding("forward"), "share": 0.05, "milliseconds": 5.0, "period": period}
    assert (found.kind, found.values) == (kind, pytest.approx(expected))
    assert place(6.0, 2.9) == place(6.0, 5.0, baseline=5.0) == Finding("forward")
    assert place(6.0, 5.0, baseline=3.0).kind == kind  # half of which is ideal


def test_the_long_steps_of_the_baseline_are_ideal_in_weak_scaling_too():
    long = {"forward": LongSteps(0.05, 3.0, 20)}
    base, own = (run(*[replace(rank(STEP_MS), long_steps=long)] * ranks) for ranks in (1, 2))
    twice = each_epoch(own, samples=2 * own.epochs[0].samples)
    for result, expected in ((own, 1.5), (twice, 3.0)):
        report = report_of(row("single", [base] * 3), row("ddp", [result] * 3), allow_unequal=True, scaling="weak")
        assert analyse(report).rows[1].accounts.usual == {"forward": expected}


def test_different_long_steps_have_no_period():
    def runs(*periods):
        long = [{"forward": LongSteps(0.05, 6.0, period)} if period else {} for period in periods]
        return [run(*[replace(rank(halves(forward=11.0)), long_steps=own)] * 2) for own in long]

    for periods, kind in (((20, 20, 20), "regular steps"), ((7, 9, 11), "some steps")):
        assert causes_of(single(), row("ddp", runs(*periods)))["forward"].values["place"].kind == kind
    pooled, _ = mean_ranks(list(map(rank_means, runs(20, None, None))))
    assert pooled.long["forward"].period is None  # two runs of three have no such steps


def test_throttling_by_a_quota_comes_first():
    def rows(throttled):
        ranks = [replace(rank(halves(forward=11.0)), throttled_seconds=throttled)] * 2
        return single(), ddp(*ranks, environment={**ENVIRONMENT, "cores": 1.5})

    causes = causes_of(*rows(0.13))  # of 0.26 s, of two threads
    assert [*causes] == ["throttled", "forward"] and causes["throttled"].of == "machine"
    assert causes["throttled"].values == pytest.approx({"n": 0.25, "m": 0.0, "cores": 1.5}, abs=0.01)
    words = verdict_of(*rows(0.13))
    assert words.index("A quota of 1.5 cores throttled it for 25% ± ") < words.index("A step takes 26.0 ms")
    assert [*causes_of(*rows(0.025))] == [*causes_of(*rows(None))] == ["forward"]
    assert [*causes_of(*rows(0.028))] == ["throttled", "forward"]


def test_throttled_time_is_relative_to_all_threads_and_workers_and_hides_queueing():
    def share(queued=0.01, **values):
        ranks = [replace(rank(halves(), queued=queued), throttled_seconds=0.15)] * 2  # of 0.2 s
        causes = causes_of(single(), ddp(*ranks, **values), allow_unequal=True)
        return causes.get("throttled") and causes["throttled"].values["n"], [*causes]

    assert share(queued=0.9) == (pytest.approx(0.375, rel=1e-4), ["throttled"])
    gpus = {"devices": ("cuda:0 (A)", "cuda:1 (A)"), "threads_per_process": 8}
    assert share(**gpus)[0] == pytest.approx(0.375, rel=1e-4)  # one thread per GPU
    two_nodes = {"environment": {**ENVIRONMENT, "nodes": ["a", "b"]}}
    assert share(**two_nodes)[0] == pytest.approx(0.75, rel=1e-4)
    assert share(workers_per_process=1)[0] == pytest.approx(0.1875, rel=1e-4)
    assert share(threads_per_process=2)[0] == pytest.approx(0.1875, rel=1e-4)
    assert share(devices=("cpu",))[0] == pytest.approx(0.375, rel=1e-4)


def test_throttling_in_the_first_epoch_does_not_count():
    first, *timed = run(replace(rank(halves()), throttled_seconds=0.1)).epochs
    stopped = tuple(replace(own, throttled_seconds=9.0) for own in first.ranks)
    made = replace(run(rank(halves())), epochs=(replace(first, ranks=stopped), *timed))
    assert throttled_share([made]).value == pytest.approx(0.1 / timed[0].train_seconds)


@pytest.mark.parametrize(
    "few, longer, more", [(22.0, 6.0, 2.0), (21.0, 6.0, None), (26.0, 6.0, 6.0), (20.3, 0.6, None)]
)
def test_inefficiency_with_a_small_batch_is_attributed_to_the_device(few, longer, more):
    """DDP is `longer` ms above ideal scaling; one device takes 40 ms for 100 images, and `few` for 50."""
    steps = [{"model": "lenet", "batch": batch, "milliseconds": ms} for batch, ms in ((100, 40.0), (50, few))]
    configured, runs = even(update=4.0 + longer)
    configured = replace(configured, planned=replace(configured.planned, per_device_batch_size=50))
    causes = causes_of(single(), (configured, runs), probe={"steps": steps})
    expected = {"x": few, "n": 50, "f": pytest.approx(more)} if more else None
    assert [*causes] == (["small batch"] if more else []) + ["update"]
    assert more is None or causes["small batch"].values == expected


def test_waiting_for_late_ranks_is_separate_from_the_exchange():
    """Both ranks have the same work and send for 1 ms; each is 10 ms late in every other step."""
    paused = halves(exchange=6.0, data=halves()["data"] + 5.0)
    ranks = rank(paused, waits=Waits(5.0, {"data": 5.0})), rank(paused, waits=Waits(5.0, {"data": 2.6, "forward": 2.4}))
    causes = causes_of(single(), ddp(*ranks))
    sizes = {kind: round(described(causes[kind])[0], 2) for kind in ("data", "late ranks", "exchange")}
    assert sizes == {"data": 5.0, "late ranks": 5.0, "exchange": 1.0}
    late = causes["late ranks"].values["place"].values["ranks"]
    assert [(found.values["n"], found.values["place"].kind) for found in late] == [(0, "data"), (1, "data")]
    assert next(iter(causes)) == "late ranks"
    for more, first in ((9.5, "late ranks"), (10.5, "forward")):  # more than twice as long
        longer = [rank({**paused, "forward": 5.0 + more}, waits=own.waits) for own in ranks]
        assert next(iter(causes_of(single(), ddp(*longer)))) == first
    sentence = "5.0 ± 0.0 ms more waiting for late ranks (rank 0, 5.0 ms waiting for data; rank 1, 2.6 ms"
    assert sentence in verdict_of(single(), ddp(*ranks))


@pytest.mark.parametrize(
    "values, kind, way",
    [
        ({"environment": ENVIRONMENT}, "shared cores", "too many threads"),
        ({"threads_per_process": 3}, "shared cores", "too many threads"),
        ({}, "shared cores", "unbound ranks"),
        ({"config": {**make_result().config, "bind": True}}, "shared cores", "exchanging threads"),
        ({"devices": ("cuda:0 (A)", "cuda:1 (A)")}, "shared cores", "other bindings"),
        ({"workers_per_process": 2}, "too many workers", "too many workers"),
    ],
)
def test_queueing_for_a_core_is_named(values, kind, way):
    workers, threads = values.get("workers_per_process", 0), values.get("threads_per_process", 1)
    alone = {"workers_per_process": 2 * workers, "devices": values.get("devices", ("cpu",))[:1]}
    equal = ("config", "threads_per_process")
    base = single(**alone, **{name: value for name, value in values.items() if name in equal})

    def named(queued):
        total = queued and threads * queued
        return causes_of(base, ddp(*[rank(halves(), cpu=0.95 * threads, queued=total)] * 2, **values))

    ((found, cause),) = named(0.45).items()
    advice = cause.values.get("advice")
    assert (found, advice.kind if advice else cause.wording or found) == (kind, way)
    assert cause.values["n"] == pytest.approx(0.45) and cause.values["threads"] == 2 * threads
    assert cause.values["workers"] == 2 * workers
    planned, results = ddp(*[rank(halves(), cpu=0.95 * threads, queued=0.45 * threads)] * 2, **values)
    (on_two_nodes,) = causes_of(base, (replace(planned, nodes=2), results)).values()
    assert on_two_nodes.values["cores"] == 2 * cause.values["cores"]
    enough = 0.15 if workers else 0.25
    assert [[*named(share)] for share in (enough - 0.01, enough + 0.01, None)] == [[], [kind], []]


def test_other_programs_are_named_where_they_used_cores():
    def advice(cores):
        waits = ddp(*[rank(halves(), queued=0.45)] * 2)
        return causes_of(single(), waits, foreign_cores={"ddp": cores})["shared cores"].values["advice"].kind

    share = 0.05 * make_result().environment["cores"]
    assert [advice(cores) for cores in (0.9 * share, 1.1 * share)] == ["unbound ranks", "other programs"]


def test_idle_threads_are_named():
    def all_cores(cpu):
        return configuration("single-all-cores", threads=2), each_run(rank(halves(), cpu=cpu), threads_per_process=2)

    ((kind, cause),) = causes_of(single(), all_cores(1.0)).items()
    assert kind == "idle threads" and (str(cause.values["x"]), cause.values["n"]) == ("1.1 ± 0.0", 2)
    assert [[*causes_of(single(), all_cores(cpu))] for cpu in (1.4, 1.45)] == [["idle threads"], []]
    unsure = [run(rank(halves(), cpu=cpu), factors=3 * (1.0,), threads_per_process=2) for cpu in (0.7, 1.0, 1.3)]
    assert causes_of(single(), (configuration("single-all-cores", threads=2), unsure)) == {}
    assert causes_of(single(), ddp(rank(halves(), cpu=0.4), rank(halves(), cpu=0.4))) == {}  # one thread each
    two = {"threads_per_process": 2}
    assert [*causes_of(single(**two), ddp(*[rank(halves(), cpu=1.0)] * 2, **two))] == ["idle threads"]
    mixed = halves(exchange=None, forward=5.0)  # forward and backward contain waiting for other ranks
    ranks = [RankTimes(0.2, PhaseTimes(**mixed), 0.2, 0.0)] * 2
    assert "idle threads" not in causes_of(single(**two), ddp(*ranks, **two))


KERNELS = (Span(0, "step", "update", 0.0, 50.0), Span(0, "cuda:0", "a", 1.0, 9.0), Span(0, "cuda:0", "b", 8.0, 17.0))


@pytest.mark.parametrize(
    "busy, spans, data, epochs, share",  # of steps of 40 ms
    [
        (0.71, (), 0.0, (1, 1), None),
        (0.69, (), 0.0, (1, 1), 0.69),
        (0.69, (), 0.0, (1,), None),  # the only epoch contains the warm-up
        (0.65, (), 4.0, (1, 1), None),  # a tenth of the step is waiting for data
        (None, KERNELS, 0.0, (1, 1), 0.2),  # 16 ms in two steps
        (0.5, KERNELS, 0.0, (1, 1), 0.2),
        (0.5, (*KERNELS, Span(0, "cuda:1", "a", 0.0, 48.0)), 0.0, (1, 1), 0.5),
        (None, (), 0.0, (1, 1), None),
    ],
)
def test_a_gpu_that_waits_for_launches_is_named(busy, spans, data, epochs, share):
    times = {**STEP_MS, "forward": STEP_MS["forward"] + STEP_MS["data"] - data, "data": data}
    report = report_of(single(), row("single-cuda", [run(rank(times), factors=epochs, devices=("cuda:0",))] * 2))
    report = each_outcome(report, cards=(CardUse("cuda:0", busy),))
    named = causes_in(replace(report, timelines={"single-cuda": spans}))
    assert named.get("idle GPU") is None if share is None else named["idle GPU"].values["n"] == pytest.approx(share)


def test_the_stages_of_a_network_wait_for_each_other_and_not_for_launches():
    for method, named in (("ddp", True), ("pipeline", False)):
        made = [run(rank(halves()), rank(halves()), devices=("cuda:0", "cuda:1"))] * 2
        cards = CardUse("cuda:0", 0.5), CardUse("cuda:1", 0.4)
        causes = causes_in(each_outcome(report_of(single(), row(method, made)), cards=cards))
        assert ("idle GPU" in causes) == named and (not named or causes["idle GPU"].values["n"] == 0.5)


def test_growing_epochs_are_named():
    def growing(*factors):
        return row("ddp", each_run(rank(halves()), rank(halves()), factors=factors))

    ((kind, cause),) = causes_of(single(epochs=4), growing(1.0, 0.9, 1.0, 1.1)).items()
    assert (kind, cause.wording, cause.values["n"]) == ("growing", "growing more", pytest.approx(0.2))
    more = causes_of(single(epochs=4), growing(1.0, 0.9, 1.0, 1.4))["growing"]
    assert more.values["n"] == pytest.approx(0.5 / 1.1)  # by regression, relative to the mean
    assert "growing" in causes_of(single(epochs=4), growing(1.0, 0.97, 1.0, 1.03))
    assert "growing" not in causes_of(single(), growing(1.0, 0.9, 1.0, 1.1))  # has too few epochs to compare with
    for steady in (growing(5.0, 1.0, 1.0, 1.0), growing(1.0, 0.98, 1.0, 1.02), growing(1.0, 0.9, 1.1)):
        assert "growing" not in causes_of(single(epochs=4), steady)
    machine = row(
        "single", each_run(rank(STEP_MS), factors=(1.0, 0.9, 1.0, 1.1))
    )  # the machine became slower under both
    assert "growing" not in causes_of(machine, growing(1.0, 0.9, 1.0, 1.1))
    assert causes_of(machine)["growing"].wording == ""


@pytest.mark.parametrize("waiting, share", [(5.5, 5.5 / 20.5), (1.8, 1.8 / 16.8), (1.6, None)])
def test_a_bubble_is_compared_with_its_formula(waiting, share):
    stage = rank(halves(exchange=waiting))
    causes = causes_of(single(), pipeline(stage, stage))
    assert described(causes["exchange"])[1:] == ("waiting for stages", "more in")
    expected = {"n": share, "i": 0.2, "p": 2, "micro_batches": 4}
    assert "bubble" not in causes if share is None else causes["bubble"].values == pytest.approx(expected)
    assert "bubble" not in causes_of(single(), ddp(stage, stage))


def test_parts_of_the_whole_run_are_separate_from_the_speed_up():
    both = rank(halves()), rank(halves())
    ((kind, cause),) = causes_of(single(), ddp(*both, startup_seconds=7.0)).items()
    assert (kind, cause.of, cause.wording) == ("start-up", "run", "pays")
    assert cause.values["pays"].values == pytest.approx({"s": 0.2, "n": 16, "m": 3}, rel=0.01)
    assert cause.values["what"].values["x"].value == pytest.approx(3.0)
    target = {"target_accuracy": 0.5}  # until then, the row may need fewer epochs
    for other_epochs in (target, {"max_steps": 10}):
        assert causes_of(single(), ddp(*both, startup_seconds=7.0), **other_epochs)["start-up"].wording == "takes more"
    for evaluate, wording in ((2.5, "pays"), (2.7, "takes more")):  # of which it gains 0.2 s or nothing
        slow = row("ddp", [each_epoch(one, evaluate_seconds=evaluate) for one in ddp(*both, startup_seconds=7.0)[1]])
        base = row("single", [each_epoch(one, evaluate_seconds=2.5) for one in single()[1]])
        assert causes_of(base, slow)["start-up"].wording == wording
    ((_, early),) = causes_of(single(), ddp(*both, startup_seconds=3.0)).items()
    assert (early.wording, early.values["x"].value) == ("takes less", pytest.approx(-1.0))
    ((kind, warm),) = causes_of(single(), row("ddp", each_run(*both, factors=(21.0, 1.0, 1.0)))).items()
    assert (kind, warm.wording, warm.values["x"].value) == ("warm-up", "takes more", pytest.approx(4.0, rel=0.01))
    sentence = "Not counted in the speed-up: start-up takes 1.0 ± 0.0 s less."
    assert sentence in verdict_of(single(), ddp(*both, startup_seconds=3.0))


@pytest.mark.parametrize("disturbed", ["single", "ddp"])
def test_a_disturbed_row_or_baseline_makes_no_account_and_no_causes(disturbed):
    slow = rank(halves(forward=11.0), queued=0.4)
    analysis = analyse(report_of(single(), ddp(slow, slow), foreign_cores={disturbed: 0.5}))
    assert analysis.rows[1].accounts.steps is None and analysis.rows[1].causes == ()
    assert not any("DDP" in words for words in verdict(analysis))
