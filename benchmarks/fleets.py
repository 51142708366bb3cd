"""Time of an epoch per network when many networks train at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.meters import Figure
from benchmarks.training import epoch_seconds, fleet, pixels, plain_seconds
from palmette.compression.flops import flops_per_image
from palmette.training.data import load
from palmette.training.data.images import Images
from palmette.training.models import MODELS
from palmette.training.recipe import Recipe


def on_cpu() -> list[Figure]:
    """Sixteen members, compared with one."""
    digits = load("digits")
    one, many = (epoch_seconds(fleet("mlp", digits, Recipe(), count).epoch, 20) for count in (1, 16))
    what = "an epoch of 16 MLPs on digits in one fleet"
    ours, theirs = f"{many * 1e3:.0f} ms", f"{one * 1e3:.1f} ms"
    return [Figure(what, ours, "one alone", theirs, f"{many / one:.1f} times")]


def on_gpu() -> Iterator[Figure]:
    """Time per model-epoch, masks held and scores kept, compared with a plain loop over a `DataLoader`."""
    fashion = pixels((1, 28, 28), 60_000, 10, augment=False)
    cifar10, cifar100 = (pixels((3, 32, 32), 50_000, classes, augment=True) for classes in (10, 100))
    cases: tuple[tuple[str, Images, tuple[int, ...], tuple[int, ...]], ...] = (
        # model, images, how many at once, how many compiled
        ("mlp", fashion, (1, 4, 16, 64, 256), ()),
        ("linear", fashion, (1, 64), ()),
        ("cnn", cifar10, (1, 4), ()),
        ("resnet18", cifar10, (1, 4), (1, 4)),
        ("wresnet28x8", cifar100, (1,), ()),
        ("transformer", fashion, (1, 16), ()),
    )
    for model, images, sizes, compiled in cases:
        plain = plain_seconds(model, images, 16) if model in ("mlp", "cnn", "resnet18") else None
        for compile, counts in ((False, sizes), (True, compiled)):
            for size in counts:
                recipe = Recipe(precision="bfloat16", compile=compile)
                each = epoch_seconds(fleet(model, images, recipe, size).epoch, 1 if model[0] == "w" else 2) / size
                yield _figure(model, images, recipe, size, each, plain)
                torch.cuda.empty_cache()


def _figure(model: str, images: Images, recipe: Recipe, size: int, each: float, plain: float | None) -> Figure:
    network = MODELS[model](shape=images.shape, classes=images.classes)
    work = 3 * flops_per_image(network, shape=images.shape) * len(images.train_images)
    how = "at once, compiled" if recipe.compile else "at once"
    return Figure(
        f"{model} on {images.name}, {size} {how}",
        f"{_milliseconds(each)} ms, {work / each / 1e12:.0f} TFLOP/s",
        "plain loop" if plain else "",
        f"{plain:.2f} s" if plain else "",
        f"{plain / each:,.0f}× faster" if plain else "",
    )


def _milliseconds(seconds: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{seconds * 1e3:,.0f}" if seconds > 0.1 else f"{seconds * 1e3:.3g}"
