from __future__ import annotations

import numpy as np
import pytest
import torch

from palmette.training.data import load
from palmette.training.data.augment import PADDING, Preparation, drawn_from, shifted
from palmette.training.data.images import Images
from palmette.training.data.split import usual_size, validation_split
from palmette.training.random_streams import random_bits


def pixels(*shape, seed=0):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def images(n, channels=3, size=32, *, augment=True):
    return Images(
        pixels(n, channels, size, size),
        torch.arange(n) % 10,
        pixels(10, channels, size, size, seed=1),
        torch.arange(10),
        classes=10,
        name="made",
        mean=(0.4914, 0.4822, 0.4465)[:channels],
        sd=(0.2023, 0.1994, 0.2010)[:channels],
        augment=augment,
    )


def slow(image, flip, top, left):
    """One image as a reader would do it by hand: flip, pad by reflection, cut out."""
    array = image.numpy()
    if flip:
        array = array[:, :, ::-1]
    padded = np.pad(array, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)), mode="reflect")
    return padded[:, top : top + array.shape[1], left : left + array.shape[2]]


@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 32, 32), (3, 6, 9), (2, 9, 6)])
def test_a_batch_equals_its_images_augmented_one_by_one(shape):
    batch = pixels(40, *shape)
    flip, top, left = drawn_from(random_bits([3], 40)[0])
    got = shifted(batch, flip, top, left)
    for i in range(40):
        want = slow(batch[i], bool(flip[i]), int(top[i]), int(left[i]))
        assert np.array_equal(got[i].numpy(), want)


def test_reflection_does_not_repeat_the_edge():
    row = torch.tensor([[[[10, 20, 30, 40, 50, 60]] * 5]], dtype=torch.uint8)
    four, none = torch.tensor([4]), torch.tensor([False])
    left = shifted(row, none, four, torch.tensor([0]))
    right = shifted(row, none, four, torch.tensor([8]))
    still = shifted(row, none, four, four)
    flipped = shifted(row, ~none, four, four)
    assert left[0, 0, 0].tolist() == [50, 40, 30, 20, 10, 20]
    assert right[0, 0, 0].tolist() == [50, 60, 50, 40, 30, 20]
    assert still[0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60]
    assert flipped[0, 0, 0].tolist() == [60, 50, 40, 30, 20, 10]


def test_images_no_larger_than_the_padding_are_refused():
    shifts = drawn_from(random_bits([0], 2)[0])
    with pytest.raises(ValueError, match=r"padding of 4 needs larger images, got 4×8"):
        shifted(pixels(2, 1, 4, 8), *shifts)


def test_flips_and_corners_are_drawn_uniformly():
    flip, top, left = drawn_from(random_bits([0], 81_000)[0])
    assert 40_000 < int(flip.sum()) < 41_000
    corners = torch.bincount(top * 9 + left, minlength=81)
    assert len(corners) == 81
    assert 850 < int(corners.min()) <= int(corners.max()) < 1150


def test_a_batch_is_augmented_by_its_positions_in_the_epoch():
    data = images(64)
    prepare, bits = Preparation(data), random_bits([5], 64)[0]
    whole = prepare(data.train_images, bits)
    some = torch.tensor([3, 60, 7])
    assert torch.equal(prepare(data.train_images[some], bits[some]), whole[some])
    assert not torch.equal(whole, prepare(data.train_images))


def test_normalisation_is_divide_subtract_divide_in_float32():
    data = images(20)
    got = Preparation(data)(data.test_images)
    mean, sd = (torch.tensor(x).view(3, 1, 1) for x in (data.mean, data.sd))
    assert got.dtype == torch.float32
    for one, image in zip(got, data.test_images, strict=True):
        assert torch.equal(one, (image.to(torch.float32) / 255 - mean) / sd)


def test_preparation_does_not_change_its_input():
    data = images(20)
    before = data.train_images.clone()
    Preparation(data)(data.train_images, random_bits([0], 20)[0])
    assert torch.equal(data.train_images, before)


def test_prepared_digits_have_mean_0_and_sd_1():
    digits = load("digits")
    x = Preparation(digits)(digits.train_images)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


@pytest.mark.parametrize(("n", "want"), [(60_000, 5_000), (50_000, 5_000), (1_500, 150), (10, 1), (4, 1)])
def test_default_validation_part_is_5000_images_or_a_tenth(n, want):
    assert usual_size(n) == want


def test_validation_split_partitions_the_training_images():
    digits = load("digits")
    rest, x, y = validation_split(digits, count=300)
    again = validation_split(digits, count=300)
    assert (len(x), len(y), len(rest.train_images)) == (300, 300, 1200)
    assert torch.equal(x, again[1])
    whole = torch.cat([rest.train_images, x]).flatten(1)
    assert sorted(map(tuple, whole.tolist())) == sorted(map(tuple, digits.train_images.flatten(1).tolist()))
    assert torch.equal(torch.cat([rest.train_labels, y]).bincount(), digits.train_labels.bincount())
    assert rest.test_images is digits.test_images


@pytest.mark.parametrize("count", [0, -1, 1500, 2000])
def test_an_empty_or_full_validation_part_is_refused(count):
    with pytest.raises(ValueError, match=rf"1 to 1499 of 1500 training images, got {count}"):
        validation_split(load("digits"), count=count)
