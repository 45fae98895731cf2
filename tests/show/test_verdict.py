"""Causes, recommendations and disturbances in words. Each cause is planted alone, and only that one is found."""

import re
from dataclasses import replace

import pytest

from common.files.results import RankTimes
from comparison.judge.analysis import analyse
from comparison.judge.measures import measure
from comparison.judge.remedies import Proof, find_remedies
from comparison.judge.statistics import Excess
from comparison.judge.summaries import unsteadiness
from comparison.outcomes import CardUse, Foreign
from comparison.record import Equivalence
from comparison.show import verdict as words
from comparison.show.advice import next_step
from comparison.show.advice import recommendations as advised
from comparison.show.detail_tables import sweep_tables
from comparison.show.remarks import doubts
from comparison.show.sections import sections
from comparison.show.sentences import finding_sentence, tell_disturbed
from comparison.show.terminal import terminal_text
from comparison.words import render, speaking
from tests.reports import (
    CONFIG,
    DDP,
    ENVIRONMENT,
    FAST,
    OWN_PHASES,
    SINGLE,
    SLOW,
    STEP_MS,
    configuration,
    ddp,
    each_epoch,
    each_outcome,
    each_run,
    halved,
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


def with_workers(number, seconds=FAST, **values):
    """A row of a sweep of workers."""
    planned = configuration(values={"num_workers": number})
    return planned, runs(seconds=seconds, workers_per_process=number, **values)


def verdict(report):
    return words.verdict(analyse(report))


def recommendations(report):
    return advised(analyse(report))


def causes(report, index=-1):
    """The causes that are not part of an account."""
    return [cause for cause in analyse(report).rows[index].causes if not cause.of]


def causes_told(report, index=-1):
    """The sentences of a row's causes, by kind."""
    return {cause.kind: str(finding_sentence(cause)) for cause in analyse(report).rows[index].causes}


def kinds(report, index=-1):
    return [cause.kind for cause in causes(report, index)]


def sentence(report, index=-1):
    (cause,) = causes(report, index)
    return finding_sentence(cause)


def test_nothing_is_found_where_nothing_is_planted():
    report = report_of(SINGLE, halved(phases=(0.5, 0.25, 10.0, 20.0, 1.5)))
    assert [entry.causes for entry in analyse(report).rows] == [(), ()]
    assert verdict(report)[1] == (
        "DDP: 2.00 times as fast (95% CI 2.00 to 2.00); 1.00 s instead of 2.00 s per epoch. Scaling efficiency "
        "100% on 2 devices. A step takes 100.0 ms, 0.00 ± 0.00 ms below ideal scaling (100.0 ms): "
        "not significant."
    )


def test_a_row_with_as_many_devices_is_compared_with_the_baseline_instead_of_ideal_scaling():
    slower = (configuration("dp"), runs("dp", (2.2, 2.21, 2.19), phases=(1.0, 0.5, 30.0, 40.0, 13.0)))
    text = verdict(report_of(SINGLE, slower))[1]
    assert "A step takes 220.0 ms, 20.0 ± " in text and " ms longer than the baseline's (200.0 ms): " in text
    text = verdict(report_of(script("mine", 20.0), script("other", 60.0, samples=200), warmup=10))[1]
    assert "A step takes 60.0 ms, 20.0 ± " in text and " ms above ideal scaling (40.0 ms): " in text


def test_the_screen_has_the_two_largest_parts_of_a_difference():
    phases = [(1.0, 0.5, 15.0 + noise, 28.0 + noise, 6.5) for noise in (0.0, 0.1, -0.1)]
    results = [runs("ddp", (1.2,), count=2, phases=own, world_size=2)[0] for own in phases]
    (told,) = words.where_time_goes(analyse(report_of(SINGLE, (DDP[0], results))))
    assert told.startswith("DDP: a step takes 120.0 ms, 20.0 ± ") and ", smaller parts, " in told
    assert told.count(" more ") + told.count(" less ") == 2 and "in the backward pass" in told and "update" not in told


def test_what_is_outside_of_the_training_is_told_if_whole_runs_decide():
    both = rank(halves(forward=11.0)), rank(halves(forward=11.0))
    rows = single(), ddp(*both, startup_seconds=7.0)
    for max_steps, told in ((None, [False, True]), (10, [False])):
        sentences = words.where_time_goes(analyse(report_of(*rows, max_steps=max_steps)))
        assert ["outside the training, start-up" in words for words in sentences] == told


WAITS = (40.0, 0.5, 20.0, 40.0, 3.0)


@pytest.mark.parametrize(
    "workers, cores, advice",
    [
        (0, 4, "3 cores of 4 are free for more --num-workers."),
        (2, 4, "1 core of 4 is free for more --num-workers."),
        (3, 4, "1 thread and 3 loader workers already use the 4 cores; more workers would"),
        (4, 2, "1 thread and 4 loader workers already use the 2 cores; more workers would"),
    ],
)
def test_waiting_for_data(workers, cores, advice):
    waits = runs(phases=WAITS, workers_per_process=workers, environment={**ENVIRONMENT, "cores": cores})
    report = report_of((configuration(num_workers=workers), waits))
    assert kinds(report) == ["waiting for data"]
    assert sentence(report).startswith("Waiting for data takes 40.0 of 103.5 ms per step (39%): ")
    assert advice in sentence(report)


@pytest.mark.parametrize(
    "workers, data, advice",
    [
        (1, 1.0, "with 1 worker instead of 0, a step takes 64.5 ms"),
        (2, 20.0, "with 2 workers instead of 0, a step takes 83.5 ms"),
        (2, 60.0, "more workers do not help: with 2 instead of 0, "),
    ],
)
def test_more_workers_are_advised_if_they_were_faster(workers, data, advice):
    report = report_of(with_workers(0, phases=WAITS), with_workers(workers, phases=(data, *WAITS[1:])))
    assert advice in causes_told(report, 0)["waiting for data"]


def test_a_script_that_waits_is_told_its_own_workers():
    planned, made = script("mine", 20.0, workers_per_process=1, environment={**ENVIRONMENT, "cores": 3})
    made = [each_epoch(result, phases=replace(OWN_PHASES, data=60.0)) for result in made]
    told = causes_told(report_of((planned, made), warmup=10))["waiting for data"]
    assert told.endswith("free for more loader workers than its 1: 1 core of 3.")


def test_waiting_for_a_fifth_of_a_step_is_named():
    for data, found in ((15.5, []), (16.5, ["waiting for data"])):
        assert kinds(report_of((configuration(), runs(phases=(data, 0.5, 20.0, 40.0, 3.0))))) == found


RESIDENT = {**runs()[0].config, "loader": "resident"}


def test_waiting_for_a_resident_loader_is_not_blamed_on_workers():
    resident = runs(phases=WAITS, config=RESIDENT)
    report = report_of((configuration(), resident), probe={"resident_images_per_second": 50_000})
    assert kinds(report) == ["waiting for data"]
    assert "takes 40.0 of 103.5 ms per step (39%): the images are already in memory" in sentence(report)
    assert "workers" not in sentence(report)


def test_what_the_resident_loader_would_save():
    probe, waits = {"resident_images_per_second": 50_000}, {"phases": (4.0, 0.5, 20.0, 40.0, 3.0)}
    report = report_of(SINGLE, halved(**waits), probe=probe)
    assert kinds(report) == ["resident loader"] and kinds(report, 0) == []
    # each of two ranks loads 50 of the 100 images of a step
    assert "save 3.0 of 67.5 ms per step (4%): it was measured at 50,000 images/s" in sentence(report)
    assert "1.00 ms per step." in sentence(report)
    for data, found in ((2.2, []), (2.4, ["resident loader"])):  # a fiftieth of a step
        assert kinds(report_of(SINGLE, halved(phases=(data, 0.5, 20.0, 40.0, 3.0)), probe=probe)) == found
    assert kinds(report_of(SINGLE, halved(config=RESIDENT, **waits), probe=probe)) == ["unequal"]


def test_waiting_for_data_with_a_measured_remedy():
    report = report_of(with_workers(0, SLOW, phases=WAITS), with_workers(2, FAST))
    assert kinds(report, 0) == ["waiting for data"] and kinds(report, 1) == []
    assert "with 2 workers instead of 0, a step takes 64.5 ms" in sentence(report, 0)
    (swept,) = [text for text in verdict(report) if text.startswith("Sweep of workers, “SINGLE”: fastest at 2, 1,0")]
    assert swept.endswith(" a step takes 64.5 ms.")
    assert "0.33 [0.33, 0.33] (faster)" in sweep_tables(analyse(report), "simple")[0]


WRAPPED = configuration("ddp-1"), runs("ddp", (2.2, 2.21, 2.19))
SILENT = halved("ddp-no-sync", (1.6, 1.61, 1.59))
WITH_EXCHANGE = halved(seconds=(1.8, 1.81, 1.79))


def costs_told(*rows, **settings):
    told = " ".join(words.answers(analyse(report_of(SINGLE, *rows, **settings))))
    return [cost for cost in ("wrapper multiplies", "ranks take", "Exchanging gradients multiplies") if cost in told]


def test_costs_are_told_from_undisturbed_rows_with_equal_settings():
    assert costs_told(SILENT, WITH_EXCHANGE) == ["Exchanging gradients multiplies"]
    unlike = replace(SILENT[0], planned=replace(SILENT[0].planned, num_workers=4)), SILENT[1]
    assert costs_told(unlike, WITH_EXCHANGE) == costs_told(WITH_EXCHANGE) == []
    rows = WRAPPED, SILENT, WITH_EXCHANGE
    assert costs_told(*rows, foreign_cores={"ddp-1": 0.5}) == ["Exchanging gradients multiplies"]
    assert [costs_told(*rows[:number]) for number in (1, 2)] == [[], []] and len(costs_told(*rows)) == 3


def test_the_ladder_separates_the_costs_of_wrapper_contention_and_communication():
    report = report_of(SINGLE, WRAPPED, SILENT, WITH_EXCHANGE)
    costs = analyse(report).rows[-1].costs
    (alone,) = measure(report).images.ratios("ddp-1", ["single"], 1 - 0.05 / 3)  # one of three claims
    assert (costs.wrapper.low, costs.wrapper.high) == pytest.approx((alone.low, alone.high))
    quick = report_of(SINGLE, SILENT, halved(seconds=(1.6, 1.62, 1.6)))
    assert re.search(r"Exchanging gradients multiplies it by 1.00 \[.*\(practically equal\)", verdict(quick)[2])


def test_scatter_replicate_gather():
    own = {"scatter": 2.0, "replicate": 7.0, "gather": 1.0}
    row = configuration("dp", per_device_batch_size=50)
    report = report_of(SINGLE, (row, runs("dp", SLOW, count=2, method_milliseconds=own)))
    assert kinds(report) == ["scatter, replicate, gather"]
    assert "10.0 of 64.5 ms per step (16%; scatter 2.0, replicate 7.0, gather 1.0)" in sentence(report)
    simulated = report_of(SINGLE, (row, runs("dp", SLOW, simulated=True, method_milliseconds=own)))
    assert sentence(simulated).startswith("Simulated on one device, DataParallel itself takes 10.0")
    little, more = ({name: share * value for name, value in own.items()} for share in (0.3, 0.35))
    assert kinds(report_of(SINGLE, (row, runs("dp", SLOW, method_milliseconds=more)))) == [*kinds(report)]
    once = [*runs("dp", SLOW[:2], method_milliseconds=own), *runs("dp", SLOW[2:], method_milliseconds={"gather": 1.0})]
    for unsaid in (runs("dp", FAST, count=2, method_milliseconds=little), once):
        assert kinds(report_of(SINGLE, (row, unsaid))) == []


def stages_of(seconds, stages, forward, micro_batches, **values):
    """A row of model parallelism with the milliseconds of its two stages and of the whole forward pass."""
    values |= {"method_milliseconds": {"stage 0": stages[0], "stage 1": stages[1]}}
    values |= {"config": {**runs()[0].config, "micro_batches": micro_batches}}
    return configuration("mp"), runs("mp", seconds, phases=(1.0, 0.5, forward, 40.0, 3.0), **values)


@pytest.mark.parametrize(
    "micro_batches, simulated, stages, forward, idle, ideal",
    [
        (1, False, (10.0, 10.0), 22.0, "55%", "50%"),  # measured: 1 - 20 / 44
        (4, False, (10.0, 10.0), 16.0, "38%", "20%"),
        (4, False, (16.0, 4.0), 17.0, "41%", "20%"),
        (1, True, (10.0, 10.0), 20.0, "50%", "50%"),  # computed: one stage after the other
        (4, True, (10.0, 10.0), 20.0, "20%", "20%"),  # makespan 2.5 + 2.5 x 3 + 2.5
        (4, True, (16.0, 4.0), 20.0, "41%", "20%"),  # makespan 4 + 4 x 3 + 1
    ],
)
def test_an_idle_stage(micro_batches, simulated, stages, forward, idle, ideal):
    count = 1 if simulated else 2
    report = report_of(SINGLE, stages_of(SLOW, stages, forward, micro_batches, count=count, simulated=simulated))
    assert kinds(report) == ["idle stage"]
    assert f"idle {idle} of the time on average" in sentence(report) and f"ideally {ideal}" in sentence(report)
    assert ("computed, not measured" in sentence(report)) == simulated


def test_a_pipeline_that_keeps_both_devices_busy_has_no_idle_stage():
    assert kinds(report_of(SINGLE, stages_of(FAST, (9.5, 9.5), 10.0, 32, count=2))) == []


# ---- disturbances


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_claimed_or_recommended_from_a_disturbed_row(busy):
    mp = configuration("mp"), runs("mp", seconds=SLOW)
    report = report_of(SINGLE, halved(), mp, foreign_cores={busy: 0.11})
    results = [entry.result for entry in analyse(report).rows]
    every = {"single": ["baseline; disturbed", "disturbed", "disturbed"], "ddp": ["baseline", "disturbed", "slower"]}
    assert results == every[busy]
    others = [text for text in verdict(report) if not text.startswith("MP")]
    assert not any(text.startswith("DDP") or "times as fast" in text for text in others)
    assert recommendations(report) == ["Recommendation: none. Other programs disturbed the comparison."]


def test_a_disturbance_of_many_rows_is_one_sentence_with_the_largest():
    rows = [SINGLE, *(halved("ddp", name=f"ddp-{number}") for number in range(3))]
    busy = zip(rows, (0.3, 0.5, 0.4, 0.3), strict=True)
    report = report_of(*rows, foreign_cores={row.name: cores for (row, _), cores in busy})
    analysis, most = analyse(report), "kept up to 0.5 of 1 core busy"
    assert terminal_text(analysis).count("other programs") == " ".join(terminal_text(analysis).split()).count(most) == 1
    said = [str(content) for parts in sections(analysis, [], [], "plain").values() for _, content in parts]
    assert "\n".join(said).count(most) == 1 and words.verdict(analysis) == recommendations(report)
    told, (step,) = tell_disturbed(report.rows[:2]), next_step(analysis)
    assert most in step and most in told and "“SINGLE” and “DDP”" in told


def test_disturbed_rows_without_a_speed_up_are_marked():
    simulated = (configuration("dp"), runs("dp", simulated=True))
    rows = SINGLE, simulated, halved("ddp-no-sync"), halved(seconds=(1.5, 1.51, 1.49))
    report = report_of(*rows, foreign_cores={"dp": 0.5, "ddp-no-sync": 0.5})
    words = [entry.result for entry in analyse(report).rows]
    assert words == ["baseline", "simulated; disturbed", "disturbed", "faster"]
    assert kinds(report) == []  # the cost of the exchange is unknown


def test_a_tenth_of_the_cores_is_no_disturbance():
    report = report_of(SINGLE, halved(), foreign_cores={"single": 0.1, "ddp": 0.1})
    assert analyse(report).rows[1].result == "faster" and "Recommendation: use “DDP”" in recommendations(report)[0]
    failed = report_of(SINGLE, (DDP[0], [*DDP[1], "failed"]))
    disturbed = (replace(outcome, foreign_cores=0.9 * (outcome.status != "ok")) for outcome in failed.outcomes)
    assert not any(row.disturbed for row in replace(failed, outcomes=tuple(disturbed)).rows)  # failed runs do not count


@pytest.mark.parametrize(
    "cores, busy, stolen, taken",
    [(16, 1.0, 0.0, 1.0), (16, 0.09, 0.0, None), (17, 1.05, 0.0, None), (32, 1.0, 0.0, None), (32, 0.0, 0.3, 0.3)],
)
def test_a_program_that_takes_a_core_from_a_rank_is_a_disturbance(cores, busy, stolen, taken):
    """One core of 16 is less than a tenth, but delays all 16 ranks."""
    environment = {**ENVIRONMENT, "cores": cores}
    ranks = (DDP[0], [replace(result, world_size=16, environment=environment) for result in DDP[1]])
    report = report_of(SINGLE, ranks)
    outcomes = [replace(outcome, foreign_cores=busy, stolen=stolen) for outcome in report.outcomes[3:]]
    row = replace(report, outcomes=(*report.outcomes[:3], *outcomes)).rows[1]
    assert row.disturbed == bool(taken)
    assert not taken or max(row.foreign.taken, row.foreign.stolen) == pytest.approx(taken)


@pytest.mark.parametrize(
    "foreign, words",
    [
        ((0.5, 2, 0.0, 0.5, 0.0), "kept up to 0.5 of 2 cores busy"),
        ((0.9, 16, 0.02, 0.9, 0.0), "took a core for 90% of the time"),
        ((0.9, 16, 0.3, 0.9, 0.0), "kept up to 0.9 of 16 cores busy and computed on a GPU for 30% of the time"),
        ((0.0, 16, 0.0, 0.0, 0.3), "or another virtual machine took a core for 30% of the time"),
    ],
)
def test_a_disturbance_is_described_by_its_cause(foreign, words):
    assert Foreign(*foreign).too_much and Foreign(*foreign).words == words


def test_rows_without_results_say_why():
    report = report_of(SINGLE, (configuration("dp", skip="needs 2 GPUs, found 1"), []), (DDP[0], ["failed"]))
    paragraphs = verdict(report)
    assert paragraphs[1] == "DP: skipped: needs 2 GPUs, found 1."
    assert paragraphs[2] == "DDP: 1 of 1 run failed: signal 9."
    nothing = (recommendations(report_of((row.configuration, ["failed"]))) for row in report.rows)
    assert [recommendations(report_of(SINGLE)), *nothing] == [
        [f"Recommendation: none. {timed} was timed."] for timed in ("Only one row", *3 * ("No row",))
    ]
    assert recommendations(report_of(SINGLE, halved("ddp-no-sync"))) == [
        "Recommendation: none. No two of the timed rows train the same."
    ]


def checked(status, difference):
    """The checks of three rows, the last of which has this one."""
    return {
        "single": Equivalence(0.0, "ok", ""),
        "ddp": Equivalence(1e-8, "ok", ""),
        "dp": Equivalence(difference, status, ""),
    }


@pytest.mark.parametrize(
    "checks, said",
    [
        (checked("ok", 3e-8), "within 3.0e-08 in 2 of 2 other rows."),
        (checked("failed", 0.3), "within 1.0e-08 in 1 of 2 other rows."),
        (checked("expected", 0.3), "within 1.0e-08 in 1 of 2 other rows."),
        (checked("failed", None), "within 1.0e-08 in 1 of 2 other rows."),
        ({"dp": Equivalence(0.3, "failed", "")}, None),
    ],
)
def test_rows_with_matching_weights_are_counted(checks, said):
    analysis = analyse(report_of(SINGLE, DDP, (configuration("dp"), runs("dp")), equivalence=checks))
    found = [text for text in words.answers(analysis) if text.startswith("Weights after 20 steps")]
    assert [text.partition("device's ")[2] for text in found] == ([said] if said else [])
    differs = checks["dp"].status == "failed" and checks["dp"].difference
    assert (": its weights differ from one device's by 3.0e-01" in terminal_text(analysis)) == bool(differs)
    assert (next_step(analysis)[:1] == ["Next: fix “DP”: its weights are not those of one device."]) == bool(differs)


def test_one_learning_rate_for_several_batch_sizes_is_mentioned():
    larger = configuration("ddp", batch_size=400), runs("ddp")

    def told(*rows, **settings):
        return [text for text in words.answers(analyse(report_of(SINGLE, *rows, **settings))) if "--lr-scaling" in text]

    assert told(larger) and not told(DDP) and not told(larger, lr_scaling="linear")


# ---- sentences that were false in some case


def queued(ranks, workers, cores, is_script):
    """A report whose last row waits for cores."""
    environment = {**ENVIRONMENT, "cores": cores}
    values = {"environment": environment, "workers_per_process": workers // ranks}
    if not is_script:
        made = each_run(*[rank(halves(), queued=0.5)] * ranks, **values)
        return report_of(single(), (configuration("ddp", num_workers=workers), made))
    planned, made = script("other", 20.0, world_size=ranks, **values)

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
        (2, 0, 4, True, "(2 threads on 4 cores): the threads that exchange gradients share these cores; exchange less"),
        (2, 0, 4, False, "(2 threads on 4 cores): the threads that exchange gradients share these cores; add --bind"),
        (1, 0, 1, True, "had no core (1 thread on 1 core): look for something that binds"),
    ],
)
def test_advice_about_cores_names_only_flags_that_the_row_has(ranks, workers, cores, is_script, said):
    report = queued(ranks, workers, cores, is_script)
    told = causes_told(report)
    assert said in (told.get("too many workers") or told["shared cores"])
    assert " ".join(terminal_text(analyse(report)).split()).count("had no core") <= 1  # as the next step


