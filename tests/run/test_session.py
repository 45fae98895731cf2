"""A comparison from plan to last run, with made-up runs: what it prints, and when its files are written."""

import contextlib
import json
import math
import os
import sys
import time
from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import pytest

import compare_parallel
from common.errors import FAILED, OUT_OF_MEMORY, USAGE, SuiteError
from common.files.checksums import CODE, code_checksum
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.outcomes import Outcome, Trial
from comparison.plan.plan import make_order
from comparison.record import Equivalence
from comparison.results_file import read_results, write_results
from comparison.run import forecast, session
from comparison.run.launch import HelperFailed
from comparison.run.lock import DirectoryLock
from comparison.run.scripts import useless_variants
from comparison.run.session import continued, run_comparison
from comparison.run.stopping import look, with_another_block, with_next_block
from comparison.show import report as shown
from comparison.show.remarks import definitions, faults
from comparison.show.terminal import terminal_text
from tests.reports import PROBE, configuration, each_epoch, report_of, runs, script

DDP = configuration("ddp")
STEPS = [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]


@pytest.fixture
def answers(monkeypatch):
    """answers(memory=[…]): fake the probe's answer. Return the list of the flags of all its calls."""

    def answers(**values):
        asked = []
        answer = json.dumps({**PROBE, "steps": STEPS, **values})
        monkeypatch.setattr(forecast, "ask", lambda module, *flags: asked.append(list(flags)) or answer)
        return asked

    return answers


def decided(block):
    """Half the baseline's 2 s, with little noise."""
    return 1.0 + 0.001 * (block % 3)


def noisy(block):
    """Half the baseline's 2 s, with a noise of about 4%."""
    return 1.0 + 0.04 * (-1) ** block


def undecided(block):
    """In every other block as long as the baseline's 2 s."""
    return 2.0 + 0.5 * (block % 2)


def hopeless(block):
    """Around the baseline's 2 s, with much noise."""
    return 2.0 + 0.5 * (-1) ** block


@pytest.fixture
def run(monkeypatch, tmp_path, answers):
    """run(seconds): compare one device with another row, not in turns. Each block takes 20 s.

    seconds(block): of the other row's epochs. foreign: by block, how many of the two cores other programs keep busy.
    startup: seconds of each run. stop: number of the run that is interrupted. run.commands: of all runs.
    """
    clock = count(0.0, 20.0)
    monkeypatch.setattr(session.time, "perf_counter", lambda: next(clock))
    answers()

    def run(seconds=decided, other=DDP, foreign=(), startup=0.0, stop=None, resume=None, **settings):
        made = report_of((configuration(), runs(seconds=(2.0,))), (other, runs(other.method, (1.0,))))
        templates, started = {outcome.configuration: outcome for outcome in made.outcomes}, count(1)

        def run_once(row, block, *_):
            if next(started) == stop:
                raise KeyboardInterrupt
            run.commands.append(row.command)
            ended, value = templates[row.name], 2.0 if row.name == "single" else seconds(block)
            result = replace(each_epoch(ended.result, train_seconds=value), startup_seconds=startup)
            return replace(ended, block=block, result=result, foreign_cores=dict(foreign).get(block, 0.0))

        monkeypatch.setattr(session, "run_once", run_once)
        repeats = settings.setdefault("repeats", None if {"budget", "margin"} & settings.keys() else 2)
        order = tuple(make_order([row.name for row in made.plan], repeats or 3, 42))
        changed = {"settings": {**made.settings, **settings}, "environment": {**made.environment, "cores": 2}}
        report = replace(made, order=order, outcomes=(), probe=None, **changed)
        report = continued(report, resume) if resume else report
        with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
            return run_comparison(report, ["--epochs", "3"], output_to(Mock(directory=tmp_path)))

    run.commands = []
    return run


