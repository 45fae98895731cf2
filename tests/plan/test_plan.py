"""Which rows a comparison has, what each runs, and which comparisons are refused."""

from dataclasses import replace
from itertools import product

import pytest
from msgspec import convert

from common.errors import USAGE, SuiteError
from common.files.probe import Probe
from common.settings.config import MODELS
from comparison.judge.fairness import refuse_unequal
from comparison.methods import METHODS, Machine
from comparison.plan.flags import parse_method
from comparison.plan.plan import make_plan, with_measured_cut
from comparison.plan.scripts import parse_script, script_rows, variants_of
from comparison.rows import Row, baseline_of
from tests.fixtures import ALL, flag, plan, plan_arguments
from tests.reports import PROBE


def rows_of(typed, gpus=0, **values):
    """Return the rows of --methods with these words."""
    return plan(gpus, methods=[choice for text in typed.split() for choice in parse_method(text)], **values)


def refuse(rows, baseline="single", scaling="strong"):
    refuse_unequal(list(rows.values()), baseline, scaling)


def test_default_rows_on_a_cpu():
    rows = plan()
    assert list(rows) == "single single-all-cores dp ddp fsdp pipeline accelerate".split()
    assert flag(rows["ddp"], "--spawn") == flag(rows["dp"], "--simulate-devices") == "2" and "gloo" in rows["ddp"].label
    assert [name for name, row in rows.items() if "simulated" in row.label] == ["dp"]
    asked = rows_of("mp mp-micro")
    assert all("simulated" in row.label for row in asked.values())
    assert flag(asked["mp-micro"], "--micro-batches") == flag(rows["pipeline"], "--micro-batches") == "4"


def test_all_rows_get_the_same_totals_and_threads_per_device():
    for gpus in (0, 1, 8):
        rows = [row for row in plan(gpus, methods=ALL, micro_batches=[8]).values() if row.method != "single-all-cores"]
        for name in ("--num-workers", "--threads", "--device", "--epochs", "--batch-size"):
            assert len({flag(row, name) for row in rows}) == 1
        assert {row.planned.device for row in rows} == {"gpu" if gpus else "cpu"}
    assert flag(plan(8)["single"], "--num-workers") == "8"  # one per rank
    assert [flag(plan(gpus)["single"], "--threads") for gpus in (8, 0)] == ["1", "4"]
    assert flag(plan(0, threads_per_device=3)["ddp"], "--threads") == "3"
    assert {flag(row, "--num-workers") for row in plan(nproc=[1, 5]).values()} == {"5"}
    methods = [(name, {}) for name in ("single", "single-all-cores", "ddp")]
    quota = make_plan(plan_arguments(methods=methods, nproc=[2]), Machine(gpus=0, cores=3.5), [])
    assert [flag(row, "--threads") for row in quota] == ["1", "3", "1"]


def test_the_row_with_all_cores_may_have_more_threads():
    rows = plan()
    whole = rows["single-all-cores"]
    assert whole.label == "one process, all cores" and "data_parallel_train.py" in whole.command[1]
    assert (flag(whole, "--threads"), flag(rows["single"], "--threads"), whole.skip) == ("8", "4", "")
    for baseline in ("single", "single-all-cores"):
        refuse(rows, baseline)
    with pytest.raises(SuiteError, match="threads per device: “one device” has 4"):  # others must have equal threads
        refuse({**rows, "ddp": plan(threads_per_device=3)["ddp"]})
    assert "single-all-cores" not in plan(gpus=2)
    for planned in (plan(gpus=2, methods=ALL), plan(nproc=[1])):
        assert "which has all cores" in planned["single-all-cores"].skip