def test_a_cuda_graph_is_no_advice_where_it_is_used_or_impossible():
    def told(method="single", devices=1, **planned):
        gpus = tuple(f"cuda:{number}" for number in range(devices))
        made = [replace(make_result(method), devices=gpus, world_size=devices, peak_memory_bytes=(1,) * devices)] * 3
        report = report_of((configuration(method, device="gpu", **planned), made))
        cards = tuple(CardUse(gpu, busy=0.2) for gpu in gpus)
        return causes_told(each_outcome(report, cards=cards))["idle GPU"]

    assert told().endswith("a larger batch or a CUDA graph may help.")
    for used in (told(cuda_graph=True), told(compile=True), told(accumulate=2), told("ddp"), told("ddp", devices=2)):
        assert used.startswith("Its busiest GPU") and used.endswith(": a larger batch may help.")


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
    rows = single(), (DDP[0], made)
    first, *others = causes_told(report_of(*rows, probe={"steps": steps})).items()
    assert first[0] == "small batch" and first[1].startswith(f"{costs} of this come from the small batch")
    assert (others[0][0] == "noise") == (costs == "10.0 ms")


def test_a_difference_of_single_runs_is_not_called_insignificant():
    once = [(planned, made[:1]) for planned, made in (single(), ddp(*[rank(halves(forward=15.0))] * 2))]
    assert "10.0 ms above ideal scaling (20.0 ms): no interval: too few runs." in verdict(report_of(*once))[1]