def test_progress_is_printed(run, capsys):
    run()
    output = capsys.readouterr().out
    assert "not in turns: how much memory they need is not known\n" in output
    assert output.startswith("4 runs: 2 rows x 2 blocks\nBlock 1: single, ddp\n")
    assert "\nAbout 14 s from here on" in output
    lines = [line for line in output.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert lines[1] == "[2/4] block 1, DDP: ok, 9.0 s; about 18 s left" and lines[3].endswith(": ok, 9.0 s")
    assert lines[2].endswith(": ok, 9.0 s; about 10 s left")  # the first block really took 20 s instead of 18
    assert output.splitlines()[-1].startswith("After 2 blocks: Noise ")


@pytest.mark.parametrize("max_steps, closed", [(None, [0, 2]), (1, [])])
def test_each_block_measures_the_start_up_again_where_it_may_count(max_steps, closed, run, monkeypatch):
    found = []  # how many of the four runs had started
    monkeypatch.setattr(session, "close_templates", lambda: found.append(len(run.commands)))
    run(max_steps=max_steps)
    assert found == closed


def test_all_runs_cut_the_network_where_the_probe_says(run, answers):
    blocks = [{"model": "lenet", "block": name, "milliseconds": value} for name, value in (("a", 4.0), ("b", 3.25))]
    asked, pipeline = answers(blocks=blocks), replace(configuration("pipeline"), stages=2)
    report = run(other=pipeline, micro_batches=[3])
    (flags,) = asked
    assert flags[flags.index("--cut") + 1] == "34"  # images of a micro-batch
    assert {command[2:] for command in run.commands} == {(), ("--split-at", "b")} and len(run.commands) == 4
    assert report.plan[1].command == pipeline.command


def test_flags_of_the_probe(run, answers):
    asked = answers()
    for settings in ({}, {"project": ["2", "4"]}, {"project": ["2x1"], "link_gbps": 5.0}):
        run(**settings)
    plain = "--epochs 3 --model lenet --batch-size 100 --num-workers 0 --device cpu --threads 1 --precision fp32"
    assert asked[0] == f"{plain} --sizes 100".split()
    assert asked[1][-6:] == ["--sizes", "25", "50", "100", "--ceiling", "--link"]
    assert "--link" in asked[2]  # the latency is still measured
    rows = [(configuration(method, device="gpu", num_workers=2), []) for method in ("single", "dp")]
    report = report_of(*rows, loader="workers")
    for gpus in (1, 2):
        forecast.run_probe(replace(report, environment={**report.environment, "gpus": ["H200"] * gpus}), [])
    assert "--ceiling" in asked[3] and "--link" not in asked[3] and "--link" in asked[4]


@pytest.mark.parametrize("changed", ["common/loop.py", "ddp_train.py"])
def test_a_comparison_does_not_continue_with_other_code(changed, tmp_path):
    (tmp_path / "common").mkdir()
    script, file = tmp_path / "ddp_train.py", tmp_path / "results.json"
    for path in (script, tmp_path / "common" / "loop.py"):
        path.write_text("pass")
    code = {CODE: code_checksum(script, tmp_path / "common")}
    row = configuration("ddp", command=("python", str(script)))
    report = report_of((row, [replace(run, checksums=code) for run in runs("ddp")]))
    write_results(report, tmp_path)
    assert len(continued(replace(report, outcomes=()), file).outcomes) == 3
    (tmp_path / changed).write_text("pass  # changed")
    with pytest.raises(SuiteError, match="cannot resume: that was another comparison; the code of “DDP” has changed"):
        continued(replace(report, outcomes=()), file)


def test_an_interrupted_comparison_continues_only_with_equal_settings(run, tmp_path, capsys):
    file = tmp_path / "results.json"
    run(stop=3)
    assert "no interval: too few runs" in [entry.result for entry in analyse(read_results(file)).rows]
    for name, value, change in (("epochs", 9, "epochs 3 → 9"), ("seed", 1, "seed 42 → 1")):
        with pytest.raises(SuiteError, match=f"cannot resume: .*{change}"):
            run(resume=file, **{name: value})
    capsys.readouterr()
    assert len(run(resume=file).outcomes) == 4
    assert "4 runs: 2 rows x 2 blocks, of which 2 are kept" in capsys.readouterr().out


def test_a_variant_of_a_script_that_never_ran_well_is_left_out(run, tmp_path, monkeypatch):
    slices = {"warmup": 5, "steps": 10}
    variant = replace(
        configuration("script", command=("python", "-m", "mine")), name="script-mine-workers", label="2 loader workers"
    )

    def fail(started):
        return Outcome(variant.name, started._block, "failed", "RuntimeError: it has no DataLoader", "", "", 1, 1.0)

    monkeypatch.setattr(session, "run_whole", fail)
    run(other=variant, stop=2, **slices)
    report = run(other=variant, resume=tmp_path / "results.json", **slices)
    assert [row.skip for row in report.plan] == ["", "it has no DataLoader"]
    assert [(outcome.configuration, outcome.block) for outcome in report.outcomes] == [("single", 1), ("single", 2)]
    assert not report.left


def test_a_variant_that_changes_nothing_is_left_out():
    plain, made = script("mine", 20.0, threads_per_process=1)
    for kind, changed, why in (
        ("thread", {}, "the script keeps 1 thread"),
        ("workers", {}, "the script keeps 0 loader workers"),
        ("workers", {"workers_per_process": 2}, ""),
        ("memory", {}, ""),
    ):
        variant = replace(plain, name=f"script-mine-{kind}"), [replace(run, **changed) for run in made]
        assert useless_variants(report_of((plain, made), variant)) == ({variant[0].name: why} if why else {})


@pytest.mark.parametrize("good", [True, False])
def test_resume_repeats_what_failed_and_keeps_blocks_whole(good, tmp_path):
    row = configuration("ddp", command=("python", "ddp.py", "--batch-size", "100"))
    check = Equivalence(1e-7, "ok", "") if good else Equivalence(None, "failed", "port in use")
    full, failed = Trial("ddp", 128, OUT_OF_MEMORY, "no room"), Trial("ddp", 96, "failed", "port in use")
    single = ["failed", *runs(seconds=(2.0, 2.1))]
    report = report_of((configuration(), single), (row, [OUT_OF_MEMORY, "failed", *runs("ddp", (1.0,))]))
    assert analyse(report).rows[1].result.startswith("1 of 3 runs out of memory, 1 of 3 runs failed at a batch")
    write_results(replace(report, equivalence={"ddp": check}, trials=(full, failed)), tmp_path)
    again = continued(replace(report, outcomes=()), tmp_path / "results.json")
    kept = {(run.configuration, run.block): run.status for run in again.outcomes}
    assert kept == {("single", 3): "ok", ("ddp", 1): OUT_OF_MEMORY, ("ddp", 3): "ok"}
    assert again.equivalence == ({"ddp": check} if good else {}) and again.trials == (full,)


def test_only_its_own_torn_files_are_deleted(run, tmp_path):
    (tmp_path / "runs").mkdir()
    own = ["results.jsonab012cd3.part", "runs/ddp-2.jsonabcdef01.part"]
    foreign = ["half-a-download.part", "results.json.part", "runs/mp-2.jsonabcdef01.part"]
    for name in own + foreign:
        (tmp_path / name).write_text("torn")
    run()
    assert not any((tmp_path / name).exists() for name in own) and all((tmp_path / name).exists() for name in foreign)


# ---- the files of a command


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(run): start compare_parallel.py with `run` in place of its runs, and without figures."""
    monkeypatch.setattr(compare_parallel, "plan_comparison", lambda *_: (None, []))
    monkeypatch.setattr(compare_parallel, "wait_for_others", lambda _: [])
    monkeypatch.setattr(shown.figures, "draw_all", lambda *_: [])

    def started(run, *flags, raises=None):
        monkeypatch.setattr(compare_parallel, "run_comparison", lambda *_: run())
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *map(str, flags or ("--output-dir", tmp_path))])
        with pytest.raises(raises) if raises else contextlib.nullcontext():
            compare_parallel.main()

    return started


def test_a_failed_helper_is_no_interruption_and_a_failed_row_does_not_stop_others(started, tmp_path, capsys):
    def fails():
        raise HelperFailed(FAILED)

    started(fails, raises=HelperFailed)
    assert "Interrupted" not in capsys.readouterr().err
    report = report_of((configuration("accelerate"), ["failed"]), (configuration("mp"), runs("mp")))
    started(lambda: write_results(report, tmp_path) or report, raises=SystemExit)
    printed = " ".join(capsys.readouterr().out.split())
    assert "see accelerate-1.log: “ACCELERATE” failed." in printed and "MP" in printed
    assert "the baseline, single, is not among the methods" in (tmp_path / "report.md").read_text()


def test_a_new_comparison_keeps_earlier_files(run, started, tmp_path, capsys):
    started(run)
    made = {path.name for path in tmp_path.iterdir()} - {".comparison.lock"} | {"curves.png"}
    (tmp_path / "runs").mkdir()
    for name in ("mine.png", "half-a-download.part", "runs/single-1.log"):
        (tmp_path / name).write_text("mine")
    for dated in ("earlier-2026-01-02-030405", "earlier-2026-01-02-030405+"):
        (tmp_path / "curves.png").write_text("drawn")
        os.utime(tmp_path / "results.json", (0, time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, 0))))
        before = {name: (tmp_path / name).read_bytes() for name in made}
        capsys.readouterr()
        started(run)
        assert {name: (tmp_path / dated / name).read_bytes() for name in before} == before
        assert f"is kept in {tmp_path / dated}: results.json, report.html, report.md, " in capsys.readouterr().out
        assert (tmp_path / "mine.png").exists() and (tmp_path / "half-a-download.part").exists()
    assert (tmp_path / "earlier-2026-01-02-030405" / "runs" / "single-1.log").read_text() == "mine"
    (tmp_path / "earlier-mine").mkdir()
    started(run, "--output-dir", tmp_path, "--keep", "2")
    names = sorted(path.name for path in tmp_path.glob("earlier-*"))
    assert names[0] == "earlier-2026-01-02-030405+" and names[1] > names[0] and names[2:] == ["earlier-mine"]


def test_foreign_files_are_kept_and_empty_comparisons_are_not(run, started, tmp_path):
    run(stop=1)
    started(run)
    assert not [*tmp_path.glob("earlier-*")]
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "runs").mkdir()
    for name in ("report.md", "runs/tensorboard"):
        (tmp_path / name).write_text("mine")
    started(run)
    (kept,) = tmp_path.glob("earlier-*/report.md")
    assert kept.read_text() == "mine" and (tmp_path / "runs" / "tensorboard").read_text() == "mine"


def test_showing_again_keeps_earlier_files_and_copies_exactly(run, started, tmp_path):
    started(run)
    file = tmp_path / "old.json"
    file.write_bytes((tmp_path / "results.json").read_bytes())
    for _ in range(2):
        started(None, "--from", file)
        (file,) = tmp_path.glob("earlier-*/results.json")  # shown in place, nothing is moved
    assert len([*tmp_path.rglob("earlier-*")]) == 1
    for number, source in enumerate((file, file.parent)):
        started(None, "--from", source, "--output-dir", tmp_path / f"copy-{number}")
        assert (tmp_path / f"copy-{number}" / "results.json").read_bytes() == file.read_bytes()
    shown = file.read_bytes()
    started(None, "--from", file, "--output-dir", tmp_path, "--keep", "1")  # which deletes the source
    assert (tmp_path / "results.json").read_bytes() == shown and not file.exists()


@pytest.mark.parametrize("source", [False, True])
def test_a_directory_is_locked_until_all_is_shown(source, started, tmp_path, monkeypatch):
    directory, made, seen = tmp_path / "out", report_of((configuration(), runs())), []

    def show(*_):
        with pytest.raises(SuiteError, match="another comparison is writing") as caught, DirectoryLock(directory):
            pass
        assert caught.value.exit_code == USAGE
        seen.append(True)
        return made

    write_results(made, tmp_path)
    monkeypatch.setattr(compare_parallel, "present", show)
    monkeypatch.setattr(compare_parallel, "show", show)
    again = ["--from", tmp_path / "results.json"] if source else []
    started(lambda: made, "--output-dir", directory, *again)
    assert seen


def test_texts_are_written_before_the_figures(tmp_path, monkeypatch, capsys):
    def draw_all(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shown.figures, "draw_all", draw_all)
    write_results(report_of((configuration(), runs())), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        shown.present(tmp_path)
    assert "SINGLE" in capsys.readouterr().out
    assert {"results.csv", "results.tex"} <= {file.name for file in tmp_path.iterdir()}


# ---- the number of blocks


@pytest.mark.parametrize(
    "seconds, settings, whole, looks",
    [
        (decided, {"budget": 200.0}, 3, [(3, 0.3)]),
        (undecided, {"budget": 1.0}, 3, [(3, 1.0)]),  # at least three blocks
        # a seventh would end at 140 s
        (undecided, {"budget": 130.0}, 6, [(3, 60 / 130), (4, 80 / 130), (5, 100 / 130), (6, 1.0)]),
        (hopeless, {"budget": 130.0}, 3, [(3, 60 / 130)]),
        (hopeless, {"repeats": 4}, 4, []),
        (noisy, {"margin": 0.5}, 5, []),
        (noisy, {"margin": 0.05, "budget": 130.0}, 6, []),
        (noisy, {"margin": 0.05, "budget": 30.0}, 5, []),
    ],
)
def test_number_of_blocks(seconds, settings, whole, looks, run):
    report = run(seconds, **settings)
    assert (len(report.whole_blocks), [*report.looks]) == (whole, looks)
    assert report.order == tuple(make_order(["single", "ddp"], whole, 42))


def test_a_comparison_ends_once_every_row_is_decided(run, tmp_path, capsys):
    report = run(decided, budget=200.0)
    assert read_results(tmp_path / "results.json") == report
    assert "3 runs each" in report.title and "INCOMPLETE" not in terminal_text(analyse(report))
    early = analyse(report).rows[1].standing.speed_up
    last = analyse(replace(report, looks=())).rows[1].standing.speed_up
    assert early.value == last.value and early.low < last.low  # an early analysis may spend little of the error
    output = capsys.readouterr().out
    assert "The budget of 3 min allows about 27 blocks (at least 3); at a noise of 4% they detect" in output
    assert "for the 6 runs planned so far" in output and "from here on" not in output
    assert "to stop once every row is decided or can no longer be: 1." in " ".join(definitions(report))
    run(decided, budget=1.0)
    assert "is too short for 3 blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "ended, planned, looks", [(8, 10, 2), (6, 6, 0), (11, 12, 3)], ids=["block", "last_planned_run", "within_a_block"]
)
def test_resume_continues_the_interim_analyses(ended, planned, looks, run, tmp_path):
    whole = run(undecided, budget=130.0)
    outcomes = tuple(replace(each, wall_seconds=10.0) for each in whole.outcomes[:ended])
    write_results(replace(whole, order=whole.order[:planned], outcomes=outcomes, looks=whole.looks[:looks]), tmp_path)
    again = run(undecided, budget=130.0, resume=tmp_path / "results.json")
    assert (again.order, again.looks) == (whole.order, whole.looks) and len(whole.whole_blocks) == 6


def half_width(report):
    """Return half the logarithmic width of the speed-up's interval."""
    speed_up = analyse(report).rows[1].standing.speed_up
    return math.log(speed_up.high / speed_up.low) / 2


def test_margin_estimates_the_number_of_blocks_from_the_first_five(run):
    report = run(noisy, margin=0.05)
    count = len(report.whole_blocks)
    assert count > 5 and report.looks == ()
    assert half_width(report) <= math.log(1.05) < half_width(report) * math.sqrt(count / (count - 1))
    # later blocks do not matter
    calm = run(lambda block: noisy(block) if block <= 5 else 1.0, margin=0.05)
    assert len(calm.whole_blocks) == count and half_width(calm) == pytest.approx(half_width(report))
    disturbed = run(noisy, margin=0.05, foreign={2: 0.9, 7: 0.9})
    assert disturbed.set_aside == (2, 7) and half_width(disturbed) <= math.log(1.05)


def test_a_disturbed_block_is_repeated_and_only_its_failures_count(run, capsys):
    report = run(decided, repeats=3, foreign={2: 0.9})
    assert (len(report.whole_blocks), report.set_aside, len(report.outcomes)) == (4, (2,), 8)
    assert [outcome.block for outcome in report.rows[1].outcomes] == [1, 3, 4]
    assert not report.rows[1].disturbed and analyse(report).rows[1].result == "faster"
    assert "Block 2 was disturbed: other programs kept up to 0.9 of 2 cores busy" in capsys.readouterr().out
    text = " ".join(terminal_text(analyse(report), verbose=True).split())
    assert "Block 2 of 4 is not counted: other programs kept up to 0.9 of 2 cores busy." in text
    assert "INCOMPLETE" not in text
    ends = {(2, "ddp"): "failed"}
    outcomes = (replace(run, status=ends.get((run.block, run.configuration), "ok")) for run in report.outcomes)
    failed = replace(report, outcomes=tuple(outcomes))
    assert failed.set_aside == (2,) and failed.failed and "1 of 4 runs failed" in analyse(failed).rows[1].result
    outcomes = (replace(run, status=OUT_OF_MEMORY if run.block == 4 else "ok") for run in report.outcomes)
    assert not replace(report, outcomes=tuple(outcomes)).set_aside  # nothing was timed in its place


def test_a_block_of_some_rows_replaces_no_block_of_all():
    rows = [(configuration(name), runs(name, (1.0,) * 7)) for name in ("single", "ddp", "fsdp")]
    report = report_of(*rows, repeats=None, budget=100.0)
    report.environment["cores"] = 2

    def set_aside(disturbed, blocks):
        kept = [run for run in report.outcomes if run.block <= blocks and (run.block < 6 or run.configuration != "ddp")]
        kept = [replace(run, foreign_cores=disturbed.get(run.block, 0.0)) for run in kept]
        order = tuple((run.block, run.configuration) for run in kept)
        return replace(report, outcomes=tuple(kept), order=order).set_aside

    assert [set_aside({2: 0.9, 3: 0.8, 4: 0.7}, blocks) for blocks in (4, 5, 6, 7)] == [(2,), (2, 3), (2, 3), (2, 3)]
    assert set_aside({6: 0.9}, 7) == (6,) and set_aside({2: 0.8, 4: 0.7, 6: 0.9}, 7) == (2, 4, 6)
    assert set_aside({1: 0.9, 2: 0.8, 3: 0.8, 4: 0.7, 6: 0.9, 7: 0.9}, 7) == (1, 2, 6, 7)


def test_at_most_two_disturbed_blocks_are_repeated(run):
    report = run(decided, repeats=3, foreign={block: 0.3 + 0.1 * block for block in range(1, 99)})
    assert (len(report.whole_blocks), report.set_aside) == (5, (4, 5))  # the most disturbed
    (aside,) = faults(analyse(report))
    assert aside == "Blocks 4, 5 of 5 are not counted: other programs kept up to 0.8 of 2 cores busy."
    assert report.rows[1].disturbed and analyse(report).rows[1].result == "disturbed"


@pytest.mark.parametrize(
    "name, values, seconds, again",
    [
        ("num_workers", (0, 2), (2.5, 2.9, 2.0), True),
        ("num_workers", (0, 2), (1.0, 1.01, 0.99), False),
        ("model", ("lenet", "mlp"), (2.5, 2.9, 2.0), False),  # these differ in accuracy, so their times do not matter
    ],
)
def test_the_values_of_a_sweep_must_be_decided(name, values, seconds, again):
    first, second = (configuration(values={name: value}, **{name: value}) for value in values)
    report = report_of((first, runs()), (second, runs(seconds=seconds)), repeats=None, budget=100.0)
    more = with_another_block(report, 30.0, 10.0).order[len(report.order) :]
    assert {name for _, name in more} == ({row.name for row in report.plan} if again else set())


def test_another_block_needs_an_undecided_row_its_time_and_an_error_left():
    rows = ("single", (2.0, 2.0, 2.0)), ("ddp", (0.02, 0.02, 0.02)), ("fsdp", (2.5, 2.9, 2.0))
    made = [(configuration(name), runs(name, seconds)) for name, seconds in rows]
    report = report_of(*made, repeats=None, budget=100.0)

    def more(used, **changed):
        longer = with_another_block(replace(report, **changed), used, 30.0)
        return {*longer.order[len(report.order) :]}

    undecided = {(4, "single"), (4, "fsdp")}  # such a block takes 20 s instead of 30
    assert (more(40.0), more(85.0)) == (undecided, set())
    assert more(40.0, looks=((3, 0.4),)) and not more(40.0, looks=((3, 1.0),))
    disturbed = [replace(run, foreign_cores=1.0 if run.block == 2 else 0.0) for run in report.outcomes]
    assert more(40.0, outcomes=tuple(disturbed)) == {(4, "single"), (4, "ddp"), (4, "fsdp")}

    def looks(used, **changed):
        return look(replace(report, **changed), used, 30.0).looks

    assert (looks(75.0), looks(85.0)) == (((3, 0.75),), ((3, 1.0),))
    once = {"looks": ((3, 0.6),)}  # after a block in place of a disturbed one
    assert (looks(75.0, **once), looks(85.0, **once)) == (((3, 0.75),), ((3, 1.0),))


def test_rows_that_are_too_long_for_the_budget_do_not_end_the_comparison_of_others():
    rows, walls = [("single", (2.0, 2.0, 2.0))], {"single": 2.0, "ddp": 2.0, "pipeline": 30.0}
    rows += [(name, (2.5, 2.9, 2.0)) for name in ("ddp", "pipeline")]
    report = report_of(*[(configuration(name), runs(name, times)) for name, times in rows], repeats=None, budget=100.0)
    ended = [replace(run, wall_seconds=walls[run.configuration]) for run in report.outcomes]
    longer = with_another_block(replace(report, outcomes=tuple(ended)), 70.0, 34.0)
    assert {name for block, name in longer.order if block == 4} == {"single", "ddp"}


def test_rows_tied_with_the_recommended_one_run_again():
    rows = ("single", (2.0,) * 3), ("ddp", (1.0,) * 3), ("fsdp", (3.0,) * 3)  # which decides their speed-ups
    report = report_of(
        *[(configuration(name), runs(name, times, startup_seconds=2.0)) for name, times in rows],
        repeats=None,
        budget=100.0,
    )

    def next_block(**seconds):
        walls = {name: iter(times) for name, times in seconds.items()}
        ended = [replace(run, wall_seconds=next(walls[run.configuration])) for run in report.outcomes]
        again = replace(report, outcomes=tuple(ended), looks=((3, 0.3),))
        return {name for block, name in with_another_block(again, 30.0, 9.0).order if block == 4}

    fast, slow = (6.0, 5.5, 6.5), (20.0, 20.1, 19.9)
    assert next_block(single=(7.0, 6.9, 7.6), ddp=fast, fsdp=slow) == {"single", "ddp"}
    assert next_block(single=(12.0, 12.1, 11.9), ddp=(6.0, 6.05, 5.95), fsdp=slow) == set()


def test_looks_are_a_twentieth_of_the_budget_apart_and_the_same_rows_run_between_them():
    rows = ("single", (2.0,) * 4), ("ddp", (0.02,) * 4), ("fsdp", (2.5, 2.9, 2.0, 2.6))
    report = report_of(*[(configuration(name), runs(name, times)) for name, times in rows], repeats=None, budget=100.0)
    report = replace(report, looks=((3, 0.6),))

    def after(used):
        longer = with_next_block(report, used, 9.0)
        return longer.looks[1:], {name for block, name in longer.order if block == 5}

    assert after(64.0) == ((), {"single", "ddp", "fsdp"})
    assert after(66.0) == (((4, 0.66),), {"single", "fsdp"})
    assert after(95.0) == (((4, 1.0),), set())
    assert with_next_block(replace(report, looks=((3, 0.93),)), 95.0, 9.0).looks[1:] == ((4, 1.0),)  # the last chance
