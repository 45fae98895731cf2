"""Comparisons of user scripts: judged by the time per sample, without claims about anything unseen."""

import csv
from dataclasses import replace

import pytest

from common.files.results import PhaseTimes
from comparison.judge.analysis import analyse
from comparison.judge.step_causes import with_loader_workers
from comparison.plan.counterparts import BEFORE, TWIN, counterpart
from comparison.run.observed import OBSERVED, Start, result_of
from comparison.show.report import write_csv
from comparison.show.tables import answer_rows, main_rows
from comparison.show.terminal import terminal_text
from tests.reports import ENVIRONMENT, OWN, configuration, markdown_of, report_of, runs, script


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


def sliced(name, *runs_of_slices):
    """A script's row. runs_of_slices: for each run, (steps, milliseconds per step, of which waiting for data)."""
    planned, made = script(name, 20.0)

    def slice_of(epoch, steps, milliseconds, data=0.0):
        phases = PhaseTimes(data, 0.0, milliseconds - data, 0.0, update=0.0)
        counts = {"steps": steps, "samples": 100 * steps, "train_seconds": steps * milliseconds / 1000}
        return replace(epoch, phases=phases, **counts)

    results = [
        replace(result, epochs=(result.epochs[0], *(slice_of(result.epochs[0], *one) for one in slices)))
        for result, slices in zip(made, runs_of_slices, strict=True)
    ]
    return planned, results


def test_a_short_slice_at_the_end_counts_for_little():
    (mine,) = analyse(report(sliced("mine", *3 * [[(100, 60.0), (100, 60.0), (2, 100.0, 40.0)]]))).rows
    assert mine.summary.phases.data == pytest.approx(40.0 * 2 / 202)
    assert mine.summary.step_milliseconds == pytest.approx(60.0 + 40.0 * 2 / 202)
    assert mine.accounts.growth.value < 0.05


def test_noise_is_of_steps_and_not_of_slices():
    """A slice lasts a time, so that slow steps make it shorter."""

    def of_two_seconds(*milliseconds):
        return [[(round(2000 / each), each)] * 3 for each in milliseconds]

    rows = sliced("a", *of_two_seconds(20.0, 20.2, 19.9)), sliced("b", *of_two_seconds(20.0, 30.0, 18.0))
    causes = {cause.kind: cause for cause in analyse(report(*rows)).rows[1].causes}
    assert causes["noise"].values == {"n": pytest.approx(0.6), "row": "b"}


def test_the_step_with_loader_workers_is_projected_from_the_loader_alone():
    def projected(*alone, **values):
        planned, made = script("mine", 20.0, **values)
        loaders = ({**run.config, "loader_milliseconds": own} for run, own in zip(made, alone, strict=True))
        made = [replace(run, config=config) for run, config in zip(made, loaders, strict=True)]
        (mine,) = analyse(report((planned, made))).rows
        return with_loader_workers(mine.row, mine.summary, cores=4)

    slow = 3 * [400.0]
    assert projected(*3 * [None]) is None
    assert projected(30.0, 4.0, 8.0) == (8.0, 65.0)  # a step of 66 ms without 1 ms of waiting for data
    assert projected(*slow) == (400.0, 100.0)  # four workers are slower than the rest of the step
    assert projected(*slow, workers_per_process=2) == (400.0, 200.0)  # as long as with the two workers already there
    assert projected(*slow, world_size=4) == (400.0, 400.0)  # the four ranks share the cores
    assert projected(*slow, config={"batches_per_step": 3.0}) == (400.0, 300.0)  # accumulated gradients
    analysis = analyse(report(script("mine", 20.0, config={"loader_milliseconds": 8.0})))
    told = terminal_text(analysis, width=200)
    assert "its loader alone takes 8.0 ms per batch" in told and "at least 65.0 ms" in told


@pytest.mark.parametrize("samples, told", [(98, 100), (46, 46)])
def test_a_step_has_the_most_frequent_number_of_samples_unless_most_have_others(samples, told):
    planned, made = script("mine", 20.0, samples=samples)
    made = [replace(run, global_batch_size=100) for run in made]
    assert f"mine: a step of {told} samples takes" in terminal_text(analyse(report((planned, made))), width=200)


