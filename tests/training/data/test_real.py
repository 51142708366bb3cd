"""Real data sets, where installed: FashionMNIST of the Debian package, the others in $PALMETTE_DATA."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest
from data_sets import idx

from palmette.training.data import DATA_SETS, load, pictures
from palmette.training.data.idx import read_idx
from palmette.training.data.images import mean_and_sd

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_fashion_mnist_matches_the_release_byte_for_byte():
    for file in DATA_SETS["FashionMNIST"].downloads:
        packed = (DEBIAN / file.name).read_bytes()
        assert packed[:4] == b"\x1f\x8b\x08\x00"
        # With the time and the name that its authors' gzip wrote into the header it is the file they published.
        written = 1504176627 if file.name.startswith("t10k") else 1504176606
        name = file.name.removesuffix(".gz").encode() + b"\0"
        official = b"\x1f\x8b\x08\x08" + written.to_bytes(4, "little") + b"\0\3" + name + packed[10:]
        assert hashlib.md5(official).hexdigest() == file.md5
        assert idx(read_idx(DEBIAN / file.name).numpy()) == gzip.decompress(official)
    images = load("FashionMNIST", folder=DEBIAN)
    assert images.sha256() == DATA_SETS["FashionMNIST"].sha256
    assert images.train_images.shape == (60_000, 1, 28, 28)
    assert images.train_labels.bincount().tolist() == [6_000] * 10
    assert mean_and_sd(images.train_images) == (images.mean, images.sd)
    with pytest.raises(ValueError, match=r"holds FashionMNIST, not MNIST"):
        load("MNIST", folder=DEBIAN)


def real(name):
    """The folder of a set in $PALMETTE_DATA, if it is there."""
    folders = [Path(os.environ.get("PALMETTE_DATA", "/nowhere")) / sub for sub in DATA_SETS[name].folders]
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
def test_real_sets_match_the_official_release(name, counts, found, tmp_path, monkeypatch):
    folder = real(name)
    if folder is None:
        pytest.skip(f"$PALMETTE_DATA has no {name}")
    (tmp_path / "file").touch()
    monkeypatch.setattr(pictures, "cache_folder", lambda: tmp_path / "file")  # writes no gigabyte
    images = load(name, folder=folder)
    assert images.sha256() == DATA_SETS[name].sha256
    assert (len(images.train_images), len(images.test_images)) == counts
    assert mean_and_sd(images.train_images) == found
    if name != "MNIST":
        assert images.train_labels.bincount().unique().tolist() == [counts[0] // images.classes]
        assert images.test_labels.bincount().unique().tolist() == [counts[1] // images.classes]
