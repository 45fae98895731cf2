"""Sentences that were false, or advice that could not be typed, in some case."""

from dataclasses import replace

import pytest

from common.files.results import RankTimes
from comparison.judge.analysis import analyse
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import Excess
from comparison.judge.summaries import unsteadiness
from comparison.outcomes import CardUse
from comparison.record import Equivalence
from comparison.show.advice import next_step, recommendations
from comparison.show.remarks import definitions, doubts, not_measured, notes
from comparison.show.sentences import finding_sentence
from comparison.show.tables import answer_rows
from comparison.show.verdict import answers, tell_proof, verdict
from comparison.words import render, speaking
from tests.reports import (
    CONFIG,
    DDP,
    ENVIRONMENT,
    SINGLE,
    STEP_MS,
    configuration,
    each_outcome,
    each_run,
    halves,
    make_result,
    rank,
    report_of,
    row,
    run,
    runs,
    script,
    single,
)
from tests.reports import ddp as ranks_of

SPLIT = {"per_device_batch_size": 50}


def two(seconds, method="ddp", **values):
    return configuration(method, **SPLIT), runs(method, seconds, count=2, world_size=2, **SPLIT, **values)


def of_cores(report, cores):
    return replace(report, environment={**report.environment, "cores": cores})


def advised(*rows, **settings):
    (advice,) = recommendations(analyse(report_of(*rows, **settings)))
    return advice


def next_of(*rows, **settings):
    return next(iter(next_step(analyse(report_of(*rows, **settings)))), "")


def causes_told(report):
    """Return the sentences of the last row's causes, by kind."""
    return {cause.kind: str(finding_sentence(cause)) for cause in analyse(report).rows[-1].causes}


def variant(kind, milliseconds, label=""):
    planned, made = script("mine", milliseconds)
    return replace(planned, name=f"script-mine-{kind}", label=label or kind), made


# ---- the recommendation

NOISY = (1.1, 1.0, 0.9)


@pytest.mark.parametrize(
    "rows, said",
    [
        ([SINGLE, (configuration("single-all-cores"), runs(seconds=(2.01, 1.99, 2.02)))], "“SINGLE-ALL-CORES”."),
        ([script("mine", 20.0), script("other", 20.1)], "“other”."),
        ([script("mine", 20.0), variant("thread", 20.1)], "“thread”, and is the simpler of the two."),
        (
            [*(two(NOISY[::step], method) for method, step in (("ddp", 1), ("fsdp", -1)))],
            "“FSDP”, and is the simpler of the two.",
        ),
    ],
)
def test_a_row_is_called_the_simplest_only_if_no_tied_row_is_as_simple(rows, said):
    told = advised(*rows, warmup=10)
    assert f"It is statistically tied with {said}" in told


def test_several_simplest_rows_are_all_named():
    noisy = (0.8, 1.6, 1.1)
    alone = [(configuration(name), runs(seconds=noisy)) for name in ("single", "single-all-cores")]
    told = advised(*alone, two((0.9, 0.91, 0.89)))
    assert "; the simplest of them are “SINGLE” and “SINGLE-ALL-CORES”." in told


@pytest.mark.parametrize("seconds, said", [((2.1, 1.6, 1.9), False), ((0.9, 0.91, 0.89), True)])
def test_an_excluded_row_is_called_faster_only_if_that_is_proved(seconds, said):
    unequal = runs("ddp", seconds, count=2, world_size=2, workers_per_process=2, **SPLIT)
    told = advised(SINGLE, (configuration("ddp", num_workers=4, **SPLIT), unequal), allow_unequal=True)
    assert told.startswith("Recommendation: use “SINGLE”") and ("Faster, but excluded" in told) == said


@pytest.mark.parametrize(
    "others, tied", [([2.0], None), ([2.0, 2.02, 1.98], False), ([1.01, 1.0, 1.02], True), ([1.5, 0.7, 1.1], True)]
)
def test_the_fastest_of_an_incomplete_comparison_is_tied_as_in_the_table(others, tied):
    seconds = [1.0, 1.01, 0.99][: len(others)]
    analysis = analyse(of_cores(report_of((configuration(), runs(seconds=others)), two(seconds)), 4))
    (told,) = recommendations(analysis)
    assert "“DDP” is the fastest" in told and ("tied" in told) == bool(tied)
    assert ("tied" in {row["Result"] for row in answer_rows(analysis)}) == bool(tied)


# ---- what to do next


def test_weights_are_those_of_one_device_rather_than_the_baselines():
    checks = {"single": Equivalence(0.3, "failed", ""), "ddp": Equivalence(1e-8, "ok", "")}
    assert next_of(SINGLE, DDP, equivalence=checks) == "Next: fix “SINGLE”: its weights are not those of one device."


