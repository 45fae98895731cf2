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
from common.errors import FAILED, USAGE, SuiteError
from common.files.checksums import CODE, code_checksum
from compare_parallel import output_to
from comparison.judge.analysis import analyse
from comparison.plan.plan import make_order
from comparison.results_file import read_results, write_results
from comparison.run import forecast, session
from comparison.run.launch import HelperFailed
from comparison.run.session import continued, only_writer, run_comparison
from comparison.run.stopping import look, with_another_block
from comparison.show import report as shown
from comparison.show.remarks import definitions, faults
from comparison.show.terminal import terminal_text
from tests.reports import PROBE, configuration, each_epoch, report_of, runs

STEPS = [{"model": "lenet", "batch": 100, "milliseconds": 50.0}]
ROOM = [{"device": "cpu", "peak_bytes": 10, "free_bytes": 1000}]


@pytest.fixture
def answers(monkeypatch):
    """answers(memory=[…]): let the probe say that, whenever it is asked; the list of the flags with which it was."""

    def answers(**values):
        asked = []
        answer = json.dumps({**PROBE, "steps": STEPS, **values})
        monkeypatch.setattr(forecast, "ask", lambda module, *flags: asked.append(list(flags)) or answer)
        return asked

    return answers


@pytest.fixture
def planned(monkeypatch, tmp_path, answers):
    """run(stop=3): run a comparison of two rows and two blocks whose runs are made up, to the third; and their calls.

    The rows take turns if the probe says that there is room; then the last of a block is the first to end.
    """
    rows = [(configuration(), runs(seconds=(2.0, 2.1))), (configuration("ddp"), runs("ddp", seconds=(1.0, 1.1)))]
    made = {(outcome.configuration, outcome.block): outcome for outcome in report_of(*rows).outcomes}
    calls = []

    def run_once(row, block, seed, directory, timeout):
        on_disk = read_results(tmp_path / "results.json").outcomes if calls else ()
        calls.append((row.name, block, seed, len(on_disk)))
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return made[row.name, block]

    def take_turns(runs, seed, need):
        for row in reversed(runs):
            yield session.run_once(*row)

    stop_at = None
    monkeypatch.setattr(session, "run_once", run_once)
    monkeypatch.setattr(session, "Run", lambda *arguments: arguments)
    monkeypatch.setattr(session, "take_turns", take_turns)
    answers()
    order = ((1, "ddp"), (1, "single"), (2, "single"), (2, "ddp"))
    report = replace(report_of(*rows, repeats=2), order=order, outcomes=(), probe=None)

    def run(stop=None, resume=None, **settings):
        nonlocal stop_at
        stop_at = stop
        calls.clear()
        wanted = replace(report, settings={**report.settings, **settings})
        wanted = continued(wanted, resume) if resume else wanted
        with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
            return run_comparison(wanted, ["--epochs", "3"], output_to(tmp_path))

    return run, calls


