"""Map-style data sets of PyTorch."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
import torch
from command import palmette
from data_sets import pixels

from palmette.training.data import load


class Items:
    """Images and labels, with a change to each image."""

    def __init__(self, images, labels, change=lambda image: image):
        self.images, self.labels, self.change = images, labels, change

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.change(self.images[index]), self.labels[index]


def to_tensor(image):
    """As torchvision's ToTensor."""
    return torch.from_numpy(image.transpose(2, 0, 1)).float().div(255)


def to_picture(image):
    from PIL import Image

    return Image.fromarray(image)


def pair(*, train=None, test=None, labels=(0, 1, 2, 0, 1, 2), change=lambda image: image):
    train = pixels(6, 5, 4, 3) if train is None else train
    test = pixels(2, 5, 4, 3) if test is None else test
    return Items(train, list(labels), change), Items(test, [2, 0], change)


@pytest.mark.parametrize(
    "change", [np.asarray, to_picture, to_tensor, lambda image: torch.from_numpy(image).permute(2, 0, 1)]
)
def test_every_form_of_an_image_is_read_exactly(change):
    images = load(pair(change=change))
    assert np.array_equal(images.train_images.numpy(), pixels(6, 5, 4, 3).transpose(0, 3, 1, 2))
    assert (images.classes, images.train_labels.tolist()) == (3, [0, 1, 2, 0, 1, 2])
    assert not images.augment


@pytest.mark.parametrize("kind", [int, np.int32, torch.tensor], ids=["int", "numpy", "torch"])
def test_labels_are_whole_numbers_of_any_kind(kind):
    images = load(pair(labels=map(kind, (2, 1, 0, 0, 1, 2))))
    assert images.train_labels.tolist() == [2, 1, 0, 0, 1, 2]


def test_a_data_set_of_tensors_is_read_as_it_is():
    x, y = torch.arange(48, dtype=torch.uint8).reshape(4, 1, 3, 4), torch.tensor([0, 1, 1, 0])
    data = torch.utils.data.TensorDataset(x, y)
    images = load((data, torch.utils.data.Subset(data, [3])))
    assert torch.equal(images.train_images, x)
    assert torch.equal(images.test_images, x[3:])


def noisy(image, count=itertools.count()):  # noqa: B008, one count for all calls
    return image // 2 + next(count) % 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pair()[0], r"two data sets, for training and test, .* got <"),
        ((pair()[0], iter(())), r"two data sets, .* got Items, tuple_iterator"),
        ((pair()[0],) * 3, "got Items, Items, Items"),
        (pair(train=[]), "the train part of data set 'own' must have an image, got none"),
        (pair(test=[pixels(5, 4), pixels(6, 4)]), r"one shape, got \(5, 4\) and, at 1, \(6, 4\)"),
        (pair(test=pixels(2, 6, 4, 3)), "must have one shape, got 3×5×4 and 3×6×4"),
        (pair(labels="abcabc"), "must have whole numbers as labels, got 'a' at 0"),
        (pair(labels=[0, 1, 2.0, 0, 1, 2]), "must have whole numbers as labels, got 2.0 at 2"),
        (pair(labels=[1, 2, 3] * 2), "each at least once, got 1 where 0 is expected"),
        (pair(labels=[0, 1]), r"the train part of data set 'own' fails at 2 at .*IndexError"),
        (pair(change=noisy), "the same image each time, got two at 0: leave out random transforms"),
        (pair(change=lambda image: image / 255 - 0.5), "got float64 in .* at 0: leave out Normalize"),
        (pair(change=lambda image: image / 300), "leave out Normalize"),
        (pair(change=lambda image: image * np.nan), "leave out Normalize"),
        (pair(change=lambda image: image.astype(int)), "got int64 in the train part"),
        (pair(change=bytes), "got bytes in the train part of data set 'own' at 0"),
        (pair(change=lambda image: image[..., :2]), "neither end can be the channels"),
        (([{"image": 0}], [{"image": 0}]), "must have items .image, label., got dict at 0"),
        (([(0, 0, 0)], [(0, 0, 0)]), "got 3 values at 0"),
    ],
)
def test_what_is_no_pair_of_images_and_labels_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        load(given)


MODULE = """
import numpy as np
with np.load("own.npz") as file:
    arrays = dict(file)
pair = [list(zip(arrays[f"x_{part}"], arrays[f"y_{part}"])) for part in ("train", "test")]
def function(): return pair
def failing(): raise KeyError("path")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with the module of a user."""
    train, test = np.arange(64) % 4, np.arange(16) % 4
    np.savez(tmp_path / "own.npz", x_train=pixels(64, 6, 6), y_train=train, x_test=pixels(16, 6, 6), y_test=test)
    (tmp_path / "own_data_sets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_data_sets", None)


def test_a_module_names_a_pair_or_a_function(folder):
    expected = load("own.npz")
    for name in ("pair", "function"):
        images = load(f"own_data_sets:{name}")
        assert images.sha256() == expected.sha256()
        assert (images.name, images.source) == (name, f"own_data_sets:{name}")
    with pytest.raises(ValueError, match=r"data set 'own_data_sets:failing': failing\(\) fails at .*KeyError"):
        load("own_data_sets:failing")
    with pytest.raises(ValueError, match="module 'own_data_sets' was imported, but has no 'other'"):
        load("own_data_sets:other")


def test_runs_on_a_data_set_are_those_on_its_arrays(folder):
    flags = "--method sap --seeds 0 --epochs 1 --rounds 1 --batch 16 --device cpu"
    found = []
    for data in ("own.npz", "own_data_sets:pair"):
        palmette("run", "--data", data, "--out", f"of-{data[-4:]}", *flags.split())
        files = sorted(folder.glob(f"of-{data[-4:]}/*/records.jsonl"))
        records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        found.append([(record["train"], record["test"], record["retrained"]) for record in records])
    assert found[0] == found[1] != []
