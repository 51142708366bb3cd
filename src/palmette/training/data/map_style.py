"""Map-style data sets of PyTorch, read once into tensors: `torch.utils.data.Dataset`, or anything like it."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from torch import Tensor

from palmette.errors import in_full, place_of
from palmette.pruning.methods import imported
from palmette.training.data.images import Images
from palmette.training.data.pictures import to_array
from palmette.training.data.user_images import of_arrays

_TWICE = 8  # items that are read again


def read_named(name: str) -> Images:
    """The pair of data sets at ``"module:name"``, or what a function of that name returns."""
    found = imported(name, "data set")
    if callable(found) and not _is_map_style(found):
        try:
            found = found()
        except Exception as error:  # user code may raise anything
            called = f"{name.partition(':')[2]}()"
            raise ValueError(f"data set {name!r}: {called} fails{place_of(error)}: {in_full(error)}") from error
    return read_pair(found, name)


def read_pair(pair: Any, name: str = "own") -> Images:
    """Training and test data sets of (image, label), called `name` in errors.

    Images have one shape, H×W, H×W×C or C×H×W with 1 or 3 channels: Pillow's, uint8 arrays and tensors, or floats
    k/255 as `ToTensor` of torchvision makes them. Labels are whole numbers from 0, each at least once in the
    training part. Mean and sd are those of the training part, and images are not augmented.
    """
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_map_style, pair))):
        rule = "must be two data sets, for training and test, each with len() and items (image, label)"
        got = ", ".join(type(one).__name__ for one in pair) if isinstance(pair, tuple | list) else repr(pair)
        raise ValueError(f"data set {name!r} {rule}, got {got}")
    arrays = {}
    for part, items in zip(("train", "test"), pair, strict=True):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = _read(items, f"the {part} part of data set {name!r}")
    return of_arrays(arrays, f"data set {name!r}", name=name.partition(":")[2] or name, source=name)


def _is_map_style(found: Any) -> bool:
    return hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, type)


def _read(items: Any, what: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if not len(items):
        raise ValueError(f"{what} must have an image, got none")
    first, _ = _item(items, 0, what)
    images = np.empty((len(items), *first.shape), np.uint8)
    labels = np.empty(len(items), np.int64)
    for index in range(len(items)):
        image, labels[index] = _item(items, index, what)
        if image.shape != first.shape:
            raise ValueError(
                f"{what} must have images of one shape, got {first.shape} and, at {index}, {image.shape}"
            )
        images[index] = image
    for index in range(min(_TWICE, len(items))):
        if not np.array_equal(_item(items, index, what)[0], images[index]):
            raise ValueError(
                f"{what} must give the same image each time, got two at {index}: leave out random transforms"
            )
    return images, labels


def _item(items: Any, index: int, what: str) -> tuple[np.ndarray[Any, Any], int]:
    try:
        item = items[index]
    except Exception as error:  # user code may raise anything
        raise ValueError(f"{what} fails at {index}{place_of(error)}: {in_full(error)}") from error
    if not (isinstance(item, tuple | list) and len(item) == 2):
        got = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise ValueError(f"{what} must have items (image, label), got {got} at {index}")
    image, label = item
    try:
        number = operator.index(label)
    except TypeError:
        raise ValueError(f"{what} must have whole numbers as labels, got {label!r} at {index}") from None
    return _pixels(image, f"{what} at {index}"), number


def _pixels(image: Any, where: str) -> np.ndarray[Any, Any]:
    """Image as uint8 array."""
    if hasattr(image, "convert") and hasattr(image, "mode"):  # Pillow's
        return to_array(image)
    array = image.numpy(force=True) if isinstance(image, Tensor) else image
    rule = "an image must be Pillow's, uint8, or floats k/255 as torchvision's ToTensor makes them"
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{rule}, got {type(image).__name__} in {where}")
    if array.dtype == np.uint8:
        return array
    whole = np.round(array * 255.0) if array.dtype.kind == "f" else np.array(-1.0)
    if array.dtype.kind != "f" or not ((whole >= 0) & (whole <= 255) & (abs(array * 255.0 - whole) < 1e-3)).all():
        raise ValueError(
            f"{rule}, got {array.dtype} in {where}: leave out Normalize; palmette normalizes by mean and sd itself"
        )
    return whole.astype(np.uint8)
