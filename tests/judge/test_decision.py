"""The recommended row: by adjusted means, never one that learns less, fails, or is tied with a simpler one."""

from dataclasses import replace

import pytest

from comparison.judge.analysis import analyse
from comparison.judge.decision import Decision
from comparison.judge.fairness import differences
from comparison.record import Equivalence
from comparison.show.advice import recommendations
from comparison.words import render
from tests.reports import as_long_as_its_parts, configuration, each_epoch, make_result, report_of, runs

SLOW, FAST, MIDDLE = (3.0, 3.03, 2.97), (1.0, 1.01, 0.99), (1.5, 1.52, 1.49)


def row(method, seconds, accuracies=(0.7, 0.71, 0.69), **values):
    """A row of runs with these final accuracies, on two devices unless it is a single one; a run of None failed."""
    count = 1 if method.startswith("single") else 2
    results = [
        "failed"
        if value is None
        else each_epoch(runs(method, [value], count=count, **values)[0], test_accuracy=accuracy)
        for value, accuracy in zip(seconds, accuracies, strict=False)
    ]
    return configuration(method), results


def decide(*rows, **settings) -> Decision:
    (choice,) = analyse(as_long_as_its_parts(report_of(*rows, **settings))).decisions
    return choice


def chosen(*rows, **settings):
    return decide(*rows, **settings).best.label


def result_of(label, *rows, **settings):
    return next(entry.result for entry in analyse(report_of(*rows, **settings)).rows if entry.label == label)


SINGLE = row("single", SLOW)


@pytest.mark.parametrize(
    "accuracies, margin, words",
    [
        ((0.70, 0.71, 0.69), 1.0, "faster"),
        ((0.695, 0.706, 0.686), 1.0, "faster"),
        ((0.72, 0.73, 0.66), 1.0, "faster; accuracy may be more than 1 point lower"),
        ((0.72, 0.73, 0.66), 30.0, "faster"),
        ((0.69, 0.70, 0.68), 0.5, "faster; accuracy 1.0 points lower"),
        ((0.1, 0.11, 0.09), 1.0, "faster; accuracy 60.0 points lower"),
    ],
)
def test_an_accuracy_must_be_shown_to_be_within_the_margin(accuracies, margin, words):
    rows = SINGLE, row("ddp", FAST, accuracies)
    assert result_of("DDP", *rows, accuracy_margin=margin) == words
    assert chosen(*rows, accuracy_margin=margin) == ("DDP" if words == "faster" else "SINGLE")


def test_equal_weights_after_20_steps_replace_an_uncertain_accuracy():
    rows, equal = (SINGLE, row("ddp", FAST, (0.72, 0.73, 0.66))), {"ddp": Equivalence(1e-8, "ok", "")}
    assert chosen(*rows) == "SINGLE"
    assert chosen(*rows, equivalence=equal) == "DDP"
    assert chosen(SINGLE, row("ddp", FAST, (0.1, 0.11, 0.09)), equivalence=equal) == "SINGLE"  # proved to be lower
    assert chosen(*rows, target_accuracy=0.6) == "DDP"  # reached by every run
    assert chosen(SINGLE, row("ddp", FAST, (0.1, 0.11, 0.09)), target_accuracy=0.05) == "DDP"


@pytest.mark.parametrize("accuracies, excluded", [((0.7002, 0.7098, 0.6901), False), ((0.68, 0.6895, 0.6698), True)])
@pytest.mark.parametrize("model", ["lenet", "vgg"])
def test_noisy_accuracies_of_other_rows_change_no_decision(model, accuracies, excluded):
    """The other rows are noisy ones of the same network, or equal ones of another that learns with more noise."""
    others = [("fsdp", MIDDLE, (0.75, 0.65, 0.7)), ("pipeline", MIDDLE, (0.74, 0.71, 0.65))]
    if model == "vgg":
        others = [("single", SLOW, (0.48, 0.46, 0.45)), ("ddp", FAST, (0.481, 0.46, 0.449))]
    rows = [("lenet", *own) for own in (("single", SLOW), ("ddp", FAST, accuracies))] + [
        (model, *own) for own in others
    ]
    made = [(configuration(own[0], values={"model": name}, model=name), row(*own)[1]) for name, *own in rows]
    equal = {planned.name: Equivalence(1e-8, "ok", "") for planned, _ in made}
    for checks in ({}, equal):
        first, *_ = analyse(as_long_as_its_parts(report_of(*made, equivalence=checks))).decisions
        assert first.ineligible.get("ddp-model=lenet", "").startswith("accuracy 2.0 points") == excluded
        assert (first.best.name == "ddp-model=lenet") != excluded


