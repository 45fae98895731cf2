"""The loaders of one rank: ResidentLoader, with all images on the device, or a DataLoader with workers."""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.resource_sharer import DupFd

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, get_worker_info

from common.data.augment import batch_transform, image_transform, peak_bytes
from common.data.image_set import ImageSet
from common.errors import MACHINE, USAGE, SuiteError
from common.machine.lifetime import end_with_parent
from common.machine.memory import free_memory
from common.settings.config import RunConfig
from common.settings.totals import per_process, total_workers

# The default in a spawned rank is spawn: a worker would import torch for seconds, and only then end with its rank.
FORK = "fork" if sys.platform == "linux" else None
NICE = 10  # added to a worker's niceness
# Images of an evaluation's batches, unless more are trained at once: without gradients, a larger batch saves time. On a
# CPU at most twice as many as are trained, or the evaluation would set the process's peak memory.
EVALUATION_BATCH, FEWEST = 500, 8


class AugmentedImages(Dataset):
    """The training images, fetched a batch at a time. The key of an image is epoch * len + index.

    torchvision augments each image. The batch is normalised as a whole, with the same bits as ToTensor and Normalize.
    The augmentation depends only on the seed, the epoch and the image, not on ranks or workers.
    """

    def __init__(self, image_set: ImageSet, config: RunConfig):
        self.images, self.labels, self.seed = image_set.train_images, image_set.train_labels, config.seed
        self.transform = image_transform(image_set.image_shape, config.augment, config.crop_padding)
        self.mean, self.std = torch.tensor(image_set.mean), torch.tensor(image_set.std)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images (B, C, H, W) float32, channels-last, and labels (B,) int64."""
        images = torch.from_numpy(np.stack([self._augmented(key) for key in keys]))  # (B, H, W[, C]) uint8
        images = images.view(*images.shape[:3], -1).float().div_(255).sub_(self.mean).div_(self.std)
        return images.permute(0, 3, 1, 2), torch.from_numpy(self.labels[np.array(keys) % len(self)])

    def _augmented(self, key):
        from PIL import Image

        torch.default_generator.manual_seed(hash((self.seed, key)) % 2**32)  # 1 us; torch.manual_seed() takes 100 us
        return np.asarray(self.transform(Image.fromarray(self.images[key % len(self)])))


def _share_batch(batch):
    """A collate_fn. Workers move the batch to shared memory here, where a lack of space raises an error; if they did it
    later, the parent would wait forever."""
    if get_worker_info():
        for part in batch:
            part.share_memory_()
    return batch


class KeySampler(Sampler):
    """The indices of `sampler` as keys of AugmentedImages. limit: so that workers load no images beyond --max-steps."""

    def __init__(self, sampler: DistributedSampler, limit: int | None):
        self.sampler, self.limit = sampler, limit

    def __len__(self) -> int:
        return min(len(self.sampler), self.limit or len(self.sampler))

    def __iter__(self):
        offset = self.sampler.epoch * len(self.sampler.dataset)
        return (offset + index for index in itertools.islice(self.sampler, self.limit))


class ResidentLoader:
    """Batches of a data set that is on `device` as a whole, augmented and normalised there.

    split: images and labels. augmentation: (augment, crop_padding), see batch_transform(). sampler: None for all images
    in order. Raises SuiteError (MACHINE) if the images do not fit into the device's memory.
    """

    def __init__(
        self,
        split: tuple[np.ndarray, np.ndarray],
        image_set: ImageSet,
        batch_size: int,
        device: torch.device,
        augmentation: tuple[bool, str] = (False, "zeros"),
        sampler: DistributedSampler | None = None,
    ):
        images = split[0].reshape(*split[0].shape[:3], -1)  # (N, H, W, C) uint8
        needed, free = peak_bytes(images.shape, *augmentation), free_memory(device)
        if needed > free:
            found = f"{needed / 2**20:,.0f} MiB needed, {free / 2**20:,.0f} MiB free"
            which, advice = "training", "type --loader workers, or give a smaller --train-size"
            if sampler is None:  # the test images are resident with either --loader
                which, advice = "test", "give a smaller --image-size, or fewer test images"
            raise SuiteError(f"the {which} images do not fit into the memory of {device}", found, advice, MACHINE)
        self.transform = batch_transform(torch.from_numpy(images).to(device), *augmentation)
        self.labels = torch.from_numpy(split[1]).to(device)
        self.batch_size, self.device, self.sampler = batch_size, device, sampler
        self.shape = images.shape[1:]
        size = images.shape[1] * images.shape[2]
        mean, std = (torch.tensor(values, device=device).repeat(size) for values in (image_set.mean, image_set.std))
        self.factor, self.offset = 1 / (255 * std), -mean / std  # (H W C)

    def __len__(self) -> int:
        images = self.labels if self.sampler is None else self.sampler
        return -(-len(images) // self.batch_size)

    def __iter__(self):
        order, key = torch.arange(len(self.labels)), 0
        if self.sampler is not None:
            order = torch.from_numpy(np.fromiter(self.sampler, np.int64, len(self.sampler)))  # faster than a list
            key = hash((self.sampler.seed, self.sampler.epoch))
        order = order.to(self.device, non_blocking=True)
        drawn = self.transform.draw(key, order)
        labels = self.labels[order]
        for start in range(0, len(order), self.batch_size):
            batch = slice(start, start + self.batch_size)
            images = self.transform.take(order[batch], *(values[batch] for values in drawn))  # (B, H, W, C) uint8
            images = images.view(-1, len(self.factor)).float().mul_(self.factor).add_(self.offset)
            yield images.view(-1, *self.shape).permute(0, 3, 1, 2), labels[batch]  # (B, C, H, W), channels-last


def check_enough_images(image_set: ImageSet, ranks: int) -> None:
    """Raise SuiteError (USAGE) if there are fewer training or test images than ranks."""
    train, test = len(image_set.train_labels), len(image_set.test_labels)
    if min(train, test) < ranks:
        what = "every rank needs a training image and a test image"
        found = f"{train} training and {test} test images for {ranks} ranks"
        advice = "start fewer ranks" if test < ranks else "give a larger --train-size, or start fewer ranks"
        raise SuiteError(what, found, advice, USAGE)


@contextlib.contextmanager
def end_workers_of(loader) -> Iterator[None]:
    """End a loader's workers after the `with`. Otherwise each would leave a temporary directory: torch 2.15 lets its
    persistent workers live until the interpreter ends, where they are killed."""
    try:
        yield
    finally:
        if iterator := getattr(loader, "_iterator", None):  # there is no public way
            for worker in iterator._workers:
                if worker.is_alive():
                    os.kill(worker.pid, signal.SIGCONT)  # in case it was stopped
            iterator._shutdown_workers()


def _init_worker(_):
    """A worker_init_fn. The worker ends with its parent, not by a terminal's signals, and yields to the training.

    DupFd() creates the socket that passes batches to the parent. A failure here is an error; later, the parent would
    wait forever.
    """
    end_with_parent()
    os.setpgid(0, 0)
    os.nice(NICE)
    with open(os.devnull) as file:
        DupFd(file.fileno())


def make_loaders(
    image_set: ImageSet, config: RunConfig, device: torch.device, sampler: DistributedSampler, labels_only: bool = False
):
    """Return (train_loader, test_loader) of one rank. Batches are images (B, C, H, W) float32 and labels (B,) int64.

    sampler: has drop_last. It splits one permutation, so batch k of all ranks together is the same for any number of
    ranks. Each test image counts once over all ranks. Every rank has the same number of test batches, because some
    methods communicate in each. labels_only: each image is one black pixel.
    Raises SuiteError (USAGE) if batch size or workers do not divide by the number of ranks, if there are fewer images
    than ranks, or if grey images are to be cropped.
    """
    if config.crop_padding != "zeros" and image_set.image_shape[0] != 3:
        what = "--crop-padding is for colour images, which are cropped"
        raise SuiteError(what, "these are grey", "leave it out", USAGE)
    if labels_only:
        pixels = {name: np.zeros_like(getattr(image_set, name)[:, :1, :1]) for name in ("train_images", "test_images")}
        image_set, config = replace(image_set, **pixels), replace(config, loader="resident", augment=False)
    ranks = sampler.num_replicas
    batch_size = per_process("--batch-size", config.batch_size, ranks)
    workers = per_process("--num-workers", total_workers(config.num_workers, ranks), ranks)
    check_enough_images(image_set, ranks)
    train_loader: ResidentLoader | DataLoader
    if config.loader != "workers":
        train, augmentation = (image_set.train_images, image_set.train_labels), (config.augment, config.crop_padding)
        train_loader = ResidentLoader(train, image_set, batch_size, device, augmentation, sampler)
    else:
        train_loader = DataLoader(
            AugmentedImages(image_set, config),
            batch_size,
            sampler=KeySampler(sampler, config.max_steps and config.max_steps * batch_size),
            collate_fn=_share_batch,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_init_worker,
            multiprocessing_context=FORK if workers else None,
            generator=torch.Generator(),  # so that it does not draw from the global one, which training uses
        )
    test = image_set.test_images[sampler.rank :: ranks], image_set.test_labels[sampler.rank :: ranks]
    least, rest = divmod(len(image_set.test_labels), ranks)
    trained = max(1, batch_size // config.accumulate)  # at once
    most = EVALUATION_BATCH if device.type == "cuda" else max(FEWEST, 2 * trained)
    tested = max(trained, min(EVALUATION_BATCH, most))
    while rest and least % tested == 0:
        tested += 1  # or the ranks with one image more would have one batch more
    return train_loader, ResidentLoader(test, image_set, tested, device)