def test_a_script_without_memory_gets_no_advice_about_a_batch_that_nobody_typed():
    failed = script("other", 20.0)[0], ["out of memory"] * 3
    report = report_of(script("mine", 20.0), failed, warmup=10)
    analysis = analyse(report)
    assert next_step(analysis) == ["Next: see script-other-1.log: “other” out of memory."]
    assert analysis.rows[1].result == "3 of 3 runs out of memory"
    assert not any("smaller" in words for words in not_measured(report))


def test_a_change_outside_a_script_is_not_said_to_be_in_it():
    assert next_of(script("mine", 20.0), variant("memory", 10.0), warmup=10) == (
        "Next: make the change “memory”; the report says how."
    )


@pytest.mark.parametrize("fitted, target", [(False, None), (True, 0.5)])
def test_prove_is_advised_only_where_it_may_be_typed(fitted, target):
    said = next_of(SINGLE, DDP, fit_batch=fitted, target_accuracy=target)
    assert said.startswith("Next: add --prove") != fitted


def test_allowing_unequal_rows_is_blamed_only_if_they_were():
    assert "--allow-unequal" not in next_of(SINGLE, (DDP[0], ["out of memory"]), allow_unequal=True)
    some = [*SINGLE[1][:2], "out of memory"]
    unequal = runs("ddp", (1.0, 1.01, 0.99), count=2, world_size=2, workers_per_process=2, **SPLIT)
    rows = (configuration(), some), (configuration("ddp", num_workers=4, **SPLIT), unequal)
    assert "leave out --allow-unequal" in next_of(*rows, allow_unequal=True)