def test_scripts_beside_methods_are_judged_by_samples_and_have_no_epochs(tmp_path):
    """The wall time of a script's run is that of its slices, which may have any length."""
    ddp = configuration("ddp", per_device_batch_size=50)
    short = [[replace(run, startup_seconds=2.0) for run in own] for own in (runs(), runs("ddp", (1.0, 1.01, 0.99)))]
    mixed = report((configuration(), short[0]), (ddp, short[1]), script("mine", 20.0), script("ddp2", 30.0))
    seconds = {"single": 8.0, "ddp": 6.0, "script-mine": 12.0, "script-ddp2": 10.0}
    outcomes = (replace(run, wall_seconds=seconds[run.configuration] + run.block / 100) for run in mixed.outcomes)
    analysis = analyse(replace(mixed, outcomes=tuple(outcomes)))
    assert [entry.standing.baseline.label for entry in analysis.rows] == ["SINGLE", "SINGLE", "mine", "mine"]
    assert [(choice.trained, choice.wall_time.kind, choice.best.label) for choice in analysis.decisions] == [
        ("", "run", "DDP"),
        ("your scripts", "samples", "mine"),
    ]
    cells = {row["Method"]: row["Whole run (s)"] for row in answer_rows(analysis)}
    assert [cells[name] is None for name in ("SINGLE", "DDP", "mine", "ddp2")] == [False, False, True, True]
    epochs = {row["Method"]: (row["Time per epoch (s)"], row["min–max"]) for row in main_rows(analysis)}
    assert epochs["mine"] == epochs["ddp2"] == ("–", None) and epochs["DDP"] == ("1.00", "0.99–1.01")
    text = markdown_of(analysis, tmp_path)
    assert "mine: the baseline, 0.200 s per 1,000 samples." in text and "SINGLE: the baseline, 2.00 s per epoch" in text
    assert "; 0.300 s instead of 0.200 s per 1,000 samples." in text
    write_csv(analysis, tmp_path / "results.csv")
    written = [(row["dataset"], row["epoch_seconds"]) for row in csv.DictReader((tmp_path / "results.csv").open())]
    assert written[2:] == [("", "")] * 2 and all(map(all, written[:2]))


@pytest.mark.parametrize("role", [TWIN, BEFORE])
def test_a_script_is_compared_with_its_counterpart_whatever_the_length_of_its_slices(role):
    (own, fast), (_, slow) = script("mine", 20.0), script("mine", 30.0)
    other = {"parameters": 6, "precision": "bfloat16", "config": {**OWN, "optimizer": "AdamW"}}
    shorter = [replace(run, epochs=run.epochs[:3], **other) for run in slow]
    analysis = analyse(report((own, fast), (counterpart(own, role, "again", ()), shorter)))
    (pair,) = analysis.pairs[role]
    kinds = "type of the parameters float32 instead of bfloat16", "optimizer SGD instead of AdamW"
    assert pair.ratio.value == pytest.approx(1.5) and pair.differences == ("parameters 5 instead of 6", *kinds)
    text = terminal_text(analysis)
    assert "A/A test of “mine”: ratio 1.50 [" in text if role == TWIN else "1.50 [" in text and "Next:" not in text


def slice_of(*steps, evaluated=(0.0,)):
    """Return what a rank wrote about a slice. steps: milliseconds of phases. evaluated: milliseconds before each."""
    about = {
        "devices": ["cpu"],
        "gpu_uuids": [],
        "peaks": [1],
        "reserved": [],
        "loader": None,
        "batches": 2.0,
        "start": 0.0,
    }
    about |= {"optimizer": "SGD", "optimizers": 1, "parameters": 5, "dtype": "float32", "threads": 1, "workers": 0}
    series = [[step.get(name, 0.0) for name in OBSERVED] for step in steps]
    phases = dict(zip(OBSERVED, map(sum, zip(*series, strict=True)), strict=True))
    times = {"seconds": sum(phases.values()) / 1000, "phases": phases, "series": series, "evaluated": [*evaluated]}
    used = {"batch": 10, "cpu_seconds": 0.01, "queue_seconds": None}
    return {"steps": len(steps), "samples": 10 * len(steps), **used, **times, **about}


def result_of_ranks(*ranks):
    header = {"first_step": 0.0, "world": len(ranks), "torch": "2.11.0", "python": "3.11.7"}
    return result_of([Start([[header, *slices] for slices in ranks])], "python train.py", 1.0, ENVIRONMENT)


def test_a_phase_that_only_some_slices_have_counts_in_all_of_them():
    result = result_of_ranks([slice_of({"data": data, "forward": 8.0}) for data in (0.0, 0.0, 4.0, 0.0)])
    assert [epoch.phases.known for epoch in result.epochs] == [
        {"data": data, "forward": 8.0} for data in (0.0, 4.0, 0.0)
    ]


def test_waiting_for_a_rank_that_evaluates_alone_is_no_training():
    """The first rank evaluates, and works for 6 ms more, before the exchange of the second step."""
    first = slice_of(
        *({"forward": 8.0, "exchange": 1.0, "rest": more} for more in (0.0, 6.0, 0.0)), evaluated=(0, 90, 0)
    )
    second = slice_of(*({"forward": 8.0, "exchange": 1.0 + wait} for wait in (0.0, 96.0, 0.0)), evaluated=(0, 0, 0))
    epoch = result_of_ranks(3 * [first], 3 * [second]).epochs[-1]
    assert epoch.train_seconds == pytest.approx(0.033) and epoch.ranks[1].phases.exchange == pytest.approx(3.0)
    assert epoch.ranks[1].waits.waited == pytest.approx(2.0) == epoch.ranks[0].waits.caused["rest"]
