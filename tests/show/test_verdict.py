"""Causes, recommendations and disturbances in words. Each cause is planted alone, and only that one is found."""

import re
from dataclasses import replace

import pytest

from comparison.judge.analysis import analyse
from comparison.judge.measures import measure
from comparison.outcomes import Foreign
from comparison.record import Equivalence
from comparison.show import verdict as words
from comparison.show.advice import next_step
from comparison.show.advice import recommendations as advised
from comparison.show.detail_tables import sweep_tables
from comparison.show.sections import sections
from comparison.show.sentences import finding_sentence, tell_disturbed
from comparison.show.tables import answer_rows
from comparison.show.terminal import terminal_text
from tests.reports import DDP, ENVIRONMENT, SINGLE, configuration, report_of, runs, script

FAST, SLOW, SAME = (1.0, 1.01, 0.99), (3.0, 3.03, 2.97), (2.01, 1.99, 2.02)


def ddp(**values):
    return configuration("ddp", **{"per_device_batch_size": 50, **values})


def two(seconds=FAST, **values):
    return runs("ddp", seconds, count=2, world_size=2, per_device_batch_size=50, **values)


def with_workers(number, seconds, **values):
    """A row of a sweep of workers."""
    planned = configuration(values={"num_workers": number}, num_workers=number)
    return planned, runs(seconds=seconds, workers_per_process=number, **values)


def verdict(report):
    return words.verdict(analyse(report))


def recommendations(report):
    return advised(analyse(report))


def causes(report, index=-1):
    """The causes that are not part of an account."""
    return [cause for cause in analyse(report).rows[index].causes if not cause.of]


def kinds(report, index=-1):
    return [cause.kind for cause in causes(report, index)]


def sentence(report, index=-1):
    (cause,) = causes(report, index)
    return finding_sentence(cause)


def test_nothing_is_found_where_nothing_is_planted():
    report = report_of(SINGLE, (ddp(), two(phases=(0.5, 0.25, 10.0, 20.0, 1.5))))
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
    (told,) = words.where_time_goes(analyse(report_of(SINGLE, (ddp(), results))))
    assert told.startswith("DDP: a step takes 120.0 ms, 20.0 ± ") and ", smaller parts, " in told
    assert told.count(" more ") + told.count(" less ") == 2 and "in the backward pass" in told and "update" not in told


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
    "data, advice",
    [
        (20.0, "with 2 workers instead of 0, a step takes 83.5 ms"),
        (60.0, "more workers do not help: with 2 instead of 0, "),
    ],
)
def test_more_workers_are_advised_if_they_were_faster(data, advice):
    swept = [
        (configuration(num_workers=number, values={"num_workers": number}), runs(phases=(waits, *WAITS[1:])))
        for number, waits in ((0, WAITS[0]), (2, data))
    ]
    (waiting, *_) = (cause for cause in analyse(report_of(*swept)).rows[0].causes if cause.kind == "waiting for data")
    assert advice in finding_sentence(waiting)


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
    report = report_of(SINGLE, (ddp(), two(**waits)), probe=probe)
    assert kinds(report) == ["resident loader"] and kinds(report, 0) == []
    # each of two ranks loads 50 of the 100 images of a step
    assert "save 3.0 of 67.5 ms per step (4%): it was measured at 50,000 images/s" in sentence(report)
    assert "1.00 ms per step." in sentence(report)
    for data, found in ((2.2, []), (2.4, ["resident loader"])):  # a fiftieth of a step
        assert kinds(report_of(SINGLE, (ddp(), two(phases=(data, 0.5, 20.0, 40.0, 3.0))), probe=probe)) == found
    assert kinds(report_of(SINGLE, (ddp(), two(config=RESIDENT, **waits)), probe=probe)) == ["unequal"]


def test_waiting_for_data_with_a_measured_remedy():
    report = report_of(with_workers(0, SLOW, phases=WAITS), with_workers(2, FAST))
    assert kinds(report, 0) == ["waiting for data"] and kinds(report, 1) == []
    assert "with 2 workers instead of 0, a step takes 64.5 ms" in sentence(report, 0)
    (swept,) = [text for text in verdict(report) if text.startswith("Sweep of workers, “SINGLE”: fastest at 2, 1,0")]
    assert swept.endswith(" a step takes 64.5 ms.")
    assert "0.33 [0.33, 0.33] (faster)" in sweep_tables(analyse(report), "simple")[0]


