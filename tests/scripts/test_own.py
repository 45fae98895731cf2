"""What a reader brings: a network in a file, a folder of images."""

import json
import re
import runpy
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from common.data.image_set import load_image_set
from common.errors import DATA, USAGE, SuiteError
from common.models.build import AUXILIARY, block_names, build_network, plain_state
from comparison.methods import Machine
from comparison.plan.plan import make_plan
from tests.fixtures import ALL, EXTENDING_FILES, make_config, make_loaders, plan_arguments

SIZES = {"cat": (70, 50), "dog": (40, 90), "emu": (64, 64)}


@pytest.fixture
def images(tmp_path):
    """my_images: three classes, four images each to train with and two to test."""
    random = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for name, (width, height) in SIZES.items():
            directory = tmp_path / "my_images" / part / name
            directory.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(directory / f"{number}.png")
    return tmp_path / "my_images"


def test_a_sequential_can_be_cut_and_any_other_module_not(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        EXTENDING_FILES["my_blocks.py"] + "\n\nclass Net(nn.Module):\n    def __init__(self, shape, classes):\n"
        "        super().__init__()\n        self.parts = build(shape, classes)\n\n"
        "    def forward(self, images):\n        return self.parts(images)\n"
    )
    cut, whole = (build_network(f"{file}:{name}", (1, 28, 28), 0, classes=7) for name in ("build", "Net"))
    assert len(cut) == 2 and len(whole) == 1
    images = torch.randn(3, 1, 28, 28)
    assert cut(images).shape == whole(images).shape == (3, 7)
    alone = runpy.run_path(str(file))["Net"]((1, 28, 28), 7)
    alone.load_state_dict(plain_state(whole))  # under the names that its own class gives them
    torch.testing.assert_close(alone(images), whole(images))
    again = build_network(f"{file}:Net", (1, 28, 28), 0, classes=7)
    assert all(torch.equal(weight, same) for weight, same in zip(whole.parameters(), again.parameters(), strict=True))
    half = build_network(f"{file}:Net", (1, 28, 28), 0, "bf16", 7)
    assert half(images).dtype == torch.bfloat16


NETWORKS = """from collections import OrderedDict
from torch import nn


def build(shape, classes):
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 784), relu, nn.Linear(784, 784), relu, nn.Linear(784, classes))


def network(shape, classes):
    return nn.Sequential(OrderedDict(first=nn.Flatten(), network=nn.Linear(784, classes)))


def twice(shape, classes):
    layer = nn.Linear(784, 784)
    return nn.Sequential(nn.Flatten(), layer, layer, nn.Linear(784, classes))


class Branches(nn.Sequential):
    def forward(self, images):
        return super().forward(images) + 1


def branches(shape, classes):
    return Branches(nn.Flatten(), nn.Linear(784, classes))


def alone(shape, classes):
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(784, classes)))
"""


@pytest.fixture
def networks(tmp_path):
    """net.py, with the functions of NETWORKS."""
    (tmp_path / "net.py").write_text(NETWORKS)
    return tmp_path / "net.py"


@pytest.mark.parametrize("name, blocks", [("build", 6), ("network", 2), ("twice", 4), ("branches", 1), ("alone", 1)])
def test_a_network_stays_what_its_author_wrote(name, blocks, networks):
    images, ours = torch.randn(3, 1, 28, 28), build_network(f"{networks}:{name}", (1, 28, 28), 0)
    theirs = runpy.run_path(str(networks))[name]((1, 28, 28), 10)
    theirs.load_state_dict(plain_state(ours))
    torch.testing.assert_close(ours(images), theirs(images))
    assert len(ours) == len(block_names(ours)) == blocks


@pytest.mark.parametrize(
    "name, flags, said",
    [
        ("twice", ("--split-at", 2), "two stages would have the same weights; it is cut before 2"),
        pytest.param("alone", (), "this model cannot be cut; it is no plain nn.Seq", marks=pytest.mark.slow),
    ],
)
def test_a_model_that_cannot_be_cut_is_one_line(name, flags, said, networks, project, tmp_path):
    done = project("model_parallel_train.py", "--model", f"{networks}:{name}", *flags, "--figure-dir", tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["lenet", "mlp", "strided", "vgg", "resnet8"])
@pytest.mark.parametrize("size", [31, 48, 63])
def test_the_built_in_networks_take_images_of_other_sizes(name, size):
    assert build_network(name, (3, size, size), 0, classes=4).eval()(torch.zeros(2, 3, size, size)).shape == (2, 4)