def test_one_of_many_rows_with_equal_weights_is_not_excluded_by_chance():
    low, noisy = (0.68, 0.695, 0.67), ((0.71, 0.70, 0.69), (0.69, 0.71, 0.70), (0.70, 0.72, 0.69), (0.71, 0.71, 0.68))
    ddp, others = row("ddp", FAST, low), [*zip(("fsdp", "pipeline", "accelerate", "mp"), noisy, strict=True)]
    rows = SINGLE, ddp, *(row(name, MIDDLE, accuracies) for name, accuracies in others)
    equal = {rows[number][0].name: Equivalence(1e-8, "ok", "") for number in range(1, 6)}
    assert decide(*rows[:3], equivalence=equal).ineligible == {"ddp": "accuracy 1.8 points lower"}
    assert chosen(*rows, equivalence=equal) == "DDP"


def test_a_row_that_failed_in_slow_blocks_does_not_profit():
    """FSDP failed in the slow blocks, so the plain mean of its remaining runs is the smallest."""
    blocks = (1.0, 1.0, 1.01, 2.0, 2.0, 2.02)
    noise = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0)
    single, ddp = (
        [factor * block * wobble for block, wobble in zip(blocks, noise, strict=True)] for factor in (3.0, 1.0)
    )
    fsdp = [1.08 * block if block < 1.5 else None for block in blocks]
    rows = row("single", single, 6 * [0.7]), row("ddp", ddp, 6 * [0.7]), row("fsdp", fsdp, 6 * [0.7])
    analysis = analyse(report_of(*rows))
    _, complete, flaky = analysis.rows
    assert flaky.summary.epoch_seconds > complete.summary.epoch_seconds > 1.3  # plain means: 1.08 and 1.41
    (choice,) = analysis.decisions
    assert (choice.best, choice.tied) == (complete, ())


def test_a_row_with_failed_runs_is_not_recommended():
    choice = decide(SINGLE, row("fsdp", FAST), row("ddp", (0.5, None, 0.5)))
    assert (choice.best.label, dict(choice.ineligible)) == ("FSDP", {"ddp": "1 of 3 runs failed"})
    assert choice.ratios["ddp"].value == pytest.approx(0.5, abs=0.2)
    assert decide(row("single", (3.0, None, 3.0)), row("ddp", (1.0, None, 1.0))).kind == "none eligible"


@pytest.mark.parametrize("methods", ["dp ddp", "ddp fsdp", "fsdp pipeline", "single-all-cores ddp", "dp pipeline"])
def test_the_simplest_of_tied_rows_is_recommended(methods):
    simple, complex_ = methods.split()
    rows = SINGLE, row(complex_, (1.0, 1.02, 0.98)), row(simple, (1.01, 1.0, 1.0))
    choice = decide(*rows)
    assert (choice.best.label, [entry.label for entry in choice.tied]) == (simple.upper(), [complex_.upper()])
    assert chosen(SINGLE, row(complex_, FAST), row(simple, MIDDLE)) == complex_.upper()  # proved faster


def test_a_noisy_row_is_tied_and_not_recommended():
    single, ddp = row("single", 3 * SLOW, 9 * [0.7]), row("ddp", 3 * FAST, 9 * [0.7])
    noisy = row("single-all-cores", (0.6, 4.0, 0.7, 3.5, 0.6, 5.0, 1.0, 3.0, 0.5), 9 * [0.7])
    choice = decide(single, ddp, noisy)
    assert (choice.best.label, [entry.label for entry in choice.tied]) == ("DDP", ["SINGLE-ALL-CORES"])


def test_the_shortest_command_of_equally_simple_rows_is_recommended():
    report = report_of(SINGLE, row("ddp", FAST), row("accelerate", FAST))
    for longer, best in (("ddp", "ACCELERATE"), ("accelerate", "DDP")):
        seconds = ((outcome, 9.0 + (outcome.configuration == longer)) for outcome in report.outcomes)
        outcomes = tuple(replace(outcome, wall_seconds=wall) for outcome, wall in seconds)
        (choice,) = analyse(replace(report, outcomes=outcomes)).decisions
        assert choice.best.label == best


def batch(method, size, seconds, steps=10, **values):
    """A row of one batch size, whose runs have `steps` steps per epoch."""
    results = row(method, seconds, global_batch_size=size, **values)[1]
    full = [each_epoch(result, samples=steps * size, steps=steps) for result in results]
    return configuration(method, values={"batch_size": size}, batch_size=size), full


