"""What is known of each data set before it is read. To add one with a supported layout, add its record to DATASETS."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A file to download: a .tar.gz, or a .gz of one file."""

    name: str
    md5: str
    files: Mapping[str, str]  # path of each unpacked file below the data directory → md5


@dataclass(frozen=True)
class DataSet:
    """One data set. The fields with defaults are for data sets that are downloaded."""

    layout: str  # file format or generator: a name in data.image_set.LAYOUTS or data.synthetic.DRAWN
    shape: tuple[int, int, int, int]  # (N, H, W, C) of the training images
    model: str  # default of --model
    fast: Mapping[str, object]  # defaults with --recipe fast
    classes: tuple[str, ...]
    places: tuple[str, ...] = ()  # URLs of directories with the archives
    archives: tuple[Archive, ...] = ()
    mean: tuple[float, ...] = ()  # of the training images, per channel, on a 0..1 scale
    std: tuple[float, ...] = ()
    sha256: str = ""  # ImageSet.sha256 of the decoded data set

    @property
    def files(self) -> dict[str, str]:
        return {file: md5 for archive in self.archives for file, md5 in archive.files.items()}


# Chosen by trials on 2 CPU cores for the shortest training to 99% on MNIST and to 90% on CIFAR-10. Their results are in
# docs/performance.md.
FAST = {"loader": "resident", "precision": "bf16", "optimizer": "muon", "schedule": "linear"}
GREY = {"model": "strided", "augment": False, "lr": 0.007, "batch_size": 256, "epochs": 1, "label_smoothing": 0.05}
FAST_GREY = FAST | GREY | {"max_steps": 160}
COLOUR = {"model": "airbench", "crop_padding": "reflect", "lr": 0.012, "batch_size": 512, "epochs": 4}
FAST_COLOUR = FAST | COLOUR | {"label_smoothing": 0.2}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


def _idx(folder: str, *md5s: tuple[str, str]) -> tuple[Archive, ...]:
    """Return the four archives of a data set in IDX format. md5s: (of the archive, of the unpacked file)."""
    names = "train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte".split()
    return tuple(
        Archive(f"{name}.gz", packed, {f"{folder}/raw/{name}": md5})
        for name, (packed, md5) in zip(names, md5s, strict=True)
    )


DATASETS = {
    "cifar10": DataSet(
        layout="cifar",
        shape=(50_000, 32, 32, 3),
        model="vgg",
        fast=FAST_COLOUR,
        classes=_names("airplane|automobile|bird|cat|deer|dog|frog|horse|ship|truck"),
        places=("https://www.cs.toronto.edu/~kriz",),
        archives=(
            Archive(
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                {
                    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
                    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
                },
            ),
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        sha256="d7b6f8581f2b4abd8d4f091c0f77d6b9f6359062419c158df92fe98e0de620ad",
    ),
    "mnist": DataSet(
        layout="idx",
        shape=(60_000, 28, 28, 1),
        model="lenet",
        fast=FAST_GREY,
        classes=_names("0 - zero|1 - one|2 - two|3 - three|4 - four|5 - five|6 - six|7 - seven|8 - eight|9 - nine"),
        places=("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
        archives=_idx(
            "MNIST",
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
        mean=(0.1307,),
        std=(0.3081,),
        sha256="ea3a4064cd7cea8b1c28a7a76c02e53f4ebe7628e8017a011384e5c14dadc0a2",
    ),
    "fashion-mnist": DataSet(
        layout="idx",
        shape=(60_000, 28, 28, 1),
        model="lenet",
        fast=FAST_GREY,
        classes=_names("T-shirt/top|Trouser|Pullover|Dress|Coat|Sandal|Shirt|Sneaker|Bag|Ankle boot"),
        places=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        archives=_idx(
            "FashionMNIST",
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        mean=(0.2860,),
        std=(0.3530,),
        sha256="d9cac98ca9d6bad5b3392dd268ddbf620fe7e3d01757177abf34dee72a61ee95",
    ),
    "synthetic-cifar10": DataSet(
        layout="shapes",
        shape=(10_000, 32, 32, 3),
        model="vgg",
        fast=FAST_COLOUR,
        classes=_names("disc|square|triangle|star|ring|cross|crescent|hourglass|stripes|checkerboard"),
    ),
    "synthetic-mnist": DataSet(
        layout="digits", shape=(10_000, 28, 28, 1), model="lenet", fast=FAST_GREY, classes=tuple("0123456789")
    ),
}
RECIPES = {"fast": {name: known.fast for name, known in DATASETS.items()}}  # recipe → data set → changed defaults
