"""Proof by intervention: the remedy for each cause, the predicted gain and the measured one."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

import compare_parallel
from comparison.judge.analysis import analyse
from comparison.judge.remedies import Proof, find_proofs, find_remedies, plan_proof
from comparison.judge.statistics import Excess
from comparison.results_file import write_results
from comparison.show import figures
from comparison.show.report import PROOF, present
from comparison.show.terminal import terminal_text
from comparison.show.verdict import tell_proof, tell_proofs
from tests.reports import (
    configuration,
    ddp,
    each_epoch,
    each_run,
    halves,
    pipeline,
    rank,
    report_of,
    runs,
    script,
    single,
)

NEAR = (1.0, 1.01, 0.99)


def remedies(*rows, **settings):
    return find_remedies(analyse(report_of(*rows, **settings)))


def slow(phase, **values):
    """Two ranks that halve every phase, with 6 ms more in one."""
    own = rank(halves(**{phase: halves()[phase] + 6.0}))
    return ddp(own, own, **values)


WORKERS = {"config": {**runs()[0].config, "loader": "workers"}, "workers_per_process": 1}


STAGE = rank(halves(forward=11.0, exchange=5.0))


@pytest.mark.parametrize(
    "row, scaling, cause",
    [
        (ddp(rank(halves()), rank(halves())), "strong", None),
        (ddp(*[rank(halves(update=1.0))] * 2), "strong", "update"),  # costs nothing
        (pipeline(STAGE, STAGE), "strong", "forward"),  # a stage already has the whole batch
        (slow("update"), "weak", "update"),  # a device has the baseline's batch
        (ddp(rank(halves(exchange=6.0)), rank(halves(forward=11.0))), "strong", "straggler"),
    ],
)
def test_no_remedy_without_a_cause_a_cost_or_a_known_remedy(row, scaling, cause):
    analysis = analyse(report_of(single(), row, scaling=scaling))
    kinds = [found.kind for found in analysis.rows[1].causes]
    assert kinds == [] if cause is None else cause in kinds
    assert find_remedies(analysis) == [] and plan_proof(analysis) is None


def test_flags_of_the_suite_are_no_remedy_for_a_script():
    mine, two = script("mine", 20.0), script("two", 15.0, devices=("cpu", "cpu"), world_size=2)
    analysis = analyse(report_of(single(), mine, two, warmup=10))
    assert any(entry.causes for entry in analysis.rows[1:]) and find_remedies(analysis) == []


LARGER = "batch 200", ("--batch-size", "200")


@pytest.mark.parametrize(
    "phase, change, flags",
    [("exchange", "no exchange", ("--no-sync",)), ("forward", *LARGER), ("backward", *LARGER), ("update", *LARGER)],
)
def test_the_remedy_of_a_phase(phase, change, flags):
    (remedy,) = remedies(single(), slow(phase))
    assert (remedy.cause, remedy.change, remedy.flags) == (phase, change, flags)
    assert remedy.predicted.value == pytest.approx(6.0) and remedy.predicted.low > 5.5
    assert remedy.configuration.command == (*remedy.row.command, *flags)
    assert (remedy.configuration.role, remedy.configuration.against) == ("remedy", "ddp")


def test_the_remedy_of_waiting_for_workers_is_the_resident_loader():
    (remedy,) = remedies(single(**{**WORKERS, "workers_per_process": 2}), slow("data", **WORKERS))
    assert (remedy.cause, remedy.change) == ("data", "loader resident")
    assert remedy.flags == ("--loader", "resident", "--num-workers", "0")
    assert remedy.predicted.value == pytest.approx(6.5)  # all waiting, not only the excess
    probe = {"resident_images_per_second": 50_000.0}  # a rank's 50 images in 1 ms
    (remedy,) = remedies(single(**{**WORKERS, "workers_per_process": 2}), slow("data", **WORKERS), probe=probe)
    assert remedy.predicted.value == pytest.approx(5.5)
    resident = {"config": {**runs()[0].config, "loader": "resident"}}
    assert remedies(single(**resident), slow("data", **resident)) == []


def test_the_baseline_has_a_remedy_too():
    (remedy,) = remedies((configuration(), runs(phases=(40.0, 0.5, 20.0, 40.0, 3.0))))
    assert (remedy.cause, remedy.change) == ("waiting for data", "loader resident")
    assert remedy.predicted == Excess("data", 40.0, 40.0, 40.0)


def test_the_remedy_of_a_backward_pass_with_exchange_is_no_exchange():
    def of(method, backward, **values):
        phases = (1.0, 1.0, 10.0, backward, 8.0)
        return configuration(method), runs(method, (0.2, 0.202, 0.198), phases=phases, **values)

    (remedy,) = remedies(of("single", 20.0), of("ddp", 20.0, count=2, world_size=2))
    assert (remedy.cause, remedy.change) == ("backward", "no exchange")


def test_the_remedy_of_too_many_workers_is_one_for_each_process():
    values = {**WORKERS, "workers_per_process": 4}

    def queues(row, share):
        return row, each_run(rank(halves(), queued=share), **values)

    crowded = queues(configuration(num_workers=4), 0.5)
    (remedy,) = remedies(crowded)
    assert (remedy.cause, remedy.change, remedy.flags) == ("too many workers", "workers 1", ("--num-workers", "1"))
    assert remedy.predicted.value == pytest.approx(0.5 * analyse(report_of(crowded)).rows[0].summary.step_milliseconds)
    (proof,) = find_proofs(analyse(report_of(crowded)), report_of(crowded, queues(remedy.configuration, 0.1)))
    assert proof.measured.value == pytest.approx(0.8 * remedy.predicted.value)
    ranks = [rank(halves(), queued=share) for share in (0.5, 0.5, 0.2)]  # whose mean counts, not the one in the middle
    unlike = crowded[0], each_run(*ranks, **values, world_size=1)
    (proof,) = find_proofs(analyse(report_of(crowded)), report_of(unlike, queues(remedy.configuration, 0.0)))
    assert proof.measured.value == pytest.approx(0.8 * remedy.predicted.value, rel=0.01)


def test_the_largest_cause_with_a_remedy_is_chosen():
    own = rank(halves(exchange=5.0, update=halves()["update"] + 9.0, transfer=halves()["transfer"] + 12.0))
    (remedy,) = remedies(single(), ddp(own, own))
    assert remedy.cause == "update"  # the transfer is larger but has no remedy


# ---- the proof


def test_a_proof_runs_rows_with_remedy_and_sham_in_new_blocks():
    report = report_of(single(), slow("exchange"), repeats=None, budget=300.0, check_maths=True, prove=True)
    proof = plan_proof(analyse(report))
    assert [row.name for row in proof.plan] == ["ddp", "ddp-no-exchange", "ddp-again"]
    assert sorted(proof.order) == [
        (block, name) for block in (1, 2, 3) for name in ("ddp", "ddp-again", "ddp-no-exchange")
    ]
    assert proof.settings["repeats"] == 3
    assert (proof.settings["budget"], proof.settings["check_maths"], proof.settings["prove"]) == (None, False, None)
    assert proof.probe == report.probe and proof.outcomes == ()


@pytest.mark.parametrize(
    "rows, settings, why",
    [
        ((single(), slow("exchange")), {"foreign_cores": {"ddp": 0.5}}, "disturbed"),
        ((single(), ddp(rank(halves()), rank(halves()))), {}, "no row has a cause"),
    ],
)
def test_a_missing_proof_is_explained_if_requested(rows, settings, why):
    analysis = analyse(report_of(*rows, prove=True, **settings))
    assert plan_proof(analysis) is None
    (sentence,) = tell_proofs(analysis, [])
    assert why in sentence and sentence in terminal_text(analysis)
    assert tell_proofs(analyse(report_of(*rows, **settings)), []) == []  # not requested
    assert tell_proofs(analyse(report_of(single(), slow("exchange"), prove=True)), []) == []  # not yet


def steps_of(remedy_row, changed, **blocks):
    """Runs of two ranks that halve every phase; changed: the phases that differ."""
    own = rank(halves(**changed))
    return remedy_row, each_run(own, own, **blocks)


def proved(remedied, sham=None, busy=0.0, **blocks):
    """Prove an exchange of 6 ms. remedied, sham: changed phases of the two rows. blocks: as for each_run."""
    analysis = analyse(report_of(single(), slow("exchange")))
    (remedy,) = find_remedies(analysis)
    slowed = {"exchange": 6.0}
    proof = report_of(
        steps_of(remedy.row, slowed, **blocks),
        steps_of(remedy.configuration, remedied, **blocks),
        steps_of(remedy.sham, sham or slowed, **blocks),
        foreign_cores={"ddp": busy},
    )
    (result,) = find_proofs(analysis, proof)
    return result


@pytest.mark.parametrize(
    "rows, outcome",
    [
        ({"remedied": {"exchange": 6.0}}, "not shorter"),
        ({"remedied": {"exchange": 6.0, "backward": 4.0}}, "not shorter"),  # only the step is
        ({"remedied": {"exchange": 0.0, "backward": 8.3}}, "elsewhere"),  # more than a quarter of the gain
        ({"remedied": {"exchange": 0.0, "backward": 8.7}}, "proved"),
        ({"remedied": {"exchange": 0.0}, "jitter": (1.0, 1.1, 0.9)}, "proved"),  # perhaps less, perhaps more
        ({"remedied": {"exchange": 0.0}, "sham": {"exchange": 0.0}}, "sham"),
        ({"remedied": {"exchange": 0.0}, "sham": {"exchange": 9.0}}, "sham"),
        ({"remedied": {"exchange": 0.0}, "sham": {"exchange": 5.0}}, "proved"),  # a sixth of the gain
        ({"remedied": {"exchange": 0.0}, "jitter": (1.0,)}, "one block"),
    ],
)
def test_a_proof_needs_the_predicted_gain_in_the_blamed_phase(rows, outcome):
    assert proved(**rows).outcome == outcome


def test_what_else_changed_is_told_with_its_sign_and_that_nothing_was_measured():
    shorter, longer = (tell_proof(proved({"exchange": 0.0, "backward": part})) for part in (8.3, 11.7))
    assert "(backward -1.7 ms)" in shorter and "(backward +1.7 ms)" in longer
    assert tell_proof(proved({"exchange": 0.0}, busy=0.9)).endswith("not measured undisturbed.")


@pytest.mark.parametrize("low, outcome", [(4.0, "less"), (4.2, "proved"), (8.0, "proved"), (8.1, "more")])
def test_a_gain_is_other_than_predicted_if_the_intervals_are_apart_by_more_than_15_percent(low, outcome):
    (remedy,) = remedies(single(), slow("exchange"))
    remedy = replace(remedy, predicted=Excess("exchange", 6.0, 5.0, 7.0))
    sham = Excess("exchange", 0.0, -1.0, 1.0)
    assert Proof(remedy, Excess("exchange", low + 0.1, low, low + 0.2), sham).outcome == outcome


def test_a_proof_needs_a_sham():
    analysis = analyse(report_of(single(), slow("exchange")))
    (remedy,) = find_remedies(analysis)
    rows = steps_of(remedy.row, {"exchange": 6.0}), steps_of(remedy.configuration, {"exchange": 0.0})
    (result,) = find_proofs(analysis, report_of(*rows))
    assert (result.measured.value, result.outcome) == (pytest.approx(6.0), "not measured")


def test_the_gain_of_a_larger_batch_is_per_image():
    analysis = analyse(report_of(single(), slow("forward")))
    (remedy,) = find_remedies(analysis)
    row, results = steps_of(remedy.configuration, {"forward": 16.0})  # twice as many images
    twice = [each_epoch(result, samples=2 * result.epochs[0].samples) for result in results]
    (result,) = find_proofs(analysis, report_of(steps_of(remedy.row, {"forward": 11.0}), (row, twice)))
    assert result.measured.value == pytest.approx(3.0)


def test_the_comparison_and_its_proof_are_shown_together(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(figures, "draw_all", lambda *_: [])
    report = report_of(single(), slow("exchange"))
    (remedy,) = find_remedies(analyse(report))
    (tmp_path / PROOF).mkdir()
    rows = steps_of(remedy.row, {"exchange": 6.0}), steps_of(remedy.configuration, {"exchange": 0.0})
    for shown, directory in ((report, tmp_path), (report_of(*rows), tmp_path / PROOF)):
        write_results(shown, directory)
    present(tmp_path)
    sentence = "DDP, cause “exchange”, rerun with no exchange: exchange takes 6.0 ± "
    assert sentence in " ".join(capsys.readouterr().out.split()) and sentence in (tmp_path / "report.md").read_text()


def test_an_interrupted_proof_is_resumed(monkeypatch, tmp_path):
    report, ran = report_of(single(), slow("exchange"), prove=True), []

    def run_comparison(wanted, flags, output):
        ran.append((output.directory.name, len(wanted.outcomes)))
        write_results(wanted, output.directory)
        return wanted

    monkeypatch.setattr(compare_parallel, "run_comparison", run_comparison)
    output = compare_parallel.output_to(Mock(directory=tmp_path))
    compare_parallel.measure(report, [], output, resume=False, language="en")
    proof = plan_proof(analyse(report))
    whole = report_of(*((row, runs("ddp", NEAR)) for row in proof.plan)).outcomes
    done = [run for run in whole if run.block == 1 or run.configuration == proof.plan[0].name]
    write_results(replace(proof, outcomes=tuple(done)), tmp_path / PROOF)
    compare_parallel.measure(report, [], output, resume=True, language="en")
    assert [count for name, count in ran if name == PROOF] == [0, 3]  # the first block


@pytest.mark.slow
def test_causes_are_proved_from_start_to_end(project, data_root, tmp_path):
    small = "--dataset synthetic-mnist --train-size 960 --batch-size 48 --num-workers 0 --epochs 3 --repeats 1"
    flags = *small.split(), "--methods", "single", "--data-root", data_root, "--output-dir", tmp_path
    done = project("compare_parallel.py", *flags, "--prove", tiny=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if (tmp_path / PROOF).exists():  # usually one device waits for its images for a fifth of the time
        sentence = "one device, cause “waiting for data”, rerun with loader resident: data takes "
        assert sentence in " ".join(done.stdout.split())
        shown = "--from", tmp_path / "results.json", "--output-dir", tmp_path / "copy"
        again = project("compare_parallel.py", *shown, tiny=False)
        assert sentence in " ".join(again.stdout.split())
