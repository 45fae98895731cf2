"""The flags of compare_parallel.py: what they mean, and which are refused."""

import re
from contextlib import nullcontext

import pytest

from common.errors import USAGE, SuiteError
from comparison.run.forecast import SCRIPT_SECONDS, checks_maths, guesses_of


@pytest.mark.parametrize(
    "flags, repeats, budget",
    [
        ("", None, 300),
        ("--repeats 4", 4, None),
        ("--margin 5", None, None),
        ("--budget 90", None, 90),
        ("--budget 90s", None, 90),
        ("--budget 20m", None, 1200),
        ("--budget 1.5h", None, 5400),
    ],
)
def test_budget_is_the_default_and_accepts_units(flags, repeats, budget, planned):
    report = planned(f"--equal-within 2% {flags}")
    settings = report.settings
    assert (settings["repeats"], settings["budget"], settings["equal_within"]) == (repeats, budget, 0.02)
    assert not {"--budget", "--repeats", "--equal-within"} & {*report.plan[0].command}


@pytest.mark.parametrize(
    "gpus, flags, loader",
    [
        (2, "", "resident"),
        (0, "", "resident"),
        (0, "--dataset cifar10 --nproc 8", "workers"),  # needs 10 of 4 GB
        (2, "--dataset cifar10 --nproc 2", "resident"),  # each process has a GPU's memory
        (2, "--loader workers", "workers"),
        (2, "--num-workers 4", "workers"),
        (2, "--methods single:num-workers=2", "workers"),
        (2, "--allow-unequal --methods single single:num-workers=2", "workers"),
        (0, "--recipe fast", "resident"),
    ],
)
def test_all_rows_get_the_same_loader(gpus, flags, loader, planned):
    report = planned(flags if "--methods" in flags else f"--methods single ddp {flags}", gpus, memory=4e9)
    assert report.settings["loader"] == loader
    typed = [] if "--recipe" in flags else [loader]  # the recipe sets it
    for row in report.plan:
        assert [row.command[place + 1] for place, flag in enumerate(row.command) if flag == "--loader"] == typed


@pytest.mark.parametrize(
    "gpus, flags",
    [
        (0, "--methods ddp"),  # a single row
        (0, "--methods single ddp --predict ddp=1.80"),
        (0, "--baseline ddp --predict fsdp=.5"),
        (2, "--fit-batch"),
        (0, "--fit-batch --memory-limit 2GiB"),
        (2, "--project 4"),
        (0, "--project 4 --scaling weak"),
        (1, "--project 4x1 --link-gbps 200 --link-ms 1"),
    ],
)
def test_valid_combinations_of_flags(gpus, flags, planned):
    report = planned(flags, gpus)
    limit = "--memory-limit 2147483648"
    assert all((limit in " ".join(row.command)) == ("2GiB" in flags) for row in report.plan)
    assert report.settings["predict"] == re.findall(r"ddp=1.8|fsdp=0.5", flags.replace("=.", "=0."))


@pytest.mark.parametrize("flags, steps", [("", 0.5), ("--steps 50", 50), ("--steps 2s", 2.0), ("--steps 1m", 60.0)])
def test_scripts_are_compared_alone_or_with_methods(flags, steps, planned):
    report = planned(f"--script 'a=python a.py' 'python b.py' 'c=sh c.sh' {flags}")
    assert [row.label for row in report.plan] == ["a", "b", "c"] and report.only_scripts
    assert (report.settings["steps"], type(report.settings["steps"])) == (steps, type(steps))
    both = planned(f"--script 'a=python a.py' --methods single {flags}")
    assert [row.method for row in both.plan] == ["single", "script"]
    crowded = planned(f"--script 'python a.py' --methods single --threads-per-device 4 {flags}")  # more than cores
    assert (crowded.first.model, crowded.first.batch_size, crowded.first.threads) == ("vgg", 128, 4)


def test_scripts_run_where_no_method_can(planned):
    report = planned("--methods ddp --nproc 2 --script 'a=python a.py' --check-maths", gpus=1)
    assert [bool(row.skip) for row in report.plan] == [True, False] and not report.able
    assert guesses_of(report) == {"ddp": 0.0, "script-a": SCRIPT_SECONDS} and not checks_maths(report)


