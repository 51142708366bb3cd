"""An epoch on images that are resident and batched, compared with a `DataLoader` that transforms one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import palmette as pm
from benchmarks.meters import Figure
from palmette.training.data.images import Images
from palmette.training.fleet import Fleet
from palmette.training.members import Member
from palmette.training.models import build
from palmette.training.recipe import Recipe


def on_cpu() -> list[Figure]:
    """An epoch, compared with a `DataLoader`."""
    images = pixels((1, 28, 28), 60_000, 10, augment=False)
    ours = epoch_seconds(fleet("mlp", images, Recipe(), 1).epoch, 3)
    theirs = min(plain_seconds("mlp", images, workers) for workers in (0, 2))
    return [
        Figure(
            "an epoch of the MLP on FashionMNIST, masks held",
            f"{ours:.3f} s",
            "`DataLoader` over per-image transforms",
            f"{theirs:.2f} s",
            f"{theirs / ours:.1f}× faster",
        )
    ]


def epoch_seconds(epoch: Callable[[int], object], times: int) -> float:
    """Seconds of the fastest epoch after a warm-up epoch."""
    taken = []
    for number in range(times + 1):
        began = time.perf_counter()
        epoch(number)  # returns a score, so the device has finished
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def pixels(shape: tuple[int, int, int], count: int, classes: int, *, augment: bool) -> Images:
    """A data set of random pixels; times do not depend on the content of images."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    name = {10: "CIFAR10", 100: "CIFAR100"}[classes] if augment else "FashionMNIST"
    mean, sd = (0.5,) * shape[0], (0.25,) * shape[0]
    return Images(
        pixels, labels, pixels[:9], labels[:9], classes=classes, name=name, mean=mean, sd=sd, augment=augment
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fleet(model: str, images: Images, recipe: Recipe, size: int) -> Fleet:
    """A fleet of networks with half of their weights pruned, seeds 0, 1, …"""
    members = []
    for seed in range(size):
        network = build(model, shape=images.shape, classes=images.classes, seed=seed).to(_device())
        pruner = pm.Pruner(network, budget=pm.FixedRatio(0.5), scope="layer")
        pruner.step()
        members.append(Member(network, recipe.make_optimizer(network.parameters()), seed, masks=pruner.masks))
    return Fleet(members, images, recipe)


class _OneByOne(Dataset[tuple[Tensor, int]]):
    """Each image through Pillow to a tensor, with the steps of torchvision's data sets and transforms.

    These are: a slice of a tensor to an image; flip and crop if `augment`; `ToTensor`, which copies to an array,
    puts channels first and divides by 255; `Normalize`, which copies, makes tensors of mean and sd, and refuses an
    sd of zero.
    """

    def __init__(self, images: Images) -> None:
        self.pixels, self.labels, self.augment = images.train_images, images.train_labels, images.augment
        self.mean, self.sd = images.mean, images.sd

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels, label = self.pixels[index].numpy(), int(self.labels[index])
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        if self.augment:
            if torch.rand(1) < 0.5:
                picture = ImageOps.mirror(picture)
            padded = np.pad(np.asarray(picture), ((4, 4), (4, 4), (0, 0)), mode="reflect")
            left, top = (int(torch.randint(0, 9, (1,))) for _ in range(2))
            picture = Image.fromarray(padded).crop((left, top, left + picture.width, top + picture.height))
        array = torch.from_numpy(np.array(picture, copy=True)).view(picture.height, picture.width, -1)
        tensor = array.permute(2, 0, 1).contiguous().to(torch.float32).div(255).clone()
        mean, sd = (torch.as_tensor(x, dtype=tensor.dtype, device=tensor.device) for x in (self.mean, self.sd))
        if (sd == 0).any():
            raise ValueError("an sd of zero")
        return tensor.sub_(mean.view(-1, 1, 1)).div_(sd.view(-1, 1, 1)), label


def plain_seconds(model: str, images: Images, workers: int) -> float:
    """Seconds of an epoch of a usual training loop without masks, from 60 batches after 20 to warm up."""
    device, recipe = _device(), Recipe()
    network = build(model, shape=images.shape, classes=images.classes).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loader = DataLoader(_OneByOne(images), batch_size=recipe.batch, shuffle=True, num_workers=workers)
    began, first, last = 0.0, 20, 80
    for number, (pixels, labels) in enumerate(loader):
        if number == first:
            began = time.perf_counter()
        if number == last:
            break
        pixels, labels = pixels.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(network(pixels), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        loss.item()
    return (time.perf_counter() - began) / (last - first) * len(images.train_images) / recipe.batch
