"""The recommendation and the next step: both are true in every case, and what they advise can be typed."""

from dataclasses import replace

import pytest

from comparison.judge.analysis import analyse
from comparison.plan.counterparts import BEFORE, counterpart
from comparison.record import Equivalence
from comparison.show.advice import in_short, next_step, recommendations
from comparison.show.tables import answer_rows
from comparison.show.terminal import terminal_text
from comparison.show.verdict import verdict
from tests.reports import DDP, ENVIRONMENT, FAST, SINGLE, SLOW, configuration, halved, report_of, runs, script, swept


def recommended(*rows, **settings):
    return recommendations(analyse(report_of(*rows, **settings)))


def of_cores(cores, *rows):
    report = report_of(*rows)
    return replace(report, environment={**report.environment, "cores": cores})


def variant(kind, milliseconds):
    planned, made = script("mine", milliseconds)
    return replace(planned, name=f"script-mine-{kind}", label=kind), made


# ---- the recommendation


def test_a_recommendation_with_a_tie_and_an_exclusion():
    flaky = (configuration("accelerate", per_device_batch_size=50), [*halved(seconds=(0.5, 0.51))[1], "failed"])
    skipped = (configuration("mp", skip="needs 2 GPUs"), [])
    assert recommended(SINGLE, halved("dp", (1.01, 1.0, 0.99)), halved(), flaky, skipped) == [
        "Recommendation: use “DP”, 1.67 times as fast as “SINGLE” (95% CI 1.62 to 1.71): 1.50 s instead of 2.50 s per "
        "epoch with evaluation. It is statistically tied with “DDP”, and is the simpler of the two. Faster, but "
        "excluded: “ACCELERATE”, 1 of 3 runs failed. Peak memory, all devices: 0.0 MiB."
    ]
    (advice,) = recommended(SINGLE, halved(seconds=(2.02, 1.98, 1.99)))
    assert advice.startswith("Recommendation: use “SINGLE”: 2.50 s per epoch with evaluation. It is statistically tied")


NOISY, NOISIER = (1.1, 1.0, 0.9), (0.8, 1.6, 1.1)
ALL_CORES = configuration("single-all-cores")


@pytest.mark.parametrize(
    "rows, tied",
    [
        ([SINGLE, (ALL_CORES, runs(seconds=(2.01, 1.99, 2.02)))], "“SINGLE-ALL-CORES”."),
        ([script("mine", 20.0), script("other", 20.1)], "“other”."),
        ([script("mine", 20.0), variant("thread", 20.1)], "“thread”, and is the simpler of the two."),
        ([halved("ddp", NOISY), halved("fsdp", NOISY[::-1])], "“FSDP”, and is the simpler of the two."),
        ([SINGLE, *map(halved, ("dp", "ddp", "fsdp"))], "“DDP” and “FSDP”, and is the simplest of them."),
        (
            [
                (configuration(), runs(seconds=NOISIER)),
                (ALL_CORES, runs(seconds=NOISIER)),
                halved(seconds=NOISY[2:] * 3),
            ],
            "“SINGLE” and “SINGLE-ALL-CORES”; the simplest of them are “SINGLE” and “SINGLE-ALL-CORES”.",
        ),
    ],
)
def test_a_row_is_called_the_simplest_only_if_no_tied_row_is_as_simple(rows, tied):
    (told,) = recommended(*rows, warmup=10)
    assert f"It is statistically tied with {tied}" in told


def test_nothing_is_tied_without_an_interval():
    report = report_of((configuration(), runs(seconds=(6.0, 6.1))), halved(seconds=(2.0, 2.1)))
    (advice,) = recommendations(analyse(report))
    assert advice.startswith("Recommendation: none.") and "tied" not in terminal_text(analyse(report))
    assert [row["Result"] for row in answer_rows(analyse(report))] == ["fastest", "no interval: too few runs"]


@pytest.mark.parametrize(
    "others, tied", [([2.0], None), ([2.0, 2.02, 1.98], False), ([1.01, 1.0, 1.02], True), ([1.5, 0.7, 1.1], True)]
)
def test_the_fastest_of_an_incomplete_comparison_is_tied_as_in_the_table(others, tied):
    analysis = analyse(of_cores(4, (configuration(), runs(seconds=others)), halved(seconds=FAST[: len(others)])))
    (told,) = recommendations(analysis)
    assert "“DDP” is the fastest" in told and ("tied" in told) == bool(tied)
    assert ("tied" in {row["Result"] for row in answer_rows(analysis)}) == bool(tied)


def test_single_runs_recommend_nothing():
    once = report_of((configuration(), runs(seconds=(2.0,))), halved(seconds=(1.0,)), repeats=1)
    (advice,) = recommendations(analyse(once))
    none = "Recommendation: none. 1 run per row cannot prove a difference"
    assert advice.startswith(f"{none}; the fastest was “DDP”, ")
    few = "DDP: 2.00 times as fast, but too few runs for an interval; 1.00 s instead of 2.00 s"
    assert verdict(analyse(once))[1].startswith(few)
    assert "1 run of a row" in recommendations(analyse(of_cores(2, SINGLE, halved(), whole((0.9,)))))[0]
    assert recommended(*swept("single", model=("lenet", "mlp"))) == recommended(script("mine", 20.0), warmup=10) == []