def test_rows_that_need_a_cut_are_skipped_with_that_reason():
    rows = make_plan(plan_arguments(model=["net.py:Net"], methods=ALL), Machine(0, 2), [], {"net.py:Net": 1})
    skipped = {row.method: row.skip for row in rows if row.skip and "cannot be cut" in row.skip}
    assert set(skipped) == {"mp", "mp-micro", "pipeline", "pipeline-1f1b"}
    assert skipped["mp"] == "net.py:Net cannot be cut: it is no plain nn.Sequential of two parts or more"
    assert not any("cut" in row.skip for row in make_plan(plan_arguments(model=["lenet"]), Machine(0, 2), []))


TWO_HEADS = """from torch import nn


class Net(nn.Linear):
    def forward(self, images):
        logits = super().forward(images.flatten(1))
        return (logits, logits) if self.training else logits


def build(shape, classes):
    return Net(784, 10)
"""


@pytest.mark.parametrize(
    "text, function, message",
    [
        (None, "build", "no such file"),
        ("def build(:", "build", "cannot be loaded; SyntaxError"),
        ("import nowhere", "build", "cannot be loaded; ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "build", "cannot be loaded; AttributeError"),
        ("def build(shape): pass", "build", "failed; TypeError: build() takes 1 positional argument but 2 were given"),
        ("def build(shape, classes): return 7", "build", "must return an nn.Module; it returned int"),
        ("from torch import nn\ndef build(shape, classes): return nn.Linear(5, 5)", "build", "does not take images"),
        (
            "from torch import nn\ndef build(shape, classes): return nn.Flatten()",
            "build",
            "logits (B, 10); two images gave (2, 784); let its last layer have one output for each class",
        ),
        (TWO_HEADS, "build", "logits (B, 10); two images gave tuple; return the logits alone, in training too"),
    ],
)
def test_a_broken_file_is_one_line(text, function, message, tmp_path):
    file = tmp_path / "net.py"
    if text:
        file.write_text(text)
    with pytest.raises(SuiteError, match=re.escape(message)) as refused:
        build_network(f"{file}:{function}", (1, 28, 28), 0)
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize("name", AUXILIARY)
def test_networks_with_auxiliary_classifiers_are_had_as_the_refusal_says(name, tmp_path):
    with pytest.raises(SuiteError, match=f"torchvision:{name} returns more than logits in training") as refused:
        build_network(f"torchvision:{name}", (3, 96, 96), 0)
    said = re.search(r"build\(image_shape, classes\) returns (.*)$", str(refused.value))[1]
    (tmp_path / "net.py").write_text(f"import torchvision\n\n\ndef build(image_shape, classes):\n    return {said}\n")
    model = build_network(f"{tmp_path / 'net.py'}:build", (3, 96, 96), 0, classes=3)
    assert model.train()(torch.zeros(2, 3, 96, 96)).shape == (2, 3)


@pytest.mark.slow
def test_a_broken_model_ends_a_comparison_before_anything_starts(project, data_root, tmp_path):
    (tmp_path / "net.py").write_text("def build(shape, classes): return 7")
    flags = "--model", f"{tmp_path / 'net.py'}:build", "--dataset", "synthetic-mnist", "--data-root", data_root
    done = project("compare_parallel.py", *flags, "--output-dir", tmp_path / "out", tiny=False)
    assert done.returncode == 2 and "must return an nn.Module; it returned int" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("torchvision:resnet5", (3, 32, 32), "has no classifier resnet5; .*did you mean torchvision:resnet50"),
        ("torchvision:resnet18", (1, 28, 28), "takes colour images; these have 1 channel"),
    ],
)
def test_torchvisions_networks_that_cannot_be_had(name, shape, message):
    with pytest.raises(SuiteError, match=message):
        build_network(name, shape, 0)


def test_a_network_of_torchvision():
    model = build_network("torchvision:resnet18", (3, 64, 64), 0, classes=3)
    assert model.eval()(torch.randn(2, 3, 64, 64)).shape == (2, 3) and len(model) == 1


# ---- a folder of images


def config_of(images, data_root, **values):
    return make_config(dataset=f"folder:{images}", data_root=str(data_root), **values)


