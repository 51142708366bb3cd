"""The UCI handwritten digits, bundled with the package: 1,797 images of 8×8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from palmette.training.data.data_set import DataSet
from palmette.training.data.images import Images

_TRAIN = 1500


def read_digits(folder: Path) -> Images:
    """Read the digits: the first 1,500 are for training, the last 297 for testing.

    The file is the test part of the original release, by 13 writers, in its order. The split is by position, so
    that neighbours, often by one writer, mostly stay on one side of it. Each class has 146 to 153 training and 27
    to 33 test images. Values of 0 to 16 are multiplied by 15 to fill a byte (0 to 240).

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, CC BY 4.0.
    """
    with np.load(folder / "digits.npz") as file:
        x = torch.from_numpy(file["images"]).unsqueeze(1) * 15
        y = torch.from_numpy(file["labels"]).long()
    return Images(
        *(x[:_TRAIN], y[:_TRAIN], x[_TRAIN:], y[_TRAIN:]),
        classes=10,
        name="digits",
        mean=(0.2872,),
        sd=(0.3530,),
        augment=False,
        source="bundled with palmette",
    )


DIGITS = DataSet("digits", read_digits, "76716b394ca734ff3d2d0a09e359a488decf31baf51ae561cd98919f83f713ea")
