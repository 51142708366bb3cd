"""The real sets: FashionMNIST of the Debian package, the others in $PALMETTE_DATA, where they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from data_sets import idx
from palmette.training.data import SHA256, decoded, load, places
from palmette.training.data.idx import read_idx
from palmette.training.data.images import mean_and_sd

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_the_original_byte_for_byte():
    contents = {
        "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
    for name, want in contents.items():
        body = idx(read_idx(DEBIAN / f"{name}-ubyte.gz").numpy())
        assert hashlib.sha256(body).hexdigest() == want
    images = load("FashionMNIST", folder=DEBIAN)
    assert images.sha256() == SHA256["FashionMNIST"]
    assert images.train_images.shape == (60_000, 1, 28, 28)
    assert images.train_labels.bincount().tolist() == [6_000] * 10
    assert mean_and_sd(images.train_images) == (images.mean, images.sd)
    with pytest.raises(ValueError, match=r"holds FashionMNIST, not MNIST"):
        load("MNIST", folder=DEBIAN)


def real(name):
    """The folder of a set in $PALMETTE_DATA, if it is there."""
    folders = [Path(os.environ.get("PALMETTE_DATA", "/nowhere")) / sub for sub in places.PLACES[name].folders]
    return next((path for path in folders if path.is_dir()), None)


@pytest.mark.parametrize(
    ("name", "counts", "found"),
    [
        ("MNIST", (60_000, 10_000), ((0.1307,), (0.3081,))),
        ("CIFAR10", (50_000, 10_000), ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
        pytest.param(
            *("CIFAR100", (50_000, 10_000), ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("TinyImageNet", (100_000, 10_000), ((0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816))),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_real_set_is_the_original(name, counts, found, tmp_path, monkeypatch):
    folder = real(name)
    if folder is None:
        pytest.skip(f"$PALMETTE_DATA has no {name}")
    (tmp_path / "file").touch()
    monkeypatch.setattr(decoded, "cache_folder", lambda: tmp_path / "file")  # no gigabyte is left behind
    images = load(name, folder=folder)
    assert images.sha256() == SHA256[name]
    assert (len(images.train_images), len(images.test_images)) == counts
    assert mean_and_sd(images.train_images) == found
    if name != "MNIST":
        assert images.train_labels.bincount().unique().tolist() == [counts[0] // images.classes]
        assert images.test_labels.bincount().unique().tolist() == [counts[1] // images.classes]