def test_each_batch_size_has_its_own_recommendation():
    def pair(size, alone, together):
        values = {"values": {"batch_size": size}, "batch_size": size}
        ddp = configuration("ddp", **values, per_device_batch_size=size // 2)
        ranks = halved(seconds=together)[1]
        made = [[replace(run, global_batch_size=size) for run in own] for own in (runs(seconds=alone), ranks)]
        return (configuration(**values), made[0]), (ddp, made[1])

    analysis = analyse(report_of(*pair(64, SLOW, (1.5, 1.51, 1.49)), *pair(512, FAST, FAST)))
    small, large = recommendations(analysis)
    assert small.startswith("For batch size 64: Recommendation: use “DDP (batch size 64)”, 1.7")
    assert large.startswith("For batch size 512: Recommendation: use “SINGLE (batch size 512)”")
    first, small, large = in_short(analysis)
    assert (
        first == "Recommendations:" and small.startswith("“DDP (batch size 64)”, 1.7") and large.startswith("For batch")
    )


def whole(seconds):
    planned = configuration("single-all-cores", threads=2)
    return planned, runs(seconds=seconds, threads_per_process=2) if seconds else []


@pytest.mark.parametrize("rows", [(), (whole(None),)])
def test_a_cpu_needs_a_row_with_one_process_on_all_cores(rows):
    (advice,) = recommendations(analyse(of_cores(2, SINGLE, halved(), *rows)))
    assert advice.startswith("Recommendation: none. One process with all cores may be faster than any of these")
    assert "“DDP” is the fastest: 1.50 s per epoch with evaluation." in advice
    planned, ranks = halved()
    planned = replace(planned, planned=replace(planned.planned, batch_size=200))  # a batch of 100 per device
    weak = of_cores(2, (planned, ranks), SINGLE, *(rows and [whole(FAST)]))
    assert recommendations(analyse(weak))[0].startswith(f"Recommendation: {'use “SINGLE-ALL' if rows else 'none'}")


def test_one_process_on_all_cores_is_needed_if_there_are_more_cores_than_one_and_it_fits():
    for others in (of_cores(2, SINGLE, halved(), (whole(None)[0], ["out of memory"])), report_of(SINGLE, halved())):
        assert recommendations(analyse(others))[0].startswith("Recommendation: use “DDP”")
    analysis = analyse(of_cores(2, SINGLE, halved(seconds=(1.3, 1.31, 1.29)), whole(FAST)))
    assert recommendations(analysis)[0].startswith("Recommendation: use “SINGLE-ALL-CORES”")
    assert "1.00 s instead of 2.00 s per epoch. Scaling efficiency 100% on 2 cores." in verdict(analysis)[2]


@pytest.mark.parametrize("seconds, said", [((2.1, 1.6, 1.9), False), (FAST, True)])
def test_an_excluded_row_is_called_faster_only_if_that_is_proved(seconds, said):
    (told,) = recommended(SINGLE, unequal(seconds), allow_unequal=True)
    assert told.startswith("Recommendation: use “SINGLE”: ")
    assert (" Faster, but excluded: “DDP”, unequal: workers 4 instead of 0. " in told) == said


def unequal(seconds=FAST):
    planned, made = halved(seconds=seconds, workers_per_process=2)
    return replace(planned, planned=replace(planned.planned, num_workers=4)), made


# ---- what to do next


def again(report):
    """The report with a twin of the baseline that takes half as long."""
    twin = replace(report.plan[0], name="single-again", role="twin", against="single")
    made = [run for run in report.outcomes if run.configuration == "single"]
    results = (runs(seconds=[run.result.epochs[0].train_seconds / 2])[0] for run in made)
    more = tuple(replace(run, configuration=twin.name, result=own) for run, own in zip(made, results, strict=True))
    order = (*report.order, *((run.block, run.configuration) for run in more))
    return replace(report, plan=(*report.plan, twin), outcomes=(*report.outcomes, *more), order=order)


def loads(cores):
    waits = runs(phases=(60.0, 0.5, 20.0, 40.0, 3.0), environment={**ENVIRONMENT, "cores": cores})
    return report_of((configuration(), waits), (ALL_CORES, runs(seconds=SLOW)))


INTERRUPTED = replace(report_of(SINGLE, DDP), outcomes=report_of(SINGLE, DDP).outcomes[:5])
SIMULATED = (configuration("dp"), runs("dp", simulated=True))
TWICE = (replace(DDP[0], planned=replace(DDP[0].planned, batch_size=200)), DDP[1])
THIRD = halved("fsdp", (1.5, 1.51, 1.49))
UNSURE = halved("fsdp", (0.9, 1.01, 1.2))
WAITING = halved(phases=(4.0, 0.5, 20.0, 40.0, 3.0))
LATE = halved(first=11.0)  # the same time from start to end
OUTSIDE = halved(seconds=(1.2, 1.21, 1.19), phases=(0.5, 0.25, 10.0, 23.0, 1.5))
TIED = [(configuration(), runs(seconds=(1.5, 0.7, 1.1))), halved()]
WRONG = {"single": Equivalence(0.3, "failed", ""), "ddp": Equivalence(1e-8, "ok", "")}
FULL = (DDP[0], ["out of memory"])
NEXT = {  # situation → (report, part of the next step)
    "wrong weights": (
        report_of(SINGLE, DDP, equivalence=WRONG),
        "fix “SINGLE”: its weights are not those of one device.",
    ),
    "disturbed": (report_of(SINGLE, DDP, THIRD, foreign_cores={"ddp": 0.5}), "0.5 of 1 core busy; close them"),
    "interrupted": (INTERRUPTED, "--resume"),
    "failed": (report_of(SINGLE, DDP, (configuration("mp"), ["failed"])), "mp-1.log"),
    "without all cores": (of_cores(2, SINGLE, DDP), "add single-all-cores to --methods"),
    "few runs": (report_of((configuration(), runs(seconds=(2.0,))), halved(seconds=(1.0,))), "--repeats 3"),
    "one row": (report_of(SINGLE), "leave out --methods"),
    "no row": (report_of((configuration("mp", skip="needs 2 GPUs"), [])), "no row can run here; the report says why."),
    "one row and a script": (report_of(SINGLE, script("mine", 20.0)), "add a second --script COMMAND"),
    "models": (report_of(*swept("single", model=("lenet", "mlp"))), None),
    "only simulated": (report_of(SINGLE, SIMULATED), "can only be simulated on this machine"),
    "missed": (report_of(SINGLE, (DDP[0], ["not reached"] * 3), target_accuracy=0.9), "more --epochs, or a lower"),
    "memory": (report_of(SINGLE, FULL, allow_unequal=True), "a smaller --batch-size"),
    "memory of a script": (
        report_of(script("mine", 20.0), (script("other", 20.0)[0], ["out of memory"] * 3), warmup=10),
        "see script-other-1.log: “other” out of memory.",
    ),
    "unequal": (
        report_of((SINGLE[0], [*SINGLE[1][:2], "out of memory"]), unequal(), allow_unequal=True),
        "leave out --allow-unequal",
    ),
    "before": (report_of(SINGLE, (counterpart(SINGLE[0], BEFORE, BEFORE, ()), SINGLE[1])), None),
    "a change": (report_of(script("mine", 20.0), variant("memory", 10.0), warmup=10), "make the change “memory”; the"),
    "a tied change": (
        report_of(script("mine", 20.0, blocks=(0.6, 1.4, 1.0)), variant("memory", 18.0), warmup=10),
        "would",
    ),
    "own batches": (report_of(SINGLE, TWICE, fit_batch=True), "--target-accuracy"),
    "twins": (again(report_of(SINGLE, DDP)), "when the machine is quiet"),
    "tied": (report_of(SINGLE, DDP, halved("pipeline"), UNSURE), "--repeats 12 (now 3) would"),
    "usual budget": (report_of(*TIED, budget=300.0), "--repeats 12 (now 3) would"),
    "budget": (report_of(*TIED, budget=1200.0), "--repeats 12 (now 3) in place of --budget would"),
    "margin": (report_of(*TIED, budget=1200.0, margin=5.0), "(now 3) in place of --budget and --margin would"),
    "resident": (report_of(SINGLE, WAITING, probe={"resident_images_per_second": 50_000}), "--loader resident"),
    "workers": (loads(4), "SINGLE: waiting for data takes"),
    "no core for workers": (loads(1), None),
    "a cause": (report_of(SINGLE, DDP), "add --prove to test whether “backward” is what slows “DDP” down"),
    "a small cause": (report_of(SINGLE, OUTSIDE), None),  # the backward pass has 3 of 20 ms
    "no prove with fit": (report_of(SINGLE, DDP, fit_batch=True), None),
    "nothing": (report_of(SINGLE, DDP, prove=True), None),
    "a row that is no slower": (report_of((configuration(), runs(first=9.0)), LATE), None),
}


@pytest.mark.parametrize("kind", NEXT)
def test_the_most_useful_next_step(kind):
    report, expected = NEXT[kind]
    steps = next_step(analyse(report))
    assert [expected in step for step in steps] == ([True] if expected else []), steps
    screen = " ".join(terminal_text(analyse(report)).split())
    assert all(" ".join(step.split()) in screen for step in steps)


@pytest.mark.parametrize(
    "report, doubt",
    [
        (INTERRUPTED, "\nINCOMPLETE: interrupted after 5 of 6 runs."),
        (again(report_of(SINGLE, DDP)), "A/A test failed"),
        (report_of(SINGLE, DDP), ""),
    ],
    ids=["interrupted", "twins", "none"],
)
def test_doubts_stand_above_the_recommendation(report, doubt):
    title, advice, *_ = terminal_text(analyse(report)).split("\n\n")
    assert "Recommendation" in advice and (doubt in title if doubt else title == report.title)
    assert not doubt or terminal_text(analyse(report), verbose=True).count(doubt.strip()) == 1