def test_a_folder_is_decoded_once_and_again_when_a_file_changes(images, tmp_path, monkeypatch):
    config = config_of(images, tmp_path / "data", image_size=32)
    image_set = load_image_set(config)
    assert image_set.classes == ("cat", "dog", "emu") and image_set.image_shape == (3, 32, 32)
    assert sorted(image_set.train_labels) == [0] * 4 + [1] * 4 + [2] * 4 and len(image_set.test_labels) == 6
    assert len(set(image_set.train_labels[:6])) > 1  # shuffled, or --train-size 4 would train on cats alone
    emu = Image.open(images / "test" / "emu" / "1.png").resize((32, 32), Image.BILINEAR)
    assert np.abs(image_set.test_images[5].astype(int) - np.asarray(emu).astype(int)).max() <= 1
    assert image_set.mean == pytest.approx((image_set.train_images / 255).mean((0, 1, 2)))
    assert image_set.std == pytest.approx((image_set.train_images / 255).std((0, 1, 2)))
    with monkeypatch.context() as patch:
        patch.setattr("common.data.image_set.read_folder", lambda *_: pytest.fail("decoded again"))
        assert (load_image_set(config).train_images == image_set.train_images).all()
        with pytest.raises(pytest.fail.Exception):
            load_image_set(config_of(images, tmp_path / "data", image_size=16))
    shutil.copy(images / "train" / "dog" / "0.png", images / "train" / "cat" / "9.png")
    assert len(load_image_set(config).train_labels) == 13


@pytest.mark.parametrize("loader", ["dataloader", "resident"])
def test_a_channel_that_is_the_same_everywhere_becomes_zero(loader, tmp_path):
    for part in ("train", "test"):
        for name in ("dark", "light"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8), (number, 0, 71)).save(tmp_path / part / name / f"{number}.png")
    config = config_of(tmp_path, tmp_path / "data", image_size=8, batch_size=4, loader=loader, augment=False)
    train_loader, *_ = make_loaders(load_image_set(config), config)
    images, _ = next(iter(train_loader))
    assert (images[:, 1:].abs() < 1e-6).all() and images[:, 0].std() > 0.5


def test_a_changed_image_behind_a_link_is_seen(images, tmp_path):
    (tmp_path / "subset").mkdir()
    for part in ("train", "test"):
        (tmp_path / "subset" / part).symlink_to(images / part)
    config = config_of(tmp_path / "subset", tmp_path / "data", image_size=16)
    assert len(load_image_set(config).train_labels) == 12
    (images / "train" / "cat" / "0.png").unlink()
    assert len(load_image_set(config).train_labels) == 11


def test_fewer_test_images_than_ranks_is_one_line(images, tmp_path):
    image_set = load_image_set(config_of(images, tmp_path, image_size=32))
    with pytest.raises(SuiteError, match="every rank needs an image, to train with and to test with; 6 images for 8"):
        make_loaders(image_set, make_config(batch_size=8), rank=7, world_size=8)


@pytest.mark.parametrize("loader", [pytest.param("workers", marks=pytest.mark.slow), "resident"])
def test_a_folder_is_trained_on_with_as_many_classes_as_it_has(loader, images, project, tmp_path):
    flags = f"--image-size 32 --loader {loader} --model vgg --batch-size 4 --num-workers 0 --epochs 1".split()
    places = "--data-root", tmp_path / "data", "--output", tmp_path / "result.json", "--figure-dir", tmp_path
    done = project("data_parallel_train.py", "--dataset", f"folder:{images}", *flags, *places, tiny=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result["class_accuracy"]) == ["cat", "dog", "emu"] and result["epochs"][0]["samples"] == 12
    (figure,) = tmp_path.glob("*.png")
    assert "/" not in figure.name and ":" not in figure.name


@pytest.mark.parametrize("loader", ["workers", "resident"])
def test_every_image_of_a_folder_is_augmented_at_its_own_size(loader, images, tmp_path):
    config = config_of(images, tmp_path, image_size=48, loader=loader, batch_size=4)
    train_loader, _ = make_loaders(load_image_set(config), config, epoch=1)
    assert {tuple(batch.shape) for batch, _ in train_loader} == {(4, 3, 48, 48)}


GREY = np.add.outer(np.arange(8), np.arange(8)) * 4096 % 65536  # up to 65535 in steps of 4096