def test_the_rest_of_a_short_step_has_as_many_decimals_as_its_parts():
    short = {name: value / 100 for name, value in STEP_MS.items()}
    half = {name: value / 2 for name, value in short.items()}
    slow = replace(rank({**half, "forward": 0.06}), train_seconds=10 * 0.25 / 1000)
    made = [replace(slow, train_seconds=slow.train_seconds * factor) for factor in (1.0, 1.06, 0.94)]
    rows = row("single", each_run(rank(short))), row("ddp", [run(one, one) for one in made])
    assert "the remaining +0.04 ms cannot be attributed" in verdict(report_of(*rows))[1]


@pytest.mark.parametrize("odd, said", [(0.5, "fast period in block 1: epoch 5 took 0.50 s"), (2.0, "slow period in")])
def test_a_fast_epoch_is_no_slow_period(odd, said):
    report = report_of((configuration(), [make_result(seconds=(1.0, 1.0, 1.0, 1.0, odd, 1.0))]))
    (found,) = unsteadiness(report.rows[0])
    assert finding_sentence(found).startswith(said)


@pytest.mark.parametrize("sham, said", [(3.0, "-3.0 ms"), (-3.0, "+3.0 ms"), (-0.04, "+0.04 ms")])
def test_a_sham_is_told_with_its_sign(sham, said):
    slow = ddp(*[rank(halves(exchange=6.0))] * 2)
    (remedy,) = find_remedies(analyse(report_of(single(), slow)))
    measured, again = Excess("exchange", 0.1, 0.09, 0.11), Excess("exchange", sham, sham - 0.01, sham + 0.01)
    assert f"not proved: the unchanged copy changed too, by {said}" in words.tell_proof(Proof(remedy, measured, again))
    moved = words.tell_proof(Proof(remedy, measured, replace(again, value=0.0), (replace(again, name="update"),)))
    assert moved.endswith(f"other phases changed too (update {said}).")


def test_what_differs_between_scripts_is_told_in_chinese():
    other = script("other", 20.0, samples=200, parameters=6, precision="bfloat16", config={"optimizer": "AdamW"})
    with speaking("zh"):
        told = " ".join(map(render, doubts(analyse(report_of(script("mine", 20.0), other, warmup=10)))))
    assert "每步样本 200，而不是 100" in told and "AdamW" in told
    assert not any(words in told for words in ("samples", "parameters", "type of", "optimizer"))


def test_a_script_that_slows_down_has_no_epochs():
    planned, made = script("mine", 20.0)
    longer = [
        replace(one, epochs=tuple(replace(e, train_seconds=e.train_seconds * (1 + e.epoch / 10)) for e in one.epochs))
        for one in made
    ]
    told = causes_told(report_of((planned, longer), warmup=10))["growing"]
    assert told.startswith("Its steps get longer as it trains, by ") and "epoch" not in told