def test_the_cost_of_the_exchange_needs_a_row_with_equal_settings():
    ddp_row = (ddp(), two((1.5, 1.51, 1.49)))
    silent = (configuration("ddp-no-sync", per_device_batch_size=50), two(FAST))
    assert "gradients multiplies it by 1.50 [" in verdict(report_of(SINGLE, silent, ddp_row))[2]
    unlike = (configuration("ddp-no-sync", per_device_batch_size=50, num_workers=4), two(FAST))
    assert "Exchanging gradients" not in verdict(report_of(SINGLE, unlike, ddp_row))[2]


def test_the_ladder_separates_the_costs_of_wrapper_contention_and_communication():
    wrapped = configuration("ddp-1"), runs("ddp", (2.2, 2.21, 2.19))
    silent = configuration("ddp-no-sync", per_device_batch_size=50), two((1.6, 1.61, 1.59))
    report = report_of(SINGLE, wrapped, silent, (ddp(), two((1.8, 1.81, 1.79))))
    text = verdict(report)[3]
    assert "DDP's wrapper multiplies the time by 1.10 [1.09, 1.11] (slower)" in text
    assert "Without exchange, 2 ranks take 0.73 [0.72, 0.73] times as long as one (ideal: 0.50)." in text
    assert "Exchanging gradients multiplies it by 1.13 [" in text
    costs = analyse(report).rows[-1].costs
    (alone,) = measure(report).images.ratios("ddp-1", ["single"], 1 - 0.05 / 3)  # one of three claims
    assert (costs.wrapper.low, costs.wrapper.high) == pytest.approx((alone.low, alone.high))
    quick = report_of(SINGLE, silent, (ddp(), two((1.6, 1.62, 1.6))))
    assert re.search(r"Exchanging gradients multiplies it by 1.00 \[.*\(practically equal\)", verdict(quick)[2])
    assert not any("wrapper" in paragraph for paragraph in verdict(report)[:3])


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


def test_unequal_settings():
    unequal = two(workers_per_process=2)
    report = report_of(SINGLE, (ddp(num_workers=4), unequal), allow_unequal=True)
    assert kinds(report) == ["unequal"] and sentence(report) == "Not a fair comparison: workers 4 instead of 0."
    (advice,) = recommendations(report)
    assert advice.startswith("Recommendation: use “SINGLE”: ")
    assert " Faster, but excluded: “DDP”, unequal: workers 4 instead of 0. " in advice


# ---- recommendations


def test_a_recommendation_with_a_tie_and_an_exclusion():
    dp = (configuration("dp", per_device_batch_size=50), runs("dp", (1.01, 1.0, 0.99), count=2))
    flaky = (configuration("accelerate", per_device_batch_size=50), [*two((0.5, 0.51)), "failed"])
    skipped = (configuration("mp", skip="needs 2 GPUs"), [])
    assert recommendations(report_of(SINGLE, dp, (ddp(), two()), flaky, skipped)) == [
        "Recommendation: use “DP”, 1.67 times as fast as “SINGLE” (95% CI 1.62 to 1.71): 1.50 s instead of 2.50 s per "
        "epoch with evaluation. It is statistically tied with “DDP”, and is the simpler of the two. Faster, but "
        "excluded: “ACCELERATE”, 1 of 3 runs failed. Peak memory, all devices: 0.0 MiB."
    ]
    (advice,) = recommendations(report_of(SINGLE, (ddp(), two((2.02, 1.98, 1.99)))))
    assert advice.startswith("Recommendation: use “SINGLE”: 2.50 s per epoch with evaluation. It is statistically tied")


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_tied_without_an_interval(count):
    analysis = analyse(report_of((configuration(), runs(seconds=(6.0, 6.1)[:count])), (ddp(), two((2.0, 2.1)[:count]))))
    (advice,) = advised(analysis)
    assert advice.startswith("Recommendation: none.") and "tied" not in terminal_text(analysis)
    assert [row["Result"] for row in answer_rows(analysis)] == ["fastest", "no interval: too few runs"]


@pytest.mark.parametrize(
    "times", [{1: (8.0,), 2: (4.0,), 4: (2.0,)}, {1: (8.0, 8.1, 7.9), 2: (4.0,), 4: (2.0, 2.1, 1.9)}]
)
def test_a_sweep_with_a_single_run_of_a_value_has_no_fastest_one(times):
    rows = [with_workers(n, seconds) for n, seconds in times.items()]
    swept = [text for text in verdict(report_of(*rows)) if text.startswith("Sweep")]
    assert swept == ["Sweep of workers, “SINGLE”: too few runs to tell the fastest."]


def test_the_simplest_of_several_tied_rows():
    rows = [(configuration(method), runs(method, FAST, count=2)) for method in ("dp", "ddp", "fsdp")]
    (advice,) = recommendations(report_of(SINGLE, *rows))
    assert "It is statistically tied with “DDP” and “FSDP”, and is the simplest of them." in advice


