"""A user's own images: a folder of pictures by class, or an `.npz` file of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from palmette.checkpoints.formats.arrays import members
from palmette.training.data.images import Images, mean_and_sd
from palmette.training.data.pictures import by_class, read_pictures

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_folder(folder: Path) -> Images:
    """Pictures in `folder`/train/CLASS/… and `folder`/test/CLASS/…, all of one size, grey or in colour.

    Without a folder test, val is the test part. Classes are numbered in the order of their folder names. Mean and
    sd are those of the training part. Images are not augmented, since flips and crops may change what they show.
    """
    test = next((folder / part for part in ("test", "val") if (folder / part).is_dir()), None)
    if test is None or not (folder / "train").is_dir():
        rule = "needs two folders, train and test (or val), each with a folder of pictures for every class"
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise FileNotFoundError(f"a data set of your own {rule}; {str(folder)!r} has {there}")
    paths, train_labels, names = by_class(folder / "train")
    train_images = read_pictures(paths)
    channels, height, width = train_images.shape[1:]
    paths, test_labels, _ = by_class(test, names)
    test_images = read_pictures(paths, shape=(channels, height, width))
    parts = train_images, train_labels, test_images, test_labels
    return _images(parts, repr(str(folder)), len(names), folder.stem, str(folder))


def read_npz(path: Path) -> Images:
    """Arrays x_train, y_train, x_test and y_test of a NumPy file.

    Images are uint8 N×H×W, N×H×W×C or N×C×H×W. Labels are whole numbers N or N×1, from 0, each at least once in
    y_train. Mean, sd and augmentation are as for `read_folder`.
    """
    try:
        with ZipFile(path) as archive:
            members(archive)
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            missing = [name for name in _ARRAYS if name not in file]
            if missing:
                raise ValueError(f"it needs the arrays {', '.join(_ARRAYS)}, {missing[0]} is missing")
            arrays = {name: file[name] for name in _ARRAYS}
            if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{odd[0]} in it is no array")
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{str(path)!r} could not be read as .npz: {error}") from error
    return of_arrays(arrays, repr(str(path)), name=path.stem, source=str(path))


def of_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], where: str, *, name: str, source: str) -> Images:
    """The data set of four arrays; `where` says in errors what they are in."""
    train_images, test_images = (_pixels(arrays[key], key, where) for key in ("x_train", "x_test"))
    train_labels, test_labels = (_labels(arrays[key], key, where) for key in ("y_train", "y_test"))
    found = train_labels.unique().tolist()
    if found != list(range(len(found))):
        due, got = next(pair for pair in enumerate(found) if pair[0] != pair[1])
        rule = "must be 0, 1, 2 and so on, each at least once"
        raise ValueError(f"the labels y_train in {where} {rule}, got {got} where {due} is expected")
    return _images((train_images, train_labels, test_images, test_labels), where, len(found), name, source)


def _images(
    parts: tuple[Tensor, Tensor, Tensor, Tensor], where: str, classes: int, name: str, source: str
) -> Images:
    if classes < 2:
        raise ValueError(f"a data set must have two or more classes, got {classes} in {where}")
    mean, sd = mean_and_sd(parts[0])
    return Images(*parts, classes=classes, name=name, mean=mean, sd=sd, augment=False, source=source)


def _pixels(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str, where: str) -> Tensor:
    rule = f"{name} in {where} must be uint8 N×H×W, or N×H×W×C or N×C×H×W with 1 or 3 channels"
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.size == 0:
        raise ValueError(f"{rule}, got {array.dtype} {array.shape}")
    images = torch.from_numpy(array)
    if images.dim() == 3:
        return images.unsqueeze(1).contiguous()
    first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
    if first == last:
        why = "both ends could be the channels" if first else "neither end can be the channels"
        raise ValueError(f"{rule}, got {array.shape}: {why}")
    return (images if first else images.permute(0, 3, 1, 2)).contiguous()


def _labels(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str, where: str) -> Tensor:
    row = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if row.ndim != 1 or row.dtype.kind not in "iu":
        raise ValueError(f"{name} in {where} must be whole numbers N or N×1, got {array.dtype} {array.shape}")
    return torch.from_numpy(row.astype(np.int64))
