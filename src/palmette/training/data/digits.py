"""The UCI handwritten digits, which come with the package: 1,797 images of 8×8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from palmette.training.data.images import Images

_TRAIN = 1500


def digits(folder: Path | None = None) -> Images:
    """The digits: the first 1,500 for training, the last 297 for testing, nothing drawn at random.

    The file is the test part of the original release, by 13 writers, in its order. The cut is by position, so
    that neighbours, often by one hand, mostly stay on one side of it. Each class has 146 to 153 training and 27 to
    33 test images. Values of 0 to 16 come out 15 times as large, so that they fill a byte (0 to 240). `folder` is
    there because other readers have one; nothing is looked for.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, CC BY 4.0.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images = torch.from_numpy(file["images"]).unsqueeze(1) * 15
        labels = torch.from_numpy(file["labels"]).long()
    return Images(
        images[:_TRAIN],
        labels[:_TRAIN],
        images[_TRAIN:],
        labels[_TRAIN:],
        classes=10,
        name="digits",
        mean=(0.2872,),
        sd=(0.3530,),
        augment=False,
        source="comes with palmette",
    )
