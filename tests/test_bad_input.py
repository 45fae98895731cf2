"""Bad input gives one clear line on stderr and the right exit code, and leaves nothing half-written."""

import pytest

SCRIPT = "data_parallel_train.py"


BAD_VALUES = [
    (("--dataset", "cifra10"), "unknown name 'cifra10', did you mean cifar10? (choose from cifar10, mnist"),
    (("--model", "transformer"), "unknown name 'transformer' (choose from lenet, mlp, vgg, resnet18)"),
    (("--epochs", "0"), "--epochs: needs a whole number of at least 1, found '0'"),
    (("--epochs", "many"), "--epochs: needs a whole number of at least 1, found 'many'"),
    (("--batch-size", "-1"), "--batch-size: needs a whole number of at least 1, found '-1'"),
    (("--num-workers", "-2"), "--num-workers: needs a whole number of at least 0, found '-2'"),
    (("--seed", "9" * 30), "--seed: needs a whole number of at least 0"),
    (("--lr", "nan"), "--lr: needs a finite number above 0, found 'nan'"),
    (("--epoch", "3"), "unrecognized arguments: --epoch 3"),
]


@pytest.mark.parametrize("flags, said", BAD_VALUES)
def test_bad_values(flags, said, project):
    assert_one_line(project("compare_parallel.py", *flags, tiny=False), 2, said)


@pytest.mark.parametrize("flags, said", BAD_VALUES[:2])
def test_bad_values_of_a_script(flags, said, project):
    assert_one_line(project(SCRIPT, *flags, tiny=False), 2, said)


def assert_one_line(done, exit_code, said):
    assert done.returncode == exit_code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert said in lines[0]


def test_unknown_method(project):
    done = project("compare_parallel.py", "--methods", "single", "dddp")
    assert_one_line(done, 2, "unknown name 'dddp', did you mean ddp?")


def test_plain_ddp_says_what_to_type(project):
    assert_one_line(project("ddp_train.py"), 2, "type torchrun --standalone --nproc_per_node=2 ddp_train.py")


@pytest.mark.parametrize("flags, said", [
    (("--batch-size", 49), "--batch-size is a total and must divide by the number of processes; found 49 for 2"),
    (("--num-workers", 1), "--num-workers is a total and must divide by the number of processes; found 1 for 2"),
])
@pytest.mark.parametrize("command", [("ddp_train.py", "--spawn", 2), ("compare_parallel.py", "--nproc", 2)])
def test_what_does_not_divide(command, flags, said, project, data_root):
    done = project(*command, "--dataset", "synthetic-mnist", "--data-root", data_root, *flags, tiny=False)
    assert_one_line(done, 2, said)


@pytest.mark.parametrize("script", [SCRIPT, "compare_parallel.py"])
def test_gpu_where_there_is_none(script, project):
    assert_one_line(project(script, "--device", "gpu"), 3, "--device gpu needs a GPU")


def test_use_parallel_on_a_cpu_names_the_alternative(project):
    done = project(SCRIPT, "--use-parallel", "--device", "cpu")
    assert_one_line(done, 2, "type --simulate-devices")


def test_more_micro_batches_than_images(project):
    done = project("model_parallel_train.py", "--micro-batches", 49)
    assert_one_line(done, 2, "--micro-batches 49, --batch-size 48")


def test_unknown_block(project):
    done = project("model_parallel_train.py", "--split-at", "conv9")
    assert_one_line(done, 2, "found 'conv9'; choose from conv2, full1, full2, head")


def test_missing_data_without_network(project, tmp_path):
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = project(SCRIPT, "--dataset", "mnist", "--data-root", tmp_path / "data", "--output", tmp_path / "out.json",
                   tiny=False, environment=nowhere)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith(f"error: data set mnist is not in {tmp_path / 'data'} and cannot")
    assert "--dataset synthetic-mnist" in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("flag", ["--output", "--figure-dir"])
def test_a_path_that_cannot_be_written_is_found_before_training(flag, project, tmp_path):
    (tmp_path / "file").touch()
    done = project(SCRIPT, flag, tmp_path / "file" / "below")
    assert_one_line(done, 2, f"cannot write to {tmp_path / 'file'}")
    assert done.stdout == ""


def test_an_output_directory_that_cannot_be_written_is_found_before_the_comparison(project, tmp_path):
    (tmp_path / "file").touch()
    done = project("compare_parallel.py", "--output-dir", tmp_path / "file" / "below")
    assert_one_line(done, 2, f"cannot write to {tmp_path / 'file' / 'below'}")


@pytest.mark.parametrize("command", [(SCRIPT,), ("ddp_train.py", "--spawn", 2)])
def test_nan_loss(command, project, tmp_path):
    output, weights = tmp_path / "result.json", tmp_path / "weights.pth"
    done = project(*command, "--optimizer", "sgd", "--lr", 1e20, "--output", output, "--save", weights,
                   "--figure-dir", tmp_path)
    assert_one_line(done, 1, "training diverged; in epoch 1 the training loss was")
    assert '"status": "diverged"' in output.read_text()
    assert not weights.exists()


@pytest.mark.parametrize("content", ["def nms(): raise RuntimeError('operator torchvision::nms does not exist')\nnms()",
                                     "raise ImportError('no such file')"])
def test_a_torchvision_that_does_not_fit_is_named(content, project, tmp_path):
    (tmp_path / "torchvision.py").write_text(content)
    done = project(SCRIPT, environment={"PYTHONPATH": str(tmp_path)})
    assert_one_line(done, 3, "torchvision cannot be imported; torch ")
    assert "pip install -r requirements.txt" in done.stderr


def test_accelerate_missing(project, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('not here')")
    done = project("accelerate_train.py", environment={"PYTHONPATH": str(tmp_path)})
    assert_one_line(done, 3, "type: pip install accelerate")


def test_debug_shows_the_traceback(project):
    done = project(SCRIPT, "--epochs", "0", "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr
