"""Custom networks in a file and custom image folders."""

import re
import runpy
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from common.data.image_set import load_image_set
from common.errors import DATA, USAGE, SuiteError
from common.models.build import block_names, build_network, plain_state
from tests.fixtures import make_config
from tests.trainings import PAIR, make_loaders

SIZES = {"cat": (70, 50), "dog": (40, 90), "emu": (64, 64)}


@pytest.fixture
def images(tmp_path):
    """A folder my_images of three classes, each with four training images and two test images."""
    random = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for name, (width, height) in SIZES.items():
            directory = tmp_path / "my_images" / part / name
            directory.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(directory / f"{number}.png")
    return tmp_path / "my_images"


NETWORKS = f"""{PAIR}
from collections import OrderedDict


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


def pair(shape, classes):
    return nn.Sequential(Pair(), Scaled(784, classes))


def alone(shape, classes):
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(784, classes)))


def lazy(shape, classes):
    return nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Dropout(), nn.Flatten(), nn.LazyLinear(classes))


def deep(shape, classes):
    return nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Conv3d(1, 2, (1, 3, 3)), nn.Flatten(), nn.Linear(1352, classes))
"""


@pytest.fixture
def networks(tmp_path):
    """The path of net.py with the functions of NETWORKS."""
    (tmp_path / "net.py").write_text(NETWORKS)
    return tmp_path / "net.py"


@pytest.mark.parametrize("name, blocks", [("build", 6), ("network", 2), ("twice", 4), ("branches", 1), ("alone", 1)])
def test_a_custom_network_computes_the_same_inside_the_suite(name, blocks, networks):
    images = torch.randn(3, 1, 28, 28)
    ours, same = (build_network(f"{networks}:{name}", (1, 28, 28), 0, classes=7) for _ in range(2))
    theirs = runpy.run_path(str(networks))[name]((1, 28, 28), 7)
    theirs.load_state_dict(plain_state(ours))  # with the names of the original class
    torch.testing.assert_close(ours(images), theirs(images))
    assert torch.equal(same(images), ours(images)) and len(ours) == len(block_names(ours)) == blocks
    assert build_network(f"{networks}:{name}", (1, 28, 28), 0, "bf16")(images).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name, flags, message",
    [
        ("twice", ("--split-at", 2), "two stages would have the same weights; it is cut before 2"),
        ("pair", ("--split-at", 1), "a stage must return one tensor; it is cut before 1"),
        ("pair", (), "this model cannot make 2 stages; it has no place to cut"),
        ("alone", (), "this model cannot be cut; it is not an nn.Seq"),
    ],
)
def test_a_model_that_cannot_be_split(name, flags, message, networks, train_here):
    with pytest.raises(SuiteError, match=message) as refused:
        train_here("model_parallel_train.py", "--model", f"{networks}:{name}", *flags)
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize("name", ["lenet", "mlp", "strided", "vgg", "resnet8", "torchvision:resnet18"])
@pytest.mark.parametrize("size", [31, 48, 63])
def test_networks_accept_other_image_sizes(name, size):
    model = build_network(name, (3, size, size), 0, classes=4)
    assert model.eval()(torch.zeros(2, 3, size, size)).shape == (2, 4)
    assert (len(model) == 1) == (":" in name)


@pytest.mark.parametrize("name, rank", [("lazy", 4), ("deep", 5)])
def test_layers_with_lazy_or_five_dimensional_weights(name, rank, networks):
    network, same = (build_network(f"{networks}:{name}", (1, 28, 28), 0) for _ in range(2))
    (weight,) = [weight for weight in network.parameters() if weight.dim() == rank]
    assert weight.is_contiguous(memory_format=torch.channels_last if rank == 4 else torch.contiguous_format)
    assert network.training and network(torch.randn(3, 1, 28, 28)).shape == (3, 10)
    assert all(torch.equal(*weights) for weights in zip(network.parameters(), same.parameters(), strict=True))