def test_rows_on_gpus_and_why_some_are_skipped(monkeypatch):
    rows = plan(gpus=2)
    assert flag(rows["dp"], "--use-parallel") == "2" and "NCCL" in rows["ddp"].label
    assert not any(row.skip or "simulated" in row.label for name, row in rows.items() if name != "accelerate")
    rows = plan(gpus=2, nproc=[4])
    assert rows["ddp"].skip == rows["dp"].skip == "needs 4 GPUs, found 2"
    assert not rows["single"].skip and not rows["mp"].skip
    rows = plan(gpus=1)
    assert "mp" not in rows and flag(rows["ddp"], "--spawn") == "1"
    assert "simulated" in rows_of("mp", gpus=1)["mp"].label
    monkeypatch.setattr("comparison.methods.find_spec", lambda name: None)
    assert "accelerate is not installed" in plan()["accelerate"].skip and not plan()["ddp"].skip


def test_rows_on_several_nodes_start_a_task_for_each_device():
    rows = plan(4, nodes=[1, 2], nproc=[4], methods=[("single", {}), ("ddp", {})])
    assert {name: (row.nodes, row.tasks) for name, row in rows.items()} == {
        "single": (1, 1),
        "ddp-nodes=1": (1, 1),
        "ddp-nodes=2": (2, 4),
    }


def test_an_invalid_row_is_skipped_unless_it_would_occupy_several_nodes():
    methods = {"methods": [("ddp", {})], "nproc": [1, 3], "batch_size": [128]}
    assert [row.skip != "" for row in plan(4, **methods).values()] == [False, True]
    with pytest.raises(SuiteError, match="found 128 for 6 processes"):
        plan(4, nodes=[2], **methods)


def test_rows_of_the_ladder():
    names = "single single-all-cores ddp-1 ddp-no-sync ddp".split()
    assert [method for method, _ in parse_method("ladder")] == names
    assert parse_method("ladder:num-workers=2")[4] == ("ddp", {"num_workers": 2})
    rows = rows_of("ladder", nproc=[4])
    assert [flag(rows[name], "--spawn") for name in names[2:]] == ["1", "4", "4"]
    assert ["--no-sync" in rows[name].command for name in names[2:]] == [False, True, False]
    weak = rows_of("ladder", scaling="weak", nproc=[4])
    assert [flag(row, "--batch-size") for row in weak.values()] == ["64", "64", "64", "256", "256"]
    refuse(weak, scaling="weak")


def test_a_sweep_has_a_row_for_each_value_that_a_method_uses():
    rows = plan(nproc=[1, 2], num_workers=[0, 2], model=list(MODELS[:2]), micro_batches=[2, 8], methods=ALL)
    of = {method: [row for row in rows.values() if row.method == method] for method in METHODS}
    assert [len(of[method]) for method in ("single", "ddp", "mp", "mp-micro")] == [4, 8, 4, 8]
    assert of["single"][0].values == {"model": "lenet", "num_workers": 0}
    assert rows["ddp-model=mlp-num_workers=2-nproc=1"].planned.per_device_batch_size == 64
    assert flag(rows["mp-micro-model=mlp-num_workers=2-micro_batches=8"], "--micro-batches") == "8"
    assert {flag(row, "--threads") for row in rows.values()} == {"4", "8"}  # 8 cores ÷ most devices of a row
    assert flag(rows_of("single", nproc=[2, 3])["single"], "--num-workers") == "6"  # divisible by 2 and 3
    (row,) = rows_of("single", num_workers=[2, 2]).values()
    assert row.values == {}  # equal values are no sweep
    single, small, large = rows_of("single ddp", bucket_mb=[0.5, 25.0]).values()
    assert [flag(row, "--bucket-mb") for row in (small, large)] == ["0.5", "25"] and "--bucket-mb" not in single.command
    assert "--bucket-mb" not in rows_of("ddp")["ddp"].command  # torch's default


def test_no_two_rows_have_one_name():
    swept = {"nproc": [1, 2], "num_workers": [0, 2], "model": list(MODELS[:2])}
    many = plan(**swept, micro_batches=[2, 8], bucket_mb=[1.0, 25.0], methods=ALL)
    assert len(many) > 40
    for rows in (many, rows_of("ddp", bucket_mb=[0.5, 25.0]), *(rows_of("ladder", nproc=n) for n in ([1], [1, 2]))):
        names = [Row(row, ()).label for row in rows.values()]
        assert not [name for name in names if names.count(name) > 1]