def test_rows_with_batches_of_their_own_are_not_compared():
    small, large, failed = batch("single", 64, SLOW), batch("ddp", 256, FAST), batch("single", 256, SLOW)[0]
    models = [(configuration(values={"model": model}, model=model), runs()) for model in ("lenet", "mlp")]
    fit, equal = {"fit_batch": True}, (SINGLE, row("ddp", FAST))
    unlike = SINGLE, (configuration("ddp", batch_size=256), equal[1][1])
    for rows, settings, kind in (
        *(((small, large), {}, "own batches"), (unlike, fit, "own batches"), (equal, fit, "use"), (equal, {}, "use")),
        *(((small, (failed, ["failed"])), {}, "not measured"), ((SINGLE,), {}, "not measured")),
        *((unlike, {**fit, "target_accuracy": 0.6}, "use"), (models, {}, "not measured")),
    ):
        assert decide(*rows, **settings).kind == kind


def test_a_target_accuracy_makes_all_batches_one_decision():
    single = batch("single", 64, SLOW), batch("single", 256, MIDDLE)
    rows = (*single, batch("ddp", 64, (2.0, 2.02, 1.99)), batch("ddp", 256, FAST))
    assert len(analyse(report_of(*rows)).decisions) == 2
    assert chosen(*rows, target_accuracy=0.6) == "DDP (batch size 256)"
    rows = (*rows[:3], batch("ddp", 256, SLOW))
    assert chosen(*rows, target_accuracy=0.6) == "SINGLE (batch size 256)"
    planned, results = batch("ddp", 256, FAST)
    fewer = planned, [each_epoch(result, steps=2, samples=640) for result in results]
    assert decide(batch("ddp", 64, SLOW), fewer, target_accuracy=0.6).ineligible == {}  # without the baseline


def long(method, start, epoch, evaluation=0.5, epochs=3, accuracies=(0.7, 0.71, 0.69)):
    """A row whose runs take these seconds to start, per epoch and per evaluation."""
    planned, results = row(method, [epoch * jitter for jitter in (1.0, 1.01, 0.99)], accuracies, epochs=epochs)
    full = [
        replace(each_epoch(run, evaluate_seconds=evaluation), startup_seconds=start, total_seconds=start)
        for run in results
    ]
    return planned, full


def test_short_trainings_are_decided_by_whole_runs_and_long_ones_by_epochs():
    rows = long("single", 2.0, 2.0), long("ddp", 8.0, 1.0)
    short = decide(*rows)
    assert (short.wall_time.kind, short.best.label) == ("run", "SINGLE")
    assert short.wall_time.means == pytest.approx({"single": 9.5, "ddp": 12.5}, rel=1e-3)
    assert (short.later.label, short.pays_from) == ("DDP", 3 + 4)  # 3 s behind, gains 1 s per epoch
    three = decide(*rows, long("fsdp", 8.0, 1.5))
    assert (three.later.label, three.pays_from) == ("DDP", 3 + 4)  # FSDP is 4.5 s behind, and gains half as much
    tied = decide(rows[0], long("ddp", 4.95, 1.0))
    assert (tied.best.label, tied.later.label, tied.pays_from) == ("SINGLE", "DDP", 4)  # 0.05 s ahead, but less simple
    cut = decide(*rows, max_steps=10)
    assert (cut.wall_time.kind, cut.best.label, cut.later) == ("epoch", "DDP", None)
    whole = decide(long("single", 2.0, 2.0, epochs=400), long("ddp", 8.0, 1.0, epochs=400))
    assert (whole.wall_time.kind, whole.best.label) == ("epoch", "DDP")


@pytest.mark.parametrize("epochs, said", [(3, False), (400, True)])
def test_a_longer_start_up_is_told_with_a_decision_by_epochs(epochs, said):
    rows = long("single", 1.0, 2.0, epochs=epochs), long("ddp", 2.0, 1.0, epochs=epochs)
    told = " ".join(map(render, recommendations(analyse(as_long_as_its_parts(report_of(*rows))))))
    assert "“DDP”" in told and ("Not counted in the speed-up: start-up takes" in told) == said


@pytest.mark.parametrize(
    "values, kind",
    [
        ({}, "epoch"),
        ({"first": 1.7}, "epoch"),
        ({"first": 2.2}, "epoch"),
        ({"first": 2.3}, "run"),
        ({"startup_seconds": 0.23}, "epoch"),  # 2.98% of 7.73 s
        ({"startup_seconds": 0.24}, "run"),
        ({"startup_seconds": 9.0, "simulated": True}, "epoch"),
    ],
)
def test_a_long_start_up_or_first_epoch_of_one_row_makes_whole_runs_decide_unless_it_is_simulated(values, kind):
    rows = (configuration(), runs()), (configuration("dp"), runs("dp", **values))
    assert analyse(report_of(*rows)).decisions[0].wall_time.kind == kind