REFUSED = {  # (GPUs, flags) → error
    (0, "--methods dpp"): "did you mean",
    (0, "--methods ddp:wrokers=4"): "unknown name 'wrokers'",
    (0, "--methods ddp:num-workers=-1"): "from 0 to",
    **{
        (0, f"--project {text}"): "argument --project: needs a number of devices such as 8"
        for text in ("1", "1x1", "x")
    },
    (0, "--baseline singel"): "did you mean single?",
    (0, "--baseline ddp-no-sync"): "argument --baseline: ddp-no-sync trains nothing that could be a baseline",
    (0, "--repeats 3 --budget 5m"): "--repeats and --budget exclude each other",
    (0, "--repeats 3 --margin 5"): "--repeats and --margin exclude each other",
    (0, "--budget soon"): "needs a time above 0, e.g. 90s, 20m or 2h, found 'soon'",
    (0, "--equal-within 0%"): "percent above 0 and below 100",
    (0, "--from results.json --project 2"): "--from shows what was measured; leave out --project",
    (0, "--from x.json --equal-within 3"): "leave out --equal-within",  # the default: that of the file may differ
    (
        0,
        "--script python --nproc 2 4",
    ): "--nproc is for the variant of a single --script with ranks; found 1 script, --nproc 2 4",
    (0, "--script python a=python --nproc 2"): "found 2 scripts, --nproc 2; give one number, or none",
    (0, "--diff a.json b.json --lang zh"): "--diff shows what was measured; leave out --lang",
    (0, "--dataset mnist --image-size 9"): "--image-size is for folders",
    **{
        (0, f"{flags} --lr-milestones 3"): "are those of --schedule steps; found --schedule linear; leave them out"
        for flags in ("--schedule linear", "--recipe fast")
    },
    (2, "--compile --cuda-graph"): "--compile and --cuda-graph exclude each other",
    (2, "--methods single single:accumulate=2 --cuda-graph"): "--accumulate does not go with --cuda-graph; found both",
    **{(0, f"--predict {text}"): "argument --predict: " for text in ("ddp", "ddp=0", "ddp=fast", "spp=2", "=2")},
    (0, "--methods single ddp --baseline dp"): "--baseline dp matches no row of this comparison; the rows are ddp, s",
    (0, "--methods single --predict ddp=2"): "--predict ddp=2 matches no row",
    (0, "--methods ddp --predict ddp=2"): "--predict ddp=2 matches no row",
    (0, "--methods single --predict single=2"): "--predict single=2 matches no row",
    (0, "--methods single --nproc 1 2"): "--nproc changes no row of this comparison; the rows are single, the base",
    (0, "--methods single ddp --micro-batches 1 2"): "--micro-batches changes no row",
    (0, "--methods single fsdp --bucket-mb 1"): "--bucket-mb changes no row",
    (0, "--methods single --nodes 2"): "--nodes changes no row",
    (0, "--script 'python a.py' --no-tips"): "--no-tips does not apply to a --script",
    (0, "--fit-batch --max-steps 9"): "leave out --max-steps; --train-size N makes it shorter",
    (0, "--fit-batch --batch-size 64 128"): "leave out several values of --batch-size",
    (0, "--fit-batch --scaling weak"): "leave out --scaling weak",
    (0, "--fit-batch --project 4"): "leave out --project",
    (0, "--fit-batch --against ."): "leave out --against",
    (0, "--fit-batch --prove"): "leave out --prove",
    (0, "--fit-batch --recipe fast --dataset mnist"): "leave out --recipe fast, which sets --max-steps",
    (0, "--fit-batch --methods single ddp:batch-size=64"): "leave out ddp:batch-size",
    (0, "--fit-batch"): "--fit-batch on a CPU needs a limit; found none; type e.g. --memory-limit 2GiB",
    (0, "--methods single single:cuda-graph"): "--cuda-graph needs a GPU; the rows run on a CPU; leave it out",
    (2, "--memory-limit 2GiB"): "--memory-limit is for a CPU; found 2 GPUs",
    (1, "--project 2"): "--project 2 needs the speed between GPUs; found 1 GPU; type e.g. --project 8x1 --link-gbps G",
    (0, "--project 2x1 4x2"): "--project 2x1 needs the speed of the network between the machines; found none; measure",
    (0, "--project 2 --link-ms 1"): "describe the network between machines; found no machines in --project",
    (2, "--project 4 --nodes 1 2 --dry-run"): "starts from one machine; found --nodes",
    (0, "--script 'python a.py' --lr 0.1"): "--lr does not apply to a --script; leave it out",
    (0, "--script 'python a.py' --epochs 10"): "--epochs does not apply to a --script; leave it out",  # its default
    (0, "--script 'python a.py' --methods single --target-accuracy 0.9"): "--target-accuracy does not apply to a",
    (0, "--script ''"): 'needs a command, e.g. "python train.py"',
    (0, "--steps 5"): "--steps needs a --script; give one",
    (0, "--script 'python a.py' --script 'python b/a.py'"): "two scripts have one name; found a twice",
    (
        0,
        "--project 3x1 --link-gbps 1 --methods single",
    ): "--batch-size is a total and must divide by the number of processes; found 128 for 3",
}


@pytest.mark.parametrize(
    "flags, gpus, crowded",
    [
        ("--nproc 1 4", 0, "DDP ×4, gloo” has 4 threads on 2 cores, so its times do not show the speed of 4 devices"),
        ("--nproc 1 2", 0, ""),
        ("--nproc 2 --threads-per-device 2", 0, "DDP ×2, gloo” has 4 threads on 2 cores, "),
        ("--methods single --threads-per-device 3", 0, "one device” has 3 threads on 2 cores, "),
        ("--methods dp --baseline dp --nproc 4", 0, ""),  # one process
        ("--methods pipeline --nproc 3", 0, "pipeline ×3, 4 micro-batches” has 3 threads on 2 cores"),
        ("--nproc 1 4", 4, ""),
    ],
)
def test_more_threads_than_cores_are_warned_of(flags, gpus, crowded, planned, capsys):
    methods = "" if "--methods" in flags else "--methods single ddp"
    planned(f"{flags} {methods} --batch-size 64 --dataset synthetic-mnist", gpus)
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: “{crowded}") if crowded else not warning


@pytest.mark.parametrize("gpus, flags", REFUSED)
def test_invalid_flags_are_refused(gpus, flags, planned):
    with pytest.raises(SuiteError, match=re.escape(REFUSED[gpus, flags])) as refused:
        planned(flags, gpus)
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize("limit, refused", [("1", True), ("2", False), ("0", False), ("", False)])
def test_rows_with_more_threads_than_openmp_may_start_are_refused(limit, refused, planned, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    planned("--methods single ddp")
    with pytest.raises(SuiteError, match="needs 2 threads .*LIMIT=1; unset") if refused else nullcontext():
        planned("--methods single single-all-cores")