def queued(ranks, workers, cores, is_script):
    """A report whose last row waits for cores."""
    environment = {**ENVIRONMENT, "cores": cores}
    each = 2 * workers // ranks
    if not is_script:
        made = each_run(*[rank(halves(), queued=0.5)] * ranks, environment=environment, workers_per_process=each // 2)
        return report_of(single(), (configuration("ddp", num_workers=workers), made))
    planned, made = script("other", 20.0, workers_per_process=each // 2, world_size=ranks, environment=environment)

    def waits(epoch):
        own = RankTimes(epoch.train_seconds, epoch.phases, epoch.train_seconds, 0.5 * epoch.train_seconds, None)
        return replace(epoch, ranks=(own,) * ranks)

    made = [replace(one, epochs=tuple(map(waits, one.epochs)), devices=("cpu",) * ranks) for one in made]
    return report_of(script("mine", 20.0, environment=environment), (planned, made), warmup=10)


@pytest.mark.parametrize(
    "ranks, workers, cores, is_script, said",
    [
        (1, 2, 2, True, "1 thread and 2 loader workers share 2 cores; give its DataLoader fewer workers."),
        (2, 2, 2, False, "2 threads and 2 loader workers share 2 cores; use fewer --num-workers."),
        (2, 0, 4, True, "(2 threads on 4 cores): look for other programs, or for something that binds"),
        (2, 0, 4, False, "(2 threads on 4 cores): look for other programs, or add --bind"),
        (1, 0, 1, True, "had no core (1 thread on 1 core): look for other programs"),
    ],
)
def test_advice_about_cores_names_only_flags_that_the_row_has(ranks, workers, cores, is_script, said):
    told = causes_told(queued(ranks, workers, cores, is_script))
    assert said in (told.get("too many workers") or told["shared cores"])


def swept(number, seconds, data):
    planned = configuration(num_workers=number, values={"num_workers": number})
    cores = {**ENVIRONMENT, "cores": 4}
    phases = (data, 0.5, 20.0, 40.0, 3.0)
    return planned, runs(seconds=seconds, phases=phases, workers_per_process=number, environment=cores)


def test_one_worker_and_one_core_are_singular():
    rows = analyse(report_of(swept(0, (2.0, 2.02, 1.98), 60.0), swept(1, (1.0, 1.01, 0.99), 1.0))).rows
    (waiting,) = (cause for cause in rows[0].causes if cause.kind == "waiting for data")
    assert "with 1 worker instead of 0, a step takes 64.5 ms" in finding_sentence(waiting)
    planned, made = script("mine", 20.0, workers_per_process=1, environment={**ENVIRONMENT, "cores": 3})
    made = [
        replace(one, epochs=tuple(replace(epoch, phases=replace(epoch.phases, data=60.0)) for epoch in one.epochs))
        for one in made
    ]
    told = causes_told(report_of((planned, made), warmup=10))["waiting for data"]
    assert told.endswith("free for more loader workers than its 1: 1 core of 3.")


def test_a_cuda_graph_is_no_advice_where_it_is_used_or_impossible():
    def told(method="single", devices=1, **planned):
        gpus = tuple(f"cuda:{number}" for number in range(devices))
        made = [replace(make_result(method), devices=gpus, world_size=devices, peak_memory_bytes=(1,) * devices)] * 3
        report = report_of((configuration(method, device="gpu", **planned), made))
        cards = tuple(CardUse(gpu, busy=0.2) for gpu in gpus)
        return causes_told(each_outcome(report, cards=cards))["idle GPU"]

    assert told().endswith("a larger batch or a CUDA graph may help.")
    for words in (told(cuda_graph=True), told(compile=True), told(accumulate=2), told("ddp"), told("ddp", devices=2)):
        assert words.startswith("Its busiest GPU") and words.endswith(": a larger batch may help.")


# ---- causes


def test_two_stages_that_idle_unequally_idle_so_much_on_average():
    times = {"stage 0": 16.0, "stage 1": 4.0}
    config = {**runs()[0].config, "micro_batches": 4}
    values = {"method_milliseconds": times, "config": config, "count": 2}
    row = configuration("mp"), runs("mp", (3.0, 3.03, 2.97), phases=(1.0, 0.5, 17.0, 40.0, 3.0), **values)
    told = causes_told(report_of(SINGLE, row))["idle stage"]
    assert told.startswith("In the forward pass the two devices idle 41% of the time on average")


def test_noise_is_that_of_the_time_that_is_judged():
    """Every epoch takes as long, but some runs need twice as many to reach the target."""

    def trained(method, epochs):
        made = [runs(method, (2.0,), epochs=number, config={**CONFIG, "epochs": 9})[0] for number in epochs]
        return configuration(method), made

    told = causes_told(report_of(trained("single", (4, 4, 4)), trained("ddp", (3, 6, 3)), target_accuracy=0.5))
    assert "The runs of “DDP” differ by up to 100%" in told["noise"]


@pytest.mark.parametrize("forward, costs", [((10.0, 10.0, 10.0), "5.0 ms"), ((18.0, 20.0, 22.0), "10.0 ms")])
def test_a_small_batch_costs_no_more_than_the_difference_that_its_sentence_follows(forward, costs):
    """Measured once, one device alone takes 10 ms more for half of the images than half of a step."""
    steps = [{"model": "lenet", "batch": size, "milliseconds": ms} for size, ms in ((100, 40.0), (50, 30.0))]
    made = [run(*[rank(halves(forward=own))] * 2) for own in forward]
    rows = single(), (configuration("ddp", **SPLIT), made)
    first, *others = causes_told(report_of(*rows, probe={"steps": steps})).items()
    assert first[0] == "small batch" and first[1].startswith(f"{costs} of this come from the small batch")
    assert (others[0][0] == "noise") == (costs == "10.0 ms")


def test_a_difference_of_single_runs_is_not_called_insignificant():
    once = [(planned, made[:1]) for planned, made in (single(), ranks_of(*[rank(halves(forward=15.0))] * 2))]
    told = verdict(analyse(report_of(*once)))[1]
    assert "10.0 ms above ideal scaling (20.0 ms): no interval: too few runs." in told


def test_the_rest_of_a_short_step_has_as_many_decimals_as_its_parts():
    short = {name: value / 100 for name, value in STEP_MS.items()}
    half = {name: value / 2 for name, value in short.items()}
    slow = replace(rank({**half, "forward": 0.06}), train_seconds=10 * 0.25 / 1000)
    made = [replace(slow, train_seconds=slow.train_seconds * factor) for factor in (1.0, 1.06, 0.94)]
    rows = row("single", each_run(rank(short))), row("ddp", [run(one, one) for one in made])
    assert "the remaining +0.04 ms cannot be attributed" in verdict(analyse(report_of(*rows)))[1]


# ---- disturbances, guesses, warnings and proofs


def test_costs_are_not_told_from_disturbed_rows():
    wrapped = configuration("ddp-1"), runs("ddp", (2.2, 2.21, 2.19))
    silent = configuration("ddp-no-sync", **SPLIT), two((1.6, 1.61, 1.59))[1]
    report = report_of(SINGLE, wrapped, silent, two((1.8, 1.81, 1.79)), foreign_cores={"ddp-1": 0.5})
    told = " ".join(answers(analyse(report)))
    assert "Exchanging gradients multiplies" in told and "wrapper" not in told and "ranks take" not in told


@pytest.mark.parametrize("odd, said", [(0.5, "fast period in block 1: epoch 5 took 0.50 s"), (2.0, "slow period in")])
def test_a_fast_epoch_is_no_slow_period(odd, said):
    made = make_result(seconds=(1.0, 1.0, 1.0, 1.0, odd, 1.0))
    (report,) = [report_of((configuration(), [made]))]
    (found,) = unsteadiness(report.rows[0])
    assert finding_sentence(found).startswith(said)


@pytest.mark.parametrize("sham, said", [(3.0, "-3.0 ms"), (-3.0, "+3.0 ms"), (-0.04, "+0.04 ms")])
def test_a_sham_is_told_with_its_sign(sham, said):
    slow = ranks_of(*[rank(halves(exchange=6.0))] * 2)
    (remedy,) = find_remedies(analyse(report_of(single(), slow)))
    measured, again = Excess("exchange", 0.1, 0.09, 0.11), Excess("exchange", sham, sham - 0.01, sham + 0.01)
    assert f"not proved: the unchanged copy changed too, by {said}" in tell_proof(Proof(remedy, measured, again))
    moved = tell_proof(Proof(remedy, measured, replace(again, value=0.0), (replace(again, name="update"),)))
    assert moved.endswith(f"other phases changed too (update {said}).")


def test_other_programs_on_several_nodes_are_not_said_to_be_hidden_by_a_confined_process():
    alone, apart = (
        each_outcome(report_of((replace(SINGLE[0], nodes=nodes), SINGLE[1])), foreign_cores=None) for nodes in (1, 2)
    )
    assert any("confined to a part" in words for words in not_measured(alone))
    assert not any("confined" in words for words in not_measured(apart))
    assert any("Whether other programs disturbed the runs" in words for words in not_measured(apart))


def test_the_relative_time_of_scripts_is_that_of_samples():
    told = [words for words in definitions(report_of(script("mine", 20.0), warmup=10)) if "Relative time" in words]
    assert told == ["Relative time: a row's time per sample divided by the recommended row's."]


def test_what_differs_between_scripts_is_told_in_chinese():
    other = script("other", 20.0, samples=200, parameters=6, precision="bfloat16", config={"optimizer": "AdamW"})
    with speaking("zh"):
        told = " ".join(map(render, doubts(analyse(report_of(script("mine", 20.0), other, warmup=10)))))
    assert "每步样本 200，而不是 100" in told and "AdamW" in told
    assert not any(words in told for words in ("samples", "parameters", "type of", "optimizer"))


def test_the_ladder_is_no_help_where_one_device_exchanges_nothing():
    def told(*rows):
        return any("--methods ladder" in words for words in not_measured(report_of(SINGLE, *rows)))

    assert told(two((1.0, 1.01, 0.99)))
    assert not told((configuration("ddp"), runs("ddp"))) and not told((configuration("ddp", skip="needs 2 GPUs"), []))


def test_a_single_method_beside_a_script_is_not_told_to_leave_out_methods():
    """Without --methods only scripts are compared."""
    assert next_of(SINGLE, script("mine", 20.0)) == "Next: add a second --script COMMAND to compare it with."


def test_a_script_that_slows_down_has_no_epochs():
    planned, made = script("mine", 20.0)
    longer = [
        replace(one, epochs=tuple(replace(e, train_seconds=e.train_seconds * (1 + e.epoch / 10)) for e in one.epochs))
        for one in made
    ]
    told = causes_told(report_of((planned, longer), warmup=10))["growing"]
    assert told.startswith("Its steps get longer as it trains, by ") and "epoch" not in told


def test_a_simulated_row_proves_nothing_that_is_checked_elsewhere():
    """Its report says that --check-maths shows whether every method computes the same."""
    report = report_of(SINGLE, (configuration("dp"), runs("dp", simulated=True)))
    (told,) = (words for words in notes(analyse(report)) if words.startswith("Simulated rows"))
    assert "computes the same" not in told and any("computes the same" in words for words in not_measured(report))


@pytest.mark.parametrize("cores, said", [(1, ""), (4, "Next: SINGLE: Waiting for data takes")])
def test_the_next_step_is_something_to_do(cores, said):
    """With all cores in use, more workers would slow the computation: nothing follows from that."""
    waits = runs(phases=(60.0, 0.5, 20.0, 40.0, 3.0), environment={**ENVIRONMENT, "cores": cores})
    told = next_of((configuration(), waits), (configuration("single-all-cores"), runs(seconds=(3.0, 3.03, 2.97))))
    assert told.startswith(said) and bool(told) == bool(said)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"budget": 300.0}, "Next: --repeats 12 (now 3) would"),
        ({"budget": 1200.0}, "Next: --repeats 12 (now 3) in place of --budget would"),
        ({"budget": 1200.0, "margin": 5.0}, "Next: --repeats 12 (now 3) in place of --budget and --margin would"),
    ],
)
def test_more_repeats_take_the_place_of_flags_that_exclude_them(settings, said):
    rows = (configuration(), runs(seconds=(1.5, 0.7, 1.1))), two((1.0, 1.01, 0.99))
    assert next_of(*rows, repeats=None, **settings).startswith(said)