def test_epochs_decide_with_their_evaluation_and_at_full_length():
    rows = long("single", 0.0, 2.0, 1.0), long("ddp", 0.0, 1.8, 3.0)  # of 1,000 images
    choice = decide(*rows, max_steps=10)
    assert choice.best.label == "SINGLE" and choice.ratios["ddp"].value == pytest.approx(4.8 / 3.0, rel=1e-3)
    cut = report_of(long("single", 0.0, 2.0, 1.0, epochs=1), long("ddp", 0.0, 1.8, 3.0, epochs=1), max_steps=10)
    (choice,) = analyse(replace(cut, probe=None)).decisions  # of as many images as were measured
    assert choice.wall_time.means == pytest.approx({"single": 3.0, "ddp": 4.8}, rel=1e-3)
    planned, full = long("ddp", 0.0, 1.8, 3.0)
    unlike = report_of(rows[0], (planned, [each_epoch(run, samples=500) for run in full]), max_steps=10)
    (choice,) = analyse(replace(unlike, probe=None)).decisions  # of the most images
    assert choice.wall_time.means == pytest.approx({"single": 3.0, "ddp": 6.6}, rel=1e-3)
    choice = decide(*rows, max_steps=10, probe={"train_images": 20_000})
    assert choice.best.label == "DDP" and choice.ratios["single"].value == pytest.approx(41 / 39, rel=1e-3)


def test_a_baseline_that_learns_less_is_not_recommended_and_its_largest_loss_is_told():
    rows = (
        row("single", FAST, (0.4, 0.41, 0.39)),
        row("ddp", SLOW, (0.7, 0.71, 0.69)),
        row("dp", SLOW, (0.5, 0.51, 0.49)),
    )
    choice = decide(*rows)
    assert choice.best.label == "DDP" and choice.ineligible["single"] == "accuracy 30.0 points lower"


def sweep_of_workers(*seconds):
    """Rows of one device with 0, 2 and 4 workers, with these seconds per epoch."""
    return [
        (configuration(values={"num_workers": workers}, num_workers=workers), runs(seconds=own))
        for workers, own in zip((0, 2, 4), seconds, strict=True)
    ]


def test_a_sweep_of_workers_is_one_decision():
    rows = sweep_of_workers(SLOW, FAST, MIDDLE)
    assert decide(*rows).best.name == "single-num_workers=2"
    report = report_of(*rows)
    report.environment["cores"] = 2  # one device has only one of them
    assert analyse(report).decisions[0].kind == "use"


def test_rows_with_equal_settings_are_compared_without_the_baseline():
    planned, made = row("accelerate", (0.5, 0.51, 0.49))
    changed = planned, [replace(run, checksums={DATA: str(block)}) for block, run in enumerate(made)]
    ddp = row("ddp", FAST, checksums={DATA: "2"})
    choice = decide(changed, ddp, row("pipeline", (0.5, 0.51, 0.49), global_batch_size=50), row("fsdp", SLOW))
    assert choice.best.label == "DDP" and choice.ineligible == {
        "pipeline": "unequal: global batch 50 instead of 100",
        "accelerate": f"unequal: {DATA} changed between runs, {DATA} 0 instead of 2",
    }


# ---- the same work


@pytest.mark.parametrize("max_steps", [None, 10])
def test_a_sweep_of_batches_is_judged_by_images(max_steps):
    """A step of 256 images takes twice as long as one of 64, so the throughput is twice as high."""
    steps = {64: 10, 256: 10} if max_steps else {64: 40, 256: 10}
    seconds = {64: 0.1, 256: 0.2}
    rows = [
        batch("single", size, [steps[size] * seconds[size] * wobble for wobble in (1.0, 1.01, 0.99)], steps[size])
        for size in (64, 256)
    ]
    (sweep,) = analyse(report_of(*rows, max_steps=max_steps)).sweeps
    assert [sweep.value(entry) for entry in sweep.fastest] == [256]
    assert sweep.ratios[0].value == pytest.approx(0.5) and sweep.ratios[0].high < 0.6
    ddp = [batch("ddp", size, (0.1, 0.101, 0.099), steps[size]) for size in (64, 256)]
    told = recommendations(analyse(report_of(*rows, *ddp, max_steps=max_steps or 40)))
    assert ["extrapolated from" in render(words) for words in told] == [True, max_steps == 10]