@pytest.mark.parametrize(
    "typed, message",
    [
        ("CUDA_VISIBLE_DEVICES=0 python train.py", "“CUDA_VISIBLE_DEVICES” cannot be started; found no program '0'; t"),
        ("mine=pyton train.py", "“mine” cannot be started; found no program 'pyton'; .*mine=env VARIABLE=1 python"),
    ],
)
def test_a_script_without_a_program_is_refused(typed, message):
    with pytest.raises(SuiteError, match=message) as caught:
        script_rows([parse_script(typed)], Machine(gpus=0, cores=2))
    assert caught.value.exit_code == USAGE


def test_every_pipeline_stage_sees_the_whole_batch():
    for scaling in ("strong", "weak"):
        values = {"nproc": [3], "batch_size": [65], "num_workers": [1], "micro_batches": [6], "scaling": scaling}
        rows = rows_of("single pipeline-1 pipeline", **values)
        assert {row.planned.per_device_batch_size for row in rows.values()} == {65}
        assert {flag(row, "--batch-size") for row in rows.values()} == {"65"}
        refuse(rows, scaling=scaling)
    assert [flag(rows[name], "--spawn") for name in ("pipeline", "pipeline-1")] == ["3", "1"]
    assert flag(rows["pipeline"], "--micro-batches") == flag(rows["pipeline-1"], "--micro-batches") == "6"
    (row,) = rows_of("pipeline-1f1b", nproc=[3]).values()
    assert flag(row, "--pipeline-schedule") == "1f1b" and row.label.endswith(", 1F1B")


@pytest.mark.parametrize(
    "typed, values, skipped",
    [
        ("pipeline-1 pipeline", {"micro_batches": [4, 65]}, {"65": "every micro-batch needs an image"}),
        ("pipeline pipeline-1f1b", {"nproc": [3], "micro_batches": [2, 3]}, {"1f1b-micro_batches=2": "every stage; "}),
        ("ladder", {"num_workers": [1, 2]}, {"ddp-num_workers=1": "must divide", "no-sync-num_workers=1": "must"}),
        (
            "single dp fsdp",
            {"gpus": 2, "compile": True},
            {
                "fsdp": "--compile does not go with it: its weights come and go",
                "dp": "--compile does not go with it: it copies the network",
            },
        ),
        ("single ddp", {"gpus": 2, "cuda_graph": True}, {"ddp": "--cuda-graph does not go with it: it wraps "}),
    ],
)
def test_invalid_combinations_are_skipped(typed, values, skipped):
    for name, row in rows_of(typed, **values).items():
        words = next((words for end, words in skipped.items() if name.endswith(end)), "")
        assert words in row.skip and bool(row.skip) == bool(words), name


@pytest.mark.parametrize(
    "typed, values, message",
    [
        ("single", {"nproc": [3, 5, 7]}, "105 would be the fewest"),
        ("single pipeline", {"accumulate": 32}, "--micro-batches 4, --batch-size 64, --accumulate 32; give fewer"),
        ("ladder", {"num_workers": [1, 3]}, "--num-workers is a total and must divide.*found 1 for 2"),
        ("single", {"model": ["a/net.py:build", "b/net.py:build"]}, "two models have one name"),
        # their file names collide
        ("single", {"model": ["my net.py:build", "my-net.py:build"]}, "two models have one name"),
    ],
)
def test_invalid_plans_are_refused(typed, values, message):
    with pytest.raises(SuiteError, match=message):
        rows_of(typed, **values)