def test_single_runs_recommend_nothing():
    none = "Recommendation: none. 1 run per row cannot prove a difference"
    report = report_of((configuration(), runs(seconds=(2.0,))), (ddp(), two((1.0,))), repeats=1)
    assert recommendations(report)[0].startswith(f"{none}; the fastest was “DDP”, ")
    few = "DDP: 2.00 times as fast, but too few runs for an interval; 1.00 s instead of 2.00 s"
    assert verdict(report)[1].startswith(few)
    assert "1 run of a row" in recommendations(of_two_cores(SINGLE, (ddp(), two()), whole((0.9,))))[0]
    models = [(configuration(values={"model": model}, model=model), runs()) for model in ("lenet", "mlp")]
    assert recommendations(report_of(*models)) == []  # a sweep


def test_each_batch_size_has_its_own_recommendation():
    def pair(size, seconds):
        values = {"values": {"batch_size": size}, "batch_size": size}
        alone = runs(seconds=SLOW if size == 64 else FAST, global_batch_size=size)
        return (configuration(**values), alone), (ddp(**values), two(seconds, global_batch_size=size))

    advice = recommendations(report_of(*pair(64, (1.5, 1.51, 1.49)), *pair(512, FAST)))
    assert advice[0].startswith("For batch size 64: Recommendation: use “DDP (batch size 64)”")
    assert advice[1].startswith("For batch size 512: Recommendation: use “SINGLE (batch size 512)”")


def whole(seconds):
    row = configuration("single-all-cores", threads=2)
    return row, runs(seconds=seconds, threads_per_process=2) if seconds else []


def of_two_cores(*rows):
    report = report_of(*rows)
    report.environment["cores"] = 2
    return report


@pytest.mark.parametrize("rows", [(), (whole(None),)])
def test_a_cpu_needs_a_row_with_one_process_on_all_cores(rows):
    (advice,) = recommendations(of_two_cores(SINGLE, (ddp(), two()), *rows))
    assert advice.startswith("Recommendation: none. One process with all cores may be faster than any of these")
    assert "“DDP” is the fastest: 1.50 s per epoch with evaluation." in advice
    weak = of_two_cores((ddp(batch_size=200), two()), SINGLE, *(rows and [whole(FAST)]))  # a batch of 100 per device
    assert recommendations(weak)[0].startswith(f"Recommendation: {'use “SINGLE-ALL' if rows else 'none'}")
    without = of_two_cores(SINGLE, (ddp(), two()), (whole(None)[0], ["out of memory"]))
    assert recommendations(without)[0].startswith("Recommendation: use “DDP”")
    (advice,) = recommendations(report_of(SINGLE, (ddp(), two())))  # on one core, one device has all of them
    assert advice.startswith("Recommendation: use “DDP”")


def test_one_process_on_all_cores_is_recommended_if_it_is_the_fastest():
    report = of_two_cores(SINGLE, (ddp(), two((1.3, 1.31, 1.29))), whole(FAST))
    assert recommendations(report)[0].startswith("Recommendation: use “SINGLE-ALL-CORES”")
    said = verdict(report)[2]
    assert "1.00 s instead of 2.00 s per epoch. Scaling efficiency 100% on 2 cores." in said


# ---- disturbances


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_claimed_or_recommended_from_a_disturbed_row(busy):
    mp = configuration("mp"), runs("mp", seconds=SLOW)
    report = report_of(SINGLE, (ddp(), two()), mp, foreign_cores={busy: 0.11})
    results = [entry.result for entry in analyse(report).rows]
    every = {"single": ["baseline; disturbed", "disturbed", "disturbed"], "ddp": ["baseline", "disturbed", "slower"]}
    assert results == every[busy]
    others = [text for text in verdict(report) if not text.startswith("MP")]
    assert not any(text.startswith("DDP") or "times as fast" in text for text in others)
    assert recommendations(report) == ["Recommendation: none. Other programs disturbed the comparison."]


def test_a_disturbance_of_many_rows_is_one_sentence():
    rows = [SINGLE, *((configuration("ddp", f"ddp-{number}"), runs("ddp", FAST)) for number in range(7))]
    report = report_of(*rows, foreign_cores={row.name: 0.5 for row, _ in rows})
    analysis, most = analyse(report), "kept up to 0.5 of 1 core busy"
    assert terminal_text(analysis).count("other programs") == " ".join(terminal_text(analysis).split()).count(most) == 1
    said = [str(content) for section in sections(analysis, [], [], "plain") for _, content in section.parts]
    assert "\n".join(said).count(most) == 1 and words.verdict(analysis) == recommendations(report)


