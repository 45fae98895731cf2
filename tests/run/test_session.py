"""One comparison from plan to last run, with runs that are made up: what is said, and what is on disk when."""

import contextlib
import json
import math
import os
import sys
import time
from dataclasses import replace

import pytest

import compare_parallel
from common.errors import FAILED, SuiteError
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.methods import Machine
from comparison.plan.plan import make_order
from comparison.results_file import read_results, write_results
from comparison.run import forecast, session
from comparison.run.launch import HelperFailed
from comparison.run.session import continued, run_comparison
from comparison.run.stopping import wants_block
from comparison.show.remarks import definitions, faults
from comparison.show.terminal import terminal_text
from tests.reports import PROBE, configuration, report_of, runs

STEPS = [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """A report of two rows and two blocks that has not run, whose runs will be made up; and each run's arguments."""
    rows = [(configuration(), runs(seconds=(2.0, 2.1))), (configuration("ddp"), runs("ddp", seconds=(1.0, 1.1)))]
    made = {(outcome.configuration, outcome.block): outcome for outcome in report_of(*rows).outcomes}
    calls = []

    def run_once(row, block, seed, directory, timeout):
        on_disk = read_results(tmp_path / "results.json").outcomes if calls else ()
        calls.append((row.name, block, seed, len(on_disk)))
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return made[row.name, block]

    stop_at = None
    monkeypatch.setattr(session, "run_once", run_once)
    monkeypatch.setattr(forecast, "ask", lambda module, *flags: json.dumps({**PROBE, "steps": STEPS}))
    order = ((1, "ddp"), (1, "single"), (2, "single"), (2, "ddp"))
    report = replace(report_of(*rows, repeats=2), order=order, outcomes=(), probe=None)

    def run(stop=None, resume=None, **settings):
        nonlocal stop_at
        stop_at = stop
        wanted = replace(report, settings={**report.settings, **settings})
        wanted = continued(wanted, resume) if resume else wanted
        return run_comparison(wanted, ["--epochs", "3"], output_to(tmp_path))

    return run, calls


def test_whole_runs_follow_the_order_and_each_is_on_disk_before_the_next(planned, tmp_path, capsys):
    run, calls = planned
    report = run()
    assert "not in turns: how much memory they need is not known\n" in capsys.readouterr().out and not report.in_turns
    assert calls == [("ddp", 1, 42, 0), ("single", 1, 42, 1), ("single", 2, 43, 2), ("ddp", 2, 43, 3)]
    assert read_results(tmp_path / "results.json") == report and len(report.outcomes) == 4


@pytest.mark.parametrize("terminal", [True, False])
def test_one_line_per_run_on_a_terminal_and_elsewhere(planned, capsys, monkeypatch, terminal):
    run, _ = planned
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run()
    output = capsys.readouterr().out
    assert output.startswith("4 runs: 2 rows x 2 blocks\n") and "Block 2: single, ddp" in output
    assert output.splitlines()[4].startswith("About 14 s from here on")
    lines = [line for line in output.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert lines[1] == "[2/4] block 1, SINGLE: ok, 9.0 s; about 18 s left" and lines[3].endswith(": ok, 9.0 s")
    assert output.splitlines()[-1].startswith("After 2 blocks: This machine, this hour: the times of runs have a")


@pytest.fixture
def in_turns(planned, monkeypatch):
    """The same, with a probe that says that there is memory for all rows; the last of a block is the first to end."""
    run, calls = planned

    def take_turns(runs, seed):
        for row in reversed(runs):
            yield session.run_once(*row)

    monkeypatch.setattr(session, "Run", lambda *arguments: arguments)
    monkeypatch.setattr(session, "take_turns", take_turns)
    memory = [{"device": "cpu", "peak_bytes": 10, "free_bytes": 1000}]
    monkeypatch.setattr(forecast, "ask", lambda *_: json.dumps({**PROBE, "steps": STEPS, "memory": memory}))
    return run, calls


def test_rows_of_a_block_take_turns_and_each_is_on_disk_when_it_has_ended(in_turns, tmp_path):
    run, calls = in_turns
    report = run()
    assert calls == [("single", 1, 42, 0), ("ddp", 1, 42, 1), ("ddp", 2, 43, 2), ("single", 2, 43, 3)]
    assert report.in_turns and read_results(tmp_path / "results.json") == report


def test_the_probe_measures_blocks_once_and_all_runs_are_cut_there(monkeypatch, tmp_path):
    blocks = [{"model": "lenet", "block": name, "milliseconds": value} for name, value in (("a", 4.0), ("b", 3.25))]
    rows = [(configuration(), runs()), (replace(configuration("pipeline"), stages=2), runs("pipeline", count=2))]
    made = {(outcome.configuration, outcome.block): outcome for outcome in report_of(*rows).outcomes}
    asked, commands = [], []

    def run_once(row, block, *_):
        commands.append(row.command)
        return made[row.name, block]

    def ask(module, *flags):
        asked.append(flags)
        return json.dumps({**PROBE, "steps": STEPS, "blocks": blocks})

    monkeypatch.setattr(session, "run_once", run_once)
    monkeypatch.setattr(forecast, "ask", ask)
    planned = replace(report_of(*rows, micro_batches=[3]), outcomes=(), probe=None)
    report = run_comparison(planned, [], output_to(tmp_path))
    (flags,) = asked
    assert flags[flags.index("--cut") + 1] == "34"  # images of a micro-batch, of 100
    assert {command[2:] for command in commands} == {(), ("--split-at", "b")} and len(commands) == 6
    assert [row.command for row in report.plan] == [configured.command for configured, _ in rows]


def test_an_interrupted_block_is_repeated_for_the_rows_without_a_result(in_turns, tmp_path, monkeypatch):
    run, calls = in_turns
    with pytest.raises(KeyboardInterrupt):
        run(stop=4)
    assert [outcome.configuration for outcome in read_results(tmp_path / "results.json").outcomes][2:] == ["ddp"]
    calls.clear()
    monkeypatch.setattr(forecast, "ask", None)  # the probe is kept, and so is the way in which rows run
    assert run(resume=tmp_path / "results.json").in_turns and [call[:3] for call in calls] == [("single", 2, 43)]


def test_an_interrupted_comparison_leaves_what_was_measured_and_goes_on_where_it_was(planned, tmp_path, capsys):
    run, calls = planned
    with pytest.raises(KeyboardInterrupt):
        run(stop=3)
    report = read_results(tmp_path / "results.json")
    assert len(report.outcomes) == 2 and "INCOMPLETE: interrupted after 2 of 4 runs" in terminal_text(analyse(report))
    assert "no interval: too few runs" in [entry.result for entry in analyse(report).rows]
    calls.clear()
    report = run(resume=tmp_path / "results.json")
    assert [call[:3] for call in calls] == [("single", 2, 43), ("ddp", 2, 43)]
    assert len(report.outcomes) == 4 and "4 runs: 2 rows x 2 blocks, of which 2 are kept" in capsys.readouterr().out
    first = replace(report.outcomes[0], status="failed")  # is run again
    write_results(replace(report, outcomes=(first, *report.outcomes[1:])), tmp_path)
    calls.clear()
    assert len(run(resume=tmp_path / "results.json").outcomes) == 4 and [call[:2] for call in calls] == [("ddp", 1)]


@pytest.mark.parametrize("settings, change", [({"epochs": 9}, "epochs 3 → 9"), ({"seed": 1}, "seed 42 → 1")])
def test_another_comparison_is_not_continued(planned, tmp_path, settings, change):
    run, _ = planned
    run()
    with pytest.raises(SuiteError, match=f"cannot resume: .*{change}"):
        run(resume=tmp_path / "results.json", **settings)


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(run): `compare_parallel.py`, with this in the place of its plan and its runs; raises: how that ends."""

    def started(run, raises=None):
        monkeypatch.setattr(compare_parallel, "plan_comparison", lambda *_: (None, []))
        monkeypatch.setattr(compare_parallel, "run_comparison", lambda *_: run())
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--output-dir", str(tmp_path)])
        with pytest.raises(raises) if raises else contextlib.nullcontext():
            compare_parallel.main()

    return started


def test_what_was_measured_is_shown_when_the_comparison_is_interrupted(planned, started, tmp_path, capsys):
    run, _ = planned
    started(lambda: run(stop=3), KeyboardInterrupt)
    shown = capsys.readouterr()
    assert "INCOMPLETE: interrupted after 2 of 4 runs" in shown.out and "--resume goes on" in shown.err
    assert {"report.md", "results.csv", "curves.png"} <= {path.name for path in tmp_path.iterdir()}


def test_an_interruption_before_the_first_run_had_ended_says_so(planned, started, tmp_path, capsys):
    run, calls = planned
    started(lambda: run(stop=1), KeyboardInterrupt)
    assert "Interrupted before the first run had ended" in capsys.readouterr().err
    assert not (tmp_path / "report.md").exists()
    calls.clear()
    assert len(run(resume=tmp_path / "results.json").outcomes) == 4


def test_a_helper_that_failed_is_no_interruption(started, capsys):
    def fails():
        raise HelperFailed(FAILED)

    started(fails, HelperFailed)
    assert "Interrupted" not in capsys.readouterr().err


def test_a_new_comparison_keeps_what_an_earlier_one_left(planned, started, tmp_path, capsys):
    run, _ = planned
    started(run)
    made = {path.name for path in tmp_path.iterdir()} - {".comparison.lock"}
    (tmp_path / "runs").mkdir()
    for name in ("mine.png", "half-a-download.part", "runs/single-1.log"):
        (tmp_path / name).write_text("mine")
    for dated in ("earlier-2026-01-02-030405", "earlier-2026-01-02-030405+"):
        os.utime(tmp_path / "results.json", (0, time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, 0))))
        before = {name: (tmp_path / name).read_bytes() for name in made}
        capsys.readouterr()
        started(run)
        assert {name: (tmp_path / dated / name).read_bytes() for name in before} == before
        assert f"is kept in {tmp_path / dated}: results.json, report.html, report.md, " in capsys.readouterr().out
        assert (tmp_path / "mine.png").exists() and (tmp_path / "half-a-download.part").exists()
    assert (tmp_path / "earlier-2026-01-02-030405" / "runs" / "single-1.log").read_text() == "mine"


def test_what_is_not_this_programs_is_kept_too_and_nothing_of_a_comparison_without_outcome(planned, started, tmp_path):
    run, _ = planned
    with pytest.raises(KeyboardInterrupt):
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


def test_drawing_a_kept_comparison_again_keeps_the_new_one(planned, started, tmp_path, monkeypatch):
    run, _ = planned
    started(run)
    file = tmp_path / "old.json"
    file.write_bytes((tmp_path / "results.json").read_bytes())
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--from", str(file)])
        compare_parallel.main()
        (file,) = tmp_path.glob("earlier-*/results.json")  # what is drawn where it lies is no new comparison
    assert len([*tmp_path.rglob("earlier-*")]) == 1


def test_only_torn_files_of_its_own_are_deleted(planned, tmp_path):
    run, _ = planned
    (tmp_path / "runs").mkdir()
    own = ["results.jsonab_12cd3.part", "runs/ddp-2.jsonabcdefgh.part"]
    foreign = ["half-a-download.part", "results.json.part", "runs/mp-2.jsonabcdefgh.part"]
    for name in own + foreign:
        (tmp_path / name).write_text("torn")
    run()
    assert not any((tmp_path / name).exists() for name in own) and all((tmp_path / name).exists() for name in foreign)


def test_the_probe_is_asked_for_what_the_rows_and_the_projection_need(planned, monkeypatch):
    def flags(**settings):
        run(**settings)
        return asked[-1]

    run, _ = planned
    asked, answer = [], json.dumps({**PROBE, "steps": STEPS})
    monkeypatch.setattr(forecast, "ask", lambda module, *flags: asked.append(list(flags)) or answer)
    plain = "--epochs 3 --model lenet --batch-size 100 --num-workers 0 --device cpu --threads 1 --precision fp32"
    assert flags() == f"{plain} --sizes 100".split()
    assert flags(project=[2, 4])[-6:] == ["--sizes", "25", "50", "100", "--ceiling", "--link"]
    assert "--link" in flags(project=[2], link_gbps=5.0)  # what a message takes to start is not given


@pytest.mark.parametrize(
    "gpus, flags, loader",
    [
        (2, (), "resident"),
        (0, (), "workers"),
        (2, ("--loader", "workers"), "workers"),
        (2, ("--num-workers", "4"), "workers"),
        (2, ("--methods", "single:num-workers=2"), "workers"),
        (2, ("--dataset", "folder:images"), "workers"),
        (0, ("--recipe", "fast"), "resident"),
    ],
)
def test_a_comparison_of_gpus_is_none_of_loaders_unless_that_is_asked_for(gpus, flags, loader, monkeypatch, tmp_path):
    monkeypatch.setattr(compare_parallel, "find_machine", lambda *_: (Machine(gpus, 8), {}))
    monkeypatch.setattr(sys, "argv", ["compare_parallel.py", "--methods", "single", *flags])
    report, shared_flags = compare_parallel.plan_comparison(*compare_parallel.parse(), tmp_path)
    assert report.settings["loader"] == loader
    typed = [loader] if (gpus and loader == "resident") or "--loader" in flags else []  # a recipe has it inside
    for command in (report.plan[0].command, shared_flags):  # the rows' and the probe's
        assert [command[place + 1] for place, flag in enumerate(command) if flag == "--loader"] == typed


# ---- as many blocks as it takes


@pytest.fixture
def blocks(monkeypatch, tmp_path):
    """Run a comparison of two rows whose blocks of 20 s take the given seconds per epoch, by block; return the report.

    foreign: by block, how many of the two cores other programs keep busy.
    """
    rows = [(configuration(), runs()), (configuration("ddp"), runs("ddp"))]
    (first, *_, last), clock = report_of(*rows).outcomes, iter(range(0, 10**6, 20))
    monkeypatch.setattr(session.time, "perf_counter", lambda: float(next(clock)))

    def run(seconds, foreign=(), stop_after=10**6, resume=None, **settings):
        def run_once(row, block, seed, *_):
            if block > stop_after:
                raise KeyboardInterrupt
            template, value = (first, 2.0) if row.name == "single" else (last, seconds(block))
            result = replace(
                template.result, epochs=tuple(replace(epoch, train_seconds=value) for epoch in template.result.epochs)
            )
            return replace(template, block=block, result=result, foreign_cores=dict(foreign).get(block, 0.0))

        monkeypatch.setattr(session, "run_once", run_once)
        monkeypatch.setattr(forecast, "ask", lambda *_: json.dumps({**PROBE, "steps": STEPS}))
        order = tuple(make_order(["single", "ddp"], settings.get("repeats") or 3, 42))
        report = replace(report_of(*rows, **settings), order=order, outcomes=(), probe=None)
        report.environment["cores"] = 2
        return run_comparison(continued(report, resume) if resume else report, [], output_to(tmp_path))

    return run


def decided(block):
    """Half the baseline's 2 s, and a little noise."""
    return 1.0 + 0.001 * (block % 3)


def undecided(block):
    """Around the baseline's 2 s, far from it in every block."""
    return 2.0 + 0.5 * (-1) ** block


def test_a_budget_ends_as_soon_as_every_row_is_decided(blocks, tmp_path, capsys):
    report = blocks(decided, repeats=None, budget=200.0)
    assert (len(report.whole_blocks), report.looks) == (3, ((3, 0.3),))
    assert read_results(tmp_path / "results.json") == report
    assert "3 runs each" in report.title and "INCOMPLETE" not in terminal_text(analyse(report))
    early = analyse(report).rows[1].standing.speed_up
    last = analyse(replace(report, looks=())).rows[1].standing.speed_up
    assert early.value == last.value and early.low < last.low  # a look so early may take little of the error
    output = capsys.readouterr().out
    assert "The budget of 3 min is good for about 27 blocks, 3 at least; where the times of runs differ by 4%" in output
    assert "for the 6 runs planned so far" in output and "from here on" not in output
    assert "to end the comparison once every row is decided: 1." in " ".join(definitions(report))


def test_three_blocks_are_run_however_short_the_budget(blocks, capsys):
    assert blocks(undecided, repeats=None, budget=1.0).looks == ((3, 1.0),)
    output = capsys.readouterr().out
    assert "less than the fewest blocks take" in output and "for the 6 runs planned so far" in output


def test_a_budget_is_used_up_where_a_row_stays_undecided_and_goes_on_where_it_was_interrupted(blocks, tmp_path):
    report = blocks(undecided, repeats=None, budget=130.0)
    assert report.looks == ((3, 60 / 130), (4, 80 / 130), (5, 100 / 130), (6, 1.0))  # a seventh would end at 140 s
    assert [block for block, _ in report.order] == [block for block in range(1, 7) for _ in range(2)]
    assert report.order == tuple(make_order(["single", "ddp"], 6, 42))
    with pytest.raises(KeyboardInterrupt):
        blocks(undecided, repeats=None, budget=130.0, stop_after=4)
    report = blocks(undecided, repeats=None, budget=130.0, resume=tmp_path / "results.json")
    assert [look[0] for look in report.looks] == [3, 4, 5, 6] and report.looks[-1][1] == 1.0


def noisy(block):
    """Half the baseline's 2 s, with a noise of some 4 %."""
    return 1.0 + 0.04 * (-1) ** block


def half_width(report):
    """Of the only speed-up's interval, on logarithms."""
    speed_up = analyse(report).rows[1].standing.speed_up
    return math.log(speed_up.high / speed_up.low) / 2


def test_a_margin_is_reached_in_as_many_blocks_as_the_first_five_say(blocks):
    report = blocks(noisy, repeats=None, margin=0.05)
    count = len(report.whole_blocks)
    assert count > 5 and report.looks == ()
    assert half_width(report) <= math.log(1.05) < half_width(report) * math.sqrt(count / (count - 1))
    calm = blocks(lambda block: noisy(block) if block <= 5 else 1.0, repeats=None, margin=0.05)  # later is no news
    assert len(calm.whole_blocks) == count and half_width(calm) == pytest.approx(half_width(report))


@pytest.mark.parametrize("margin, budget, expected", [(0.5, None, 5), (0.05, 130.0, 6), (0.05, 30.0, 5)])
def test_a_margin_takes_five_blocks_at_least_and_no_more_than_its_budget(margin, budget, expected, blocks):
    report = blocks(noisy, repeats=None, margin=margin, budget=budget)
    assert (len(report.whole_blocks), report.looks) == (expected, ())


def test_a_disturbed_block_does_not_count_towards_a_margin(blocks):
    report = blocks(noisy, repeats=None, margin=0.05, foreign={2: 0.9, 7: 0.9})
    assert report.set_aside == (2, 7) and half_width(report) <= math.log(1.05)


def test_repeats_are_run_without_looks(blocks):
    report = blocks(undecided, repeats=4)
    assert (len(report.whole_blocks), report.looks) == (4, ())


def test_a_disturbed_block_is_run_again_and_does_not_count_but_for_a_failure_in_it(blocks, capsys):
    report = blocks(decided, repeats=3, foreign={2: 0.9})
    assert (len(report.whole_blocks), report.set_aside, len(report.outcomes)) == (4, (2,), 8)
    assert [outcome.block for outcome in report.rows[1].outcomes] == [1, 3, 4]
    assert not report.rows[1].disturbed and analyse(report).rows[1].result == "faster"
    assert "Block 2 was disturbed: other programs kept up to 0.9 of 2 cores busy" in capsys.readouterr().out
    text = " ".join(terminal_text(analyse(report)).split())
    assert "Block 2 of 4 does not count: other programs kept up to 0.9 of 2 cores busy." in text
    assert "INCOMPLETE" not in text
    ends = {(2, "ddp"): "failed"}
    outcomes = (replace(run, status=ends.get((run.block, run.configuration), "ok")) for run in report.outcomes)
    failed = replace(report, outcomes=tuple(outcomes))
    assert failed.set_aside == (2,) and failed.failed and "1 of 4 runs failed" in analyse(failed).rows[1].result


def test_a_machine_that_stays_disturbed_is_not_waited_for(blocks):
    report = blocks(decided, repeats=3, foreign={block: 0.3 + 0.1 * block for block in range(1, 99)})
    assert (len(report.whole_blocks), report.set_aside) == (5, (4, 5))  # those that were disturbed most
    (aside,) = faults(analyse(report))  # nothing was run instead of the last
    assert aside == "Blocks 4, 5 of 5 do not count: other programs kept up to 0.8 of 2 cores busy."
    assert report.rows[1].disturbed and analyse(report).rows[1].result == "disturbed"


@pytest.mark.parametrize("seconds, wanted", [((2.0, 2.9, 1.4), True), ((1.0, 1.01, 0.99), False)])
@pytest.mark.parametrize("name, value", [("num_workers", 2), ("model", "mlp")])
def test_the_values_of_a_sweep_are_decided_too(name, value, seconds, wanted):
    default = {"num_workers": 0, "model": "lenet"}[name]
    report = report_of(
        (configuration(values={name: default}, **{name: default}), runs()),
        (configuration(values={name: value}, **{name: value}), runs(seconds=seconds)),
        repeats=None,
        budget=100.0,
    )
    assert wants_block(report, 30.0, 10.0) == (wanted and name != "model")  # models are told apart by what they learn
