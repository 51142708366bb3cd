"""Published ResNets for CIFAR10 (Idelbayev, pytorch_resnet_cifar10), and the test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

RESNETS = {"ResNet-20": ("resnet20-12fca82f.th", 3), "ResNet-32": ("resnet32-d509ac18.th", 5)}
RESNETS["ResNet-44"] = ("resnet44-014dd654.th", 7)
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, with which they were trained


def test_set(folder: Path) -> tuple[Tensor, Tensor]:
    """The 10,000 test images, normalised, and their labels."""
    raw = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(10_000, 1 + 3072)
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, sd = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, SD))
    return (images - mean) / sd, torch.from_numpy(raw[:, 0].astype(np.int64))
