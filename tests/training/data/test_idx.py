"""MNIST and FashionMNIST."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from data_sets import idx, no_other_data, pixels, write_idx  # noqa: F401

from palmette.training.data import load
from palmette.training.data.idx import read_idx


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read_plain_and_gzipped(tmp_path, name, packed):
    images = load(name, folder=write_idx(tmp_path / "set", packed=packed))
    assert np.array_equal(images.train_images[:, 0].numpy(), pixels(20, 28, 28))
    assert images.test_labels.tolist() == list(range(10))
    assert images.shape == (1, 28, 28)
    assert not images.augment


def test_pixels_keep_their_row_and_column(tmp_path):
    (tmp_path / "x").write_bytes(idx(np.arange(12, dtype=np.uint8).reshape(1, 3, 4)))
    assert read_idx(tmp_path / "x")[0, 1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "begins with 00 00 08"),
        (b"\0\0\x08\x03\0\0", "begins with 00 00 08"),
        (b"hello world", "begins with 00 00 08"),
        (b"\0\0\x0d\x01\0\0\0\0", "begins with 00 00 08"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"promises 6 bytes of shape \(2, 3\), 5 follow"),
        (idx(np.zeros((2, 3), np.uint8)) + b"x", "promises 6 bytes .* more follow"),
        (struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4), "is not whole"),
        (gzip.compress(struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4), mtime=0), "is not whole"),
        (
            gzip.compress(struct.pack(">HBB1I", 0, 8, 1, 3) + bytes(10**7), mtime=0),
            "promises 3 bytes .* more follow",
        ),
        (gzip.compress(idx(pixels(50, 9)), mtime=0)[:-20], "is not a whole gzip file"),
        (b"\x1f\x8bnonsense", "is not a whole gzip file"),
    ],
)
def test_a_damaged_idx_file_is_reported_with_its_problem(tmp_path, body, said):
    (tmp_path / "bad-file").write_bytes(body)
    with pytest.raises(ValueError, match=said) as error:
        read_idx(tmp_path / "bad-file")
    assert "bad-file" in str(error.value)


def test_labels_that_do_not_match_the_images_are_refused(tmp_path):
    folder = write_idx(tmp_path / "set")
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match=r"MNIST in .*set.* one label each, got 20 images and 19 labels"):
        load("MNIST", folder=folder)
    labels.write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"labels of the training images .* must be from 0 to 9, got 10"):
        load("MNIST", folder=folder)
    labels.write_bytes(idx(np.zeros((20, 1), np.uint8)))
    with pytest.raises(ValueError, match=r"labels must have 1 dimensions, .* has shape \(20, 1\)"):
        load("MNIST", folder=folder)
    labels.unlink()
    with pytest.raises(FileNotFoundError, match=r"no train-labels-idx1-ubyte, plain or \.gz, in"):
        load("MNIST", folder=folder)


def test_a_set_without_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"images of MNIST in .*set' must have at least one pixel, got shape"):
        load("MNIST", folder=write_idx(tmp_path / "set", train=0))


@pytest.mark.parametrize(
    ("labels", "held", "name"),
    [("5041921314353617", "MNIST", "FashionMNIST"), ("9003027255095579", "FashionMNIST", "MNIST")],
)
def test_mnist_and_fashion_mnist_files_are_told_apart(tmp_path, labels, held, name):
    folder = write_idx(tmp_path / "set", train=16)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.array([*map(int, labels)], np.uint8)))
    with pytest.raises(ValueError, match=rf"set' holds {held}, not {name}"):
        load(name, folder=folder)
    assert len(load(held, folder=folder).train_images) == 16
