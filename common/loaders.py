"""The batches of one rank: which images, in which order, augmented how, by how many worker processes."""

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.augment import training_transform
from common.config import RunConfig, per_process, total_workers
from common.data import ImageSet
from common.errors import USAGE, SuiteError
from common.lifetime import end_with_parent


class AugmentedImages:
    """A map-style Dataset: epoch * len + index → (transform(image as PIL), label).

    What is drawn at random for an image depends on the seed, the epoch and the image alone: not on how many ranks and
    workers there are, nor on whether the training was interrupted.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, transform, seed: int):
        self.images, self.labels, self.transform, self.seed = images, labels, transform, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        torch.default_generator.manual_seed(hash((self.seed, key)) % 2**32)  # 1 us; torch.manual_seed takes 100
        index = key % len(self)
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


class EpochSampler(DistributedSampler):
    """A DistributedSampler that tells the data set the epoch with every index, as AugmentedImages takes it."""

    def __iter__(self):
        return (self.epoch * len(self.dataset) + index for index in super().__iter__())


def make_loaders(
    image_set: ImageSet, config: RunConfig, rank: int = 0, world_size: int = 1, pin_memory: bool = False
) -> tuple[DataLoader, DataLoader]:
    """Return (train_loader, test_loader) of one rank; batches are images (B, C, H, W) float32 and labels (B,) int64.

    Training: batch k of all ranks together is the same set of images for every world size, because DistributedSampler
    deals out one permutation in turn. At most world_size - 1 images per epoch are left out, so that all ranks take
    equally many steps; none is used twice. Test: every world_size-th image, without padding, so that over all ranks
    each image counts once. Raises SuiteError (USAGE) if batch size or workers do not divide by the world size.
    """
    batch_size = per_process("--batch-size", config.batch_size, world_size)
    workers = per_process("--num-workers", total_workers(config.num_workers, world_size), world_size)
    if len(image_set.train_labels) < world_size:
        raise SuiteError("every rank needs an image", f"{len(image_set.train_labels)} images for {world_size} ranks",
                         "give a larger --train-size", USAGE)
    transform = training_transform(image_set.mean, image_set.std, config.augment)
    train = AugmentedImages(image_set.train_images, image_set.train_labels, transform, config.seed)
    sampler = EpochSampler(train, world_size, rank, shuffle=True, seed=config.seed, drop_last=True)
    train_loader = DataLoader(
        train, batch_size, sampler=sampler, num_workers=workers, pin_memory=pin_memory, persistent_workers=workers > 0,
        worker_init_fn=end_with_parent, generator=torch.Generator(),  # or it draws from the one that training uses
    )
    shard = slice(rank, None, world_size)
    test = TensorDataset(
        normalize(image_set.test_images[shard], image_set.mean, image_set.std),
        torch.from_numpy(image_set.test_labels[shard]),
    )
    return train_loader, DataLoader(test, batch_size, pin_memory=pin_memory, generator=torch.Generator())


def normalize(images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """Return uint8 images (N, H, W[, C]) as float32 (N, C, H, W), as torchvision's ToTensor and Normalize do."""
    tensor = torch.from_numpy(images.reshape(*images.shape[:3], -1)).permute(0, 3, 1, 2)
    scaled = tensor.contiguous().float().div_(255)
    return scaled.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