@pytest.mark.parametrize("max_steps", [None, 10])
@pytest.mark.parametrize("devices", [2, 4])
def test_the_speed_up_under_weak_scaling_is_of_images(devices, max_steps):
    """Each device has a batch of 100; a step on several devices takes 1.25 times as long."""
    images = 1000 * (devices if max_steps else 1)
    steps = images // 100 // devices
    config, results = row("ddp", [1.25 * images / 1000 / devices] * 3, world_size=devices)
    full = [
        replace(each_epoch(result, samples=images, steps=steps), global_batch_size=100 * devices) for result in results
    ]
    planned = replace(config, planned=replace(config.planned, batch_size=100 * devices))
    report = report_of(row("single", (1.0, 1.0, 1.0)), (planned, full), scaling="weak", max_steps=max_steps)
    entry = analyse(report).rows[1]
    assert entry.standing.speed_up.value == pytest.approx(devices / 1.25)
    assert entry.summary.images_per_second == pytest.approx(1000 * devices / 1.25)


def test_rows_with_other_numbers_of_images_are_marked():
    config, results = row("ddp", FAST, world_size=2)
    double, fewer = ((config, [each_epoch(result, samples=images) for result in results]) for images in (2000, 999))
    assert result_of("DDP", SINGLE, double) == "refused: images 2000 instead of 1000"
    assert result_of("DDP", SINGLE, double, allow_unequal=True).startswith("UNEQUAL (images 2000 instead of 1000); ")
    assert result_of("DDP", SINGLE, fewer) == "faster"  # ranks leave out up to N - 1 images


def test_undecided_and_disturbed_sweeps_have_no_single_fastest_value():
    rows = sweep_of_workers(SLOW, FAST, (1.02, 0.98, 1.0))
    (sweep,) = analyse(report_of(*rows)).sweeps
    assert {sweep.value(entry) for entry in sweep.fastest} == {2, 4}
    (sweep,) = analyse(report_of(*rows, foreign_cores={"single-num_workers=2": 0.5})).sweeps
    assert sweep.fastest == ()
    (sweep,) = analyse(report_of(*sweep_of_workers(SLOW, FAST[:1], MIDDLE))).sweeps
    assert sweep.value(sweep.fastest[0]) == 4  # the only run of 2 workers may be luck


@pytest.mark.parametrize("steps, unlike", [(9, False), (11, False), (8, True), (12, True)])
def test_an_epoch_may_differ_by_one_step(steps, unlike):
    """N ranks leave out up to N - 1 images, which can be the last step."""
    found = differences(each_epoch(make_result("ddp"), steps=steps), make_result(), "strong")
    assert found == [f"steps per epoch {steps} instead of 10"] * unlike


DATA, CODE = "checksum of the data set", "checksum of the code"
ONE, OTHER = {DATA: "aa", CODE: "11"}, {DATA: "bb", CODE: "22"}


@pytest.mark.parametrize(
    "single, ddp, expected",
    [
        ([ONE] * 3, [{**ONE, CODE: "22"}] * 3, "faster"),  # every method has its own script
        ([{}] * 3, [OTHER] * 3, "faster"),  # an older result: nothing is known
        ([ONE] * 3, [{**OTHER, CODE: "11"}] * 3, f"refused: {DATA} bb instead of aa"),
        ([ONE] * 3, [ONE, {**ONE, CODE: "22"}, ONE], f"refused: {CODE} changed between runs"),
        ([ONE] * 3, [ONE, {**ONE, DATA: "bb"}, {**ONE, DATA: "cc"}], f"refused: {DATA} changed between runs"),
    ],
)
def test_what_was_trained_is_the_same_in_all_rows_and_runs(single, ddp, expected):
    rows = [
        (planned, [replace(run, checksums=of) for run, of in zip(made, checksums, strict=True)])
        for (planned, made), checksums in ((SINGLE, single), (row("ddp", FAST), ddp))
    ]
    assert result_of("DDP", *rows) == expected
    assert bool(analyse(report_of(*rows, baseline="ddp")).rows[0].standing.speed_up) == (expected == "faster")


def test_an_accuracy_is_compared_with_the_baseline_of_the_same_batch_size():
    high = [0.9, 0.902, 0.898, 0.9]
    low = [value - 0.02 for value in high]  # too low beside the other batch size
    rows = [
        batch(method, size, (*FAST, 1.0), accuracies=own)
        for size, own in ((64, high), (256, low))
        for method in ("single", "ddp")
    ]
    for decision in analyse(report_of(*rows)).decisions:
        assert decision.ineligible == {}