def test_a_network_with_fewer_blocks_than_stages_is_skipped():
    arguments = plan_arguments(methods=[("mp", {}), ("pipeline-1", {}), ("pipeline", {})], nproc=[2, 3])
    plans = [make_plan(arguments, Machine(0, 8), [], {"lenet": blocks}) for blocks in (1, 2, 3)]
    one, two, three = ([row.skip for row in rows] for rows in plans)
    whole = "lenet cannot be cut: it is not an nn.Sequential of two parts or more"
    assert one == [whole, "", whole, whole]
    assert two == ["", "", "", "lenet has 2 blocks, too few for 3 stages"] and not any(three)


def test_networks_are_cut_by_the_measured_block_times():
    times = {"conv1": 1.0, "conv2": 1.0, "full1": 1.0, "head": 4.0}
    blocks = [{"model": "lenet", "block": name, "milliseconds": value} for name, value in times.items()]
    probe = convert({**PROBE, "blocks": blocks}, Probe)
    rows = rows_of("single mp pipeline", nproc=[2, 3, 5], num_workers=[0])
    assert [row.stages for row in rows.values()] == [1, 2, 2, 3, 5]
    single, mp, two, three, five = (with_measured_cut(row, probe).command[len(row.command) :] for row in rows.values())
    assert mp == two == ("--split-at", "head") and three == ("--split-at", "conv2", "head")
    assert single == five == ()  # four blocks cannot make five stages
    assert with_measured_cut(rows["mp"], None) == rows["mp"] == with_measured_cut(rows["mp"], convert(PROBE, Probe))


def test_baseline_has_the_same_swept_values():
    rows = rows_of("ddp single", num_workers=[0, 2], nproc=[1, 2])
    every = list(rows.values())
    for name, baseline, expected in (
        ("ddp-num_workers=2-nproc=2", "single", "single-num_workers=2"),
        ("single-num_workers=0", "single", "single-num_workers=0"),
        ("single-num_workers=0", "ddp", "ddp-num_workers=0-nproc=1"),
    ):
        assert baseline_of(rows[name], every, baseline).name == expected
    assert baseline_of(every[0], every, "mp") is None
    rows = rows_of("single:num-workers=4 single ddp")
    assert baseline_of(rows["ddp"], list(rows.values()), "single").name == "single"  # the one with equal settings
    for scaling, own in product(("strong", "weak"), ("num_workers=4", "batch_size=64")):
        flags = own.replace("_", "-")
        rows = rows_of(f"single single:{flags} ddp:{flags}", scaling=scaling, num_workers=[0])
        assert baseline_of(rows[f"ddp-{own}"], list(rows.values()), "single").name == f"single-{own}"


@pytest.mark.parametrize("own", ["precision=bf16", "cuda-graph", "num-workers=4"])
def test_a_variant_of_the_baseline_is_compared_with_the_plain_baseline(own):
    rows = rows_of(f"single single:{own}", num_workers=[0])
    plain, other = rows.values()
    assert all(baseline_of(row, [other, plain], "single") is plain for row in (plain, other))
    with pytest.raises(SuiteError, match="unequal rows are no comparison"):
        refuse(rows)


def test_unequal_settings_are_refused_with_both_values():
    rows = rows_of("single ddp:num-workers=4", num_workers=[0])
    ddp = list(rows.values())[1]
    assert flag(ddp, "--num-workers") == "4" and ddp.label == "DDP ×2, gloo, num workers 4"
    both = "workers: “one device” has 0, “DDP ×2, gloo, num workers 4” 4; .*--allow-un"
    for baseline in ("single", "mp"):  # without a row of the baseline, the first row replaces it
        with pytest.raises(SuiteError, match=both):
            refuse(rows, baseline)
    refuse(plan(methods=ALL, num_workers=[0, 2]))


def test_the_name_of_a_row_contains_no_directory():
    assert [*rows_of("single", model=["/home/ada/net.py:build", "lenet"])] == [
        "single-model=net.py:build",
        "single-model=lenet",
    ]