BUILD = "from torch import nn\ndef build(shape, classes): return "
TWO_HEADS = """from torch import nn


class Net(nn.Linear):
    def forward(self, images):
        logits = super().forward(images.flatten(1))
        return (logits, logits) if self.training else logits


def build(shape, classes):
    return Net(784, 10)
"""


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no such file"),
        ("def build(:", "cannot be loaded; SyntaxError"),
        ("import nowhere", "cannot be loaded; ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "cannot be loaded; AttributeError"),
        ("def build(shape): pass", "failed; TypeError: build() takes 1 positional argument but 2 were given"),
        (f"{BUILD}7", "must return an nn.Module; it returned int"),
        (f"{BUILD}nn.Linear(5, 5)", "does not take images of shape (1, 28, 28)"),
        (f"{BUILD}nn.Sequential(nn.LazyConv2d(2, 30), nn.Flatten())", "does not take images of shape (1, 28, 28)"),
        (f"{BUILD}nn.Flatten()", "logits (B, 10); two images gave (2, 784); let its last layer have one output for"),
        (TWO_HEADS, "logits (B, 10); two images gave tuple; return the logits alone, in training too"),
    ],
)
def test_a_broken_network_gives_one_line(text, message, tmp_path):
    file = tmp_path / "net.py"
    if text:
        file.write_text(text)
    with pytest.raises(SuiteError, match=re.escape(message)) as refused:
        build_network(f"{file}:build", (1, 28, 28), 0)
    assert refused.value.exit_code == USAGE


UNUSED = """from torch import nn


class Unused(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.other = nn.Linear(3, 3)


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), Unused(784, classes))
"""


@pytest.mark.slow
def test_ddp_names_the_remedy_for_a_weight_without_gradient(project, tmp_path):
    (tmp_path / "net.py").write_text(UNUSED)
    done = project("ddp_train.py --spawn 2 --no-curves --model", f"{tmp_path / 'net.py'}:build")
    assert done.returncode == 1
    assert "a weight takes no part in the loss; remove it from the network, or give it requires_grad" in done.stderr


@pytest.mark.slow
def test_a_broken_model_ends_a_comparison_before_anything_starts(project, data_root, tmp_path):
    (tmp_path / "net.py").write_text("def build(shape, classes): return 7")
    flags = "--model", f"{tmp_path / 'net.py'}:build", "--dataset", "synthetic-mnist", "--data-root", data_root
    done = project("compare_parallel.py", *flags, "--output-dir", tmp_path / "out", tiny=False)
    assert done.returncode == 2 and "must return an nn.Module; it returned int" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    "name, message",
    [
        ("resnet5", "has no classifier resnet5; .*did you mean torchvision:resnet50"),
        ("resnet18", "does not take images of shape .1, 28, 28.; .* to have 3 channels, .*; see --dataset"),
    ],
)
def test_torchvision_networks_that_cannot_be_used(name, message):
    with pytest.raises(SuiteError, match=message):
        build_network(f"torchvision:{name}", (1, 28, 28), 0)


def test_another_network_is_advised_for_one_of_torchvision_with_two_outputs(monkeypatch):
    two = torch.nn.Module()
    two.forward = lambda images: (images, images)  # as googlenet in training
    monkeypatch.setattr("common.models.build._of_torchvision", lambda *_: two)
    with pytest.raises(SuiteError, match="two images gave tuple; choose another, e.g. torchvision:resnet50"):
        build_network("torchvision:googlenet", (3, 32, 32), 0)


# ---- Image folders


@pytest.fixture
def load(images, tmp_path):
    """load(image_size, folder): load a folder of images, my_images by default."""

    def load(image_size=16, folder=images):
        places = {"dataset": f"folder:{folder}", "data_root": str(tmp_path / "data")}
        return load_image_set(make_config(**places, image_size=image_size))

    return load


def test_a_folder_is_decoded_again_only_when_the_result_would_differ(images, load, monkeypatch):
    image_set = load(32)
    assert image_set.classes == ("cat", "dog", "emu") and image_set.image_shape == (3, 32, 32)
    assert sorted(image_set.train_labels) == [0] * 4 + [1] * 4 + [2] * 4 and len(image_set.test_labels) == 6
    assert len(set(image_set.train_labels[:6])) > 1  # shuffled, so that --train-size 4 has several classes
    emu = Image.open(images / "test" / "emu" / "1.png").resize((32, 32), Image.BILINEAR)
    assert np.abs(image_set.test_images[5].astype(int) - np.asarray(emu).astype(int)).max() <= 1
    assert image_set.mean == pytest.approx((image_set.train_images / 255).mean((0, 1, 2)))
    assert image_set.std == pytest.approx((image_set.train_images / 255).std((0, 1, 2)))
    with monkeypatch.context() as patch:
        patch.setattr("common.data.image_set.read_folder", lambda *_: pytest.fail("decoded again"))
        patch.setattr("common.data.image_set._statistics", lambda _: pytest.fail("computed again"))
        again = load(32)
        assert (again.train_images == image_set.train_images).all()
        assert (again.mean, again.std) == (image_set.mean, image_set.std)
        with pytest.raises(pytest.fail.Exception):
            load(16)
        patch.setattr("common.data.folder.DECODING", 0)  # as decoded by an older version
        with pytest.raises(pytest.fail.Exception):
            load(32)
    Image.new("L", (8, 8)).save(images / "train" / "cat" / "9.pgm")
    assert len(load(32).train_labels) == 13