def test_whole_runs_follow_the_order_and_each_is_on_disk_before_the_next(planned, tmp_path, capsys):
    run, calls = planned
    report = run()
    assert calls == [("ddp", 1, 42, 0), ("single", 1, 42, 1), ("single", 2, 43, 2), ("ddp", 2, 43, 3)]
    assert read_results(tmp_path / "results.json") == report and len(report.outcomes) == 4 and not report.in_turns
    output = capsys.readouterr().out
    assert "not in turns: how much memory they need is not known\n" in output
    assert (
        output.startswith("4 runs: 2 rows x 2 blocks\nBlock 1: ddp, single\n") and "\nAbout 14 s from here on" in output
    )
    lines = [line for line in output.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert lines[1] == "[2/4] block 1, SINGLE: ok, 9.0 s; about 18 s left" and lines[3].endswith(": ok, 9.0 s")
    assert output.splitlines()[-1].startswith("After 2 blocks: Noise ")


def test_rows_take_turns_and_an_interrupted_block_is_repeated_for_those_without_a_result(planned, answers, tmp_path):
    run, calls = planned
    answers(memory=ROOM)
    report = run()
    assert calls == [("single", 1, 42, 0), ("ddp", 1, 42, 1), ("ddp", 2, 43, 2), ("single", 2, 43, 3)]
    assert report.in_turns and read_results(tmp_path / "results.json") == report
    run(stop=4)
    assert [outcome.configuration for outcome in read_results(tmp_path / "results.json").outcomes][2:] == ["ddp"]
    asked = answers()  # the probe is kept, and so is the way in which rows run
    report = run(resume=tmp_path / "results.json")
    assert report.in_turns and [call[:3] for call in calls] == [("single", 2, 43)] and not asked


def test_the_probe_measures_blocks_once_and_all_runs_are_cut_there(monkeypatch, tmp_path, answers):
    blocks = [{"model": "lenet", "block": name, "milliseconds": value} for name, value in (("a", 4.0), ("b", 3.25))]
    rows = [(configuration(), runs()), (replace(configuration("pipeline"), stages=2), runs("pipeline", count=2))]
    made = {(outcome.configuration, outcome.block): outcome for outcome in report_of(*rows).outcomes}
    asked, commands = answers(blocks=blocks), []
    monkeypatch.setattr(
        session, "run_once", lambda row, block, *_: commands.append(row.command) or made[row.name, block]
    )
    planned = replace(report_of(*rows, micro_batches=[3]), outcomes=(), probe=None)
    report = run_comparison(planned, [], output_to(tmp_path))
    (flags,) = asked
    assert flags[flags.index("--cut") + 1] == "34"  # images of a micro-batch, of 100
    assert {command[2:] for command in commands} == {(), ("--split-at", "b")} and len(commands) == 6
    assert [row.command for row in report.plan] == [configured.command for configured, _ in rows]


def test_the_probe_is_asked_for_what_the_rows_and_the_projection_need(planned, answers):
    run, _ = planned
    asked = answers()
    for settings in ({}, {"project": [2, 4]}, {"project": [2], "link_gbps": 5.0}):
        run(**settings)
    plain = "--epochs 3 --model lenet --batch-size 100 --num-workers 0 --device cpu --threads 1 --precision fp32"
    assert asked[0] == f"{plain} --sizes 100".split()
    assert asked[1][-6:] == ["--sizes", "25", "50", "100", "--ceiling", "--link"]
    assert "--link" in asked[2]  # what a message takes to start is not given
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


def test_an_interrupted_comparison_leaves_what_was_measured_and_goes_on_where_it_was(planned, tmp_path, capsys):
    (run, calls), file = planned, tmp_path / "results.json"
    run(stop=3)
    report = read_results(file)
    assert len(report.outcomes) == 2 and "INCOMPLETE: interrupted after 2 of 4 runs" in terminal_text(analyse(report))
    assert "no interval: too few runs" in [entry.result for entry in analyse(report).rows]
    report = run(resume=file)
    assert [call[:3] for call in calls] == [("single", 2, 43), ("ddp", 2, 43)]
    assert len(report.outcomes) == 4 and "4 runs: 2 rows x 2 blocks, of which 2 are kept" in capsys.readouterr().out
    first = replace(report.outcomes[0], status="failed")  # is run again
    write_results(replace(report, outcomes=(first, *report.outcomes[1:])), tmp_path)
    assert len(run(resume=file).outcomes) == 4 and [call[:2] for call in calls] == [("ddp", 1)]
    for name, value, change in (("epochs", 9, "epochs 3 → 9"), ("seed", 1, "seed 42 → 1")):
        with pytest.raises(SuiteError, match=f"cannot resume: .*{change}"):
            run(resume=file, **{name: value})


def test_only_torn_files_of_its_own_are_deleted(planned, tmp_path):
    run, _ = planned
    (tmp_path / "runs").mkdir()
    own = ["results.jsonab_12cd3.part", "runs/ddp-2.jsonabcdefgh.part"]
    foreign = ["half-a-download.part", "results.json.part", "runs/mp-2.jsonabcdefgh.part"]
    for name in own + foreign:
        (tmp_path / name).write_text("torn")
    run()
    assert not any((tmp_path / name).exists() for name in own) and all((tmp_path / name).exists() for name in foreign)


# ---- the files of a command


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(run): `compare_parallel.py`, with this in the place of its plan and its runs, and without figures."""
    monkeypatch.setattr(compare_parallel, "plan_comparison", lambda *_: (None, []))
    monkeypatch.setattr(shown.figures, "draw_all", lambda *_: [])

    def started(run, *flags, raises=None):
        monkeypatch.setattr(compare_parallel, "run_comparison", lambda *_: run())
        monkeypatch.setattr(sys, "argv", ["compare_parallel.py", *map(str, flags or ("--output-dir", tmp_path))])
        with pytest.raises(raises) if raises else contextlib.nullcontext():
            compare_parallel.main()

    return started


def interrupt(run, stop):
    run(stop=stop)
    raise KeyboardInterrupt


def test_what_was_measured_is_shown_when_the_comparison_is_interrupted(planned, started, tmp_path, capsys):
    run, _ = planned
    started(lambda: interrupt(run, 1), raises=KeyboardInterrupt)
    assert "Interrupted before the first run had ended" in capsys.readouterr().err
    assert not (tmp_path / "report.md").exists()
    assert len(run(resume=tmp_path / "results.json").outcomes) == 4
    started(lambda: interrupt(run, 3), raises=KeyboardInterrupt)
    told = capsys.readouterr()
    assert "INCOMPLETE: interrupted after 2 of 4 runs" in told.out and "--resume to continue" in told.err
    assert {"report.md", "results.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_a_helper_that_failed_is_no_interruption_and_a_failing_row_leaves_the_others(started, tmp_path, capsys):
    def fails():
        raise HelperFailed(FAILED)

    started(fails, raises=HelperFailed)
    assert "Interrupted" not in capsys.readouterr().err
    report = report_of((configuration("accelerate"), ["failed"]), (configuration("mp"), runs("mp")))
    started(lambda: write_results(report, tmp_path) or report, raises=SystemExit)
    told = " ".join(capsys.readouterr().out.split())
    assert "read accelerate-1.log: “ACCELERATE” failed." in told and "MP" in told
    assert "the baseline, single, is not among the methods" in (tmp_path / "report.md").read_text()


def test_a_new_comparison_keeps_what_an_earlier_one_left(planned, started, tmp_path, capsys):
    run, _ = planned
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


def test_what_is_not_this_programs_is_kept_too_and_nothing_of_a_comparison_without_outcome(planned, started, tmp_path):
    run, _ = planned
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


def test_drawing_a_comparison_again_keeps_what_lies_there_and_copies_every_byte(planned, started, tmp_path):
    run, _ = planned
    started(run)
    file = tmp_path / "old.json"
    file.write_bytes((tmp_path / "results.json").read_bytes())
    for _ in range(2):
        started(None, "--from", file)
        (file,) = tmp_path.glob("earlier-*/results.json")  # what is drawn where it lies is no new comparison
    assert len([*tmp_path.rglob("earlier-*")]) == 1
    started(None, "--from", file, "--output-dir", tmp_path / "copy")
    assert (tmp_path / "copy" / "results.json").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("source", [False, True])
def test_nobody_else_writes_to_a_directory_until_all_is_shown(source, started, tmp_path, monkeypatch):
    directory, made, seen = tmp_path / "out", report_of((configuration(), runs())), []

    def show(*_):
        with pytest.raises(SuiteError, match="another comparison is writing") as caught, only_writer(directory):
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


def test_the_answer_and_all_texts_come_before_the_figures(tmp_path, monkeypatch, capsys):
    def draw_all(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shown.figures, "draw_all", draw_all)
    write_results(report_of((configuration(), runs())), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        shown.present(tmp_path)
    assert "SINGLE" in capsys.readouterr().out
    assert {"results.csv", "results.tex"} <= {file.name for file in tmp_path.iterdir()}


# ---- as many blocks as it takes


@pytest.fixture
def blocks(monkeypatch, tmp_path, answers):
    """Run a comparison of two rows whose blocks of 20 s take the given seconds per epoch, by block; return the report.

    foreign: by block, how many of the two cores other programs keep busy.
    """
    rows = [(configuration(), runs()), (configuration("ddp"), runs("ddp"))]
    (first, *_, last), clock = report_of(*rows).outcomes, iter(range(0, 10**6, 20))
    monkeypatch.setattr(session.time, "perf_counter", lambda: float(next(clock)))
    answers()

    def run(seconds, foreign=(), stop_after=10**6, resume=None, **settings):
        def run_once(row, block, seed, *_):
            if block > stop_after:
                raise KeyboardInterrupt
            template, value = (first, 2.0) if row.name == "single" else (last, seconds(block))
            result = each_epoch(template.result, train_seconds=value)
            return replace(template, block=block, result=result, foreign_cores=dict(foreign).get(block, 0.0))

        monkeypatch.setattr(session, "run_once", run_once)
        order = tuple(make_order(["single", "ddp"], settings.get("repeats") or 3, 42))
        report = replace(report_of(*rows, **settings), order=order, outcomes=(), probe=None)
        report.environment["cores"] = 2
        return run_comparison(continued(report, resume) if resume else report, [], output_to(tmp_path))

    return run


def decided(block):
    """Half the baseline's 2 s, and a little noise."""
    return 1.0 + 0.001 * (block % 3)


def noisy(block):
    """Half the baseline's 2 s, with a noise of some 4%."""
    return 1.0 + 0.04 * (-1) ** block


def undecided(block):
    """Around the baseline's 2 s, far from it in every block."""
    return 2.0 + 0.5 * (-1) ** block


@pytest.mark.parametrize(
    "seconds, settings, whole, looks",
    [
        (decided, {"budget": 200.0}, 3, [(3, 0.3)]),
        (undecided, {"budget": 1.0}, 3, [(3, 1.0)]),  # however short
        (undecided, {"budget": 130.0}, 6, [(3, 60 / 130), (4, 80 / 130), (5, 100 / 130), (6, 1.0)]),  # a 7th: 140 s
        (undecided, {"repeats": 4}, 4, []),
        (noisy, {"margin": 0.5}, 5, []),
        (noisy, {"margin": 0.05, "budget": 130.0}, 6, []),
        (noisy, {"margin": 0.05, "budget": 30.0}, 5, []),
    ],
)
def test_how_many_blocks_are_run(seconds, settings, whole, looks, blocks):
    report = blocks(seconds, **{"repeats": None, **settings})
    assert (len(report.whole_blocks), [*report.looks]) == (whole, looks)
    assert report.order == tuple(make_order(["single", "ddp"], whole, 42))


def test_a_budget_ends_as_soon_as_every_row_is_decided(blocks, tmp_path, capsys):
    report = blocks(decided, repeats=None, budget=200.0)
    assert read_results(tmp_path / "results.json") == report
    assert "3 runs each" in report.title and "INCOMPLETE" not in terminal_text(analyse(report))
    early = analyse(report).rows[1].standing.speed_up
    last = analyse(replace(report, looks=())).rows[1].standing.speed_up
    assert early.value == last.value and early.low < last.low  # a look so early may take little of the error
    output = capsys.readouterr().out
    assert "The budget of 3 min allows about 27 blocks (at least 3); at a noise of 4% they detect" in output
    assert "for the 6 runs planned so far" in output and "from here on" not in output
    assert "to stop once every row is decided: 1." in " ".join(definitions(report))
    blocks(decided, repeats=None, budget=1.0)
    assert "is too short for 3 blocks" in capsys.readouterr().out


def test_looks_go_on_where_a_comparison_was_interrupted(blocks, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        blocks(undecided, repeats=None, budget=130.0, stop_after=4)
    report = blocks(undecided, repeats=None, budget=130.0, resume=tmp_path / "results.json")
    assert [look[0] for look in report.looks] == [3, 4, 5, 6] and report.looks[-1][1] == 1.0


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
    disturbed = blocks(noisy, repeats=None, margin=0.05, foreign={2: 0.9, 7: 0.9})
    assert disturbed.set_aside == (2, 7) and half_width(disturbed) <= math.log(1.05)


def test_a_disturbed_block_is_run_again_and_does_not_count_but_for_a_failure_in_it(blocks, capsys):
    report = blocks(decided, repeats=3, foreign={2: 0.9})
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


def test_a_machine_that_stays_disturbed_is_not_waited_for(blocks):
    report = blocks(decided, repeats=3, foreign={block: 0.3 + 0.1 * block for block in range(1, 99)})
    assert (len(report.whole_blocks), report.set_aside) == (5, (4, 5))  # those that were disturbed most
    (aside,) = faults(analyse(report))  # nothing was run instead of the last
    assert aside == "Blocks 4, 5 of 5 are not counted: other programs kept up to 0.8 of 2 cores busy."
    assert report.rows[1].disturbed and analyse(report).rows[1].result == "disturbed"


@pytest.mark.parametrize("seconds, wanted", [((2.0, 2.9, 1.4), True), ((1.0, 1.01, 0.99), False)])
@pytest.mark.parametrize("name, value", [("num_workers", 2), ("model", "mlp")])
def test_the_values_of_a_sweep_are_decided_too(name, value, seconds, wanted):
    values = [{name: {"num_workers": 0, "model": "lenet"}[name]}, {name: value}]
    first, second = (configuration(values=each, **each) for each in values)
    report = report_of((first, runs()), (second, runs(seconds=seconds)), repeats=None, budget=100.0)
    more = with_another_block(report, 30.0, 10.0).order[len(report.order) :]
    names = {row.name for row in report.plan} if wanted and name != "model" else set()
    assert {name for _, name in more} == names  # models are told apart by what they learn


def test_a_row_that_is_decided_is_not_run_again():
    rows = ("single", (2.0, 2.0, 2.0)), ("ddp", (0.02, 0.02, 0.02)), ("fsdp", (2.0, 2.9, 1.4))
    report = report_of(
        *((configuration(name), runs(name, seconds)) for name, seconds in rows), repeats=None, budget=100.0
    )
    longer = with_another_block(report, 40.0, 30.0)
    assert {*longer.order[len(report.order) :]} == {(4, "single"), (4, "fsdp")}  # whose block takes 20 s of 30
    assert with_another_block(report, 85.0, 30.0) == report
    last, earlier = (look(report, used, 30.0).looks for used in (85.0, 75.0))
    assert (last, earlier) == (((3, 1.0),), ((3, 0.75),))
    disturbed = [replace(run, foreign_cores=1.0 if run.block == 2 else 0.0) for run in report.outcomes]
    again = with_another_block(replace(report, outcomes=tuple(disturbed)), 40.0, 30.0)
    assert {*again.order[len(report.order) :]} == {(4, "single"), (4, "ddp"), (4, "fsdp")}