@pytest.mark.parametrize(
    "typed, name, command",
    [
        ("mine=python train.py --lr 0.1", "mine", ["python", "train.py", "--lr", "0.1"]),
        ("python train.py --lr=0.1", "train", ["python", "train.py", "--lr=0.1"]),
        ("torchrun --nproc_per_node=2 a/b.py", "b", ["torchrun", "--nproc_per_node=2", "a/b.py"]),
        ("/opt/bin/train", "train", ["/opt/bin/train"]),
        ("python -m lab.train --lr 1", "train", ["python", "-m", "lab.train", "--lr", "1"]),
    ],
)
def test_a_script_is_named_explicitly_or_after_its_file(typed, name, command, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda word: word)  # torchrun may be elsewhere
    for gpus, device in ((0, "cpu"), (2, "gpu")):  # it is taken to use the GPUs of the machine
        (row,) = script_rows([parse_script(typed)], Machine(gpus, cores=2))
        assert (row.label, list(row.command), row.planned.device) == (name, command, device)


def test_variants_of_a_single_script(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))

    def made(gpus, cores, ranks=None, bf16=False):
        machine = Machine(gpus, cores, bf16=bf16)
        (row,) = script_rows([parse_script("python my-train.py")], machine)
        variants = variants_of(row, machine, ranks)
        assert (row.what_if, row.planned.threads) == ("", cores) and all(
            other.name == f"{row.name}-{other.what_if}" for other in variants
        )
        return {other.label: other for other in variants}

    rows = made(0, 4)
    assert list(rows) == ["freed memory kept", "1 thread", "4 loader workers", "data parallel ×2, tried"]
    assert all(row.command[0] == "env" and row.command[-2:] == ("python", "my-train.py") for row in rows.values())
    assert rows["1 thread"].command[1] == "OMP_NUM_THREADS=1"
    assert rows["4 loader workers"].command[1] == 'PARALLEL_TRAINING_CHANGE={"workers": 4}'
    tried = rows["data parallel ×2, tried"].command
    assert tried[1:3] == ("OMP_NUM_THREADS=2", 'PARALLEL_TRAINING_CHANGE={"ranks": 2}')
    assert {"--nproc_per_node=2", "GLOO_SOCKET_IFNAME=lo"} <= {*tried}
    assert list(made(0, 4, bf16=True))[3:5] == ["channels last", "bf16 autocast, tried"]
    assert list(made(0, 1)) == ["freed memory kept", "1 loader worker", "data parallel ×2, tried"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("platform.libc_ver", lambda: ("", ""))  # as on macOS
        assert list(made(0, 1)) == ["1 loader worker", "data parallel ×2, tried"]
    assert list(made(1, 8)) == ["8 loader workers"]
    on_gpus = made(2, 8)
    assert list(on_gpus) == ["8 loader workers", "data parallel ×2, tried"]
    assert [row.skip for row in on_gpus.values()] == ["", ""]
    for gpus, ranks in ((2, 4), (1, 2)):
        assert [row.skip for row in made(gpus, 8, ranks).values()] == ["", f"needs {ranks} GPUs, found {gpus}"]
    (usual,) = script_rows([parse_script("python a.py")], Machine(gpus=0, cores=2))
    for launched in ("torchrun a.py", "python -m torch.distributed.run a.py", "env X=1 accelerate launch a.py"):
        row = replace(usual, command=tuple(launched.split()))
        assert variants_of(row, Machine(gpus=0, cores=2), None)[-1].skip == "the script has ranks of its own"
    for typed, changed in (
        ("env X=1 OMP_NUM_THREADS=2 python a.py", "env X=1 OMP_NUM_THREADS=2 OMP_NUM_THREADS=1 python a.py"),
        ("env -i X=1 python a.py", "env OMP_NUM_THREADS=1 env -i X=1 python a.py"),
    ):
        row = replace(usual, command=tuple(typed.split()))
        assert variants_of(row, Machine(gpus=0, cores=2), None)[1].command == tuple(changed.split())