@pytest.mark.parametrize("name", ["0.png", "0.pgm", "0.tif"])
def test_grey_images_of_sixteen_bits_are_scaled(name, images, tmp_path):
    shutil.rmtree(images / "test" / "cat")
    (images / "test" / "cat").mkdir()
    Image.fromarray(GREY.astype(np.uint16)).save(images / "test" / "cat" / name)
    pixels = load_image_set(config_of(images, tmp_path / "data", image_size=8)).test_images[0]
    assert np.array_equal(pixels, np.repeat(GREY[:, :, None] // 256, 3, axis=2))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_an_unknown_range_are_refused(kind, images, tmp_path):
    file = images / "test" / "cat" / "0.tif"
    Image.fromarray(GREY.astype(kind)).save(file)
    with pytest.raises(SuiteError, match=f"cannot read the image {file}.*32 bits") as refused:
        load_image_set(config_of(images, tmp_path / "data"))
    assert refused.value.exit_code == DATA


def test_what_only_its_name_makes_an_image_is_opened_by_no_other_reader(images, tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    file = images / "train" / "cat" / "0.png"
    Image.new("RGB", (8, 8)).save(file, "EPS")
    with pytest.raises(SuiteError, match=f"cannot read the image {file}; UnidentifiedImageError"):
        load_image_set(config_of(images, tmp_path / "data"))


def test_a_folder_that_was_decoded_otherwise_is_decoded_again(images, tmp_path, monkeypatch):
    config = config_of(images, tmp_path / "data", image_size=16)
    load_image_set(config)
    monkeypatch.setattr("common.data.folder.DECODING", 0)
    monkeypatch.setattr("common.data.image_set.read_folder", lambda *_: pytest.fail("decoded again"))
    with pytest.raises(pytest.fail.Exception):
        load_image_set(config)


@pytest.mark.parametrize("target", ["missing.png", "9.png"])
def test_a_link_that_leads_nowhere_or_in_a_circle(target, images, tmp_path):
    (images / "train/cat/9.png").symlink_to(target)
    with pytest.raises(SuiteError, match="cannot read .*/9.png") as refused:
        load_image_set(config_of(images, tmp_path / "data"))
    assert refused.value.exit_code == DATA


@pytest.mark.parametrize(
    "damage, message",
    [
        (shutil.rmtree, "no images in"),
        (lambda images: shutil.rmtree(images / "test"), "my_images/test; "),
        (lambda images: shutil.rmtree(images / "train"), "my_images/train; "),
        (lambda images: shutil.rmtree(images / "test" / "emu"), "different classes; only one of them has emu"),
        (lambda images: [file.unlink() for file in (images / "train" / "cat").iterdir()], "only one of them has cat"),
        (lambda images: (images / "test" / "emu" / "0.png").write_bytes(b"no image"), "cannot read the image"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(damage, message, images, tmp_path):
    damage(images)
    with pytest.raises(SuiteError, match=re.escape(message)) as refused:
        load_image_set(config_of(images, tmp_path / "data"))
    assert refused.value.exit_code == DATA


def test_val_will_do_for_test(images, tmp_path):
    (images / "test").rename(images / "val")
    assert len(load_image_set(config_of(images, tmp_path / "data")).test_labels) == 6


def test_image_size_is_for_folders(project):
    done = project("data_parallel_train.py", "--image-size", 32)
    assert done.returncode == 2 and "--image-size is for a folder of images" in done.stderr


# ---- going on

ACTIVATION = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [("data_parallel_train.py",), ("ddp_train.py", "--spawn", 2)])
def test_no_training_goes_on_with_another_network_or_other_images(script, images, project, tmp_path):
    network, picture = tmp_path / "net.py", images / "test" / "dog" / "0.png"
    content = picture.read_bytes()

    def train(epochs):
        flags = f"--image-size 4 --batch-size 4 --num-workers 0 --epochs {epochs}".split()
        flags += ["--dataset", f"folder:{images}", "--model", f"{network}:build", "--figure-dir", tmp_path]
        state = tmp_path / "state.pt"
        return project(*script, *flags, "--data-root", tmp_path, "--checkpoint", state, "--resume", state, tiny=False)

    network.write_text(ACTIVATION)
    assert train(1).returncode == 0
    network.write_text(ACTIVATION.replace("ReLU", "Tanh"))  # as many weights
    refusals = {"net.py": train(2)}
    network.write_text(ACTIVATION)
    shutil.copy(images / "test" / "cat" / "0.png", picture)
    refusals["the data set's images and labels"] = train(2)
    for changed, done in refusals.items():
        assert done.returncode == USAGE and done.stderr.count("\n") == 1
        said = rf"that was another training; {changed}, by \w+ checksum (\w{{16}}) → (?!\1)\w{{16}}; type the flags of"
        assert re.search(said, done.stderr)
    picture.write_bytes(content)
    done = train(2)
    assert done.returncode == 0 and "resumed after epoch 1" in done.stdout, done.stderr
