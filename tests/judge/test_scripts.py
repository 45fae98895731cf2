"""Comparisons of user scripts: judged by the time per sample, without claims about anything unseen."""

import math
from dataclasses import replace

import pytest

from common.files.results import PhaseTimes
from comparison.judge.analysis import analyse
from comparison.judge.fairness import seen_differences
from comparison.judge.step_causes import with_loader_workers
from comparison.show.terminal import terminal_text
from tests.reports import configuration, make_result, markdown_of, report_of, runs

OWN = {"loader": "its own", "optimizer": "SGD", "optimizers": 1, "epochs": 3}
PHASES = PhaseTimes(data=1.0, forward=20.0, backward=40.0, update=3.0, rest=2.0)


def script(name, milliseconds, samples=100, **values):
    """A row of three runs with this step time, in slices of 10, 20, 30 and 40 steps."""

    def run(factor):
        values_of = {"config": {**OWN, **values.pop("config", {})}, "global_batch_size": samples, **values}
        result = make_result("script", (1.0,) * 4, phases=PHASES, class_accuracy=None, **values_of)
        unseen = dict.fromkeys(("train_loss", "test_loss", "test_accuracy", "evaluate_seconds"), math.nan)

        def slice_of(steps):
            seconds, epoch = factor * steps * milliseconds / 1000, result.epochs[0]
            counts = {"epoch": steps // 10, "steps": steps, "samples": steps * samples}
            return replace(epoch, train_seconds=seconds, **counts, **unseen)

        return replace(result, epochs=tuple(map(slice_of, (10, 20, 30, 40))))

    return replace(configuration("script", f"script-{name}"), label=name), [run(factor) for factor in (1.0, 1.01, 0.99)]


def report(*rows):
    return report_of(*rows, baseline="single", repeats=3, warmup=10)


def test_scripts_are_compared_with_the_first_one_by_time_per_sample():
    analysis = analyse(report(script("mine", 20.0), script("ddp", 24.0, samples=200)))
    mine, ddp = analysis.rows
    assert ddp.standing.baseline is mine.row and ddp.standing.speed_up.value == pytest.approx(2 * 20 / 24)
    assert ddp.standing.unlike == ("samples per step 200 instead of 100",) and not ddp.standing.unequal
    (decision,) = analysis.decisions
    assert (decision.kind, decision.wall_time.kind, decision.best) == ("use", "samples", ddp)
    assert decision.wall_time.means["script-mine"] == pytest.approx(1000 * 0.020 / 100, rel=0.01)
    assert mine.warnings == ddp.warnings == ()  # slices may differ in length
    assert mine.accounts.growth.value == pytest.approx(0.0, abs=1e-9)


def test_the_first_tied_script_with_the_fewest_processes_is_recommended():
    rows = [script("mine", 20.0), script("again", 19.9), script("ddp", 19.8, world_size=2)]
    (decision,) = analyse(report(*rows)).decisions
    assert decision.best.label == "mine" and {entry.label for entry in decision.tied} == {"again", "ddp"}


@pytest.mark.parametrize("kind", ["ranks", "bf16"])
def test_a_trial_is_shown_but_never_recommended(kind):
    fast, runs_of = script("mine", 10.0)
    tried = replace(fast, name=f"script-mine-{kind}", label="tried"), runs_of
    memory = script("mine", 18.0)
    memory = replace(memory[0], name="script-mine-memory", label="memory"), memory[1]
    analysis = analyse(report(script("mine", 20.0), memory, tried))
    (decision,) = analysis.decisions
    assert (decision.best.label, decision.eligible[0].label) == ("memory", "memory")
    assert [*decision.ineligible] == [f"script-mine-{kind}"] and decision.ratios[f"script-mine-{kind}"].value < 1


def test_the_step_with_loader_workers_is_projected_from_the_loader_alone():
    def projected(alone, workers=0):
        config = {"loader_milliseconds": alone}
        first = script("mine", 20.0, config=config, workers_per_process=workers)
        mine, _ = analyse(report(first, script("b", 20.0))).rows
        return with_loader_workers(mine.row, mine.summary, cores=4)

    planned, made = script("mine", 20.0)
    made = [
        replace(run, config={**run.config, "loader_milliseconds": own})
        for run, own in zip(made, (30.0, 4.0, 8.0), strict=True)
    ]
    (mine,) = analyse(report((planned, made))).rows
    assert with_loader_workers(mine.row, mine.summary, cores=4) == (8.0, 65.0)
    assert projected(None) is None
    assert projected(8.0) == (8.0, 65.0)  # a step of 66 ms without 1 ms of waiting for data
    assert projected(400.0) == (400.0, 100.0)  # four workers are slower than the rest of the step
    assert projected(400.0, workers=2) == (400.0, 200.0)  # as long as with the two workers already there


def test_the_report_of_a_script_says_what_its_loader_takes_alone():
    analysis = analyse(report(script("mine", 20.0, config={"loader_milliseconds": 8.0})))
    told = terminal_text(analysis, width=200)
    assert "its loader alone takes 8.0 ms per batch" in told and "at least 65.0 ms" in told


def test_scripts_among_methods_have_their_own_baseline_and_decision():
    single, ddp = configuration(), configuration("ddp")
    rows = [(single, runs()), (ddp, runs("ddp", (1.0, 1.01, 0.99))), script("mine", 20.0), script("ddp2", 30.0)]
    analysis = analyse(report(*rows))
    assert [entry.standing.baseline.label for entry in analysis.rows] == ["SINGLE", "SINGLE", "mine", "mine"]
    assert [(choice.trained, choice.best.label) for choice in analysis.decisions if choice.best] == [
        ("", "DDP"),
        ("your scripts", "mine"),
    ]


def test_seen_differences():
    mine, other = (
        make_result("script", config={**OWN, "optimizer": optimizer}, parameters=number, precision=kind)
        for optimizer, number, kind in (("SGD", 5, "float32"), ("AdamW", 6, "bfloat16"))
    )
    assert seen_differences(mine, mine) == ()
    assert [str(words) for words in seen_differences(other, mine)] == [
        "parameters 6 instead of 5",
        "type of the parameters bfloat16 instead of float32",
        "optimizer AdamW instead of SGD",
    ]


def test_a_report_of_scripts_has_samples_and_dashes_for_unseen_values(tmp_path):
    analysis = analyse(report(script("mine", 20.0), script("ddp", 24.0, samples=200)))
    report_md = markdown_of(analysis, tmp_path)
    for text in (terminal_text(analysis), report_md):
        assert "nan" not in text.split() and "mages/s" not in text and "0.200" in text
        assert "WARNING: ddp: samples per step 200 instead of 100." in text
    table = next(line for line in report_md.splitlines() if line.startswith("| mine"))
    assert table.split("|")[2].strip() == table.split("|")[4].strip() == "–"  # data set, accuracy
