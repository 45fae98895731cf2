"""A new method is one new script and one record: here is one, in files of its own, compared from start to end."""

import ast
import csv

from comparison.methods import METHODS
from comparison.record import read_results
from processes import PROJECT

SCRIPT = '''
from torch.utils.data import DistributedSampler

from common.config import parse, script_parser
from common.data.image_set import load_image_set
from common.data.loaders import make_loaders
from common.engine import ParallelContext, build_loss, build_optimizer
from common.machine.environment import available_devices
from common.machine.setup import prepare_process
from common.models import build_model
from common.run import run

config, options = parse(script_parser("Train on one device, two halves of a batch one after the other."))
device = available_devices(config.device)[0]
prepare_process(config, device)
image_set = load_image_set(config)
sampler = DistributedSampler(image_set.train_labels, num_replicas=1, rank=0, seed=config.seed, drop_last=True)
loaders = make_loaders(image_set, config, device, sampler)
model = build_model(config.model, image_set.image_shape, config.seed, config.precision).to(device)
loss_function = build_loss(config)


def train_step(images, labels, mark):
    images, labels = images.to(device), labels.to(device)
    mark("transfer")
    losses = []
    for part, part_labels in zip(images.chunk(2), labels.chunk(2), strict=True):
        loss = loss_function(model(part), part_labels) * len(part) / len(images)
        loss.backward()
        losses.append(loss.detach())
    return sum(losses)


context = ParallelContext("my-own", model, (device,), device, device, before_epoch=sampler.set_epoch)
run(context, train_step, model, build_optimizer(model.parameters(), config), loaders, image_set, config, options)
'''

RECORD = '''
import compare_parallel
from comparison.methods import METHODS, Method, script

METHODS["my-own"] = Method(lambda devices, machine, micro_batches: ("my own way", [script({path!r})], 1))
compare_parallel.main()
'''


def test_a_new_method_is_one_new_script_and_one_record(project, data_root, tmp_path):
    (tmp_path / "my_own_train.py").write_text(SCRIPT)
    (tmp_path / "compare.py").write_text(RECORD.format(path=str(tmp_path / "my_own_train.py")))
    directory = tmp_path / "out"
    done = project(tmp_path / "compare.py", "--methods", "single", "my-own", "--dataset", "synthetic-mnist",
                   "--data-root", data_root, "--train-size", 96, "--batch-size", 48, "--num-workers", 0, "--epochs", 1,
                   "--repeats", 1, "--check-maths", "--output-dir", directory, tiny=False,
                   environment={"PYTHONPATH": str(PROJECT)})
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_results(directory / "results.json")
    assert {row.configuration.method: len(row.results) for row in report.rows} == {"single": 1, "my-own": 1}
    assert 0 < report.equivalence["my-own"].difference < 1e-6
    verdict = done.stdout.partition("\nVerdict\n")[2]
    assert "\nmy own way " in done.stdout and "my own way: " in verdict
    for name in ("curves.png", "speed-up.png", "phases.png", "memory.png"):
        assert (directory / name).stat().st_size > 1e4
    rows = list(csv.DictReader((directory / "results.csv").open()))
    assert rows[1]["method"] == "my-own" and float(rows[1]["epoch_seconds"]) > 0
    assert "\n| my own way " in (directory / "report.md").read_text()


def test_no_file_but_the_methods_own_asks_for_a_method_by_its_name_or_calls_it_so():
    names, sentences = {*METHODS}, {method.called for method in METHODS.values()} - {""}
    assert {"one process, all cores", "DataParallel", "DDP"} <= sentences
    for file in (PROJECT / "compare_parallel.py", *(PROJECT / "comparison").glob("*.py")):
        if file.name == "methods.py":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & names, file
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        prose = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
        shown = "\n".join(map(str, texts - prose))
        assert not [called for called in sentences if called in shown], file