def test_a_changed_image_behind_a_link_is_noticed_and_val_may_replace_test(images, load, tmp_path):
    (tmp_path / "subset").mkdir()
    for part, name in (("train", "train"), ("test", "val")):
        (tmp_path / "subset" / name).symlink_to(images / part)
    assert len(load(folder=tmp_path / "subset").train_labels) == 12
    (images / "train" / "cat" / "0.png").unlink()
    image_set = load(folder=tmp_path / "subset")
    assert (len(image_set.train_labels), len(image_set.test_labels)) == (11, 6)


@pytest.mark.parametrize("loader", ["workers", "resident"])
def test_a_constant_channel_becomes_zero(loader, images, load):
    for number, file in enumerate(images.glob("*/*/*.png")):
        Image.new("RGB", (8, 8), (number % 2, 0, 71)).save(file)
    config = make_config(batch_size=4, loader=loader, augment=False)
    train_loader, *_ = make_loaders(load(8), config)
    batch, _ = next(iter(train_loader))
    assert (batch[:, 1:].abs() < 1e-6).all() and batch[:, 0].std() > 0.1


def test_fewer_test_images_than_ranks(load):
    with pytest.raises(
        SuiteError, match="needs .* a test image; 12 training and 6 test images for 8 ranks; start fewer ranks$"
    ):
        make_loaders(load(), make_config(batch_size=8), rank=7, world_size=8)


@pytest.mark.parametrize("loader", ["workers", "resident"])
def test_training_on_a_folder_uses_its_classes(loader, images, train_here, tmp_path):
    flags = f"--image-size 32 --loader {loader} --model vgg --train-size 12 --batch-size 4".split()
    places = "--dataset", f"folder:{images}", "--data-root", tmp_path / "data"
    result, _, _ = train_here("data_parallel_train.py", *flags, *places)
    assert list(result["class_accuracy"]) == ["cat", "dog", "emu"] and result["epochs"][0]["samples"] == 12
    (figure,) = tmp_path.glob("*.png")
    assert "/" not in figure.name and ":" not in figure.name


def damage_png(images):
    file = images / "train" / "cat" / "0.png"
    Image.new("L", (8, 8)).save(file)
    before, after = file.read_bytes().split(b"IDAT")
    file.write_bytes(before[:-1] + b"\0IDAT" + after)  # the length of the pixels


def write_eps_named_png(images):
    Image.new("RGB", (8, 8)).save(images / "train" / "cat" / "0.png", "EPS")


def link(name, target):
    return lambda images: (images / name).symlink_to(target)


@pytest.mark.parametrize(
    "damage, message",
    [
        (shutil.rmtree, "/my_images/train"),
        (lambda images: shutil.rmtree(images / "test"), "no images in "),
        (lambda images: shutil.rmtree(images / "test" / "emu"), "different classes; only one of them has emu"),
        (lambda images: [file.unlink() for file in (images / "train" / "cat").iterdir()], "only one of them has cat"),
        (lambda images: (images / "test" / "emu" / "0.png").write_bytes(b"no image"), "cannot read the image"),
        (damage_png, "cat/0.png; SyntaxError: broken PNG file"),
        (write_eps_named_png, "0.png; UnidentifiedImageError"),  # not opened with Ghostscript
        (link("train/cat/9.png", "missing.png"), "/9.png"),
        (link("train/cat/9.png", "9.png"), "/9.png"),
    ],
)
def test_an_unusable_folder_gives_one_line(damage, message, images, load, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    damage(images)
    with pytest.raises(SuiteError, match=re.escape(message)) as refused:
        load()
    assert refused.value.exit_code == DATA