def test_disturbed_rows_without_a_speed_up_are_marked():
    simulated = (configuration("dp"), runs("dp", simulated=True))
    silent = (configuration("ddp-no-sync", per_device_batch_size=50), two(FAST))
    rows = SINGLE, simulated, silent, (ddp(), two((1.5, 1.51, 1.49)))
    report = report_of(*rows, foreign_cores={"dp": 0.5, "ddp-no-sync": 0.5})
    words = [entry.result for entry in analyse(report).rows]
    assert words == ["baseline", "simulated; disturbed", "disturbed", "faster"]
    assert kinds(report) == []  # the cost of the exchange is unknown


def test_a_tenth_of_the_cores_is_no_disturbance():
    report = report_of(SINGLE, (ddp(), two()), foreign_cores={"single": 0.1, "ddp": 0.1})
    assert analyse(report).rows[1].result == "faster" and "Recommendation: use “DDP”" in recommendations(report)[0]
    failed = report_of(SINGLE, (ddp(), [*two(), "failed"]))
    disturbed = (replace(outcome, foreign_cores=0.9 * (outcome.status != "ok")) for outcome in failed.outcomes)
    assert not any(row.disturbed for row in replace(failed, outcomes=tuple(disturbed)).rows)  # failed runs do not count


@pytest.mark.parametrize(
    "cores, busy, stolen, taken",
    [(16, 1.0, 0.0, 1.0), (16, 0.09, 0.0, None), (17, 1.05, 0.0, None), (32, 1.0, 0.0, None), (32, 0.0, 0.3, 0.3)],
)
def test_a_program_that_takes_a_core_from_a_rank_is_a_disturbance(cores, busy, stolen, taken):
    """One core of 16 is less than a tenth, but delays all 16 ranks."""
    environment = {**ENVIRONMENT, "cores": cores}
    ranks = (ddp(), [replace(result, world_size=16, environment=environment) for result in two()])
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
    report = report_of(SINGLE, (configuration("dp", skip="needs 2 GPUs, found 1"), []), (ddp(), ["failed"]))
    paragraphs = verdict(report)
    assert paragraphs[1] == "DP: skipped: needs 2 GPUs, found 1."
    assert paragraphs[2] == "DDP: 1 of 1 run failed: signal 9."
    nothing = (recommendations(report_of((row.configuration, ["failed"]))) for row in report.rows)
    assert [recommendations(report_of(SINGLE)), *nothing] == [
        [f"Recommendation: none. {timed} was timed."] for timed in ("Only one row", *3 * ("No row",))
    ]
    silent = configuration("ddp-no-sync", per_device_batch_size=50), two()
    assert recommendations(report_of(SINGLE, silent)) == [
        "Recommendation: none. No two of the timed rows train the same."
    ]


def test_rows_with_matching_weights_are_counted():
    checks = {"single": Equivalence(0.0, "ok", ""), "ddp": Equivalence(1e-8, "ok", "")}
    other = (configuration("dp"), runs("dp"))
    every = report_of(SINGLE, DDP, equivalence=checks)
    some, few = (
        report_of(SINGLE, DDP, other, equivalence={**checks, "dp": Equivalence(difference, "failed", "")})
        for difference in (0.1, None)
    )
    for report, counted in ((every, "1 of 1 other row"), (some, "1 of 2 other rows"), (few, "1 of 2 other rows")):
        found = [text for text in words.answers(analyse(report)) if text.startswith("Weights after 20 steps")]
        assert len(found) == 1 and f" one device's within 1.0e-08 in {counted}." in found[0]


def test_one_learning_rate_for_several_batch_sizes_is_mentioned():
    larger = configuration("ddp", batch_size=400), runs("ddp")

    def told(*rows, **settings):
        return [text for text in words.answers(analyse(report_of(SINGLE, *rows, **settings))) if "--lr-scaling" in text]

    assert told(larger) and not told(DDP) and not told(larger, lr_scaling="linear")


@pytest.mark.parametrize("busy", [{"single": 0.6, "ddp": 0.3}, {"single": 0.3, "ddp": 0.6}])
def test_the_largest_disturbance_is_told(busy):
    report = report_of(SINGLE, DDP, foreign_cores=busy)
    told = tell_disturbed(report.rows)
    assert "up to 0.6 of 1 core busy" in told and "“SINGLE” and “DDP”" in told
    assert any("up to 0.6 of 1 core busy" in step for step in next_step(analyse(report)))
