"""The transforms of one image: PIL image (H, W[, 3]) in, normalised float32 tensor (C, H, W) out."""


def training_transform(mean: tuple[float, ...], std: tuple[float, ...], augment: bool):
    """Return the torchvision transform of a training image; mean and std are per channel, on a 0..1 scale.

    Colour images (three channels): crop of the image padded by 4, then a mirror image half of the time, as in He et
    al., "Deep Residual Learning", 2016, section 4.2. Grey images: rotation up to 10 degrees, shift up to 10 %, scale
    0.9 to 1.1.
    """
    from torchvision import transforms

    if not augment:
        random = []
    elif len(mean) == 3:
        random = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    else:
        random = [transforms.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1))]
    return transforms.Compose([*random, transforms.ToTensor(), transforms.Normalize(mean, std)])
