"""Cost of held masks per training step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import palmette as pm
from benchmarks.meters import Figure, ms, seconds


def cost_per_step() -> list[Figure]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    figures = []
    cases: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("MLP 784-128-256-10, batch 250", _mlp, (250, 784)),
        ("convolutions 64-128-256-512 at 32 × 32, batch 250", _cnn, (250, 3, 32, 32)),
        ("6 Transformer layers of width 512, batch 16 × 128", _encoder, (16, 128, 512)),
    ]
    for name, build, shape in cases if device == "cuda" else cases[:1]:
        images = torch.randn(shape, device=device)
        plain, held = _trainer(build().to(device), images, False), _trainer(build().to(device), images, True)
        free, masked = seconds(plain, 15), seconds(held, 15)
        figures.append(
            Figure(
                f"20 training steps with masks held ({name})",
                ms(masked),
                "the same without",
                ms(free),
                f"{masked / free - 1:+.1%}",
            )
        )
    return figures


def _trainer(model: nn.Module, images: Tensor, held: bool) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="layer")
    if held:
        pruner.hold(optimizer)
        pruner.step()

    def train() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()

    return train


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
