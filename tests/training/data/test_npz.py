"""A user's own arrays."""

from __future__ import annotations

import numpy as np
import pytest
from data_sets import no_other_data, pixels  # noqa: F401

from palmette.training.data import load


def save_npz(path, **change):
    arrays = {"x_train": pixels(6, 5, 4), "y_train": np.array([0, 1, 2, 0, 1, 2])}
    arrays |= {"x_test": pixels(2, 5, 4), "y_test": np.array([2, 0])} | change
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("x", "shape"), [((5, 4), (1, 5, 4)), ((5, 4, 3), (3, 5, 4)), ((3, 5, 4), (3, 5, 4)), ((5, 4, 1), (1, 5, 4))]
)
def test_an_npz_with_channels_first_last_or_none(tmp_path, x, shape):
    path = save_npz(tmp_path / "own.npz", x_train=pixels(6, *x), x_test=pixels(2, *x))
    images = load(path)
    assert images.shape == shape
    assert images.classes == 3
    want = pixels(6, *x)
    want = want.transpose(0, 3, 1, 2) if len(x) == 3 and x[0] == 5 else want.reshape(6, *shape)
    assert np.array_equal(images.train_images.numpy(), want)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y_test": None}, "needs the arrays x_train, y_train, x_test, y_test, y_test is missing"),
        ({"x_train": np.zeros((6, 5, 4))}, r"x_train in .*own\.npz' must be uint8 .* got float64 \(6, 5, 4\)"),
        ({"x_train": pixels(6, 20)}, r"got uint8 \(6, 20\)"),
        ({"x_train": pixels(6, 5, 4, 2)}, "neither end can be the channels"),
        ({"x_train": pixels(6, 3, 4, 3)}, "both ends could be the channels"),
        ({"x_test": pixels(2, 4, 4)}, "must have one shape, got 1×5×4 and 1×4×4"),
        ({"x_test": pixels(0, 5, 4)}, "x_test .* got uint8"),
        ({"y_train": np.array([0, 1])}, r"training images of own in .*own\.npz' .* got 6 images and 2 labels"),
        ({"y_train": np.array([0.0] * 6)}, r"y_train in .* whole numbers N or N×1, got float64 \(6,\)"),
        ({"y_train": np.array([-1] * 6)}, "each at least once, got -1 where 0 is expected"),
        (
            {"y_train": np.array([1, 2, 3] * 2)},
            "must be 0, 1, 2 and so on, each at least once, got 1 where 0 is expected",
        ),
        (
            {"y_train": np.array([0, 1, 10**9] * 2)},
            r"y_train in .*own\.npz' .* got 1000000000 where 2",
        ),
        ({"y_train": np.array([True] * 6)}, r"whole numbers N or N×1, got bool \(6,\)"),
        ({"y_train": np.zeros(6, int), "y_test": np.zeros(2, int)}, r"two or more classes, got 1 in .*own\.npz"),
        ({"y_test": np.array([0, 3])}, "labels of the test images of own .* must be from 0 to 2, got 3"),
        ({"y_test": np.array([{}, {}])}, "could not be read as .npz"),
    ],
)
def test_a_malformed_npz_is_reported_with_its_problem(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        load(save_npz(tmp_path / "own.npz", **change))


@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 1, 4, 5), (6, 4, 5, 1)])
def test_images_are_contiguous_for_any_order_in_the_file(tmp_path, shape):
    x = np.arange(120, dtype=np.uint8).reshape(shape)
    labels = np.arange(6) % 2
    data = load(
        save_npz(tmp_path / "own.npz", x_train=np.asfortranarray(x), y_train=labels, x_test=x, y_test=labels)
    )
    assert data.train_images.is_contiguous()  # as the kernels for a GPU take them
    assert np.array_equal(data.train_images.numpy(), data.test_images.numpy())


def test_a_damaged_npz_raises_value_error(tmp_path):
    body = save_npz(tmp_path / "own.npz").read_bytes()
    for length in range(0, len(body), 97):
        (tmp_path / "own.npz").write_bytes(body[:length])
        with pytest.raises(ValueError, match=r"own\.npz' could not be read as \.npz"):
            load(tmp_path / "own.npz")


def test_other_files_and_missing_paths_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "b.npz").write_bytes(b"")
    (tmp_path / "c.txt").write_text("")
    for name, said in (
        ("a.npz", "could not be read"),
        ("b.npz", "could not be read"),
        ("c.txt", "a folder, an .npz"),
    ):
        with pytest.raises(ValueError, match=said):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"no data set is called 'ImageNet' \(digits, MNIST"):
        load("ImageNet")
